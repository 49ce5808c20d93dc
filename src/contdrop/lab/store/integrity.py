"""Is a store whole? Everything that can be held against something else is.

A copy beside the store, for the day its file is damaged beyond what SQLite can mend.

SQLite survives a full disk, a power cut and a kill by means of its log, ``runs.db-wal``. If that is deleted when a disk
was full in the middle of moving it into the file, the file is torn. Then the last copy takes its place, and what was
done since is done again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ... import _files
from ...errors import UserError
from ..analysis.metric_format import Measure
from . import schema
from .reader import WEIGHTS, StoreReader
from .results import find_wrong_value, mismatches
from .schema import FAILED, FINISHED, PLANNED, PROCESSOR, RUNNING, JobRecord

MOST = 20  # findings of SQLite's own, which repeats itself


@dataclass(frozen=True)
class Defect:
    """What is wrong, and whether ``contdrop run`` mends it by doing the job, or the run, again."""

    text: str
    mendable: bool = False


def check(store: StoreReader) -> list[Defect]:
    """All that is wrong with a store. It reads everything, and writes nothing."""
    found: list[Defect] = []
    with store.snapshot():  # of one moment: another process may be writing
        for part in (_database, _rows, _jobs, _pairing):
            try:
                found += part(store)
            except UserError as error:
                found.append(Defect(getattr(error, "what", str(error))))
    return list(dict.fromkeys(found))


def _database(store: StoreReader) -> Iterator[Defect]:
    for (text,) in store._read(f"PRAGMA integrity_check({MOST})"):
        if text != "ok":
            yield Defect(f"the database is inconsistent: {text}")
    for row in store._read("PRAGMA foreign_key_check"):
        yield Defect(f"a row of {row['table']} belongs to nothing in {row['parent']}")


def _rows(store: StoreReader) -> Iterator[Defect]:
    """Experiments and selections, and that none is missing."""
    yield from _damage(store.protocols)
    for protocol in store._read("SELECT key FROM protocols"):
        yield from _damage(functools.partial(store.selections, protocol["key"]), mendable=True)
        yield from _damage(functools.partial(store.jobs, protocol=protocol["key"]), mendable=True)


def _damage(read: Callable[[], Any], *, mendable: bool = False) -> Iterator[Defect]:
    try:
        read()
    except UserError as error:
        yield Defect(getattr(error, "what", str(error)), mendable)


def _jobs(store: StoreReader) -> Iterator[Defect]:
    """Each job's row, epochs, artefacts and checkpoint; its error against its predictions."""
    measures = {protocol.key: Measure.of(protocol.description) for protocol in store.protocols()}
    for row in store._read("SELECT * FROM jobs ORDER BY id"):
        what = store.damage_of(row)
        if what is not None:
            yield Defect(what, mendable=True)
            continue
        job = store._job(row)
        if job.status not in (PLANNED, RUNNING, FINISHED, FAILED):
            yield Defect(f"{_name(job)}: expected planned, running, finished or failed; its status is {job.status!r}")
        wrong = find_wrong_value(store, job, measures.get(job.protocol, Measure()))
        if wrong:
            yield Defect(f"{_name(job)}: {wrong}", mendable=False)
        saved = store._read("SELECT count(*) FROM checkpoints WHERE job = ?", (job.id,))[0][0]
        if (saved or row["checkpoint"]) and store.checkpoint(job.id) is None:
            yield Defect(f"{_name(job)}: its checkpoint does not match its checksum", mendable=True)
        yield from _damage(functools.partial(store.weights, job.id))
        kept = {name for (name,) in store._read("SELECT name FROM artefacts WHERE job = ?", (job.id,))}
        for name in sorted(kept - {WEIGHTS} - set(store.artefact_names(job.id))):
            yield Defect(f"{_name(job)}: has {schema.digest_bytes(str(name).encode())[:8]} that it did not write")


def _pairing(store: StoreReader) -> Iterator[Defect]:
    for protocol in store.protocols():
        jobs = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
        for run, mismatch in mismatches(jobs):
            yield Defect(f"{protocol.experiment}: in run {run} {mismatch}", mendable=PROCESSOR in mismatch)


def _name(job: JobRecord) -> str:
    return f"job {job.id} ({job.experiment} {job.method} run {job.run})"


ENDING, DAMAGED = "-backup", "-damaged"
_MAKING = 5.0  # seconds that another process may take from a new file to its first table
_OF_SQLITE = ("-wal", "-shm")
_SECONDS, _SHARE = 600.0, 0.01  # between copies, and of the time that goes into them


class Backups:
    """Makes copies of a store from time to time."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._next = path, 0.0

    def make_if_due(self, *, at_once: bool) -> None:
        """A disk too full for a copy is no reason to stop: the last one stays."""
        now = time.monotonic()
        if now >= self._next or at_once:
            with contextlib.suppress(sqlite3.DatabaseError, OSError):
                make_backup(self._path)
            end = time.monotonic()
            self._next = end + max(_SECONDS, (end - now) / _SHARE)


def make_backup(path: pathlib.Path) -> None:
    """Copies a store that may be in use, and lets the copy take the last one's place if it is whole."""
    _files.remove_old_temporaries(_beside(path, ENDING))
    with _files.replacing(_beside(path, ENDING), durable=True) as temporary:
        copy_database(path, temporary)
        if not is_intact(temporary):
            raise sqlite3.DatabaseError("the store is damaged")


def copy_database(path: pathlib.Path, to: pathlib.Path) -> None:
    to.touch()
    with contextlib.closing(_connect(path)) as db, contextlib.closing(_connect(to)) as other:
        db.backup(other)


def is_intact(path: pathlib.Path) -> bool:
    """Whether SQLite can read all of a file; the rows themselves have checksums."""
    try:
        with contextlib.closing(_connect(path)) as db:
            return bool(db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError:
        return True  # in use, or not for us to read: opening it says so
    except sqlite3.DatabaseError:
        return False


def restore_if_damaged(path: pathlib.Path) -> str | None:
    """Puts the copy in the place of a file that SQLite cannot read, which is kept under another name; says so."""
    copy = _beside(path, ENDING)
    if not copy.exists() or (is_intact(path) and not _is_emptied(path)) or not is_intact(copy):
        return None
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.stat().st_mtime))
    # At every moment there is a file of this name, and the copy stays: the next one may be long in coming.
    with _files.replacing(path, durable=True) as temporary:
        shutil.copyfile(copy, temporary)
        shutil.copyfile(path, _beside(path, DAMAGED))
        for ending in _OF_SQLITE:
            if _beside(path, ending).exists():
                os.replace(_beside(path, ending), _beside(path, DAMAGED + ending))
    return (
        f"{path} was damaged, and its copy of {made} has taken its place; what was done since is done again "
        f"({_beside(path, DAMAGED).name} is the damaged file)"
    )


def _is_emptied(path: pathlib.Path) -> bool:
    """Whether nothing is left in it, which SQLite takes for a new file; one that is just being made is new indeed."""
    found, log = path.stat(), _beside(path, "-wal")
    if found.st_size or (log.exists() and log.stat().st_size):
        return False
    return time.time() - found.st_mtime > _MAKING


def _beside(path: pathlib.Path, ending: str) -> pathlib.Path:
    return path.with_name(path.name + ending)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    return sqlite3.connect(path.absolute().as_uri() + "?mode=rw", timeout=60, uri=True)
