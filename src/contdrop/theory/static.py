"""Moments of a forward pass over the mask, for a linear, sigmoid or ReLU unit.

Masks are not rescaled here (``scale="paper"``). For ``scale="inverted"`` divide the input by ``law.mean``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._torch.checks import check_choice, check_finite
from ..laws import Law
from . import _numerics
from ._numerics import logistic_expectation, normal_pdf
from .normal_approximation import berry_esseen as berry_esseen
from .normal_approximation import normal_distance as normal_distance
from .normal_approximation import third_absolute_moment as third_absolute_moment

METHODS = ("probit", "quadrature", "paper", "mean")


def linear_moments(weight: Tensor, x: Tensor, law: Law, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute mean and covariance matrix of S = W (m * x) + b, where the mask values m_j are independent.

    ::

        E[S] = E[m] W x + b        Cov(S) = Var(m) W diag(x^2) W^T

    Exact for every law; for the clipped Gaussian with the moments of the clipped variable.

    Args:
        weight: W, of shape [out, in].
        x: Input, of shape [..., in].
        law: The law of m.
        bias: b, of shape [out].

    Returns:
        The mean, of shape [..., out], and the covariance, of shape [..., out, out].
    """
    weight, x = _layer("linear_moments", weight, x)
    law = _numerics.as_law("linear_moments", law)
    mean = law.mean * (x @ weight.T)
    if bias is not None:
        bias = _numerics.as_tensor("linear_moments", "bias", bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"linear_moments: expected bias of shape ({weight.shape[0]},) for weight of shape "
                f"{tuple(weight.shape)}, got {tuple(bias.shape)}"
            )
        mean = mean + bias
    return mean, law.variance * ((weight * x.square().unsqueeze(-2)) @ weight.T)


def expected_sigmoid(
    mean: Tensor | float, variance: Tensor | float, *, gain: float = 1.0, offset: float = 1.0, method: str = "probit"
) -> Tensor:
    """Compute E[O] for O = 1 / (1 + c exp(-lambda S)) and S ~ N(mean, variance).

    With a = lambda E[S] - log c and v = lambda^2 Var(S), the mean and variance of the sigmoid's argument:

    - ``"probit"``: sigmoid(a / sqrt(1 + pi v / 8)), off by up to 0.0177 (see ``sigmoid_error``).
    - ``"quadrature"``: the integral, to 1e-13 for every mean and variance.
    - ``"paper"``: sigmoid(a / (1 + pi v / 8)), the recursion as the paper prints it, without the root: off by up to
      0.5, because E[O] tends to 1/2 as v grows, even where the mean is many standard deviations from zero.
    - ``"mean"``: sigmoid(a), the propagation of means that is usual for Bernoulli dropout: off by up to 0.5, because it
      ignores the variance.

    Args:
        mean: E[S]; broadcast with the variance.
        variance: Var(S), at least 0.
        gain: lambda.
        offset: c, above 0.
        method: One of the four.
    """
    owner = "expected_sigmoid"
    mean, variance = _normal(owner, mean, variance)
    gain, offset = check_finite(owner, "gain", gain), check_finite(owner, "offset", offset)
    if offset <= 0:
        raise ValueError(f"{owner}: expected offset to be above 0, got {offset}")
    argument, spread = gain * mean - math.log(offset), gain * gain * variance
    check_choice(owner, "method", method, METHODS)
    if method == "quadrature":
        return logistic_expectation(argument, spread)
    shrink = 1 + math.pi / 8 * spread
    if method == "probit":
        argument = argument / shrink.sqrt()
    elif method == "paper":
        argument = argument / shrink
    return torch.sigmoid(argument)


def sigmoid_error(
    mean: Tensor | float, variance: Tensor | float, *, gain: float = 1.0, offset: float = 1.0, method: str = "probit"
) -> Tensor:
    """Return an approximation of E[O] minus its value by quadrature.

    The arguments are those of ``expected_sigmoid`` and are broadcast, so ``sigmoid_error(mu[:, None], sigma**2)`` is
    the error over a grid.
    """
    options = {"gain": gain, "offset": offset}
    approximation = expected_sigmoid(mean, variance, method=method, **options)
    return approximation - expected_sigmoid(mean, variance, method="quadrature", **options)


