"""Every run of every method, with what is paired joined by a line, and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import labels, stats
from ...analysis.comparisons import compare
from ...analysis.wording import tally
from ...results import Results
from .. import colours
from .drawing import LONGEST, SMALL, TINY, WIDTH, Picture, blank, place, size_of, styled, text_width

_ROW = 0.36  # height of a row, in inches


def pairs(results: Results, comparisons: Mapping[str, stats.Comparison] | None = None) -> Picture | None:
    errors = results.errors()
    reference = results.reference
    comparisons = compare(results) if comparisons is None else comparisons
    if len(errors) < 2 or not comparisons:
        return None
    means = {method: float(np.mean(list(runs.values()))) for method, runs in errors.items()}
    order = sorted(errors, key=means.__getitem__)
    has_interval = any(math.isfinite(each.interval[0]) for each in comparisons.values())
    called = labels.shown(reference)
    return Picture(
        "pairs",
        "Run by run",
        f"Left: test error in every run; a grey line joins what one run gave with all methods, which share its split, "
        f"initial weights and data order; the upright stroke is the mean. Right: {called} minus the method, run by run"
        + (
            "; the diamond is the mean, its bar the 95 % interval (small-sample widened BCa; Student's with fewer "
            "than 6 runs)"
            if has_interval
            else ""
        )
        + f". Left of 0, {called} errs less. {size_of(results).capitalize()}; methods by mean error.",
        "Dots of every run. "
        + " ".join(
            f"{called} minus {labels.shown(method)}: {each.difference:+.2f} points on average, "
            f"{tally(each.wins, each.ties, each.losses)}."
            for method, each in comparisons.items()
        ),
        partial(_draw, errors, order, reference, comparisons),
    )


def _draw(
    errors: Mapping[str, Mapping[int, float]],
    order: Sequence[str],
    reference: str,
    comparisons: Mapping[str, stats.Comparison],
) -> Figure:
    with styled():
        names = [labels.shown(method, longest=LONGEST) for method in order]
        left = min(1.95, text_width(names, SMALL) + 0.2)
        height = max(_ROW * len(order), 1.3) + 0.1
        width = (WIDTH - left - 0.32) / 2
        figure = blank(height + 1.0)
        runs = place(figure, left, 0.3, width, height)
        differences = place(figure, left + width + 0.2, 0.3, width, height)
        _draw_runs(runs, errors, order)
        _draw_differences(differences, errors, order, reference, comparisons)
        for axes in (runs, differences):
            axes.set_ylim(len(order) - 0.5, -0.6)
            axes.set_yticks(range(len(order)), labels=names if axes is runs else [""] * len(order))
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.locator_params(axis="x", nbins=4)
        return figure


def _draw_runs(axes: Axes, errors: Mapping[str, Mapping[int, float]], order: Sequence[str]) -> None:
    every = sorted({run for found in errors.values() for run in found})
    for run in every:
        path = [errors[method].get(run, math.nan) for method in order]
        axes.plot(path, range(len(order)), color=colours.FAINT, alpha=0.55, linewidth=0.6, zorder=1)
    for row, method in enumerate(order):
        look = colours.style(method)
        values = list(errors[method].values())
        axes.plot(values, [row] * len(values), linestyle="none", marker=look.marker, markersize=3.6, alpha=0.75,
                  color=look.colour, markeredgewidth=0)  # fmt: skip
        mean = float(np.mean(values))
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=look.colour, linewidth=2.4)
    axes.set_xlabel("test error, %")


def _draw_differences(
    axes: Axes,
    errors: Mapping[str, Mapping[int, float]],
    order: Sequence[str],
    reference: str,
    comparisons: Mapping[str, stats.Comparison],
) -> None:
    axes.axvline(0, color=colours.INK, linewidth=1)
    for row, method in enumerate(order):
        if method not in comparisons:
            continue
        look, comparison = colours.style(method), comparisons[method]
        shared = errors[reference].keys() & errors[method].keys()
        values = [errors[reference][run] - errors[method][run] for run in sorted(shared)]
        axes.plot(values, [row + 0.17] * len(values), linestyle="none", marker=look.marker, markersize=3.2, alpha=0.6,
                  color=look.colour, markeredgewidth=0)  # fmt: skip
        if comparison.runs == 1:
            continue
        axes.plot(comparison.interval, [row - 0.15] * 2, color=look.colour, linewidth=2.6, solid_capstyle="butt")
        axes.plot([comparison.difference], [row - 0.15], marker="d", markersize=6, color=look.colour,
                  markeredgecolor=colours.PAPER, markeredgewidth=0.7)  # fmt: skip
    called = labels.shown(reference, longest=14)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.4 * high), max(high, -0.4 * low))  # 0 well inside: there are two sides
    if reference in order:
        axes.text(0, order.index(reference), f" {called} ", fontsize=TINY, color=colours.FAINT, ha="center",
                  va="center", bbox={"facecolor": colours.PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
    axes.set_xlabel("difference, points")
    axes.text(0, 1.02, f"← {called} better", fontsize=TINY, transform=axes.transAxes, va="bottom")
    axes.text(1, 1.02, "worse →", fontsize=TINY, transform=axes.transAxes, va="bottom", ha="right")
