"""Figures of the replication: verdicts on the claims, and sample images of a data set."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..errors import UserError
from ..lab.report import style
from ..lab.report.figures.drawing import SMALL, TINY, WIDTH, Picture, blank, place, styled, text_width
from ..lab.study import labels
from . import datasets
from .claims.verdicts import FAILS, HOLDS, OPEN, OUT, ClaimVerdict, ContrastResult, in_words

# Light enough for dark text on them; the verdict is written too, so colour is not all that tells.
_COLOURS = {HOLDS: "#7fd1ae", FAILS: "#f2a36b", OPEN: "#f3e58b", OUT: "#cfcfcf"}
_REACH = 5.0  # margins to either side; what lies beyond is drawn at the edge
_ROW, _TOP, _BELOW = 0.25, 0.5, 0.45
_PILL, _STRIP = 1.15, 2.6


def claims_picture(entries: Sequence[ClaimVerdict]) -> Picture:
    """Return the picture of verdicts, of which there is at least one, in their order."""
    found = in_words(entries)
    return Picture(
        "ledger",
        "The claims of the paper",
        f"{found}. Dots and lines are the differences that decide a claim, with simultaneous 95 % intervals, in "
        "units of the margin below which a difference does not matter (shaded); left of zero is what the claim says. "
        "Hollow dots: planned runs are missing, so they decide nothing yet.",
        f"A row for each claim with its verdict: {found}.",
        partial(_draw_claims, entries),
    )


def _draw_claims(entries: Sequence[ClaimVerdict]) -> Figure:
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


def _mark(axes: Axes, each: ContrastResult, height: float) -> None:
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


_COLUMNS = 10
_MOST_CLASSES = 12


def samples(name: str, directory: pathlib.Path | None = None) -> Picture | None:
    """Return a picture of the first training images of each class; None if the data set is unknown or not here."""
    try:
        return samples_of(datasets.load(name, directory))
    except UserError:
        return None


def samples_of(found: datasets.Dataset) -> Picture:
    classes = found.classes[:_MOST_CLASSES]
    images = [
        found.train_images[np.flatnonzero(found.train_labels == label)[:_COLUMNS]] for label in range(len(classes))
    ]
    channels, high, wide = found.train_images.shape[1:]
    kind = {1: "grey", 2: "grey, the left one of each pair"}.get(channels, "colour")
    images = [each[:, :1] if channels == 2 else each for each in images]
    return Picture(
        f"samples-{found.name}",
        f"{found.title}: samples",
        f"The first {_COLUMNS} training images of each class of {found.title}, as they come: {wide}x{high} "
        f"pixels, {kind}; "
        f"{len(found.train_labels):,} images to train and validate on, {len(found.test_labels):,} to test on. "
        f"{found.provenance}.",
        f"A grid of images: {len(classes)} rows, one per class ({', '.join(classes)}).",
        partial(_draw_samples, images, classes, found.divisor),
    )


def _draw_samples(images: list[npt.NDArray[np.uint8]], classes: tuple[str, ...], divisor: float) -> Figure:
    with styled():
        names = [labels.shorten(labels.printable(name), 16) for name in classes]
        left = text_width(names, SMALL) + 0.2
        high, wide = images[0].shape[-2:]
        cell = min((WIDTH - left - 0.1) / _COLUMNS, 0.36)
        rows = cell * high / wide
        figure = blank(rows * len(classes) + 0.2, left + cell * _COLUMNS + 0.1)
        sheet = np.zeros((len(classes) * (high + 1), _COLUMNS * (wide + 1), 4))  # between images, transparent
        for row, found in enumerate(images):
            for column, image in enumerate(found):
                top, start = row * (high + 1), column * (wide + 1)
                pixels = np.moveaxis(image, 0, -1) / divisor
                sheet[top : top + high, start : start + wide, :3] = np.broadcast_to(pixels, (high, wide, 3))
                sheet[top : top + high, start : start + wide, 3] = 1
        axes = place(figure, left, 0.1, cell * _COLUMNS, rows * len(classes))
        axes.imshow(sheet.clip(0, 1), interpolation="nearest", aspect="auto")
        axes.set_yticks((np.arange(len(classes)) + 0.5) * (high + 1) - 1, labels=names)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        return figure
