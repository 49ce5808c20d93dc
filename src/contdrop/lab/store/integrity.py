"""Verification of a store, and its backup.

SQLite survives a full disk, a power cut and a kill by its log, ``runs.db-wal``. If that is deleted when a disk was full
in the middle of moving it into the file, the file is torn. Then the last backup has the jobs finished before it.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ... import _files
from ...errors import UserError
from ..analysis.metric_format import Measure
from .blobs import beside
from .reader import BACKUP, WEIGHTS, StoreReader
from .results import example_values, mismatches
from .schema import FAILED, FINISHED, PLANNED, PROCESSOR, RUNNING, JobRecord, digest_bytes

_MOST = 20  # findings of SQLite's own, which repeats itself
_SECONDS, _SHARE = 600.0, 0.01  # between backups, and of the time that they may take


class Defect(NamedTuple):
    """One thing that is wrong. ``mendable``: ``contdrop run`` repairs it by doing the job, or the run, again."""

    text: str
    mendable: bool = False


def check(store: StoreReader) -> list[Defect]:
    """Return everything that is wrong with a store. Reads all of it, and writes nothing."""
    found: list[Defect] = []
    with store.snapshot():  # another process may be writing
        for part in (_check_database, _check_rows, _check_jobs, _check_pairing):
            try:
                found += part(store)
            except UserError as error:
                found.append(Defect(getattr(error, "what", str(error))))
    return list({defect.text: defect for defect in reversed(found)}.values())[::-1]  # the first of each text


def _check_database(store: StoreReader) -> Iterator[Defect]:
    for (text,) in store.read(f"PRAGMA integrity_check({_MOST})"):
        if text != "ok":
            yield Defect(f"the database is inconsistent: {text}")
    for row in store.read("PRAGMA foreign_key_check"):
        yield Defect(f"a row of {row['table']} belongs to nothing in {row['parent']}")


def _check_rows(store: StoreReader) -> Iterator[Defect]:
    """Yield damage to protocols and selections, and rows that are missing."""
    yield from _damage(store.protocols)
    for (key,) in store.read("SELECT key FROM protocols"):
        yield from _damage(functools.partial(store.selections, key), mendable=True)
        yield from _damage(functools.partial(store.jobs, protocol=key), mendable=True)
    if store.differs_from_record():
        yield Defect(f"the results are not those of its record, {store.record.name}")


def _damage(read: Callable[[], Any], *, mendable: bool = False) -> Iterator[Defect]:
    try:
        read()
    except UserError as error:
        yield Defect(getattr(error, "what", str(error)), mendable)


def _check_jobs(store: StoreReader) -> Iterator[Defect]:
    measures = {protocol.key: Measure.of(protocol.description) for protocol in store.protocols()}
    for row in store.read("SELECT * FROM jobs ORDER BY id"):
        if damage := store.find_damage(row):
            yield Defect(damage, mendable=True)
        else:
            yield from _check_job(store, store.job_record(row), measures, checkpoint=row["checkpoint"])


def _check_job(
    store: StoreReader, job: JobRecord, measures: dict[str, Measure], checkpoint: str | None
) -> Iterator[Defect]:
    """Yield what an intact row does not tell, such as test values that the job's predictions contradict."""
    name = f"job {job.id} ({job.experiment} {job.method} run {job.run})"
    if job.status not in (PLANNED, RUNNING, FINISHED, FAILED):
        yield Defect(f"{name}: expected status planned, running, finished or failed; got {job.status!r}")
    if job.status == FINISHED:
        yield from _damage(functools.partial(example_values, store, job, measures.get(job.protocol, Measure())))
    saved = checkpoint or store.read("SELECT 1 FROM checkpoints WHERE job = ?", (job.id,))
    if saved and store.checkpoint(job.id) is None:
        yield Defect(f"{name}: its checkpoint does not match its checksum", mendable=True)
    yield from _damage(functools.partial(store.weights, job.id))
    kept = {str(each) for (each,) in store.read("SELECT name FROM artefacts WHERE job = ?", (job.id,))}
    for each in sorted(kept - {WEIGHTS, *store.artefact_digests(job.id)}):
        yield Defect(f"{name}: has {digest_bytes(each.encode())[:8]} that it did not write")


def _check_pairing(store: StoreReader) -> Iterator[Defect]:
    for protocol in store.protocols():
        jobs = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
        for run, mismatch in mismatches(jobs):
            yield Defect(f"{protocol.experiment}: in run {run} {mismatch}", mendable=PROCESSOR in mismatch)


# ---- backups


class Backups:
    """Schedule of a store's backups."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._next = path, 0.0

    def make_if_due(self, *, at_once: bool) -> None:
        """Make a backup if it is time or ``at_once``. If that fails, as on a full disk, the last one stays."""
        now = time.monotonic()
        if now >= self._next or at_once:
            with contextlib.suppress(sqlite3.DatabaseError, OSError):
                make_backup(self._path)
            end = time.monotonic()
            self._next = end + max(_SECONDS, (end - now) / _SHARE)


def make_backup(path: pathlib.Path) -> None:
    """Copy a store that may be in use; the copy replaces the last backup if it is intact."""
    target = beside(path, BACKUP)
    _files.remove_old_temporaries(target)
    with _files.replacing(target, durable=True) as temporary:
        copy_database(path, temporary)
        with contextlib.closing(_connect(temporary)) as db:
            if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("the store is damaged")


def copy_database(path: pathlib.Path, to: pathlib.Path) -> None:
    """Copy a database that may be in use."""
    to.touch()
    with contextlib.closing(_connect(path)) as db, contextlib.closing(_connect(to)) as other:
        db.backup(other)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    return sqlite3.connect(path.absolute().as_uri() + "?mode=rw", timeout=60, uri=True)
