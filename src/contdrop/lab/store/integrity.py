"""Is a store whole? Everything that can be held against something else is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ..analysis.metric_format import Measure
from . import checksums
from .reader import WEIGHTS
from .records import FAILED, FINISHED, PLANNED, PROCESSOR, RUNNING, JobRecord
from .results import find_wrong_value, mismatches
from .writer import Store

MOST = 20  # findings of SQLite's own, which repeats itself


@dataclass(frozen=True)
class Finding:
    """What is wrong, and whether ``contdrop run`` mends it by doing the job, or the run, again."""

    text: str
    mendable: bool = False


def check(store: Store) -> list[Finding]:
    """All that is wrong with a store. It reads everything, and writes nothing."""
    found: list[Finding] = []
    with store.snapshot():  # of one moment: another process may be writing
        for part in (_database, _rows, _jobs, _pairing):
            try:
                found += part(store)
            except UserError as error:
                found.append(Finding(getattr(error, "what", str(error))))
    return list(dict.fromkeys(found))


def _database(store: Store) -> Iterator[Finding]:
    for (text,) in store._read(f"PRAGMA integrity_check({MOST})"):
        if text != "ok":
            yield Finding(f"the database is inconsistent: {text}")
    for row in store._read("PRAGMA foreign_key_check"):
        yield Finding(f"a row of {row['table']} belongs to nothing in {row['parent']}")


def _rows(store: Store) -> Iterator[Finding]:
    """Experiments and selections, and that none is missing."""
    yield from _damage(store.protocols)
    for protocol in store._read("SELECT key FROM protocols"):
        yield from _damage(functools.partial(store.selections, protocol["key"]), mendable=True)
        yield from _damage(functools.partial(store.jobs, protocol=protocol["key"]), mendable=True)


def _damage(read: Callable[[], Any], *, mendable: bool = False) -> Iterator[Finding]:
    try:
        read()
    except UserError as error:
        yield Finding(getattr(error, "what", str(error)), mendable)


def _jobs(store: Store) -> Iterator[Finding]:
    """Each job's row, epochs, artefacts and checkpoint; its error against its predictions."""
    measures = {protocol.key: Measure.of(protocol.description) for protocol in store.protocols()}
    for row in store._read("SELECT * FROM jobs ORDER BY id"):
        what = store.damage_of(row)
        if what is not None:
            yield Finding(what, mendable=True)
            continue
        job = store._job(row)
        if job.status not in (PLANNED, RUNNING, FINISHED, FAILED):
            yield Finding(f"{_name(job)}: expected planned, running, finished or failed; its status is {job.status!r}")
        wrong = find_wrong_value(store, job, measures.get(job.protocol, Measure()))
        if wrong:
            yield Finding(f"{_name(job)}: {wrong}", mendable=False)
        saved = store._read("SELECT count(*) FROM checkpoints WHERE job = ?", (job.id,))[0][0]
        if (saved or row["checkpoint"]) and store.checkpoint(job.id) is None:
            yield Finding(f"{_name(job)}: its checkpoint does not match its checksum", mendable=True)
        yield from _damage(functools.partial(store.weights, job.id))
        kept = {name for (name,) in store._read("SELECT name FROM artefacts WHERE job = ?", (job.id,))}
        for name in sorted(kept - {WEIGHTS} - set(store.artefact_names(job.id))):
            yield Finding(f"{_name(job)}: has {checksums.of_bytes(str(name).encode())[:8]} that it did not write")


def _pairing(store: Store) -> Iterator[Finding]:
    for protocol in store.protocols():
        jobs = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
        for run, mismatch in mismatches(jobs):
            yield Finding(f"{protocol.experiment}: in run {run} {mismatch}", mendable=PROCESSOR in mismatch)


def _name(job: JobRecord) -> str:
    return f"job {job.id} ({job.experiment} {job.method} run {job.run})"
