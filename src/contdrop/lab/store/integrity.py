"""Verification of a store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...errors import UserError
from ..analysis.metric_format import Measure
from .reader import WEIGHTS, StoreReader
from .results import example_values, mismatches
from .schema import FAILED, FINISHED, PLANNED, PROCESSOR, RUNNING, JobRecord, digest_bytes

_MOST = 20  # findings of SQLite's own, which repeats itself


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
