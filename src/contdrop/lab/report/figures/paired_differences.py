"""Every run of every method, joined by run, and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.metric_format import HIGHER, Measure, capital, tally
from ...analysis.verdict import Analysis
from ...stats import Comparison
from ...study import labels
from .. import style
from ..protocol import ELSEWHERE, OWN_LOOP, THE_LAB, origin, size_of
from ..templating import caption
from . import drawing
from .drawing import TINY, Picture, laid_out, plots, short_names, styled

_SHORT = 12  # characters of a name above the differences
_ROW = 0.36  # height of a row, in inches
_TITLE = 1.85  # width of the titles of the axes, in inches
_DIGITS = 6  # of numbers of which four have room beside each other
_JOINED = {
    THE_LAB: "what one run gave with all methods, which share its split, initial weights and data order",
    OWN_LOOP: "what one run gave with all methods, which had the same seed",
    ELSEWHERE: "numbers of the same run",
}


def pairs(analysis: Analysis) -> Picture | None:
    """Return every run of every method and the paired differences; None without a comparison."""
    results, comparisons, measure = analysis.results, analysis.comparisons, analysis.results.measure
    errors = results.errors()
    if len(errors) < 2 or not comparisons:
        return None
    order = sorted(errors, key=lambda method: measure.sign * drawing.mean(errors[method].values()))
    called = labels.name_in_text(results.reference)
    has_interval = any(math.isfinite(each.interval[0]) for each in comparisons.values())
    differences = [
        f"{capital(called)} minus {labels.name_in_text(method)}: {measure.gap(each.difference)} on average, "
        f"{tally(each.wins, each.ties, each.losses)}."
        for method, each in comparisons.items()
    ]
    return Picture(
        "pairs",
        "Run by run",
        caption("pairs", results, _JOINED[origin(results)], has_interval, size_of(results)),
        f"Dots of every run. {' '.join(differences)}",
        partial(_draw, {method: errors[method] for method in order}, comparisons, results.reference, measure),
    )


@styled()
def _draw(
    errors: Mapping[str, Mapping[int, float]], comparisons: Mapping[str, Comparison], reference: str, measure: Measure
) -> Figure:
    difference = "difference, points" if measure.is_percentage else f"difference{measure.gap_unit}"
    titles = [drawing.wrapped(title, _TITLE, most=3) for title in (f"test {measure.heading}", difference)]
    lines = max(title.count("\n") for title in titles)
    figure, ((runs, differences),) = plots(max(_ROW * len(errors), 1.3) + 0.8 + 0.16 * lines, 1, 2, sharey=True)
    _draw_runs(runs, errors)
    _draw_differences(differences, errors, reference, comparisons)
    _name_sides(differences, reference, measure)
    drawing.label_rows(runs, list(short_names(errors).values()), 0.6, 0.5)
    for axes, title in zip((runs, differences), titles):
        axes.set_xlabel(title)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=4)
        shown = axes.xaxis.get_major_formatter().format_ticks(axes.get_xticks())
        if max(map(len, shown)) > _DIGITS:
            axes.locator_params(axis="x", nbins=2)
    return laid_out(figure)


def _name_sides(axes: Axes, reference: str, measure: Measure) -> None:
    """Label the better side above the differences."""
    left_word, right_word = ("worse", "better") if measure.better == HIGHER else ("better", "worse")
    short = labels.display_name(reference, longest=14)
    short = short if len(short) <= _SHORT else "reference"  # or the two ends meet
    for x, text, side in ((0, f"← {short} {left_word}", "left"), (1, f"{right_word} →", "right")):
        axes.annotate(text, (x, 1), xycoords="axes fraction", xytext=(0, 2.5), textcoords="offset points",
                      fontsize=TINY, va="bottom", ha=side)  # fmt: skip


def _draw_runs(axes: Axes, errors: Mapping[str, Mapping[int, float]]) -> None:
    for run in sorted({run for found in errors.values() for run in found}):
        path = [found.get(run, math.nan) for found in errors.values()]
        axes.plot(path, range(len(path)), color=style.FAINT, alpha=0.55, linewidth=0.6, zorder=1)
    for row, (method, found) in enumerate(errors.items()):
        _draw_dots(axes, method, list(found.values()), row, markersize=3.6, alpha=0.75)
        mean = drawing.mean(found.values())
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=style.style(method).colour, linewidth=2.4)


def _draw_dots(
    axes: Axes, method: str, values: Sequence[float], row: float, *, markersize: float, alpha: float
) -> None:
    look = style.style(method).dots
    axes.plot(values, [row] * len(values), **look, markersize=markersize, alpha=alpha, markeredgewidth=0)


def _draw_differences(
    axes: Axes,
    errors: Mapping[str, Mapping[int, float]],
    reference: str,
    comparisons: Mapping[str, Comparison],
) -> None:
    axes.axvline(0, color=style.INK, linewidth=1)
    rows = {method: row for row, method in enumerate(errors)}
    for method in filter(comparisons.__contains__, rows):
        colour, found, row = style.style(method).colour, comparisons[method], rows[method]
        shared = sorted(errors[reference].keys() & errors[method].keys())
        values = [errors[reference][run] - errors[method][run] for run in shared]
        _draw_dots(axes, method, values, row + 0.17, markersize=3.2, alpha=0.6)
        if found.runs > 1:
            axes.plot(found.interval, [row - 0.15] * 2, color=colour, linewidth=2.6, solid_capstyle="butt")
            axes.plot([found.difference], [row - 0.15], marker="d", markersize=6, color=colour,
                      markeredgecolor=style.PAPER, markeredgewidth=0.7)  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.4 * high), max(high, -0.4 * low))  # 0 well inside: there are two sides
    if reference in rows:
        name = f" {labels.display_name(reference, longest=14)} "
        axes.text(0, rows[reference], name, fontsize=TINY, color=style.FAINT, ha="center", va="center",
                  bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
