"""Masks of tensors that are divided among processes.

A function of a sharded tensor (``torch.distributed.tensor.DTensor``) is applied to the part that this process holds,
with the place of that part in the complete tensor. So the mask of a shard is a slice of the complete mask, provided
that all processes of the mesh draw the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
