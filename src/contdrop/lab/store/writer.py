"""Write access to a store: an SQLite file with every job and every epoch.

The file is in WAL mode and written by several processes at once, each through its own :class:`Store`. What belongs
together is written in one transaction, so a process may be killed at any moment. Rows get their checksums in the
transaction that writes them; jobs that do not match theirs are done again.

A job belongs to the process that holds its lock (:mod:`contdrop.lab.store.locks`). So the status "running" means
running only while the lock is held; otherwise the job was interrupted, and waits to be resumed.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..._text import plural
from ...errors import UserError
from ..study import amendments
from . import blobs, record, schema
from .blobs import Buffer
from .reader import WEIGHTS, DamageError, StoreReader, pack
from .results import find_mismatch
from .schema import (
    FAILED,
    FINISHED,
    IMPORTED,
    PLANNED,
    PROCESSOR,
    RUNNING,
    Epoch,
    JobRecord,
    SelectionRecord,
    processor,
    update_job,
)


class TakenError(Exception):
    """Job that another process does as well, which happens when the file of locks is deleted while one works."""


class Store(StoreReader):
    """One process's connection to a store, for reading and writing; a context manager.

    Args:
        path: The file.
        create: Make a file that does not exist.
    """

    @contextlib.contextmanager
    def amending(self, *protocols: str) -> Iterator[sqlite3.Connection]:
        """Change which jobs, results and selections protocols have, in one transaction, and record it.

        Nothing is changed where some of them were lost.
        """
        with self.transaction(durable=True) as db:
            for protocol in protocols:
                self.check_totals(protocol)
            yield db
            for protocol in protocols:
                schema.recount(db, protocol)
        self.write_record()

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
        with self.transaction(durable=True) as db:
            found = self.protocol_row(key)
            before = found if found and schema.is_intact_protocol(found) else None  # all of a damaged row is replaced
            if before:
                self.check_totals(key)
            self.refuse_other_masks(key, protocol)
            there = {job["key"] for job in db.execute("SELECT key FROM jobs WHERE protocol = ?", (key,))}
            added = [job for job in jobs if job["key"] not in there]
            row = {
                **{name: protocol[name] for name in ("experiment", "preset", "epochs")},
                "configuration": protocol,
                "description": json.dumps(amendments.noted(db, key, description, jobs, now), sort_keys=True),
                "created": before["created"] if before else now,
            }
            if not before:
                row["record"] = record.read(self.record).get(key, schema.RECORD)  # its version goes on
            if found:
                schema.update(db, "protocols", row, "key = ?", key)
            else:
                schema.insert(db, "protocols", {"key": key, **row})
            common = {"protocol": key, "experiment": protocol["experiment"], "status": PLANNED, "created": now}
            for job in added:
                schema.insert(db, "jobs", {**job, **common})
            schema.recount(db, key)
            ids = dict(db.execute("SELECT key, id FROM jobs WHERE protocol = ?", (key,)).fetchall())
        self.write_record()
        return [ids[job["key"]] for job in jobs]

    def refuse_other_masks(self, key: str, configuration: Mapping[str, Any]) -> None:
        """Raise UserError if the store has results with masks of another version: they must not be mixed in one file.

        Numbers that were imported have no masks.
        """
        version = configuration.get("masks")
        for row in self.read("SELECT * FROM protocols WHERE key != ?", (key,)):
            other = self.protocol_record(row).configuration
            found = other.get("masks")
            if found != version and IMPORTED not in (configuration.get("preset"), other.get("preset")):
                begun = "masks of an earlier version" if found is None else f"version {found} of the masks"
                raise UserError(
                    f"--store: {self.path} was begun with {begun}, and this contdrop draws version {version}, so it "
                    "does not resume; give another file, or use the contdrop that began it"
                )

    def reset_failed(self, *jobs: int) -> None:
        """Plan failed jobs once more, all at once: otherwise a selection might be made from a few of them."""
        with self.amending(*{row["protocol"] for row in map(self.job_row, jobs)}) as db:
            failed = [row for row in map(self.job_row, jobs) if row["status"] == FAILED]
            for row in failed:
                reset_job(db, row["id"])
            # A selection without a variant says that every candidate failed. Others stay: jobs were trained with them.
            for protocol in {row["protocol"] for row in failed}:
                db.execute("DELETE FROM selections WHERE protocol = ? AND variant IS NULL", (protocol,))

    def select(self, selection: SelectionRecord) -> None:
        """Record a selection. An earlier one stays, unless :meth:`reset_failed` has removed it."""
        row = {**vars(selection), "decided": float(selection.decided)}
        with self.amending(selection.protocol) as db:
            query = "SELECT 1 FROM selections WHERE protocol = ? AND method = ?"
            if not self.read(query, (selection.protocol, selection.method)):
                schema.insert(db, "selections", row)

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
        with self.changing(job) as (db, me, changes):
            others = db.execute(
                "SELECT * FROM jobs WHERE protocol = ? AND stage = ? AND run = ? AND id != ? "
                "AND fingerprints IS NOT NULL AND status IN (?, ?)",
                (me["protocol"], me["stage"], me["run"], job, RUNNING, FINISHED),
            ).fetchall()
            mine = {**fingerprints, PROCESSOR: processor(machine)}
            theirs = {other.method: other.shared for other in map(self.job_record, others)}
            mismatch = find_mismatch({me["method"]: mine} | theirs)
            if not mismatch:
                changes |= {"status": RUNNING, "variant": variant, "started": me["started"] or time.time()}
                changes |= {"seeds": seeds, "fingerprints": fingerprints, "versions": versions, "machine": machine}
        return mismatch

    @contextlib.contextmanager
    def changing(
        self, job: int, *, finishes: bool = False
    ) -> Iterator[tuple[sqlite3.Connection, sqlite3.Row, dict[str, Any]]]:
        """Change a job in one transaction: what is put into the dictionary is written to its row at the end.

        A damaged row is refused, so that it gets no new checksum.
        """
        with self.transaction(durable=finishes) as db:
            changes: dict[str, Any] = {}
            yield db, self.job_row(job), changes
            if changes:
                update_job(db, job, **changes)
        if finishes:
            self.write_record()

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
        with self.changing(job) as (db, row, changes):
            changes |= write_epochs(db, row, epochs)
            if state:
                db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (job, epoch, state))
                changes["checkpoint"] = schema.checkpoint_digest(epoch, state)
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
        with self.changing(job) as (db, _, changes):
            changes |= _without_progress(db, job)

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
        with self.changing(job, finishes=True) as (db, row, changes):
            changes |= write_epochs(db, row, epochs) | write_artefacts(db, job, packed)
            changes |= _ended(db, job, FINISHED, results=results)
        self.files.remove(key)

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        """Record that a job cannot be finished, and why; it is not tried again until :meth:`reset_failed`."""
        with self.changing(job) as (db, row, changes):
            changes |= write_epochs(db, row, epochs) | _ended(db, job, FAILED, error=reason)
        self.files.remove(self._key(job))

    def _key(self, job: int) -> str:
        return str(self.read("SELECT key FROM jobs WHERE id = ?", (job,))[0]["key"])

    # ---- jobs that have to be done again

    def reset_damaged(self, protocol: str, keys: Collection[str]) -> list[str]:
        """Reset what does not match its digest, so that it is done again; return a line about each finding.

        A finished job whose epochs or arrays are damaged starts over. A job whose own row is damaged is removed from
        the plan, because nothing proves what it was; :meth:`add_jobs` plans it again. That also replaces a damaged row
        of the protocol. Selections that do not match their digest are made again.

        Args:
            protocol: Key of the protocol.
            keys: Keys of its jobs, to find rows of them that belong to another protocol by damage.
        """
        found: list[str] = []
        with self.transaction(durable=True) as db:
            query = "SELECT * FROM jobs WHERE protocol = ? OR key IN (SELECT value FROM json_each(?))"
            for row in self.read(query, (protocol, json.dumps(list(keys)))):
                is_intact = schema.is_intact(row)
                damage = self.find_damage(row) if row["protocol"] == protocol or not is_intact else None
                if damage:
                    found.append(damage)
                    reset_job(db, row["id"])
                    if not is_intact:
                        db.execute("DELETE FROM jobs WHERE id = ?", (row["id"],))
            try:
                self.check_totals(protocol)
            except DamageError as error:
                head = self.protocol_row(protocol)
                wrong = self.unlike_record(head) if head else {"experiment": error.what}
                removed = {"planned", "finished", "results"} if found else set()
                found += [text for name, text in wrong.items() if name not in removed][:1]
                if not head or wrong.keys() & {"decided", "selections"}:
                    db.execute("DELETE FROM selections WHERE protocol = ?", (protocol,))
                if head:
                    schema.recount(db, protocol, **({"experiment": ""} if "experiment" in wrong else {}))
        if found:
            self.write_record()
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
        jobs_again = [job for jobs in again.values() for job in jobs]
        with self.amending(*{job.protocol for job in jobs_again}) as db:
            for job in jobs_again:
                reset_job(db, job.id)
        return [
            f"{plural(len(jobs), 'job')} of unfinished runs came from another kind of processor ({kind}) than this one "
            f"({processor(machine)}), and {'is' if len(jobs) == 1 else 'are'} done again: a run's methods all come "
            "from one kind"
            for kind, jobs in again.items()
        ]


def reset_job(db: sqlite3.Connection, job: int) -> None:
    """Delete all results of a job and set its status to planned."""
    db.execute("DELETE FROM artefacts WHERE job = ?", (job,))
    cleared: dict[str, Any] = dict.fromkeys(("error", "started", "ended", "results", "origin"))
    update_job(db, job, status=PLANNED, artefacts="{}", **cleared, **_without_progress(db, job))


def _without_progress(db: sqlite3.Connection, job: int) -> dict[str, Any]:
    """Delete the epochs and the checkpoint of a job, and return the changes of its row."""
    for table in ("epochs", "checkpoints"):
        db.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
    return {"epochs_done": 0, "seconds": 0, "curve": "", "checkpoint": None}


def write_epochs(
    db: sqlite3.Connection, job: Mapping[str, Any] | sqlite3.Row, epochs: Sequence[Epoch]
) -> dict[str, Any]:
    """Add epochs to a job, and return the changes of its row."""
    number, done = job["id"], job["epochs_done"]
    rows = [(each.epoch, *map(_finite, each[1:-2]), *(_finite(value) or 0.0 for value in each[-2:])) for each in epochs]
    if rows and rows[0][0] != done + 1:
        raise TakenError(f"expected epoch {done + 1} of job {number}; got epoch {rows[0][0]}")
    db.executemany("INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(number, *row) for row in rows])
    seconds = job["seconds"] + math.fsum(row[-1] or 0.0 for row in rows)
    return {"epochs_done": done + len(rows), "seconds": seconds, "curve": schema.curve_digest(rows, job["curve"])}


def write_artefacts(db: sqlite3.Connection, job: int, packed: Mapping[str, bytes]) -> dict[str, Any]:
    """Write arrays of a job, and return the changes of its row."""
    db.executemany("INSERT OR REPLACE INTO artefacts VALUES (?, ?, ?)", [(job, *each) for each in packed.items()])
    return {"artefacts": schema.artefact_digests(packed)}


def _ended(
    db: sqlite3.Connection,
    job: int,
    status: str,
    *,
    error: str | None = None,
    results: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Delete the checkpoint of a job that has ended, and return the changes of its row."""
    db.execute("DELETE FROM checkpoints WHERE job = ?", (job,))
    return {"status": status, "error": error, "results": results, "ended": time.time(), "checkpoint": None}


def _finite(value: float | None) -> float | None:
    """Return a number that SQLite and JSON can hold: None for NaN and infinity, as of a diverged loss."""
    return float(value) if value is not None and math.isfinite(value) else None
