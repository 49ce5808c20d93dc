"""Joining stores: what one has and the other has not is added, what both have must be equal.

Stores that travel: to an archive, from one, and several into one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._files import reading, replacing
from ..._text import plural
from ...errors import UserError
from ..analysis.metric_format import Measure
from ..study import amendments
from . import archive, csv_import, schema
from .archive import JobContents, StoreContents, as_planned, read_store, reduced
from .reader import pack
from .results import has_one_name, mismatches, of_other_data, remedy, trained_on
from .schema import FAILED, FINISHED, PROCESSOR, JobRecord, ProtocolRecord, SelectionRecord, canonical_json
from .writer import Store

_JSON = ("seeds", "fingerprints", "versions", "machine", "results")


@dataclass
class MergeResult:
    """How many jobs were new, and how many were there and equal; what the user should know of the runs."""

    added: int = 0
    kept: int = 0
    notes: tuple[str, ...] = ()


def add_contents(store: Store, contents: StoreContents, origin: str) -> MergeResult:
    """Adds everything to a store, in one transaction; each added job keeps the file that it comes from, the origin.

    Raises:
        UserError: A job or a selection that both have differs, or the masks are of another version, or the data that
            jobs were trained on are others; nothing was added.
    """
    outcome = MergeResult()
    conflicts: list[str] = []
    notes: list[str] = []
    with store.transaction() as db:
        before = schema.count_rows(db)
        for protocol in contents.protocols:
            for row in db.execute("SELECT * FROM protocols WHERE key = ?", (protocol.key,)).fetchall():
                description = json.loads(store._verified(row, "an experiment")["description"])
                amendments.refuse_other_direction(description, protocol.description)
                notes += _other(protocol.experiment, description, protocol.description)
                conflicts += _other_data(store, contents, protocol, description)
                both = canonical_json(amendments.joined(description, protocol.description))
                db.execute("UPDATE protocols SET description = ? WHERE key = ?", (both, protocol.key))
            store.refuse_other_masks(db, protocol.key, protocol.configuration)
            row = {
                **vars(protocol),
                **{n: canonical_json(getattr(protocol, n)) for n in ("configuration", "description")},
            }
            schema.insert(db, "protocols", row, "OR IGNORE")
        measures = {protocol.key: Measure.of(protocol.description) for protocol in contents.protocols}
        for content in contents.jobs:
            conflict = _add_job(store, db, content, measures.get(content.job.protocol, Measure()), origin, outcome)
            conflicts += [conflict] if conflict else []
        for selection in contents.selections:
            variant = _add_selection(store, db, selection)
            if variant != selection.variant:
                conflicts.append(f"{selection.method} was selected as {variant} here and as {selection.variant} there")
        if conflicts:
            more = f" (and {plural(len(conflicts) - 1, 'other conflict')})" if conflicts[1:] else ""
            raise UserError(f"{origin}: {conflicts[0]}{more}; nothing was added; leave one of the files out")
        for protocol in contents.protocols:
            store.seal_plan(db, protocol.key)
        schema.seal_totals(db, before)
    outcome.notes = (*notes, *_mixed(store, [protocol.key for protocol in contents.protocols]))
    return outcome


def _other(experiment: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterable[str]:
    """What belongs to no job, and of which the store keeps its own."""
    for what in ("margin", "reference"):
        if here.get(what) != there.get(what):
            kept, other = here.get(what) or "none", there.get(what) or "none"
            yield f"{experiment}: its {what} is {kept} in the store and {other} in what is added; {kept} stays"
    if changed := amendments.behaviour_change(here.get("behaviour") or {}, there.get("behaviour") or {}):
        yield f"{experiment}: the study that is added is not the one in the store: {changed}"


def _other_data(
    store: Store, contents: StoreContents, protocol: ProtocolRecord, described: Mapping[str, Any]
) -> Iterable[str]:
    """Where a machine had no data set, another one may have stood in for it."""
    here = [job for job in store.jobs_there(protocol.key) if job.status == FINISHED]
    added = [each.job for each in contents.jobs if each.job.protocol == protocol.key and each.job.status == FINISHED]
    one_name = has_one_name(described, protocol.description)
    for data, kind in dict.fromkeys((trained_on(job), job.shared[PROCESSOR]) for job in added):
        if data is not None and of_other_data(here, data, kind, of_one_name=one_name):
            yield f"{protocol.experiment} was trained on other data there than here"
            return


def _add_selection(store: Store, db: sqlite3.Connection, selection: SelectionRecord) -> str | None:
    """What is selected in the store then: what was, or else this."""
    query = "SELECT * FROM selections WHERE protocol = ? AND method = ?"
    row = db.execute(query, (selection.protocol, selection.method)).fetchone()
    if row is None:
        schema.insert(db, "selections", {**vars(selection), "candidates": canonical_json(selection.candidates)})
        schema.update_checksum(db, "selections", "protocol = ? AND method = ?", selection.protocol, selection.method)
        return selection.variant
    variant: str | None = store._verified(row, "a selection")["variant"]
    return variant


def _add_job(
    store: Store, db: sqlite3.Connection, content: JobContents, measure: Measure, origin: str, outcome: MergeResult
) -> str | None:
    """Adds one job, or says why not."""
    job = content.job
    row = db.execute("SELECT * FROM jobs WHERE key = ?", (job.key,)).fetchone()
    here = None if row is None else store._job(row)
    if here is None:
        _write(db, None, content, origin)
        outcome.added += 1
    elif here.status in (FINISHED, FAILED):
        if job.status in (FINISHED, FAILED) and not _is_equal(store, here, content):
            name = f"{job.experiment} {job.method} run {job.run}"
            return f"{name} is {_told(here, measure)} here and {_told(job, measure)} there, of the same configuration"
        outcome.kept += 1
    elif job.status in (FINISHED, FAILED) and not store.locks.is_held(here.id):
        store._forget(db, here.id)
        db.execute("DELETE FROM jobs WHERE id = ?", (here.id,))
        _write(db, here.id, content, origin)
        outcome.added += 1
    else:
        outcome.kept += 1
    return None


def _told(job: JobRecord, measure: Measure) -> str:
    value = job.results.get("test_error", job.results.get("val_error", math.nan))
    return f"failed ({job.error})" if job.status == FAILED else f"finished with {measure.name} {measure.full(value)}"


def _is_equal(store: Store, here: JobRecord, content: JobContents) -> bool:
    """In all but times and places."""
    there = content.job
    if (here.status, here.variant, here.results, here.fingerprints) != (
        there.status, there.variant, there.results, there.fingerprints,
    ):  # fmt: skip
        return False
    mine = [dataclasses.replace(epoch, seconds=0.0) for epoch in store.epochs(here.id)]
    if mine != [dataclasses.replace(epoch, seconds=0.0) for epoch in content.epochs]:
        return False
    # A small archive has fewer arrays; what both have must be equal.
    kept = store.artefact_names(here.id)
    packed = {name: pack(array) for name, array in content.artefacts.items() if name in kept}
    return bool(json.loads(schema.artefact_list(packed)).items() <= kept.items())


def _write(db: sqlite3.Connection, number: int | None, content: JobContents, origin: str) -> None:
    job = content.job if content.job.status in (FINISHED, FAILED) else as_planned(content.job)
    row = {
        **vars(job), "id": number, "origin": job.origin or origin, "epochs_done": 0, "seconds": 0.0, "curve": "",
        "configuration": canonical_json(job.configuration),
        **{name: canonical_json(getattr(job, name)) if getattr(job, name) else None for name in _JSON},
    }  # fmt: skip
    added = schema.insert(db, "jobs", row)
    Store.write_epochs(db, added, content.epochs)
    Store.write_artefacts(db, added, {name: pack(array) for name, array in sorted(content.artefacts.items())})
    schema.update_checksum(db, "jobs", "id = ?", added)


def _mixed(store: Store, protocols: Iterable[str]) -> Iterable[str]:
    for protocol in protocols:
        jobs = [job for job in store.jobs(protocol=protocol) if job.status == FINISHED]
        for run, mismatch in mismatches(jobs):
            yield f"{jobs[0].experiment}: in run {run} {mismatch}; {remedy(mismatch)}"


_SQLITE = b"SQLite format 3\0"


def export(store: pathlib.Path, target: pathlib.Path, *, small: bool = False) -> int:
    """Writes an archive of a store, all of it or what is shown of it; returns the number of its jobs."""
    if target.exists() and target.read_bytes()[:2] != archive.MAGIC:
        raise UserError(f"--archive: {target} is there, and no archive; choose another name")
    with Store(store) as opened:
        found = read_store(opened)
    archive.write(reduced(found) if small else found, target)
    return len(found.jobs)


def load(
    path: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = csv_import.read
) -> tuple[StoreContents, str]:
    """What a store, an archive or a ``table`` of numbers holds, and what to call the file as an origin."""
    start = _start(path)
    if start == _SQLITE:
        with Store(path) as store:
            return read_store(store), path.name
    origin = f"{path.name} (SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"
    if start.startswith(archive.MAGIC):
        return archive.read(path), origin
    return table(path), origin


def is_table(path: pathlib.Path) -> bool:
    """Whether it is neither a store nor an archive."""
    return not _start(path).startswith((_SQLITE, archive.MAGIC))


def _start(path: pathlib.Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(len(_SQLITE))


def import_file(
    path: pathlib.Path, store: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = csv_import.read
) -> MergeResult:
    """Adds a file's jobs to a store, which is made if there is none."""
    found, origin = load(path, table)
    with Store(store, create=True) as opened:
        return add_contents(opened, found, origin)


def merge(out: pathlib.Path, sources: Sequence[pathlib.Path]) -> MergeResult:
    """Makes a store of several; all of it, or nothing."""
    if out.exists():
        raise UserError(f"{out} is there already; give a new name, or add to it by: contdrop import FILE --store {out}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no directory {out.absolute().parent}; make it first")
    loaded = [load(path) for path in sources]
    whole = MergeResult()
    with replacing(out) as temporary, _removing_sqlite_files(temporary), Store(temporary, create=True) as store:
        for found, origin in loaded:
            added = add_contents(store, found, origin)
            notes = tuple(dict.fromkeys((*whole.notes, *added.notes)))
            whole = MergeResult(whole.added + added.added, whole.kept + added.kept, notes)
    return whole


@contextlib.contextmanager
def _removing_sqlite_files(path: pathlib.Path) -> Iterator[None]:
    """Removes what SQLite and the locks leave beside a file."""
    try:
        yield
    finally:
        for ending in ("-wal", "-shm", "-locks"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
