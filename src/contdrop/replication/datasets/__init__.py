"""Data sets by name: load, download and verify."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from ...errors import UserError, suggest
from . import builtin, dataset
from .builtin import DIGITS
from .cifar import CIFAR_10
from .dataset import Dataset as Dataset
from .dataset import DatasetSource, MissingError
from .dataset import data_directory as data_directory
from .ilsvrc import IMAGENETTE, TEN, WHOLE
from .mnist import FASHION_MNIST, MNIST
from .norb import NORB, SMALL_NORB
from .svhn import SVHN, SVHN_EXTRA, SVHN_SUBSET

SOURCES: tuple[DatasetSource, ...] = (
    *(DIGITS, MNIST, FASHION_MNIST, CIFAR_10),
    *(SVHN, SVHN_EXTRA, SVHN_SUBSET, NORB, SMALL_NORB, WHOLE, TEN, IMAGENETTE),
    *(builtin.SVHN, builtin.NORB, builtin.ILSVRC),
)


def names() -> tuple[str, ...]:
    return tuple(source.name for source in SOURCES)


def find(name: str) -> DatasetSource:
    known = {source.name: source for source in SOURCES}
    if name not in known:
        raise UserError(f"unknown data set {name!r}; {suggest(name.lower().replace('_', '-'), known)}")
    return known[name]


def first_here(names: Sequence[str], directory: pathlib.Path | None = None) -> str:
    """Return the first of these data sets that is here, or the first one if none is."""
    place = dataset.data_directory(directory)
    return next((name for name in names if not find(name).missing(place)), names[0])


def load(name: str, directory: pathlib.Path | None = None) -> Dataset:
    """Load a data set and verify that it is the published one.

    Args:
        name: One of ``names()``.
        directory: Where data sets are kept; ``data_directory()`` if not given.

    Raises:
        UserError: The name is unknown, or the data are missing or damaged. The text says what to do.
    """
    return find(name).load(dataset.data_directory(directory))


@dataclasses.dataclass(frozen=True)
class DatasetCheck:
    """Result of checking a data set."""

    name: str
    status: Literal["ok", "missing", "damaged"]
    detail: str


def check(name: str, directory: pathlib.Path | None = None) -> DatasetCheck:
    """Read and verify all of a data set."""
    source, place = find(name), dataset.data_directory(directory)
    try:
        return DatasetCheck(name, "ok", source.check(place))
    except UserError as problem:
        return DatasetCheck(name, "missing" if isinstance(problem, MissingError) else "damaged", str(problem))
