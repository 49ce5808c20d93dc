"""Bootstrap interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import UserError
from .significance import (
    RESOLUTION,
    Array,
    check_confidence,
    finite,
    normal_cdf,
    normal_quantile,
    student_quantile,
    unit_scale,
)


def bca_interval(
    differences: Sequence[float] | Array,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 10_000,
    small_sample: bool = True,
) -> tuple[float, float]:
    """Compute the bias-corrected and accelerated bootstrap interval of the mean (Efron 1987), widened for few runs.

    The ends are the quantiles of the resampled means at ::

        Phi(z0 + (z0 + z) / (1 - a (z0 + z))),  z = -c and c

        z0 = Phi^-1(share of resampled means below the mean; equal ones count half)
        a  = sum (d_i - mean)^3 / (6 (sum (d_i - mean)^2)^(3/2))        the jackknife's, for a mean
        c  = sqrt(n / (n - 1)) t_{n-1}^-1((1 + confidence) / 2)

    Plain BCa has c = Phi^-1((1 + confidence) / 2) and is too short for few runs: at a confidence of 95 % it covers the
    mean of 30 normal differences in 93.4 % of cases, of 5 in 84 %. This c, of Hesterberg's expanded percentile interval
    (The American Statistician 69, 2015), allows for the variance of a resample being (n - 1) / n of the sample's, and
    for that being estimated: 94.9 % and 91.7 %.

    Args:
        differences: One per run. One alone has no interval: NaN.
        confidence: Between 0 and 1.
        seed: The same seed gives the same interval; the global generators are not touched.
        resamples: How often to resample.
        small_sample: False gives the plain interval, equal to that of ``scipy.stats.bootstrap``.
    """
    values = finite("differences", differences)
    check_confidence(confidence)
    if resamples < 1:
        raise UserError(f"resamples: expected a positive number, got {resamples}")
    n = len(values)
    if n == 1:
        return math.nan, math.nan
    scaled, scale = unit_scale(values)
    if np.ptp(scaled) == 0.0:
        return float(values[0]), float(values[0])
    means = scaled[np.random.default_rng(seed).integers(0, n, (resamples, n))].mean(axis=1)
    mean = float(np.mean(scaled))
    # Resampled means of a few distinct values often equal the mean but for rounding.
    below, not_above = np.sum(means < mean - RESOLUTION), np.sum(means <= mean + RESOLUTION)
    bias = normal_quantile(float(below + not_above) / (2 * resamples))
    deviations = scaled - mean
    acceleration = float(np.sum(deviations**3)) / (6 * float(np.sum(deviations**2)) ** 1.5)
    upper = (1 + confidence) / 2
    cut = math.sqrt(n / (n - 1)) * student_quantile(upper, n - 1) if small_sample else normal_quantile(upper)
    low, high = np.quantile(means, [_corrected(bias, acceleration, cut_at) for cut_at in (-cut, cut)])
    return float(low) * scale, float(high) * scale


def _corrected(bias: float, acceleration: float, cut: float) -> float:
    shifted = bias + cut
    stretch = 1 - acceleration * shifted
    # Beyond the pole the formula turns back; its limit is the end of the distribution.
    return normal_cdf(bias + shifted / stretch) if stretch > 0 else float(shifted > 0)
