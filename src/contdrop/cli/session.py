"""Options and steps that ``run`` and ``compare`` share: plan the jobs, do them, print the comparison."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from .._text import duration, plural
from ..errors import UserError
from ..lab import stats
from ..lab.analysis.metric_format import run_count
from ..lab.analysis.verdict import Analysis, analyze
from ..lab.extensions import DATA_VARIABLE
from ..lab.report import formats, tables
from ..lab.report.protocol import length_of
from ..lab.runner.runner import PlannedStudy, StudyRunner, find_cluster
from ..lab.store.schema import FINAL
from ..lab.study import labels
from ..lab.study.plan import plan
from ..lab.study.source import StudySource
from ..lab.study.study import Study
from . import options, terminal
from .options import option
from .progress_bars import Dashboard

_DAY = 86400.0  # seconds
_TRIED_FROM = 10_000_000  # examples trained on: below, no experiment of the catalogue takes a day


_plan, _machine, _resume = (
    functools.partial(option, heading=heading) for heading in ("Plan", "Where and how jobs run", "Resuming")
)


@dataclass(frozen=True)
class JobOptions:
    """Options about jobs: which, where and how."""

    methods: Annotated[
        str | None, _plan("METHOD,...", "Only these, such as none,gaussian,gaussian:sigma=0.5.  [default: all]")
    ] = None
    runs: Annotated[int | None, _plan("RUNS", "Paired runs per method.  [default: the study's]")] = None
    epochs: Annotated[int | None, _plan("EPOCHS", "Epochs per run.  [default: the study's]")] = None
    seed: Annotated[
        int | None,
        _plan("SEED", "Seed of all that is random; another seed gives other runs.  [default: the study's, 0]"),
    ] = None
    workers: Annotated[
        int | None, _machine("PROCESSES", "Processes that train at a time.  [default: one per core]")
    ] = None
    threads: Annotated[int | None, _machine("THREADS", "torch threads in each of them.  [default: the study's, 1]")] = (
        None
    )
    device: Annotated[str, _machine("cpu|cuda|mps|auto", "Where to train.")] = "auto"
    shard: Annotated[
        str | None, _machine("I/N", "Do part I of N of the runs, for contdrop merge; 0/N: the selection alone.")
    ] = None
    executor: Annotated[str, _machine("local|ray", "Where jobs are done.")] = "local"
    address: Annotated[
        str | None, _machine("HOST:PORT", "Of a Ray cluster, or auto.  [default: Ray is started here, on loopback]")
    ] = None
    cpus: Annotated[float | None, _machine("CPUS", "With Ray: processors per job.  [default: --threads]")] = None
    gpus: Annotated[float, _machine("GPUS", "With Ray: GPUs per job; 0.25 puts four jobs on one.")] = 0.0
    retry_failed: Annotated[bool, _resume(None, "Do failed jobs once more.", "--retry-failed")] = False
    redo: Annotated[
        bool, _resume(None, "Do finished jobs again whose runs would mix kinds of processors or --threads.", "--redo")
    ] = False
    store: options.Store = options.STORE
    data_dir: options.DataDir = None
    as_json: options.Json = False

    def plan(self, study: Study, preset: str | None, source: StudySource) -> PlannedStudy:
        """Return the study with its jobs."""
        labels = split_labels(self.methods)
        jobs = plan(study, preset=preset, labels=labels, runs=self.runs, epochs=self.epochs, seed=self.seed)
        return PlannedStudy(jobs, source)

    def runner(self, plans: Sequence[PlannedStudy]) -> StudyRunner:
        if self.workers is not None and self.workers < 1:  # 0, training in this process, is for the Python API
            raise UserError(f"--workers: expected a whole number of at least 1; got {self.workers}")
        cluster = find_cluster(
            self.executor, address=self.address, cpus=self.cpus, gpus=self.gpus, workers=self.workers
        )
        shared = ("workers", "threads", "device", "retry_failed", "redo")
        settings: dict[str, Any] = {name: getattr(self, name) for name in shared}
        return StudyRunner(plans, **settings, shard=parse_shard(self.shard), cluster=cluster, say=terminal.say)


def with_jobs(device: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of :class:`JobOptions`, which it receives as its argument ``jobs``."""
    shared = [
        each.replace(kind=each.KEYWORD_ONLY, default=device if name == "device" else each.default)
        for name, each in inspect.signature(JobOptions, eval_str=True).parameters.items()
    ]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "jobs"]

        @functools.wraps(command)
        def with_shared(**given: Any) -> int:
            jobs = JobOptions(**{each.name: given.pop(each.name) for each in shared})
            return command(**given, jobs=jobs)

        with_shared.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        with_shared.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        return with_shared

    return decorate


