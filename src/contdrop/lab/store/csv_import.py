"""Import of finished numbers: a table of method, run and value becomes an experiment that can be compared.

Its preset marks it as imported, and a note says that pairing is taken on trust.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import pathlib
from collections.abc import Mapping

from ..._files import reading
from ..._text import printable
from ...errors import UserError, suggest
from ..training.metric_values import better_of
from .archive import JobContents, StoreContents
from .schema import FINAL, FINISHED, IMPORTED, JobRecord, ProtocolRecord, digest_json

COLUMNS = ("method", "run", "value")
LIMIT = 100_000_000  # bytes
ERROR = {"name": "error", "unit": "%", "better": "lower"}


def read(
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
    note = (
        f"These numbers were not made here: they were imported from {printable(path.name)} (SHA-256 {digest[:12]})."
        " That runs of the same number are paired is taken on trust."
    )
    return from_values(
        values,
        name=printable(name or path.stem),
        reference=reference,
        metric=metric,
        margin=margin,
        origin={"file": path.name, "sha256": digest, **({} if metric == ERROR else metric)},
        note=note,
    )


def from_values(
    values: Mapping[tuple[str, int], float],
    *,
    name: str,
    reference: str | None,
    metric: Mapping[str, str],
    margin: float | None,
    origin: Mapping[str, str] | None = None,
    note: str = "These numbers were not made here. That runs of the same number are paired is taken on trust.",
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
    bad = next((place for place, value in values.items() if not math.isfinite(value)), None)
    if bad is not None:
        raise UserError(f"expected finite numbers; {bad[0]} run {bad[1]} is {values[bad]}: leave out runs that failed")
    if origin is None:
        listed = sorted((method, run, float(value)) for (method, run), value in values.items())
        origin = {"sha256": hashlib.sha256(json.dumps([listed, dict(metric)]).encode()).hexdigest()}
    configuration = {"experiment": name, "preset": IMPORTED, "epochs": 0, **origin}
    key = digest_json(configuration)
    description = {
        "title": name,
        "paper": "",
        "reference": reference or methods[0],
        "methods": methods,
        "metric": dict(metric),
        "margin": margin,
        "notes": [note],
    }
    protocol = ProtocolRecord(key, name, IMPORTED, 0, configuration, description, 0.0)
    jobs = [_job(protocol, method, run, float(value)) for (method, run), value in values.items()]
    return StoreContents((protocol,), (), tuple(JobContents(job, (), {}) for job in jobs))


def _values(path: pathlib.Path, content: bytes, percentages: bool) -> dict[tuple[str, int], float]:
    if len(content) > LIMIT or b"\0" in content:
        raise UserError(
            f"{path}: expected an archive of contdrop or a CSV file of method, run and value; it is neither"
        )
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        headings = list(rows.fieldnames or ())
        for column in COLUMNS:
            if headings.count(column) != 1:
                there = "is no" if column not in headings else "are several called"
                raise UserError(f"{path}: expected the columns method, run and value; there {there} {column}")
        found: dict[tuple[str, int], float] = {}
        for number, row in enumerate(rows, 2):
            if None in row:  # under which surplus cells are
                raise UserError(
                    f"{path}: line {number}: expected {len(headings)} cells, got {len(headings) + len(row[None])}; "
                    "decimals have a point, and there is no comma between thousands"
                )
            method, run, value = (printable(row[column] or "") for column in COLUMNS)
            try:
                if "_" in run + value:  # which Python would take for a number
                    raise ValueError
                place, error = (method, int(run)), float(value)
            except ValueError:
                raise UserError(
                    f"{path}: line {number}: expected a whole number and a number; got {run!r}, {value!r}"
                ) from None
            is_value = 0 <= error <= 100 if percentages else math.isfinite(error)
            if not method or not is_value or not 0 <= place[1] < 2**31:
                what = "an error from 0 to 100 per cent (--metric for anything else)" if percentages else "a number"
                raise UserError(f"{path}: line {number}: expected a method, a run from 0 and {what}")
            if place in found:
                raise UserError(f"{path}: line {number}: {method} run {run} is there twice")
            found[place] = error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a CSV file of method, run and value; {printable(str(error))}") from error
    if not found:
        raise UserError(f"{path}: expected rows of method, run and value; there is none")
    return found


def _job(protocol: ProtocolRecord, method: str, run: int, value: float) -> JobRecord:
    configuration = {**protocol.configuration, "stage": FINAL, "method": method, "run": run}
    return JobRecord(
        id=0, key=digest_json(configuration), protocol=protocol.key, experiment=protocol.experiment, stage=FINAL,
        method=method, run=run, epochs=0, configuration=configuration, status=FINISHED, error=None, variant=method,
        seeds={}, fingerprints={}, versions={}, machine={}, results={"test_error": value}, created=0.0, started=None,
        ended=None, epochs_done=0, seconds=0.0, origin=None,
    )  # fmt: skip
