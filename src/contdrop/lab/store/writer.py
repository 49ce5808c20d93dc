"""Every job, every epoch, in one SQLite file.

The file is in WAL mode and written by several processes at once, each through its own :class:`Store`. Whatever belongs
together is written in one transaction, so a process may be killed at any moment: what it had not committed is done
again, and nothing is half there. Every row has a checksum (:mod:`.checksums`), which is written with it and verified
when it is read (:mod:`.reading`): what a bad disk or a wrong hand has changed is found, and done again.

A job belongs to the process that holds its lock (:mod:`contdrop.lab.store.locks`), which the operating system takes
away from
a process that ends, however it ends. So "running" in the table means running only while the lock is held; otherwise the
job was interrupted and waits to be taken up again.
"""

from __future__ import annotations

import json
import math
import pathlib
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._text import plural
from ...errors import UserError
from ..study import amendments
from . import blobs, schema
from .blobs import Buffer
from .integrity import restore_if_damaged
from .locks import check_place
from .reader import WEIGHTS, DamageError, StoreReader, checkpoint_digest, pack
from .results import find_mismatch
from .schema import (
    FAILED,
    FINISHED,
    IMPORTED,
    METRICS,
    PLANNED,
    PROCESSOR,
    RUNNING,
    Epoch,
    JobRecord,
    SelectionRecord,
    canonical_json,
    extend_curve,
    processor,
    row_checksum,
)

_RESTORING = 0  # the lock of whoever looks whether the file is damaged; jobs are numbered from 1


class TakenError(Exception):
    """Another process does this job as well, which happens when the file of locks is deleted while one works."""


