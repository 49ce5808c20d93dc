"""Noise of dropout layers as explicit variables, and the increase of a loss by the spread of Gaussian outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, softplus

from .._torch.checks import entry_of, is_forward_of
from .._torch.private import DropoutBase, has_forward_hooks
from ..laws import Bernoulli, Law, training_factor
from ..nn import AdaptiveDropout, DropConnectLinear, Dropout, FastDropoutLinear
from ..surgery.dropout_layers import mask_axes, switched
from . import _numerics


@dataclasses.dataclass
class Noise:
    """Noise e of one forward pass: a tensor of zeros for every call of a dropout layer, and their variances.

    With ``by_example`` nothing is shared between examples. An expected loss that is a mean over examples does not
    change, and the Gauss-Newton form needs each value to act on one example only.
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
    return _masked(x, noise, Bernoulli(keep=1 - layer.p), "inverted", sorted(mask_axes(layer, x.dim())))


def _masked(x: Tensor, noise: Noise, law: Law, scale: str, shared_axes: Sequence[int]) -> Tensor:
    # The noise is m - E[m] rather than a multiple of E[m], which may be 0 for scale="paper".
    return x * (training_factor("penalty", law, scale) * (law.mean + noise.add(x, law.variance, shared_axes)))


def _adaptive_dropout(layer: AdaptiveDropout, noise: Noise, h: Tensor, preactivation: Tensor) -> Tensor:
    keep = torch.sigmoid(layer.alpha * preactivation + layer.beta)
    return h * (keep + noise.add(h, keep * (1 - keep)))


def _fast_dropout(layer: FastDropoutLinear, noise: Noise, x: Tensor) -> Tensor:
    factor = training_factor("penalty", layer.law, layer.scale)
    mean = linear(x, layer.weight) * (layer.law.mean * factor)
    variance = linear(x.square(), layer.weight.square()) * (layer.law.variance * factor**2)
    z = mean + noise.add(mean, variance)
    return z if layer.bias is None else z + layer.bias


def _dropconnect(layer: DropConnectLinear, noise: Noise, x: Tensor) -> Tensor:
    law, factor = layer.law, training_factor("penalty", layer.law, layer.scale)
    bias: Tensor | None = layer.bias if layer.mask_bias else None
    if layer.masks == "example" or (noise.by_example and x.dim() == 2):
        # The masks of a unit's weights act through its pre-activation alone, and each unit has masks of its own. So
        # one noise value per unit, with the variance of their sum, has the same effect to second order.
        mean = linear(x, layer.weight, bias) * (law.mean * factor)
        variance = linear(x.square(), layer.weight.square(), None if bias is None else bias.square())
        z = mean + noise.add(mean, variance * (law.variance * factor**2))
    elif noise.by_example:
        raise ValueError(
            "penalty: expected a DropConnectLinear with masks='batch' to get an input [batch, in] for "
            f"method='gauss-newton', got shape {tuple(x.shape)}; use method='hutchinson'"
        )
    else:
        weight = _masked(layer.weight, noise, law, layer.scale, ())
        z = linear(x, weight, None if bias is None else _masked(bias, noise, law, layer.scale, ()))
    if layer.bias is not None and not layer.mask_bias:
        z = z + layer.bias
    return z if layer.activation is None else {"relu": torch.relu, "sigmoid": torch.sigmoid}[layer.activation](z)


_FORWARDS: dict[type[torch.nn.Module], Callable[..., Tensor]] = {
    Dropout: _dropout,
    **dict.fromkeys((torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d), _torch_dropout),
    AdaptiveDropout: _adaptive_dropout,
    FastDropoutLinear: _fast_dropout,
    DropConnectLinear: _dropconnect,
}


def noisy_forward(layer: torch.nn.Module) -> Callable[..., Tensor] | None:
    """Return the forward that shows the noise of a layer; None if it is not known or has a forward of its own."""
    return entry_of(layer, _FORWARDS)


@contextlib.contextmanager
def replaced_forwards(model: torch.nn.Module, noise: Noise) -> Iterator[None]:
    """Put the model into evaluation mode, with the noise of its dropout layers as explicit zeros."""
    forwards = [(module, forward) for module in model.modules() if (forward := noisy_forward(module))]
    with switched(model, training=False):
        try:
            for module, forward in forwards:
                module.forward = functools.partial(forward, module, noise)
            yield
        finally:
            for module, _ in forwards:
                vars(module).pop("forward", None)


Loss = Callable[[Any, Any], Tensor]

# Eigenvalues below this share of the largest are what rounding makes of zero.
_ROUNDING = 1e-14


