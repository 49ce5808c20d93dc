"""The noise of a model's dropout layers as explicit variables, which are zero and can be differentiated by."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .._torch.private import DropoutBase
from ..functional import training_factor
from ..laws import Bernoulli, Law
from ..nn import AdaptiveDropout, DropConnectLinear, Dropout, FastDropoutLinear
from . import arguments


@dataclasses.dataclass
class Noise:
    """The noise e of one forward pass: a tensor of zeros for every call of a dropout layer, and their variances.

    With ``by_example`` nothing is shared between examples: to an expected loss that is a mean over examples it makes no
    difference, and the Gauss-Newton form needs each value to act on one example only.
    """

    by_example: bool
    values: list[Tensor] = dataclasses.field(default_factory=list)
    variances: list[Tensor | float] = dataclasses.field(default_factory=list)

    def add(self, like: Tensor, variance: Tensor | float, shared_axes: Sequence[int] = ()) -> Tensor:
        shape = list(like.shape)
        for axis in shared_axes:
            if not (self.by_example and axis % like.dim() == 0):
                shape[axis] = 1
        value = torch.zeros(shape, dtype=like.dtype, device=like.device, requires_grad=True)
        self.values.append(value)
        self.variances.append(variance)
        return value


def _dropout(layer: Dropout, noise: Noise, x: Tensor) -> Tensor:
    return _masked(x.relu() if layer.activation == "relu" else x, noise, layer.law, layer.scale, layer.shared_axes)


def _torch_dropout(layer: DropoutBase, noise: Noise, x: Tensor) -> Tensor:
    # A feature map is what lies beyond the batch and the channels; torch takes some inputs to be without a batch.
    unbatched = isinstance(layer, torch.nn.Dropout1d) and x.dim() == 2
    unbatched |= isinstance(layer, torch.nn.Dropout3d) and x.dim() == 4
    shared_axes = () if isinstance(layer, torch.nn.Dropout) else range(1 if unbatched else 2, x.dim())
    return _masked(x, noise, Bernoulli(keep=1 - layer.p), "inverted", shared_axes)


def _masked(x: Tensor, noise: Noise, law: Law, scale: str, shared_axes: Sequence[int]) -> Tensor:
    # The noise is m - E[m] rather than a multiple of E[m], which may be 0 for scale="paper".
    return x * (training_factor("penalty", law, scale) * (law.mean + noise.add(x, law.variance, shared_axes)))


def _adaptive_dropout(layer: AdaptiveDropout, noise: Noise, h: Tensor, preactivation: Tensor) -> Tensor:
    keep = torch.sigmoid(layer.alpha * preactivation + layer.beta)
    return h * (keep + noise.add(h, keep * (1 - keep)))


def _fast_dropout(layer: FastDropoutLinear, noise: Noise, x: Tensor) -> Tensor:
    factor = training_factor("penalty", layer.law, layer.scale)
    mean = torch.nn.functional.linear(x, layer.weight) * (layer.law.mean * factor)
    variance = torch.nn.functional.linear(x.square(), layer.weight.square()) * (layer.law.variance * factor**2)
    z = mean + noise.add(mean, variance)
    return z if layer.bias is None else z + layer.bias


def _dropconnect(layer: DropConnectLinear, noise: Noise, x: Tensor) -> Tensor:
    law, factor = layer.law, training_factor("penalty", layer.law, layer.scale)
    masked_bias: Tensor | None = layer.bias if layer.mask_bias else None
    kept_bias: Tensor | None = None if layer.mask_bias else layer.bias
    if layer.masks == "example" or (noise.by_example and x.dim() == 2):
        # The masks of a unit's weights act through its pre-activation alone, and each unit has masks of its own. So
        # one noise value per unit, with the variance of their sum, has the same effect to second order.
        mean = torch.nn.functional.linear(x, layer.weight, masked_bias) * (law.mean * factor)
        square_bias = None if masked_bias is None else masked_bias.square()
        variance = torch.nn.functional.linear(x.square(), layer.weight.square(), square_bias)
        z = mean + noise.add(mean, variance * (law.variance * factor**2))
    elif noise.by_example:
        raise ValueError(
            "penalty: expected a DropConnectLinear with masks='batch' to get an input [batch, in] for "
            f"method='gauss-newton', got shape {tuple(x.shape)}; use method='hutchinson'"
        )
    else:
        weight = _masked(layer.weight, noise, law, layer.scale, ())
        bias = None if masked_bias is None else _masked(masked_bias, noise, law, layer.scale, ())
        z = torch.nn.functional.linear(x, weight, bias)
    if kept_bias is not None:
        z = z + kept_bias
    return z if layer.activation is None else z.relu() if layer.activation == "relu" else z.sigmoid()


_FORWARDS: tuple[tuple[tuple[type[torch.nn.Module], ...], Callable[..., Tensor]], ...] = (
    ((Dropout,), _dropout),
    ((torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d), _torch_dropout),
    ((AdaptiveDropout,), _adaptive_dropout),
    ((FastDropoutLinear,), _fast_dropout),
    ((DropConnectLinear,), _dropconnect),
)


def noisy_forward(layer: torch.nn.Module) -> Callable[..., Tensor] | None:
    """What shows the noise of this layer; None if it is not known. A forward of its own makes it another layer."""
    for kinds, forward in _FORWARDS:
        for kind in kinds:
            if isinstance(layer, kind):
                return forward if arguments.is_forward_of(layer, kind) else None
    return None


@contextlib.contextmanager
def replaced_forwards(model: torch.nn.Module, noise: Noise) -> Iterator[None]:
    """Within it, the model is in evaluation mode and its dropout layers show their noise as explicit zeros."""
    forwards = [(module, forward) for module in model.modules() if (forward := noisy_forward(module))]
    with evaluating(model):
        try:
            for module, forward in forwards:
                module.forward = functools.partial(forward, module, noise)
            yield
        finally:
            for module, _ in forwards:
                vars(module).pop("forward", None)


def evaluating(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    return switched(model, training=False)


@contextlib.contextmanager
def switched(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Within it, all of the model is in that mode; beyond it, each part is in its own."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = training
        yield
    finally:
        for module, before in modes:
            module.training = before
