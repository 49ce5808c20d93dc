"""SVHN, cropped digits: MATLAB files with images ``X`` [32, 32, 3, N] and labels ``y``, of which 10 is the digit 0.

They are read a chunk at a time, so that a file may be larger than memory. A MATLAB file of level 5 is a header of 128
bytes and elements: a type, a size, and so many bytes. A variable is an element of type 14 (matrix), which itself holds
elements: flags, dimensions, name and values by columns; or it is one of type 15, a zlib stream of such an element
("MAT-File Format", The MathWorks). Nothing is allocated by a number in the file: sizes are compared with the
dimensions, and dimensions are checked before values are read.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pathlib
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from ..._files import reading
from ..._text import printable, some_of
from ...errors import UserError
from . import download
from .dataset import File, FileSource, Images, Labels

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC = range(6, 16)  # classes of arrays that hold numbers
_CHUNK = 1 << 16
_MOST_VARIABLES = 1000
_HDF5 = b"MATLAB 7.3"
_AT_ONCE = 1000  # images


@dataclasses.dataclass(frozen=True, kw_only=True)
class SvhnSource(FileSource):
    """A file to test on and one or several to train on."""

    classes: tuple[str, ...] = tuple("0123456789")
    shape: tuple[int, int, int] = (3, 32, 32)

    @property
    def _verified(self) -> str:
        return " (every file's MD5 verified)" if all(file.md5 for file in self.files) else ""

    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        read(path, images, labels)
        _check_md5(file, path)

    def _check(self, file: File, path: pathlib.Path) -> None:
        """Verify the checksum, or read a file that has none."""
        if file.md5:
            _check_md5(file, path)
        else:
            super()._check(file, path)


def _check_md5(file: File, path: pathlib.Path) -> None:
    with reading(path):
        found = download.md5_of(path) if file.md5 else ""
    if found != file.md5:
        raise UserError(f"{path}: expected the published file, MD5 {file.md5}; got {found}")


def read(path: pathlib.Path, images: Images, labels: Labels) -> None:
    """Fill images [N, 3, 32, 32] and labels [N], some images at a time."""
    wanted, found = (32, 32, 3, len(images)), set[str]()
    try:
        with reading(path), path.open("rb") as file:
            for array in _arrays(file, path.stat().st_size):
                if array.name == "X":
                    _read_images(array, wanted, images)
                elif array.name == "y":
                    _read_labels(array, labels)
                found.add(array.name)
    except _BrokenError as problem:
        raise UserError(f"{path}: {problem}") from problem
    if not {"X", "y"} <= found:
        raise UserError(f"{path}: expected variables X and y; it has {some_of(sorted(found)) or 'none'}")


class _BrokenError(Exception):
    """Not this format; the text says where."""


class _Array(NamedTuple):
    """A variable of numbers; its values, which have not been read yet, are stored by columns."""

    name: str
    shape: tuple[int, ...]
    kind: np.dtype[np.generic]
    read: Callable[[int], bytes | bytearray]


def _read_images(array: _Array, wanted: tuple[int, ...], images: Images) -> None:
    if array.shape != wanted or array.kind.itemsize > 1:
        raise _BrokenError(f"expected X of bytes, {wanted}; got {array.kind.name}, {array.shape}")
    for start in range(0, len(images), _AT_ONCE):
        part = images[start : start + _AT_ONCE]
        # By columns: an image after another, of each its channels, of each its columns.
        columns = np.frombuffer(array.read(part.size), np.uint8).reshape(part.shape)
        part[:] = columns.transpose(0, 1, 3, 2)


def _read_labels(array: _Array, labels: Labels) -> None:
    if array.shape not in ((len(labels), 1), (1, len(labels))):
        raise _BrokenError(f"expected y of {len(labels):,} labels; got {array.shape}")
    values = np.frombuffer(array.read(len(labels) * array.kind.itemsize), array.kind)
    wrong = ~((values >= 1) & (values <= 10) & (np.floor(values) == values))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _BrokenError(f"expected labels from 1 to 10, which is the digit 0; that of image {at} is {values[at]}")
    labels[:] = values % 10


def _arrays(file: BinaryIO, size: int) -> Iterator[_Array]:
    """Yield the variables of a file that are arrays of numbers; values that are not read are skipped."""
    header = file.read(128)
    if header.startswith(_HDF5):
        raise _BrokenError("expected a MATLAB file of level 5; it is of version 7.3: save it with -v7")
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if order is None:
        raise _BrokenError(f"expected a MATLAB file of level 5; it starts with {printable(repr(header[:20]))}")
    at = 128
    for _ in range(_MOST_VARIABLES):
        if at == size:
            return
        file.seek(at)
        tag = file.read(8)
        if len(tag) < 8:
            raise _BrokenError("truncated, it ends in the middle of a variable's head")
        kind, length = struct.unpack(f"{order}II", tag)
        if kind not in (_MATRIX, _COMPRESSED):
            raise _BrokenError(f"damaged, expected a variable; got an element of type {kind}")
        at += 8 + length
        if at > size:
            raise _BrokenError(f"truncated, a variable would end {at - size:,} bytes after the end of the file")
        variable = _Variable(file, length, order, compressed=kind == _COMPRESSED)
        if kind == _COMPRESSED and (inner := variable.tag()[0]) != _MATRIX:
            raise _BrokenError(f"damaged, expected a variable; got an element of type {inner}")
        found = variable.array()
        if found is not None:
            yield found
    raise _BrokenError(f"it has more than {_MOST_VARIABLES} variables")


class _Variable:
    """The elements of a variable, unpacked, never more than a chunk ahead."""

    def __init__(self, file: BinaryIO, length: int, order: str, *, compressed: bool) -> None:
        self._file, self._left, self._order, self._buffer = file, length, order, bytearray()
        self._unpacker = zlib.decompressobj() if compressed else None

    def array(self) -> _Array | None:
        """Read all but the values; return None for text, structures and complex numbers."""
        flags, sizes = self._small(8), self._small(64)
        name = printable(self._small(64).decode(errors="replace"))
        if len(flags) != 8 or len(sizes) % 4:
            raise _BrokenError("damaged, a variable's head makes no sense")
        (word,) = struct.unpack(f"{self._order}I", flags[:4])
        if word & 0xFF not in _NUMERIC or word & 0x0800:
            return None
        shape = struct.unpack(f"{self._order}{len(sizes) // 4}i", sizes)
        kind, size, content = self.tag()
        if kind not in _TYPES:
            raise _BrokenError(f"damaged, the values of {name!r} are of no known type")
        code = np.dtype(self._order + _TYPES[kind])
        if min(shape, default=-1) < 0 or math.prod(shape) * code.itemsize != size:
            raise _BrokenError(
                f"damaged, {name!r} has {size:,} bytes of values where its dimensions {shape} ask for others"
            )
        return _Array(name, shape, code, self._read if content is None else io.BytesIO(content).read)

    def tag(self) -> tuple[int, int, bytes | bytearray | None]:
        """Read the type and size of an element, and the content of a small one, which is in its tag."""
        tag = self._read(8)
        kind, size = struct.unpack(f"{self._order}II", tag)
        small = kind >> 16
        if small > 4:
            raise _BrokenError("damaged, a small element is larger than four bytes")
        return (kind & 0xFFFF, small, tag[4 : 4 + small]) if small else (kind, size, None)

    def _small(self, most: int) -> bytes | bytearray:
        """Return the content of an element of at most ``most`` bytes."""
        _, size, content = self.tag()
        if content is not None:
            return content
        if size > most:
            raise _BrokenError(f"damaged, expected at most {most} bytes; an element has {size:,}")
        return self._read(size + -size % 8)[:size]

    def _read(self, count: int) -> bytes | bytearray:
        while len(self._buffer) < count:
            self._buffer += self._piece()
        found, self._buffer = self._buffer, self._buffer[count:]
        del found[count:]
        return found

    def _piece(self) -> bytes:
        packed = self._unpacker.unconsumed_tail if self._unpacker else b""
        if not packed:
            packed = self._file.read(min(self._left, _CHUNK))
            self._left -= len(packed)
        try:
            piece = self._unpacker.decompress(packed, _CHUNK) if self._unpacker else packed
        except zlib.error as error:
            raise _BrokenError(f"damaged compressed data ({error})") from error
        if not piece and (not packed or (self._unpacker and self._unpacker.eof)):
            raise _BrokenError("truncated, a variable is smaller than what it holds")
        return piece


_TRAIN = File("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373", examples=73_257)
_TEST = File("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3", examples=26_032)
_EXTRA = File("extra_32x32.mat", 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7", examples=531_131)
_OWNER = "http://ufldl.stanford.edu/housenumbers/"

SVHN = SvhnSource(
    name="svhn",
    title="SVHN, cropped digits",
    training=(_TRAIN,),
    testing=(_TEST,),
    mirrors=(_OWNER,),
    offered=f"its owner offers it at {_OWNER}",
)
SVHN_EXTRA = dataclasses.replace(
    SVHN,
    name="svhn-extra",
    title="SVHN, cropped digits, with the extra images",
    folder="svhn",
    training=(_TRAIN, _EXTRA),
)
# Not the published files, though in their format.
SVHN_SUBSET = SvhnSource(
    name="svhn-subset",
    title="SVHN cropped digits regenerated from the full-number images, subset",
    training=(File(_TRAIN.name, examples=20_000),),
    testing=(File(_TEST.name, examples=8_000),),
    offered="the first 20,000 and 8,000 images, made from the full-number images; whole SVHN is the data set svhn",
)
