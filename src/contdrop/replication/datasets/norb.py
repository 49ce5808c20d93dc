"""NORB: stereo pairs of toys in a binary matrix format, jittered and cluttered in 108x108 or small in 96x96.

A file is a magic number that names the type of its values, the number of dimensions, their sizes (at least three are
written, whatever their number), and the values, all little-endian; it may be gzipped
(https://cs.nyu.edu/~ylclab/data/norb-v1.0). Images are read and reduced some at a time: a fold is 680 MB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import math
import os
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..._files import reading
from ...errors import UserError
from . import dataset
from .dataset import Dataset, DownloadProgress, MissingError, of_source

_KINDS = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}
_PACKED = 0x1E3D4C52
_MOST_DIMENSIONS = 8
_AT_ONCE = 500  # pairs of images
_OWNER = "its owner offers it at https://cs.nyu.edu/~ylclab/data/norb-v1.0"


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix whose values have not been read yet."""

    shape: tuple[int, ...]
    kind: np.dtype[np.generic]
    file: BinaryIO
    path: pathlib.Path

    def rows(self, count: int) -> npt.NDArray[np.generic]:
        """Read the next rows."""
        shape = (count, *self.shape[1:])
        wanted = math.prod(shape) * self.kind.itemsize
        with _explained(self.path):
            content = self.file.read(wanted)
        if len(content) != wanted:
            raise UserError(f"{self.path}: truncated, it ends in the middle of its values")
        return np.frombuffer(content, self.kind).reshape(shape)

    def end(self) -> None:
        """Raise UserError if anything follows what has been read."""
        with _explained(self.path):
            if self.file.read(1):
                raise UserError(f"{self.path}: too long, bytes follow its {self.shape[0]:,} rows")


@contextlib.contextmanager
def matrix(path: pathlib.Path, shape: tuple[int, ...]) -> Iterator[Matrix]:
    """Open a file, gzipped or not, that has to hold a matrix of this shape.

    Raises:
        UserError: It is no such file.
    """
    with _explained(path), path.open("rb") as plain:
        gzipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file: BinaryIO = gzip.GzipFile(fileobj=plain) if gzipped else plain  # type: ignore[assignment]
        yield _head(file, path, shape)


def _head(file: BinaryIO, path: pathlib.Path, shape: tuple[int, ...]) -> Matrix:
    start = file.read(8)
    if len(start) < 8:
        raise UserError(f"{path}: truncated, {len(start)} bytes are less than the head of a matrix")
    magic, dimensions = struct.unpack("<II", start)
    if magic == _PACKED:
        raise UserError(f"{path}: expected a matrix of plain numbers; it is a packed one, which NORB does not use")
    if magic not in _KINDS:
        raise UserError(f"{path}: expected a matrix, which starts with a number such as 1e3d4c55; got {magic:08x}")
    if dimensions > _MOST_DIMENSIONS:
        raise UserError(f"{path}: expected at most {_MOST_DIMENSIONS} dimensions; its head says {dimensions:,}")
    written = max(dimensions, 3)
    rest = file.read(4 * written)
    if len(rest) < 4 * written:
        raise UserError(f"{path}: truncated, it ends in the middle of its head")
    found = struct.unpack(f"<{written}i", rest)[:dimensions]
    if found != shape:
        expected, got = ("x".join(map(str, sizes)) for sizes in (shape, found))
        raise UserError(f"{path}: expected a matrix of {expected}; its head says {got}")
    return Matrix(found, np.dtype(_KINDS[magic]), file, path)


@contextlib.contextmanager
def _explained(path: pathlib.Path) -> Iterator[None]:
    with reading(path):
        try:
            yield
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path}: damaged gzip data ({error})") from error


def area_matrix(before: int, after: int) -> npt.NDArray[np.float32]:
    """Return a matrix [after, before] by which a pixel becomes the mean over its area in the original.

    ``R`` reduces the rows of an image x by ``R @ x``, and both directions by ``R @ x @ R.T``.
    """
    edges = np.arange(after + 1) * before / after
    pixels = np.arange(before)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: npt.NDArray[np.float32] = (np.maximum(covered, 0) * after / before).astype(np.float32)
    return weights


