"""``contdrop theory``: the equations of the paper against Monte Carlo, and a plot of what they say."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import torch

import contdrop

from ..cli import options, terminal
from ..cli.options import option
from ..cli.progress_bars import Stages
from ..errors import UserError
from ..laws import Bernoulli, Gaussian, Law, Uniform
from ..theory import monte_carlo, paper_equations, static

DRAWS = 200_000
LEAST_DRAWS = 1000


def theory(
    draws: options.Draws = DRAWS,
    seed: Annotated[int, option("SEED", "Of the unit, the layer and the masks.")] = 0,
    details: options.Details = False,
    as_json: options.Json = False,
    plot_file: options.Plot = None,
) -> None:
    """Check every equation of the paper against Monte Carlo, and print which ones hold.

    For each equation of section III the formula is computed for a unit of 50 inputs (or a layer of 4 such units), and
    so is the mean over many draws of the masks. The table shows how far they are apart, in standard errors of that
    mean and in proportion, and the verdict: exact, an approximation and how good it is, or does not hold. What holds
    instead is in docs/theory.md. Takes about half a minute on two cores.

    Examples:
      contdrop theory
      contdrop theory --details
      contdrop theory --draws 2000000 --plot theory.png
      contdrop theory --json > theory.json
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed: expected a whole number from 0 to 2^63 - 1; got {seed}")
    check_theory(draws, plot_file)
    stage = Stages(3 if plot_file is None else 4)
    with stage("equations", len(paper_equations.EQUATIONS)) as after_each:
        found = paper_equations.check_equations(draws, seed, after_each)
    with stage("expected gradient"):
        shares = paper_equations.unexplained_shares(draws, seed)
    with stage("trade-off and normality", 2) as after_each:
        trade_offs = paper_equations.trade_offs(seed)
        after_each()
        normality = paper_equations.normality(seed=seed)
        after_each()
    if as_json:
        rows: dict[str, Sequence[Any]] = {"trade_off": trade_offs, "normality": normality}
        content = {
            "contdrop": contdrop.__version__,
            "draws": draws,
            "seed": seed,
            "checks": [check.as_dict() for check in found],
            "unexplained_shares": shares,
            **{name: [{**vars(row), "law": str(row.law)} for row in each] for name, each in rows.items()},
        }
        terminal.print_json(content)
    else:
        _show_theory(found, shares, details, draws)
        if details:
            _show_laws(trade_offs, normality)
    if plot_file:
        with stage("plot"):
            draw_theory(shares, plot_file)


def check_theory(draws: int, plot_file: pathlib.Path | None) -> None:
    """Check the options of a command that checks equations, before time is spent on them."""
    if draws < LEAST_DRAWS:
        raise UserError(f"--draws: expected a whole number of at least {LEAST_DRAWS}; got {draws}")
    if plot_file:
        options.check_plot(plot_file)


# For each form of the gradient's term: its name in the text and in the plot.
_SHARES = {
    "paper": ("the paper's term",) * 2,
    "bernoulli": ("the Bernoulli-style second-order term", "second order"),
    "stein": ("Stein's lemma",) * 2,
    "exact": ("the exact expectation (what is left is Monte Carlo noise)", "exact"),
}
_COLOURS = {"definition": "dim", "exact": "green", "approximation": "yellow", "does not hold": "bold red"}


def _show_theory(found: list[monte_carlo.Check], shares: dict[str, float], details: bool, draws: int) -> None:
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
    for form, (name, _) in _SHARES.items():
        screen.print(f"  {shares[form]:6.1%}  {name}")
    screen.print()
    screen.print(
        f"{draws:,} draws per expectation. A relative error is against the exact value where the theory knows it, and "
        "else against the draws.",
        style="dim",
    )


def _show_laws(trade_offs: list[static.TradeOff], normality: list[paper_equations.Normality]) -> None:
    headings = ("", "mean variance\n(diversity)", "mean |covariance|\n(dependence)", "mean\n|correlation|")
    table = terminal.table("Outputs of a linear layer: one knob, Var(m), turns both", headings)
    for row in trade_offs:
        table.add_row(str(row.law), f"{row.variance:.4f}", f"{row.covariance:.5f}", f"{row.correlation:.4f}")
    terminal.screen().print(table)
    cells = {(each.law, each.inputs): f"{each.distance:.2g} ({each.bound:.2g})" for each in normality}
    sizes = sorted({inputs for _, inputs in cells})
    title = "Distance of S from a normal variable, and its Berry-Esseen bound"
    table = terminal.table(title, ("inputs", *(f"{n:,}" for n in sizes)))
    for law in dict.fromkeys(law for law, _ in cells):
        table.add_row(str(law), *(cells[law, n] for n in sizes))
    terminal.screen().print(table)


