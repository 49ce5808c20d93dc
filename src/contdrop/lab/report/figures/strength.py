"""Error against the strength of the noise: Gaussian width, certificates, relative variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.comparisons import control_of, noise_mismatch
from ...analysis.metric_format import capital
from ...analysis.rendering import listed
from ...store.results import Results
from ...study import labels
from .. import style
from ..protocol import size_of
from ..templating import caption
from . import drawing
from .drawing import SMALL, TINY, Picture, bars, laid_out, mean, plots, short_names, styled

Values = Mapping[str, Sequence[float]]  # of the runs of each method
_ENOUGH = 3  # widths, strengths: two of them are no curve


def _values(results: Results) -> dict[str, list[float]]:
    return {method: list(runs.values()) for method, runs in results.errors().items()}


def sweep(results: Results) -> Picture | None:
    """Draw the error against the width of the Gaussian, if several widths were trained."""
    errors, measure = _values(results), results.measure
    widths = {method: width for method in errors if (width := labels.gaussian_width(method)) is not None}
    if len(set(widths.values())) < _ENOUGH:
        return None
    others = [method for method in errors if method not in widths and method != "gaussian"]
    means = {method: measure.value(mean(values)) for method, values in errors.items()}
    best = min(widths, key=lambda method: measure.sign * mean(errors[method]))
    both = len({"variance" in method for method in widths}) == 2
    levels = listed({method: means[method] for method in others})
    return Picture(
        "sweep",
        f"{capital(measure.name)} against the Gaussian's width",
        caption("sweep", results, size_of(results), both),
        f"Test {measure.name} over {len(widths)} widths, {measure.best} for {labels.name_in_text(best)} at "
        f"{means[best]}." + (f" For comparison: {levels}." if levels else ""),
        partial(_draw_sweep, errors, widths, others, both=both, title=f"test {measure.heading}"),
    )


@styled()
def _draw_sweep(
    errors: Values, widths: Mapping[str, float], others: Sequence[str], *, both: bool, title: str
) -> Figure:
    names, height = short_names(others), max(2.5, 0.165 * len(others))
    figure, ((axes,),) = plots(height + (1.45 if both else 1.2))
    means = [mean(errors[method]) for method in others]
    for method, level in zip(others, means):
        look, sd = style.style(method), drawing.deviation(errors[method])
        if method == "bernoulli":
            axes.axhspan(level - sd, level + sd, color=look.colour, alpha=0.13, linewidth=0)
        axes.axhline(level, **look.stroke, linewidth=1.6)
    _draw_widths(axes, errors, widths)
    axes.set(xlim=(0, max(widths.values()) * 1.06), xlabel=f"standard deviation {labels.SIGMA} before clipping")
    axes.set_ylabel(drawing.wrapped(title, height))
    axes.set_ylim(axes.get_ylim())
    _add_variance_axis(axes, max(widths.values()) ** 2)
    if both:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    for method, y in zip(others, drawing.name_heights(axes, means, height)):
        axes.text(1.02, y, names[method], color=style.style(method).colour, fontsize=SMALL, va="center_baseline",
                  transform=axes.transAxes)  # fmt: skip
    return laid_out(figure)


def _draw_widths(axes: Axes, errors: Values, widths: Mapping[str, float]) -> None:
    """Draw the two readings of the Gaussian's number, over the standard deviation."""
    look = style.style("gaussian")
    readings: tuple[tuple[str, style.Line, str, str, str], ...] = (
        ("sigma", "solid", "o", look.colour, labels.SIGMA),
        ("variance", (0, (4, 1.5)), "s", style.PAPER, f"{labels.SIGMA}²"),
    )
    for reading, line, marker, face, label in readings:
        chosen = sorted((method for method in widths if f"{reading}=" in method), key=widths.__getitem__)
        if chosen:
            bars(
                axes, [widths[method] for method in chosen], [errors[method] for method in chosen], color=look.colour,
                linestyle=line, marker=marker, markerfacecolor=face, markersize=5.5, linewidth=1.6, elinewidth=1,
                label=f"Gaussian, number read as {label}",
            )  # fmt: skip


