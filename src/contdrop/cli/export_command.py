"""``contdrop export``: the results as rows."""

from __future__ import annotations

import csv
import pathlib
import sys
from typing import Annotated, Any

import typer

from .._text import no_formula, plural, printable
from ..errors import UserError
from ..lab.analysis.metric_format import Measure
from ..lab.store import merge
from ..lab.store.schema import FINAL, FINISHED, Epoch, JobRecord
from ..lab.store.writer import Store
from . import options, terminal

FORMATS = ("csv", "json")

HELP = """Print one row per finished job, or per epoch, as CSV or JSON.

val and test are the values of the metric that methods are compared by; for classifiers they also stand under val_error
and test_error, in per cent.

Jobs that select parameters are left out unless --selection is given: they have seen no test data. A text that a
spreadsheet would take for a formula gets an apostrophe in front.

--archive writes everything instead, as compressed text with checksums that can live in version control: after contdrop
import, on any machine, the same contdrop run does only what is missing. Jobs under way are left to be started over.
--small makes it several times smaller: it leaves out what single test examples contributed to metrics that methods are
not compared by. Tables, verdicts, intervals and figures stay the same.

\b
Examples:
  contdrop export > runs.csv
  contdrop export --format json --per-epoch > epochs.json
  contdrop export --archive table1.jsonl.gz
"""


def export(
    store: options.Store = options.STORE,
    form: Annotated[str, typer.Option("--format", metavar="csv|json", help="Of what is printed.")] = "csv",
    per_epoch: Annotated[bool, typer.Option("--per-epoch", help="One row per epoch instead of one per job.")] = False,
    selection: Annotated[bool, typer.Option("--selection", help="With the jobs that select parameters.")] = False,
    archive: Annotated[
        pathlib.Path | None,
        typer.Option("--archive", metavar="FILE", help="Write everything to a compressed file for contdrop import."),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="An archive without single examples' values of secondary metrics.")
    ] = False,
) -> None:
    """The command; ``HELP`` says what it does."""
    if archive is not None:
        number = merge.export(store, archive, small=small)
        print(printable(f"{archive}: {plural(number, 'job')}. To read it: contdrop import {archive} --store FILE"))
        return
    if small:
        raise UserError("--small: expected --archive FILE with it; it is about archives")
    if form not in FORMATS:
        raise UserError(f"--format: expected {' or '.join(FORMATS)}; got {form!r}")
    with Store(store) as opened, opened.snapshot():
        jobs = [job for job in opened.jobs() if job.status == FINISHED and (selection or job.stage == FINAL)]
        presets = {protocol.key: protocol.preset for protocol in opened.protocols()}
        if per_epoch:
            columns = [*_JOB_COLUMNS, *(name for name in Epoch.__dataclass_fields__)]
            rows = [{**_job(job, presets), **vars(epoch)} for job in jobs for epoch in opened.epochs(job.id)]
        else:
            columns = [*_JOB_COLUMNS, *_RESULT_COLUMNS]
            measures = {protocol.key: Measure.of(protocol.description) for protocol in opened.protocols()}
            rows = [{**_job(job, presets), **_result(job, measures[job.protocol])} for job in jobs]
    if form == "json":
        terminal.print_json(rows)
        return
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: no_formula(cell) if isinstance(cell, str) else cell for name, cell in row.items()})


_JOB_COLUMNS = ("experiment", "preset", "protocol", "stage", "method", "variant", "run")
_RESULT_COLUMNS = (
    "metric",
    "unit",
    "better",
    "train",
    "val",
    "test",
    "train_error",
    "val_error",
    "test_error",
    "train_loss",
    "val_loss",
    "test_loss",
    "epochs",
    "seconds",
    "relative_variance",
    "origin",
)


def _job(job: JobRecord, presets: dict[str, str]) -> dict[str, Any]:
    return {
        "experiment": job.experiment,
        "preset": presets[job.protocol],
        "protocol": job.protocol[:12],
        "stage": job.stage,
        "method": job.method,
        "variant": job.variant,
        "run": job.run,
    }


def _result(job: JobRecord, measure: Measure) -> dict[str, Any]:
    found: dict[str, Any] = {"metric": measure.name, "unit": measure.unit, "better": measure.better}
    found |= {part: job.results.get(f"{part}_error") for part in ("train", "val", "test")}
    errors = {name: value for name, value in job.results.items() if measure.is_error or not name.endswith("_error")}
    found |= {**errors, "epochs": job.epochs, "seconds": round(job.seconds, 3), "origin": job.origin}
    return {name: found.get(name) for name in _RESULT_COLUMNS}
