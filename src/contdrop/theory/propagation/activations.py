"""Moments of activation functions of Gaussian variables: mean, variance, expected slope and covariances.

For X, Y jointly Gaussian with correlation rho, Mehler's formula gives the covariance of f(X) and g(Y) as a power series
in rho (:func:`covariance`). Its coefficients belong to one unit each, so that a layer of D units takes D quadratures
and one pass over its D x D correlations per term.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .. import quadrature, roots

# Terms of Mehler's series, and the share of a variance that the terms left out may amount to.
_TERMS = 64
_TOLERANCE = 1e-6

# The trapezoidal rule with step h is good to about exp(-2 pi^2 / (h s)) for a sigmoid of deviation s, whose poles are
# at distance pi / s: to 1e-11 for these steps and the deviations up to which they are used.
_COARSE, _COARSE_UP_TO = 1 / 2, 1.5
_FINE, _FINE_UP_TO = 1 / 6, 4.5
_REACH = 8.5  # the normal density beyond is below 1e-16

# Hermite polynomials of degree 64 grow as fast as the root of the density falls, so theirs is a wider rule.
_HERMITE_STEP, _HERMITE_REACH = 1 / 8, 12.5

# Quadrature looks at this many units at a time.
_UNITS_AT_ONCE = 1 << 14


@dataclasses.dataclass(frozen=True)
class Activation:
    """An elementwise function of a Gaussian variable.

    Attributes:
        function: f itself, for an input that is not random.
        slope: f', for an input that is not random; between both at a kink.
        moments: (mean, variance) of X to (E[f(X)], Var f(X), E[f'(X)]), elementwise, for positive variances.
        coefficients: (mean, variance) of X, each [N, D], to c_1 ... c_64 of f(X) = sum of c_k h_k(Z), where h_k are the
            Hermite polynomials of variance one and Z is X standardised; [N, D, 64].
    """

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    coefficients: Callable[[Tensor, Tensor], Tensor]


def covariance(activation: Activation, mean: Tensor, variance: Tensor, covariance: Tensor, slope: Tensor) -> Tensor:
    """Cov(f(X_i), f(X_j)) for jointly Gaussian X, by Mehler's formula (Mehler, 1866)::

        Cov(f(X_i), f(X_j)) = sum over k >= 1 of c_ik c_jk rho_ij^k

    Its first term is E[f'(X_i)] E[f'(X_j)] Cov(X_i, X_j), whose derivatives are right where a variance is zero, too.

    With K terms the error is at most sqrt(t_i t_j) |rho|^(K+1), t_i being the part of Var f(X_i) beyond c_iK (Cauchy
    and Schwarz), so K is chosen from the largest correlation, for an error of 1e-6 of sqrt(Var f(X_i) Var f(X_j)). At
    most 64 terms are taken: for |rho| -> 1 the error of a ReLU is below 1e-3 of the variances, that of a sigmoid or
    tanh is as small unless the deviation of X is so large (above 10) that it acts as a step.

    Args:
        activation: f.
        mean: Of X, [N, D].
        variance: Of X, [N, D]; all positive where X is random.
        covariance: Of X, [N, D, D].
        slope: E[f'(X)], [N, D].

    Returns:
        [N, D, D]. The diagonal is that of the series; whoever knows the exact variances should set it.
    """
    coefficients = activation.coefficients(mean, variance)
    random = roots.is_random(variance)
    inverse = torch.where(random, variance, 1).rsqrt() * random
    correlation = (covariance * inverse.unsqueeze(-1)).mul_(inverse.unsqueeze(-2)).clamp_(-1, 1)
    correlation.diagonal(dim1=-2, dim2=-1).zero_()
    terms = _terms_needed(coefficients, activation.moments(mean, torch.where(random, variance, 1))[1], correlation)
    result = torch.zeros_like(correlation)
    for k in reversed(range(1, terms)):  # Horner
        c = coefficients[..., k]
        result.addcmul_(c.unsqueeze(-1), c.unsqueeze(-2)).mul_(correlation)
    return result.mul_(correlation).addcmul_(slope.unsqueeze(-1) * slope.unsqueeze(-2), covariance)


def _terms_needed(coefficients: Tensor, variance: Tensor, correlation: Tensor) -> int:
    largest = max(correlation.max().item(), -correlation.min().item()) if correlation.numel() else 0.0
    beyond = (variance.unsqueeze(-1) - coefficients.square().cumsum(-1)).clamp(min=0)
    share = (beyond / variance.clamp(min=torch.finfo(variance.dtype).tiny).unsqueeze(-1)).flatten(0, -2).amax(0)
    powers = largest ** torch.arange(2, _TERMS + 2, dtype=share.dtype, device=share.device)
    enough = (share * powers <= _TOLERANCE).nonzero()
    return int(enough[0].item()) + 1 if len(enough) else _TERMS


# ReLU.


def _relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exactly, with s^2 = variance, z = mean / s, phi and Phi the normal density and distribution function::

        E[relu(X)]   = s (z Phi(z) + phi(z))
        Var relu(X)  = s^2 ((z^2 + 1) Phi(z) + z phi(z)) - E[relu(X)]^2
        E[relu'(X)]  = Phi(z)

    The variance is computed on the side of zero where little is left, because relu(X) = X + relu(-X): so it keeps its
    digits for z >> 0 too.
    """
    deviation = variance.sqrt()
    z = mean / deviation
    density, slope = quadrature.normal_density(z), quadrature.normal_distribution(z)
    distance = z.abs()
    rest = quadrature.normal_distribution(-distance)
    rest_mean = density - distance * rest
    rest_variance = ((distance.square() + 1) * rest - distance * density - rest_mean.square()).clamp(min=0)
    share = torch.where(z < 0, rest_variance, 1 - 2 * rest + rest_variance)
    # rest_mean loses its digits far below zero, where it is too small to matter.
    expected = torch.where(z < 0, deviation * rest_mean.clamp(min=0), mean + deviation * rest_mean)
    return expected, variance * share, slope


def _relu_coefficients(mean: Tensor, variance: Tensor) -> Tensor:
    """c_1 = s Phi(z) and c_k = s phi(z) (-1)^k h_{k-2}(z) / sqrt(k (k - 1)): the derivatives of relu are known."""
    deviation, random = roots.deviation(variance), roots.is_random(variance)
    # Beyond 39 the density is zero in float64, and so are all coefficients but the first; powers of z would overflow.
    z = torch.where(random, mean / torch.where(random, deviation, 1), 0).clamp(-39, 39)
    result = torch.empty(*mean.shape, _TERMS, dtype=mean.dtype, device=mean.device)
    result[..., 0] = deviation * quadrature.normal_distribution(z)
    before, current = torch.zeros_like(z), deviation * quadrature.normal_density(z)
    for k in range(2, _TERMS + 1):
        result[..., k - 1] = current / math.sqrt(k * (k - 1))
        # h_{n+1} = (z h_n - sqrt(n) h_{n-1}) / sqrt(n + 1), at n = k - 2; the sign of odd terms is in -z.
        n = k - 2
        before, current = current, (-z * current - math.sqrt(n) * before) / math.sqrt(n + 1)
    return result


# Sigmoid and tanh.


def _sigmoid_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By quadrature; for very wide X by :func:`.quadrature.logistic_expectation`, which has no limit but costs more.

    The second moment then needs no integral of its own: sigmoid^2 = sigmoid - sigmoid'.
    """
    shape = mean.shape
    parts = []
    for mu, v in zip(torch.split(mean.reshape(-1), _UNITS_AT_ONCE), torch.split(variance.reshape(-1), _UNITS_AT_ONCE)):
        z, weights = _nodes(_COARSE if v.max() <= _COARSE_UP_TO**2 else _FINE, _REACH, mean.device)
        values = torch.sigmoid(mu.unsqueeze(-1) + v.sqrt().unsqueeze(-1) * z)
        expected = values @ weights
        spread = (values - expected.unsqueeze(-1)).square() @ weights
        slope = (values * (1 - values)) @ weights
        if v.max() > _FINE_UP_TO**2:
            wide = v > _FINE_UP_TO**2
            wide_mean, wide_slope = quadrature.logistic_expectation(mu, v), quadrature.logistic_expectation(mu, v, 1)
            expected = torch.where(wide, wide_mean, expected)
            slope = torch.where(wide, wide_slope, slope)
            spread = torch.where(wide, (wide_mean - wide_slope - wide_mean.square()).clamp(min=0), spread)
        parts.append((expected, spread, slope))
    if not parts:
        return mean, variance, mean
    expected, spread, slope = (torch.cat(part).reshape(shape) for part in zip(*parts))
    return expected, spread, slope


def _sigmoid_coefficients(mean: Tensor, variance: Tensor) -> Tensor:
    """c_k = E[sigmoid(X) h_k(Z)] by quadrature."""
    z, weighted = _hermite(mean.device)
    parts = [
        torch.sigmoid(mu.unsqueeze(-1) + roots.deviation(v).unsqueeze(-1) * z) @ weighted
        for mu, v in zip(
            torch.split(mean.reshape(-1), _UNITS_AT_ONCE), torch.split(variance.reshape(-1), _UNITS_AT_ONCE)
        )
    ]
    return torch.cat(parts).reshape(*mean.shape, _TERMS)


def _tanh_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From tanh(x) = 2 sigmoid(2 x) - 1."""
    expected, spread, slope = _sigmoid_moments(2 * mean, 4 * variance)
    return 2 * expected - 1, 4 * spread, 4 * slope


def _tanh_coefficients(mean: Tensor, variance: Tensor) -> Tensor:
    return 2 * _sigmoid_coefficients(2 * mean, 4 * variance)


@functools.cache
def _nodes(step: float, reach: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the trapezoidal rule for E[f(Z)], Z ~ N(0, 1)."""
    count = round(reach / step)
    with torch.inference_mode(False):  # they are kept, and later calls may need gradients
        z = step * torch.arange(-count, count + 1, dtype=torch.float64, device=device)
        return z, step * quadrature.normal_density(z)


@functools.cache
def _hermite(device: torch.device) -> tuple[Tensor, Tensor]:
    """The nodes z_j, and w_j h_k(z_j) for k = 1 ... 64, [nodes, 64]."""
    z, weights = _nodes(_HERMITE_STEP, _HERMITE_REACH, device)
    with torch.inference_mode(False):
        columns = [torch.ones_like(z), z]
        for n in range(1, _TERMS):
            columns.append((z * columns[n] - math.sqrt(n) * columns[n - 1]) / math.sqrt(n + 1))
        return z, torch.stack(columns[1:], dim=1) * weights.unsqueeze(-1)


RELU = Activation(
    torch.relu, lambda x: torch.heaviside(x.detach(), x.new_tensor(0.5)), _relu_moments, _relu_coefficients
)
SIGMOID = Activation(
    torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), _sigmoid_moments, _sigmoid_coefficients
)
TANH = Activation(torch.tanh, lambda x: 1 - torch.tanh(x).square(), _tanh_moments, _tanh_coefficients)
