"""``contdrop run``: run an experiment, or resume it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ..errors import UserError
from ..lab import catalogue, data, locks, results
from ..lab.estimate import Estimate
from ..lab.executors import local
from ..lab.experiment import Experiment, Job, add_plan, plan
from ..lab.store import FAILED, FINAL, FINISHED, Store
from ..lab.training import Images, machine, seconds_per_epoch
from ..text import plural
from . import options, screens, summary
from .dashboard import Dashboard

_DAY = 86400.0  # seconds
_TRIED_FROM = 10_000_000  # images trained on: below, no experiment of the catalogue takes a day

HELP = """Train every method of an experiment, run by run, and compare them.

In run i all methods share the split, the initial weights and the order of the data; only the masks differ. Everything
goes into one file, the store: what is finished is never done again, and an interrupted command resumes where it stopped
when it is given once more, bit for bit. More runs may be added later with a larger --runs. Two commands may work on one
store at the same time.

Sigma, alpha and beta are selected first, on validation data, by runs of their own. The size is an affordable one, and
no replication, unless --preset paper asks for the paper's: a table then takes a month on two cores. What will take
more than a day says so before it begins.

\b
Examples:
  contdrop run digits-mlp
  contdrop run mnist-mlp-relu --runs 3
  contdrop run mnist-mlp-relu --methods none,bernoulli,gaussian:sigma=0.3
  contdrop run mnist-mlp --preset paper --store table1.db --workers 4
"""


def run(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name of contdrop list.")],
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The size: quick (default) or paper; see contdrop list.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Only these, such as none,gaussian,gaussian:sigma=0.5.  [default: all]"),
    ] = None,
    runs: Annotated[int | None, typer.Option(metavar="N", help="Paired runs per method.  [default: preset's]")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="E", help="Epochs per run.  [default: preset's]")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of everything random; other seeds, other runs.")] = 0,
    workers: Annotated[
        int | None, typer.Option(metavar="K", help="Processes that train at a time.  [default: one per core]")
    ] = None,
    threads: Annotated[int, typer.Option(metavar="N", help="torch threads in each of them.")] = 1,
    executor: Annotated[str, typer.Option(metavar="NAME", help="Where jobs are done: local.")] = "local",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Do failed jobs once more.")] = False,
    store: options.Store = options.STORE,
    data_dir: options.DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON instead of a table.")] = False,
) -> int:
    """The command; ``HELP`` says what it does."""
    if executor != "local":
        raise UserError(f"--executor: expected local; got {executor!r}")
    for option, value in (("--workers", workers), ("--threads", threads)):
        if value is not None and value < 1:
            raise UserError(f"{option}: expected a whole number of at least 1; got {value}")
    experiments = catalogue.find(experiment)
    labels = None if methods is None else methods.split(",")
    plans = [plan(e, preset=preset, labels=_split(labels), runs=runs, epochs=epochs, seed=seed) for e in experiments]
    directory = data.directory(data_dir)
    images = {name: Images.of(data.load(name, directory)) for name in {e.dataset for e in experiments}}
    locks.check_available()
    with Store(store, create=True) as opened:
        jobs = {job_id: job for planned in plans for job_id, job in _planned(opened, planned, retry_failed).items()}
        workers = workers or max(1, _cores() // threads)
        _announce(opened, experiments, jobs, store)
        for line in opened.plan_other_processors_again(list(jobs), {**machine(), "threads": threads}):
            screens.say(f"contdrop: {line}")
        try:
            estimate = Estimate(opened.jobs(ids=list(jobs)))
            _warn(estimate, jobs, images, workers, threads)
            with Dashboard(opened, jobs, estimate, workers=workers) as dashboard:
                outcome = local.run(opened, jobs, images, dashboard, workers=workers, threads=threads)
        except KeyboardInterrupt:
            done = sum(status in (FINISHED, FAILED) for n, status in opened.statuses().items() if n in jobs)
            screens.say(
                f"contdrop: interrupted; {done} of {len(jobs)} jobs are done and kept in {store}; "
                "give the same command again to resume"
            )
            return 130
        keys = {job.protocol.key for job in jobs.values()}
        found = [results.collect(opened, protocol) for protocol in opened.protocols() if protocol.key in keys]
    if as_json:
        screens.print_json([summary.plain(each) for each in found])
    else:
        for each in found:
            summary.show(each)
        line = f"All of it is in {store}. For a page of it: contdrop report --store {store}"
        screens.screen().print(line, style="dim")
    return _complain(outcome, jobs)


def _split(labels: list[str] | None) -> list[str] | None:
    """Puts parameters of one method, which commas separate too, together again: adaptive:alpha=1,beta=0."""
    if labels is None:
        return None
    joined: list[str] = []
    for part in labels:
        if joined and "=" in part and ":" not in part:
            joined[-1] += "," + part
        else:
            joined.append(part)
    return joined


def _cores() -> int:
    """That this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _planned(store: Store, jobs: list[Job], retry_failed: bool) -> dict[int, Job]:
    """Puts jobs into the store's plan; by their ids there."""
    for what in store.mend(jobs[0].protocol.key, {job.key for job in jobs}):
        screens.say(f"contdrop: {what}; it is done again")
    planned = add_plan(store, jobs)
    if retry_failed:
        statuses = store.statuses()
        for job_id in planned:
            if statuses[job_id] == FAILED:
                store.plan_again(job_id)
    return planned


