"""Nested tensors: batches of sequences of different lengths, jagged or strided.

A function is applied to the packed rows of all components. So the mask is that of the packed rows, in both layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def apply(owner: str, function: Callable[..., Tensor], *nested: Tensor, shared_axes: Sequence[int] = ()) -> Tensor:
    """Apply function(values, ..., axes) to the packed values of nested tensors of one shape, with their axes."""
    first: Any = nested[0]
    _check_alike(owner, nested)
    if first.layout == torch.jagged:
        ragged = next(axis for axis, size in enumerate(first.shape) if axis and not isinstance(size, int))
        axes = _axes_of_values(owner, shared_axes, first.dim(), ragged)
        values = function(*(x.values() for x in nested), axes)
        return torch.nested.nested_tensor_from_jagged(values, first.offsets(), first.lengths(), jagged_dim=ragged)
    components = [x.unbind() for x in nested]
    axes = _axes_of_values(owner, shared_axes, first.dim(), 1)
    shapes = [component.shape for component in components[0]]
    if any(shape[1:] != shapes[0][1:] for shape in shapes):
        return _apply_to_irregular(owner, function, components, axes)
    result: Any = function(*(torch.cat(parts) for parts in components), axes)
    return torch.nested.as_nested_tensor(list(result.split([shape[0] for shape in shapes])))


def _check_alike(owner: str, nested: Sequence[Any]) -> None:
    """Raise an error if the components differ, because rows of different examples would be paired."""
    first, *others = nested
    for other in others:
        if first.layout == other.layout == torch.jagged and first.shape == other.shape:
            continue  # made of one another, and known to be alike without a look at their lengths
        shapes = [[component.shape for component in each.unbind()] for each in (first, other)]
        if first.layout != other.layout or shapes[0] != shapes[1]:
            raise ValueError(f"{owner}: expected nested tensors of one layout with components of the same shapes")


def _apply_to_irregular(owner: str, function: Callable[..., Tensor], components: Any, axes: list[int]) -> Tensor:
    if axes:
        raise ValueError(f"{owner}: expected no shared_axes for components that differ along more than one axis")
    shapes = [component.shape for component in components[0]]
    result: Any = function(*(torch.cat([part.flatten() for part in parts]) for parts in components), axes)
    parts = result.split([shape.numel() for shape in shapes])
    return torch.nested.as_nested_tensor([part.reshape(shape) for part, shape in zip(parts, shapes)])


def _axes_of_values(owner: str, shared_axes: Sequence[int], dimensions: int, ragged: int) -> list[int]:
    """Convert axes to those of the packed values, which have no batch axis."""
    axes = [axis + dimensions if axis < 0 else axis for axis in shared_axes]
    for axis in axes:
        if axis in (0, ragged) or not 0 <= axis < dimensions:
            raise ValueError(
                f"{owner}: expected shared_axes of a nested tensor to be axes other than its batch axis 0 and its "
                f"ragged axis {ragged}, got {tuple(shared_axes)}"
            )
    return [axis - 1 for axis in axes]
