"""Every dropout of the family as a function. The modules in :mod:`contdrop.nn` store arguments and call these.

Scaling: with ``scale="inverted"`` (torch's convention) training multiplies by m / E[m] and evaluation is the identity;
with ``scale="paper"`` training multiplies by m and evaluation by E[m].

Randomness: each call draws one seed from ``generator``, or from torch's default CPU generator, and re-creates its mask
from that seed in backward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from .. import kernels
from .._torch import dtensor, nested_tensors
from .._torch.checks import check_axes, check_choice, check_generator, check_input, check_number, check_whole
from ..choices import (
    ACTIVATIONS,
    DROPOUT_ACTIVATIONS,
    INFERENCES,
    MASKS,
    SCALES,
    Activation,
    DropoutActivation,
    Inference,
    Masks,
    Scale,
)
from ..kernels.masks import connect, gate, law_in_graph, multiply, standard_normal_times
from ..laws import LAWS, Bernoulli, Law, check_law, divisor
from .moments import standard_deviation
from .sampled_linear import activate, expected_activation, sampled_activation

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
    """Multiplies every element of x by an independent mask value.

    Args:
        x: Any floating-point tensor.
        law: Distribution of the mask values.
        training: Whether to draw a mask; if False, x is scaled by its expectation.
        shared_axes: Axes along which one value is shared. For images [N, C, H, W]: ``(2, 3)`` one value per feature
            map, ``(3,)`` per row, ``(1, 2, 3)`` per sample, ``(0, 1, 2, 3)`` one for the whole batch.
        scale: "inverted" or "paper"; see the module.
        activation: "relu" to rectify x first. The result is that of ``dropout(torch.relu(x), ...)``; for contiguous
            float32 on the CPU both are done in one pass, forward and backward.
        inplace: Whether to write the result into x and return x, as torch.nn.functional.dropout does.
        generator: CPU generator to draw the seed from.
    """
    # The commonest case, for which every line of Python counts. It is None for what needs a closer look.
    commonest = training and scale in SCALES and type(law) in _BUILT_IN
    if commonest and not is_dynamo_compiling() and law.mean and activation in DROPOUT_ACTIVATIONS:
        built_in: Any = law
        by = built_in.factor / law.mean if scale == "inverted" else built_in.factor  # as masks.multiply computes it
        if type(shared_axes) is not tuple:
            shared_axes = check_axes("dropout", shared_axes)
        arguments = (built_in.kind, built_in.params, by, activation is not None, shared_axes, generator)
        y = kernels.fast_path.dropout(x, *arguments)
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
    law, divided_by = _law_and_divisor("dropout", law, scale)
    check_choice("dropout", "activation", activation, DROPOUT_ACTIVATIONS)
    shared_axes = check_axes("dropout", shared_axes)
    own_axes = _normalise_axes(shared_axes, x.dim()) if not x.is_nested else []
    check_generator("dropout", generator)
    y = torch.relu(x) if activation == "relu" else x
    if training and x.is_nested:
        seed = kernels.draw_seed(generator)
        masked = functools.partial(multiply, seed=seed, law=law, divided_by=divided_by, stream=kernels.STREAM_MASK)
        y = nested_tensors.apply(
            "dropout", lambda values, axes: masked(values, shared_axes=axes), y, shared_axes=shared_axes
        )
    elif training:
        y = multiply(y, kernels.draw_seed(generator), law, divided_by, own_axes, kernels.STREAM_MASK)
    elif scale == "paper":
        y = (y * law.mean).to(y.dtype)
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
    """Standout (Ba and Frey, 2013): unit j is kept with probability sigmoid(alpha a_j + beta).

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
        return handle_torch_function(
            adaptive_dropout,
            (h, preactivation),
            h,
            preactivation,
            alpha,
            beta,
            training=training,
            generator=generator,
        )
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
        return gate(h, kernels.draw_seed(generator), keep)
    return (h * keep).to(h.dtype)


