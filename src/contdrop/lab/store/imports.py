"""Import of archives, stores and tables of finished numbers into a store, and merging of stores.

Jobs that the store does not have are added. Jobs that both have must be equal. A table of method, run and value becomes
an experiment of its own: its preset marks it as imported, and a note says that pairing is taken on trust.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import pathlib
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._files import reading
from ..._text import plural, printable
from ...errors import UserError, suggest
from ..analysis.metric_format import Measure
from ..study import amendments
from ..training.metric_values import better_of
from . import archive, record, schema
from .archive import JobContents, StoreContents, as_planned, read_store
from .blobs import beside
from .reader import pack
from .results import has_one_name, mismatches, of_other_data, remedy, trained_on
from .schema import (
    FAILED,
    FINAL,
    FINISHED,
    IMPORTED,
    PROCESSOR,
    JobRecord,
    ProtocolRecord,
    SelectionRecord,
    digest_json,
)
from .writer import Store, reset_job, write_artefacts, write_epochs

COLUMNS = ("method", "run", "value")  # of a table
LIMIT = 100_000_000  # bytes of a table
ERROR = {"name": "error", "unit": "%", "better": "lower"}
_SQLITE = b"SQLite format 3\0"
_TRUST = " That runs of the same number are paired is taken on trust."


@dataclass
class MergeResult:
    """Numbers of jobs that were added, and that were there and equal; ``notes`` for the user about the runs."""

    added: int = 0
    kept: int = 0
    notes: tuple[str, ...] = ()


# ---- tables


def read_table(
    path: pathlib.Path,
    *,
    name: str | None = None,
    reference: str | None = None,
    metric: Mapping[str, str] = ERROR,
    margin: float | None = None,
) -> StoreContents:
    """Return an experiment made of a CSV file (UTF-8, with the columns ``COLUMNS``), by default named after the file.

    The other arguments are those of :func:`from_values`.
    """
    with reading(path), path.open("rb") as file:
        content = file.read(LIMIT + 1)
    values = _values(path, content, metric == ERROR)
    methods = list(dict.fromkeys(method for method, _ in values))
    if reference is not None and reference not in methods:
        raise UserError(f"--reference: {path} has no method {reference!r}; {suggest(reference, methods)}")
    digest = hashlib.sha256(content).hexdigest()
    made = f"These numbers were not made here: they were imported from {printable(path.name)} (SHA-256 {digest[:12]})."
    return from_values(
        values,
        name=printable(name or path.stem),
        reference=reference,
        metric=metric,
        margin=margin,
        origin={"file": path.name, "sha256": digest, **({} if metric == ERROR else metric)},
        note=made + _TRUST,
    )


def _values(path: pathlib.Path, content: bytes, percentages: bool) -> dict[tuple[str, int], float]:
    if len(content) > LIMIT or b"\0" in content:
        raise UserError(
            f"{path}: expected an archive of contdrop or a CSV file of method, run and value; it is neither"
        )
    found: dict[tuple[str, int], float] = {}
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        headings = list(rows.fieldnames or ())
        for column in COLUMNS:
            if headings.count(column) != 1:
                there = "is no" if column not in headings else "are several called"
                raise UserError(f"{path}: expected the columns method, run and value; there {there} {column}")
        for number, row in enumerate(rows, 2):
            place, value = _entry(row, f"{path}: line {number}", len(headings), percentages)
            if place in found:
                raise UserError(f"{path}: line {number}: {place[0]} run {place[1]} is there twice")
            found[place] = value
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a CSV file of method, run and value; {printable(str(error))}") from error
    if not found:
        raise UserError(f"{path}: expected rows of method, run and value; there is none")
    return found


def _entry(row: Mapping[Any, Any], line: str, cells: int, percentages: bool) -> tuple[tuple[str, int], float]:
    """Return the method and run of a row, and its value."""
    if None in row:  # under which surplus cells are
        raise UserError(
            f"{line}: expected {cells} cells, got {cells + len(row[None])}; decimals have a point, and there is no "
            "comma between thousands"
        )
    method, run, value = (printable(row[column] or "") for column in COLUMNS)
    try:
        if "_" in run + value:  # which Python would take for a number
            raise ValueError
        place, found = (method, int(run)), float(value)
    except ValueError:
        raise UserError(f"{line}: expected a whole number and a number; got {run!r}, {value!r}") from None
    is_value = 0 <= found <= 100 if percentages else math.isfinite(found)
    if not method or not is_value or not 0 <= place[1] < 2**31:
        what = "an error from 0 to 100 per cent (--metric for anything else)" if percentages else "a number"
        raise UserError(f"{line}: expected a method, a run from 0 and {what}")
    return place, found


def from_values(
    values: Mapping[tuple[str, int], float],
    *,
    name: str,
    reference: str | None,
    metric: Mapping[str, str],
    margin: float | None,
    origin: Mapping[str, str] | None = None,
    note: str = "These numbers were not made here." + _TRUST,
) -> StoreContents:
    """Return an experiment made of finished numbers.

    Args:
        values: Values by method and run.
        name: Name of the experiment.
        reference: Method that the others are compared with; the first if None.
        metric: Name and unit of the values, and which are better, "lower" or "higher".
        margin: Smallest difference that matters, if it was fixed before the numbers were seen.
        origin: Identity of these numbers; by default a digest of them.
        note: Note for readers of the result.
    """
    methods = list(dict.fromkeys(method for method, _ in values))
    _check_values(values, methods, reference, metric, margin)
    if origin is None:
        listed = sorted((method, run, float(value)) for (method, run), value in values.items())
        origin = {"sha256": hashlib.sha256(json.dumps([listed, dict(metric)]).encode()).hexdigest()}
    configuration = {"experiment": name, "preset": IMPORTED, "epochs": 0, **origin}
    about: dict[str, Any] = {"title": name, "paper": "", "notes": [note]}
    about |= {"reference": reference or methods[0], "methods": methods, "metric": dict(metric), "margin": margin}
    protocol = ProtocolRecord(digest_json(configuration), name, IMPORTED, 0, configuration, about, 0.0)
    jobs = [_job(protocol, method, run, float(value)) for (method, run), value in values.items()]
    return StoreContents((protocol,), (), tuple(JobContents(job, (), {}) for job in jobs))


def _check_values(
    values: Mapping[tuple[str, int], float],
    methods: Sequence[str],
    reference: str | None,
    metric: Mapping[str, str],
    margin: float | None,
) -> None:
    if not methods:
        raise UserError("expected the values of at least one method; there is none")
    if reference is not None and reference not in methods:
        raise UserError(f"there is no method {reference!r}; {suggest(reference, methods)}")
    if metric["better"] not in ("lower", "higher"):
        raise UserError(f"better: expected lower or higher; got {metric['better']!r}")
    known = better_of(metric["name"])
    if known not in (None, metric["better"]):
        raise UserError(f"metric {metric['name']}: {known} values of it are better; got better={metric['better']}")
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"margin: expected a number above 0; got {margin!r}")
    for (method, run), value in values.items():
        if not math.isfinite(value):
            raise UserError(f"expected finite numbers; {method} run {run} is {value}: leave out runs that failed")


def _job(protocol: ProtocolRecord, method: str, run: int, value: float) -> JobRecord:
    configuration = {**protocol.configuration, "stage": FINAL, "method": method, "run": run}
    return JobRecord(
        id=0, key=digest_json(configuration), protocol=protocol.key, experiment=protocol.experiment, stage=FINAL,
        method=method, run=run, epochs=0, configuration=configuration, status=FINISHED, error=None, variant=method,
        seeds={}, fingerprints={}, versions={}, machine={}, results={"test_error": value}, created=0.0, started=None,
        ended=None, epochs_done=0, seconds=0.0, origin=None,
    )  # fmt: skip


# ---- files


def load(path: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = read_table) -> tuple[StoreContents, str]:
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
    path: pathlib.Path, store: pathlib.Path, table: Callable[[pathlib.Path], StoreContents] = read_table
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
    with tempfile.TemporaryDirectory(dir=out.absolute().parent) as directory:
        made = pathlib.Path(directory) / out.name
        with Store(made, create=True) as store:
            added = [add_contents(store, found, origin) for found, origin in loaded]
        made.replace(out)
    beside(out, record.NAME).unlink(missing_ok=True)  # of a store that was deleted
    notes = dict.fromkeys(note for each in added for note in each.notes)
    return MergeResult(sum(each.added for each in added), sum(each.kept for each in added), tuple(notes))


def add_contents(store: Store, contents: StoreContents, origin: str) -> MergeResult:
    """Add everything to a store, in one transaction; ``origin`` is the file that added jobs are said to come from.

    Raises:
        UserError: A job or a selection that both have differs, or the masks are of another version, or jobs were
            trained on other data; nothing was added.
    """
    with store.amending(*(protocol.key for protocol in contents.protocols)) as db:
        addition = _Addition(store, db, contents, origin)
        addition.add()
    for protocol in contents.protocols:
        finished = [job for job in store.jobs(protocol=protocol.key) if job.status == FINISHED]
        found = [f"in run {run} {mismatch}; {remedy(mismatch)}" for run, mismatch in mismatches(finished)]
        addition.notes += [f"{protocol.experiment}: {each}" for each in found]
    return MergeResult(addition.added, addition.kept, tuple(addition.notes))


class _Addition:
    """Addition of contents to a store, within a transaction."""

    def __init__(self, store: Store, db: sqlite3.Connection, contents: StoreContents, origin: str) -> None:
        self.store, self.db, self.contents, self.origin = store, db, contents, origin
        self.selected: dict[tuple[str, str], SelectionRecord] = {}
        self.conflicts: list[str] = []
        self.notes: list[str] = []
        self.added = self.kept = 0

    def add(self) -> None:
        for protocol in self.contents.protocols:
            self._add_protocol(protocol)
        measures = {protocol.key: Measure.of(protocol.description) for protocol in self.contents.protocols}
        for content in self.contents.jobs:
            self._add_job(content, measures.get(content.job.protocol, Measure()))
        for selection in self.contents.selections:
            self._add_selection(selection)
        if self.conflicts:
            first, *others = self.conflicts
            more = f" (and {plural(len(others), 'other conflict')})" if others else ""
            raise UserError(f"{self.origin}: {first}{more}; nothing was added; leave one of the files out")

    def _add_protocol(self, protocol: ProtocolRecord) -> None:
        key, there = protocol.key, protocol.description
        self.selected |= {(key, method): each for method, each in self.store.selections(key).items()}
        finished = [job for job in self.store.jobs(protocol=key) if job.status == FINISHED]
        row = self.store.protocol_row(key)
        if row is not None:
            here = self.store.protocol_record(row).description
            amendments.refuse_other_direction(here, there)
            self.notes += [f"{protocol.experiment}: {each}" for each in _differences(here, there)]
            if self._has_other_data(finished, key, has_one_name(here, there)):
                self.conflicts.append(f"{protocol.experiment} was trained on other data there than here")
            schema.update(self.db, "protocols", {"description": amendments.joined(here, there)}, "key = ?", key)
        self.store.refuse_other_masks(key, protocol.configuration)
        if row is None:
            schema.insert(self.db, "protocols", vars(protocol))
        schema.recount(self.db, key)

    def _has_other_data(self, here: Sequence[JobRecord], key: str, one_name: bool) -> bool:
        """Return True if added jobs were trained on other data, such as a stand-in for a missing data set."""
        added = [each.job for each in self.contents.jobs if each.job.protocol == key and each.job.status == FINISHED]
        kinds = dict.fromkeys((trained_on(job), job.shared[PROCESSOR]) for job in added)
        return any(data is not None and of_other_data(here, data, kind, of_one_name=one_name) for data, kind in kinds)

    def _add_job(self, content: JobContents, measure: Measure) -> None:
        job = content.job
        is_done = job.status in (FINISHED, FAILED)
        rows = self.store.read("SELECT * FROM jobs WHERE protocol = ? AND key = ?", (job.protocol, job.key))
        here = self.store.job_record(rows[0]) if rows else None
        if here is None:
            self._write(content, None)
        elif here.status in (FINISHED, FAILED):
            self.kept += 1
            if is_done and not self._is_equal(here, content):
                mine, other = _outcome(here, measure), _outcome(job, measure)
                name = f"{job.experiment} {job.method} run {job.run}"
                self.conflicts.append(f"{name} is {mine} here and {other} there, of the same configuration")
        elif is_done and not self.store.locks.is_held(here.id):
            reset_job(self.db, here.id)
            self.db.execute("DELETE FROM jobs WHERE id = ?", (here.id,))
            self._write(content, here.id)
        else:
            self.kept += 1

    def _is_equal(self, here: JobRecord, content: JobContents) -> bool:
        """Return True if two jobs are equal in everything but times and places."""
        fields = ("status", "variant", "results", "fingerprints")
        if any(getattr(here, name) != getattr(content.job, name) for name in fields):
            return False
        if [each[:-1] for each in self.store.epochs(here.id)] != [each[:-1] for each in content.epochs]:
            return False
        # A small archive has fewer arrays; those that both have must be equal.
        kept = self.store.artefact_digests(here.id)
        shared = content.artefacts.keys() & kept.keys()
        return all(schema.digest_bytes(pack(content.artefacts[name])) == kept[name] for name in shared)

    def _write(self, content: JobContents, number: int | None) -> None:
        self.added += 1
        job = content.job if content.job.status in (FINISHED, FAILED) else as_planned(content.job)
        row = {name: value if value or name not in schema.JSON_COLUMNS else None for name, value in vars(job).items()}
        row |= {"id": number, "origin": job.origin or self.origin, "configuration": job.configuration}
        row |= {"epochs_done": 0, "seconds": 0.0, "curve": ""}
        added = schema.insert(self.db, "jobs", row)
        packed = {name: pack(array) for name, array in sorted(content.artefacts.items())}
        changes = write_epochs(self.db, row | {"id": added}, content.epochs) | write_artefacts(self.db, added, packed)
        schema.update_job(self.db, added, **changes)

    def _add_selection(self, selection: SelectionRecord) -> None:
        here = self.selected.get((selection.protocol, selection.method))
        if here is None:
            schema.insert(self.db, "selections", vars(selection))
        elif here.variant != selection.variant:
            self.conflicts.append(
                f"{selection.method} was selected as {here.variant} here and as {selection.variant} there"
            )


def _outcome(job: JobRecord, measure: Measure) -> str:
    if job.status == FAILED:
        return f"failed ({job.error})"
    value = job.results.get("test_error", job.results.get("val_error", math.nan))
    return f"finished with {measure.name} {measure.full(value)}"


def _differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterable[str]:
    """Yield what differs between two descriptions; the store keeps its own."""
    for what in ("margin", "reference"):
        if here.get(what) != there.get(what):
            kept, other = here.get(what) or "none", there.get(what) or "none"
            yield f"its {what} is {kept} in the store and {other} in what is added; {kept} stays"
    if changed := amendments.behaviour_change(here.get("behaviour") or {}, there.get("behaviour") or {}):
        yield f"the study that is added is not the one in the store: {changed}"
