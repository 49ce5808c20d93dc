"""Write access to a store: an SQLite file with every job and every epoch.

The file is in WAL mode and written by several processes at once, each through its own :class:`Store`. What belongs
together is written in one transaction, so a process may be killed at any moment: what it had not committed is done
again. Rows get their checksums in the transaction that writes them, and the reader verifies them: damaged jobs are
found, and done again.

A job belongs to the process that holds its lock (:mod:`contdrop.lab.store.locks`), which the operating system releases
when that process ends. So the status "running" means running only while the lock is held; otherwise the job was
interrupted, and waits to be resumed.
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
from . import blobs
from .blobs import Buffer
from .integrity import restore_if_damaged
from .locks import Locks, check_place
from .reader import WEIGHTS, DamageError, StoreReader, pack
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
    artefact_digests,
    canonical_json,
    checkpoint_digest,
    count_rows,
    extend_curve,
    insert,
    processor,
    row_checksum,
    update_checksum,
)

_RESTORING = 0  # the lock of the process that tests whether the file is damaged; jobs are numbered from 1


class TakenError(Exception):
    """Job that another process does as well, which happens when the file of locks is deleted while one works."""


class Store(StoreReader):
    """One process's connection to a store, for reading and writing; a context manager.

    Args:
        path: The file.
        create: Make a file that does not exist, and replace one that SQLite cannot read by its backup.
    """

    def __init__(self, path: pathlib.Path | str, *, create: bool = False) -> None:
        self.restored: str | None = None  # a line for the user if the backup has replaced a damaged file
        if create:
            file = pathlib.Path(path)
            file = file.resolve() if file.is_symlink() else file
            check_place(file)
            if file.is_file():
                locks = Locks(file.with_name(file.name + "-locks"))
                with locks.waiting(_RESTORING):
                    self.restored = restore_if_damaged(file)
                locks.close()
        super().__init__(path, create=create)

    # ---- the plan

    def add_jobs(
        self, protocol: Mapping[str, Any], description: Mapping[str, Any], key: str, jobs: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Plan the jobs of one protocol that are not planned yet, and return the numbers of all.

        Args:
            protocol: The protocol's configuration.
            description: What a report says about it. It replaces an earlier one, except the log of changes
                (:mod:`contdrop.lab.study.amendments`).
            key: The protocol's key.
            jobs: Key, stage, method, run, epochs and configuration of each job.
        """
        now = time.time()
        with self.transaction() as db:
            before = db.execute("SELECT * FROM protocols WHERE key = ?", (key,)).fetchone()
            if before is not None and before["checksum"] != row_checksum(before):
                before = None  # all of a damaged row is replaced
            self.refuse_other_masks(db, key, protocol)
            there = {job["key"] for job in db.execute("SELECT key FROM jobs WHERE protocol = ?", (key,))}
            added = [job for job in jobs if job["key"] not in there]
            row = {
                "key": key,
                **{name: protocol[name] for name in ("experiment", "preset", "epochs")},
                "configuration": canonical_json(protocol),
                "description": json.dumps(amendments.noted(db, key, description, jobs, now), sort_keys=True),
                "created": now if before is None else before["created"],
            }
            changes = ", ".join(f"{name} = excluded.{name}" for name in row if name != "key")
            insert(db, "protocols", row, more=f"ON CONFLICT (key) DO UPDATE SET {changes}")
            common = {"protocol": key, "experiment": protocol["experiment"], "status": PLANNED, "created": now}
            for job in added:
                number = insert(db, "jobs", {**job, "configuration": canonical_json(job["configuration"]), **common})
                update_checksum(db, "jobs", "id = ?", number)
            if before is None:
                count_rows(db, key)
            else:  # a job that was lost stays missing
                db.execute("UPDATE protocols SET planned = planned + ? WHERE key = ?", (len(added), key))
                update_checksum(db, "protocols", "key = ?", key)
            ids = dict(db.execute("SELECT key, id FROM jobs WHERE protocol = ?", (key,)).fetchall())
        return [ids[job["key"]] for job in jobs]

    def refuse_other_masks(self, db: sqlite3.Connection, key: str, configuration: Mapping[str, Any]) -> None:
        """Raise UserError if the store has results with masks of another version: they must not be mixed in one file.

        Numbers that were imported have no masks.
        """
        version = configuration.get("masks")
        for row in db.execute("SELECT * FROM protocols WHERE key != ?", (key,)).fetchall():
            other = json.loads(self.verified(row, "an experiment")["configuration"])
            found = other.get("masks")
            if found != version and not {IMPORTED} & {configuration.get("preset"), other.get("preset")}:
                begun = "masks of an earlier version" if found is None else f"version {found} of the masks"
                raise UserError(
                    f"--store: {self.path} was begun with {begun}, and this contdrop draws version {version}, so it "
                    "does not resume; give another file, or use the contdrop that began it"
                )

    def reset_failed(self, *jobs: int) -> None:
        """Plan failed jobs once more, all at once: otherwise a selection might be made from a few of them."""
        with self.transaction() as db:
            failed = [row for row in map(self.job_row, jobs) if row["status"] == FAILED]
            for row in failed:
                reset_job(db, row["id"])
            # A selection without a variant says that every candidate failed. Others stay: jobs were trained with them.
            for protocol in {row["protocol"] for row in failed}:
                query = "DELETE FROM selections WHERE protocol = ? AND variant IS NULL"
                self._count_change(db, protocol, -db.execute(query, (protocol,)).rowcount)

    def select(self, selection: SelectionRecord) -> None:
        """Record a selection. An earlier one stays, unless :meth:`reset_failed` has removed it."""
        row = {
            **vars(selection),
            "candidates": canonical_json(selection.candidates),
            "decided": float(selection.decided),
        }
        with self.transaction() as db:
            where = "protocol = ? AND method = ?", selection.protocol, selection.method
            if not db.execute(f"SELECT 1 FROM selections WHERE {where[0]}", where[1:]).fetchall():
                insert(db, "selections", row)
                update_checksum(db, "selections", *where)
                self._count_change(db, selection.protocol, 1)

    def _count_change(self, db: sqlite3.Connection, protocol: str, change: int) -> None:
        """Add to the number of a protocol's selections; one that was lost before stays missing."""
        for row in db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchall() if change else ():
            self.verified(row, "an experiment")
            db.execute("UPDATE protocols SET decided = decided + ? WHERE key = ?", (change, protocol))
            update_checksum(db, "protocols", "key = ?", protocol)

    # ---- a job, written by the process that holds its lock

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
        """Mark a job as running, if what it shares with the other methods of its run is equal.

        Returns:
            None, or what is not equal; then the job was not begun.
        """
        with self.transaction() as db:
            me = self.job_row(job)
            others = db.execute(
                "SELECT * FROM jobs WHERE protocol = ? AND stage = ? AND run = ? AND id != ? "
                "AND fingerprints IS NOT NULL AND status IN (?, ?)",
                (me["protocol"], me["stage"], me["run"], job, RUNNING, FINISHED),
            ).fetchall()
            mine = {**fingerprints, PROCESSOR: processor(machine)}
            theirs = {other.method: other.shared for other in map(self.job_record, others)}
            mismatch = find_mismatch({me["method"]: mine} | theirs)
            if mismatch:
                return mismatch
            content = [canonical_json(each) for each in (seeds, fingerprints, versions, machine)]
            db.execute(
                "UPDATE jobs SET status = ?, variant = ?, seeds = ?, fingerprints = ?, versions = ?, machine = ?, "
                "started = coalesce(started, ?) WHERE id = ?",
                (RUNNING, variant, *content, time.time(), job),
            )
            update_checksum(db, "jobs", "id = ?", job)
        return None

    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None:
        """Write finished epochs and, in the same transaction, the state (in pieces) to resume from after the last."""
        epoch, parts = checkpoint or (0, [])
        state, key = b"", self._key(job)
        if sum(map(len, parts)) > blobs.LARGE:
            state = self.files.put(key, f"-{epoch}{blobs.CHECKPOINT}", parts)
        elif parts:
            state = b"".join(parts)
        with self.transaction() as db:
            self.job_row(job)  # damage must not get a new checksum
            write_epochs(db, job, epochs)
            if state:
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (job, epoch, state))
                db.execute("UPDATE jobs SET checkpoint = ? WHERE id = ?", (checkpoint_digest(epoch, state), job))
            update_checksum(db, "jobs", "id = ?", job)
        if state:
            self.files.remove(key, keep=state)

    def resume(self, job: int) -> tuple[int, Buffer] | None:
        """Return the checkpoint to resume from. If it or the epochs before it are damaged, the job starts over."""
        try:
            saved, done = self.checkpoint(job), len(self.epochs(job))
        except DamageError:
            saved, done = None, 1
        if saved is None and done:
            self.drop_progress(job)
        return saved

    def drop_progress(self, job: int) -> None:
        """Remove the epochs and the checkpoint of a job that has begun."""
        with self.transaction() as db:
            for table in ("epochs", "checkpoints"):
                db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
            db.execute(
                "UPDATE jobs SET epochs_done = 0, seconds = 0, curve = '', checkpoint = NULL WHERE id = ?", (job,)
            )
            update_checksum(db, "jobs", "id = ?", job)

    def remove_stale_checkpoints(self) -> None:
        """Remove files of checkpoints that no job resumes from, which killed processes leave."""
        found = self.files.checkpoints()
        running = {self.files.owner(key) for (key,) in self.read("SELECT key FROM jobs WHERE status = ?", (RUNNING,))}
        for path, owner in found:
            if owner not in running:
                path.unlink(missing_ok=True)

    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None:
        """Write the rest of a finished job. ``weights``, in pieces, become a file beside the store."""
        packed, key = {name: pack(array) for name, array in artefacts.items()}, self._key(job)
        if weights:
            packed[WEIGHTS] = self.files.put(key, blobs.WEIGHTS, weights)
        with self.transaction() as db:
            self.job_row(job)  # damage must not get a new checksum
            write_epochs(db, job, epochs)
            write_artefacts(db, job, packed)
            _end(db, job, FINISHED, None, canonical_json(results))
        self.files.remove(key)

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        """Record that a job cannot be finished, and why; it is not tried again until :meth:`reset_failed`."""
        with self.transaction() as db:
            self.job_row(job)  # damage must not get a new checksum
            write_epochs(db, job, epochs)
            _end(db, job, FAILED, reason, None)
        self.files.remove(self._key(job))

    def _key(self, job: int) -> str:
        return str(self.read("SELECT key FROM jobs WHERE id = ?", (job,))[0]["key"])

    # ---- jobs that have to be done again

    def reset_damaged(self, protocol: str, keys: Collection[str]) -> list[str]:
        """Reset what does not match its checksum, so that it is done again; return a line about each finding.

        A finished job whose epochs or arrays are damaged starts over. A job whose own row is damaged is removed from
        the plan, because nothing proves what it was; :meth:`add_jobs` plans it again. That also replaces a damaged row
        of the protocol.

        Args:
            protocol: Key of the protocol.
            keys: Keys of its jobs, to find rows of them that belong to another protocol: by damage, or because the same
                study was trained by another loop, whose jobs have the same keys.
        """
        found: list[str] = []
        others: set[str] = set()
        with self.transaction() as db:
            query = "SELECT * FROM jobs WHERE protocol = ? OR key IN (SELECT value FROM json_each(?))"
            for row in db.execute(query, (protocol, json.dumps(list(keys)))).fetchall():
                damage, is_other = self.find_damage(row), row["protocol"] != protocol
                if damage is not None or is_other:
                    found.append(damage or f"job {row['id']} was done by another training loop")
                    reset_job(db, row["id"])
                    if is_other or row["checksum"] != row_checksum(row):
                        db.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
                        others |= {row["protocol"]} if is_other and damage is None else set()
            for row in db.execute("SELECT * FROM selections WHERE protocol = ?", (protocol,)).fetchall():
                if row["checksum"] != row_checksum(row):
                    found.append("a selection does not match its checksum")
                    db.execute("DELETE FROM selections WHERE protocol = ? AND method = ?", (protocol, row["method"]))
            rows = db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchall()
            jobs, selections = (
                db.execute(f"SELECT count(*) FROM {table} WHERE protocol = ?", (protocol,)).fetchone()[0]
                for table in ("jobs", "selections")
            )
            if [row["checksum"] for row in rows] != [row_checksum(row) for row in rows] or (jobs and not rows):
                found.append("an experiment does not match its checksum")
            elif rows and (rows[0]["planned"], rows[0]["decided"]) != (jobs, selections):
                if not found:
                    found.append(
                        f"{rows[0]['planned']} jobs and {rows[0]['decided']} selections were written, and {jobs} and "
                        f"{selections} are there"
                    )
                count_rows(db, protocol)
            for other in others:
                count_rows(db, other)
        return found

    def of_other_processors(
        self, runs: Iterable[Sequence[JobRecord | None]], machine: Mapping[str, Any]
    ) -> list[JobRecord]:
        """Return what another kind of processor has done of open or mixed runs; None stands for a job to be planned."""
        found: list[JobRecord] = []
        for jobs in runs:
            done = [job for job in jobs if job and (job.status == FINISHED or self.is_interrupted(job))]
            is_open = any(job is None or job.status in (PLANNED, RUNNING) for job in jobs)
            if is_open or len({job.shared[PROCESSOR] for job in done}) > 1:
                found += [job for job in done if job.shared[PROCESSOR] != processor(machine)]
        return found

    def reset_other_processors(self, ids: Sequence[int], machine: Mapping[str, Any]) -> list[str]:
        """Reset jobs of unfinished or mixed runs that another kind of processor has done.

        All methods of a run must come from one kind of processor. Complete runs from one kind are kept. Returns a line
        for every kind of processor whose jobs are repeated on this machine.
        """
        by_run: dict[tuple[str, str, int], list[JobRecord]] = {}
        for job in self.jobs(ids=ids):
            by_run.setdefault((job.protocol, job.stage, job.run), []).append(job)
        again: dict[str, list[JobRecord]] = {}
        for job in self.of_other_processors(by_run.values(), machine):
            again.setdefault(job.shared[PROCESSOR], []).append(job)
        with self.transaction() as db:
            for job in [job for jobs in again.values() for job in jobs]:
                reset_job(db, job.id)
        return [
            f"{plural(len(jobs), 'job')} of unfinished runs came from another kind of processor ({kind}) than this one "
            f"({processor(machine)}), and {'is' if len(jobs) == 1 else 'are'} done again: a run's methods all come "
            "from one kind"
            for kind, jobs in again.items()
        ]


