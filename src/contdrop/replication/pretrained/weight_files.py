"""Files of weights: Caffe models and state_dicts, read without executing anything, and copied with shapes checked.

A Caffe model is a NetParameter message in Protocol Buffers' wire format. Of the message only names and blobs are read
(caffe.proto: layers of the old kind, V1LayerParameter, are field 2 with the name in field 4 and blobs in field 6, those
of the new kind field 100 with the name in 1 and blobs in 7). A blob has its values in field 5, packed, and its shape in
field 7 or, the old way, in fields 1 to 4. The file is mapped, not read: what is allocated are objects for layers and
blobs, whose number is bounded, and no length in the file is trusted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..._files import reading
from ..._text import printable, some_of
from ...errors import UserError

Blobs = tuple[npt.NDArray[np.float32], ...]
Layers = dict[str, Blobs]


@dataclasses.dataclass(frozen=True)
class Assigned:
    """Outcome for each layer.

    Attributes:
        layers: Layers that got their weights, with the shape of those.
        left: Layers of the network that the file does not have: they stay as they were.
        unused: Layers of the file that the network does not have.
    """

    layers: dict[str, tuple[int, ...]]
    left: tuple[str, ...]
    unused: tuple[str, ...]


@torch.no_grad()
def assign(network: nn.Module, found: Layers, title: str) -> Assigned:
    """Copy weights and biases into the layers of the same names, if all that are there fit; others stay random.

    Shapes have to be equal up to dimensions of size one, which Caffe adds in front.

    Args:
        network: Gets them.
        found: By layer, weights and biases.
        title: What to call the file in an error.
    """
    wanted = {
        name: [part for part in (module.weight, module.bias) if part is not None]
        for name, module in _layers(network, found).items()
    }
    both = [name for name in wanted if name in found]
    if not both:
        raise UserError(f"{title}: expected layers such as {', '.join([*wanted][:3])}; got {some_of(found, 3)}")
    for name in both:
        _check(name, [tuple(part.shape) for part in wanted[name]], [array.shape for array in found[name]], title)
    for name in both:
        for part, array in zip(wanted[name], found[name]):
            part.copy_(torch.tensor(array).reshape(part.shape))
    return Assigned(
        {name: tuple(wanted[name][0].shape) for name in both},
        tuple(name for name in wanted if name not in found),
        tuple(name for name in found if name not in wanted),
    )


def lacking(network: nn.Module, found: Layers) -> tuple[str, ...]:
    """Return the layers of a network that a file does not have."""
    return tuple(name for name in _layers(network, found) if name not in found)


def refuse_lacking(layers: Sequence[str], title: str) -> None:
    """Raise UserError if there are missing layers, which would be random and pass for published ones."""
    if layers:
        raise UserError(
            f"{title}: expected weights of every layer of the published network; got none of {', '.join(layers)}, "
            "which would be random; put the whole file there"
        )


def _layers(network: nn.Module, found: Layers) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the network's layers by their names in a file."""
    modules = network.named_modules()
    return {_called(name, found): module for name, module in modules if isinstance(module, (nn.Conv2d, nn.Linear))}


def _called(module: str, found: Layers) -> str:
    """Return a layer's name in a file: the full name, or without its container and the trailing "linear"."""
    return module if module in found else module.removesuffix(".linear").rpartition(".")[2]


def _check(layer: str, wanted: list[tuple[int, ...]], found: list[tuple[int, ...]], title: str) -> None:
    if len(wanted) != len(found) or any(_core(a) != _core(b) for a, b in zip(wanted, found)):
        expected, got = (" and ".join("x".join(map(str, shape)) for shape in shapes) for shapes in (wanted, found))
        raise UserError(f"{title}: layer {layer}: expected weights of {expected}; got {got or 'none'}")


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading ones, but for a single one."""
    return tuple(itertools.dropwhile(lambda size: size == 1, shape)) or (1,)


_TORCH = (b"PK\x03\x04", b"\x80\x02")  # since version 1.6, and before


def read(path: pathlib.Path) -> Layers:
    """Return weights and biases by layer, from a Caffe model or from a state_dict that torch saved."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of weights; it is {'a directory' if path.is_dir() else 'not there'}")
    with path.open("rb") as file:
        start = file.read(4)
    return _of_torch(path) if start.startswith(_TORCH) else _read_caffe(path)


