"""Shared layout, text and style of all figures.

Nothing here touches matplotlib's state for longer than a call, and pyplot is not used. Sizes are in inches; a figure is
5.4 wide, so that its text stays legible on a telephone and fits a column in print.
"""

from __future__ import annotations

import collections
import functools
import io
import pathlib
import re
import textwrap
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
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import TextToPath

from ...._files import replacing
from ...study import labels
from .. import style

Array = npt.NDArray[np.float64]

WIDTH = 5.4
SIZE, SMALL, TINY = 9.5, 8.5, 7.5  # of text, in points
LONGEST = 22  # characters of a name beside a plot
FORMATS = ("svg", "png", "pdf")
_POINTS = 72
_ADVANCE = 0.6  # width of a letter, in sizes of the text

_STYLE = pathlib.Path(__file__).with_name("figures.mplstyle")
_SETTINGS: dict[str, Any] = {
    **matplotlib.rc_params_from_file(_STYLE, use_default_template=False),  # type: ignore[dict-item]  # literal keys
    **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize"), SIZE),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), SMALL),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), style.INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), style.FAINT),
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor"), style.PAPER),
    "grid.color": style.GRID,
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


# ---- text


def text_width(texts: Iterable[str], size: float) -> float:
    """Return the width of the widest text, in inches."""
    return max((_line_width(text, size) for text in texts), default=0.0)


@functools.lru_cache(maxsize=4096)
@styled()
def _line_width(text: str, size: float) -> float:
    font = FontProperties(family="DejaVu Sans", size=size)
    return float(TextToPath().get_text_width_height_descent(text, font, False)[0]) / _POINTS


def short_names(methods: Iterable[str], *, longest: int = LONGEST) -> dict[str, str]:
    """Return display names cut to a number of characters, but so that no two are alike."""
    whole = {method: labels.display_name(method, longest=10_000) for method in methods}

    def cut(method: str, tail: int = 0, mark: str = "") -> str:
        most = max(longest, len(labels.display_name(method, longest=longest)))  # usual names are not counted
        name = mark + whole[method]
        if tail and len(name) > most:  # keep the end, not the middle
            return f"{name[: most - tail - 1].rstrip()}…{name[-tail:].lstrip()}"
        return labels.shorten(name, most)

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


def wrapped(text: str, inches: float, most: int = 100) -> str:
    """Break the text of an axis into lines of about so many inches; the last of ``most`` ends in an ellipsis."""
    characters = int(inches * _POINTS / (_ADVANCE * SIZE))
    return "\n".join(textwrap.wrap(text, characters, max_lines=most, placeholder=" …"))


# ---- layout


class _Shown(Figure):
    """Figure that displays itself in a notebook without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=144)
        return buffer.getvalue()


def blank(height: float, width: float = WIDTH) -> Figure:
    return _Shown(figsize=(width, height))


def plots(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure with plots, for :func:`laid_out`, and the plots as a matrix."""
    figure = blank(height)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def laid_out(figure: Figure) -> Figure:
    """Make room for the texts around the plots: once, not at every draw as the figure itself would."""
    ConstrainedLayoutEngine().execute(figure)
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at these inches from the left and from the top."""
    full_width, full_height = figure.get_size_inches()
    return figure.add_axes(
        (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, at least ``gap`` apart and between ``low`` and ``high`` if they fit.

    Example:
        >>> spread([0.5, 0.5, 0.9], 0.2, 0.0, 1.0)
        [0.4, 0.6, 0.9]
    """
    order = np.argsort(wanted, kind="stable")
    numbers = np.arange(len(order))
    steps = gap * numbers
    # Isotonic regression: what is less than a gap apart becomes a block around the mean of its members.
    sums = np.append(0.0, (np.asarray(wanted)[order] - steps).cumsum())
    means = (sums[1:] - sums[:-1, None]) / np.maximum(numbers - numbers[:, None] + 1, 1)  # from one member to another
    placed = np.array([means[: at + 1, at:].min(axis=1).max() for at in numbers]) + steps
    found = np.empty(len(order))
    found[order] = np.minimum(np.maximum(placed, low + steps), high - steps[::-1])
    return found.round(9).tolist()


def name_heights(axes: Axes, values: Sequence[float], height: float) -> list[float]:
    """Return the heights in a plot, so many inches high and with final limits, at which names stand beside values."""
    low, high = axes.get_ylim()
    return spread([(value - low) / (high - low) for value in values], 1.25 * SMALL / _POINTS / height, 0.02, 0.98)


def label_rows(axes: Axes, names: Sequence[str], top: float, bottom: float) -> None:
    """Name the rows of a plot, the first on top; the limits of the axis are so far beyond the outer rows."""
    axes.set_ylim(len(names) - 1 + bottom, -top)
    axes.set_yticks(range(len(names)), labels=names)
    axes.tick_params(axis="y", length=0)


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with ordinary numbers: 1, 2, 5, 10."""
    low, high = sorted(axis.get_view_interval())
    steps = (1, 2, 5) if high / low < 2000 else (1,)
    ticks = [step * 10.0**power for power in range(-12, 13) for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, labels=[f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in shown])
    axis.set_ticks([], minor=True)


def bars(axes: Axes, places: Sequence[float], samples: Sequence[Sequence[float]], **look: Any) -> None:
    """Draw means with bars of a standard deviation, which single values do not have."""
    axes.errorbar(places, list(map(mean, samples)), yerr=list(map(deviation, samples)), **look)


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation with n - 1; 0, for no bar, of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "contdrop"},
    "png": {"Software": "contdrop"},
    "pdf": {"CreationDate": None, "Creator": "contdrop", "Producer": None},
}


def save(figure: Figure, directory: pathlib.Path, name: str, formats: Sequence[str] = FORMATS) -> list[pathlib.Path]:
    """Write a figure in these formats. The same figure gives the same bytes."""
    written = [directory / f"{name}.{ending}" for ending in formats]
    for path, ending in zip(written, formats):
        with replacing(path) as temporary:
            with styled():
                figure.savefig(temporary, format=ending, metadata=_METADATA[ending])
            if ending == "svg":
                svg = temporary.read_text(encoding="utf-8")
                temporary.write_text(re.sub(_DEJAVU, _FAMILY, svg), encoding="utf-8")
    return written
