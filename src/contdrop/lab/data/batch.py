"""Batches: nested tuples, lists and dictionaries of tensors, and the call of a model with them.

Defaults for a study without ``forward`` and ``loss``:

==========================================  ======================  =====================
batch                                       the model gets          the target is
==========================================  ======================  =====================
``(x, y)``                                  ``model(x)``            ``y``
``((x1, x2), y)``                           ``model(x1, x2)``       ``y``
``({"a": a, "b": b}, y)``                   ``model(a=a, b=b)``     ``y``
``(x1, x2, …, y)``                          ``model(x1, x2, …)``    ``y``
``{"a": a, "b": b, "labels": y}``           ``model(a=a, b=b)``     ``y``
``(x,)``, ``x`` or anything else            ``model(x)``            none
==========================================  ======================  =====================

In a dictionary the target is ``labels``, ``label``, ``targets``, ``target`` or ``y``. The model gets it too if its
``forward`` has a parameter of that name, as models of Hugging Face do, which then return their own loss.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError

TARGETS = ("labels", "label", "targets", "target", "y")  # in this order


def map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return the same nesting with ``function`` applied to each leaf.

    >>> map_leaves(len, {"a": ("xy", ["z"])})
    {'a': (2, [1])}
    """
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: map_leaves(function, value) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):  # a named tuple
        return type(nest)(*(map_leaves(function, value) for value in nest))
    if isinstance(nest, (tuple, list)):
        return type(nest)([map_leaves(function, value) for value in nest])
    return function(nest)


def leaves(nest: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path.

    >>> [*leaves({"a": (1, 2)}, "train")]
    [("train['a'][0]", 1), ("train['a'][1]", 2)]
    """
    if isinstance(nest, Mapping):
        for key, value in nest.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(nest, (tuple, list)):
        for number, value in enumerate(nest):
            yield from leaves(value, f"{name}[{number}]")
    else:
        yield name, nest


def size_of(batch: Any) -> int:
    """Return the number of examples in a batch: the length of its first tensor, or of its first list of text.

    >>> size_of({"ids": torch.zeros(3, 7), "labels": torch.zeros(3)})
    3
    """
    if type(batch) is tuple and batch and isinstance(batch[0], Tensor) and batch[0].dim():
        return batch[0].shape[0]  # fast path for small networks
    size = _size(batch)
    if size is None:
        raise TypeError(f"expected a batch with a tensor or a list of text in it; got {type(batch).__name__}")
    return size


def _size(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        if batch and isinstance(batch[0], str):
            return len(batch)
        return next((size for size in map(_size, batch) if size is not None), None)
    return len(batch) if hasattr(batch, "__len__") and not isinstance(batch, str) else None


def select_rows(batch: Any, rows: slice) -> Any:
    """Return some examples of a batch that a study's own function has collated.

    >>> select_rows({"a": torch.arange(3)}, slice(1, 3))
    {'a': tensor([1, 2])}
    """
    size = size_of(batch)

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != size:
            got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise UserError(f"--devices: expected tensors with a row for each of {size} examples in a batch; got {got}")
        return leaf[rows]

    return map_leaves(of_leaf, batch)


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Return the same nesting on a device; leaves that cannot be moved, such as text, are kept."""
    return map_leaves(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def inputs_and_target(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return a model's positional and named inputs, and the target; see the table above."""
    if isinstance(batch, Mapping):
        name = _target_name(batch)
        named = {key: value for key, value in batch.items() if key != name}
        return (), named, None if name is None else batch[name]
    if not isinstance(batch, (tuple, list)) or not batch:
        return (batch,), {}, None
    if len(batch) == 1:
        return tuple(batch), {}, None
    *inputs, target = batch
    if len(inputs) > 1:
        return tuple(inputs), {}, target
    if isinstance(inputs[0], Mapping):
        return (), dict(inputs[0]), target
    return tuple(inputs[0] if isinstance(inputs[0], (tuple, list)) else inputs), {}, target


def target_of(batch: Any) -> Any:
    """Return the target of a batch; None if its form does not tell."""
    return inputs_and_target(batch)[2]


def default_forward(model: torch.nn.Module, batch: Any) -> Any:
    """Call a model with a batch; see the table above."""
    if type(batch) is tuple and len(batch) == 2 and isinstance(batch[0], Tensor):
        return model(batch[0])  # fast path for small networks
    inputs, named, _ = inputs_and_target(batch)
    if isinstance(batch, Mapping):
        name = _target_name(batch)
        compiled_from = getattr(model, "_orig_mod", model)
        if name is not None and name in _parameters(type(compiled_from).forward):
            named[name] = batch[name]
    return model(*inputs, **named)


def _target_name(batch: Mapping[Any, Any]) -> str | None:
    return next((name for name in TARGETS if name in batch), None)


@functools.lru_cache(maxsize=64)
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
