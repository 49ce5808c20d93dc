"""Fingerprints of data by content, the same in every process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes


def of_arrays(*arrays: np.ndarray) -> str:
    """Return 32 hexadecimal digits of SHA-256 over the types, shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def of_content(*values: Any) -> str:
    """Return SHA-256 over values: numbers, text, tensors, arrays, images, and nests of them.

    >>> of_content({"a": 1}, 2.0) == of_content({"a": 1}, 2.0), of_content([1, 2]) == of_content([12])
    (True, False)
    """
    digest = hashlib.sha256()
    for value in values:
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value, preceded by its kind and length, so that no two contents give the same bytes."""
    if isinstance(value, Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, (str, bytes, bytearray)):
        content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        digest.update(f"{type(value).__name__} {len(content)} ".encode())
        digest.update(content)
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        digest.update(f"array {value.dtype.str} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif value is None or isinstance(value, (bool, int, float, complex)):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for key in sorted(value, key=repr):
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, (list, tuple, np.ndarray)):
        digest.update(f"sequence {len(value)} ".encode())
        for part in value:
            _add(digest, part)
    elif isinstance(value, Set):
        _add(digest, sorted(of_content(part) for part in value))
    else:
        _add_object(digest, value)


def _add_tensor(digest: Any, value: Tensor) -> None:
    digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
    value = value.detach().cpu()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _add_object(digest: Any, value: Any) -> None:
    """Add the pixels of an image as of PIL, or the attributes of another object, never its address."""
    kind = type(value)
    # Our own classes keep the name that they had when fingerprints were first stored; a subclass has one of its own.
    name = vars(kind).get("fingerprinted_as") or f"{kind.__module__}.{kind.__qualname__}"
    digest.update(f"{name} ".encode())
    if hasattr(value, "tobytes"):
        _add(digest, [getattr(value, name, None) for name in ("mode", "size")])
        _add(digest, value.tobytes())
    elif dataclasses.is_dataclass(value):
        _add(digest, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif hasattr(value, "__dict__") and not callable(value):
        _add(digest, vars(value))


def as_array(parameter: Tensor) -> np.ndarray:
    """Return the numbers of a tensor; where NumPy has no such type (bfloat16), their bits."""
    plain = parameter.detach()
    try:
        return plain.numpy()
    except TypeError:
        if plain.device.type != "cpu" or plain.itemsize not in _BITS:
            raise
        return plain.view(_BITS[plain.itemsize]).numpy()
