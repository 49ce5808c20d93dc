"""A data set in memory, sources of data sets and of published files, and the directory where they are kept."""

from __future__ import annotations

import abc
import collections
import dataclasses
import hashlib
import os
import pathlib
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from ...lab.extensions import DATA_VARIABLE as VARIABLE
from . import download
from .download import DownloadProgress

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class File(download.Remote):
    """A file of a data set, by its published name, size and MD5.

    Attributes:
        examples: How many it holds something of.
        holds: Their images or their labels, if not both.
        sha256: Of its content, unpacked.
    """

    examples: int
    holds: Literal["images", "labels", "both"] = "both"
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.name} (md5 {self.md5})" if self.md5 else self.name


_FILES = pathlib.Path(__file__).with_name("files.txt")


def published(name: str) -> dict[str, Any]:
    """Return the files of a data set, to train and to test on, as they were published."""
    parts: dict[str, tuple[File, ...]] = {"training": (), "testing": ()}
    for line in _FILES.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name} "):
            _, part, holds, examples, file, size, md5, sha256 = line.split()
            known: Any = {"examples": int(examples), "holds": holds, "sha256": sha256}
            parts[part] += (File(file, int(size), md5.strip("-"), **known),)
    return parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(DatasetSource):
    """Base class of data sets of files.

    Attributes:
        training: Files to train on; examples follow each other as the files do.
        testing: Files to test on.
        mirrors: Addresses to which a file's name is added.
        offered: Where else the files are to be had.
    """

    training: tuple[File, ...]
    testing: tuple[File, ...]
    mirrors: tuple[str, ...] = ()
    offered: str = ""
    also: ClassVar[str] = ""  # which other forms of the files will do

    @property
    def files(self) -> tuple[File, ...]:
        return (*self.training, *self.testing)

    @property
    def train(self) -> int:
        return sum(file.examples for file in self.training if file.holds != "labels")

    @property
    def test(self) -> int:
        return sum(file.examples for file in self.testing if file.holds != "labels")

    def names(self, file: File) -> tuple[str, ...]:
        """Return the names by which a file may be in the folder."""
        return (file.name,)

    def here(self, file: File, folder: pathlib.Path) -> list[pathlib.Path]:
        """Return the copies of a file that are in a folder."""
        return [folder / name for name in self.names(file) if os.path.lexists(folder / name)]

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return tuple(file.name for file in self.files if not self.here(file, self.path(directory)))

    def load(self, directory: pathlib.Path) -> Dataset:
        missing = self.missing(directory)
        again = get_command(self.name, directory)
        if missing:
            hints = "".join(f" ({hint})" for hint in self._hints(missing, directory))
            advice = f"; {self.offered}" if self.offered and not self.mirrors else f", or run: {again}"
            raise MissingError(
                f"{self.name}: {len(missing)} of {len(self.files)} files are missing{hints}; put {', '.join(missing)}"
                f"{self.also} into {self.path(directory)}{advice}"
            )
        try:
            images, labels, used = self._read_all(self.path(directory))
        except UserError as problem:
            raise UserError(f"{self.name}: {problem}; to get it again, run: {again}") from problem
        train, test = slice(self.train), slice(self.train, None)
        provenance = f"{self.title}{self._verified}: {', '.join(used)}"
        return self.dataset((images[train], labels[train]), (images[test], labels[test]), provenance)

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        folder, failures = self.path(directory), list[str]()
        wrong = self._wrong(self.files, folder)
        if wrong:
            if self.mirrors:
                with download.writing(folder):
                    folder.mkdir(parents=True, exist_ok=True)
            failures = self._fetch(list(wrong), folder, progress)
        if wrong := self._wrong(wrong, folder):
            reasons = "; ".join([*failures, *filter(None, wrong.values())])
            raise UserError(
                f"{self.name}: cannot be downloaded here{f' ({reasons})' if reasons else ''}; put "
                f"{self._wanted(wrong, folder)}"
            )

    @property
    def _verified(self) -> str:
        """What is said about the files' checksums."""
        return " as published (every file's SHA-256 verified)"

    @abc.abstractmethod
    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        """Fill the arrays that a file holds; raise UserError if it is not the published one."""

    def _check(self, file: File, path: pathlib.Path) -> None:
        """Raise UserError if a file is not the published one."""
        self._fill(file, path, *self._arrays(file.examples))

    def _fetch(self, files: list[File], folder: pathlib.Path, progress: DownloadProgress) -> list[str]:
        """Download files; return the reasons of failures."""
        return download.from_mirrors(self.mirrors, files, folder, progress)

    def _wanted(self, files: Iterable[File], folder: pathlib.Path) -> str:
        """Return in words what to put where."""
        return f"{', '.join(map(str, files))} into {folder}{f'; {self.offered}' if self.offered else ''}"

    def _hints(self, missing: tuple[str, ...], directory: pathlib.Path) -> list[str]:
        """Return where missing files may be found."""
        return []

    def _arrays(self, examples: int) -> tuple[Images, Labels]:
        return np.empty((examples, *self.shape), np.uint8), np.empty(examples, np.int64)

    def _read_all(self, folder: pathlib.Path) -> tuple[Images, Labels, list[str]]:
        """Return images and labels of all files, and the names of the copies that were read."""
        images, labels = self._arrays(self.train + self.test)
        starts, used = collections.Counter[str](), []
        for file in self.files:
            part = slice(starts[file.holds], starts[file.holds] + file.examples)
            fill = partial(self._fill, file, images=images[part], labels=labels[part])
            used.append(self._first_intact(file, folder, fill))
            starts[file.holds] += file.examples
        return images, labels, used

    def _first_intact(self, file: File, folder: pathlib.Path, use: Callable[[pathlib.Path], None]) -> str:
        """Return the name of the first copy that can be used; raise the first one's error if there is none."""
        problems: list[UserError] = []
        for path in self.here(file, folder):
            try:
                use(path)
            except UserError as problem:
                problems.append(problem)
            else:
                return path.name
        raise problems[0] if problems else MissingError(f"{file.name} is missing")

    def _wrong(self, files: Iterable[File], folder: pathlib.Path) -> dict[File, str]:
        """Return the files without an intact copy: what is wrong with the first one, or nothing if there is none."""
        wrong: dict[File, str] = {}
        for file in files:
            try:
                self._first_intact(file, folder, partial(self._check, file))
            except MissingError:
                wrong[file] = ""
            except UserError as problem:
                wrong[file] = str(problem)
        return wrong


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
