"""Import of archives and tables into a store, and merging of stores.

Jobs that the store does not have are added. Jobs that both have must be equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._files import reading, replacing
from ..._text import plural
from ...errors import UserError
from ..analysis.metric_format import Measure
from ..study import amendments
from . import archive, csv_import, schema
from .archive import JobContents, StoreContents, as_planned, read_store
from .reader import pack
from .results import has_one_name, mismatches, of_other_data, remedy, trained_on
from .schema import FAILED, FINISHED, PROCESSOR, JobRecord, ProtocolRecord, SelectionRecord, canonical_json
from .writer import Store, reset_job, write_artefacts, write_epochs

_SQLITE = b"SQLite format 3\0"
_JSON = ("seeds", "fingerprints", "versions", "machine", "results")


@dataclass
class MergeResult:
    """Numbers of jobs that were added, and that were there and equal; ``notes`` for the user about the runs."""

    added: int = 0
    kept: int = 0
    notes: tuple[str, ...] = ()


def load(
    path: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = csv_import.read
) -> tuple[StoreContents, str]:
    """Return the content of a store, an archive or a table, and the name of the file as an origin of jobs.

    Args:
        path: The file.
        table: Reader of a file that is neither a store nor an archive.
    """
    start = _start(path)
    if start == _SQLITE:
        with Store(path) as store:
            return read_store(store), path.name
    origin = f"{path.name} (SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"
    return (archive.read if start.startswith(archive.MAGIC) else table)(path), origin


def is_table(path: pathlib.Path) -> bool:
    """Return True for a file that is neither a store nor an archive."""
    return not _start(path).startswith((_SQLITE, archive.MAGIC))


def _start(path: pathlib.Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(len(_SQLITE))


def import_file(
    path: pathlib.Path, store: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = csv_import.read
) -> MergeResult:
    """Add the jobs of a file to a store, which is made if there is none."""
    found, origin = load(path, table)
    with Store(store, create=True) as opened:
        return add_contents(opened, found, origin)


def merge(out: pathlib.Path, sources: Sequence[pathlib.Path]) -> MergeResult:
    """Merge several files into a new store; write nothing if that fails."""
    if out.exists():
        raise UserError(f"{out} is there already; give a new name, or add to it by: contdrop import FILE --store {out}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no directory {out.absolute().parent}; make it first")
    loaded = [load(path) for path in sources]
    total = MergeResult()
    with replacing(out) as temporary:
        try:
            with Store(temporary, create=True) as store:
                for found, origin in loaded:
                    added = add_contents(store, found, origin)
                    notes = tuple(dict.fromkeys((*total.notes, *added.notes)))
                    total = MergeResult(total.added + added.added, total.kept + added.kept, notes)
        finally:
            for ending in ("-wal", "-shm", "-locks"):
                temporary.with_name(temporary.name + ending).unlink(missing_ok=True)
    return total


def add_contents(store: Store, contents: StoreContents, origin: str) -> MergeResult:
    """Add everything to a store, in one transaction; ``origin`` is the file that added jobs are said to come from.

    Raises:
        UserError: A job or a selection that both have differs, or the masks are of another version, or jobs were
            trained on other data; nothing was added.
    """
    result = MergeResult()
    conflicts: list[str] = []
    notes: list[str] = []
    with store.transaction() as db:
        selected: dict[tuple[str, str], SelectionRecord] = {}
        for protocol in contents.protocols:
            here = {(protocol.key, method): each for method, each in store.selections(protocol.key).items()}
            selected |= here
            jobs = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
            for row in db.execute("SELECT * FROM protocols WHERE key = ?", (protocol.key,)).fetchall():
                description = json.loads(store.verified(row, "an experiment")["description"])
                amendments.refuse_other_direction(description, protocol.description)
                notes += _differences(protocol.experiment, description, protocol.description)
                if _has_other_data(jobs, contents, protocol, has_one_name(description, protocol.description)):
                    conflicts.append(f"{protocol.experiment} was trained on other data there than here")
                both = canonical_json(amendments.joined(description, protocol.description))
                db.execute("UPDATE protocols SET description = ? WHERE key = ?", (both, protocol.key))
            store.refuse_other_masks(db, protocol.key, protocol.configuration)
            row = {
                **vars(protocol),
                **{n: canonical_json(getattr(protocol, n)) for n in ("configuration", "description")},
            }
            schema.insert(db, "protocols", row, more="ON CONFLICT DO NOTHING")
            schema.count_rows(db, protocol.key)
        measures = {protocol.key: Measure.of(protocol.description) for protocol in contents.protocols}
        for content in contents.jobs:
            conflict = _add_job(store, db, content, measures.get(content.job.protocol, Measure()), origin, result)
            conflicts += [conflict] if conflict else []
        for selection in contents.selections:
            place = selection.protocol, selection.method
            if place not in selected:
                schema.insert(db, "selections", {**vars(selection), "candidates": canonical_json(selection.candidates)})
                schema.update_checksum(db, "selections", "protocol = ? AND method = ?", *place)
            elif selected[place].variant != selection.variant:
                mine, other = selected[place].variant, selection.variant
                conflicts.append(f"{selection.method} was selected as {mine} here and as {other} there")
        if conflicts:
            more = f" (and {plural(len(conflicts) - 1, 'other conflict')})" if conflicts[1:] else ""
            raise UserError(f"{origin}: {conflicts[0]}{more}; nothing was added; leave one of the files out")
        for protocol in contents.protocols:
            schema.count_rows(db, protocol.key)
    for protocol in contents.protocols:
        jobs = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
        notes += [f"{protocol.experiment}: in run {run} {found}; {remedy(found)}" for run, found in mismatches(jobs)]
    result.notes = tuple(notes)
    return result


def _differences(experiment: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterable[str]:
    """Yield what differs between two descriptions; the store keeps its own."""
    for what in ("margin", "reference"):
        if here.get(what) != there.get(what):
            kept, other = here.get(what) or "none", there.get(what) or "none"
            yield f"{experiment}: its {what} is {kept} in the store and {other} in what is added; {kept} stays"
    if changed := amendments.behaviour_change(here.get("behaviour") or {}, there.get("behaviour") or {}):
        yield f"{experiment}: the study that is added is not the one in the store: {changed}"


def _has_other_data(
    here: Sequence[JobRecord], contents: StoreContents, protocol: ProtocolRecord, one_name: bool
) -> bool:
    """Return True if added jobs of a protocol were trained on other data, such as a stand-in for a missing data set."""
    added = [each.job for each in contents.jobs if each.job.protocol == protocol.key and each.job.status == FINISHED]
    kinds = dict.fromkeys((trained_on(job), job.shared[PROCESSOR]) for job in added)
    return any(data is not None and of_other_data(here, data, kind, of_one_name=one_name) for data, kind in kinds)


def _add_job(
    store: Store, db: sqlite3.Connection, content: JobContents, measure: Measure, origin: str, result: MergeResult
) -> str | None:
    """Add one job, or return why it conflicts with the one that is there."""
    job = content.job
    is_done = job.status in (FINISHED, FAILED)
    row = db.execute("SELECT * FROM jobs WHERE key = ?", (job.key,)).fetchone()
    here = None if row is None else store.job_record(row)
    if here is not None and here.status in (FINISHED, FAILED):
        if is_done and not _is_equal(store, here, content):
            mine, other = (
                f"failed ({each.error})"
                if each.status == FAILED
                else f"finished with {measure.name} "
                + measure.full(each.results.get("test_error", each.results.get("val_error", math.nan)))
                for each in (here, job)
            )
            name = f"{job.experiment} {job.method} run {job.run}"
            return f"{name} is {mine} here and {other} there, of the same configuration"
    elif here is None or (is_done and not store.locks.is_held(here.id)):
        if here is not None:
            reset_job(db, here.id)
            db.execute("DELETE FROM jobs WHERE id = ?", (here.id,))
        _write(db, None if here is None else here.id, content, origin)
        result.added += 1
        return None
    result.kept += 1
    return None


def _is_equal(store: Store, here: JobRecord, content: JobContents) -> bool:
    """Return True if two jobs are equal in everything but times and places."""
    fields = ("status", "variant", "results", "fingerprints")
    if any(getattr(here, name) != getattr(content.job, name) for name in fields):
        return False
    mine = [dataclasses.replace(epoch, seconds=0.0) for epoch in store.epochs(here.id)]
    if mine != [dataclasses.replace(epoch, seconds=0.0) for epoch in content.epochs]:
        return False
    # A small archive has fewer arrays; those that both have must be equal.
    kept = store.artefact_digests(here.id)
    return all(
        schema.digest_bytes(pack(array)) == kept.get(name, "")
        for name, array in content.artefacts.items()
        if name in kept
    )


def _write(db: sqlite3.Connection, number: int | None, content: JobContents, origin: str) -> None:
    job = content.job if content.job.status in (FINISHED, FAILED) else as_planned(content.job)
    row = {
        **vars(job), "id": number, "origin": job.origin or origin, "epochs_done": 0, "seconds": 0.0, "curve": "",
        "configuration": canonical_json(job.configuration),
        **{name: canonical_json(getattr(job, name)) if getattr(job, name) else None for name in _JSON},
    }  # fmt: skip
    added = schema.insert(db, "jobs", row)
    write_epochs(db, added, content.epochs)
    write_artefacts(db, added, {name: pack(array) for name, array in sorted(content.artefacts.items())})
    schema.update_checksum(db, "jobs", "id = ?", added)
