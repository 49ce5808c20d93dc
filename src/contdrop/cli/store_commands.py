"""The commands on stores: ``status``, ``check``, ``export``, ``import`` and ``merge``."""

from __future__ import annotations

import csv
import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .._text import duration, no_formula, plural, printable
from ..errors import UserError
from ..lab.analysis.metric_format import Measure
from ..lab.runner.progress import Estimate
from ..lab.store import archive as archives
from ..lab.store import imports, integrity
from ..lab.store.schema import FAILED, FINAL, FINISHED, RUNNING, Epoch, JobRecord, ProtocolRecord
from ..lab.store.writer import Store
from ..lab.training.metric_values import better_of
from . import options, terminal
from .options import option

_COUNTS = ("planned", "waiting", "running", "finished", "failed")


def status(store: options.Store = options.STORE, as_json: options.Json = False) -> None:
    """Show what is planned, running, finished and failed, and about how long the rest will take.

    Planned is everything: what is waiting, running, finished and failed adds up to it. A job whose process has ended
    before it was done is waiting again.

    Examples:
      contdrop status
      contdrop status --store table1.db --json
    """
    with Store(store) as opened, opened.snapshot():
        protocols = [(protocol, opened.jobs(protocol=protocol.key)) for protocol in opened.protocols()]
        rows = [_status_row(opened, protocol, jobs) for protocol, jobs in protocols]
    failures = [job for _, jobs in protocols for job in jobs if job.status == FAILED]
    if as_json:
        names = ("experiment", "stage", "method", "run", "error")
        failed = [{name: getattr(job, name) for name in names} for job in failures]
        terminal.print_json({"store": str(store), "experiments": rows, "failures": failed})
        return
    screen = terminal.screen()
    if not rows:
        screen.print(f"{store} is empty. Begin with: contdrop run digits-mlp --store {store}")
        return
    table = terminal.table(None, ("experiment", *_COUNTS, "time left"))
    table.padding = (0, 0, 0, 0)  # with the space that is there anyway, all fits 80 columns
    table.columns[0].overflow = "fold"
    for row in rows:
        left = "unknown" if row["seconds_left"] is None else duration(row["seconds_left"])
        name = f"{row['experiment']}\n  {row['preset']}, {plural(row['epochs'], 'epoch')}"
        table.add_row(name, *(str(row[count]) for count in _COUNTS), left if row["waiting"] or row["running"] else "")
    screen.print(table)
    for job in failures:
        stage = " (selection)" if job.stage == "selection" else ""
        screen.print(f"failed: {job.experiment} {job.method} run {job.run}{stage}: {job.error}", style="red")


def _status_row(store: Store, protocol: ProtocolRecord, jobs: Sequence[JobRecord]) -> dict[str, Any]:
    running = [job for job in jobs if job.status == RUNNING and not store.is_interrupted(job)]
    counts = {name: sum(job.status == name for job in jobs) for name in (FINISHED, FAILED)}
    left = Estimate(jobs).seconds_left(max(1, len(running)))
    return {
        "experiment": protocol.experiment,
        "preset": protocol.preset,
        "epochs": protocol.epochs,
        "planned": len(jobs),
        "waiting": len(jobs) - len(running) - sum(counts.values()),
        "running": len(running),
        **counts,
        "seconds_left": None if left is None else round(left, 1),
    }


def check(
    store: Annotated[pathlib.Path, typer.Argument(metavar="STORE", help="The file.")] = options.STORE,
    as_json: options.Json = False,
) -> int:
    """Read everything in a store and hold it against its checksums.

    The database itself, every row, every epoch, prediction and checkpoint; that the plan is complete and the runs
    paired; that each test error is that of the stored predictions. One line per finding, then what to do. The exit
    code is 2 if anything is wrong.

    Examples:
      contdrop check runs.db
      contdrop check table1.db --json
    """
    with Store(store) as opened:
        found = integrity.check(opened)
        jobs = len(opened.statuses()) if not found else 0
    if as_json:
        terminal.print_json({"store": str(store), "findings": [vars(finding) for finding in found]})
    elif not found:
        print(printable(f"{store}: whole. {plural(jobs, 'job')}, every checksum holds."))
    else:
        for finding in found:
            print(printable(f"{store}: {finding.text}"))
        print(_REPEAT if all(finding.mendable for finding in found) else _REPLACE)
    return 2 if found else 0


