"""Masked tensors for every law, and for tensors that are split over processes.

For a built-in law the kernels make the mask, multiply by it and make it again in backward. For any other law they
provide the uniform numbers behind the mask, and ``law.quantile`` turns these into mask values in plain torch; autograd
stores them. The uniform numbers are those of a built-in continuous law with the same seed, so a custom law written like
``Uniform`` gives the masks of ``Uniform``.

Of a sharded tensor, each process masks its own part with that part of the mask (:mod:`contdrop._torch.sharding`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .._torch import sharding
from .._torch.checks import check_choice
from ..choices import SCALES
from ..laws import BuiltIn, Gaussian, KernelLaw, Law, Uniform, scaled_moments, training_factor
from . import ops, reference


class ScaledLaw(NamedTuple):
    """A law with its scaling applied.

    Attributes:
        mean: E[m] of the scaled mask.
        variance: Var(m) of the scaled mask.
        kernel_law: Its encoding, if it is built in: a tensor if that is an input of a compiled graph.
        law: The law, if it is not built in.
        factor: What the values of ``law`` are multiplied by.
    """

    mean: float | Tensor
    variance: float | Tensor
    kernel_law: KernelLaw | Tensor | None = None
    law: Law | None = None
    factor: float = 1.0


def scaled(owner: str, law: Law, scale: str) -> ScaledLaw:
    """Check a law and its scale, and apply the scale."""
    if is_dynamo_compiling() and isinstance(law, BuiltIn) and law.for_graphs is not None:
        check_choice(owner, "scale", scale, SCALES)
        numbers = law.for_graphs[scale]
        return ScaledLaw(numbers[2], numbers[3], numbers)
    factor = training_factor(owner, law, scale)
    if isinstance(law, BuiltIn):
        kernel_law = law.for_kernels[scale]
        return ScaledLaw(kernel_law.mean, kernel_law.variance, kernel_law)
    return ScaledLaw(*scaled_moments(law, factor), None, law, factor)


_STANDARD_NORMAL = scaled("standard normal", Gaussian(sigma=1.0, mu=0.0, low=-math.inf, high=math.inf), "paper")
_UNIFORM = Uniform().for_kernels["paper"]


def multiply(
    x: Tensor,
    seed: Tensor,
    law: ScaledLaw,
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int] = (),
) -> Tensor:
    """Return x times a mask, elementwise; one mask value is shared along ``shared_axes``.

    With a ``window`` the mask is a part of a larger one; see :func:`contdrop.kernels.reference.mask_layout`.
    """
    if sharding.is_sharded(x):
        return sharding.apply(lambda part, window: multiply(part, seed, law, shared_axes, stream, window), x)
    if law.kernel_law is not None:
        return ops.dropout(x, seed, law.kernel_law, shared_axes, stream, window)
    size = [1 if axis in shared_axes else length for axis, length in enumerate(x.shape)]
    if window:  # along a shared axis the size becomes 1, and the offset 0
        whole = [1 if axis in shared_axes else length for axis, length in enumerate(window[: x.dim()])]
        start = [0 if axis in shared_axes else offset for axis, offset in enumerate(window[x.dim() :])]
        window = [*whole, *start]
    mask = _mask_values(law, uniform(seed, size, reference.compute_dtype(x.dtype), x.device, stream, window))
    return (x.to(mask.dtype) * mask).to(x.dtype)


def connect(x: Tensor, weight: Tensor, seed: Tensor, law: ScaledLaw, first_example: int = 0) -> Tensor:
    """Return y[n, o] = sum over i of mask[first_example + n, o, i] weight[o, i] x[n, i]."""
    if sharding.is_sharded(x):
        return sharding.apply_to_rows(lambda *part: connect(part[0], part[1], seed, law, part[2]), x, weight)
    if law.kernel_law is not None:
        return ops.dropconnect(x, weight, seed, law.kernel_law, first_example)
    wide = reference.compute_dtype(x.dtype)
    size = [x.shape[0], weight.shape[0], reference.pitch(weight.shape[1], reference.NUMBER_BITS)]
    window = [first_example + size[0], *size[1:], first_example, 0, 0] if first_example else []
    u = uniform(seed, size, wide, x.device, reference.STREAM_MASK, window)
    mask = _mask_values(law, u[..., : weight.shape[1]])
    return torch.bmm(mask * weight.to(wide), x.to(wide).unsqueeze(-1)).squeeze(-1).to(x.dtype)


def gate(x: Tensor, seed: Tensor, keep: Tensor) -> Tensor:
    """Return x where a uniform number is less than the element's own ``keep``, and x times zero elsewhere."""
    if sharding.is_sharded(x):
        return sharding.apply(lambda part, keep, window: ops.keep_where(part, seed, keep, [], window), x, keep)
    return ops.keep_where(x, seed, keep, [])


def standard_normal_times(deviation: Tensor, seed: Tensor) -> Tensor:
    """Return ``deviation`` times independent standard normal numbers."""
    return multiply(deviation, seed, _STANDARD_NORMAL, [], reference.STREAM_NORMAL)


def uniform(
    seed: Tensor,
    size: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    stream: int,
    window: Sequence[int] = (),
) -> Tensor:
    """Return the numbers in (0, 1) behind a mask with a continuous law; they are exact in float32 and float64."""
    ones = torch.ones(size, dtype=dtype, device=device)
    return ops.dropout(ones, seed, _UNIFORM, [], stream, window)


def _mask_values(law: ScaledLaw, u: Tensor) -> Tensor:
    assert law.law is not None
    values = law.law.quantile(u)
    if not isinstance(values, Tensor) or values.shape != u.shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{type(law.law).__name__}.quantile: expected a tensor of the shape of u, {tuple(u.shape)}, got {got}"
        )
    return values.to(u.dtype) * law.factor
