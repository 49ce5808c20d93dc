"""Every run of every method, joined by run, and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import stats
from ...analysis.metric_format import HIGHER, Measure
from ...analysis.phrases import capital, tally
from ...analysis.verdict import Analysis
from ...store.results import Results
from ...study import labels
from .. import style
from ..protocol import ELSEWHERE, OWN_LOOP, THE_LAB, origin, size_of
from .drawing import PLAIN, SIZE, SMALL, TINY, WIDTH, Picture, blank, place, short_names, styled, text_width, wrapped

_SHORT = 12  # characters of a name above the differences
_NAMES = 1.75  # greatest width of names beside a plot, in inches
_BETWEEN = 0.2  # inches between the two plots
_ROW = 0.36  # height of a row, in inches
_JOINED = {
    THE_LAB: "what one run gave with all methods, which share its split, initial weights and data order",
    OWN_LOOP: "what one run gave with all methods, which had the same seed",
    ELSEWHERE: "numbers of the same run",
}


def pairs(analysis: Analysis) -> Picture | None:
    """Return every run of every method and the paired differences; None without a comparison."""
    results, comparisons = analysis.results, analysis.comparisons
    errors, reference = results.errors(), results.reference
    if len(errors) < 2 or not comparisons:
        return None
    means = {method: float(np.mean(list(runs.values()))) for method, runs in errors.items()}
    measure = results.measure
    order = sorted(errors, key=lambda method: measure.sign * means[method])
    has_interval = any(math.isfinite(each.interval[0]) for each in comparisons.values())
    called = labels.name_in_text(reference)
    return Picture(
        "pairs",
        "Run by run",
        f"Left: test {measure.name} in every run; a grey line joins {_JOINED[origin(results)]}; the upright stroke is "
        "the mean. "
        f"Right: {called} minus the method, run by run"
        + (
            "; the diamond is the mean, its bar the 95 % interval (small-sample widened BCa; Student's with fewer "
            "than 6 runs)"
            if has_interval
            else ""
        )
        + f". {capital(measure.sign_rule(called))}. {capital(size_of(results))}; methods by mean {measure.name}.",
        "Dots of every run. "
        + " ".join(
            f"{capital(called)} minus {labels.name_in_text(method)}: {measure.gap(each.difference)} on average, "
            f"{tally(each.wins, each.ties, each.losses)}."
            for method, each in comparisons.items()
        ),
        partial(_draw, results, comparisons, order),
    )


@dataclass(frozen=True)
class _Layout:
    """Shared width of the two plots: margins and inches of each."""

    names: list[str]
    titles: tuple[str, str]  # of the two axes, in as many lines as they need
    left: float
    width: float
    more: float  # height of the lines beyond the first


def _layout(results: Results, order: Sequence[str]) -> _Layout:
    measure = results.measure
    names = list(short_names(order, width=_NAMES).values())
    left = text_width(names, SMALL) + 0.2
    width = (WIDTH - left - 0.32) / 2
    difference = "difference, points" if measure.is_percentage else f"difference{measure.gap_unit}"
    lines = [wrapped(title, SIZE, width, most=3) for title in (f"test {measure.heading}", difference)]
    more = (max(map(len, lines)) - 1) * 1.2 * SIZE / 72
    return _Layout(names, ("\n".join(lines[0]), "\n".join(lines[1])), left, width, more)


def _draw(results: Results, comparisons: Mapping[str, stats.Comparison], order: Sequence[str]) -> Figure:
    errors, reference, measure = results.errors(), results.reference, results.measure
    with styled():
        layout = _layout(results, order)
        width, height = layout.width, max(_ROW * len(order), 1.3) + 0.1
        figure = blank(height + 1.0 + layout.more)
        runs = place(figure, layout.left, 0.3, width, height)
        differences = place(figure, layout.left + width + _BETWEEN, 0.3, width, height)
        _draw_runs(runs, errors, order)
        _draw_differences(differences, errors, order, reference, comparisons)
        _name_sides(differences, reference, measure)
        for axes, names, title in zip((runs, differences), (layout.names, [""] * len(order)), layout.titles):
            axes.set_xlabel(title)
            axes.set_ylim(len(order) - 0.5, -0.6)
            axes.set_yticks(range(len(order)), labels=names)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            _number_ticks(axes, width)
        return figure


def _name_sides(axes: Axes, reference: str, measure: Measure) -> None:
    """Label the better side above the differences."""
    left_word, right_word = ("worse", "better") if measure.better == HIGHER else ("better", "worse")
    short = labels.display_name(reference, longest=14)
    short = short if len(short) <= _SHORT else "reference"  # or the two ends meet
    for x, text, side in ((0, f"← {short} {left_word}", "left"), (1, f"{right_word} →", "right")):
        axes.annotate(text, (x, 1), xycoords="axes fraction", xytext=(0, 2.5), textcoords="offset points",
                      fontsize=TINY, va="bottom", ha=side)  # fmt: skip


def _number_ticks(axes: Axes, width: float) -> None:
    """Set as many ticks as have room for all digits of their numbers; an offset would cover the axis label."""
    axes.ticklabel_format(axis="x", style="sci", scilimits=PLAIN, useOffset=False)
    axes.locator_params(axis="x", nbins=4)
    low, high = axes.get_xlim()
    per_inch = (high - low) / width
    ticks = [float(tick) for tick in axes.get_xticks() if low <= tick <= high]
    widest = text_width(axes.xaxis.get_major_formatter().format_ticks(ticks), SMALL)
    edge = max(0.0, widest - _BETWEEN) / 2 * per_inch  # nearer to it, they would meet those of the other plot
    inside = [tick for tick in ticks if low + edge <= tick <= high - edge] or ticks
    step = min(np.diff(inside), default=math.inf)
    shown = inside[:: max(1, math.ceil((widest + 0.1) * per_inch / step))]
    if shown != ticks:
        axes.set_xticks(shown)


def _draw_runs(axes: Axes, errors: Mapping[str, Mapping[int, float]], order: Sequence[str]) -> None:
    every = sorted({run for found in errors.values() for run in found})
    for run in every:
        path = [errors[method].get(run, math.nan) for method in order]
        axes.plot(path, range(len(order)), color=style.FAINT, alpha=0.55, linewidth=0.6, zorder=1)
    for row, method in enumerate(order):
        look = style.style(method)
        values = list(errors[method].values())
        axes.plot(values, [row] * len(values), linestyle="none", marker=look.marker, markersize=3.6, alpha=0.75,
                  color=look.colour, markeredgewidth=0)  # fmt: skip
        mean = float(np.mean(values))
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=look.colour, linewidth=2.4)


def _draw_differences(
    axes: Axes,
    errors: Mapping[str, Mapping[int, float]],
    order: Sequence[str],
    reference: str,
    comparisons: Mapping[str, stats.Comparison],
) -> None:
    axes.axvline(0, color=style.INK, linewidth=1)
    for row, method in enumerate(order):
        if method not in comparisons:
            continue
        look, comparison = style.style(method), comparisons[method]
        shared = errors[reference].keys() & errors[method].keys()
        values = [errors[reference][run] - errors[method][run] for run in sorted(shared)]
        axes.plot(values, [row + 0.17] * len(values), linestyle="none", marker=look.marker, markersize=3.2, alpha=0.6,
                  color=look.colour, markeredgewidth=0)  # fmt: skip
        if comparison.runs == 1:
            continue
        axes.plot(comparison.interval, [row - 0.15] * 2, color=look.colour, linewidth=2.6, solid_capstyle="butt")
        axes.plot([comparison.difference], [row - 0.15], marker="d", markersize=6, color=look.colour,
                  markeredgecolor=style.PAPER, markeredgewidth=0.7)  # fmt: skip
    called = labels.display_name(reference, longest=14)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.4 * high), max(high, -0.4 * low))  # 0 well inside: there are two sides
    if reference in order:
        axes.text(0, order.index(reference), f" {called} ", fontsize=TINY, color=style.FAINT, ha="center",
                  va="center", bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
