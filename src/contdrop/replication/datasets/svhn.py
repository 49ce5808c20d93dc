"""SVHN, cropped digits: MATLAB files with images ``X`` [32, 32, 3, N] and labels ``y``, of which 10 is the digit 0."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..._text import some_of
from ...errors import UserError
from . import dataset, download, matlab
from .dataset import Dataset, DownloadProgress, MissingError, of_source

_SHAPE = (3, 32, 32)
_AT_ONCE = 1000  # images


@dataclasses.dataclass(frozen=True)
class File:
    """A file: its images, and its size and MD5 as published, if it was."""

    name: str
    images: int
    bytes: int = 0
    md5: str = ""


@dataclasses.dataclass(frozen=True)
class SvhnSource:
    """Files in a folder: some to train on, one after the other, and one to test on."""

    name: str
    title: str
    folder: str
    training: tuple[File, ...]
    testing: File
    mirrors: tuple[str, ...] = ()
    offered: str = ""
    classes: tuple[str, ...] = tuple("0123456789")
    shape: tuple[int, int, int] = _SHAPE

    @property
    def train(self) -> int:
        return sum(file.images for file in self.training)

    @property
    def test(self) -> int:
        return self.testing.images

    def place(self, directory: pathlib.Path) -> str:
        return str(directory / self.folder)

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        folder = directory / self.folder
        return tuple(file.name for file in (*self.training, self.testing) if not (folder / file.name).is_file())

    def load(self, directory: pathlib.Path) -> Dataset:
        missing = self.missing(directory)
        if missing:
            raise MissingError(
                f"{self.name}: {len(missing)} of {len(self.training) + 1} files are missing; put {', '.join(missing)} "
                f"into {directory / self.folder}, or run: {dataset.get_command(self.name, directory)}"
            )
        train, test = (self._part(files, directory) for files in (self.training, (self.testing,)))
        verified = " (every file's MD5 verified)" if self.testing.md5 else ""
        used = ", ".join(file.name for file in (*self.training, self.testing))
        return of_source(self, train, test, f"{self.title}{verified}: {used}")

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        folder = directory / self.folder
        wrong = _wrong((*self.training, self.testing), folder)
        failures: list[str] = []
        if wrong and self.mirrors:
            with download.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            remotes = [download.Remote(file.name, file.bytes, file.md5) for file in wrong]
            failures = download.from_mirrors(self.mirrors, remotes, folder, progress)
            wrong = _wrong(wrong, folder)
        if wrong:
            files = ", ".join(f"{file.name} (md5 {file.md5})" if file.md5 else file.name for file in wrong)
            reasons = "; ".join([*failures, *filter(None, wrong.values())])
            raise UserError(
                f"{self.name}: cannot be downloaded here{f' ({reasons})' if reasons else ''}; put {files} into "
                f"{folder}: {self.offered}"
            )

    def _part(
        self, files: tuple[File, ...], directory: pathlib.Path
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        total = sum(file.images for file in files)
        images, labels = np.empty((total, *_SHAPE), np.uint8), np.empty(total, np.int64)
        start = 0
        for file in files:
            end = start + file.images
            try:
                path = directory / self.folder / file.name
                read(path, images[start:end], labels[start:end])
                _check(path, file)
            except UserError as problem:
                raise UserError(f"{self.name}: {problem}") from problem
            start = end
        return images, labels


def read(path: pathlib.Path, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> None:
    """Fill images [N, 3, 32, 32] and labels [N], some images at a time.

    Raises:
        UserError: The file is no such file, or not of N images.
    """
    wanted, found = (32, 32, 3, len(images)), set[str]()
    try:
        for array in matlab.arrays(path):
            if array.name == "X":
                _read_images(array, wanted, images)
            elif array.name == "y":
                _read_labels(array, labels)
            found.add(array.name)
    except matlab.BrokenError as problem:
        raise UserError(f"{path}: {problem}") from problem
    if not {"X", "y"} <= found:
        raise UserError(f"{path}: expected variables X and y; it has {some_of(sorted(found)) or 'none'}")


def _read_images(array: matlab.Array, wanted: tuple[int, ...], images: npt.NDArray[np.uint8]) -> None:
    if array.shape != wanted or array.kind.itemsize > 1:
        raise matlab.BrokenError(f"expected X of bytes, {wanted}; got {array.kind.name}, {array.shape}")
    for start in range(0, len(images), _AT_ONCE):
        part = images[start : start + _AT_ONCE]
        # By columns: an image after another, of each its channels, of each its columns.
        columns = np.frombuffer(array.read(part.size), np.uint8).reshape(part.shape)
        part[:] = columns.transpose(0, 1, 3, 2)


def _read_labels(array: matlab.Array, labels: npt.NDArray[np.int64]) -> None:
    if array.shape not in ((len(labels), 1), (1, len(labels))):
        raise matlab.BrokenError(f"expected y of {len(labels):,} labels; got {array.shape}")
    values = np.frombuffer(array.read(len(labels) * array.kind.itemsize), array.kind)
    wrong = ~((values >= 1) & (values <= 10) & (np.floor(values) == values))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise matlab.BrokenError(
            f"expected labels from 1 to 10, which is the digit 0; that of image {at} is {values[at]}"
        )
    labels[:] = values % 10


def _wrong(files: Iterable[File], folder: pathlib.Path) -> dict[File, str]:
    """Return missing and damaged files, with the reason; a file without checksum is read to find out."""
    wrong = {}
    for file in files:
        path = folder / file.name
        try:
            if not path.is_file():
                wrong[file] = ""
            elif file.md5:
                _check(path, file)
            else:
                read(path, np.empty((file.images, *_SHAPE), np.uint8), np.empty(file.images, np.int64))
        except UserError as problem:
            wrong[file] = str(problem)
    return wrong


def _check(path: pathlib.Path, file: File) -> None:
    if file.md5 and (found := download.md5_of(path)) != file.md5:
        raise UserError(f"{path}: expected the published file, MD5 {file.md5}; got {found}")


_TRAIN = File("train_32x32.mat", 73_257, 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373")
_TEST = File("test_32x32.mat", 26_032, 64_275_384, "eb5a983be6a315427106f1b164d9cef3")
_EXTRA = File("extra_32x32.mat", 531_131, 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7")
_OWNER = "http://ufldl.stanford.edu/housenumbers/"

SVHN = SvhnSource(
    "svhn", "SVHN, cropped digits", "svhn", (_TRAIN,), _TEST, (_OWNER,), f"its owner offers it at {_OWNER}"
)
SVHN_EXTRA = dataclasses.replace(
    SVHN, name="svhn-extra", title="SVHN, cropped digits, with the extra images", training=(_TRAIN, _EXTRA)
)
# Not the published files, though in their format.
SVHN_SUBSET = SvhnSource(
    "svhn-subset",
    "SVHN cropped digits regenerated from the full-number images, subset",
    "svhn-subset",
    (File("train_32x32.mat", 20_000),),
    File("test_32x32.mat", 8_000),
    offered="the first 20,000 and 8,000 images, made from the full-number images; whole SVHN is the data set svhn",
)
