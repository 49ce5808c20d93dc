"""``contdrop claims``: the verdict on every claim of the paper, computed from the archives and the theory checks."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Any

import typer

import contdrop

from ..errors import UserError
from ..replication.claims import evidence
from ..replication.claims.claims import CLAIMS
from ..replication.claims.verdicts import FAILS, HOLDS, OPEN, OUT, Entry, Equation, Evidence, counts, in_words, ledger
from ..theory import paper_equations
from . import options, plot_command, terminal
from .progress_bar import Stages
from .theory_command import DRAWS, LEAST_DRAWS

HELP = """Print what became of every claim of the paper: holds, does not hold, open, or not testable here.

Verdicts follow by the rules of results/PROTOCOL.md from the archives of the replication's runs and from the checks of
contdrop theory. A claim whose planned runs are not all there is open, and says how many are missing. Takes about half a
minute on two cores, most of it for the equations.

\b
Examples:
  contdrop claims --results results
  contdrop claims --results results --details
  contdrop claims --results results --plot claims.svg
  contdrop claims --results results --json > claims.json
"""

_COLOURS = {HOLDS: "green", FAILS: "bold red", OPEN: "yellow", OUT: "dim"}


def claims(
    results: Annotated[
        pathlib.Path, typer.Option("--results", metavar="DIR", help="Directory with the archives (*.jsonl.gz).")
    ] = pathlib.Path("results"),
    draws: Annotated[int, typer.Option(metavar="MASKS", help="Masks per expectation, for the equations.")] = DRAWS,
    details: Annotated[bool, typer.Option("--details", help="Show every comparison of every claim.")] = False,
    as_json: options.Json = False,
    plot_file: Annotated[
        pathlib.Path | None, typer.Option("--plot", metavar="FILE", help="Draw all claims into a .png or .svg file.")
    ] = None,
) -> None:
    """The command; ``HELP`` says what it does."""
    if draws < LEAST_DRAWS:
        raise UserError(f"--draws: expected a whole number of at least {LEAST_DRAWS}; got {draws}")
    if plot_file:
        plot_command.check(plot_file)
    stage = Stages(2)
    with stage("archives", 1) as after_each:
        runs = evidence.gather(results)
        after_each()
    with stage("equations", len(paper_equations.EQUATIONS)) as after_each:
        found = paper_equations.check_equations(draws, 0, after_each)
    equations = {check.number: Equation(check.number, check.verdict, check.verdict_text) for check in found}
    ratios = [each.covariance / each.variance for each in paper_equations.trade_offs()]
    entries = ledger(CLAIMS, runs, equations, ratios)
    if as_json:
        content = {
            "contdrop": contdrop.__version__,
            "studies": {name: {"finished": len(each.jobs), "failed": each.failed} for name, each in runs.items()},
            "counts": counts(entries),
            "claims": [_plain(entry) for entry in entries],
        }
        terminal.print_json(content)
    else:
        _show(entries, details)
    if plot_file:
        from ..replication.claims import claims_figure  # matplotlib takes a second

        picture = claims_figure.claims(entries)
        if picture:
            plot_command.save(picture.draw(), plot_file)


def _show(entries: list[Entry], details: bool) -> None:
    screen = terminal.screen()
    table = terminal.table("Claims of the paper", ("", "claim", "where", "verdict", "evidence"), right=())
    for entry in entries:
        lines = [entry.reason, *(each.text for each in entry.evidence if details)]
        claim = entry.claim
        table.add_row(claim.id, claim.text, claim.where, entry.verdict, "\n".join(lines), style=_COLOURS[entry.verdict])
    screen.print(table)
    screen.print(in_words(entries))


def _plain(entry: Entry) -> dict[str, Any]:
    claim = entry.claim
    return {
        **{name: getattr(claim, name) for name in ("id", "text", "where", "kind", "confirms", "refutes", "rule")},
        "verdict": entry.verdict,
        "reason": entry.reason,
        "equations": [dataclasses.asdict(each) for each in entry.equations],
        "evidence": [_comparison(each) for each in entry.evidence],
    }


def _comparison(each: Evidence) -> dict[str, Any]:
    test, found = each.test, each.comparison
    plain: dict[str, Any] = {
        **dataclasses.asdict(test),
        "verdict": each.verdict,
        "note": each.note,
        "runs": each.runs,
        "planned": each.planned,
        "family": each.family,
        "runs_needed": each.needed,
    }
    if found is not None:
        plain |= {
            "difference": found.difference,
            "sd": found.sd,
            "interval": found.interval,
            "simultaneous": found.simultaneous,
            "p": found.t_p_two_sided_holm,
            "wilcoxon_p": found.wilcoxon_p_two_sided_holm,
            "margin": found.margin,
            "equivalence_p": found.equivalence_p_holm,
        }
    return plain