_REPEAT = "What to do: give the contdrop run command again. What is damaged is done again, all else is kept."
_REPLACE = (
    "What to do: put back a copy of the file, or contdrop import an archive of it. If there is neither, begin another "
    "store: contdrop does not guess what was written."
)


EXPORT_FORMATS = ("csv", "json")


def export(
    store: options.Store = options.STORE,
    form: Annotated[str, option("csv|json", "Of what is printed.", "--format")] = "csv",
    per_epoch: Annotated[bool, option(None, "One row per epoch instead of one per job.", "--per-epoch")] = False,
    selection: Annotated[bool, option(None, "With the jobs that select parameters.", "--selection")] = False,
    archive: Annotated[
        pathlib.Path | None, option("FILE", "Write everything to a compressed file for contdrop import.")
    ] = None,
    small: Annotated[
        bool, option(None, "An archive without single examples' values of secondary metrics.", "--small")
    ] = False,
) -> None:
    """Print one row per finished job, or per epoch, as CSV or JSON.

    val and test are the values of the metric that methods are compared by; for classifiers they also stand under
    val_error and test_error, in per cent.

    Jobs that select parameters are left out unless --selection is given: they have seen no test data. A text that a
    spreadsheet would take for a formula gets an apostrophe in front.

    --archive writes everything instead, as compressed text with checksums that can live in version control: after
    contdrop import, on any machine, the same contdrop run does only what is missing. Jobs under way are left to be
    started over. --small makes it several times smaller: it leaves out what single test examples contributed to
    metrics that methods are not compared by. Tables, verdicts, intervals and figures stay the same.

    Examples:
      contdrop export > runs.csv
      contdrop export --format json --per-epoch > epochs.json
      contdrop export --archive table1.jsonl.gz
    """
    if archive is not None:
        number = archives.export(store, archive, small=small)
        print(printable(f"{archive}: {plural(number, 'job')}. To read it: contdrop import {archive} --store FILE"))
        return
    if small:
        raise UserError("--small: expected --archive FILE with it; it is about archives")
    if form not in EXPORT_FORMATS:
        raise UserError(f"--format: expected {' or '.join(EXPORT_FORMATS)}; got {form!r}")
    with Store(store) as opened, opened.snapshot():
        jobs = [job for job in opened.jobs() if job.status == FINISHED and (selection or job.stage == FINAL)]
        presets = {protocol.key: protocol.preset for protocol in opened.protocols()}
        measures = {protocol.key: Measure.of(protocol.description) for protocol in opened.protocols()}
        if per_epoch:
            rows = [{**_job(job, presets), **epoch._asdict()} for job in jobs for epoch in opened.epochs(job.id)]
        else:
            rows = [{**_job(job, presets), **_result(job, measures[job.protocol])} for job in jobs]
    if form == "json":
        terminal.print_json(rows)
        return
    columns = (*_JOB_COLUMNS, *(Epoch._fields if per_epoch else _RESULT_COLUMNS))
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: no_formula(cell) if isinstance(cell, str) else cell for name, cell in row.items()})


_JOB_COLUMNS = ("experiment", "preset", "protocol", "stage", "method", "variant", "run")
_RESULT_COLUMNS = (
    *("metric", "unit", "better"),
    *(f"{part}{what}" for what in ("", "_error", "_loss") for part in ("train", "val", "test")),
    *("epochs", "seconds", "relative_variance", "origin"),
)


