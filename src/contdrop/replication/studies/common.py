"""Data, methods and settings that the paper's comparisons share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...lab.data.augmentation import Affine
from ...lab.data.data import Data
from ...lab.study.study import Configuration, Study, group_settings
from .. import datasets
from ..datasets import first_here

Features = npt.NDArray[np.float32]

# The paper's six methods; fast dropout, which it names but does not run; and the controls of the continuous laws,
# Bernoulli masks of the same mean and relative variance, without which a gain may come from their strength alone.
METHODS = (
    "none",
    "bernoulli",
    "adaptive",
    "dropconnect",
    "uniform",
    "gaussian",
    "fast",
    "bernoulli-matched",
    "bernoulli-matched:uniform",
)

# With unscaled masks the mean of a mask changes the rate at which layers learn, so no dropout has a halved twin.
UNSCALED_METHODS = (*METHODS, "none:mean=0.5")

# "sigma^2 is selected from {0.2, 0.3, 0.4}", read as standard deviations; see the deviations page. Adaptive dropout
# with alpha = 0 and beta = 0 is Bernoulli dropout.
CANDIDATES = {
    "gaussian": tuple(f"gaussian:sigma={sigma}" for sigma in ("0.2", "0.3", "0.4")),
    "adaptive": tuple(
        f"adaptive:alpha={alpha},beta={beta}" for alpha in ("-1", "0", "1") for beta in ("-0.5", "0", "0.5")
    ),
}

FOLLOWS = {"bernoulli-matched": "gaussian"}

# One run of a few epochs would choose by luck; the report says how far apart the candidates were.
SELECTION_RUNS = 3

COMMON: dict[str, Any] = {
    "reference": "gaussian",
    "candidates": CANDIDATES,
    "follows": FOLLOWS,
    "evaluation_batch_size": 1000,
}


def scaled(train: Features, test: Features) -> tuple[Features, Features]:
    """Divide features by their root mean square over the training images."""
    scale = np.float32(np.sqrt(np.mean(np.square(train), dtype=np.float64)))
    return train / scale, test / scale


def study(**settings: Any) -> Study:
    """Return a study from settings given by their own names, those of groups too."""
    return Study(**group_settings(settings))


@dataclass(frozen=True)
class InOrder(Configuration):
    """Mini-batches in the order of the data, the same in every epoch."""

    kind: ClassVar[str] = "in-order"

    batch_size: int

    def __call__(self, examples: Sized, generator: Any) -> Iterable[Sequence[int]]:
        count, size = len(examples), self.batch_size
        return [range(start, min(start + size, count)) for start in range(0, count, size)]


@dataclass(frozen=True)
class Images(Configuration):
    """A data set that ``contdrop data`` knows, from where it is kept, with a split of its own in each run.

    Attributes:
        name: Of the data set.
        train: How many images are trained on.
        validation: How many others are validated on.
        batches: The mini-batches of an epoch; in a new random order each time if None.
    """

    kind: ClassVar[str] = "images"

    name: str
    train: int
    validation: int
    batches: InOrder | None = None

    def __call__(self) -> Data:
        found = datasets.load(self.name)
        return Data(
            train=(found.train_images, found.train_labels),
            test=(found.test_images, found.test_labels),
            validation=self.validation,
            subset=self.train,
            stratify=False,
            batches=self.batches,
        )


@dataclass(frozen=True)
class Changed(Configuration):
    """A data set whose training images are changed at random, with a split of its own in each run.

    Attributes:
        name: Of the data set.
        changes: What is done to an image; the study's ``forward`` does it.
        validation: How many training images are validated on.
        train: How many of the others are trained on; all if None.
        test: How many test images, the first ones, are tested on; all if None.
        instead: Data sets that stand in for it where it is not here, the first of them that is; results say so.
    """

    kind: ClassVar[str] = "changed"

    name: str
    changes: Affine
    validation: int
    train: int | None = None
    test: int | None = None
    instead: tuple[str, ...] = ()

    def __call__(self) -> Data:
        found = datasets.load(first_here((self.name, *self.instead)))
        return Data(
            train=(found.train_images, found.train_labels),
            test=(found.test_images[: self.test], found.test_labels[: self.test]),
            validation=self.validation,
            subset=self.train,
            transform=self.changes.draw,
            name=found.name,
            mark="" if found.name == self.name else found.title,
        )
