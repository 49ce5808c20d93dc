"""The commands ``theory`` and ``certify``, and plots that commands write."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer

import contdrop

from .._files import replacing
from ..choices import MIXTURE_MASKS
from ..errors import UserError
from ..lab.api import Result
from ..lab.extensions import find_studies
from ..lab.runner.certify import PARTS, Certified, certify
from ..lab.store.writer import Store
from ..lab.study import source
from ..lab.study.labels import display_name
from ..lab.study.study import Study
from ..laws import Bernoulli, Gaussian, Law, Uniform
from ..theory import monte_carlo, paper_equations, static
from . import options, terminal
from .options import option
from .progress_bars import Stages

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
        check_plot(plot_file)


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
    save_plot(figure, path)


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


PLOT_FORMATS = (".png", ".svg")


def check_plot(path: pathlib.Path) -> None:
    """Check that a plot can be written, before time is spent on its content."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise UserError(f"--plot: expected a file name that ends in {' or '.join(PLOT_FORMATS)}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise UserError(f"--plot: there is no directory {str(path.parent)!r}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError('--plot: needs matplotlib, which is not installed; run: pip install "contdrop[lab]"')


def save_plot(figure: Any, path: pathlib.Path) -> None:
    """Write a figure; the same numbers give the same file."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if form == "svg" else None
    try:
        with replacing(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "contdrop"}):
            figure.savefig(temporary, format=form, dpi=160, metadata=metadata)
    except OSError as error:
        raise UserError(f"--plot: cannot write {path}: {error.strerror}") from error


def certify_command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study of contdrop list, or a study file.")],
    store: options.Store = options.STORE,
    run: Annotated[int, option("RUN", "Which run, from 0.")] = 0,
    part: Annotated[str, option("test|validation", "Examples to bound from.")] = "test",
    delta: Annotated[float, option("PROBABILITY", "How often any of the bounds may fail.")] = 0.05,
    members: Annotated[int, option("MASKS", "Masks per mixture.")] = 50,
    masks: Annotated[str, option("fresh|fixed", "Of a mixture: fresh for each example, or fixed for all.")] = "fresh",
    pac_bayes: Annotated[int | None, option("EPOCHS", "Train PAC-Bayes posteriors, that many epochs.")] = None,
    as_json: options.Json = False,
    plot_file: options.Plot = None,
) -> None:
    """Bound the error of trained networks, with a stated confidence.

    For every method of one run: the network without noise, a random member (one mask), and the mixture of many masks.
    The bounds are Clopper and Pearson's, exact for examples that were used neither to train nor to choose, and hold
    all together. The study has to keep its weights (weights="last").

    --pac-bayes EPOCHS also trains a network of Gaussian weights around each one on the study's validation examples,
    by gradients of its own bound; masks cost nothing in it. It certifies a noisy network, and does not explain what
    dropout gains. docs/certificates.md has the derivations.

    Examples:
      contdrop run mnist-certificate --store certificate.db
      contdrop certify mnist-certificate --store certificate.db --pac-bayes 10
      contdrop certify my_study.py --store my-study.db --delta 0.01 --json
    """
    if part not in PARTS:
        raise UserError(f"--part: expected {' or '.join(PARTS[:2])}; got {part!r}")
    if not 0 < delta <= 0.5:
        raise UserError(f"--delta: expected a number above 0 and at most 0.5; got {delta:g}")
    if members < 2 or (pac_bayes is not None and pac_bayes < 0):
        raise UserError("--members, --pac-bayes: expected at least 2 masks and at least 0 epochs")
    if masks not in MIXTURE_MASKS:
        raise UserError(f"--masks: expected {' or '.join(MIXTURE_MASKS)}; got {masks!r}")
    if plot_file:
        check_plot(plot_file)
    which = _certified_study(study)
    result = _stored_result(store, which)
    with Stages(1)("networks", len([job for job in result.results.finished if job.run == run])) as after_each:
        found = certify(
            result,
            which,
            run=run,
            part=part,
            delta=delta,
            members=members,
            masks=masks,  # type: ignore[arg-type]  # checked above
            epochs=pac_bayes,
            after_each=after_each,
        )
    if as_json:
        terminal.print_json(
            {"contdrop": contdrop.__version__, "delta": delta, "methods": [_plain_certificate(each) for each in found]}
        )
    else:
        _show_certificates(found, delta)
    if plot_file:
        from ..lab.report import figures  # matplotlib takes a second

        save_plot(figures.certificates(found, delta).draw(), plot_file)


def _certified_study(name: str) -> Study:
    if name.endswith(".py"):
        return source.load_file(pathlib.Path(name))
    found: list[Study] = find_studies(name)
    if len(found) != 1:
        raise UserError(f"expected one study; {name} is {len(found)}: {', '.join(each.name for each in found)}")
    return found[0]


def _stored_result(store: pathlib.Path, study: Study) -> Result:
    with Store(store) as opened:
        keys = [record.key for record in opened.protocols() if record.experiment == study.name]
    if len(keys) != 1:
        has = "does not have it" if not keys else f"has it {len(keys)} times, with different settings"
        raise UserError(
            f"--store: expected one {study.name} in {store}, which {has}; contdrop run {study.name} makes one"
        )
    return Result(store, keys[0], study)


def _show_certificates(certified: list[Certified], delta: float) -> None:
    headings = ["method", "strength r", "mean network", "member", "mixture", "diversity"]
    pac_bayes = any(each.pac_bayes for each in certified)
    headings += ["PAC-Bayes: test error", "bound", "KL"] if pac_bayes else []
    title = f"Error, % <= bound; all hold together with a confidence of {1 - delta:.0%}"
    table = terminal.table(title, headings)
    for each in certified:
        strength = "" if each.strength is None else f"{each.strength:.3g}"
        row = [display_name(each.method, longest=40), strength, _bound_cell(each.mean), "", "", ""]
        if found := each.holdout:
            row[3:] = [_bound_cell(found.member), _bound_cell(found.mixture), f"{found.brier.diversity:.4f}"]
        if made := each.pac_bayes:
            row += [f"{100 * made.test_error:.2f}", f"{100 * made.bound:.2f}", f"{made.kl:.0f}"]
        table.add_row(*row)
    terminal.screen().print(table)


def _bound_cell(bound: Any) -> str:
    return f"{100 * bound.error:.2f} <= {100 * bound.bound:.2f}"


def _plain_certificate(each: Certified) -> dict[str, Any]:
    plain = {"method": each.method, "strength": each.strength, "mean": dataclasses.asdict(each.mean)}
    if each.holdout:
        plain |= {name: dataclasses.asdict(getattr(each.holdout, name)) for name in ("member", "mixture")}
        plain["brier"] = {name: value.item() for name, value in each.holdout.brier._asdict().items()}
    if each.pac_bayes:
        plain["pac_bayes"] = dataclasses.asdict(each.pac_bayes)
    return plain