def _announce(store: Store, experiments: list[Experiment], jobs: dict[int, Job], path: object) -> None:
    statuses = store.statuses()
    for experiment in experiments:
        mine = {job_id: job for job_id, job in jobs.items() if job.protocol.experiment.name == experiment.name}
        final = sum(job.stage == FINAL for job in mine.values())
        done = sum(statuses[job_id] in (FINISHED, FAILED) for job_id in mine)
        protocol = next(iter(mine.values())).protocol
        selecting = f" and {len(mine) - final} to select parameters" if len(mine) > final else ""
        size = f"{plural(final, 'job')} of {plural(protocol.epochs, 'epoch')}"
        screens.say(
            f"{experiment.name} ({protocol.preset}): {size}{selecting}; {done} of them are done already. Store: {path}"
        )
        for note in experiment.notes:
            screens.screen(stderr=True).print(note)


def _warn(estimate: Estimate, jobs: dict[int, Job], images: dict[str, Images], workers: int, threads: int) -> None:
    """Says how long it will take, if that is more than a day."""
    seconds = estimate.seconds_left(workers)
    passes = sum(jobs[job_id].epochs * jobs[job_id].protocol.experiment.split.train for job_id in estimate.left)
    if seconds is None and passes > _TRIED_FROM:
        job = next(jobs[job_id] for job_id in estimate.left)
        method = job.variant({label: found[0] for label, found in job.protocol.experiment.candidates.items()})
        each = seconds_per_epoch(job, method, images[job.protocol.experiment.dataset], threads=threads)
        share = max(1, min(workers, len(estimate.left)))
        seconds = each * passes / job.protocol.experiment.split.train / share
    if seconds is not None and seconds > _DAY:
        screens.say(
            f"contdrop: this will take about {screens.duration(seconds)} with {plural(workers, 'worker')}; Ctrl-C "
            "stops it, what is done is kept, and --preset quick or a smaller --runs or --epochs takes less"
        )


def _complain(outcome: local.Outcome, jobs: dict[int, Job]) -> int:
    """Says what did not end well; returns the exit code."""
    if outcome.failed:
        screens.say(
            f"contdrop: {len(outcome.failed)} of {len(jobs)} jobs failed; contdrop status says why, and the same "
            "command with --retry-failed tries them again"
        )
    if outcome.given_up:
        names = ", ".join(str(jobs[job_id]) for job_id in outcome.given_up)
        screens.say(
            f"contdrop: worker processes kept ending while they did {names} (is there enough memory?); the same "
            "command tries again"
        )
    return 1 if outcome.failed or outcome.given_up else 0