class Store(StoreReader):
    """One process's connection to the file, for reading and writing; a context manager."""

    def __init__(self, path: pathlib.Path | str, *, create: bool = False) -> None:
        self.restored: str | None = None  # what to say if a copy has taken a damaged file's place
        super().__init__(path, create=create)

    def _prepare(self) -> None:
        check_place(self.path)
        if self.path.exists():
            with self.locks.waiting(_RESTORING):
                self.restored = restore_if_damaged(self.path)

    def __enter__(self) -> Store:
        return self

    # ---- the plan

    def add_jobs(
        self, protocol: Mapping[str, Any], description: Mapping[str, Any], key: str, jobs: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Puts jobs of one protocol into the plan, except those that are there already; returns all their ids.

        Args:
            protocol: The protocol's configuration.
            description: What a report says about it; replaces an older one, whose plans it keeps (:mod:`.looks`).
            key: The protocol's.
            jobs: Of each its key, stage, method, run, epochs and configuration.
        """
        now = time.time()
        with self.transaction() as db:
            before = schema.count_rows(db)
            self._drop_if_bad(db, key)
            self.refuse_other_masks(db, key, protocol)
            db.execute(
                "INSERT INTO protocols (key, experiment, preset, epochs, configuration, description, created) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET description = excluded.description, "
                "experiment = excluded.experiment, preset = excluded.preset, epochs = excluded.epochs, "
                "configuration = excluded.configuration, created = coalesce(nullif(created, -1), excluded.created)",
                (
                    key,
                    protocol["experiment"],
                    protocol["preset"],
                    protocol["epochs"],
                    canonical_json(protocol),
                    json.dumps(amendments.noted(db, key, description, jobs, now), sort_keys=True),
                    now,
                ),
            )
            there = {row["key"] for row in db.execute("SELECT key FROM jobs WHERE protocol = ?", (key,))}
            for job in jobs:
                if job["key"] not in there:
                    self._plan(db, key, protocol["experiment"], job, now)
            self.seal_plan(db, key)
            schema.seal_totals(db, before)
            ids = dict(db.execute("SELECT key, id FROM jobs WHERE protocol = ?", (key,)).fetchall())
        return [ids[job["key"]] for job in jobs]

    @staticmethod
    def _plan(db: sqlite3.Connection, protocol: str, experiment: str, job: Mapping[str, Any], now: float) -> None:
        row = {"protocol": protocol, "experiment": experiment, "status": PLANNED, "created": now}
        added = schema.insert(db, "jobs", {**job, "configuration": canonical_json(job["configuration"]), **row})
        schema.update_checksum(db, "jobs", "id = ?", added)

    @staticmethod
    def seal_plan(db: sqlite3.Connection, protocol: str) -> None:
        db.execute(
            "UPDATE protocols SET planned = (SELECT count(*) FROM jobs WHERE protocol = protocols.key) WHERE key = ?",
            (protocol,),
        )
        schema.update_checksum(db, "protocols", "key = ?", protocol)

    @staticmethod
    def _drop_if_bad(db: sqlite3.Connection, key: str) -> None:
        """All of a bad row of an experiment is written anew, the time of its first plan among it."""
        row = db.execute("SELECT * FROM protocols WHERE key = ?", (key,)).fetchone()
        if row is not None and row["checksum"] != row_checksum(row):
            db.execute("UPDATE protocols SET created = -1 WHERE key = ?", (key,))

    def refuse_other_masks(self, db: sqlite3.Connection, key: str, configuration: Mapping[str, Any]) -> None:
        """Masks of another version are other experiments: their results are not to be mixed in one file.

        Numbers that were imported have no masks.
        """
        version = configuration.get("masks")
        for row in db.execute("SELECT * FROM protocols WHERE key != ?", (key,)).fetchall():
            other = json.loads(self._verified(row, "an experiment")["configuration"])
            found = other.get("masks")
            if found != version and not {IMPORTED} & {configuration.get("preset"), other.get("preset")}:
                begun = "masks of an earlier version" if found is None else f"version {found} of the masks"
                raise UserError(
                    f"--store: {self.path} was begun with {begun}, and this contdrop draws version {version}, so it "
                    "does not resume; give another file, or use the contdrop that began it"
                )

    def plan_again(self, *jobs: int) -> None:
        """Forgets failures, so that these jobs are done once more; all at once, lest a selection be made of a few."""
        with self.transaction() as db:
            before = schema.count_rows(db)
            failed = [row for row in map(self._row, jobs) if row["status"] == FAILED]
            for row in failed:
                self._forget(db, row["id"])
            # That every candidate failed holds until one is tried again. What was selected stays: jobs trained with it.
            for protocol in {row["protocol"] for row in failed}:
                db.execute("DELETE FROM selections WHERE protocol = ? AND variant IS NULL", (protocol,))
            if schema.count_rows(db) != before:
                schema.seal_totals(db, before)

    @staticmethod
    def _forget(db: sqlite3.Connection, job: int) -> None:
        for table in ("epochs", "checkpoints", "artefacts"):
            db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
        db.execute(
            "UPDATE jobs SET status = ?, error = NULL, started = NULL, ended = NULL, results = NULL, epochs_done = 0, "
            "seconds = 0, curve = '', artefacts = '{}', checkpoint = NULL, origin = NULL WHERE id = ?",
            (PLANNED, job),
        )
        schema.update_checksum(db, "jobs", "id = ?", job)

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
            me = self._row(job)
            others = db.execute(
                "SELECT * FROM jobs WHERE protocol = ? AND stage = ? AND run = ? AND id != ? "
                "AND fingerprints IS NOT NULL AND status IN (?, ?)",
                (me["protocol"], me["stage"], me["run"], job, RUNNING, FINISHED),
            ).fetchall()
            mine = {**fingerprints, PROCESSOR: processor(machine)}
            theirs = {other.method: other.shared for other in map(self._job, others)}
            mismatch = find_mismatch({me["method"]: mine} | theirs)
            if mismatch:
                return mismatch
            db.execute(
                "UPDATE jobs SET status = ?, variant = ?, seeds = ?, fingerprints = ?, versions = ?, machine = ?, "
                "started = coalesce(started, ?) WHERE id = ?",
                (
                    RUNNING,
                    variant,
                    *(canonical_json(x) for x in (seeds, fingerprints, versions, machine)),
                    time.time(),
                    job,
                ),
            )
            schema.update_checksum(db, "jobs", "id = ?", job)
        return None

    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None:
        """Writes finished epochs and, together with them, the state to resume from after the last one, in pieces."""
        epoch, parts = checkpoint or (0, [])
        state, key = b"", self._key(job)
        if sum(map(len, parts)) > blobs.LARGE:
            state = self.files.put(key, f"-{epoch}{blobs.CHECKPOINT}", parts)
        elif parts:
            state = b"".join(parts)
        with self.transaction() as db:
            self._row(job)  # before it gets a new checksum, lest damage get one too
            self.write_epochs(db, job, epochs)
            if state:
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (job, epoch, state))
                db.execute("UPDATE jobs SET checkpoint = ? WHERE id = ?", (checkpoint_digest(epoch, state), job))
            schema.update_checksum(db, "jobs", "id = ?", job)
        if state:
            self.files.remove(key, keep=state)

    def sweep(self) -> None:
        """Removes the files of checkpoints that no job resumes from, such as a killed process or another one left."""
        found = self.files.checkpoints()
        running = {self.files.owner(key) for (key,) in self._read("SELECT key FROM jobs WHERE status = ?", (RUNNING,))}
        for path, owner in found:
            if owner not in running:
                path.unlink(missing_ok=True)

    def resume(self, job: int) -> tuple[int, Buffer] | None:
        """Like :meth:`checkpoint`; if that or the epochs before it cannot be trusted, the job starts over."""
        try:
            saved, done = self.checkpoint(job), len(self.epochs(job))
        except DamageError:
            saved, done = None, 1
        if saved is None and done:
            self.drop_progress(job)
        return saved

    def drop_progress(self, job: int) -> None:
        """Forgets the epochs of a job that has begun."""
        with self.transaction() as db:
            for table in ("epochs", "checkpoints"):
                db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
            db.execute(
                "UPDATE jobs SET epochs_done = 0, seconds = 0, curve = '', checkpoint = NULL WHERE id = ?", (job,)
            )
            schema.update_checksum(db, "jobs", "id = ?", job)

    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None:
        """Writes all that is left of a job; ``weights``, in pieces, go into a file beside the store."""
        packed, key = {name: pack(array) for name, array in artefacts.items()}, self._key(job)
        if weights:
            packed[WEIGHTS] = self.files.put(key, blobs.WEIGHTS, weights)
        with self.transaction() as db:
            self._row(job)  # before it gets a new checksum, lest damage get one too
            self.write_epochs(db, job, epochs)
            self.write_artefacts(db, job, packed)
            self._end(db, job, FINISHED, None, results)
        self.files.remove(key)

    @staticmethod
    def write_artefacts(db: sqlite3.Connection, job: int, packed: dict[str, bytes]) -> None:
        db.executemany("INSERT OR REPLACE INTO artefacts VALUES (?, ?, ?)", [(job, *each) for each in packed.items()])
        db.execute("UPDATE jobs SET artefacts = ? WHERE id = ?", (schema.artefact_list(packed), job))

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        """Records a job that cannot be finished, with its reason; it is not tried again unless asked for."""
        with self.transaction() as db:
            self._row(job)  # before it gets a new checksum, lest damage get one too
            self.write_epochs(db, job, epochs)
            self._end(db, job, FAILED, reason, None)
        self.files.remove(self._key(job))

    def _key(self, job: int) -> str:
        return str(self._read("SELECT key FROM jobs WHERE id = ?", (job,))[0]["key"])

    @staticmethod
    def write_epochs(db: sqlite3.Connection, job: int, epochs: Sequence[Epoch]) -> None:
        rows = [
            (e.epoch, *(_finite(getattr(e, name)) for name in METRICS), _told(e.learning_rate), _told(e.seconds))
            for e in epochs
        ]
        before, done = db.execute("SELECT curve, epochs_done FROM jobs WHERE id = ?", (job,)).fetchone()
        if rows and rows[0][0] != done + 1:
            raise TakenError(f"job {job} has {done} epochs, and epoch {rows[0][0]} was to be written")
        db.executemany("INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(job, *row) for row in rows])
        db.execute(
            "UPDATE jobs SET epochs_done = epochs_done + ?, seconds = seconds + ?, curve = ? WHERE id = ?",
            (len(rows), math.fsum(_told(e.seconds) for e in epochs), extend_curve(before, rows), job),
        )

    @staticmethod
    def _end(
        db: sqlite3.Connection, job: int, status: str, error: str | None, results: Mapping[str, float] | None
    ) -> None:
        db.execute("DELETE FROM checkpoints WHERE job = ?", (job,))
        db.execute(
            "UPDATE jobs SET status = ?, error = ?, results = ?, ended = ?, checkpoint = NULL WHERE id = ?",
            (status, error, None if results is None else canonical_json(results), time.time(), job),
        )
        schema.update_checksum(db, "jobs", "id = ?", job)

    def select(self, selection: SelectionRecord) -> None:
        """Records a decision; the first one stands, unless it was that nothing can be: see :meth:`plan_again`."""
        content = {
            **vars(selection),
            "candidates": canonical_json(selection.candidates),
            "decided": float(selection.decided),
        }
        with self.transaction() as db:
            before = schema.count_rows(db)
            schema.insert(db, "selections", content, "OR IGNORE")
            if schema.count_rows(db) != before:
                schema.update_checksum(
                    db, "selections", "protocol = ? AND method = ?", selection.protocol, selection.method
                )
                schema.seal_totals(db, before)

    # ---- what has to be done again

    def jobs_there(self, protocol: str) -> list[JobRecord]:
        """Also where the plan itself is damaged, which only :meth:`add_jobs` mends."""
        return self.jobs(ids=[row["id"] for row in self._read("SELECT id FROM jobs WHERE protocol = ?", (protocol,))])

    def mend(self, protocol: str, keys: Collection[str]) -> list[str]:
        """Takes out what a checksum proves wrong of a protocol, so that it is done again; says what.

        A job whose row is bad is taken out of the plan, for nobody knows what it was: those of ``keys`` are planned
        again at once by :meth:`add_jobs`. A finished job whose epochs or artefacts are bad starts over.
        """
        found: list[str] = []
        with self.transaction() as db:
            before = schema.count_rows(db)
            for row in db.execute("SELECT * FROM jobs WHERE protocol = ?", (protocol,)).fetchall():
                what = self.damage_of(row)
                if what is not None:
                    found.append(what)
                    self._forget(db, row["id"])
                    if row["checksum"] != row_checksum(row):
                        db.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            for row in db.execute("SELECT * FROM jobs WHERE protocol != ?", (protocol,)).fetchall():
                if row["key"] in keys:  # of this protocol, and says that it is not
                    found.append(f"job {row['id']} does not match its checksum")
                    self._forget(db, row["id"])
                    db.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            for row in db.execute("SELECT rowid, * FROM selections WHERE protocol = ?", (protocol,)).fetchall():
                content = {name: row[name] for name in row.keys() if name != "rowid"}  # noqa: SIM118
                if row["checksum"] != row_checksum(content):
                    found.append("a selection does not match its checksum")
                    db.execute("DELETE FROM selections WHERE rowid = ?", (row["rowid"],))
            row = db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchone()
            (there,) = db.execute("SELECT count(*) FROM jobs WHERE protocol = ?", (protocol,)).fetchone()
            if row is not None and row["checksum"] != row_checksum(row):
                found.append("an experiment does not match its checksum")  # written anew by add_jobs
            elif row is not None and row["planned"] != there:
                if not found:
                    found.append(f"{row['planned']} jobs were planned, and {there} are there")
                self.seal_plan(db, protocol)
            found += self._mend_totals(db, before)
        return found

    @staticmethod
    def _mend_totals(db: sqlite3.Connection, before: tuple[int, int]) -> list[str]:
        rows = db.execute("SELECT * FROM totals").fetchall()
        whole = [tuple(row)[1:3] for row in rows if row["checksum"] == row_checksum(row)] if len(rows) < 2 else []
        if whole == [before] or (not rows and before == (0, 0)):
            schema.seal_totals(db, before)
            return []
        db.execute("DELETE FROM totals")
        schema.seal_totals(db)
        return ["experiments or selections are not as many as were written"]

    def of_other_processors(
        self, runs: Iterable[Sequence[JobRecord | None]], machine: Mapping[str, Any]
    ) -> list[JobRecord]:
        """What another kind of processor has done of open runs and of mixed ones; None is a job yet to be planned."""
        found: list[JobRecord] = []
        for jobs in runs:
            done = [job for job in jobs if job and (job.status == FINISHED or self.is_interrupted(job))]
            is_open = any(job is None or job.status in (PLANNED, RUNNING) for job in jobs)
            if is_open or len({job.shared[PROCESSOR] for job in done}) > 1:
                found += [job for job in done if job.shared[PROCESSOR] != processor(machine)]
        return found

    def plan_other_processors_again(self, ids: Sequence[int], machine: Mapping[str, Any]) -> list[str]:
        """In a run all methods come from one kind of processor: what another kind has done of an open run starts over.

        Runs that are complete, all by one kind, stay as they are. Returns a line for every kind of processor whose jobs
        the machine, which does the rest, is to do again.
        """
        by_run: dict[tuple[str, str, int], list[JobRecord]] = {}
        for job in self.jobs(ids=ids):
            by_run.setdefault((job.protocol, job.stage, job.run), []).append(job)
        again: dict[str, list[JobRecord]] = {}
        for job in self.of_other_processors(by_run.values(), machine):
            again.setdefault(job.shared[PROCESSOR], []).append(job)
        mine = processor(machine)
        with self.transaction() as db:
            for job in [job for jobs in again.values() for job in jobs]:
                self._forget(db, job.id)
        return [
            f"{plural(len(jobs), 'job')} of unfinished runs came from another kind of processor ({kind}) than this "
            f"one ({mine}), and {'is' if len(jobs) == 1 else 'are'} done again: a run's methods all come from one kind"
            for kind, jobs in again.items()
        ]


def _finite(value: float | None) -> float | None:
    """A diverged loss is stored as NULL; SQLite knows no NaN, and JSON no infinity."""
    return float(value) if value is not None and math.isfinite(value) else None


def _told(value: float | None) -> float:
    """What is no number counts as if none had been told, which is 0: archives have a number there."""
    found = _finite(value)
    return 0.0 if found is None else found
