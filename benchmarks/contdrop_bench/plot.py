"""Time per element against size, as a picture."""

from __future__ import annotations

import math
from typing import Any

from . import sheets
from .contestants import (
    BERNOULLI,
    BIASED,
    COMPILED,
    GAUSSIAN,
    JAX_BERNOULLI,
    JAX_GAUSSIAN,
    KERAS,
    NARROW,
    NN_DROPOUT,
    PRODUCT,
    TORCH_GAUSSIAN,
    TORCH_UNIFORM,
    UNIFORM,
)
from .results import BOTH, Report, Timing

# The colours of Okabe and Ito, which the colour-blind can tell apart. One for each kind of mask; who makes it shows in
# the line: solid for contdrop, broken for others.
_BLUE, _SKY, _GREEN, _VERMILION, _ORANGE, _PURPLE, _GREY = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#D55E00",
    "#E69F00",
    "#CC79A7",
    "#777777",
)
_SOLID, _DASHED, _DOTTED, _MIXED = "-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (5, 2, 1.2, 2))
_STYLES: dict[str, tuple[str, Any, str]] = {
    BERNOULLI: (_VERMILION, _SOLID, "o"),
    BIASED: (_ORANGE, _SOLID, "s"),
    UNIFORM: (_GREEN, _SOLID, "^"),
    GAUSSIAN: (_BLUE, _SOLID, "D"),
    NARROW: (_SKY, _SOLID, "v"),
    NN_DROPOUT: (_VERMILION, _DASHED, "o"),
    TORCH_UNIFORM: (_GREEN, _DASHED, "^"),
    TORCH_GAUSSIAN: (_BLUE, _DASHED, "D"),
    COMPILED: (_BLUE, _DOTTED, "D"),
    KERAS: (_PURPLE, _DASHED, "P"),
    JAX_GAUSSIAN: (_PURPLE, _MIXED, "D"),
    JAX_BERNOULLI: (_PURPLE, _DOTTED, "o"),
    PRODUCT: (_GREY, _SOLID, "."),
}


def draw(report: Report) -> Any:
    """A figure of matplotlib's: forward+backward of every contestant at every size."""
    from matplotlib.figure import Figure

    lines: dict[str, list[Timing]] = {}
    for timing in sorted(report.elementwise, key=lambda timing: timing.elements):
        if timing.passes == BOTH:
            lines.setdefault(timing.contestant, []).append(timing)

    figure = Figure(figsize=(10, 6.2), layout="constrained")
    axes = figure.add_subplot()
    for name, timings in lines.items():
        colour, dashes, marker = _STYLES[name]
        own = dashes == _SOLID
        axes.loglog(
            [timing.elements for timing in timings],
            [timing.nanoseconds for timing in timings],
            color=colour,
            linestyle=dashes,
            linewidth=2 if own else 1.5,
            marker=marker,
            markersize=5,
            markerfacecolor=colour if own else "white",
            zorder=3 if own else 2,
        )
    smallest, largest = (extreme(timing.elements for timing in report.elementwise) for extreme in (min, max))
    axes.set_xlim(smallest / 1.4, largest * 1.4)
    _label_ends(axes, {name: timings[-1] for name, timings in lines.items()})
    axes.set_xlabel("elements in the tensor")
    axes.set_ylabel("forward + backward, ns per element")
    _write_title(axes, report.environment)
    axes.grid(which="major", color="#dddddd", linewidth=0.8)
    axes.grid(which="minor", axis="y", color="#f0f0f0", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def _write_title(axes: Any, where: dict[str, Any]) -> None:
    axes.set_title("Dropout in training: lower is faster", loc="left", fontsize=14, fontweight="bold", pad=24)
    caption = (
        f"float32, {sheets.threads(where)} of {where['cpu']}; "
        f"torch {where['torch']}, contdrop {where['contdrop']} {where['backend']}"
    )
    place = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(caption, (0, 1), (0, 9), fontsize=9, color="#555555", **place)


def _label_ends(axes: Any, ends: dict[str, Timing]) -> None:
    """Writes each name beside the end of its line, moved up or down as far as needed for all to be readable."""
    low, high = (math.log10(value) for value in axes.get_ylim())
    gap = (high - low) / 25
    names = sorted(ends, key=lambda name: ends[name].nanoseconds)
    wanted = [math.log10(ends[name].nanoseconds) for name in names]
    for name, place in zip(names, spread(wanted, gap)):
        colour, dashes, _ = _STYLES[name]
        axes.annotate(
            name,
            (ends[name].elements, ends[name].nanoseconds),
            (1.06, (place - low) / (high - low)),
            textcoords="axes fraction",
            color=colour,
            fontsize=10,
            fontweight="bold" if dashes == _SOLID and name != PRODUCT else "normal",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "alpha": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 4,
            },
        )


def spread(wanted: list[float], gap: float) -> list[float]:
    """Places as near as possible to the ascending ones that are wanted, at least a gap apart.

    Places that would come too near one another form a block, which is centred on the mean of what its members want.
    """
    blocks: list[tuple[float, int]] = []  # mean of (wanted - offset in the block), members
    for index, place in enumerate(wanted):
        mean, members = place - index * gap, 1
        while blocks and blocks[-1][0] >= mean:
            before, count = blocks.pop()
            mean, members = (before * count + mean * members) / (count + members), count + members
        blocks.append((mean, members))
    starts = [mean for mean, members in blocks for _ in range(members)]
    return [start + index * gap for index, start in enumerate(starts)]
