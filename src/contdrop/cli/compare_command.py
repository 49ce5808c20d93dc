"""``contdrop compare``: which dropout is better on a model and data of the user's own, and whether the gain is real."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer

from .._text import duration, plural, printable
from ..errors import UserError
from ..lab.analysis.sample_size import needed_runs
from ..lab.report import templating
from ..lab.runner.runner import StudyRunner
from ..lab.study import source, templates
from . import session, terminal
from .options import option


@session.with_jobs(device="auto")
def compare(
    study: Annotated[pathlib.Path | None, typer.Argument(metavar="STUDY.py", help="The file with the study.")] = None,
    init: Annotated[pathlib.Path | None, option("FILE", "Write a study to start from, and do no more.")] = None,
    kind: Annotated[str | None, option("NAME", f"With --init: {', '.join(templates.KINDS)}.")] = None,
    estimate: Annotated[
        bool, option(None, "Try it out, and print how long it takes and how many runs are needed.", "--estimate")
    ] = False,
    preset: Annotated[str | None, option("NAME", "The size, if the study has several.")] = None,
    out: Annotated[pathlib.Path | None, option("DIR", "Directory for the page.  [default: NAME-report]")] = None,
    *,
    jobs: session.JobOptions,
) -> int:
    """Compare methods of dropout on your own model and data, in paired runs, and write a report.

    STUDY.py is a Python file with a line study = lab.Study(...): a function that returns the data, a function that
    returns the model, and how it is trained. contdrop compare --init my_study.py writes one to start from, which runs
    as it is.

    First everything is tried with two batches per method, so that mistakes show before the long run. Then all methods
    are trained, run by run, from the same initial weights on the same batches; what is finished is kept in the store,
    and the same command resumes. At the end there is a table, a verdict and a page.

    Examples:
      contdrop compare --init my_study.py
      contdrop compare my_study.py
      contdrop compare my_study.py --estimate
      contdrop compare my_study.py --runs 20 --methods original,gaussian:match,none --out my-report
    """
    if init is not None and study is not None:
        raise UserError(f"--init: expected no study beside it; got {study}; --init {init} alone writes one")
    if kind is not None and init is None:
        raise UserError("--kind: expected --init FILE, which writes a study of that kind")
    if init is not None:
        templates.write(init, kind or templates.KINDS[0])
        print(printable(f"{init} is written. Look into it, then: contdrop compare {init}"))
        return 0
    if study is None:
        raise UserError("expected a study file, or --init FILE to write one to start from")
    session.use_data_directory(jobs.data_dir)
    found = source.load_file(study)
    runner = jobs.runner([jobs.plan(found, preset, source.of_file(study))])
    if estimate:
        estimated = _estimate(runner, jobs.store)
        terminal.print_json(estimated) if jobs.as_json else _print_estimate(estimated)
        return 0
    out = out or pathlib.Path(f"{found.name}-report")
    if jobs.as_json:
        return session.perform(runner, jobs)
    templating.check_directory(out)  # now, and not after hours of training
    return session.perform(runner, jobs, page_directory=out)


def _estimate(runner: StudyRunner, path: pathlib.Path) -> dict[str, Any]:
    """Return the plan's time, memory and disk, and the runs that a gap needs; only a few batches are trained."""
    protocol = runner.plans[0].protocol
    with runner.session(path, scratch=True):
        found: dict[str, Any] = {
            "study": protocol.study.name,
            "jobs": len(runner.jobs),
            "done": runner.done,
            "seconds": runner.seconds_left(try_out=True),
            "workers": runner.processes,
        }
        report = runner.reports.get(protocol.key)
        if report is not None:
            memory, disk = runner.memory_and_disk(protocol.key)
            found["examples"] = dict(zip(("train", "validation", "test"), report.sizes))
            found |= {"memory_per_worker": memory, "disk": disk, "sites": report.sites}
        return found | {"runs_needed": list(needed_runs(runner.results()))}


def _print_estimate(found: dict[str, Any]) -> None:
    screen = terminal.screen()
    screen.print(f"{found['study']}: {plural(found['jobs'], 'job')}, {found['done']} of them done.")
    if found["seconds"] is not None:
        screen.print(f"Time: about {duration(found['seconds'])} with {plural(found['workers'], 'worker')}.")
    if "examples" in found:
        train, validation, test = found["examples"].values()
        screen.print(f"Examples: {train:,} to train on, {validation:,} to validate on, {test:,} to test on.")
        memory, disk = found["memory_per_worker"] / 1e6, found["disk"] / 1e6
        screen.print(f"Memory: about {memory:,.0f} MB per worker. Disk: about {disk:,.1f} MB in all.")
        for label, words in found["sites"].items():
            screen.print(f"{label}: {words}")
    for line in found["runs_needed"]:
        screen.print(line)
