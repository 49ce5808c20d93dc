"""``contdrop theory``: every equation of the paper against Monte Carlo, with a verdict."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import typer

import contdrop

from ..errors import UserError
from ..theory import monte_carlo, paper_equations, static
from . import plot_command, terminal, theory_figure
from .progress_bar import Stages

DRAWS = 200_000
LEAST_DRAWS = 1000

HELP = """Go through the equations of the paper, and say which hold.

For each equation of section III the formula is computed for a unit of 50 inputs (or a layer of 4 such units), and so is
the mean over many draws of the masks. The table shows how far they are apart, in standard errors of that mean and in
proportion, and the verdict: exact, an approximation and how good it is, or does not hold. What holds instead is in
docs/theory.md. Takes about half a minute on two cores.

\b
Examples:
  contdrop theory
  contdrop theory --details
  contdrop theory --draws 2000000 --plot theory.png
  contdrop theory --json > theory.json
"""


def theory(
    draws: Annotated[
        int, typer.Option(metavar="MASKS", help="Masks per expectation; more show smaller errors.")
    ] = DRAWS,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Of the unit, the layer and the masks.")] = 0,
    details: Annotated[bool, typer.Option("--details", help="Show every law and case of every equation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table: every number.")] = False,
    plot_file: Annotated[
        pathlib.Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the findings into a .png or .svg file."),
    ] = None,
) -> None:
    """The command; ``HELP`` says what it does."""
    if draws < LEAST_DRAWS:
        raise UserError(f"--draws: expected a whole number of at least {LEAST_DRAWS}; got {draws}")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed: expected a whole number from 0 to 2^63 - 1; got {seed}")
    if plot_file:
        plot_command.check(plot_file)
    stage = Stages(3 if plot_file is None else 4)
    with stage("equations", len(paper_equations.EQUATIONS)) as after_each:
        found = paper_equations.check_equations(draws, seed, after_each)
    with stage("expected gradient", 1) as after_each:
        shares = paper_equations.unexplained_shares(draws, seed)
        after_each()
    with stage("trade-off and normality", 2) as after_each:
        trade_offs = paper_equations.trade_offs(seed)
        after_each()
        normality = paper_equations.normality(seed=seed)
        after_each()
    if as_json:
        content = {
            "contdrop": contdrop.__version__,
            "draws": draws,
            "seed": seed,
            "checks": [check.as_dict() for check in found],
            "unexplained_shares": shares,
            "trade_off": [{**dataclasses.asdict(row), "law": str(row.law)} for row in trade_offs],
            "normality": [{**dataclasses.asdict(row), "law": str(row.law)} for row in normality],
        }
        terminal.print_json(content)
    else:
        _show(found, shares, details, draws)
        if details:
            _show_trade_off(trade_offs)
            _show_normality(normality)
    if plot_file:
        with stage("plot", 1) as after_each:
            try:
                theory_figure.draw(shares, plot_file)
            except OSError as error:
                raise UserError(f"--plot: cannot write {plot_file}: {error.strerror}") from error
            after_each()


_COLOURS = {"definition": "dim", "exact": "green", "approximation": "yellow", "does not hold": "bold red"}


def _show(found: list[monte_carlo.Check], shares: dict[str, float], details: bool, draws: int) -> None:
    screen = terminal.screen()
    headings = ("", "what it says", "off, in\nstandard errors", "relative\nerror", "verdict")
    table = terminal.table("Equations of section III", headings, right=(2, 3))
    for check in found:
        table.add_row(
            check.number,
            f"{check.what}\n{check.statement}" if details else check.what,
            "" if check.standard_errors is None else f"{check.standard_errors:.1f}",
            _percent(check.relative_error) if check.comparisons else "",
            check.verdict_text,
            style=_COLOURS[check.verdict],
        )
        for comparison in check.comparisons if details else ():
            off = f"{comparison.standard_errors:.1f}" if comparison.drawn else ""
            table.add_row("", f"  {comparison.case}", off, _percent(comparison.relative_error), "", style="dim")
    screen.print(table)
    for check in found:
        if check.note and (details or check.verdict == "does not hold"):
            screen.print(f"({check.number}) {check.note}")
    screen.print()
    screen.print("Share of what the noise adds to a sigmoid unit's gradient that is left unexplained by:")
    names = {
        "paper": "the paper's term",
        "bernoulli": "the Bernoulli-style second-order term",
        "stein": "Stein's lemma",
        "exact": "the exact expectation (what is left is Monte Carlo noise)",
    }
    for form, name in names.items():
        screen.print(f"  {shares[form]:6.1%}  {name}")
    screen.print()
    screen.print(
        f"{draws:,} draws per expectation. A relative error is against the exact value where the theory knows it, and "
        "else against the draws.",
        style="dim",
    )


def _show_trade_off(rows: list[static.TradeOff]) -> None:
    headings = ("", "mean variance\n(diversity)", "mean |covariance|\n(dependence)", "mean\n|correlation|")
    table = terminal.table("Outputs of a linear layer: one knob, Var(m), turns both", headings)
    for row in rows:
        table.add_row(str(row.law), f"{row.variance:.4f}", f"{row.covariance:.5f}", f"{row.correlation:.4f}")
    terminal.screen().print(table)


def _show_normality(rows: list[paper_equations.Normality]) -> None:
    sizes = sorted({row.inputs for row in rows})
    headings = ("inputs", *(f"{n:,}" for n in sizes))
    table = terminal.table("Distance of S from a normal variable, and its Berry-Esseen bound", headings)
    for law in dict.fromkeys(row.law for row in rows):
        mine = {row.inputs: row for row in rows if row.law == law}
        table.add_row(str(law), *(f"{mine[n].distance:.2g} ({mine[n].bound:.2g})" for n in sizes))
    terminal.screen().print(table)


def _percent(error: float) -> str:
    return "0" if error < 1e-9 else f"{100 * error:.2g} %"
