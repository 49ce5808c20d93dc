"""Handwritten digits of 8x8 pixels that ship with scikit-learn: real data that need no download."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib

import numpy as np

from ...errors import UserError
from .dataset import Dataset
from .dataset_source import MissingError, Progress, of_source

_SEED = 0  # decides which images are the test set; a published number may rest on it


@dataclasses.dataclass(frozen=True)
class Digits:
    """There is no official test set: a fixed permutation sets images apart for it."""

    name: str = "digits"
    title: str = "Digits"
    train: int = 1000
    test: int = 797
    shape: tuple[int, int, int] = (1, 8, 8)
    classes: tuple[str, ...] = tuple("0123456789")

    def place(self, directory: pathlib.Path) -> str:
        return "in scikit-learn"

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return () if importlib.util.find_spec("sklearn") else ("scikit-learn",)

    def load(self, directory: pathlib.Path) -> Dataset:
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingError(
                f'{self.name}: needs scikit-learn, which cannot be imported ({error}); run: pip install "contdrop[lab]"'
            ) from error
        found = load_digits()
        total = self.train + self.test
        images = np.asarray(found.images)
        labels = np.asarray(found.target).astype(np.int64)
        if images.shape != (total, *self.shape[1:]) or labels.shape != (total,):
            raise UserError(f"{self.name}: expected {total} images of 8x8 in scikit-learn; got shape {images.shape}")
        images = images.astype(np.uint8).reshape(total, *self.shape)
        order = np.random.Generator(np.random.Philox(_SEED)).permutation(total)
        train, test = np.sort(order[: self.train]), np.sort(order[self.train :])
        return of_source(
            self,
            (images[train], labels[train]),
            (images[test], labels[test]),
            "scikit-learn's load_digits (UCI optical recognition of handwritten digits, 1797 images); no official "
            "test set: 797 images set apart by a fixed permutation",
            divisor=16.0,
        )

    def get(self, directory: pathlib.Path, progress: Progress) -> None:
        self.load(directory)


DIGITS = Digits()
