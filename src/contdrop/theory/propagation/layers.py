"""Layers and functions that can be followed, with dropout switched on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import nn
from ..._torch.checks import entry_of
from ...laws import Bernoulli
from . import activations
from .activations import Maxima, overlap, pooling_windows
from .gaussian import (
    GaussianMoments,
    PropagatedLayer,
    RefusedError,
    Response,
    activation,
    affine,
    check_size,
    composed,
    double,
    from_covariance,
    masking,
    noisy_linear,
    reshaping,
    scaling,
)


def _linear(module: torch.nn.Linear, x: GaussianMoments, full: bool) -> PropagatedLayer:
    weight = double(module.weight)
    shift = 0.0 if module.bias is None else double(module.bias)
    if full and x.mean.dim() == 2 and x.variance is not None and x.covariance is None:
        # Uncorrelated inputs, as behind a first dropout layer: one product of matrices instead of two.
        check_size(len(x.mean), len(weight))
        covariance = (weight * x.variance.unsqueeze(1)) @ weight.T
        return PropagatedLayer(from_covariance(F.linear(x.mean, weight) + shift, covariance), lambda c: weight @ c)
    step = affine(x, full, lambda t: F.linear(t, weight), lambda t: F.linear(t, weight.square()), shift)
    if x.mean.dim() > 2:
        return step
    return PropagatedLayer(step.output, Response(step.respond, lambda rows: rows @ weight))


def _convolution(module: torch.nn.Conv2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    if module.padding_mode != "zeros":
        raise RefusedError(f"expected padding_mode='zeros', got {module.padding_mode!r}")
    _expect_axes(x, 4)
    weight = double(module.weight)
    shift = 0.0 if module.bias is None else double(module.bias)[:, None, None]

    def convolve(t: Tensor, weight: Tensor = weight) -> Tensor:
        return F.conv2d(t, weight, None, module.stride, module.padding, module.dilation, module.groups)

    return affine(x, full, convolve, lambda t: convolve(t, weight.square()), shift)


def _average_pooling(module: torch.nn.AvgPool2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    _expect_axes(x, 4)

    def pool(t: Tensor, divisor: int | None = module.divisor_override) -> Tensor:
        return F.avg_pool2d(
            t, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad, divisor
        )

    # What torch divides by differs at the border.
    ones = torch.ones_like(x.mean[:1, :1])
    divisor = pool(ones, 1) / pool(ones)
    return affine(x, full, pool, lambda t: pool(t) / divisor)


def _adaptive_average_pooling(module: torch.nn.AdaptiveAvgPool2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    _expect_axes(x, 4)

    def pool(t: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(t, module.output_size)

    counts = []
    for size, out in zip(x.mean.shape[2:], pool(x.mean[:1, :1]).shape[2:]):
        place = torch.arange(out, device=x.mean.device)
        counts.append(((place + 1) * size + out - 1) // out - place * size // out)
    return affine(x, full, pool, lambda t: pool(t) / (counts[0].unsqueeze(1) * counts[1]))


def _max_pooling(module: torch.nn.MaxPool2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    _expect_axes(x, 4)
    if module.return_indices:
        raise RefusedError("expected return_indices=False, got True")
    pooled = F.max_pool2d(x.mean, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    if x.variance is None:
        return PropagatedLayer(GaussianMoments(pooled), lambda c: c)
    windows = pooling_windows(module, x.mean.shape[1:], pooled.shape[2:])
    # Independent elements have independent maxima, unless windows overlap.
    start = x.full_covariance() if full and overlap(windows) else x.covariance
    if start is not None:
        check_size(len(pooled), windows.shape[0])
    result = Maxima(x.mean.flatten(1), x.variance.flatten(1), start, windows)
    mean, variance = result.mean.reshape(pooled.shape), result.variance.reshape(pooled.shape)

    def added_noise(rows: Tensor) -> Tensor:
        shares = result.residual_times(rows)
        return shares @ shares.transpose(1, 2)

    return PropagatedLayer(GaussianMoments(mean, variance, result.covariance), result.respond, added_noise)


def _batch_norm(module: torch.nn.BatchNorm1d | torch.nn.BatchNorm2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    if module.training:
        raise RefusedError(
            "expected batch normalisation in evaluation mode, got training mode, in which an output depends on the "
            "whole batch; call model.eval() first (dropout counts as on in both modes)"
        )
    if module.running_mean is None or module.running_var is None:
        raise RefusedError("expected batch normalisation with running statistics, got track_running_stats=False")
    if x.mean.shape[1] != module.num_features:
        raise RefusedError(f"expected an input of {module.num_features} channels, got shape {tuple(x.mean.shape)}")
    gain = (double(module.running_var) + module.eps).rsqrt()
    gain = gain if module.weight is None else gain * double(module.weight)
    shift = -double(module.running_mean) * gain
    shift = shift if module.bias is None else shift + double(module.bias)
    per_channel = (-1, *[1] * (x.mean.dim() - 2))
    return scaling(x, gain.reshape(per_channel), shift.reshape(per_channel))


def _dropout(module: nn.Dropout, x: GaussianMoments, full: bool) -> PropagatedLayer:
    if module.activation is None:
        return masking(x, full, module.law, module.scale, module.shared_axes)
    rectified = activation(x, activations.RELU)
    return composed(rectified, masking(rectified.output, full, module.law, module.scale, module.shared_axes))


def _map_dropout(module: torch.nn.Dropout2d, x: GaussianMoments, full: bool) -> PropagatedLayer:
    _expect_axes(x, 4)
    return masking(x, full, Bernoulli(keep=1 - module.p), "inverted", (2, 3))


def _dropconnect(module: nn.DropConnectLinear, x: GaussianMoments, full: bool) -> PropagatedLayer:
    linear = noisy_linear(x, full, module, masked_bias=module.mask_bias, shared=module.masks == "batch")
    if module.activation is None:
        return linear
    function = activations.RELU if module.activation == "relu" else activations.SIGMOID
    return composed(linear, activation(linear.output, function))


HANDLERS: dict[type[torch.nn.Module], Callable[[Any, GaussianMoments, bool], PropagatedLayer]] = {
    torch.nn.Linear: _linear,
    torch.nn.Conv2d: _convolution,
    torch.nn.AvgPool2d: _average_pooling,
    torch.nn.AdaptiveAvgPool2d: _adaptive_average_pooling,
    torch.nn.MaxPool2d: _max_pooling,
    torch.nn.BatchNorm1d: _batch_norm,
    torch.nn.BatchNorm2d: _batch_norm,
    torch.nn.Flatten: lambda module, x, full: reshaping(x, x.mean.flatten(module.start_dim, module.end_dim).shape),
    torch.nn.Identity: lambda module, x, full: PropagatedLayer(x, lambda c: c),
    torch.nn.ReLU: lambda module, x, full: activation(x, activations.RELU),
    torch.nn.Sigmoid: lambda module, x, full: activation(x, activations.SIGMOID),
    torch.nn.Tanh: lambda module, x, full: activation(x, activations.TANH),
    torch.nn.Dropout: lambda module, x, full: masking(x, full, Bernoulli(keep=1 - module.p), "inverted"),
    torch.nn.Dropout2d: _map_dropout,
    nn.Dropout: _dropout,
    nn.DropConnectLinear: _dropconnect,
    nn.FastDropoutLinear: lambda module, x, full: noisy_linear(x, full, module),
}


def handler(module: torch.nn.Module) -> Callable[[Any, GaussianMoments, bool], PropagatedLayer] | None:
    """Return the function that propagates through a layer; None if it is not known or has a forward of its own."""
    return entry_of(module, HANDLERS)


def _expect_axes(x: GaussianMoments, axes: int) -> None:
    if x.mean.dim() != axes:
        raise RefusedError(f"expected an input of {axes} axes, got shape {tuple(x.mean.shape)}")


# Functions and methods.


def function(target: Any, args: Sequence[Any], kwargs: dict[str, Any], full: bool) -> PropagatedLayer:
    """Evaluate a function or method of one activation and constants."""
    random = [isinstance(each, GaussianMoments) for each in args]
    if target not in _FUNCTIONS or sum(random) != 1 or not (random[0] or target in _PRODUCTS):
        raise unsupported()
    return _FUNCTIONS[target](full, *args, **kwargs)


def unsupported() -> NotImplementedError:
    names = ", ".join(kind.__name__ for kind in HANDLERS)
    return NotImplementedError(f"is not supported; supported are {names}, their functions, sums and reshapes")


def shape(value: Any, dim: Any = None) -> Any:
    """Return x.size(), x.size(dim) or x.shape of an activation."""
    if not isinstance(value, GaussianMoments) or dim not in (None, "shape", *range(-8, 8)):
        raise unsupported()
    return value.mean.shape if dim in (None, "shape") else value.mean.shape[dim]


def _product(full: bool, a: Any, b: Any) -> PropagatedLayer:
    return scaling(a, b) if isinstance(a, GaussianMoments) else scaling(b, a)


def _mean(full: bool, x: GaussianMoments, dim: Any = None, keepdim: bool = False) -> PropagatedLayer:
    axes = sorted(axis % x.mean.dim() for axis in ([dim] if isinstance(dim, int) else dim or [0]))
    if 0 in axes:
        raise RefusedError("expected a mean over other axes than the batch")
    count = math.prod(x.mean.shape[axis] for axis in axes)
    return affine(x, full, lambda t: t.mean(axes, keepdim), lambda t: t.mean(axes, keepdim) / count)


def _reshape(function: Callable[..., Tensor]) -> Callable[..., PropagatedLayer]:
    return lambda full, x, *rest, **options: reshaping(x, function(x.mean, *rest, **options).shape)


def _layer(kind: type[torch.nn.Module]) -> Callable[..., PropagatedLayer]:
    """Return the function that propagates through a layer of this class with a function's other arguments."""
    return lambda full, x, *rest, **options: HANDLERS[kind](kind(*rest, **options), x, full)