def _of_torch(path: pathlib.Path) -> Layers:
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises its own kinds, and those of zip files and pickles
        reason = printable(str(error).split(". ")[0])[:120]
        raise UserError(f"{path}: damaged, or more than the tensors of a state_dict ({reason})") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    plain = {
        str(key): tensor.detach().to(torch.float32).numpy()
        for key, tensor in (found.items() if isinstance(found, dict) else ())
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.is_floating_point()
    }
    layers: Layers = {}
    for key, weight in plain.items():
        layer, _, part = key.rpartition(".")
        bias = plain.get(f"{key.removesuffix('weight')}bias")
        if part == "weight":
            layers[layer] = (weight,) if bias is None else (weight, bias)
    if not layers:
        raise UserError(f"{path}: expected a state_dict, tensors called layer.weight and layer.bias; it has none such")
    return layers


_MOST_FIELDS = 100_000  # in the whole file: published models have some thousands
_MOST_DIMENSIONS = 8
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}  # wire types; of fixed ones, the number of bytes

# The kinds of layer messages, by their field numbers: those of a layer's name and of its blobs.
_KINDS = {2: (4, 6), 100: (1, 7)}


class _BrokenError(Exception):
    """Not this format; the text says where."""


def _read_caffe(path: pathlib.Path) -> Layers:
    """Return the blobs of each layer as views of the file, which are loaded when they are used."""
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
        for number, value in self._message(slice(0, len(self._content))):
            if number in _KINDS and isinstance(value, slice):
                name, blobs = self._layer(value, *_KINDS[number])
                if not blobs:
                    continue
                if name in found:
                    raise _BrokenError(f"two layers are called {name!r}")
                found[name] = blobs
        return found

    def _layer(self, message: slice, of_name: int, of_blob: int) -> tuple[str, Blobs]:
        name, blobs = "", []
        for number, value in self._message(message):
            if number == of_name and isinstance(value, slice):
                name = printable(bytes(self._bytes[value][:100]).decode(errors="replace"))
            elif number == of_blob and isinstance(value, slice):
                blobs.append(self._blob(value, name))
        return name, tuple(blobs)

    def _blob(self, message: slice, layer: str) -> npt.NDArray[np.float32]:
        old: dict[int, int] = {}
        shape: list[int] | None = None
        values: npt.NDArray[np.float32] | None = None
        for number, value in self._message(message):
            if number in (1, 2, 3, 4) and isinstance(value, int):
                old[number] = value
            elif number == 7 and isinstance(value, slice):
                shape = self._shape(value)
            elif number == 5 and isinstance(value, slice) and not (value.stop - value.start) % 4 and values is None:
                values = self._content[value].view("<f4")
            elif number in (5, 8):
                raise _BrokenError(f"layer {layer!r} has values that are not packed numbers of single precision")
        sizes = tuple(old.get(number, 1) for number in (1, 2, 3, 4)) if shape is None else tuple(shape)
        count = 0 if values is None else len(values)
        if values is None or math.prod(sizes) != count or max(sizes, default=0) >= 2**31:
            shown = "x".join(map(str, sizes))[:80]
            raise _BrokenError(f"layer {layer!r} has {count:,} values where its shape {shown} asks for others")
        return values.reshape(sizes)

    def _shape(self, message: slice) -> list[int]:
        found: list[int] = []
        for number, value in self._message(message):
            if number == 1 and isinstance(value, int):
                found.append(value)
            elif number == 1 and isinstance(value, slice):  # packed
                at = value.start
                while at < value.stop and len(found) <= _MOST_DIMENSIONS:
                    size, at = self._varint(at, value.stop)
                    found.append(size)
        if len(found) > _MOST_DIMENSIONS:
            raise _BrokenError(f"a shape has more than {_MOST_DIMENSIONS} dimensions")
        return found

    def _message(self, message: slice) -> Iterator[tuple[int, int | slice | None]]:
        """Yield the number and the value of each field: whole numbers, places of bytes, and None for what is fixed."""
        at, end = message.start, message.stop
        while at < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise _BrokenError(f"it has more than {_MOST_FIELDS:,} fields")
            key, first = self._varint(at, end)
            value: int | slice | None = None
            if key & 7 == _BYTES:
                length, first = self._varint(first, end)
                at = first + length
                value = slice(first, at)
            elif key & 7 in _FIXED:
                at = first + _FIXED[key & 7]
            elif key & 7 == _VARINT:
                value, at = self._varint(first, end)
            else:
                raise _BrokenError(f"byte {at:,} starts a field of no known type")
            if at > end:
                raise _BrokenError(f"the field at byte {first:,} would end {at - end:,} bytes after what it is in")
            yield key >> 3, value

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
