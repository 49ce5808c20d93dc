"""What the spread of a network's outputs adds to its expected loss, the outputs being Gaussian.

Where the loss is known, by quadrature; else by draws that are always the same, so that the result is a smooth function
of mean and covariance and can be differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._torch.private import has_forward_hooks
from . import arguments, quadrature, roots

Loss = Callable[[Any, Any], Tensor]

# Eigenvalues below this share of the largest are what rounding makes of zero.
_ROUNDING = 1e-14


def increase(loss: Loss, mean: Tensor, covariance: Tensor, target: Any, samples: int) -> Tensor:
    """E[loss(Y, target)] - loss(mean, target) for independent examples Y_n ~ N(mean_n, covariance_n).

    Binary cross entropy of logits is a sum of functions of one Gaussian variable each, and integrated to rounding.
    Every other loss is averaged over :func:`draws`, which integrates polynomials of degree three exactly: so squared
    error is exact, and so is whatever a weak noise adds to a smooth loss.

    Args:
        loss: A sum or mean over examples.
        mean: [N, ...].
        covariance: [N, D, D] over the D elements of an example.
        target: The loss's second argument.
        samples: Number of draws.
    """
    if _is_binary_cross_entropy(loss):
        variance = covariance.diagonal(dim1=1, dim2=2).reshape(mean.shape)
        return _binary_cross_entropy(mean, variance, getattr(loss, "reduction", "mean"))
    with torch.inference_mode(False):  # they are kept for every mode
        z = draws(mean[0].numel(), samples).to(mean)
    spread = torch.einsum("nij,sj->sni", symmetric_root(covariance).to(mean.dtype), z)
    # The mean goes along as a draw of its own: what rounding does to it, it does to the others.
    values = _each(loss, torch.cat([mean.unsqueeze(0), mean + spread.reshape(-1, *mean.shape)]), target)
    return (values[1:] - values[0]).mean()


def _each(loss: Loss, outputs: Tensor, target: Any) -> Tensor:
    """The loss of every draw."""
    try:
        result: Tensor = torch.func.vmap(lambda output: loss(output, target))(outputs)
    except RuntimeError:
        # A loss that looks at its values cannot be vectorised; if it fails by itself, it does so again.
        result = torch.stack([loss(output, target) for output in outputs])
    return result


@functools.cache
def draws(dimension: int, samples: int) -> Tensor:
    """Points [S, dimension], the same in every call, whose average stands for the expectation over N(0, I).

    They are scrambled Sobol' points through the normal quantile, mirrored (so that odd moments vanish) and multiplied
    by a matrix that makes their covariance exactly the identity. S is ``samples``, but at least four times the
    dimension: fewer have no covariance to speak of.
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
    """R with R R = covariance and R = R^T, [N, D, D]; differentiable, also where eigenvalues are equal or zero.

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
        deviations = roots.deviation(values)
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
        computes = arguments.is_forward_of(loss, torch.nn.BCEWithLogitsLoss) and not has_forward_hooks(loss)
        return computes and loss.weight is None and loss.pos_weight is None and loss.reduction in ("mean", "sum")
    return loss is torch.nn.functional.binary_cross_entropy_with_logits


def _binary_cross_entropy(mean: Tensor, variance: Tensor, reduction: str) -> Tensor:
    """E[log(1 + e^Y)] - log(1 + e^mean), elementwise; then their mean or sum. The rest of the loss is linear in Y."""
    centre = mean.to(torch.float64)
    at_mean = torch.nn.functional.softplus(centre, threshold=40)
    values = quadrature.logistic_expectation(centre, variance.to(torch.float64), -1) - at_mean
    return (values.mean() if reduction == "mean" else values.sum()).to(mean.dtype)
