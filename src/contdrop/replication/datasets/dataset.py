"""A data set in memory, the interface of its source, and the directory where data sets are kept."""

from __future__ import annotations

import abc
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

Images = npt.NDArray[np.uint8]  # [N, C, H, W]
Labels = npt.NDArray[np.int64]  # [N]
Examples = tuple[Images, Labels]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, as stored: a pixel's value as a float is the stored value divided by ``divisor``."""

    name: str
    title: str
    train_images: Images  # C-contiguous
    train_labels: Labels
    test_images: Images
    test_labels: Labels
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSource(abc.ABC):
    """A data set by name: how large it is, whether it is here, and how to load and get it.

    Attributes:
        name: Unique.
        title: In a line.
        classes: Their names.
        shape: Channels, height and width of an image.
        folder: Of its files in the data directory, if not called as the data set is.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    folder: str = ""

    @property
    @abc.abstractmethod
    def train(self) -> int:
        """Number of images to train and validate on."""

    @property
    @abc.abstractmethod
    def test(self) -> int:
        """Number of images to test on."""

    def path(self, directory: pathlib.Path) -> pathlib.Path:
        return directory / (self.folder or self.name)

    def place(self, directory: pathlib.Path) -> str:
        """Return the place where it is looked for, in words or as a path."""
        return str(self.path(directory))

    @abc.abstractmethod
    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        """Return the names of missing files; nothing is read."""

    @abc.abstractmethod
    def load(self, directory: pathlib.Path) -> Dataset:
        """Read and verify the data set.

        Raises:
            MissingError: it is not here.
            UserError: it is damaged.
        """

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        """Download what is missing or damaged; a data set that cannot be downloaded is read."""
        self.load(directory)

    def check(self, directory: pathlib.Path) -> str:
        """Read and verify all of it, and return in a line what it is."""
        return self.load(directory).provenance

    def dataset(self, train: Examples, test: Examples, provenance: str, divisor: float = 255.0) -> Dataset:
        """Return the data set of images and labels to train and to test on."""
        arrays = *train, *test
        return Dataset(self.name, self.title, *arrays, divisor, self.classes, provenance, fingerprint(*arrays))


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
