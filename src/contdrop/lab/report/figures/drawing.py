"""Shared layout, text and style of all figures.

Nothing here touches matplotlib's state for longer than a call, and pyplot is not used. Sizes are in inches; a figure is
5.4 wide, so that its text stays legible on a telephone and fits a column in print.
"""

from __future__ import annotations

import collections
import functools
import io
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from ...._files import replacing
from ...study import labels
from .. import style

Array = npt.NDArray[np.float64]

WIDTH = 5.4
SIZE, SMALL, TINY = 9.5, 8.5, 7.5  # of text, in points
LONGEST = 22  # characters of a name beside a plot
PLAIN = -5, 7  # powers of ten of which numbers at ticks have no exponent
FORMATS = ("svg", "png", "pdf")
_POINTS = 72

_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": SIZE,
    "axes.labelsize": SIZE,
    "axes.titlesize": SIZE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "text.color": style.INK,
    "axes.labelcolor": style.INK,
    "axes.edgecolor": style.FAINT,
    "xtick.color": style.FAINT,
    "ytick.color": style.FAINT,
    "xtick.labelcolor": style.INK,
    "ytick.labelcolor": style.INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": style.GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": style.PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": style.PAPER,
    "savefig.dpi": 180,
    "text.usetex": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "contdrop",
    "pdf.fonttype": 42,  # journals refuse type 3
}

# Widths as those of DejaVu Sans, in which the figure was laid out, or less.
_DEJAVU = r"'DejaVu Sans'(?:, [^;\"]*)?(?=[;\"])"
_FAMILY = "'DejaVu Sans', Verdana, 'Segoe UI', Roboto, Arial, sans-serif"


@dataclass(frozen=True)
class Picture:
    """A figure as a drawing function, with its title, caption and text alternative."""

    name: str  # of its files, without directory and ending
    title: str
    caption: str  # what is drawn, what bands and bars are, over how many runs
    alt: str  # what is to be seen, for those who do not see it
    draw: Callable[[], Figure]


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style of all figures, whatever the user's matplotlib settings are."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)  # type: ignore[arg-type]  # its keys are literals
        # A name may be in a script that the font lacks; SVG text then falls back to another font.
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=r"(?s).*Matplotlib currently does not support .* natively")
        yield


