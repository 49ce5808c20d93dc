"""Power of the two-sided paired t-test, detectable differences and required runs."""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
import scipy.special  # type: ignore[import-untyped]

from ...errors import UserError
from .significance import student_quantile

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
_MOST_RUNS = 10**9
_DOUBLINGS = [2**exponent for exponent in range(1, 31)]


def power(difference: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Compute the probability that a two-sided paired t-test at level alpha finds a true mean difference.

    T has a noncentral t-distribution with n - 1 degrees of freedom and noncentrality difference sqrt(n) / sd.

    Args:
        difference: The true mean difference; its sign does not matter.
        sd: Standard deviation of the differences.
        n: Number of paired runs; with one there is no test, and no power.
        alpha: Two-sided level.
    """
    _check(sd, n, alpha)
    if n == 1:
        return 0.0
    if sd == 0:
        return 1.0 if difference else alpha
    return _power(abs(difference) / sd * math.sqrt(n), n, alpha)


def minimum_detectable(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """Compute the mean difference that n paired runs find with the given power.

    Args:
        sd: Standard deviation of the differences.
        n: Number of paired runs; one run detects nothing: NaN.
        power: Wanted probability of finding the difference.
        alpha: Two-sided level.
    """
    _check(sd, n, alpha)
    _check_power(power, alpha)
    return math.nan if n == 1 else _noncentrality(n, power, alpha) / math.sqrt(n) * sd


def runs_needed(difference: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Compute the smallest number of paired runs that finds a true mean difference with the given power.

    Args:
        difference: The true mean difference, not 0.
        sd: Standard deviation of the differences.
        power: Wanted probability of finding the difference.
        alpha: Two-sided level.
    """
    _check(sd, 2, alpha)
    _check_power(power, alpha)
    if not (math.isfinite(difference) and difference and math.isfinite(sd)):
        raise UserError(f"expected a difference other than 0 and a finite sd, got {difference} and {sd}")
    if sd == 0:
        return 2
    effect = abs(difference) / sd

    def is_enough(n: int) -> bool:
        return _power(effect * math.sqrt(n), n, alpha) >= power

    reached = next((n for n in _DOUBLINGS if is_enough(n)), None)
    if reached is None:
        raise UserError(f"a difference of {difference} at sd {sd} needs over {_MOST_RUNS:.0e} runs: it is too small")
    return bisect.bisect_left(range(reached), True, lo=reached // 2 + 1, key=is_enough)


def sd_interval(sd: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute a confidence interval of the population's standard deviation from that of n normal values.

    (n - 1) sd^2 / sigma^2 is chi-square with n - 1 degrees of freedom.
    """
    _check(sd, n, 1 - confidence)
    if n == 1:
        return math.nan, math.nan
    low, high = (float(scipy.special.chdtri(n - 1, (1 + side * confidence) / 2)) for side in (1, -1))
    return sd * math.sqrt((n - 1) / high), sd * math.sqrt((n - 1) / low)


def _power(noncentrality: float, n: int, alpha: float) -> float:
    """Compute P(|T| > c) = E[Phi(nc - c S) + Phi(-nc - c S)], S^2 (n - 1) chi-square with n - 1 degrees of freedom.

    By Gauss-Legendre quadrature over the density of S, s^(f-1) exp(-f s^2 / 2) with f = n - 1, in pieces that meet
    where the first term steps; error below 1e-12. (scipy's noncentral t gives NaN for some large noncentralities.)
    """
    freedom = n - 1
    critical = student_quantile(1 - alpha / 2, freedom)
    reach = 12 / math.sqrt(2 * freedom)
    step = noncentrality / critical
    edges = np.array([0.0, 1 - reach, 1.0, 1 + reach, step - 9 / critical, step, step + 9 / critical])
    edges = np.unique(np.clip(edges, max(0.0, 1 - reach), 1 + reach))
    half = np.diff(edges)[:, None] / 2
    s = edges[:-1, None] + half * (1 + _NODES)
    weight = half * _WEIGHTS * np.exp((freedom - 1) * np.log(s) - freedom * (s - 1) * (s + 1) / 2)
    found = scipy.special.ndtr(noncentrality - critical * s) + scipy.special.ndtr(-noncentrality - critical * s)
    return float(np.sum(weight * found) / np.sum(weight))


@functools.lru_cache(maxsize=256)
def _noncentrality(n: int, wanted: float, alpha: float) -> float:
    """Find the noncentrality at which the power, which grows with it, is the wanted one."""
    low, high = 0.0, 1.0
    while _power(high, n, alpha) < wanted:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _power(middle, n, alpha) < wanted else (low, middle)
    return high


def _check(sd: float, n: int, alpha: float) -> None:
    if sd < 0:
        raise UserError(f"sd: expected a standard deviation of at least 0, got {sd}")
    if n < 1:
        raise UserError(f"n: expected at least one run, got {n}")
    if not 0 < alpha < 1:
        raise UserError(f"alpha: expected a level between 0 and 1, such as 0.05, got {alpha}")


def _check_power(power: float, alpha: float) -> None:
    if not alpha < power < 1:
        raise UserError(f"power: expected a probability between alpha ({alpha}) and 1, such as 0.8, got {power}")
