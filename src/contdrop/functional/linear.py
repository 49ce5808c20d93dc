"""Linear layers with noise on their weights or inputs, and averages of their activations.

While a model is compiled, exported or traced, sampled inference is one operator whose number of chunks depends on the
size of the batch; as a part of the graph it would fix that size.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._torch import nested_tensors, sharding
from .._torch.checks import check_choice, check_generator, check_input, check_whole
from .._torch.private import OneLevelFunction, below_autograd
from ..choices import ACTIVATIONS, INFERENCES, MASKS, Activation, Inference, Masks, Scale
from ..kernels import LIBRARY, STREAM_BIAS, STREAM_MASK, compute_dtype, draw_seed, ops
from ..kernels.masks import ScaledLaw, connect, multiply, scaled, standard_normal_times
from ..laws import Bernoulli, Law

_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.7

# Largest number of values that are drawn at once.
_CHUNK = 1 << 22

# sigmoid(z) as a mixture of normal distribution functions, sum of p Phi(s z), after Monahan and Stefanski (1992). These
# pairs (p, s) are our own minimax fit on z in [0, 45]; the error is below 4e-9 everywhere.
_MIXTURE = (
    (0.001312482686, 0.236992816461),
    (0.025114678113, 0.305787934797),
    (0.122020115046, 0.390878628432),
    (0.267039098987, 0.500588828435),
    (0.320271743247, 0.641833033639),
    (0.204978693952, 0.82143811417),
    (0.05567923525, 1.050509577118),
    (0.003583952719, 1.357301917021),
)


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
    """Apply a linear layer with masked weights (DropConnect: Wan et al., 2013), and its activation.

    In training z_o = sum over i of m_oi w_oi x_i + m_o b_o, with a mask for every example or one for the batch. In
    evaluation z is taken as Gaussian with its exact mean and variance,

        mean     = E[m] (W x + b)
        variance = Var(m) ((W * W)(x * x) + b * b)

    (both with the mask scaled to mean one if ``scale="inverted"``). ``inference`` selects the output: "sampled"
    averages activation(z) over ``samples`` draws, as Wan et al. do; "analytic" is its limit for infinitely many draws;
    "mean" applies the activation to the mean. Without an activation the three are equal.

    Args:
        x: Input [..., in].
        weight: [out, in], as in torch.nn.functional.linear.
        bias: [out] or None.
        law: Distribution of the mask values.
        training: Whether to draw masks.
        masks: "example" for a mask per example, "batch" for one that all examples share.
        scale: "inverted" or "paper"; see :mod:`contdrop.functional`.
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
    scaled_law = scaled(owner, law, scale)
    check_choice(owner, "masks", masks, MASKS)
    check_choice(owner, "inference", inference, INFERENCES)
    check_choice(owner, "activation", activation, ACTIVATIONS)
    check_whole(owner, "samples", samples, 1)
    check_generator(owner, generator)
    kept_bias, masked_bias = (None, bias) if mask_bias else (bias, None)
    if training:
        z = _masked_linear(x, weight, masked_bias, scaled_law, masks, draw_seed(generator))
        return _activate(z if kept_bias is None else z + kept_bias, activation)
    mean = torch.nn.functional.linear(x, weight, masked_bias) * scaled_law.mean
    if kept_bias is not None:
        mean = mean + kept_bias
    if inference == "mean" or activation is None:  # without an activation the average of z is its mean
        return _activate(mean, activation)
    variance = _sum_of_squares(x, weight, masked_bias) * scaled_law.variance
    if inference == "analytic":
        return _expected_activation(mean, variance, activation)
    return _sampled_activation(mean, variance, samples, activation, generator)


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
    """Apply a linear layer with dropout on its input by sampling its output (fast dropout: Wang and Manning, 2013).

    The pre-activation is drawn from the Gaussian of the same moments instead of a mask value per input:
    z = E[m] W x + b + sqrt(Var(m) (W * W)(x * x)) eps, with eps standard normal. Only two moments of the law enter.

    Args:
        x: Input [..., in].
        weight: [out, in], as in torch.nn.functional.linear.
        bias: [out] or None; not masked.
        law: Distribution of the mask values that are integrated out.
        training: Whether to draw; if False, the result is the mean.
        scale: "inverted" or "paper"; see :mod:`contdrop.functional`.
        generator: CPU generator to draw the seed from.
    """
    owner = "fast_dropout_linear"
    options: dict[str, Any] = {"training": training, "scale": scale, "generator": generator}
    if has_torch_function_unary(x):
        return handle_torch_function(fast_dropout_linear, (x,), x, weight, bias, law, **options)
    if isinstance(x, Tensor) and x.is_nested:
        return nested_tensors.apply(owner, lambda rows, _: fast_dropout_linear(rows, weight, bias, law, **options), x)
    x, weight, bias = _check_linear(owner, x, weight, bias)
    scaled_law = scaled(owner, law, scale)
    check_generator(owner, generator)
    mean = torch.nn.functional.linear(x, weight) * scaled_law.mean
    if bias is not None:
        mean = mean + bias
    if not training:
        return mean
    variance = _sum_of_squares(x, weight) * scaled_law.variance
    noise = standard_normal_times(standard_deviation(variance), draw_seed(generator))
    return (mean + noise).to(mean.dtype)


