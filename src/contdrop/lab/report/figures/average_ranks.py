"""Critical-difference diagram."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from ...analysis.dataset_ranks import rank
from ...stats import RankComparison
from ...store.results import Results
from ...study import labels
from .. import style
from .drawing import SMALL, TINY, WIDTH, Picture, blank, place, short_names, styled, text_width


def across(every: Sequence[Results]) -> Picture | None:
    """Draw average ranks over data sets, if there are at least three (Demšar 2006)."""
    found = rank(every)
    if found is None:
        return None
    comparison = found.comparison
    average = sorted(comparison.ranks.average.items(), key=lambda item: item[1])
    datasets = ", ".join(labels.printable(dataset) for dataset in found.errors)
    few = " With so few data sets only very large differences can show." if len(found.errors) < 10 else ""
    return Picture(
        "ranks",
        "Average ranks over data sets",
        f"Average rank of each method over {len(found.errors)} data sets ({datasets}); 1 is the {found.first}. "
        f"Methods joined by a bar are not told apart by Nemenyi's test at {100 * comparison.alpha:g} %: their ranks "
        f"are less than the critical difference of {comparison.critical_difference:.2f} apart. Friedman test, by "
        f"permutation: p = {comparison.permutation_p:.2g}.{few}",
        "Average ranks: " + ", ".join(f"{labels.name_in_text(method)} {rank:.2f}" for method, rank in average) + ".",
        partial(_draw, comparison),
    )


def _draw(comparison: RankComparison) -> Figure:
    with styled():
        average = comparison.ranks.average
        order = sorted(average, key=average.__getitem__)
        names = {method: f"{name} {average[method]:.2f}" for method, name in short_names(order).items()}
        half = -(-len(order) // 2)
        margin = min(1.95, text_width(list(names.values()), SMALL) + 0.25)
        row = 0.21
        bars = 0.13 * len(comparison.groups)
        height = 0.75 + bars + 0.15 + row * half + 0.1
        figure = blank(height)
        width = WIDTH - 2 * margin
        axes = place(figure, margin, 0.0, width, height)
        k = len(order)
        axes.set_xlim(1, k)
        axes.set_ylim(height, 0)
        axes.axis("off")
        line = 0.72
        axes.plot([1, k], [line, line], color=style.INK, linewidth=1.2, clip_on=False)
        for tick in range(1, k + 1):
            axes.plot([tick, tick], [line - 0.06, line], color=style.INK, linewidth=1, clip_on=False)
            axes.text(tick, line - 0.1, str(tick), ha="center", va="bottom", fontsize=SMALL)
        shown = min(comparison.critical_difference, k - 1)
        axes.plot([1, 1 + shown], [0.3, 0.3], color=style.FAINT, linewidth=1.6, clip_on=False)
        wide = "" if shown == comparison.critical_difference else ", wider than the axis"
        axes.text(1, 0.24, f"critical difference {comparison.critical_difference:.2f}{wide}", fontsize=TINY,
                  va="bottom", color=style.FAINT)  # fmt: skip
        for place_, group in enumerate(comparison.groups):
            y = line + 0.12 + 0.13 * place_
            ends = average[group[0]] - 0.04, average[group[-1]] + 0.04
            axes.plot(ends, [y, y], color=style.INK, linewidth=3.2, alpha=0.8, solid_capstyle="butt", clip_on=False)
        for place_, method in enumerate(order):
            left = place_ < half
            y = line + bars + 0.22 + row * (place_ if left else k - 1 - place_)
            edge = 1 - 0.12 * (k - 1) / width if left else k + 0.12 * (k - 1) / width
            look = style.style(method)
            axes.plot([average[method], average[method], edge], [line, y, y], color=look.colour, linewidth=1.2,
                      clip_on=False)  # fmt: skip
            axes.plot([average[method]], [line], marker=look.marker, color=look.colour, markersize=5, clip_on=False)
            shift = -0.05 if left else 0.05
            axes.text(edge + shift * (k - 1) / width, y, names[method], fontsize=SMALL, va="center_baseline",
                      ha="right" if left else "left")  # fmt: skip
        return figure