def _add_variance_axis(axes: Axes, largest: float) -> None:
    # The axis begins a little left of 0, where both functions are to be monotonic too.
    above = axes.secondary_xaxis(
        "top", functions=(lambda sd: np.sign(sd) * np.square(sd), lambda v: np.sign(v) * np.sqrt(np.abs(v)))
    )
    above.set_xlabel("variance σ²")
    step = next((step for step in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if largest / step <= 6), largest / 4)
    shown = np.arange(0, largest * 1.06, step)
    above.set_xticks(shown, labels=[f"{tick:g}" for tick in shown.round(3)])
    above.spines["top"].set_visible(True)


_KINDS = (
    ("mean network", "o", "#0072b2"),
    ("mixture", "s", "#008a64"),
    ("random member", "^", "#d55e00"),
    ("PAC-Bayes network", "D", "#b8578f"),
)
_ROW = 0.62
_CURVES = 2.2  # height of the lower part


def certificates(found: Sequence[Any], delta: float) -> Picture:
    """Draw the bounds that ``contdrop certify`` found."""
    return Picture(
        "certificates",
        "Errors and certificates",
        caption("certificates", f"{1 - delta:.0%}"),
        f"Errors and bounds of {len(found)} methods.",
        partial(_draw_certificates, sorted(found, key=lambda each: each.strength or 0.0)),
    )


@styled()
def _draw_certificates(found: Sequence[Any]) -> Figure:
    known = [each for each in found if each.strength is not None]
    below = len({each.strength for each in known}) >= _ENOUGH
    heights = [_ROW * len(found), *([_CURVES] if below else [])]
    figure, plotted = plots(sum(heights) + 1.1, len(heights), height_ratios=heights)
    _draw_bounds(plotted[0, 0], found)
    if below:
        _draw_against_strength(plotted[1, 0], known)
    handles, names = figure.axes[0].get_legend_handles_labels()
    unique = dict(zip(names, handles))
    figure.legend(unique.values(), unique.keys(), loc="outside upper center", ncols=4, fontsize=SMALL, frameon=False,
                  handletextpad=0.2, columnspacing=0.9)  # fmt: skip
    return laid_out(figure)


def _draw_bounds(axes: Axes, found: Sequence[Any]) -> None:
    for row, each in enumerate(found):
        for number, (pair, (name, marker, colour)) in enumerate(zip(_pairs(each), _KINDS)):
            if pair:
                error, bound = (100 * value for value in pair)
                y = row + 0.18 * (number - 1.5)
                axes.plot([error, bound], [y, y], color=colour, linewidth=1.2)
                axes.plot([bound], [y], marker="|", color=colour, markersize=7)
                axes.plot([error], [y], marker, color=colour, label=name if row == 0 or number else None)
    names = short_names(each.method for each in found)
    strengths = ["" if each.strength is None else f"\nr = {each.strength:.3g}" for each in found]
    drawing.label_rows(axes, [names[each.method] + text for each, text in zip(found, strengths)], 0.5, 0.5)
    axes.set_xlabel("error and bound, %")
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)


def _draw_against_strength(axes: Axes, found: Sequence[Any]) -> None:
    """Draw bounds against r; methods of equal strength are joined at their mean."""
    for number, (_, marker, colour) in enumerate(_KINDS):
        bounds: dict[float, list[float]] = {}
        for each in found:
            if pair := _pairs(each)[number]:
                bounds.setdefault(each.strength, []).append(100 * pair[1])
        axes.plot(list(bounds), [sum(each) / len(each) for each in bounds.values()], color=colour, linewidth=1)
        for strength, values in bounds.items():
            axes.plot([strength] * len(values), values, marker, color=colour, markersize=4)
    axes.set(xlabel="noise strength r", ylabel="bound, %")
    axes.set_ylim(bottom=0)


