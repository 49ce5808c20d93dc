"""State of a training run as bytes, and of a network with the buffers that its ``state_dict`` leaves out.

The bytes are those of ``torch.save``. Only content that ``torch.load(weights_only=True)`` accepts is saved, so reading
a file runs no code.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

_OF_0_1_0 = b"contdrop state 1\n"
_DTYPES = [type(np.dtype(code)) for code in "?bhilqBHILQefd"]
_NUMBERS: list[Any] = [np.float64(0).__reduce__()[0], np.dtype, *_DTYPES]  # of NumPy


class StateError(ValueError):
    """Bytes that are not a state."""


def parts(content: Any) -> list[bytes | memoryview]:
    """Return content as bytes, in pieces to be written one after the other; strides and shared memory are kept.

    Raises:
        TypeError: The content has something else than tensors, numbers (NumPy's, too), texts, None, lists and
            dictionaries.

    Example:
        >>> loads(b"".join(parts({"step": 3, "lowest": float("inf"), 0: [torch.arange(2)]})))
        {'step': 3, 'lowest': inf, 0: [tensor([0, 1])]}
    """
    file = io.BytesIO()
    try:
        torch.save(content, file)
        file.seek(0)
        with safe_globals(_NUMBERS):
            others = get_unsafe_globals_in_checkpoint(file)
    except (AttributeError, pickle.PicklingError) as error:
        others = [str(error)]
    if others:
        raise TypeError(f"expected tensors, numbers, texts, lists and dictionaries in a state; got {', '.join(others)}")
    return [file.getbuffer()]


def loads(data: bytes | memoryview) -> Any:
    """Return the content on the CPU; raise :class:`StateError` if the bytes are not a state, or damaged."""
    try:
        if data[: len(_OF_0_1_0)] == _OF_0_1_0:
            return _loads_0_1_0(memoryview(data)[len(_OF_0_1_0) :])
        with safe_globals(_NUMBERS):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds for damaged files
        raise StateError(f"expected a state of contdrop; torch cannot read it ({type(error).__name__})") from error


def _loads_0_1_0(data: memoryview) -> Any:
    """Return a state that 0.1.0 saved: JSON, in which tensors have type, shape and order of axes; then their bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    rest = data[end:]

    def content(plain: Any) -> Any:
        nonlocal rest
        if isinstance(plain, list):
            return [content(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, value),) = plain.items()
        if kind in ("dict", "counter"):
            return (Counter if kind == "counter" else dict)((key, content(each)) for key, each in value)
        if kind == "float":
            return float(value)
        if kind == "numpy":
            return np.dtype(value[0]).type(content(value[1]))
        name, shape, *orders = value
        order = orders[0] if orders else list(range(len(shape)))
        tensor = torch.empty([shape[axis] for axis in order], dtype=getattr(torch, name))
        flat = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
        flat[:], rest = np.frombuffer(rest[: flat.size], np.uint8), rest[flat.size :]
        return tensor.permute([order.index(axis) for axis in range(len(shape))])

    return content(json.loads(bytes(data[8:end])))


def unsaved_buffers(network: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a network's ``state_dict`` leaves out, such as a mean that training updates."""
    known = network.state_dict()
    return {name: buffer for name, buffer in network.named_buffers() if name not in known}


@torch.no_grad()
def restore_buffers(network: nn.Module, buffers: Mapping[str, Tensor], device: torch.device | str) -> None:
    """Restore such buffers, in place where that is possible, because modules may share one."""
    for name, saved in buffers.items():
        owner, _, leaf = name.rpartition(".")
        module, saved = network.get_submodule(owner), saved.to(device)
        there = getattr(module, leaf, None)
        if not isinstance(there, Tensor) or (there.shape, there.dtype) != (saved.shape, saved.dtype):
            module.register_buffer(leaf, saved, persistent=False)
        elif not torch.equal(there, saved):  # an expanded tensor cannot be written to
            there.copy_(saved)


def of_network(network: nn.Module) -> dict[str, Any]:
    """Return all parameters and buffers of a network."""
    return {"network": network.state_dict(), "buffers": unsaved_buffers(network)}


def into_network(network: nn.Module, saved: Mapping[str, Any], device: torch.device | str = "cpu") -> None:
    """Load all parameters and buffers into a network on a device."""
    network.load_state_dict(saved["network"])
    restore_buffers(network, saved["buffers"], device)
