"""The paired t-test, and the equivalence test built of two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import UserError
from .distributions import (
    RESOLUTION,
    Array,
    PValues,
    check_confidence,
    finite,
    student_cdf,
    student_quantile,
    unit_scale,
)


def t_test(differences: Sequence[float] | Array) -> PValues:
    """One-sample t-test of the mean difference against 0.

    ::

        t = mean sqrt(n) / sd,  sd with n - 1;  p = P(T <= t) with n - 1 degrees of freedom

    Differences that are all equal have no spread: t is infinite, and p is its limit, 0 or 1. If all are 0, nothing
    speaks for either side and both p-values are 1. One difference has no spread to compare with: NaN.
    """
    values = finite("differences", differences)
    if not np.any(values):
        return PValues(1.0, 1.0) if len(values) > 1 else PValues(math.nan, math.nan)
    lower = _lower_tail(values, 0.0)
    # The smaller tail of both signs, since 1 - p has lost the digits of a small p.
    return PValues(lower, 2 * min(lower, _lower_tail(-values, 0.0)))


def t_interval(differences: Sequence[float] | Array, *, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean difference: mean -+ q sd / sqrt(n), q Student's quantile with n - 1 degrees of freedom.

    NaN for one difference, which has no spread.
    """
    check_confidence(confidence)
    values = finite("differences", differences)
    n = len(values)
    if n == 1:
        return math.nan, math.nan
    scaled, scale = unit_scale(values)
    mean, sd = float(np.mean(scaled)), float(np.std(scaled, ddof=1)) if np.ptp(scaled) else 0.0
    reach = student_quantile((1 + confidence) / 2, n - 1) * sd / math.sqrt(n)
    return (mean - reach) * scale, (mean + reach) * scale


def tost(differences: Sequence[float] | Array, margin: float) -> float:
    """Equivalence test: is the mean difference within (-margin, margin)?

    The larger p-value of two one-sided t-tests (Schuirmann 1987), of mean <= -margin and of mean >= margin. A small
    one is evidence that the methods do *not* differ by as much as the margin; a large p-value of a t-test is not.

    Args:
        differences: One per run.
        margin: The smallest difference that would matter, in the units of the differences.
    """
    values = finite("differences", differences)
    if not (math.isfinite(margin) and margin > 0):
        raise UserError(f"margin: expected a positive number, the smallest difference that matters, got {margin}")
    return max(_lower_tail(values, margin), _lower_tail(-values, margin))


def _lower_tail(values: Array, centre: float) -> float:
    """P(T <= t) for the mean of the values against the centre."""
    n = len(values)
    if n == 1:
        return math.nan
    scaled, scale = unit_scale(values)
    shift = float(np.mean(scaled)) - centre / scale
    if np.ptp(scaled) == 0.0:
        return 0.0 if shift < -RESOLUTION else 1.0
    return student_cdf(shift * math.sqrt(n) / float(np.std(scaled, ddof=1)), n - 1)
