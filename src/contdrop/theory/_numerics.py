"""Argument checks, normal densities, expectations of a sigmoid, and differentiable square roots, all in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..laws import Law, check_law


def as_tensor(owner: str, name: str, value: Any, *, axes: int | None = None) -> Tensor:
    """Convert a value to a finite float64 tensor, with ``axes`` axes if given."""
    if isinstance(value, complex):
        raise TypeError(f"{owner}: expected {name} to be real, got {value!r}")
    try:
        # Python's numbers are float64; torch would take them for float32.
        result = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{owner}: expected {name} to be a tensor or numbers, got {type(value).__name__}") from None
    if result.is_complex():
        raise TypeError(f"{owner}: expected {name} to be real, got {result.dtype}")
    result = result.to(torch.float64)
    if axes is not None and result.dim() != axes:
        raise ValueError(f"{owner}: expected {name} to have {axes} axes, got shape {tuple(result.shape)}")
    if not torch.isfinite(result).all():
        raise ValueError(f"{owner}: expected {name} to be finite, got inf or nan; look at what produced it")
    return result


def as_variance(owner: str, name: str, value: Any) -> Tensor:
    """Convert a value to a float64 tensor of variances."""
    result = as_tensor(owner, name, value)
    if (result < 0).any():
        raise ValueError(f"{owner}: expected {name} to be at least 0, got {result.min().item():.4g}")
    return result


def as_law(owner: str, value: Any) -> Law:
    """Return a law with finite mean and variance."""
    law: Law = value
    check_law(owner, law)
    if not (math.isfinite(law.mean) and math.isfinite(law.variance)):
        raise ValueError(f"{owner}: expected a law with finite moments, got {law!r}")
    return law


def normal_pdf(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))


def derivative_of_sigmoid(a: Tensor) -> Tensor:
    return torch.sigmoid(a) * torch.sigmoid(-a)


def logistic_expectation(mean: Tensor, variance: Tensor, derivative: int = 0) -> Tensor:
    """Compute E[g(A)] for A ~ N(mean, variance), elementwise, where g is the sigmoid, its derivative or its integral.

    ``derivative`` is 0 for g = sigmoid, 1 for its derivative and -1 for its integral, log(1 + e^a).

    Gauss-Hermite quadrature fails once the standard deviation s is large: g is then a step (or a kink) between two
    nodes. Two trapezoidal rules share the work instead; both converge geometrically because g is analytic for
    |Im a| < pi:

    - s < 1: over z with weight phi(z), A = mean + s z, step 1/2. The error is about exp(-2 pi^2 / (s/2)) < 1e-15.
    - s >= 1: the sigmoid is the distribution function of a logistic variable L, so E[sigmoid(A)] = P(L < A) =
      E[Phi((mean - L) / s)]. That is smooth on the scale s, and the rule runs over L with step 1/2: the same error.

    Together the error is below 1e-13 (1 + |E[g]|) whatever the mean and the variance.
    """
    mean, variance = mean + torch.zeros_like(variance), variance + torch.zeros_like(mean)
    narrow = variance < 1
    return torch.where(
        narrow,
        _over_normal(mean, standard_deviation(torch.where(narrow, variance, 0)), derivative),
        _over_logistic(mean, torch.where(narrow, 1, variance).sqrt(), derivative),
    )


def _over_normal(mean: Tensor, deviation: Tensor, derivative: int) -> Tensor:
    z = torch.arange(-24, 25, dtype=torch.float64, device=mean.device) / 2
    points = mean.unsqueeze(-1) + deviation.unsqueeze(-1) * z
    if derivative < 0:
        values = torch.nn.functional.softplus(points, threshold=40)  # torch's own threshold of 20 costs 2e-9
    else:
        values = derivative_of_sigmoid(points) if derivative else torch.sigmoid(points)
    return values @ (normal_pdf(z) / 2)


def _over_logistic(mean: Tensor, deviation: Tensor, derivative: int) -> Tensor:
    step = torch.arange(-80, 81, dtype=torch.float64, device=mean.device) / 2
    deviation = deviation.unsqueeze(-1)
    z = (mean.unsqueeze(-1) - step) / deviation
    if derivative < 0:
        values = deviation * (normal_pdf(z) + z * normal_cdf(z))
    else:
        values = normal_pdf(z) / deviation if derivative else normal_cdf(z)
    return values @ (derivative_of_sigmoid(step) / 2)


def is_random(variance: Tensor) -> Tensor:
    """Tell where a variance is large enough to divide by its square root.

    A variable whose deviation is below 1e-75 is taken as certain: squares and reciprocals of that leave the range of
    float64.
    """
    return variance > 1e-150


def standard_deviation(variance: Tensor) -> Tensor:
    """Return the square root of a variance; where there is no variance, zero with derivative zero.

    The derivative of the root is infinite at zero, and infinity times zero is NaN. ``torch.where`` behind the root does
    not help, because its zero derivative meets the infinite one. So the root of 1 is taken there.
    """
    random = is_random(variance)
    return torch.where(random, torch.where(random, variance, 1).sqrt(), 0)