def increase(loss: Loss, mean: Tensor, covariance: Tensor, target: Any, samples: int) -> Tensor:
    """Compute E[loss(Y, target)] - loss(mean, target) for independent examples Y_n ~ N(mean_n, covariance_n).

    Binary cross entropy of logits is a sum of functions of one Gaussian variable each, and integrated to rounding.
    Every other loss is averaged over :func:`draws`, which integrates polynomials of degree three exactly: so squared
    error is exact, and so is the effect of weak noise on a smooth loss.

    The loss is a sum or mean over examples, the mean [N, ...], the covariance [N, D, D] over elements of an example.
    """
    if _is_binary_cross_entropy(loss):
        # E[log(1 + e^Y)] - log(1 + e^mean): the rest of the loss is linear in Y.
        centre = mean.to(torch.float64)
        variance = covariance.diagonal(dim1=1, dim2=2).reshape(mean.shape).to(torch.float64)
        values = _numerics.logistic_expectation(centre, variance, -1) - softplus(centre, threshold=40)
        return (values.mean() if getattr(loss, "reduction", "mean") == "mean" else values.sum()).to(mean.dtype)
    with torch.inference_mode(False):  # the draws are cached, and later calls may need gradients
        z = draws(mean[0].numel(), samples).to(mean)
    spread = torch.einsum("nij,sj->sni", symmetric_root(covariance).to(mean.dtype), z)
    # The mean is evaluated as one more draw, so that rounding affects all of them alike.
    values = _each(loss, torch.cat([mean.unsqueeze(0), mean + spread.reshape(-1, *mean.shape)]), target)
    return (values[1:] - values[0]).mean()


def _each(loss: Loss, outputs: Tensor, target: Any) -> Tensor:
    """Return the loss of every draw."""
    try:
        result: Tensor = torch.func.vmap(lambda output: loss(output, target))(outputs)
        return result
    except RuntimeError:
        # A loss with control flow on its values cannot be vectorised; any other error is raised again.
        return torch.stack([loss(output, target) for output in outputs])


@functools.cache
def draws(dimension: int, samples: int) -> Tensor:
    """Return fixed points [S, dimension] whose average approximates the expectation over N(0, I).

    They are scrambled Sobol' points through the normal quantile, mirrored (so that odd moments vanish) and multiplied
    by a matrix that makes their covariance exactly the identity. S is ``samples``, but at least four times the
    dimension, below which they have no proper covariance.
    """
    pairs = max((samples + 1) // 2, 2 * dimension)
    sobol = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    uniform = sobol.draw(pairs, dtype=torch.float64)
    # Scrambled points are multiples of 2^-30: half a step more keeps them off 0 and 1.
    z = torch.special.ndtri(uniform * (1 - 2**-30) + 2**-31)
    factor = torch.linalg.cholesky(z.T @ z / pairs)
    z = torch.linalg.solve_triangular(factor, z.T, upper=False).T
    return torch.cat([z, -z])


def symmetric_root(covariance: Tensor) -> Tensor:
    """Return R with R R = covariance and R = R^T, [N, D, D]; differentiable, also where eigenvalues are equal or zero.

    With eigenvectors V and the roots r of the eigenvalues, dR = V (V^T dC V / (r_i + r_j)) V^T. Where r_i and r_j are
    zero, V^T dC V has a zero, because a covariance cannot become negative.
    """
    root: Tensor = _SymmetricRoot.apply(covariance)  # type: ignore[no-untyped-call]
    return root


class _SymmetricRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(covariance)
        values = torch.where(values > _ROUNDING * values[..., -1:], values, 0)
        deviations = _numerics.standard_deviation(values)
        ctx.save_for_backward(deviations, vectors)
        root: Tensor = (vectors * deviations.unsqueeze(-2)) @ vectors.mT
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        deviations, vectors = ctx.saved_tensors
        sums = deviations.unsqueeze(-1) + deviations.unsqueeze(-2)
        inner = vectors.mT @ ((slope + slope.mT) / 2) @ vectors
        result: Tensor = vectors @ torch.where(sums > 0, inner / torch.where(sums > 0, sums, 1), 0) @ vectors.mT
        return result


def _is_binary_cross_entropy(loss: Loss) -> bool:
    if isinstance(loss, torch.nn.BCEWithLogitsLoss):
        # A subclass, such as a focal loss, may compute something else.
        computes = is_forward_of(loss, torch.nn.BCEWithLogitsLoss) and not has_forward_hooks(loss)
        return computes and loss.weight is None and loss.pos_weight is None and loss.reduction in ("mean", "sum")
    return loss is torch.nn.functional.binary_cross_entropy_with_logits
