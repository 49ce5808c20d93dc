"""The weights in a Caffe model: a NetParameter message in Protocol Buffers' wire format, read by hand.

Of the message only names and blobs are read (caffe.proto: layers of the old kind, V1LayerParameter, are field 2 with
the name in field 4 and blobs in field 6, those of the new kind field 100 with the name in 1 and blobs in 7). A blob has
its values in field 5, packed, and its shape in field 7 or, the old way, in fields 1 to 4. The file is mapped, not read:
what is allocated are objects for layers and blobs, whose number is bounded, and no length in the file is trusted.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..._files import reading
from ..._text import printable
from ...errors import UserError

Layers = dict[str, tuple[npt.NDArray[np.float32], ...]]

_MOST_FIELDS = 100_000  # in the whole file: published models have some thousands
_MOST_DIMENSIONS = 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Kind(NamedTuple):
    """Field numbers of a layer message."""

    name: int
    blobs: int


_KINDS = {2: _Kind(name=4, blobs=6), 100: _Kind(name=1, blobs=7)}


class _BrokenError(Exception):
    """Not this format; the text says where."""


def read(path: pathlib.Path) -> Layers:
    """Return the blobs of each layer as views of the file, which are loaded when they are used.

    Raises:
        UserError: It is not such a file, or not a whole one.
    """
    try:
        with reading(path):
            content = np.memmap(path, np.uint8, mode="r")
    except ValueError:
        raise UserError(f"{path}: expected a Caffe model; it is empty") from None
    try:
        layers = _Reader(content).layers()
    except _BrokenError as problem:
        raise UserError(f"{path}: damaged or no Caffe model: {problem}") from problem
    if not layers:
        raise UserError(f"{path}: expected a Caffe model with weights; it has none: is it a .prototxt?")
    return layers


class _Reader:
    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        self._content = content
        self._bytes = content.data  # a single byte of an array takes ten times as long
        self._fields = 0

    def layers(self) -> Layers:
        found: Layers = {}
        for number, wire, start, end in self._message(0, len(self._content)):
            if number in _KINDS and wire == _BYTES:
                name, blobs = self._layer(start, end, _KINDS[number])
                if not blobs:
                    continue
                if name in found:
                    raise _BrokenError(f"two layers are called {name!r}")
                found[name] = blobs
        return found

    def _layer(self, start: int, end: int, kind: _Kind) -> tuple[str, tuple[npt.NDArray[np.float32], ...]]:
        name, blobs = "", []
        for number, wire, first, last in self._message(start, end):
            if number == kind.name and wire == _BYTES:
                name = printable(bytes(self._bytes[first : min(last, first + 100)]).decode(errors="replace"))
            elif number == kind.blobs and wire == _BYTES:
                blobs.append(self._blob(first, last, name))
        return name, tuple(blobs)

    def _blob(self, start: int, end: int, layer: str) -> npt.NDArray[np.float32]:
        old: dict[int, int] = {}
        shape: list[int] | None = None
        values: npt.NDArray[np.float32] | None = None
        for number, wire, first, last in self._message(start, end):
            if number in (1, 2, 3, 4) and wire == _VARINT:
                old[number] = self._varint(first, last)[0]
            elif number == 7 and wire == _BYTES:
                shape = self._shape(first, last)
            elif number == 5 and wire == _BYTES and (last - first) % 4 == 0 and values is None:
                values = self._content[first:last].view("<f4")
            elif number in (5, 8):
                raise _BrokenError(f"layer {layer!r} has values that are not packed numbers of single precision")
        sizes = tuple(old.get(number, 1) for number in (1, 2, 3, 4)) if shape is None else tuple(shape)
        count = 0 if values is None else len(values)
        if values is None or math.prod(sizes) != count or max(sizes, default=0) >= 2**31:
            shown = "x".join(map(str, sizes))[:80]
            raise _BrokenError(f"layer {layer!r} has {count:,} values where its shape {shown} asks for others")
        return values.reshape(sizes)

    def _shape(self, start: int, end: int) -> list[int]:
        found: list[int] = []
        for number, wire, first, last in self._message(start, end):
            if number != 1 or wire not in (_VARINT, _BYTES):
                continue
            at = first
            while at < last and len(found) <= _MOST_DIMENSIONS:
                size, at = self._varint(at, last)
                found.append(size)
        if len(found) > _MOST_DIMENSIONS:
            raise _BrokenError(f"a shape has more than {_MOST_DIMENSIONS} dimensions")
        return found

    def _message(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, wire type, and where the content is, of each field."""
        at = start
        while at < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise _BrokenError(f"it has more than {_MOST_FIELDS:,} fields")
            key, first = self._varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _BYTES:
                length, first = self._varint(first, end)
                at = first + length
            elif wire in (_FIXED32, _FIXED64):
                at = first + (4 if wire == _FIXED32 else 8)
            elif wire == _VARINT:
                at = self._varint(first, end)[1]
            else:
                raise _BrokenError(f"byte {at:,} starts a field of no known type")
            if at > end:
                raise _BrokenError(f"the field at byte {first:,} would end {at - end:,} bytes after what it is in")
            yield number, wire, first, at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Decode a varint of up to 64 bits, seven per byte; return its value and the offset after it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _BrokenError(f"it ends in the middle of a number, at byte {at:,}")
            byte = self._bytes[at]
            value |= (byte & 127) << shift
            at += 1
            if byte < 128:
                return value, at
        raise _BrokenError(f"a number of more than ten bytes ends at byte {at:,}")
