"""Data sets of published files in a folder: which are here, reading intact copies, downloading the others."""

from __future__ import annotations

import abc
import collections
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from ...errors import UserError
from . import download
from .dataset import Dataset, DatasetSource, DownloadProgress, Images, Labels, MissingError, get_command


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
