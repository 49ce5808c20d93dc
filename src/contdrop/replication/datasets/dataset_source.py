"""What the lab has to know about a data set before it is loaded, and what is made of it then."""

from __future__ import annotations

import pathlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from .dataset import Dataset, fingerprint


class MissingError(UserError):
    """The data set, or a part of it, is not here. Nothing is wrong with what is."""


class Progress(Protocol):
    """Told how far getting a data set has come."""

    def note(self, text: str) -> None:
        """Something happened that the user may want to know."""

    def received(self, file: str, done: int, size: int) -> None:
        """So many bytes of a file are here."""


class Source(Protocol):
    """A data set by name: how large it is, whether it is here, and how to load and get it."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def train(self) -> int:
        """Images to train and validate on."""

    @property
    def test(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: channels, height, width."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def place(self, directory: pathlib.Path) -> str:
        """Where it is looked for, in words or as a path."""

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        """Names of the files that are not here. Quick: nothing is read."""

    def load(self, directory: pathlib.Path) -> Dataset:
        """Reads and verifies it.

        Raises:
            MissingError: it is not here.
            UserError: it is damaged.
        """

    def get(self, directory: pathlib.Path, progress: Progress) -> None:
        """Sees to it that it is here, and whole."""


def of_source(
    source: Source,
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
    provenance: str,
    divisor: float = 255.0,
) -> Dataset:
    """What a source has read: images and labels to train and to test on."""
    arrays = *train, *test
    return Dataset(source.name, source.title, *arrays, divisor, source.classes, provenance, fingerprint(*arrays))
