"""All claims of the paper at a glance: the verdict on each, and the intervals that it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...lab.report import style
from ...lab.report.figures.drawing import SMALL, TINY, Picture, blank, place, styled, text_width
from .verdicts import FAILS, HOLDS, OPEN, OUT, Entry, Evidence, in_words

# Light enough for dark text on them; the verdict is written too, so colour is not all that tells.
_COLOURS = {HOLDS: "#7fd1ae", FAILS: "#f2a36b", OPEN: "#f3e58b", OUT: "#cfcfcf"}
_REACH = 5.0  # margins to either side; what lies beyond is drawn at the edge
_ROW, _TOP, _BELOW = 0.25, 0.5, 0.45
_PILL, _STRIP = 1.15, 2.6


def claims(entries: Sequence[Entry]) -> Picture | None:
    """Of a ledger, in its order; None if it is empty."""
    if not entries:
        return None
    found = in_words(entries)
    return Picture(
        "ledger",
        "The claims of the paper",
        f"{found}. Dots and lines are the differences that decide a claim, with simultaneous 95 % intervals, in "
        "units of the margin below which a difference does not matter (shaded); left of zero is what the claim says. "
        "Hollow dots: planned runs are missing, so they decide nothing yet.",
        f"A row for each claim with its verdict: {found}.",
        partial(_draw, entries),
    )


def _draw(entries: Sequence[Entry]) -> Figure:
    with styled():
        texts = [f"{entry.claim.id}  {entry.claim.text}" for entry in entries]
        left = text_width(texts, TINY) + 0.3
        height = _ROW * len(entries)
        figure = blank(_TOP + height + _BELOW, left + _PILL + _STRIP + 0.3)
        axes = place(figure, left + _PILL + 0.15, _TOP, _STRIP, height)
        _strip(axes, len(entries))
        per_inch = 2 * _REACH / _STRIP
        for row, (entry, text) in enumerate(zip(entries, texts)):
            edge = -_REACH - 0.1 * per_inch
            pill = Rectangle((edge - _PILL * per_inch, row - 0.4), _PILL * per_inch, 0.8, color=_COLOURS[entry.verdict])
            axes.add_patch(pill).set_clip_on(False)
            middle = edge - _PILL / 2 * per_inch
            axes.text(middle, row, entry.verdict, ha="center", va="center", fontsize=TINY, color=style.ON_LIGHT)
            axes.text(edge - (_PILL + left - 0.1) * per_inch, row, text, va="center", fontsize=TINY)
            for number, each in enumerate(entry.evidence):
                _mark(axes, each, row + 0.6 * ((number + 0.5) / len(entry.evidence) - 0.5))
        return figure


def _strip(axes: Axes, rows: int) -> None:
    axes.set(xlim=(-_REACH, _REACH), ylim=(rows - 0.5, -0.5), yticks=[])
    axes.axvspan(-1, 1, color=style.GRID, alpha=0.6, linewidth=0)
    axes.axvline(0, color=style.FAINT, linewidth=0.8)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("difference, in margins", fontsize=SMALL)
    axes.text(-_REACH, -0.75, "← as claimed", fontsize=TINY, color=style.FAINT)
    axes.text(_REACH, -0.75, "the other way →", ha="right", fontsize=TINY, color=style.FAINT)


def _mark(axes: Axes, each: Evidence, height: float) -> None:
    found = each.comparison
    if found is None or not found.margin:
        return
    low, middle, high = (
        min(_REACH, max(-_REACH, value / found.margin))
        for value in (found.simultaneous[0], found.difference, found.simultaneous[1])
    )
    if not any(map(math.isnan, found.simultaneous)):  # two runs and more have an interval
        axes.plot([low, high], [height, height], color=style.INK, linewidth=0.8, clip_on=False)
    filled = each.runs >= each.planned
    face = style.INK if filled else style.PAPER
    axes.plot([middle], [height], "o", color=style.INK, markerfacecolor=face, markersize=2.6, clip_on=False)