def relu_moments(mean: Tensor | float, variance: Tensor | float) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of max(0, S), S ~ N(mean, variance), to about 1e-14 of their own size, also in the
    tails.

    With s^2 = variance, t = |mean| / s and the part of S beyond zero, N = max(0, -sign(mean) S), whose moments are
    those of the upper tail of a normal density beyond t (Mills ratio R and its continued fraction)::

        E[N] = s phi(t) R K_1          E[N^2] = s^2 phi(t) R K_1 K_2          R = 1 / (t + K_1), K_k = k / (t + K_k+1)

        mean < 0:   max(0, S) = N:       E[N],           E[N^2] - E[N]^2
        mean >= 0:  max(0, S) = S + N:   mean + E[N],    s^2 - E[N^2] - E[N]^2 - 2 mean E[N]

    Neither line subtracts nearly equal numbers, so the variance cannot become negative. A variance of 0 gives
    max(0, mean) and 0.

    Args:
        mean: E[S]; broadcast with the variance.
        variance: Var(S), at least 0.
    """
    mean, variance = _normal("relu_moments", mean, variance)
    random = variance > 0
    deviation = torch.where(random, variance, 1).sqrt()
    t = mean.abs() / deviation
    first, second = _tail_moments(t)
    first, second = deviation * first, deviation.square() * second
    above = mean >= 0
    expected = torch.where(above, mean + first, first)
    spread = torch.where(
        above, variance - second - first.square() - 2 * mean.abs() * first, (second - first.square()).clamp(min=0)
    )
    return torch.where(random, expected, mean.relu()), torch.where(random, spread, 0)


@dataclasses.dataclass(frozen=True)
class TradeOff:
    """Diversity and independence of one law, averaged over outputs and inputs.

    Attributes:
        law: The law.
        variance: Mean variance of the outputs ("diversity of subnetworks").
        covariance: Mean absolute covariance of two different outputs (lower is "more independent").
        ratio: covariance / variance; nan if the law has no variance.
        correlation: Mean absolute correlation of two different outputs; nan where an output has no variance.
    """

    law: Law
    variance: float
    covariance: float
    ratio: float
    correlation: float


def trade_off(laws: Sequence[Law], weight: Tensor, x: Tensor) -> list[TradeOff]:
    """Compute the variance of a linear layer's outputs and the covariance between them, which section III trades off.

    Both are Var(m) times W diag(x^2) W^T, which does not depend on the law. So ``ratio`` and ``correlation`` are the
    same for every law: Var(m) alone moves both, and there is no balance to strike. (With inverted scaling it is Var(m)
    / E[m]^2.) That the best law differs between problems shows which noise strength is best, not that a law makes units
    more independent.

    Args:
        laws: The laws to compare.
        weight: W, of shape [out, in] with at least two outputs.
        x: Input, of shape [..., in]; leading axes are averaged over.

    Returns:
        One entry per law, in order.
    """
    weight, x = _layer("trade_off", weight, x)
    outputs = weight.shape[0]
    if outputs < 2:
        raise ValueError(
            f"trade_off: expected at least 2 outputs to compare, got weight of shape {tuple(weight.shape)}"
        )
    apart = ~torch.eye(outputs, dtype=torch.bool, device=weight.device)
    result = []
    for law in laws:
        covariance = linear_moments(weight, x, _numerics.as_law("trade_off", law))[1]
        variances = covariance.diagonal(dim1=-2, dim2=-1)
        deviations = variances.sqrt()
        correlation = covariance / (deviations.unsqueeze(-1) * deviations.unsqueeze(-2))
        variance, between = variances.mean().item(), covariance[..., apart].abs().mean().item()
        ratio = between / variance if variance else math.nan
        result.append(TradeOff(law, variance, between, ratio, correlation[..., apart].abs().mean().item()))
    return result


def _layer(owner: str, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    weight, x = _numerics.as_tensor(owner, "weight", weight, axes=2), _numerics.as_tensor(owner, "x", x)
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{owner}: expected x of shape [..., {weight.shape[1]}] for weight of shape {tuple(weight.shape)}, "
            f"got {tuple(x.shape)}"
        )
    return weight, x


def _normal(owner: str, mean: Tensor | float, variance: Tensor | float) -> tuple[Tensor, Tensor]:
    mean, variance = _numerics.as_tensor(owner, "mean", mean), _numerics.as_variance(owner, "variance", variance)
    try:
        return mean + torch.zeros_like(variance), variance + torch.zeros_like(mean)
    except RuntimeError:
        raise ValueError(
            f"{owner}: expected mean and variance of shapes that broadcast, got {tuple(mean.shape)} and "
            f"{tuple(variance.shape)}"
        ) from None


def _tail_moments(t: Tensor) -> tuple[Tensor, Tensor]:
    """Compute E[max(0, Z - t)] and E[max(0, Z - t)^2] for Z ~ N(0, 1) and t >= 0."""
    # Near zero the closed forms are exact to rounding; further out they cancel, and the continued fraction, all of
    # whose terms are positive, has converged: 80 steps suffice from t = 2 on.
    near = t.clamp(max=2)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(near / math.sqrt(2))
    first, second = 1 - near * mills, (1 + near.square()) * mills - near
    far = t.clamp(min=2)
    tail = torch.zeros_like(t)
    for k in range(80, 2, -1):
        tail = k / (far + tail)
    k2 = 2 / (far + tail)
    k1 = 1 / (far + k2)
    k1_mills = k1 / (far + k1)
    density = normal_pdf(t)
    is_near = t <= 2
    return density * torch.where(is_near, first, k1_mills), density * torch.where(is_near, second, k1_mills * k2)
