"""The state of a training run as bytes: a header in JSON, then the tensors as they lie in memory. Nothing is pickled.

So a file that somebody sends is data and nothing else: whatever it holds, reading it runs nothing.

Layout: a magic line; the header's length in 8 bytes, little-endian; the header; the tensors' bytes, one after the
other, little-endian. The header has the structure, in which a tensor stands as its type and shape,
and the order of its axes in memory where that is another one.

What a network's ``state_dict`` leaves out is found and put back here, too.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAGIC = b"contdrop state 1\n"
_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_NUMBERS = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
_NUMBERS |= {"float16", "float32", "float64"}


class StateError(ValueError):
    """These bytes are no state; the text says why."""


def parts(content: Any) -> list[bytes | memoryview]:
    """Of tensors, numbers (NumPy's, too), texts, None, and lists and dictionaries (by text or whole number) of them.

    In pieces, to be written one after the other: a tensor on the CPU is not copied.

    Example:
        >>> loads(b"".join(parts({"step": 3, "lowest": float("inf"), 0: [torch.arange(2)]})))
        {'step': 3, 'lowest': inf, 0: [tensor([0, 1])]}
    """
    assert sys.byteorder == "little", "torch runs on no other machines"
    tensors: list[memoryview] = []
    header = json.dumps(_plain(content, tensors), separators=(",", ":"), allow_nan=False).encode()
    return [MAGIC, len(header).to_bytes(8, "little"), header, *tensors]


def _plain(content: Any, tensors: list[memoryview]) -> Any:
    if isinstance(content, Tensor):
        return {"tensor": _described(content, tensors)}
    if isinstance(content, Mapping):
        kind = "counter" if isinstance(content, Counter) else "dict"  # torch asks one for its elements
        return {kind: [[_key(key), _plain(value, tensors)] for key, value in content.items()]}
    if isinstance(content, list | tuple):
        return [_plain(value, tensors) for value in content]
    if isinstance(content, np.generic) and content.dtype.kind in "biuf":
        return {"numpy": [content.dtype.name, _plain(content.item(), tensors)]}
    if isinstance(content, float) and not math.isfinite(content):
        return {"float": str(content)}
    if content is None or isinstance(content, bool | int | float | str):
        return content
    raise TypeError(f"a state holds tensors, numbers, texts, lists and dictionaries; got {type(content).__name__}")


def _described(tensor: Tensor, tensors: list[memoryview]) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise TypeError(f"expected tensors of {', '.join(_TYPES)}; got {name}; keep it in one of these types")
    order = _order(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    tensors.append(plain.permute(order).contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return [name, list(tensor.shape), *([] if order == sorted(order) else [order])]


def _order(tensor: Tensor) -> list[int]:
    """The axes as they lie in memory, the slowest first; as they are numbered, if they overlap or have gaps.

    A fused optimizer takes it for granted that its state lies in memory as the parameter does.
    """
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
    return order if tensor.permute(order).is_contiguous() else sorted(order)


def _key(key: Any) -> str | int:
    if isinstance(key, np.integer):
        return int(key)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a state's dictionaries have texts and whole numbers as keys; got {key!r}")
    return key


def loads(data: bytes | memoryview) -> Any:
    """The content; raises :class:`StateError` if the bytes are none, or not all of it."""
    if data[: len(MAGIC)] != MAGIC:
        raise StateError("expected a state of contdrop, which starts with its name")
    start = len(MAGIC) + 8
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        header = json.loads(bytes(data[start:end]))
        reader = _Reader(memoryview(data)[end:])
        content = reader.content(header)
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError, OverflowError) as error:
        raise StateError(f"expected a state of contdrop; its header makes no sense ({error})") from error
    if len(reader.data):
        raise StateError(f"expected the end of a state; {len(reader.data)} bytes follow")
    return content


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data

    def content(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.content(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, value),) = plain.items()
        if kind in ("dict", "counter"):
            found = {_key(key): self.content(each) for key, each in value}
            return Counter(found) if kind == "counter" else found
        if kind == "float":
            return float(value)
        if kind == "numpy":
            return self._number(*value)
        if kind == "tensor":
            return self._tensor(*value)
        raise ValueError(f"unknown part {kind!r}")

    def _number(self, name: str, value: Any) -> Any:
        if name not in _NUMBERS:
            raise ValueError(f"a number of type {name!r}")
        return np.dtype(name).type(self.content(value))

    def _tensor(self, name: str, shape: list[int], order: list[int] | None = None) -> Tensor:
        kind = _TYPES[name]
        order = list(range(len(shape))) if order is None else order
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"axes {order} of a shape of {shape}")
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"a shape of {shape}")
        size = math.prod(shape) * kind.itemsize
        if size > len(self.data):
            raise ValueError(f"{size} bytes of a tensor are not all there")
        part, self.data = self.data[:size], self.data[size:]
        made = torch.empty([shape[axis] for axis in order], dtype=kind)
        if size:
            made.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(part, np.uint8)
        return made.permute([order.index(axis) for axis in range(len(shape))])


def beside(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that a network's ``state_dict`` leaves out, which may be a mean that training keeps up to date."""
    known = network.state_dict()
    return {name: buffer for name, buffer in network.named_buffers() if name not in known}


@torch.no_grad()
def put_beside(network: nn.Module, buffers: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts them back: in place where that is possible, because modules may share one."""
    for name, saved in buffers.items():
        owner, _, leaf = name.rpartition(".")
        module, saved = network.get_submodule(owner), saved.to(device)
        there = getattr(module, leaf, None)
        if not isinstance(there, Tensor) or (there.shape, there.dtype) != (saved.shape, saved.dtype):
            module.register_buffer(leaf, saved, persistent=False)
        elif not torch.equal(there, saved):  # one that is spread over fewer numbers cannot be written to
            there.copy_(saved)


def of_network(network: nn.Module) -> dict[str, Any]:
    """All that makes a network what it is, its buffers that ``state_dict`` leaves out among it."""
    return {"network": network.state_dict(), "buffers": beside(network)}


def into_network(network: nn.Module, saved: Mapping[str, Any]) -> None:
    """Puts it back; of older stores, which kept the ``state_dict`` alone, that."""
    whole = saved if set(saved) == {"network", "buffers"} else {"network": saved, "buffers": {}}
    network.load_state_dict(whole["network"])
    put_beside(network, whole["buffers"], torch.device("cpu"))
