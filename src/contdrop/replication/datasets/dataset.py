"""A data set in memory, the interface of its source, and the directory where data sets are kept."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shlex
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from ...lab.extensions import DATA_VARIABLE as VARIABLE


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, as stored: a pixel's value as a float is the stored value divided by ``divisor``."""

    name: str
    title: str
    train_images: npt.NDArray[np.uint8]  # [N, C, H, W], C-contiguous
    train_labels: npt.NDArray[np.int64]  # [N]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    divisor: float
    classes: tuple[str, ...]
    provenance: str  # one line: where it comes from, which files
    fingerprint: str  # of the four arrays, in the order above


def fingerprint(*arrays: npt.NDArray[np.generic]) -> str:
    """Return the SHA-256 of shapes, types and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class MissingError(UserError):
    """The data set, or a part of it, is not here. Nothing is wrong with what is."""


class DownloadProgress(Protocol):
    """Told how far getting a data set has come."""

    def note(self, text: str) -> None:
        """Report an event."""

    def received(self, file: str, done: int, size: int) -> None:
        """Report the number of bytes of a file received so far."""


class DatasetSource(Protocol):
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
        """Channels, height and width of an image."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def place(self, directory: pathlib.Path) -> str:
        """Return the place where it is looked for, in words or as a path."""

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        """Return the names of missing files; nothing is read."""

    def load(self, directory: pathlib.Path) -> Dataset:
        """Read and verify the data set.

        Raises:
            MissingError: it is not here.
            UserError: it is damaged.
        """

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        """Download what is missing or damaged."""


def of_source(
    source: DatasetSource,
    train: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
    test: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]],
    provenance: str,
    divisor: float = 255.0,
) -> Dataset:
    """Return the data set of a source, from images and labels to train and to test on."""
    arrays = *train, *test
    return Dataset(source.name, source.title, *arrays, divisor, source.classes, provenance, fingerprint(*arrays))


def data_directory(option: pathlib.Path | str | None = None) -> pathlib.Path:
    """Return the option ``--data-dir``, else ``$CONTDROP_DATA``, else "contdrop" in the user's cache directory."""
    try:
        chosen = option or os.environ.get(VARIABLE)
        if chosen:
            path = pathlib.Path(chosen).expanduser()
            if path.is_file():
                raise UserError(f"{'--data-dir' if option else VARIABLE}: expected a directory; {path} is a file")
            return path
        return cache_directory()
    except RuntimeError as error:
        raise UserError(f"cannot tell where to keep data ({error}); set {VARIABLE} or give --data-dir") from error


def cache_directory() -> pathlib.Path:
    """Return the folder "contdrop" in the user's cache directory."""
    place = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (place if place.is_absolute() else pathlib.Path.home() / ".cache") / "contdrop"


def get_command(name: str, directory_used: pathlib.Path) -> str:
    """Return the command that downloads a data set into the directory in use."""
    option = "" if directory_used == data_directory() else f" --data-dir {shlex.quote(str(directory_used))}"
    return f"contdrop data get {name}{option}"
