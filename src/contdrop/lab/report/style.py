"""One color, marker and line style per method, the same in every figure and on the page.

The colours of the methods are from M. Okabe and K. Ito's set, which people with any common colour blindness can tell
apart (https://jfly.uni-koeln.de/color/), some of them darkened to be seen on white. Colour never stands alone: markers
and line styles differ too. On a dark page other shades take their place, see :func:`dark`.
"""

from __future__ import annotations

import colorsys
import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from ..study import labels

# Text and guide lines.
INK, FAINT, GRID, PAPER = "#1f2328", "#6b7280", "#d9dce1", "#ffffff"
DARK_PAPER = "#16181d"
ON_LIGHT = "#1a1a1a"  # text on a ground of its own, which is light on a dark page too
_DARK = {INK: "#e6e8eb", FAINT: "#a2a9b4", GRID: "#3a3f48", PAPER: DARK_PAPER, ON_LIGHT: ON_LIGHT}

Line = Literal["solid"] | tuple[float, tuple[float, ...]]
_DASHED, _DOTTED, _DASH_DOT = (0.0, (5.0, 1.5)), (0.0, (1.2, 1.2)), (0.0, (6.0, 1.5, 1.2, 1.5))
_LONG, _DOUBLE = (0.0, (9.0, 2.0)), (0.0, (5.0, 1.2, 1.2, 1.2, 1.2, 1.2))


@dataclass(frozen=True)
class Style:
    """Colors, marker and line style of a method; ``dark`` is its color on a dark page."""

    colour: str
    dark: str
    marker: str
    line: Line

    @property
    def stroke(self) -> dict[str, Any]:
        """Options of matplotlib for a line."""
        return {"color": self.colour, "linestyle": self.line}

    @property
    def dots(self) -> dict[str, Any]:
        """Options of matplotlib for markers alone."""
        return {"color": self.colour, "marker": self.marker, "linestyle": "none"}


_KNOWN = {
    "none": Style("#707070", "#a8a8a8", "X", _DOTTED),
    "bernoulli": Style("#0072b2", "#4aa8e0", "s", _DASHED),
    "uniform": Style("#c98500", "#f0b13c", "^", _DASH_DOT),
    "gaussian": Style("#d55e00", "#ff8a3d", "o", "solid"),
    "normal": Style("#8c1d18", "#ff7a70", "d", _DOUBLE),
    "adaptive": Style("#008a64", "#2fc79c", "v", _LONG),
    "dropconnect": Style("#b8578f", "#e59ac4", "P", _DOUBLE),
    "fast": Style("#3f9cd2", "#8fd0f5", "D", _DOTTED),
    "bernoulli-matched": Style("#4b3fa0", "#9d93f0", "h", _DASH_DOT),
    "bernoulli-matched:uniform": Style("#7a5c00", "#c9a94f", "h", _LONG),
    "none:mean=0.5": Style("#303030", "#d0d0d0", "X", _DASHED),
    "adaptive-authors": Style("#00594a", "#8fe0c8", "v", _DASHED),
    "dropconnect-authors": Style("#7d2a5c", "#f0bfdc", "P", _LONG),
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_LINES: tuple[Line, ...] = ("solid", _DASHED, _DASH_DOT, _LONG, _DOUBLE)


def style(method: str) -> Style:
    """Return the style of a method by its label, such as "gaussian:sigma=0.3"; it depends on nothing else.

    Variants of the Gaussian get a colour by their width, from yellow (narrow) over red to violet (wide); other names
    get theirs by a hash.

    Example:
        >>> style("gaussian").colour
        '#d55e00'
    """
    if method in _KNOWN:
        return _KNOWN[method]
    number = int.from_bytes(hashlib.sha256(method.encode("utf-8", "replace")).digest()[:8], "big")
    marker, line = _MARKERS[number % len(_MARKERS)], _LINES[number // 8 % len(_LINES)]
    width = labels.gaussian_width(method)
    if width is not None:
        # Hue from 45 degrees down over 0 to 270: the way of a sunset. Darker as it goes.
        share = min(width, 1.0)
        colour = _rgb((45 - 135 * share) % 360 / 360, 0.43 - 0.05 * share, 0.85)
    else:
        colour = _rgb(number // 64 % 360 / 360, 0.38, 0.55)
    return Style(colour, dark(colour), marker, line)


def _rgb(hue: float, lightness: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def dark(colour: str) -> str:
    """Return the dark page's shade of a color: a lighter one if the color is unknown."""
    known = {**_DARK, **{style.colour: style.dark for style in _KNOWN.values()}}
    if colour in known:
        return known[colour]
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    return _rgb(hue, max(lightness, 0.66), saturation)