def use_data_directory(directory: pathlib.Path | None) -> None:
    """Use a directory for data sets in this process and in those it starts; None changes nothing."""
    if directory is not None:
        if directory.expanduser().is_file():
            raise UserError(f"--data-dir: expected a directory; {directory} is a file")
        os.environ[DATA_VARIABLE] = str(directory.expanduser().absolute())


def split_labels(methods: str | None) -> list[str] | None:
    """Split a list of labels at commas; parameters of one method, which commas separate too, stay together."""
    if methods is None:
        return None
    joined: list[str] = []
    for part in methods.split(","):
        if joined and "=" in part and ":" not in part:
            joined[-1] += "," + part
        else:
            joined.append(part)
    return joined


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """Return the part and the number of parts of ``I/N``.

    >>> parse_shard("2/5")
    (2, 5)
    """
    if text is None:
        return None
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 0 <= int(part) <= int(parts) and int(parts)):
        raise UserError(f"--shard: expected a part and the number of parts, such as 2/5 or 0/5; got {text!r}")
    return int(part), int(parts)


def perform(runner: StudyRunner, jobs: JobOptions, page_directory: pathlib.Path | None = None) -> int:
    """Do all jobs of the plans with a progress display, show what came of them, and return the exit code."""
    path = jobs.store
    with runner.session(path) as store:
        announce(runner, path)
        warn(runner)
        try:
            dashboard = Dashboard(store, runner.jobs, runner.estimate(), workers=runner.processes)
            with dashboard.progress:
                outcome = runner.run(dashboard)
        except KeyboardInterrupt:
            terminal.say(
                f"contdrop: interrupted; {runner.done} of {len(runner.jobs)} jobs are done and kept in {path}; "
                "give the same command again to resume"
            )
            return 130
        analyses = [analyze(results) for results in runner.results()]
    if jobs.as_json:
        terminal.print_json([plain_summary(each) for each in analyses])
    else:
        _show(analyses, path, page_directory)
    if outcome.failed:
        terminal.say(
            f"contdrop: {len(outcome.failed)} of {len(runner.jobs)} jobs failed; contdrop status says why, and the "
            "same command with --retry-failed tries them again"
        )
    return 1 if outcome.failed else 0


def announce(runner: StudyRunner, path: pathlib.Path) -> None:
    """Print the number of planned and of finished jobs."""
    statuses = runner.store.statuses()
    for planned in runner.plans:
        protocol = planned.protocol
        mine = {job_id: job for job_id, job in runner.jobs.items() if job.protocol.key == protocol.key}
        final = sum(job.stage == FINAL for job in mine.values())
        done = sum(statuses[job_id] in ("finished", "failed") for job_id in mine)
        selecting = f" and {len(mine) - final} to select parameters" if len(mine) > final else ""
        size = f"{plural(final, 'job')} of {plural(protocol.epochs, 'epoch')}"
        name = protocol.study.name
        terminal.say(f"{name} ({protocol.preset}): {size}{selecting}; {done} of them are done already. Store: {path}")
        for note in protocol.study.description.notes:
            terminal.screen(stderr=True).print(note)