def _masked_linear(x: Tensor, weight: Tensor, bias: Tensor | None, law: ScaledLaw, masks: str, seed: Tensor) -> Tensor:
    if masks == "batch":
        weight = multiply(weight, seed, law, [], STREAM_MASK)
        if bias is not None:
            bias = multiply(bias, seed, law, [], STREAM_BIAS)
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.flatten(0, -2) if x.dim() > 1 else x[None]
    z = connect(rows, weight, seed, law)
    if bias is not None:
        z = z + multiply(bias.expand_as(z), seed, law, [], STREAM_BIAS)
    return z.reshape(*x.shape[:-1], weight.shape[0])


def _sum_of_squares(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return (W * W)(x * x) + b * b in at least float32, because squares of half precision overflow or underflow."""
    wide = compute_dtype(x.dtype)
    squares = [None if tensor is None else tensor.to(wide).square() for tensor in (x, weight, bias)]
    device = x.device.type
    with torch.autocast(device, enabled=False) if _autocasts(device) else contextlib.nullcontext():
        return sharding.complete(torch.nn.functional.linear(*squares))  # type: ignore[arg-type]


def _check_linear(owner: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check shapes, types and devices; dequantize the weight and apply autocast."""
    check_input(owner, x)
    # Masks apply to the numbers that quantized types, such as torchao's, stand for.
    if type(weight) not in (Tensor, torch.nn.Parameter) and type(weight).dequantize is not Tensor.dequantize:
        weight = weight.dequantize()
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{owner}: expected x [..., in] and weight [out, in], got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{owner}: expected bias [{weight.shape[0]}], got {tuple(bias.shape)}")
    device = x.device.type
    if _autocasts(device):  # torch's own linear does this inside; our operators do not
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


# Expected activations of a Gaussian pre-activation, the limit of sampled inference.


def standard_deviation(variance: Tensor) -> Tensor:
    """Return the square root, with derivative 0 instead of infinity where the variance is 0 (an input of zeros)."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1).sqrt(), 0)


def expected_relu(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E[max(z, 0)] for z ~ N(mean, variance): mean Phi(mean / s) + s phi(mean / s), with s^2 = variance."""
    deviation = standard_deviation(variance)
    # With hardly any spread the result is relu(mean), and the derivatives of the quotient would overflow.
    spread = deviation > 1e-6 * mean.abs()
    z = mean / torch.where(spread, deviation, 1)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.where(spread, mean * torch.special.ndtr(z) + deviation * density, mean.relu())


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E[sigmoid(z)] for z ~ N(mean, variance), to 4e-9 in float64.

    Each term p Phi(s z) of the mixture has expectation p Phi(s mean / sqrt(1 + s^2 variance)). A single term
    (s^2 = pi / 8) is the well-known probit approximation, with an error of up to 0.02.
    """
    result = torch.zeros_like(mean)
    for weight, scale in _MIXTURE:
        result = result + weight * torch.special.ndtr(scale * mean * torch.rsqrt(1 + scale**2 * variance))
    return result


def _expected_activation(mean: Tensor, variance: Tensor, activation: str) -> Tensor:
    wide = compute_dtype(mean.dtype)  # normal tails lose their digits in half precision
    expected = expected_relu if activation == "relu" else expected_sigmoid
    return expected(mean.to(wide), variance.to(wide)).to(mean.dtype)


# Averages over draws.


def _sampled_activation(
    mean: Tensor, variance: Tensor, samples: int, activation: str, generator: torch.Generator | None
) -> Tensor:
    """Average activation(z) over draws of z ~ N(mean, variance)."""
    if _is_exporting() and torch.onnx.is_in_onnx_export():  # which has no generator of such numbers
        return _expected_activation(mean, variance, activation)
    deviation, seed = standard_deviation(variance), draw_seed(generator)
    if (torch.compiler.is_compiling() or _is_tracing()) and not sharding.is_sharded(mean):
        averaged: Tensor = _operator(mean, deviation, seed, samples, activation)
        return averaged
    return _average(mean, deviation, seed, samples, activation)


def _activate(z: Tensor, activation: str | None) -> Tensor:
    return z if activation is None else z.relu() if activation == "relu" else z.sigmoid()


def _average(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int, activation: str | None) -> Tensor:
    total = torch.zeros_like(mean, dtype=compute_dtype(mean.dtype))
    for z, _ in _draws(mean, deviation, seed, samples):
        total = total + _activate(z, activation).sum(0)
    return (total / samples).to(mean.dtype)


def _average_slopes(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int, activation: str | None) -> Tensor:
    """Return the derivatives of the average by mean and deviation, [2, ...], from the same draws."""
    total = torch.zeros((2, *mean.shape), dtype=compute_dtype(mean.dtype), device=mean.device)
    for z, chunk_seed in _draws(mean, deviation, seed, samples):
        if activation is None:
            slope = torch.ones_like(z)
        else:
            slope = (z > 0).to(z.dtype) if activation == "relu" else z.sigmoid() * (1 - z.sigmoid())
        slope = slope.contiguous()
        total = total + torch.stack([slope.sum(0), standard_normal_times(slope, chunk_seed).sum(0)])
    return total / samples


def _draws(mean: Tensor, deviation: Tensor, seed: Tensor, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield draws of z in chunks that fit into memory, each with its seed, which is derived from the call's."""
    deviation = deviation.to(compute_dtype(mean.dtype))
    at_once = max(1, _CHUNK // max(mean.numel(), 1))
    for chunk, start in enumerate(range(0, samples, at_once)):
        size = (min(at_once, samples - start), *mean.shape)
        chunk_seed = seed + chunk if chunk else seed  # torch's vmap cannot add to the seeds of an empty batch
        # A copy, because the kernels are fastest on contiguous tensors.
        yield mean + standard_normal_times(deviation.expand(size).contiguous(), chunk_seed), chunk_seed


_library: Any = LIBRARY
_ARGUMENTS = "(Tensor mean, Tensor deviation, Tensor seed, int samples, str? activation) -> Tensor"
_library.define(f"sampled_activation{_ARGUMENTS}")
_library.define(f"sampled_activation_slopes{_ARGUMENTS}")
_operator: Any = torch.ops.contdrop.sampled_activation.default
_slopes: Any = torch.ops.contdrop.sampled_activation_slopes.default


class _Averaged(OneLevelFunction):
    """Derivative of the operator ``sampled_activation``, which is not differentiable twice."""

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
    lambda mean, *_: mean.new_empty((2, *mean.shape), dtype=compute_dtype(mean.dtype)),
    lib=LIBRARY,
)