class _Shown(Figure):
    """Figure that displays itself in a notebook without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=144)
        return buffer.getvalue()


def blank(height: float, width: float = WIDTH) -> Figure:
    return _Shown(figsize=(width, height))


def place(figure: Figure, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
    """Add axes at these inches from the left and from the top."""
    full_width, full_height = figure.get_size_inches()
    box = (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    return figure.add_axes(box, **options)


def text_width(texts: Sequence[str], size: float) -> float:
    """Return the width of the widest text, in inches."""
    return max((_line_width(text, size) for text in texts), default=0.0)


@functools.lru_cache(maxsize=4096)
def _line_width(text: str, size: float) -> float:
    with styled():
        font = FontProperties(family="DejaVu Sans", size=size)
        return float(TextToPath().get_text_width_height_descent(text, font, False)[0]) / _POINTS


def short_names(methods: Iterable[str], *, longest: int = LONGEST, width: float = math.inf) -> dict[str, str]:
    """Return display names cut to a number of characters or inches, but so that no two are alike."""
    whole = {method: labels.display_name(method, longest=10_000) for method in methods}

    def cut(method: str, tail: int = 0, mark: str = "") -> str:
        most = max(longest, len(labels.display_name(method, longest=longest)))  # usual names are not counted
        for length in range(most, tail + 2, -1):
            name = mark + whole[method]
            found = labels.shorten(name, length)
            if tail and len(name) > length:  # keep the end, not the middle
                found = f"{name[: length - tail - 1].rstrip()}…{name[-tail:].lstrip()}"
            if width == math.inf or text_width([found], SMALL) <= width:
                break
        return found

    names = {method: cut(method) for method in whole}
    for name, number in collections.Counter(names.values()).items():
        if number > 1:
            alike = [method for method in whole if names[method] == name]
            names |= _told_apart(alike, cut, set(names.values()), longest)
    return names


def _told_apart(
    methods: Sequence[str], cut: Callable[..., str], taken: Collection[str], longest: int
) -> dict[str, str]:
    """Shorten names that begin alike so that they differ; number them where nothing short does."""
    for tail in range(longest // 3, longest - 2):
        found = [cut(method, tail) for method in methods]
        if len({*found, *taken}) == len(found) + len(taken):
            return dict(zip(methods, found))
    return {method: cut(method, mark=f"{number}: ") for number, method in enumerate(methods, 1)}


def names_width(methods: Iterable[str]) -> float:
    """Return the width of the widest name beside a plot, in inches."""
    return text_width(list(short_names(methods).values()), SMALL)


def wrapped(text: str, size: float, width: float, *, most: int = 100) -> list[str]:
    """Break a text into lines of so many inches; the last of ``most`` lines ends in an ellipsis if text is left."""

    def fits(line: str) -> bool:
        return text_width([line], size) <= width

    lines: list[str] = []
    for word in text.split():
        while not fits(word):  # a name without a space
            word = word[: len(word) * 9 // 10 - 1] + "…"
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    if len(lines) > most:
        last = lines[most - 1]
        while not fits(f"{last} …"):
            last = last.rpartition(" ")[0]
        lines = [*lines[: most - 1], f"{last} …"]
    return lines


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, at least ``gap`` apart and between ``low`` and ``high`` if they fit.

    Example:
        >>> spread([0.5, 0.5, 0.9], 0.2, 0.0, 1.0)
        [0.4, 0.6, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[float]] = []  # of each its sum of wanted positions, less offsets, and its number of members
    for index in order:
        blocks.append([wanted[index], 1.0])
        while len(blocks) > 1 and _start(blocks[-2], gap) + gap * blocks[-2][1] > _start(blocks[-1], gap):
            (total, count), (more, others) = blocks[-2], blocks.pop()
            blocks[-1] = [total + more, count + others]
    positions: list[float] = []
    for block in blocks:
        positions += [_start(block, gap) + gap * place for place in range(int(block[1]))]
    for place in range(len(positions)):  # from below, then from above
        positions[place] = max(positions[place], low + gap * place)
    for place in range(len(positions)):
        back = len(positions) - 1 - place
        positions[back] = min(positions[back], high - gap * place)
    found = [0.0] * len(wanted)
    for index, position in zip(order, positions):
        found[index] = round(position, 9)
    return found


def _start(block: list[float], gap: float) -> float:
    total, count = block
    return total / count - gap * (count - 1) / 2


def label_ends(axes: Axes, ends: dict[str, tuple[float, float]], height: float) -> None:
    """Name the lines at their ends, beside a plot whose limits are final; its height is in inches."""
    points = [axes.transAxes.inverted().transform(axes.transData.transform(point)) for point in ends.values()]
    heights = spread([float(y) for _, y in points], 1.25 * SMALL / _POINTS / height, 0.02, 0.98)
    for (method, name), (x, y), beside in zip(short_names(ends).items(), points, heights):
        look = style.style(method)
        in_axes: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([x + 0.01, 1.06], [y, beside], color=look.colour, linewidth=0.7, **in_axes)
        axes.plot([1.09], [beside], marker=look.marker, color=look.colour, markersize=4.5, **in_axes)
        axes.text(1.125, beside, name, fontsize=SMALL, va="center_baseline", **in_axes)


def make_room(figure: Figure) -> None:
    """Move the left ends of plots to the right where labels beside them would be cut off."""
    boxes = [box for axes in figure.axes if (box := axes.yaxis.get_tightbbox()) is not None]
    missing = -min(box.x0 for box in boxes) / figure.bbox.width
    for axes in figure.axes if missing > 0 else ():
        box = axes.get_position()
        axes.set_position((box.x0 + missing + 0.01, box.y0, box.width - missing - 0.01, box.height))


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with ordinary numbers: 1, 2, 5, 10."""
    low, high = sorted(axis.get_view_interval())
    steps = (1, 2, 5) if high / low < 2000 else (1,)
    ticks = [step * 10.0**power for power in range(-12, 13) for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, labels=[_number(tick) for tick in shown])
    axis.set_ticks([], minor=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1; 0, for no bar, of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def save(figure: Figure, directory: pathlib.Path, name: str, formats: Sequence[str] = FORMATS) -> list[pathlib.Path]:
    """Write a figure in these formats. The same figure gives the same bytes."""
    written = []
    for ending in formats:
        path = directory / f"{name}.{ending}"
        with replacing(path) as temporary:
            with styled():
                figure.savefig(temporary, format=ending, metadata=_METADATA[ending])
            if ending == "svg":
                svg = temporary.read_text(encoding="utf-8")
                temporary.write_text(re.sub(_DEJAVU, _FAMILY, svg), encoding="utf-8")
        written.append(path)
    return written


_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "contdrop"},
    "png": {"Software": "contdrop"},
    "pdf": {"CreationDate": None, "Creator": "contdrop", "Producer": None},
}
