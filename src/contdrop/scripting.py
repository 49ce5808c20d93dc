"""The functions of :mod:`contdrop.functional` in the part of Python that torch.jit.script compiles.

They draw the same seeds and call the same operators, so a scripted layer has the masks of the layer.
"""

import torch
from torch import Tensor
from torch.jit import is_scripting as is_scripting  # type: ignore[attr-defined]

from ._torch.fx import ScriptedLaw
from .functional import sampled_linear as sampled_linear  # defines an operator
from .functional.moments import expected_relu, expected_sigmoid, standard_deviation

__all__ = ["adaptive_dropout", "dropconnect_linear", "dropout", "fast_dropout_linear", "is_scripting", "sampled_linear"]


def _draw_seed() -> Tensor:
    size: list[int] = []
    return torch.randint(9223372036854775807, size, device="cpu")  # seeds.LIMIT


def _multiply(x: Tensor, seed: Tensor, law: ScriptedLaw, stream: int) -> Tensor:
    axes: list[int] = []
    result: Tensor = torch.ops.contdrop.dropout(x, seed, law[0], law[1], law[2], axes, stream)
    return result


def dropout(x: Tensor, training: bool, law: ScriptedLaw, shared_axes: list[int], relu: bool, inplace: bool) -> Tensor:
    y = torch.relu(x) if relu else x
    if training:
        axes = [axis + x.dim() if axis < 0 else axis for axis in shared_axes]
        for axis in axes:
            if axis < 0 or axis >= x.dim():
                raise IndexError("dropout: expected shared_axes that the input has")
        y = torch.ops.contdrop.dropout(y, _draw_seed(), law[0], law[1], law[2], axes, 0)  # STREAM_MASK
    elif law[5] != 1.0:
        y = y * law[5]
    elif not relu:
        return x
    return x.copy_(y) if inplace else y


def adaptive_dropout(h: Tensor, preactivation: Tensor, alpha: float, beta: float, training: bool) -> Tensor:
    keep = torch.sigmoid(alpha * preactivation.detach() + beta)
    if training:
        axes: list[int] = []
        result: Tensor = torch.ops.contdrop.keep_where(h, _draw_seed(), keep, axes)
        return result
    return (h * keep).to(h.dtype)


def fast_dropout_linear(x: Tensor, weight: Tensor, bias: Tensor | None, law: ScriptedLaw, training: bool) -> Tensor:
    weight, bias = _of_type(weight, x), _of_type(bias, x) if bias is not None else bias
    mean = torch.nn.functional.linear(x, weight) * law[3]
    if bias is not None:
        mean = mean + bias
    if not training:
        return mean
    deviation = standard_deviation(_sum_of_squares(x, weight, None) * law[4])
    return (mean + _standard_normal_times(deviation, _draw_seed())).to(mean.dtype)


def _of_type(parameter: Tensor, x: Tensor) -> Tensor:
    # Under autocast the layer before gives half precision.
    is_half = x.dtype == torch.float16 or x.dtype == torch.bfloat16
    return parameter.to(x.dtype) if is_half and parameter.dtype == torch.float32 else parameter


def _sum_of_squares(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.dtype != torch.float64:
        x, weight, bias = x.float(), weight.float(), bias.float() if bias is not None else bias
    squares = bias.square() if bias is not None else bias
    found = torch.nn.functional.linear(x.square(), weight.square(), squares)
    if found.dtype != x.dtype:  # by autocast, which a script cannot switch off, but which leaves float64 alone
        wide = squares.double() if squares is not None else squares
        found = torch.nn.functional.linear(x.double().square(), weight.double().square(), wide).to(x.dtype)
    return found


def _standard_normal_times(deviation: Tensor, seed: Tensor) -> Tensor:
    axes: list[int] = []
    params = [0.0, 1.0, float("-inf"), float("inf")]
    result: Tensor = torch.ops.contdrop.dropout(deviation, seed, "gaussian", params, 1.0, axes, 2)  # STREAM_NORMAL
    return result


def _activate(z: Tensor, activation: str | None) -> Tensor:
    if activation is None:
        return z
    return z.relu() if activation == "relu" else z.sigmoid()


def _masked_linear(x: Tensor, weight: Tensor, bias: Tensor | None, law: ScriptedLaw, masks: str) -> Tensor:
    seed = _draw_seed()
    if masks == "batch":
        masked = _multiply(bias, seed, law, 1) if bias is not None else bias  # STREAM_BIAS
        return torch.nn.functional.linear(x, _multiply(weight, seed, law, 0), masked)
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    z: Tensor = torch.ops.contdrop.dropconnect(rows, weight, seed, law[0], law[1], law[2])
    if bias is not None:
        z = z + _multiply(bias.expand_as(z), seed, law, 1)
    return z.reshape(x.shape[:-1] + weight.shape[:1])


def dropconnect_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    law: ScriptedLaw,
    training: bool,
    masks: str,
    inference: str,
    samples: int,
    activation: str | None,
    mask_bias: bool,
) -> Tensor:
    weight, bias = _of_type(weight, x), _of_type(bias, x) if bias is not None else bias
    masked_bias = bias if mask_bias else None
    kept_bias = None if mask_bias else bias
    if training:
        z = _masked_linear(x, weight, masked_bias, law, masks)
        return _activate(z if kept_bias is None else z + kept_bias, activation)
    mean = torch.nn.functional.linear(x, weight, masked_bias) * law[3]
    if kept_bias is not None:
        mean = mean + kept_bias
    if inference == "mean" or activation is None:
        return _activate(mean, activation)
    variance = _sum_of_squares(x, weight, masked_bias) * law[4]
    if inference == "sampled":
        averaged: Tensor = torch.ops.contdrop.sampled_activation(
            mean, standard_deviation(variance), _draw_seed(), samples, activation
        )
        return averaged
    if x.dtype != torch.float64:
        mean, variance = mean.float(), variance.float()
    if activation is not None and activation == "relu":
        return expected_relu(mean, variance).to(x.dtype)
    return expected_sigmoid(mean, variance).to(x.dtype)