def warn(runner: StudyRunner) -> None:
    """Warn if the remaining jobs take more than a day."""
    left = runner.estimate().left
    passes = sum(runner.jobs[job_id].epochs for job_id in left) * runner.largest_part
    seconds = runner.seconds_left(try_out=passes > _TRIED_FROM)
    if seconds is not None and seconds > _DAY:
        terminal.say(
            f"contdrop: this will take about {duration(seconds)} with "
            f"{plural(runner.processes, 'worker')}; Ctrl-C stops it, what is done is kept, and --preset quick or a "
            "smaller --runs or --epochs takes less"
        )


def _show(analyses: Sequence[Analysis], store: pathlib.Path, page_directory: pathlib.Path | None) -> None:
    """Print the results and the name of the store, and write the page if there is a directory for it."""
    for each in analyses:
        show_summary(each)
    screen = terminal.screen()
    hint = "" if page_directory else f" For a page of it: contdrop report --store {store}"
    screen.print(f"All of it is in {store}.{hint}", style="dim")
    if page_directory:
        from ..lab.report import page  # matplotlib takes a moment, which other commands need not wait

        screen.print(f"The page: {page.write(store, page_directory, analyses=analyses).index}", style="bold")


def show_summary(analysis: Analysis) -> None:
    """Print the table of one experiment and the verdict on it."""
    results, comparisons = analysis.results, analysis.comparisons
    screen = terminal.screen()
    screen.print()
    if not results.errors():
        screen.print(f"{results.protocol.experiment}: no final run is finished, so there is nothing to compare.")
        return
    shown, protocol = tables.overview(analysis), results.protocol
    runs = run_count({len(found) for found in results.errors().values()})
    if comparisons:
        runs = run_count({found.runs for found in comparisons.values()}, "paired run")
    epochs = f" of {length}" if (length := length_of(results)) else ""
    title = f"{protocol.description['title']}: {runs}{epochs} ({protocol.preset})"
    table = terminal.table(title, [re.sub(r" (?=[\[(])", "\n", each) for each in shown.headings])
    for row in shown.rows:
        table.add_row(*(cell.text for cell in row), style="bold" if row[1].bold else "")
    screen.print(table)
    for note in shown.notes[1:]:
        screen.print(note, style="dim")
    if results.selections:
        chosen = [
            formats.in_full(each.variant, labels.name_in_text)
            if each.variant
            else f"nothing for {labels.name_in_text(each.method)}"
            for each in results.selections.values()
        ]
        screen.print(f"Selected on validation data, by runs of their own: {', '.join(chosen)}.", style="dim")
    verdict = analysis.verdict
    screen.print()
    screen.print(verdict.headline, style="bold")
    for line in (*verdict.details, *(f"- {finding.label}: {finding.text}" for finding in verdict.findings)):
        screen.print(line)
    for caveat in verdict.caveats:
        screen.print(f"- {caveat}", style="dim")
    screen.print()


def plain_summary(analysis: Analysis) -> dict[str, Any]:
    """Return the same as plain data."""
    results, comparisons, measure = analysis.results, analysis.comparisons, analysis.results.measure
    variants = results.variants()
    methods = [
        {
            "method": method,
            "variant": variants.get(method, method),
            "test": found,
            **({"test_error": found} if measure.is_error else {}),
            **_moments(stats.summary(list(found.values()))),
            "comparison": _figures(comparisons[method]) if method in comparisons else None,
        }
        for method, found in results.errors().items()
    ]
    return {
        "experiment": results.protocol.experiment,
        "preset": results.protocol.preset,
        "epochs": results.protocol.epochs,
        "reference": results.reference,
        "metric": measure.name,
        "unit": measure.unit,
        "better": measure.better,
        "selected": {label: selection.variant for label, selection in results.selections.items()},
        "methods": methods,
        "verdict": analysis.verdict.headline,
        "failed": len(results.failed),
        "missing": len(results.missing),
    }


def _moments(summary: stats.Summary) -> dict[str, float]:
    return {"mean": summary.mean, "sd": summary.sd}


def _figures(comparison: stats.Comparison) -> dict[str, Any]:
    return {n: _moments(each) if isinstance(each, stats.Summary) else each for n, each in vars(comparison).items()}
