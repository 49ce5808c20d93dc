"""How a law gets to the kernels: the one place that knows which laws they draw by themselves.

For a built-in law the kernels make the mask, multiply by it and make it again in backward. For any other law they give
the uniform numbers behind the mask, of which ``law.quantile`` makes mask values in plain torch; autograd keeps these.
The numbers are those of a built-in continuous law with the same seed. So a law of the user's own that is written like
``Uniform`` gives the masks of ``Uniform``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import kernels
from .laws import BuiltIn, Gaussian, Law

_STANDARD_NORMAL = Gaussian(sigma=1.0, mu=0.0, low=-math.inf, high=math.inf)


def multiply(x: Tensor, seed: Tensor, law: Law, factor: float, shared_axes: Sequence[int], stream: int) -> Tensor:
    """x times mask times factor, elementwise; along ``shared_axes`` one mask value is shared."""
    if isinstance(law, BuiltIn):
        return kernels.dropout(x, seed, law.kind, law.params, law.factor * factor, shared_axes, stream)
    size = [1 if axis in shared_axes else length for axis, length in enumerate(x.shape)]
    u = kernels.uniform(seed, size, kernels.compute_dtype(x.dtype), x.device, stream)
    mask = _values(law, u) * factor
    return (x.to(mask.dtype) * mask).to(x.dtype)


def connect(x: Tensor, weight: Tensor, seed: Tensor, law: Law, factor: float) -> Tensor:
    """y[n, o] = sum over i of mask[n, o, i] weight[o, i] x[n, i], times factor."""
    if isinstance(law, BuiltIn):
        return kernels.dropconnect(x, weight, seed, law.kind, law.params, law.factor * factor)
    wide = kernels.compute_dtype(x.dtype)
    size = [x.shape[0], weight.shape[0], kernels.row_of_numbers(weight.shape[1])]
    u = kernels.uniform(seed, size, wide, x.device, kernels.STREAM_MASK)[..., : weight.shape[1]]
    mask = _values(law, u) * factor
    return torch.bmm(mask * weight.to(wide), x.to(wide).unsqueeze(-1)).squeeze(-1).to(x.dtype)


def standard_normal_times(deviation: Tensor, seed: Tensor) -> Tensor:
    """deviation times standard normal numbers, one for each element."""
    return multiply(deviation, seed, _STANDARD_NORMAL, 1.0, [], kernels.STREAM_NORMAL)


def _values(law: Law, u: Tensor) -> Tensor:
    values = law.quantile(u)
    if not isinstance(values, Tensor) or values.shape != u.shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{type(law).__name__}.quantile: expected a tensor of the shape of u, {tuple(u.shape)}, got {got}"
        )
    return values.to(u.dtype)
