"""NORB: stereo pairs of toys in a binary matrix format, jittered and cluttered in 108x108 or small in 96x96.

A file is a magic number that names the type of its values, the number of dimensions, their sizes (at least three are
written, whatever their number), and the values, all little-endian; it may be gzipped
(https://cs.nyu.edu/~ylclab/data/norb-v1.0). Images are read and reduced some at a time: a fold is 680 MB.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import pathlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..._files import reading
from ...errors import UserError
from .dataset import File, FileSource, Images, Labels

_KINDS = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}
_PACKED = 0x1E3D4C52
_MOST_DIMENSIONS = 8
_AT_ONCE = 500  # pairs of images


def matrix(path: pathlib.Path, shape: tuple[int, ...], at_once: int) -> Iterator[npt.NDArray[np.generic]]:
    """Yield some rows at a time of a file, gzipped or not, that has to hold a matrix of this shape and nothing else."""
    with reading(path), path.open("rb") as plain:
        gzipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        file: BinaryIO = gzip.GzipFile(fileobj=plain) if gzipped else plain  # type: ignore[assignment]
        try:
            kind = _read_head(file, path, shape)
            for start in range(0, shape[0], at_once):
                part = min(at_once, shape[0] - start), *shape[1:]
                content = file.read(math.prod(part) * kind.itemsize)
                if len(content) != math.prod(part) * kind.itemsize:
                    raise UserError(f"{path}: truncated, it ends in the middle of its values")
                yield np.frombuffer(content, kind).reshape(part)
            if file.read(1):
                raise UserError(f"{path}: too long, bytes follow its {shape[0]:,} rows")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path}: damaged gzip data ({error})") from error


def _read_head(file: BinaryIO, path: pathlib.Path, shape: tuple[int, ...]) -> np.dtype[np.generic]:
    """Return the type of a matrix's values; refuse one of another shape."""
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
    return np.dtype(_KINDS[magic])


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class NorbSource(FileSource):
    """Folds: of each, a file of pairs of images (dat) and one of categories (cat), gzipped or not.

    Attributes:
        original: Side of the images before they are reduced.
    """

    original: int
    offered: str = "its owner offers it at https://cs.nyu.edu/~ylclab/data/norb-v1.0"
    also: ClassVar[str] = ", unpacked if you like,"

    def names(self, file: File) -> tuple[str, ...]:
        return file.name, file.name.removesuffix(".gz")

    @property
    def _verified(self) -> str:
        side = self.shape[-1]
        size = "" if side == self.original else f", reduced from {self.original} to {side} pixels"
        return f"{size} (no checksums are published)"

    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        if file.holds == "images":
            start = 0
            for pairs in matrix(path, (len(images), 2, self.original, self.original), _AT_ONCE):
                if pairs.itemsize > 1:
                    raise UserError(f"{path}: expected images of bytes; it has {pairs.dtype.name}")
                images[start : start + len(pairs)] = reduced(pairs.astype(np.uint8), self.shape[-1])
                start += len(pairs)
            return
        (values,) = matrix(path, labels.shape, len(labels))
        largest = len(self.classes) - 1
        wrong = ~np.isin(values, np.arange(largest + 1))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UserError(f"{path}: expected categories from 0 to {largest}; that of pair {at} is {values[at]}")
        labels[:] = values


def folds(names: Iterable[str], pairs: int) -> tuple[File, ...]:
    """Return the two files of each fold."""
    return tuple(
        File(f"{name}{what}.mat.gz", examples=pairs, holds=holds) for name in names for what, holds in _HOLDS.items()
    )


_HOLDS: dict[str, Literal["images", "labels"]] = {"dat": "images", "cat": "labels"}
_TOYS = ("animal", "human", "airplane", "truck", "car")

# As the paper has it: two of the ten training folds.
NORB = NorbSource(
    name="norb",
    title="NORB, jittered and cluttered, two training folds",
    classes=(*_TOYS, "nothing"),
    shape=(2, 48, 48),
    training=folds((f"norb-5x46789x9x18x6x2x108x108-training-{fold:02}-" for fold in (1, 2)), 29_160),
    testing=folds((f"norb-5x01235x9x18x6x2x108x108-testing-{fold:02}-" for fold in (1, 2)), 29_160),
    original=108,
)
SMALL_NORB = NorbSource(
    name="small-norb",
    title="small NORB",
    classes=_TOYS,
    shape=(2, 96, 96),
    training=folds(["smallnorb-5x46789x9x18x6x2x96x96-training-"], 24_300),
    testing=folds(["smallnorb-5x01235x9x18x6x2x96x96-testing-"], 24_300),
    original=96,
)