SUMS: dict[Any, float] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), 1.0),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), -1.0),
}
SHAPES = (getattr, "size")
RELUS = (torch.relu, F.relu, "relu", "relu_")
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_FUNCTIONS: dict[Any, Callable[..., PropagatedLayer]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(
        (operator.truediv, operator.itruediv, torch.div, "div", "div_"), lambda full, x, by: scaling(x, 1 / by)
    ),
    **dict.fromkeys((operator.neg, torch.neg, "neg"), lambda full, x: scaling(x, -1.0)),
    **dict.fromkeys((torch.mean, "mean"), _mean),
    **dict.fromkeys((torch.flatten, "flatten"), _reshape(torch.flatten)),
    **dict.fromkeys(("view", "reshape", torch.reshape), _reshape(Tensor.reshape)),
    "contiguous": _reshape(Tensor.contiguous),
    **dict.fromkeys(RELUS, _layer(torch.nn.ReLU)),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"), _layer(torch.nn.Sigmoid)),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_"), _layer(torch.nn.Tanh)),
    F.max_pool2d: _layer(torch.nn.MaxPool2d),
    F.avg_pool2d: _layer(torch.nn.AvgPool2d),
    F.adaptive_avg_pool2d: _layer(torch.nn.AdaptiveAvgPool2d),
}
