"""Moments of the clipped normal law, and the sigma that gives it a wanted variance.

With g ~ N(mu, sigma^2), m = g clipped to [low, high], a = (low - mu) / sigma, b = (high - mu) / sigma, phi and Phi the
normal density and distribution function, m has atoms Phi(a) at low and 1 - Phi(b) at high, and (direct integration)::

    mean     = mu + sigma [(phi(a) + a Phi(a)) - (phi(b) - b (1 - Phi(b)))]
    variance = (low - mean)^2 Phi(a) + (high - mean)^2 (1 - Phi(b)) + integral of (x - mean)^2 between the atoms
"""

from __future__ import annotations

import functools
import math


def moments(mu: float, sigma: float, low: float, high: float) -> tuple[float, float]:
    """Compute mean and variance of the clipped law, for sigma >= 0 and low < high; the bounds may be infinite."""
    constant = min(max(mu, low), high)
    if sigma == 0:
        return constant, 0.0
    a, b = (low - mu) / sigma, (high - mu) / sigma
    if math.isinf(a) > math.isinf(low) or math.isinf(b) > math.isinf(high):
        return constant, 0.0  # sigma is so small that a finite bound is infinitely many standard deviations away
    atom_low, atom_high = _normal_cdf(a), _normal_cdf(-b)
    middle = (low + high) / 2
    if b - a < 1:
        # A wide normal cut to a narrow interval: the closed forms would subtract nearly equal numbers and multiply the
        # difference by sigma. The integrands are smooth there, so Gauss-Legendre is exact to rounding.
        half = (high - low) / 2
        points = [(middle + half * node, weight * half / sigma) for node, weight in gauss_legendre()]
        density = [(x, weight * _normal_density((x - mu) / sigma)) for x, weight in points]
        mean = middle + half * (atom_high - atom_low) + sum((x - middle) * weight for x, weight in density)
        mean = mu if mu == middle else min(max(mean, low), high)
        between = sum((x - mean) * (x - mean) * weight for x, weight in density)
    else:
        # Written around mu so that a symmetric interval gives mu exactly. Products with infinite bounds tend to 0.
        pull_up = _normal_density(a) + (a * atom_low if math.isfinite(a) else 0.0)
        pull_down = _normal_density(b) - (b * atom_high if math.isfinite(b) else 0.0)
        mean = min(max(mu + sigma * (pull_up - pull_down), low), high)
        at_a = a * _normal_density(a) if math.isfinite(a) else 0.0
        at_b = b * _normal_density(b) if math.isfinite(b) else 0.0
        shift = (mu - mean) / sigma
        first = _normal_density(a) - _normal_density(b)
        inside = 1 - atom_low - atom_high
        moment = inside * (1 + shift * shift) + 2 * shift * first + at_a - at_b if inside > 0 else 0.0
        between = sigma * sigma * moment if moment else 0.0
    atoms = (low - mean) * (low - mean) * atom_low if atom_low else 0.0
    atoms += (high - mean) * (high - mean) * atom_high if atom_high else 0.0
    return mean, max(atoms + between, 0.0)


def sigma_of(relative_variance: float) -> float:
    """Find the sigma with which N(1, sigma^2) clipped to [0, 2] has this variance, at least 0 and well below 1.

    The variance grows with sigma, from 0 towards 1, the variance of a fair coin on {0, 2}. Bisection
    finds it to the last bit of sigma or of the variance.
    """
    low, high = 0.0, math.sqrt(relative_variance)
    while moments(1.0, high, 0.0, 2.0)[1] < relative_variance:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if moments(1.0, middle, 0.0, 2.0)[1] < relative_variance:
            low = middle
        else:
            high = middle
    return high


def _normal_density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


@functools.cache
def gauss_legendre() -> list[tuple[float, float]]:
    """Compute 24 nodes and weights on [-1, 1] by Newton's method, as plain floats."""
    found = []
    for k in range(24):
        x = -math.cos(math.pi * (k + 0.75) / 24.5)
        for _ in range(5):
            value, slope = _legendre(24, x)
            x -= value / slope
        found.append((x, 2 / ((1 - x * x) * _legendre(24, x)[1] ** 2)))
    return found


def _legendre(degree: int, x: float) -> tuple[float, float]:
    """Evaluate a Legendre polynomial and its derivative by recurrence, for x other than -1 and 1."""
    before, value = 1.0, x
    for k in range(2, degree + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, degree * (before - x * value) / (1 - x * x)
