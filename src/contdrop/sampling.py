"""Sampled inference of DropConnect: the average of an activation over Gaussian draws of its input.

While a model is exported or traced this is one operator, whose number of parts depends on the size of the batch: as a
part of the graph it would fix that size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .expectations import expected_relu, expected_sigmoid, standard_deviation
from .kernels import LIBRARY, draw_seed
from .masks import standard_normal_times

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
    if _is_exporting() or _is_tracing():
        averaged: Tensor = torch.ops.contdrop.sampled_activation(mean, deviation, seed, samples, activation)
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


def _average(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int, activation: str | None) -> Tensor:
    wide = _at_least_float32(mean.dtype)
    total, deviation = torch.zeros_like(mean, dtype=wide), deviation.to(wide)
    # Each part has a seed of its own, derived from the call's.
    at_once = max(1, _AT_ONCE // max(mean.numel(), 1))
    for part, start in enumerate(range(0, samples, at_once)):
        size = (min(at_once, samples - start), *mean.shape)
        # A copy, because the kernels are fastest where elements lie one after the other.
        noise = standard_normal_times(deviation.expand(size).contiguous(), seed + part)
        total = total + activate(mean + noise, activation).sum(0)
    return (total / samples).to(mean.dtype)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


_library: Any = LIBRARY
_library.define(
    "sampled_activation(Tensor mean, Tensor deviation, Tensor seed, int samples, str? activation) -> Tensor"
)
_library.impl("sampled_activation", _average, "CompositeExplicitAutograd")
torch.library.register_fake("contdrop::sampled_activation", lambda mean, *_: torch.empty_like(mean), lib=LIBRARY)
