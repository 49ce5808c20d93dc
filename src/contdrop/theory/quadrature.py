"""Expectations over a normal variable by Gauss-Hermite quadrature."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor


@functools.cache
def nodes(count: int) -> tuple[Tensor, Tensor]:
    """Nodes z and weights w with E[f(Z)] = sum of w f(z), Z ~ N(0, 1), exact for polynomials of degree 2 count - 1.

    Golub and Welsch (1969): the nodes are the eigenvalues of the Jacobi matrix of the Hermite polynomials, whose
    off-diagonal entries are sqrt(1), sqrt(2), ...; a weight is the squared first component of its eigenvector.
    """
    beside = torch.arange(1, count, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return values, vectors[0] ** 2


def normal_expectation(f: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, count: int = 128) -> Tensor:
    """E[f(S)] for S ~ N(mean, variance), elementwise. The error is that of a polynomial of degree 255 through f."""
    z, weights = nodes(count)
    points = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * z.to(mean.device)
    return f(points) @ weights.to(mean.device)


def normal_density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def normal_distribution(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))