def dropconnect_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    law: Law = Bernoulli(keep=0.5),
    *,
    training: bool = True,
    masks: Masks = "example",
    scale: Scale = "inverted",
    inference: Inference = "sampled",
    samples: int = 1000,
    activation: Activation = None,
    mask_bias: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A linear layer whose weights are masked (DropConnect: Wan et al., 2013), and its activation.

    In training z_o = sum over i of m_oi w_oi x_i + m_o b_o, with a mask for every example or one for the batch. In
    evaluation z is taken as Gaussian with its exact mean and variance,

        mean     = E[m] (W x + b)
        variance = Var(m) ((W * W)(x * x) + b * b)

    (both with the mask scaled to mean one if ``scale="inverted"``), and ``inference`` says what becomes of it:
    "sampled" averages activation(z) over ``samples`` draws, as Wan et al. do; "analytic" is the limit of that for
    infinitely many draws; "mean" applies the activation to the mean. Without an activation the three are one.

    Args:
        x: Input [..., in].
        weight: [out, in], as in torch.nn.functional.linear.
        bias: [out] or None.
        law: Distribution of the mask values.
        training: Whether to draw masks.
        masks: "example" for a mask per example, "batch" for one that all share.
        scale: "inverted" or "paper"; see the module.
        inference: "sampled", "analytic" or "mean".
        samples: Number of draws of sampled inference.
        activation: None, "relu" or "sigmoid", applied inside because inference averages after it.
        mask_bias: Whether the bias is masked like the weights (Wan et al.), or kept (the authors of the paper).
        generator: CPU generator to draw the seed from.
    """
    owner = "dropconnect_linear"
    options: dict[str, Any] = {
        "training": training,
        "masks": masks,
        "scale": scale,
        "inference": inference,
        "samples": samples,
        "activation": activation,
        "mask_bias": mask_bias,
        "generator": generator,
    }
    if has_torch_function_unary(x):
        return handle_torch_function(dropconnect_linear, (x,), x, weight, bias, law, **options)
    if isinstance(x, Tensor) and x.is_nested:
        return nested_tensors.apply(owner, lambda rows, _: dropconnect_linear(rows, weight, bias, law, **options), x)
    x, weight, bias = _check_linear(owner, x, weight, bias)
    law, divided_by = _law_and_divisor(owner, law, scale)
    check_choice(owner, "masks", masks, MASKS)
    check_choice(owner, "inference", inference, INFERENCES)
    check_choice(owner, "activation", activation, ACTIVATIONS)
    check_whole(owner, "samples", samples, 1)
    check_generator(owner, generator)
    if training:
        seed = kernels.draw_seed(generator)
        z = _masked_linear(x, weight, bias if mask_bias else None, law, divided_by, masks, seed)
        return activate(z if mask_bias or bias is None else z + bias, activation)

    factor = 1 / divided_by
    kept_bias, masked_bias = (None, bias) if mask_bias else (bias, None)
    mean = torch.nn.functional.linear(x, weight, masked_bias) * (law.mean * factor)
    if kept_bias is not None:
        mean = mean + kept_bias
    if inference == "mean" or activation is None:  # the average of z itself is its mean: nothing has to be drawn
        return activate(mean, activation)
    variance = _sum_of_squares(x, weight, masked_bias) * (law.variance * factor**2)
    if inference == "analytic":
        return expected_activation(mean, variance, activation)
    return sampled_activation(mean, variance, samples, activation, generator)


def fast_dropout_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    law: Law,
    *,
    training: bool = True,
    scale: Scale = "inverted",
    generator: torch.Generator | None = None,
) -> Tensor:
    """A linear layer with dropout on its input, by sampling the output (fast dropout: Wang and Manning, 2013).

    Instead of a mask value per input, draws the pre-activation itself from the Gaussian of the same moments:
    z = E[m] W x + b + sqrt(Var(m) (W * W)(x * x)) eps, with eps standard normal. Only two moments of the law enter.

    Args:
        x: Input [..., in].
        weight: [out, in], as in torch.nn.functional.linear.
        bias: [out] or None; not masked.
        law: Distribution of the mask values that are integrated out.
        training: Whether to draw; if False, the mean.
        scale: "inverted" or "paper"; see the module.
        generator: CPU generator to draw the seed from.
    """
    owner = "fast_dropout_linear"
    if has_torch_function_unary(x):
        return handle_torch_function(
            fast_dropout_linear, (x,), x, weight, bias, law, training=training, scale=scale, generator=generator
        )
    if isinstance(x, Tensor) and x.is_nested:
        options: dict[str, Any] = {"training": training, "scale": scale, "generator": generator}
        return nested_tensors.apply(owner, lambda rows, _: fast_dropout_linear(rows, weight, bias, law, **options), x)
    x, weight, bias = _check_linear(owner, x, weight, bias)
    law, divided_by = _law_and_divisor(owner, law, scale)
    check_generator(owner, generator)
    factor = 1 / divided_by
    mean = torch.nn.functional.linear(x, weight) * (law.mean * factor)
    if bias is not None:
        mean = mean + bias
    if not training:
        return mean
    variance = _sum_of_squares(x, weight) * (law.variance * factor**2)
    noise = standard_normal_times(standard_deviation(variance), kernels.draw_seed(generator))
    return (mean + noise).to(mean.dtype)


def _sum_of_squares(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(W * W)(x * x) + b * b, at least in float32: squares of half precision overflow, or are rounded to nothing."""
    wide = kernels.compute_dtype(x.dtype)
    squares = [None if tensor is None else tensor.to(wide).square() for tensor in (x, weight, bias)]
    device = x.device.type
    with torch.autocast(device, enabled=False) if _autocasts(device) else contextlib.nullcontext():
        return dtensor.complete(torch.nn.functional.linear(*squares))  # type: ignore[arg-type]