def reset_job(db: sqlite3.Connection, job: int) -> None:
    """Delete all results of a job and set its status to planned."""
    for table in ("epochs", "checkpoints", "artefacts"):
        db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
    db.execute(
        "UPDATE jobs SET status = ?, error = NULL, started = NULL, ended = NULL, results = NULL, epochs_done = 0, "
        "seconds = 0, curve = '', artefacts = '{}', checkpoint = NULL, origin = NULL WHERE id = ?",
        (PLANNED, job),
    )
    update_checksum(db, "jobs", "id = ?", job)


def write_epochs(db: sqlite3.Connection, job: int, epochs: Sequence[Epoch]) -> None:
    """Add epochs to a job. The caller updates the checksum of its row."""
    rows = [
        (e.epoch, *(_finite(getattr(e, name)) for name in METRICS), _finite(e.learning_rate) or 0.0,
         _finite(e.seconds) or 0.0)
        for e in epochs
    ]  # fmt: skip
    before, done = db.execute("SELECT curve, epochs_done FROM jobs WHERE id = ?", (job,)).fetchone()
    if rows and rows[0][0] != done + 1:
        raise TakenError(f"expected epoch {done + 1} of job {job}; got epoch {rows[0][0]}")
    db.executemany("INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(job, *row) for row in rows])
    db.execute(
        "UPDATE jobs SET epochs_done = epochs_done + ?, seconds = seconds + ?, curve = ? WHERE id = ?",
        (len(rows), math.fsum(row[-1] or 0.0 for row in rows), extend_curve(before, rows), job),
    )


def write_artefacts(db: sqlite3.Connection, job: int, packed: Mapping[str, bytes]) -> None:
    """Write arrays of a job. The caller updates the checksum of its row."""
    db.executemany("INSERT OR REPLACE INTO artefacts VALUES (?, ?, ?)", [(job, *each) for each in packed.items()])
    db.execute("UPDATE jobs SET artefacts = ? WHERE id = ?", (artefact_digests(packed), job))


def _end(db: sqlite3.Connection, job: int, status: str, error: str | None, results: str | None) -> None:
    db.execute("DELETE FROM checkpoints WHERE job = ?", (job,))
    db.execute(
        "UPDATE jobs SET status = ?, error = ?, results = ?, ended = ?, checkpoint = NULL WHERE id = ?",
        (status, error, results, time.time(), job),
    )
    update_checksum(db, "jobs", "id = ?", job)


def _finite(value: float | None) -> float | None:
    """Return a number that SQLite and JSON can hold: None for NaN and infinity, as of a diverged loss."""
    return float(value) if value is not None and math.isfinite(value) else None
