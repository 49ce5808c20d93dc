"""Densities and nodes for integrals over normal and other variables."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from . import roots


def normal_density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def normal_distribution(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))


@functools.cache
def legendre(count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [-1, 1], exact for polynomials of degree 2 count - 1 (Golub-Welsch)."""
    k = torch.arange(1, count, dtype=torch.float64)
    beside = k / (4 * k * k - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return values, 2 * vectors[0] ** 2


def logistic_expectation(mean: Tensor, variance: Tensor, derivative: int = 0) -> Tensor:
    """E[g(A)] for A ~ N(mean, variance), elementwise, where g is the sigmoid or a neighbour of it.

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
        _over_normal(mean, roots.deviation(torch.where(narrow, variance, 0)), derivative),
        _over_logistic(mean, torch.where(narrow, 1, variance).sqrt(), derivative),
    )


def _over_normal(mean: Tensor, deviation: Tensor, derivative: int) -> Tensor:
    z = torch.arange(-24, 25, dtype=torch.float64, device=mean.device) / 2
    points = mean.unsqueeze(-1) + deviation.unsqueeze(-1) * z
    if derivative < 0:
        values = torch.nn.functional.softplus(points, threshold=40)  # torch's own threshold of 20 costs 2e-9
    else:
        values = torch.sigmoid(points) * (torch.sigmoid(-points) if derivative else 1)
    return values @ (normal_density(z) / 2)


def _over_logistic(mean: Tensor, deviation: Tensor, derivative: int) -> Tensor:
    step = torch.arange(-80, 81, dtype=torch.float64, device=mean.device) / 2
    deviation = deviation.unsqueeze(-1)
    z = (mean.unsqueeze(-1) - step) / deviation
    if derivative < 0:
        values = deviation * (normal_density(z) + z * normal_distribution(z))
    else:
        values = normal_density(z) / deviation if derivative else normal_distribution(z)
    return values @ (torch.sigmoid(step) * torch.sigmoid(-step) / 2)