def _law_and_divisor(owner: str, law: Law, scale: Scale) -> tuple[Any, float]:
    """The law, and what its mask values are divided by in training; in a compiled graph, both as its inputs."""
    if is_dynamo_compiling():
        check_choice(owner, "scale", scale, SCALES)
        known = law_in_graph(law, scale)
        if known is not None:
            return known, 1.0
    return law, _checked_divisor(owner, law, scale)


def _masked_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, law: Any, divided_by: float, masks: str, seed: Tensor
) -> Tensor:
    if masks == "batch":
        weight = multiply(weight, seed, law, divided_by, [], kernels.STREAM_MASK, [])
        if bias is not None:
            bias = multiply(bias, seed, law, divided_by, [], kernels.STREAM_BIAS, [])
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    z = connect(rows, weight, seed, law, divided_by)
    if bias is not None:
        z = z + multiply(bias.expand_as(z), seed, law, divided_by, [], kernels.STREAM_BIAS)
    return z.reshape(*x.shape[:-1], weight.shape[0])


def _dequantised(weight: Tensor) -> Tensor:
    """A weight of a quantised type, such as torchao's, as numbers: a mask is for each of them."""
    if type(weight) in (Tensor, torch.nn.Parameter) or type(weight).dequantize is Tensor.dequantize:
        return weight
    return weight.dequantize()


def _check_linear(owner: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    check_input(owner, x)
    weight = _dequantised(weight)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{owner}: expected x [..., in] and weight [out, in], got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{owner}: expected bias [{weight.shape[0]}], got {tuple(bias.shape)}")
    device = x.device.type
    if _autocasts(device):
        # torch's own linear does this inside; our operators get their arguments ready-made.
        dtype = torch.get_autocast_dtype(device)
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (x.dtype != other.dtype or x.device != other.device):
            raise RuntimeError(
                f"{owner}: expected x and {name} of one type and on one device, got {x.dtype} on {x.device} and "
                f"{other.dtype} on {other.device}; x.to({name}) brings x there"
            )
    return x, weight, bias


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)  # torch's autocast leaves float64 alone


def _autocasts(device: str) -> bool:
    # The compiler of torch 2.6 does not follow is_autocast_available.
    known = device != "meta" if is_dynamo_compiling() else torch.amp.is_autocast_available(device)
    return known and torch.is_autocast_enabled(device)


def training_factor(owner: str, law: Law, scale: str) -> float:
    """What a mask value is multiplied by in training; checks the law and the scale on the way."""
    return 1 / _checked_divisor(owner, law, scale)


def _checked_divisor(owner: str, law: Law, scale: str) -> float:
    check_law(owner, law)
    check_choice(owner, "scale", scale, SCALES)
    # A Bernoulli law that keeps nothing gives zeros, as torch.nn.Dropout(p=1) does.
    if scale == "inverted" and law.mean == 0 and not isinstance(law, Bernoulli):
        raise ValueError(f"{owner}: {law!r} has mean 0, so it cannot be scaled to mean one; use scale='paper'")
    return divisor(law, scale)


def _normalise_axes(axes: Sequence[int], dimensions: int) -> list[int]:
    normalised = []
    for axis in axes:
        if not -dimensions <= axis < dimensions:
            raise IndexError(
                f"dropout: expected shared_axes between {-dimensions} and {dimensions - 1} for an input with "
                f"{dimensions} axes, got {axis}"
            )
        normalised.append(axis % dimensions)
    if len(set(normalised)) < len(normalised):
        raise ValueError(f"dropout: an axis is named twice in shared_axes={tuple(axes)}")
    return normalised