def _job(job: JobRecord, presets: dict[str, str]) -> dict[str, Any]:
    own = {name: getattr(job, name, None) for name in _JOB_COLUMNS}
    return own | {"preset": presets[job.protocol], "protocol": job.protocol[:12]}


def _result(job: JobRecord, measure: Measure) -> dict[str, Any]:
    found: dict[str, Any] = {"metric": measure.name, "unit": measure.unit, "better": measure.better}
    found |= {part: job.results.get(f"{part}_error") for part in ("train", "val", "test")}
    errors = {name: value for name, value in job.results.items() if measure.is_error or not name.endswith("_error")}
    found |= {**errors, "epochs": job.epochs, "seconds": round(job.seconds, 3), "origin": job.origin}
    return {name: found.get(name) for name in _RESULT_COLUMNS}


def import_command(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="An archive, a store or a CSV file.")],
    store: options.Store = options.STORE,
    name: Annotated[str | None, option("NAME", "Name of the experiment that a CSV file becomes.")] = None,
    reference: Annotated[
        str | None, option("METHOD", "What its methods are compared with.  [default: the first]")
    ] = None,
    metric: Annotated[str | None, option("NAME", "What its values are.  [default: error]")] = None,
    unit: Annotated[str | None, option("UNIT", "Unit of the values.  [default: % of errors, else none]")] = None,
    better: Annotated[
        str | None, option("lower|higher", "Which values are better.  [default: by the name, else lower]")
    ] = None,
    margin: Annotated[
        float | None, option("NUMBER", "The smallest difference that matters, fixed before the numbers were seen.")
    ] = None,
) -> None:
    """Add an archive, or a table of finished numbers, to a store, which is made if there is none.

    An archive of contdrop export --archive holds everything but the states of jobs under way. After it, contdrop run
    does only what is missing, and contdrop report writes the same page. What the store has already must be equal, or
    nothing is added.

    A CSV file with the columns method, run and value (one line per run) becomes an experiment of its own, marked as
    imported: for the statistics of runs that were done elsewhere. Values are errors in per cent, unless --metric names
    something else, of which --better says which values are better.

    Examples:
      contdrop import table1.jsonl.gz --store table1.db
      contdrop import errors.csv --name "their table 2" --reference baseline
      contdrop import auroc.csv --metric auroc --better higher --margin 0.01
    """
    given = {"name": name, "reference": reference, "metric": metric, "unit": unit, "better": better, "margin": margin}
    told = [option for option, value in given.items() if value is not None]
    if told and not imports.is_table(file):
        raise UserError(f"--{told[0]}: expected a CSV file with it; {file} says by itself what is in it")
    metric = metric or "error"
    unit = ("%" if metric == "error" else "") if unit is None else unit
    measured = {"name": metric, "unit": unit, "better": better or better_of(metric) or "lower"}
    table = functools.partial(imports.read_table, name=name, reference=reference, metric=measured, margin=margin)
    _show(imports.import_file(file, store, table), store)


def merge(
    out: Annotated[pathlib.Path, typer.Argument(metavar="NEW_STORE", help="The new store.")],
    sources: Annotated[list[pathlib.Path], typer.Argument(metavar="STORE_OR_ARCHIVE", help="Stores and archives.")],
) -> None:
    """Join stores and archives into a new store.

    What one has and the others have not is added; what several have must be equal in everything but times, or nothing
    is written. Every job keeps the name of the file that it came from (contdrop export shows it).

    Examples:
      contdrop merge all.db laptop.db cluster.jsonl.gz
    """
    _show(imports.merge(out, sources), out)


def _show(outcome: imports.MergeResult, store: pathlib.Path) -> None:
    there = f", {plural(outcome.kept, 'job')} there already" if outcome.kept else ""
    print(printable(f"{store}: {plural(outcome.added, 'job')} added{there}."))
    for note in outcome.notes:
        terminal.say(f"contdrop: {note}")
