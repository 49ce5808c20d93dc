"""Critical-difference diagram."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from ...analysis.dataset_ranks import rank
from ...analysis.rendering import listed
from ...stats import RankComparison
from ...store.results import Results
from ...study import labels
from .. import style
from ..templating import caption
from .drawing import SMALL, TINY, WIDTH, Picture, blank, place, short_names, styled, text_width


def across(every: Sequence[Results]) -> Picture | None:
    """Draw average ranks over data sets, if there are at least three (Demšar 2006)."""
    found = rank(every)
    if found is None:
        return None
    comparison = found.comparison
    average = sorted(comparison.ranks.average.items(), key=lambda item: item[1])
    datasets = ", ".join(labels.printable(dataset) for dataset in found.errors)
    return Picture(
        "ranks",
        "Average ranks over data sets",
        caption("average_ranks", found, datasets),
        f"Average ranks: {listed({method: f'{rank:.2f}' for method, rank in average})}.",
        partial(_draw, comparison, dict(average)),
    )


@styled()
def _draw(comparison: RankComparison, average: dict[str, float]) -> Figure:
    names = {method: f"{name} {average[method]:.2f}" for method, name in short_names(average).items()}
    number, half, row, line = len(names), -(-len(names) // 2), 0.21, 0.72
    margin = min(1.95, text_width(names.values(), SMALL) + 0.25)
    bars = 0.13 * len(comparison.groups)
    height, width = 0.75 + bars + 0.15 + row * half + 0.1, WIDTH - 2 * margin
    figure = blank(height)
    axes = place(figure, margin, 0.0, width, height)
    axes.set(xlim=(1, number), ylim=(height, 0))
    axes.axis("off")
    draw = partial(axes.plot, clip_on=False)
    draw([1, number], [line, line], color=style.INK, linewidth=1.2)
    for tick in range(1, number + 1):
        draw([tick, tick], [line - 0.06, line], color=style.INK, linewidth=1)
        axes.text(tick, line - 0.1, str(tick), ha="center", va="bottom", fontsize=SMALL)
    shown = min(comparison.critical_difference, number - 1)
    draw([1, 1 + shown], [0.3, 0.3], color=style.FAINT, linewidth=1.6)
    wide = "" if shown == comparison.critical_difference else ", wider than the axis"
    words = f"critical difference {comparison.critical_difference:.2f}{wide}"
    axes.text(1, 0.24, words, fontsize=TINY, va="bottom", color=style.FAINT)
    for at, group in enumerate(comparison.groups):
        y, ends = line + 0.12 + 0.13 * at, (average[group[0]] - 0.04, average[group[-1]] + 0.04)
        draw(ends, [y, y], color=style.INK, linewidth=3.2, alpha=0.8, solid_capstyle="butt")
    per_inch = (number - 1) / width
    for at, (method, name) in enumerate(names.items()):
        side, end, level = (-1, 1, at) if at < half else (1, number, number - 1 - at)
        y, edge, look = line + bars + 0.22 + row * level, end + side * 0.12 * per_inch, style.style(method)
        draw([average[method], average[method], edge], [line, y, y], color=look.colour, linewidth=1.2)
        draw([average[method]], [line], marker=look.marker, color=look.colour, markersize=5)
        axes.text(edge + side * 0.05 * per_inch, y, name, fontsize=SMALL, va="center_baseline",
                  ha="right" if side < 0 else "left")  # fmt: skip
    return figure
