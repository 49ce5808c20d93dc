"""The commands on the paper's studies: ``list``, ``run`` and ``claims``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Any

import typer

import contdrop

from .._text import plural
from ..cli import options, session, terminal
from ..cli.options import option
from ..cli.progress_bars import Stages
from ..lab.study.source import StudySource
from ..lab.study.study import Study, describe
from ..theory import paper_equations
from . import studies
from .claims import verdicts
from .claims.claims import CLAIMS
from .claims.verdicts import FAILS, HOLDS, OPEN, OUT, ClaimVerdict, ContrastResult, EquationResult
from .theory_command import DRAWS, check_theory


def list_command(as_json: options.Json = False) -> None:
    """Show the experiments: what each compares, its size in the paper, and its affordable size (--preset quick).

    Examples:
      contdrop list
      contdrop list --json
    """
    experiments = studies.STUDIES.values()
    if as_json:
        terminal.print_json([_plain_study(experiment) for experiment in experiments])
        return
    table = terminal.table(None, ("experiment", "what it compares", "in the paper", "paper's size", "quick"), right=())
    for experiment in experiments:
        sizes = [experiment.sizes.get("paper"), experiment.sizes["quick"]]
        shown = [f"{plural(size.runs, 'run')} x {plural(size.epochs, 'epoch')}" if size else "" for size in sizes]
        table.add_row(experiment.name, experiment.description.title, experiment.description.paper, *shown)
    screen = terminal.screen()
    screen.print(table)
    for group, members in studies.GROUPS.items():
        screen.print(f"{group} stands for {', '.join(members)}.")
    screen.print("Run one with: contdrop run EXPERIMENT (quick, unless --preset paper is given)", style="dim")


def _plain_study(experiment: Study) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "title": experiment.description.title,
        "paper": experiment.description.paper,
        "data": describe(experiment.data),
        "methods": list(experiment.methods),
        "reference": experiment.reference,
        "sizes": {
            preset: {name: getattr(size, name) for name in ("runs", "epochs", "selection_runs")}
            for preset, size in experiment.sizes.items()
        },
        "notes": list(experiment.description.notes),
    }


@session.with_jobs(device="cpu")
def run(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name of contdrop list.")],
    preset: Annotated[str | None, option("NAME", "The size: quick (default) or paper; see contdrop list.")] = None,
    *,
    jobs: session.JobOptions,
) -> int:
    """Train every method of an experiment, run by run, and compare them.

    In run i all methods share the split, the initial weights and the order of the data; only the masks differ.
    Everything goes into one file, the store: what is finished is never done again, and an interrupted command resumes
    where it stopped when it is given once more, bit for bit. More runs may be added later with a larger --runs. Two
    commands may work on one store at the same time. For a model and data of your own, see contdrop compare --help.

    Sigma, alpha and beta are selected first, on validation data, by runs of their own. The size is an affordable one,
    and no replication, unless --preset paper asks for the paper's: a table then takes a month on two cores. What will
    take more than a day says so before it begins.

    Examples:
      contdrop run digits-mlp
      contdrop run mnist-mlp-relu --runs 3
      contdrop run mnist-mlp-relu --methods none,bernoulli,gaussian:sigma=0.3
      contdrop run mnist-mlp --preset paper --store table1.db --workers 4
    """
    session.use_data_directory(jobs.data_dir)
    plans = [jobs.plan(study, preset, StudySource("catalogue", study.name)) for study in studies.find(experiment)]
    return session.perform(jobs.runner(plans), jobs)


RESULTS = pathlib.Path("results")
_CLAIM_COLOURS = {HOLDS: "green", FAILS: "bold red", OPEN: "yellow", OUT: "dim"}


def claims(
    results: Annotated[pathlib.Path, option("DIR", "Directory with the archives (*.jsonl.gz).")] = RESULTS,
    draws: options.Draws = DRAWS,
    details: options.Details = False,
    as_json: options.Json = False,
    plot_file: options.Plot = None,
) -> None:
    """Print what became of every claim of the paper: holds, does not hold, open, or not testable here.

    Verdicts follow by the rules of results/PROTOCOL.md from the archives of the replication's runs and from the
    checks of contdrop theory. A claim whose planned runs are not all there is open, and says how many are missing.
    Takes about half a minute on two cores, most of it for the equations.

    Examples:
      contdrop claims --results results
      contdrop claims --results results --details
      contdrop claims --results results --plot claims.svg
      contdrop claims --results results --json > claims.json
    """
    check_theory(draws, plot_file)
    stage = Stages(2)
    with stage("archives"):
        runs = verdicts.gather(results)
    with stage("equations", len(paper_equations.EQUATIONS)) as after_each:
        found = paper_equations.check_equations(draws, 0, after_each)
    equations = {check.number: EquationResult(check.number, check.verdict, check.verdict_text) for check in found}
    ratios = [each.covariance / each.variance for each in paper_equations.trade_offs()]
    entries = verdicts.judge(CLAIMS, runs, equations, ratios)
    if as_json:
        content = {
            "contdrop": contdrop.__version__,
            "studies": {name: {"finished": len(each.jobs), "failed": each.failed} for name, each in runs.items()},
            "counts": verdicts.counts(entries),
            "claims": [_plain_claim(entry) for entry in entries],
        }
        terminal.print_json(content)
    else:
        _show_claims(entries, details)
    if plot_file:
        from . import paper_figures  # matplotlib takes a second

        options.save_plot(paper_figures.claims_picture(entries).draw(), plot_file)


def _show_claims(entries: list[ClaimVerdict], details: bool) -> None:
    screen = terminal.screen()
    table = terminal.table("Claims of the paper", ("", "claim", "where", "verdict", "evidence"), right=())
    for entry in entries:
        claim, evidence = entry.claim, "\n".join([entry.reason, *(each.text for each in entry.evidence if details)])
        table.add_row(claim.id, claim.text, claim.where, entry.verdict, evidence, style=_CLAIM_COLOURS[entry.verdict])
    screen.print(table)
    screen.print(verdicts.in_words(entries))


def _plain_claim(entry: ClaimVerdict) -> dict[str, Any]:
    claim = entry.claim
    return {
        **{name: getattr(claim, name) for name in ("id", "text", "where", "kind", "confirms", "refutes", "rule")},
        "verdict": entry.verdict,
        "reason": entry.reason,
        "equations": [dataclasses.asdict(each) for each in entry.equations],
        "evidence": [_plain_contrast(each) for each in entry.evidence],
    }


def _plain_contrast(each: ContrastResult) -> dict[str, Any]:
    found = each.comparison
    plain: dict[str, Any] = {
        **dataclasses.asdict(each.test),
        **{name: getattr(each, name) for name in ("verdict", "note", "runs", "planned", "family")},
        "runs_needed": each.needed,
    }
    if found is not None:
        names = ("difference", "sd", "interval", "simultaneous", "margin")
        plain |= {
            **{name: getattr(found, name) for name in names},
            "p": found.t_p_two_sided_holm,
            "wilcoxon_p": found.wilcoxon_p_two_sided_holm,
            "equivalence_p": found.equivalence_p_holm,
        }
    return plain
