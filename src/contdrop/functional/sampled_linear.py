"""Sampled inference of DropConnect: the average of an activation over Gaussian draws of its input.

While a model is compiled, exported or traced this is one operator, whose number of parts depends on the size of the
batch: as a part of the graph it would fix that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .._torch.dtensor import is_sharded
from .._torch.private import OneLevelFunction, below_autograd
from ..kernels import LIBRARY, draw_seed, ops
from ..kernels.masks import standard_normal_times
from .moments import expected_relu, expected_sigmoid, standard_deviation

_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
# Newer than the oldest torch that is supported.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)

# At most this many numbers are drawn at a time.
_AT_ONCE = 1 << 22


def sampled_activation(
    mean: Tensor, variance: Tensor, samples: int, activation: str, generator: torch.Generator | None
) -> Tensor:
    """The average of activation(z) over draws of z ~ N(mean, variance).

    ONNX has no generator of such numbers, so a model is exported to it with the limit for infinitely many draws.
    """
    if _is_exporting() and torch.onnx.is_in_onnx_export():
        return expected_activation(mean, variance, activation)
    deviation, seed = standard_deviation(variance), draw_seed(generator)
    if (torch.compiler.is_compiling() or _is_tracing()) and not is_sharded(mean):
        averaged: Tensor = _operator(mean, deviation, seed, samples, activation)
        return averaged
    return _average(mean, deviation, seed, samples, activation)


def expected_activation(mean: Tensor, variance: Tensor, activation: str) -> Tensor:
    """E[activation(z)] for z ~ N(mean, variance)."""
    # Normal tails lose their digits in half precision.
    wide = _at_least_float32(mean.dtype)
    expected = expected_relu if activation == "relu" else expected_sigmoid
    return expected(mean.to(wide), variance.to(wide)).to(mean.dtype)


def activate(z: Tensor, activation: str | None) -> Tensor:
    return z if activation is None else z.relu() if activation == "relu" else z.sigmoid()


def _slope(z: Tensor, activation: str | None) -> Tensor:
    """The derivative of the activation."""
    if activation is None:
        return torch.ones_like(z)
    return (z > 0).to(z.dtype) if activation == "relu" else z.sigmoid() * (1 - z.sigmoid())


def _average(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int, activation: str | None) -> Tensor:
    total = torch.zeros_like(mean, dtype=_at_least_float32(mean.dtype))
    for z, _ in _draws(mean, deviation, seed, samples):
        total = total + activate(z, activation).sum(0)
    return (total / samples).to(mean.dtype)


def _average_slopes(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int, activation: str | None) -> Tensor:
    """The derivatives of the average by mean and deviation, [2, ...]: of slope and of slope times normal number."""
    total = torch.zeros((2, *mean.shape), dtype=_at_least_float32(mean.dtype), device=mean.device)
    for z, part in _draws(mean, deviation, seed, samples):
        slope = _slope(z, activation).contiguous()
        total = total + torch.stack([slope.sum(0), standard_normal_times(slope, part).sum(0)])
    return total / samples


def _draws(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draws of z in parts that fit into memory, each with its seed, which is derived from the call's."""
    deviation = deviation.to(_at_least_float32(mean.dtype))
    at_once = max(1, _AT_ONCE // max(mean.numel(), 1))
    for part, start in enumerate(range(0, samples, at_once)):
        size = (min(at_once, samples - start), *mean.shape)
        own = seed + part if part else seed  # torch's vmap cannot add to the seeds of an empty batch
        # A copy, because the kernels are fastest where elements lie one after the other.
        yield mean + standard_normal_times(deviation.expand(size).contiguous(), own), own


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# The operator, and that of its derivative, which makes the draws again.

_library: Any = LIBRARY
_ARGUMENTS = "(Tensor mean, Tensor deviation, Tensor seed, int samples, str? activation) -> Tensor"
_library.define(f"sampled_activation{_ARGUMENTS}")
_library.define(f"sampled_activation_slopes{_ARGUMENTS}")
_operator: Any = torch.ops.contdrop.sampled_activation.default
_slopes: Any = torch.ops.contdrop.sampled_activation_slopes.default


class _Averaged(OneLevelFunction):
    """The derivative of the operator. It is not differentiated a second time."""

    @staticmethod
    def forward(ctx: Any, op: Any, mean: Tensor, deviation: Tensor, seed: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(mean, deviation, seed)
        ctx.save_for_forward(mean, deviation, seed)
        ctx.options = options
        with below_autograd():
            averaged: Tensor = op(mean, deviation, seed, *options)
        return averaged

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mean, deviation, _ = ctx.saved_tensors
        by_mean, by_deviation = _slopes(*ctx.saved_tensors, *ctx.options) * gradient
        return None, by_mean.to(mean.dtype), by_deviation.to(deviation.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, _op: None, mean_tangent: Tensor | None, deviation_tangent: Tensor | None, *_: None) -> Tensor:
        pairs = zip(_slopes(*ctx.saved_tensors, *ctx.options), (mean_tangent, deviation_tangent))
        tangent: Tensor = sum(slope * each for slope, each in pairs if each is not None)
        return tangent.to(ctx.saved_tensors[0].dtype)


for _op, _function in ((_operator, _average), (_slopes, _average_slopes)):
    _library.impl(_op, _function, "CompositeExplicitAutograd")
    torch.library.register_vmap(_op, ops.vmap_by_loop(_op), lib=LIBRARY)
_library.impl(_operator, ops.autograd_kernel(_Averaged, _operator, _average), "Autograd")
torch.library.register_fake(_operator, lambda mean, *_: torch.empty_like(mean), lib=LIBRARY)
torch.library.register_fake(
    _slopes,
    lambda mean, *_: mean.new_empty((2, *mean.shape), dtype=_at_least_float32(mean.dtype)),
    lib=LIBRARY,
)