def _percent(error: float) -> str:
    return "0" if error < 1e-9 else f"{100 * error:.2g} %"


_SIZES = (10, 30, 100, 300, 800)

# Of Okabe and Ito, the same for a law as in the plot of speeds.
_LAW_COLOURS: dict[Law, str] = {
    Bernoulli(keep=0.5): "#D55E00",
    Uniform(): "#009E73",
    Gaussian(sigma=0.3): "#0072B2",
}
_GREY = "#777777"


def draw_theory(shares: dict[str, float], path: pathlib.Path) -> None:
    """Draw the trade-off, the normal approximation, the probit's error and the terms of the gradient."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    trade_off, normality, probit, gradient = figure.subplots(2, 2).flat
    _draw_trade_off(trade_off)
    _draw_normality(normality)
    _draw_probit(probit, figure)
    _draw_gradient(gradient, shares)
    options.save_plot(figure, path)


def _draw_trade_off(axis: Any) -> None:
    mc = monte_carlo.MonteCarlo()
    sigmas = torch.linspace(0.05, 1.0, 39).tolist()
    curve = static.trade_off([Gaussian(sigma=s) for s in sigmas], mc.layer, mc.x)
    axis.plot([point.variance for point in curve], [point.covariance for point in curve], color=_GREY, zorder=1)
    for law, colour in _LAW_COLOURS.items():
        (point,) = static.trade_off([law], mc.layer, mc.x)
        axis.scatter([point.variance], [point.covariance], color=colour, zorder=2, label=str(law))
    axis.set(
        title="One knob: every law is on one line",
        xlabel="mean variance of the outputs (diversity)",
        ylabel="mean |covariance| between outputs",
    )
    axis.legend(title="grey: clipped Gaussian, sigma 0.05 to 1", fontsize="small", title_fontsize="small")


def _draw_normality(axis: Any) -> None:
    found = paper_equations.normality(_SIZES)
    for law, colour in _LAW_COLOURS.items():
        rows = [row for row in found if row.law == law]
        axis.loglog(_SIZES, [row.distance for row in rows], "o-", color=colour, label=str(law))
        axis.loglog(_SIZES, [row.bound for row in rows], ":", color=colour)
    axis.set(
        title="How normal is S?",
        xlabel="inputs of the unit",
        ylabel="Kolmogorov distance to a normal variable",
    )
    axis.legend(title="dotted: Berry-Esseen bound", fontsize="small", title_fontsize="small")


def _draw_probit(axis: Any, figure: Any) -> None:
    mean = torch.linspace(-8, 8, 161, dtype=torch.float64)
    deviation = torch.linspace(0, 8, 81, dtype=torch.float64)
    error = static.sigmoid_error(mean, deviation.square().unsqueeze(-1))
    limit = error.abs().max().item()
    options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "shading": "nearest", "rasterized": True}
    mesh = axis.pcolormesh(mean.tolist(), deviation.tolist(), error.tolist(), **options)
    figure.colorbar(mesh, ax=axis)
    axis.set(
        title=f"Error of the probit approximation, here at most {limit:.3f}",
        xlabel="mean of S",
        ylabel="standard deviation of S",
    )


def _draw_gradient(axis: Any, shares: dict[str, float]) -> None:
    values = [100 * shares[form] for form in _SHARES]
    bars = axis.barh([name for _, name in _SHARES.values()], values, color=["#D55E00", "#E69F00", "#56B4E9", "#0072B2"])
    axis.bar_label(bars, fmt="%.1f %%", padding=3)
    axis.invert_yaxis()
    axis.set(
        title="Effect of the noise on a sigmoid unit's gradient",
        xlabel="share left unexplained, per cent",
        xlim=(0, 1.15 * max(100.0, *values)),
    )
