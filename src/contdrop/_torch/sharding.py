"""Masks of tensors and batches that are divided among processes.

A function of a sharded tensor (``torch.distributed.tensor.DTensor``) is applied to the part that this process holds,
with the place of that part in the complete tensor. So the mask of a shard is a slice of the complete mask, provided
that all processes of the mesh draw the same seed.

If the examples of a batch are divided, each process draws the rows of its own. All draw the same seeds, so together
they do what one process does with the complete batch. torch's own dropout is drawn for the complete batch, because
torch cannot start in the middle, and the rows are taken from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .private import DispatchMode


def is_sharded(x: Tensor) -> bool:
    # By name: importing the class takes longer than importing this package.
    return type(x) is not Tensor and type(x).__name__ == "DTensor"


def apply(function: Callable[..., Tensor], *tensors: Any) -> Tensor:
    """Apply function(part, ..., window) to the local parts of DTensors of one shape."""
    _check_all_sharded(*tensors)
    first: Any = complete(tensors[0])
    mesh, placements = first.device_mesh, first.placements
    parts = [tensor.redistribute(mesh, placements).to_local() for tensor in tensors]
    window = [*first.shape, *_offsets(first)]
    return _whole(function(*parts, window), mesh, placements, first.shape)


def _check_all_sharded(*tensors: Any) -> None:
    for tensor in tensors:
        if not is_sharded(tensor):
            raise RuntimeError(
                f"dropout: expected DTensors only, or none, got {type(tensor).__name__} of shape {tuple(tensor.shape)} "
                "beside one; torch.distributed.tensor.distribute_tensor makes a DTensor of it"
            )


def complete(x: Any) -> Tensor:
    """Add up partial sums that are spread over processes.

    Without this, torch 2.6 computes wrong gradients of nonlinear functions of the tensor.
    """
    if not is_sharded(x) or not any(each.is_partial() for each in x.placements):
        return x  # type: ignore[no-any-return]
    from torch.distributed.tensor import Replicate

    whole: Tensor = x.redistribute(placements=[Replicate() if each.is_partial() else each for each in x.placements])
    return whole


def apply_to_rows(function: Callable[..., Tensor], x: Any, weight: Any) -> Tensor:
    """Apply function(rows, weight, first row) to the local rows [N, in]; the weight is gathered."""
    from torch.distributed.tensor import Partial, Replicate

    _check_all_sharded(x, weight)
    mesh = x.device_mesh
    placements = [each if each.is_shard(0) else Replicate() for each in x.placements]
    x = x.redistribute(mesh, placements)
    gathered = weight.redistribute(mesh, [Replicate()] * mesh.ndim)
    # Each process sees a part of the rows, so its gradient of the weight is a part of the sum.
    gradients = [Partial() if each.is_shard() else Replicate() for each in placements]
    result = function(x.to_local(), gathered.to_local(grad_placements=gradients), _offsets(x)[0])
    return _whole(result, mesh, placements, torch.Size((x.shape[0], weight.shape[0])))


def _whole(part: Tensor, mesh: Any, placements: Any, shape: torch.Size) -> Tensor:
    from torch.distributed.tensor import DTensor

    stride = torch.empty(shape, device="meta").stride()
    whole: Tensor = DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
    return whole


def _offsets(x: Any) -> list[int]:
    """Return the offsets of the local part: mesh axes cut tensor axes into equal parts, the last ones smaller."""
    begin, size = [0] * x.dim(), list(x.shape)
    for axis, placement in enumerate(x.placements):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise ValueError(
                f"dropout: expected a DTensor that is sharded evenly or replicated along each axis of its mesh, got "
                f"{placement}; redistribute it before"
            )
        step = -(-size[placement.dim] // x.device_mesh.size(axis))
        skipped = min(step * x.device_mesh.get_local_rank(axis), size[placement.dim])
        begin[placement.dim] += skipped
        size[placement.dim] = min(step, size[placement.dim] - skipped)
    return begin


# Batches whose examples are divided.


@dataclass(frozen=True)
class Rows:
    """Range of examples ``first`` to ``first + count - 1`` of ``total``."""

    first: int
    count: int
    total: int

    def window(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the complete tensor and the offset of the part, as a window of a mask."""
        if not shape:
            return []
        # Several rows per example, if positions or heads were folded into the first axis.
        each, rest = divmod(shape[0], self.count)
        if rest:
            raise ValueError(
                f"dropout: in a batch that is divided among processes, expected the {self.count} examples of this one "
                f"along the first axis, got shape {tuple(shape)}"
            )
        return [each * self.total, *shape[1:], each * self.first, *[0] * (len(shape) - 1)]


_current: Rows | None = None


def window(shape: Sequence[int]) -> list[int]:
    """Return the window of a tensor with the examples along its first axis; empty unless the batch is divided."""
    return [] if _current is None else _current.window(shape)


@contextlib.contextmanager
def of_batch(first: int, count: int, total: int) -> Iterator[None]:
    """Draw masks, in forward and backward passes, for the examples from ``first`` on of a larger batch."""
    global _current
    before, _current = _current, Rows(first, count, total)
    try:
        with _OfTorch(_current):
            yield
    finally:
        _current = before


class _OfTorch(DispatchMode):  # type: ignore[no-untyped-call]
    """Mode that divides the draws of torch's own dropout and refuses other random operators."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **kwargs)
        if function is torch.ops.aten.bernoulli_.float:
            return self._divided(*args, **kwargs)
        before = torch.get_rng_state()
        result = function(*args, **kwargs)
        is_seed = isinstance(result, Tensor) and result.dim() == 0
        if not is_seed and not torch.equal(before, torch.get_rng_state()):
            raise ValueError(f"{function} draws random numbers that cannot be divided among processes; use one")
        return result

    def _divided(self, noise: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        window = self._rows.window(noise.shape)
        axes = noise.dim()
        if not axes:
            return noise.bernoulli_(*args, **kwargs)
        first, whole = window[axes], noise.new_empty(window[:axes])
        if axes == 4 and not noise.is_contiguous() and noise.is_contiguous(memory_format=torch.channels_last):
            whole = whole.to(memory_format=torch.channels_last)  # in whose order torch draws
        return noise.copy_(whole.bernoulli_(*args, **kwargs)[first : first + len(noise)])
