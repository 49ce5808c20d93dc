"""Every job, every epoch, in one SQLite file.

The file is in WAL mode and written by several processes at once, each through its own :class:`Store`. Whatever belongs
together is written in one transaction, so a process may be killed at any moment: what it had not committed is done
again, and nothing is half there.

A job belongs to the process that holds its lock (:mod:`contdrop.lab.locks`), which the operating system takes away from
a process that ends, however it ends. So "running" in the table means running only while the lock is held; otherwise the
job was interrupted and waits to be taken up again.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError
from .locks import Locks

PLANNED, RUNNING, FINISHED, FAILED = "planned", "running", "finished", "failed"
SELECTION, FINAL = "selection", "final"

APPLICATION = 0x636F6E74  # "cont": tells our files from other programs' SQLite files

# Step i brings a store from version i to i + 1. A step that was ever released is never changed.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE protocols (
        key TEXT PRIMARY KEY, experiment TEXT NOT NULL, preset TEXT NOT NULL, epochs INTEGER NOT NULL,
        configuration TEXT NOT NULL, description TEXT NOT NULL, created REAL NOT NULL
    );
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, protocol TEXT NOT NULL REFERENCES protocols(key),
        experiment TEXT NOT NULL, stage TEXT NOT NULL, method TEXT NOT NULL, run INTEGER NOT NULL,
        epochs INTEGER NOT NULL, configuration TEXT NOT NULL, status TEXT NOT NULL, error TEXT, variant TEXT,
        seeds TEXT, fingerprints TEXT, versions TEXT, machine TEXT, results TEXT,
        created REAL NOT NULL, started REAL, ended REAL
    );
    CREATE INDEX jobs_of_protocol ON jobs (protocol, stage, run);
    CREATE TABLE epochs (
        job INTEGER NOT NULL REFERENCES jobs(id), epoch INTEGER NOT NULL, train_loss REAL, train_error REAL,
        val_loss REAL, val_error REAL, test_loss REAL, test_error REAL, learning_rate REAL, seconds REAL NOT NULL,
        PRIMARY KEY (job, epoch)
    ) WITHOUT ROWID;
    CREATE TABLE artefacts (
        job INTEGER NOT NULL REFERENCES jobs(id), name TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (job, name)
    );
    CREATE TABLE checkpoints (
        job INTEGER PRIMARY KEY REFERENCES jobs(id), epoch INTEGER NOT NULL, state BLOB NOT NULL
    );
    CREATE TABLE selections (
        protocol TEXT NOT NULL REFERENCES protocols(key), method TEXT NOT NULL, variant TEXT, reason TEXT NOT NULL,
        candidates TEXT NOT NULL, decided REAL NOT NULL, PRIMARY KEY (protocol, method)
    );
    """,
)

METRICS = ("train_loss", "train_error", "val_loss", "val_error", "test_loss", "test_error")


@dataclass(frozen=True)
class ProtocolRecord:
    """A row of ``protocols``."""

    key: str
    experiment: str
    preset: str
    epochs: int
    configuration: dict[str, Any]
    description: dict[str, Any]
    created: float