def reduced(images: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Reduce images [..., H, H] to fewer pixels by :func:`area_matrix`, rounded."""
    if images.shape[-1] == side:
        return images
    reduce = area_matrix(images.shape[-1], side)
    smaller: npt.NDArray[np.float32] = reduce @ images.astype(np.float32) @ reduce.T
    return np.rint(smaller).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class NorbSource:
    """Folds in a folder: of each, a file of pairs of images (dat) and one of categories (cat)."""

    name: str
    title: str
    training: tuple[str, ...]  # what the files of a fold are called, up to "dat.mat" or "cat.mat"
    testing: tuple[str, ...]
    pairs: int  # in each fold
    original: int  # side of the images
    side: int  # that they are reduced to
    classes: tuple[str, ...]

    @property
    def train(self) -> int:
        return len(self.training) * self.pairs

    @property
    def test(self) -> int:
        return len(self.testing) * self.pairs

    @property
    def shape(self) -> tuple[int, int, int]:
        return 2, self.side, self.side

    def place(self, directory: pathlib.Path) -> str:
        return str(directory / self.name)

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        names = [f"{fold}{what}.mat" for fold in (*self.training, *self.testing) for what in ("dat", "cat")]
        return tuple(f"{name}.gz" for name in names if not _here(directory / self.name, name))

    def load(self, directory: pathlib.Path) -> Dataset:
        missing = self.missing(directory)
        if missing:
            raise MissingError(
                f"{self.name}: {len(missing)} of {2 * (len(self.training) + len(self.testing))} files are missing; put "
                f"{', '.join(missing)}, unpacked if you like, into {directory / self.name}: {_OWNER}"
            )
        train, test = (self._part(folds, directory) for folds in (self.training, self.testing))
        size = "" if self.side == self.original else f", reduced from {self.original} to {self.side} pixels"
        used = ", ".join((*self.training, *self.testing))
        return of_source(self, train, test, f"{self.title}{size} (no checksums are published): {used}")

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        try:
            self.load(directory)
        except MissingError as problem:
            raise UserError(f"{problem}; {dataset.get_command(self.name, directory)} cannot get it") from problem

    def _part(
        self, folds: tuple[str, ...], directory: pathlib.Path
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        total = len(folds) * self.pairs
        images, labels = np.empty((total, *self.shape), np.uint8), np.empty(total, np.int64)
        for number, fold in enumerate(folds):
            part = slice(number * self.pairs, (number + 1) * self.pairs)
            folder = directory / self.name
            try:
                self._images(_here(folder, f"{fold}dat.mat")[0], images[part])
                self._labels(_here(folder, f"{fold}cat.mat")[0], labels[part])
            except UserError as problem:
                raise UserError(f"{self.name}: {problem}") from problem
        return images, labels

    def _images(self, path: pathlib.Path, images: npt.NDArray[np.uint8]) -> None:
        with matrix(path, (self.pairs, 2, self.original, self.original)) as found:
            if found.kind.itemsize > 1:
                raise UserError(f"{path}: expected images of bytes; it has {found.kind.name}")
            for start in range(0, self.pairs, _AT_ONCE):
                part = images[start : start + _AT_ONCE]
                part[:] = reduced(found.rows(len(part)).astype(np.uint8), self.side)
            found.end()

    def _labels(self, path: pathlib.Path, labels: npt.NDArray[np.int64]) -> None:
        with matrix(path, (self.pairs,)) as found:
            values = found.rows(self.pairs)
            found.end()
        wrong = ~np.isin(values, np.arange(len(self.classes)))
        if wrong.any():
            at = int(np.argmax(wrong))
            largest = len(self.classes) - 1
            raise UserError(f"{path}: expected categories from 0 to {largest}; that of pair {at} is {values[at]}")
        labels[:] = values


def _here(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    return [folder / each for each in (f"{name}.gz", name) if os.path.lexists(folder / each)]


_TOYS = ("animal", "human", "airplane", "truck", "car")
_BIG = "norb-5x{instances}x9x18x6x2x108x108-{part}-{fold:02}-"
_SMALL = "smallnorb-5x{instances}x9x18x6x2x96x96-{part}-"
_TRAINING, _TESTING = {"instances": "46789", "part": "training"}, {"instances": "01235", "part": "testing"}

# As the paper has it: two of the ten training folds.
NORB = NorbSource(
    name="norb",
    title="NORB, jittered and cluttered, two training folds",
    training=tuple(_BIG.format(**_TRAINING, fold=fold) for fold in (1, 2)),
    testing=tuple(_BIG.format(**_TESTING, fold=fold) for fold in (1, 2)),
    pairs=29_160,
    original=108,
    side=48,
    classes=(*_TOYS, "nothing"),
)
SMALL_NORB = NorbSource(
    name="small-norb",
    title="small NORB",
    training=(_SMALL.format(**_TRAINING),),
    testing=(_SMALL.format(**_TESTING),),
    pairs=24_300,
    original=96,
    side=96,
    classes=_TOYS,
)
