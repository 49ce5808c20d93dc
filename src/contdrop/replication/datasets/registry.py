"""The data sets by name."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from ...errors import UserError, suggest
from . import generated, location
from .cifar import CIFAR_10
from .dataset import Dataset
from .dataset_source import MissingError, Progress, Source
from .digits import DIGITS
from .ilsvrc import IMAGENETTE, TEN, WHOLE
from .mnist import FASHION_MNIST, MNIST
from .norb import NORB, SMALL_NORB
from .svhn import SVHN, SVHN_EXTRA, SVHN_SUBSET

SOURCES: tuple[Source, ...] = (
    *(DIGITS, MNIST, FASHION_MNIST, CIFAR_10),
    *(SVHN, SVHN_EXTRA, SVHN_SUBSET, NORB, SMALL_NORB, WHOLE, TEN, IMAGENETTE),
    *(generated.SVHN, generated.NORB, generated.ILSVRC),
)


def names() -> tuple[str, ...]:
    return tuple(source.name for source in SOURCES)


def find(name: str) -> Source:
    for source in SOURCES:
        if source.name == name:
            return source
    raise UserError(f"unknown data set {name!r}; {suggest(name.lower().replace('_', '-'), names())}")


def first_here(names: Sequence[str], directory: pathlib.Path | None = None) -> str:
    """The first of these data sets that is here; the first of all if none is."""
    place = location.directory(directory)
    return next((name for name in names if not find(name).missing(place)), names[0])


def load(name: str, directory: pathlib.Path | None = None) -> Dataset:
    """Loads a data set and verifies that it is the published one.

    Args:
        name: One of ``names()``.
        directory: Where data sets are kept; ``location.directory()`` if not given.

    Raises:
        UserError: The name is unknown, or the data are missing or damaged. The text says what to do.
    """
    return find(name).load(location.directory(directory))


def get(name: str, directory: pathlib.Path | None, progress: Progress) -> None:
    """Sees to it that a data set is here; what is here already and right is left alone."""
    find(name).get(location.directory(directory), progress)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check of a data set found."""

    name: str
    status: Literal["ok", "missing", "damaged"]
    detail: str


def check(name: str, directory: pathlib.Path | None = None) -> Finding:
    """Reads and verifies all of a data set."""
    source, place = find(name), location.directory(directory)
    try:
        detail = WHOLE.verify(place) if source is WHOLE else source.load(place).provenance
    except MissingError as problem:
        return Finding(name, "missing", str(problem))
    except UserError as problem:
        return Finding(name, "damaged", str(problem))
    return Finding(name, "ok", detail)