@dataclass(frozen=True)
class JobRecord:
    """A row of ``jobs``. ``status`` is what the table says; see :meth:`Store.is_interrupted`.

    ``results`` of a finished job has the final model's losses and errors (in per cent), in evaluation mode, under the
    names of ``METRICS``; a selection job has none of the test data. ``seconds`` is the time of its epochs together.
    """

    id: int
    key: str
    protocol: str
    experiment: str
    stage: str
    method: str
    run: int
    epochs: int
    configuration: dict[str, Any]
    status: str
    error: str | None
    variant: str | None
    seeds: dict[str, int]
    fingerprints: dict[str, str]
    versions: dict[str, str]
    machine: dict[str, Any]
    results: dict[str, float]
    created: float
    started: float | None
    ended: float | None
    epochs_done: int
    seconds: float


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch, counted from 1. Training figures are those under dropout, as it went."""

    epoch: int
    train_loss: float
    train_error: float
    val_loss: float
    val_error: float
    test_loss: float | None
    test_error: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class Selection:
    """Which variant was selected for a label, from which validation errors. ``variant`` is None if all failed."""

    protocol: str
    method: str
    variant: str | None
    reason: str
    candidates: dict[str, Any]
    decided: float


class Store:
    """One process's connection to the file; a context manager."""

    def __init__(self, path: pathlib.Path | str, *, create: bool = False) -> None:
        self.path = pathlib.Path(path)
        if self.path.is_dir():
            raise UserError(f"--store: expected a file; {self.path} is a directory")
        if not self.path.exists():
            if not create:
                raise UserError(
                    f"--store: there is no store {self.path}; name another, or make it by: contdrop run digits-mlp"
                )
            if not self.path.absolute().parent.is_dir():
                raise UserError(f"--store: there is no directory {self.path.absolute().parent}; make it first")
        # Without the right to write beside it, SQLite opens a file in WAL mode only if told that nobody changes it.
        writable = create or (os.access(self.path, os.W_OK) and os.access(self.path.absolute().parent, os.W_OK))
        address = self.path.absolute().as_uri() + ("" if writable else "?immutable=1")
        with self._explained():
            self._db = sqlite3.connect(address, timeout=60, isolation_level=None, uri=True)
            try:
                self._db.row_factory = sqlite3.Row
                self._migrate()
            except BaseException:
                self._db.close()
                raise
        self.locks = Locks(self.path.with_name(self.path.name + "-locks") if writable else None)

    def _migrate(self) -> None:
        """Brings the file to the newest version, in one transaction, unless it is not ours or newer than we are."""
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION and tables:
            raise UserError(f"--store: expected a store of contdrop; {self.path} is a database of another program")
        if self._version() > len(MIGRATIONS):
            raise UserError(
                f"--store: {self.path} has version {self._version()}, and this contdrop knows versions up to "
                f"{len(MIGRATIONS)}; install a newer contdrop"
            )
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if self._version() == len(MIGRATIONS):
            return
        self._db.execute("PRAGMA journal_mode = WAL")
        with self.transaction():
            for step in MIGRATIONS[self._version() :]:  # read again: another process may have been quicker
                for statement in step.split(";"):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def close(self) -> None:
        self.locks.close()
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what SQLite says about a bad file or a full disk into a line for the user."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "not a database" in text or "malformed" in text:
                raise UserError(f"--store: expected a store of contdrop; {self.path} is none, or damaged") from error
            if "disk I/O" in text:
                raise UserError(f"cannot read or write {self.path}: {text}; {self._why_io_failed()}") from error
            if "full" in text:
                raise UserError(
                    f"cannot write {self.path}: {text}; make room, then give the same command again: nothing is lost"
                ) from error
            if "readonly" in text or "unable to open" in text:
                raise UserError(f"--store: cannot write {self.path}: {text}; check its permissions") from error
            raise

    def _why_io_failed(self) -> str:
        """SQLite says the same of a broken disk and of a log that somebody deleted."""
        log = self.path.with_name(self.path.name + "-wal")
        if not log.exists():
            return f"{log.name}, which belongs to it, is gone: put it back, or end what uses the store and try again"
        return "check the disk, then give the same command again: what was written whole is kept"

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        with self._explained():
            return self._db.execute(query, values).fetchall()

    # ---- the plan

    def add_jobs(
        self, protocol: Mapping[str, Any], description: Mapping[str, Any], key: str, jobs: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Puts jobs of one protocol into the plan, except those that are there already; returns all their ids.

        Args:
            protocol: The protocol's configuration.
            description: What a report says about it; replaces an older one.
            key: The protocol's.
            jobs: Of each its key, stage, method, run, epochs and configuration.
        """
        now = time.time()
        with self.transaction() as db:
            self._refuse_other_masks(db, protocol.get("masks"))
            db.execute(
                "INSERT INTO protocols VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET description = excluded.description",
                (
                    key,
                    protocol["experiment"],
                    protocol["preset"],
                    protocol["epochs"],
                    json.dumps(protocol, sort_keys=True),
                    json.dumps(description, sort_keys=True),
                    now,
                ),
            )
            db.executemany(
                "INSERT OR IGNORE INTO jobs (key, protocol, experiment, stage, method, run, epochs, configuration, "
                "status, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        job["key"],
                        key,
                        protocol["experiment"],
                        job["stage"],
                        job["method"],
                        job["run"],
                        job["epochs"],
                        json.dumps(job["configuration"], sort_keys=True),
                        PLANNED,
                        now,
                    )
                    for job in jobs
                ],
            )
            ids = dict(db.execute("SELECT key, id FROM jobs WHERE protocol = ?", (key,)).fetchall())
        return [ids[job["key"]] for job in jobs]

    def _refuse_other_masks(self, db: sqlite3.Connection, version: int | None) -> None:
        """Masks of another version are other experiments: their results are not to be mixed in one file."""
        for (text,) in db.execute("SELECT configuration FROM protocols").fetchall():
            found = json.loads(text).get("masks")
            if found != version:
                begun = "masks of an earlier version" if found is None else f"version {found} of the masks"
                raise UserError(
                    f"--store: {self.path} was begun with {begun}, and this contdrop draws version {version}, so it "
                    "does not resume; give another file, or use the contdrop that began it"
                )

    def plan_again(self, job: int) -> None:
        """Forgets a failure, so that the job is done once more."""
        with self.transaction() as db:
            db.execute("DELETE FROM epochs WHERE job = ?", (job,))
            db.execute("DELETE FROM checkpoints WHERE job = ?", (job,))
            db.execute(
                "UPDATE jobs SET status = ?, error = NULL, ended = NULL WHERE id = ? AND status = ?",
                (PLANNED, job, FAILED),
            )

    # ---- a job's life, written by the process that holds its lock

    def begin(
        self,
        job: int,
        *,
        variant: str,
        seeds: Mapping[str, int],
        fingerprints: Mapping[str, str],
        versions: Mapping[str, str],
        machine: Mapping[str, Any],
    ) -> str | None:
        """Marks a job as running; what it shares has to equal what the other methods of its run have.

        Returns:
            None, or what does not match; then the job was not begun.
        """
        with self.transaction() as db:
            me = db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
            others = db.execute(
                "SELECT method, fingerprints FROM jobs WHERE protocol = ? AND stage = ? AND run = ? AND id != ? "
                "AND fingerprints IS NOT NULL AND status IN (?, ?)",
                (me["protocol"], me["stage"], me["run"], job, RUNNING, FINISHED),
            ).fetchall()
            mismatch = find_mismatch({me["method"]: fingerprints} | {o[0]: json.loads(o[1]) for o in others})
            if mismatch:
                return mismatch
            db.execute(
                "UPDATE jobs SET status = ?, variant = ?, seeds = ?, fingerprints = ?, versions = ?, machine = ?, "
                "started = coalesce(started, ?) WHERE id = ?",
                (RUNNING, variant, *(_dump(x) for x in (seeds, fingerprints, versions, machine)), time.time(), job),
            )
        return None

    def progress(self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, bytes] | None = None) -> None:
        """Writes finished epochs and, together with them, the state to resume from after the last one."""
        with self.transaction() as db:
            self._write_epochs(db, job, epochs)
            if checkpoint:
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (job, *checkpoint))

    def checkpoint(self, job: int) -> tuple[int, bytes] | None:
        """The last epoch that was saved, and the state after it."""
        rows = self._read("SELECT epoch, state FROM checkpoints WHERE job = ?", (job,))
        return (rows[0]["epoch"], rows[0]["state"]) if rows else None

    def finish(
        self, job: int, epochs: Sequence[Epoch], results: Mapping[str, float], artefacts: Mapping[str, np.ndarray]
    ) -> None:
        with self.transaction() as db:
            self._write_epochs(db, job, epochs)
            db.executemany(
                "INSERT OR REPLACE INTO artefacts VALUES (?, ?, ?)",
                [(job, name, _pack(array)) for name, array in artefacts.items()],
            )
            self._end(db, job, FINISHED, None, results)

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        """Records a job that cannot be finished, with its reason; it is not tried again unless asked for."""
        with self.transaction() as db:
            self._write_epochs(db, job, epochs)
            self._end(db, job, FAILED, reason, None)

    @staticmethod
    def _write_epochs(db: sqlite3.Connection, job: int, epochs: Sequence[Epoch]) -> None:
        db.executemany(
            "INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    job,
                    e.epoch,
                    *(_finite(x) for x in (e.train_loss, e.train_error, e.val_loss, e.val_error)),
                    *(_finite(x) for x in (e.test_loss, e.test_error)),
                    e.learning_rate,
                    e.seconds,
                )
                for e in epochs
            ],
        )

    @staticmethod
    def _end(
        db: sqlite3.Connection, job: int, status: str, error: str | None, results: Mapping[str, float] | None
    ) -> None:
        db.execute("DELETE FROM checkpoints WHERE job = ?", (job,))
        db.execute(
            "UPDATE jobs SET status = ?, error = ?, results = ?, ended = ? WHERE id = ?",
            (status, error, _dump(results), time.time(), job),
        )

    def select(self, selection: Selection) -> None:
        """Records a decision; the first one stands."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO selections VALUES (?, ?, ?, ?, ?, ?)",
                (
                    selection.protocol,
                    selection.method,
                    selection.variant,
                    selection.reason,
                    _dump(selection.candidates),
                    selection.decided,
                ),
            )

    # ---- reading

    def protocols(self) -> list[ProtocolRecord]:
        """In the order in which they were first planned."""
        return [
            ProtocolRecord(
                **{
                    **dict(row),
                    "configuration": json.loads(row["configuration"]),
                    "description": json.loads(row["description"]),
                }
            )
            for row in self._read("SELECT * FROM protocols ORDER BY created, rowid")
        ]

    def jobs(self, *, protocol: str | None = None, ids: Sequence[int] | None = None) -> list[JobRecord]:
        """In the order of the plan."""
        query = (
            "SELECT jobs.*, count(epoch) AS epochs_done, coalesce(sum(seconds), 0) AS seconds FROM jobs "
            "LEFT JOIN epochs ON epochs.job = jobs.id WHERE (:protocol IS NULL OR protocol = :protocol) "
            "AND (:ids IS NULL OR jobs.id IN (SELECT value FROM json_each(:ids))) "
            "GROUP BY jobs.id ORDER BY jobs.id"
        )
        wanted = None if ids is None else json.dumps(list(ids))
        return [_job(row) for row in self._read(query, {"protocol": protocol, "ids": wanted})]

    def job(self, job_id: int) -> JobRecord:
        return self.jobs(ids=[job_id])[0]

    def statuses(self) -> dict[int, str]:
        """Of every job; much cheaper than :meth:`jobs`."""
        return dict(self._read("SELECT id, status FROM jobs"))  # type: ignore[arg-type]

    def is_interrupted(self, job: JobRecord) -> bool:
        """Whether a job that the table calls running has lost its process."""
        return job.status == RUNNING and not self.locks.is_held(job.id)

    def epochs(self, job: int) -> list[Epoch]:
        rows = self._read("SELECT * FROM epochs WHERE job = ? ORDER BY epoch", (job,))
        return [Epoch(**{name: row[name] for name in Epoch.__dataclass_fields__}) for row in rows]

    def curves(self, protocol: str) -> dict[int, list[Epoch]]:
        """The epochs of all jobs of a protocol, by job."""
        rows = self._read(
            "SELECT epochs.* FROM epochs JOIN jobs ON jobs.id = epochs.job WHERE protocol = ? ORDER BY job, epoch",
            (protocol,),
        )
        found: dict[int, list[Epoch]] = {}
        for row in rows:
            found.setdefault(row["job"], []).append(Epoch(**{name: row[name] for name in Epoch.__dataclass_fields__}))
        return found

    def artefact(self, job: int, name: str) -> np.ndarray | None:
        rows = self._read("SELECT content FROM artefacts WHERE job = ? AND name = ?", (job, name))
        return _unpack(rows[0]["content"]) if rows else None

    def selections(self, protocol: str) -> dict[str, Selection]:
        rows = self._read("SELECT * FROM selections WHERE protocol = ? ORDER BY method", (protocol,))
        return {row["method"]: Selection(**{**dict(row), "candidates": json.loads(row["candidates"])}) for row in rows}


def find_mismatch(fingerprints: Mapping[str, Mapping[str, str]]) -> str | None:
    """What differs between methods that should share everything but masks; None if nothing does."""
    (first, shared), *others = fingerprints.items()
    for method, found in others:
        for what in sorted(shared.keys() | found.keys()):
            if shared.get(what) != found.get(what):
                return f"{first} and {method} do not share the same {what}, so they are not paired"
    return None


def _job(row: sqlite3.Row) -> JobRecord:
    content = dict(row)
    for name in ("configuration", "seeds", "fingerprints", "versions", "machine", "results"):
        content[name] = json.loads(content[name]) if content[name] else {}
    return JobRecord(**content)


def _dump(content: Mapping[str, Any] | None) -> str | None:
    return None if content is None else json.dumps(content, sort_keys=True, allow_nan=False)


def _finite(value: float | None) -> float | None:
    """A diverged loss is stored as NULL; SQLite knows no NaN, and JSON no infinity."""
    return value if value is not None and np.isfinite(value) else None


def _pack(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _unpack(content: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array
