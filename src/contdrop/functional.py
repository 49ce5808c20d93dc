"""Every dropout of the family as a function. The modules in :mod:`contdrop.nn` store arguments and call these.

Scaling: with ``scale="inverted"`` (torch's convention) training multiplies by m / E[m] and evaluation is the identity;
with ``scale="paper"`` training multiplies by m and evaluation by E[m].

Randomness: each call draws one seed from ``generator``, or from torch's default CPU generator, and re-creates its mask
from that seed in backward.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from . import kernels, nested
from .choices import (
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
from .expectations import standard_deviation
from .laws import LAWS, Bernoulli, Law, check_law
from .masks import connect, gate, law_in_graph, multiply, standard_normal_times
from .sampling import activate, expected_activation, sampled_activation

# Tuples: the compiler of torch 2.6 to 2.8 does not follow a search in a frozenset.
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
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
        factor = built_in.factor / law.mean if scale == "inverted" else built_in.factor
        arguments = (built_in.kind, built_in.params, factor, activation is not None, tuple(shared_axes), generator)
        y = kernels.express.dropout(x, *arguments)
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
    law, factor = _law_and_factor("dropout", law, scale)
    check_choice("dropout", "activation", activation, DROPOUT_ACTIVATIONS)
    axes = _normalise_axes(shared_axes, x.dim()) if shared_axes and not x.is_nested else []
    check_generator("dropout", generator)
    y = torch.relu(x) if activation == "relu" else x
    if training and x.is_nested:
        seed = kernels.draw_seed(generator)
        masked = functools.partial(multiply, seed=seed, law=law, factor=factor, stream=kernels.STREAM_MASK)
        y = nested.apply("dropout", lambda values, axes: masked(values, shared_axes=axes), y, shared_axes=shared_axes)
    elif training:
        y = multiply(y, kernels.draw_seed(generator), law, factor, axes, kernels.STREAM_MASK)
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
        return nested.apply("adaptive_dropout", lambda h, a, _: gated(h, a), h, preactivation)
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
    return h * keep


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
    infinitely many draws; "mean" applies the activation to the mean.

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
        return nested.apply(owner, lambda rows, _: dropconnect_linear(rows, weight, bias, law, **options), x)
    x, weight, bias = _check_linear(owner, x, weight, bias)
    law, factor = _law_and_factor(owner, law, scale)
    check_choice(owner, "masks", masks, MASKS)
    check_choice(owner, "inference", inference, INFERENCES)
    check_choice(owner, "activation", activation, ACTIVATIONS)
    check_samples(owner, samples)
    check_generator(owner, generator)
    if training:
        seed = kernels.draw_seed(generator)
        z = _masked_linear(x, weight, bias if mask_bias else None, law, factor, masks, seed)
        return activate(z if mask_bias or bias is None else z + bias, activation)

    expectation = law.mean * factor
    kept_bias, masked_bias = (None, bias) if mask_bias else (bias, None)
    mean = torch.nn.functional.linear(x, weight, masked_bias) * expectation
    if kept_bias is not None:
        mean = mean + kept_bias
    if inference == "mean" or (inference == "analytic" and activation is None):
        return activate(mean, activation)
    square_bias = masked_bias.square() if masked_bias is not None else None
    variance = torch.nn.functional.linear(x.square(), weight.square(), square_bias) * (law.variance * factor**2)
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
        return nested.apply(owner, lambda rows, _: fast_dropout_linear(rows, weight, bias, law, **options), x)
    x, weight, bias = _check_linear(owner, x, weight, bias)
    law, factor = _law_and_factor(owner, law, scale)
    check_generator(owner, generator)
    mean = torch.nn.functional.linear(x, weight) * (law.mean * factor)
    if bias is not None:
        mean = mean + bias
    if not training:
        return mean
    variance = torch.nn.functional.linear(x.square(), weight.square()) * (law.variance * factor**2)
    return mean + standard_normal_times(standard_deviation(variance), kernels.draw_seed(generator))


def _law_and_factor(owner: str, law: Law, scale: Scale) -> tuple[Any, float]:
    """The law, and what its mask values are multiplied by in training; in a compiled graph, both as its inputs."""
    if is_dynamo_compiling():
        check_choice(owner, "scale", scale, SCALES)
        known = law_in_graph(law, scale)
        if known is not None:
            return known, 1.0
    return law, training_factor(owner, law, scale)


def _masked_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, law: Any, factor: float, masks: str, seed: Tensor
) -> Tensor:
    if masks == "batch":
        weight = multiply(weight, seed, law, factor, [], kernels.STREAM_MASK, [])
        if bias is not None:
            bias = multiply(bias, seed, law, factor, [], kernels.STREAM_BIAS, [])
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    z = connect(rows, weight, seed, law, factor)
    if bias is not None:
        z = z + multiply(bias.expand_as(z), seed, law, factor, [], kernels.STREAM_BIAS)
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
    # The compiler of torch 2.6 does not follow is_autocast_available.
    device = x.device.type
    known = device != "meta" if is_dynamo_compiling() else torch.amp.is_autocast_available(device)
    if known and torch.is_autocast_enabled(device):
        # torch's own linear does this inside; our operators get their arguments ready-made.
        dtype = torch.get_autocast_dtype(device)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (x.dtype != other.dtype or x.device != other.device):
            raise RuntimeError(
                f"{owner}: expected x and {name} of one type and on one device, got {x.dtype} on {x.device} and "
                f"{other.dtype} on {other.device}; x.to({name}) brings x there"
            )
    return x, weight, bias


def check_input(owner: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{owner}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{owner}: expected a floating-point tensor, got {x.dtype}; convert it, for example by x.float()"
        )


def check_choice(owner: str, name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{owner}: expected {name} to be one of {expected}; got {value!r}")


def check_samples(owner: str, samples: object) -> None:
    if isinstance(samples, bool) or not isinstance(samples, numbers.Integral) or int(samples) < 1:
        raise ValueError(f"{owner}: expected samples to be a whole number of at least 1, got {samples!r}")


def check_number(owner: str, name: str, value: object) -> float:
    """The number as Python's own; NumPy's scalars are welcome, but torch would take some of them for arrays."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: expected a number for {name}, got {type(value).__name__}")
    return float(value)


def check_generator(owner: str, generator: torch.Generator | None) -> None:
    if generator is None or is_dynamo_compiling():  # compilers of torch before 2.9 do not know a generator's device
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"{owner}: expected a torch.Generator or None, got {type(generator).__name__}")
    if generator.device.type != "cpu":
        raise ValueError(
            f"{owner}: expected a generator on the cpu, where the seed is drawn for inputs on every device, "
            f"got one on {generator.device}; use torch.Generator()"
        )


def training_factor(owner: str, law: Law, scale: str) -> float:
    """What a mask value is multiplied by in training; checks the law and the scale on the way."""
    check_law(owner, law)
    check_choice(owner, "scale", scale, SCALES)
    if scale == "paper":
        return 1.0
    if law.mean == 0:
        if isinstance(law, Bernoulli):
            return 1.0  # keep = 0 gives zeros, as torch.nn.Dropout(p=1) does
        raise ValueError(f"{owner}: {law!r} has mean 0, so it cannot be scaled to mean one; use scale='paper'")
    return 1 / law.mean


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