def _pairs(each: Any) -> list[tuple[float, float] | None]:
    """Return error and bound of each kind."""
    held, made = each.holdout, each.pac_bayes
    return [
        (each.mean.error, each.mean.bound),
        (held.mixture.error, held.mixture.bound) if held else None,
        (held.member.error, held.member.bound) if held else None,
        (made.test_error, made.bound) if made else None,
    ]


def noise(results: Results) -> Picture | None:
    """Draw the error against the relative variance, if at least three methods have one."""
    errors, measure = _values(results), results.measure
    known = {job.method: job.results.get("relative_variance") for job in results.finished}
    strengths = {method: r for method in results.methods if (r := known.get(method)) is not None}
    if len(strengths) < _ENOUGH:
        return None
    controls = [(method, control_of(method)) for method in strengths if control_of(method) in strengths]
    refusals = [(method, control, noise_mismatch(results, method, control)) for method, control in controls if control]
    on_weights = any(labels.base(method) == "dropconnect" for method in strengths)
    without = [method for method in errors if method not in strengths]
    values = {method: errors[method] for method in strengths}
    points = {method: f"{strengths[method]:.3f}, {measure.value(mean(values[method]))}" for method in strengths}
    return Picture(
        "noise",
        f"{capital(measure.name)} and strength of noise",
        caption(
            "noise", results, size_of(results), refusals, _offsets(strengths, 1.0) != strengths, on_weights, without
        ),
        f"Relative variance and mean test {measure.name}: {listed(points, '; ')}.",
        partial(_draw_noise, values, strengths, f"test {measure.heading}"),
    )


def _offsets(strengths: Mapping[str, float], width: float) -> dict[str, float]:
    """Return offsets so that no point hides another."""
    near: list[list[str]] = []
    for method in sorted(strengths, key=strengths.__getitem__):
        if near and strengths[method] - strengths[near[-1][-1]] < 0.012 * width:
            near[-1].append(method)
        else:
            near.append([method])
    return {
        method: strengths[method] + 0.022 * width * (place - (len(group) - 1) / 2)
        for group in near
        for place, method in enumerate(group)
    }


@styled()
def _draw_noise(errors: Values, strengths: Mapping[str, float], title: str) -> Figure:
    families = _families(strengths)
    names, height = short_names(families, longest=18), 2.7
    figure, ((axes,),) = plots(height + 0.7)
    reach = max(max(strengths.values()), 0.1)
    offsets = _offsets(strengths, reach)
    for family, methods in families.items():
        look, line = style.style(family), len(methods) > 1
        bars(
            axes, [offsets[method] for method in methods], [errors[method] for method in methods], color=look.colour,
            marker=look.marker, linestyle=look.line if line else "none", linewidth=1.2, elinewidth=1.1,
            markersize=6.5, markeredgecolor=style.PAPER, markeredgewidth=0.6,
        )  # fmt: skip
        for method, up in ((methods[0], 4), (methods[-1], -9)) if line else ():
            parameter = labels.display_name(method).rpartition(" ")[2]
            axes.annotate(parameter, (offsets[method], mean(errors[method])), xytext=(6, up), fontsize=TINY,
                          textcoords="offset points", color=look.colour, annotation_clip=False)  # fmt: skip
    axes.set(xlim=(-0.06 * reach, 1.09 * reach), xlabel="relative variance of the noise")
    axes.set_ylabel(drawing.wrapped(title, height))
    best = {family: min(mean(errors[method]) for method in found) for family, found in families.items()}
    order = sorted(families, key=best.__getitem__, reverse=True)  # as the points are, the worst on top
    handles = [Line2D([], [], **style.style(family).dots, markersize=6, label=names[family]) for family in order]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handletextpad=0.2,
                labelspacing=0.6)  # fmt: skip
    return laid_out(figure)


def _families(strengths: Mapping[str, float]) -> dict[str, list[str]]:
    """Return methods by the name that they share, each family in the order of strength."""
    of_base: dict[str, list[str]] = {}
    for method in strengths:
        of_base.setdefault(labels.base(method), []).append(method)
    return {
        methods[0] if len(methods) == 1 else base: sorted(methods, key=strengths.__getitem__)
        for base, methods in of_base.items()
    }
