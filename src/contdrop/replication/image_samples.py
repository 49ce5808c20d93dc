"""What the data look like."""

from __future__ import annotations

import pathlib
from functools import partial

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from ..errors import UserError
from ..lab.report.figures.drawing import SMALL, WIDTH, Picture, blank, place, styled, text_width
from ..lab.study import labels
from . import datasets

_COLUMNS = 10
_MOST_CLASSES = 12


def samples(name: str, directory: pathlib.Path | None = None) -> Picture | None:
    """The first training images of each class; None if the data set is unknown or its files are not here."""
    try:
        found = datasets.load(name, directory)
    except UserError:
        return None
    return samples_of(found)


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
        partial(_draw, images, classes, found.divisor),
    )


def _draw(images: list[npt.NDArray[np.uint8]], classes: tuple[str, ...], divisor: float) -> Figure:
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
