"""Dropout that multiplies every element of a tensor by a mask value."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from .._torch import nested_tensors
from .._torch.checks import check_axes, check_choice, check_generator, check_input, check_number
from ..choices import DROPOUT_ACTIVATIONS, SCALES, DropoutActivation, Scale
from ..kernels import STREAM_MASK, draw_seed, fast_path
from ..kernels.masks import gate, multiply, scaled
from ..laws import LAWS, Law

_BUILT_IN = tuple(LAWS.values())


def dropout(
    x: Tensor,
    law: Law,
    *,
    training: bool = True,
    shared_axes: Sequence[int] = (),
    scale: Scale = "inverted",
    activation: DropoutActivation = None,
    inplace: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Multiply every element of x by an independent mask value.

    Args:
        x: Any floating-point tensor.
        law: Distribution of the mask values.
        training: Whether to draw a mask; if False, x is multiplied by its expectation.
        shared_axes: Axes along which one value is shared. For images [N, C, H, W]: ``(2, 3)`` one value per feature
            map, ``(3,)`` per row, ``(1, 2, 3)`` per sample, ``(0, 1, 2, 3)`` one for the whole batch.
        scale: "inverted" or "paper"; see :mod:`contdrop.functional`.
        activation: "relu" to rectify x first. The result is that of ``dropout(torch.relu(x), ...)``; for contiguous
            float32 on the CPU both are done in one pass, forward and backward.
        inplace: Whether to write the result into x and return x, as torch.nn.functional.dropout does.
        generator: CPU generator to draw the seed from.
    """
    # The fast path returns None for calls that it does not handle.
    common = training and scale in SCALES and type(law) in _BUILT_IN
    if common and not is_dynamo_compiling() and law.mean and activation in DROPOUT_ACTIVATIONS:
        if type(shared_axes) is not tuple:
            shared_axes = check_axes("dropout", shared_axes)
        kind, params, factor, _, _ = law.for_kernels[scale]  # type: ignore[attr-defined]
        y = fast_path.dropout(x, kind, params, factor, activation is not None, shared_axes, generator)
        if y is not None:
            return x.copy_(y) if inplace else y
    if has_torch_function_unary(x):
        return handle_torch_function(
            dropout,
            (x,),
            x,
            law,
            training=training,
            shared_axes=shared_axes,
            scale=scale,
            activation=activation,
            inplace=inplace,
            generator=generator,
        )
    check_input("dropout", x)
    scaled_law = scaled("dropout", law, scale)
    check_choice("dropout", "activation", activation, DROPOUT_ACTIVATIONS)
    shared_axes = check_axes("dropout", shared_axes)
    own_axes = _normalize_axes(shared_axes, x.dim()) if not x.is_nested else []
    check_generator("dropout", generator)
    y = torch.relu(x) if activation == "relu" else x
    if training and x.is_nested:
        masked = functools.partial(multiply, seed=draw_seed(generator), law=scaled_law, stream=STREAM_MASK)
        y = nested_tensors.apply(
            "dropout", lambda values, axes: masked(values, shared_axes=axes), y, shared_axes=shared_axes
        )
    elif training:
        y = multiply(y, draw_seed(generator), scaled_law, own_axes, STREAM_MASK)
    elif scale == "paper":
        y = (y * scaled_law.mean).to(y.dtype)
    return x.copy_(y) if inplace and y is not x else y


def adaptive_dropout(
    h: Tensor,
    preactivation: Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    *,
    training: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Keep unit j with probability sigmoid(alpha a_j + beta): Standout (Ba and Frey, 2013).

    The weights of the gate are tied to the layer's own: a_j is the unit's pre-activation. There is no rescaling;
    evaluation multiplies by the probability. No gradient flows through the probability. With alpha = beta = 0 it is
    Bernoulli dropout with keep 0.5 and ``scale="paper"``.

    Args:
        h: Activations.
        preactivation: a, of the same shape.
        alpha: Gain of the gate.
        beta: Offset of the gate.
        training: Whether to draw a mask.
        generator: CPU generator to draw the seed from.
    """
    if has_torch_function_variadic(h, preactivation):
        both = (h, preactivation)
        return handle_torch_function(adaptive_dropout, both, *both, alpha, beta, training=training, generator=generator)
    check_input("adaptive_dropout", h)
    check_input("adaptive_dropout", preactivation)
    if h.is_nested and preactivation.is_nested:
        gated = functools.partial(adaptive_dropout, alpha=alpha, beta=beta, training=training, generator=generator)
        return nested_tensors.apply("adaptive_dropout", lambda h, a, _: gated(h, a), h, preactivation)
    if h.shape != preactivation.shape:
        raise ValueError(
            "adaptive_dropout: expected activations and pre-activations of one shape, "
            f"got {tuple(h.shape)} and {tuple(preactivation.shape)}"
        )
    if h.device != preactivation.device:
        raise RuntimeError(
            "adaptive_dropout: expected activations and pre-activations on one device, "
            f"got {h.device} and {preactivation.device}"
        )
    check_generator("adaptive_dropout", generator)
    alpha, beta = (check_number("adaptive_dropout", *each) for each in (("alpha", alpha), ("beta", beta)))
    keep = torch.sigmoid(alpha * preactivation.detach() + beta)
    if training:
        return gate(h, draw_seed(generator), keep)
    return (h * keep).to(h.dtype)


def _normalize_axes(axes: Sequence[int], dimensions: int) -> list[int]:
    normalized = []
    for axis in axes:
        if not -dimensions <= axis < dimensions:
            raise IndexError(
                f"dropout: expected shared_axes between {-dimensions} and {dimensions - 1} for an input with "
                f"{dimensions} axes, got {axis}"
            )
        normalized.append(axis % dimensions)
    if len(set(normalized)) < len(normalized):
        raise ValueError(f"dropout: expected each axis once in shared_axes, got {tuple(axes)}")
    return normalized
