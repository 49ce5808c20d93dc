"""The data of the catalogue's studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import data
from ..batches import Data
from ..configuration import Configuration


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
        found = data.load(self.name)
        return Data(
            train=(found.train_images, found.train_labels),
            test=(found.test_images, found.test_labels),
            validation=self.validation,
            subset=self.train,
            stratify=False,
            batches=self.batches,
        )
