"""Significance tests of differences, Holm's correction, and the distribution functions that they need."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]

from ...errors import UserError

Array = npt.NDArray[np.float64]
RESOLUTION = 1e-9


class PValues(NamedTuple):
    """P-values of the alternative "the reference is less" and of the two-sided one."""

    less: float
    two_sided: float


def student_quantile(probability: float, freedom: float) -> float:
    return float(scipy.special.stdtrit(freedom, probability))


def finite(name: str, values: Iterable[float]) -> Array:
    """Return the values as a one-dimensional, non-empty array of finite numbers, or raise."""
    try:
        array = np.array(list(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected one number per run, got something else: check the values") from None
    if array.ndim != 1:
        raise UserError(f"{name}: expected one number per run, got values of shape {array.shape[1:]}")
    if not array.size:
        raise UserError(f"{name}: expected at least one run, got none: finish a run first")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        got = f"{array[bad[0]]} at position {bad[0]}"
        raise UserError(f"{name}: expected finite values, got {got}: leave diverged runs out")
    return array


def merged(values: Array, tolerance: Array) -> Array:
    """Return the values with each that lies within the tolerance of the next smaller one set to that one."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    near = np.diff(ordered) <= np.maximum(tolerance[order][1:], tolerance[order][:-1])
    starts = np.concatenate([[True], ~near])[: len(ordered)]
    result = np.empty_like(values)
    result[order] = ordered[np.flatnonzero(starts)][np.cumsum(starts) - 1] if len(ordered) else ordered
    return result


def unit_scale(values: Array) -> tuple[Array, float]:
    """Return the values divided by the largest magnitude, and that magnitude, so that squares do not overflow."""
    scale = float(np.max(np.abs(values)))
    return (values / scale, scale) if scale else (values, 1.0)


def scaled_moments(values: Array) -> tuple[float, float, float]:
    """Return the mean, the standard deviation (with n - 1; NaN for one value), and the scale of both."""
    scaled, scale = unit_scale(values)
    return float(np.mean(scaled)), float(np.std(scaled, ddof=1)) if len(values) > 1 else math.nan, scale


def t_test(differences: Sequence[float] | Array) -> PValues:
    """Test the mean difference against 0 by a one-sample t-test.

    ::

        t = mean sqrt(n) / sd,  sd with n - 1;  p = P(T <= t) with n - 1 degrees of freedom

    Differences that are all equal have no spread: t is infinite, and p is its limit, 0 or 1. If all are 0, nothing
    speaks for either side and both p-values are 1. One difference has no spread to compare with: NaN.
    """
    values = finite("differences", differences)
    # The smaller tail of both signs, since 1 - p has lost the digits of a small p.
    less, more = _lower_tail(values, 0.0), _lower_tail(-values, 0.0)
    return PValues(less, min(2 * min(less, more), 1.0))


def tost(differences: Sequence[float] | Array, margin: float) -> float:
    """Test equivalence: the alternative is a mean difference within (-margin, margin).

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
    """Return P(T <= t) for the mean of the values against the centre."""
    mean, sd, scale = scaled_moments(values)
    shift = mean - centre / scale
    if sd == 0:
        return 0.0 if shift < -RESOLUTION else 1.0
    return float(scipy.special.stdtr(len(values) - 1, shift * math.sqrt(len(values)) / sd))


# The exact distribution takes n^3 / 3 additions; far beyond this many runs the normal one is as good.
EXACT_UP_TO = 500


class SignedRank(NamedTuple):
    """Result of Wilcoxon's test; ``method`` is "exact" or "approximate"."""

    less: float
    two_sided: float
    method: str


def signed_rank_test(differences: Sequence[float] | Array) -> SignedRank:
    """Run Wilcoxon's signed-rank test of paired differences, as the paper uses it.

    W is the sum of the ranks of |d| over the positive d; zeros are left out, ties share their mean rank. W has its
    exact distribution, that of the sum of these ranks, each times a fair coin. Beyond ``EXACT_UP_TO`` differences it is
    taken for normal, with continuity correction (scipy's ``zero_method="wilcox", correction=True``)::

        z = (W - n (n + 1) / 4 + 1/2) / s,  s^2 = n (n + 1) (2 n + 1) / 24 - sum over ties of (t^3 - t) / 48

    Equal differences must be equal floats: ``compare_paired`` sees to that. If all are 0, both p-values are 1.
    """
    values = finite("differences", differences)
    moved = values[values != 0.0]
    n = len(moved)
    if not n:
        return SignedRank(1.0, 1.0, "exact")
    _, place, sizes = np.unique(np.abs(moved), return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    positive = float(np.sum(mean_ranks[place][moved > 0]))
    negative = n * (n + 1) / 2 - positive
    if n <= EXACT_UP_TO:
        cdf = _exact_cdf(tuple(np.repeat(2 * mean_ranks, sizes).astype(int).tolist()))
        less = float(cdf[round(2 * positive)])
        return SignedRank(less, min(1.0, 2 * min(less, float(cdf[round(2 * negative)]))), "exact")
    counts = sizes.astype(np.float64)
    error = math.sqrt(n * (n + 1) * (2 * n + 1) / 24 - float(np.sum(counts**3 - counts)) / 48)
    distance = (positive - negative) / 2
    less, tail = scipy.special.ndtr([(distance + 0.5) / error, -max(abs(distance) - 0.5, 0.0) / error]).tolist()
    return SignedRank(less, min(1.0, 2 * tail), "approximate")


@functools.lru_cache(maxsize=64)
def _exact_cdf(doubled: tuple[int, ...]) -> Array:
    """Return P(2 W <= w) for w = 0 .. n (n + 1); the ranks are doubled since those of ties may be halves."""
    probability = np.zeros(sum(doubled) + 1)
    probability[0] = 1.0
    reached = 1
    for rank in doubled:
        without = probability[:reached].copy()
        reached += rank
        probability[rank:reached] += without
        probability[:reached] /= 2
    return np.minimum(np.cumsum(probability), 1.0)


@dataclasses.dataclass(frozen=True)
class McNemar:
    """Numbers of test examples that only one of two models got right; ``p`` is exact and two-sided."""

    only_a_right: int
    only_b_right: int
    p: float


def mcnemar(
    predictions_a: Sequence[int] | npt.NDArray[np.integer],
    predictions_b: Sequence[int] | npt.NDArray[np.integer],
    labels: Sequence[int] | npt.NDArray[np.integer],
) -> McNemar:
    """Test "both models have the same error" exactly on one set of examples.

    Only examples that one model gets right and the other wrong count. If the models are equally good, a fair coin
    decides which of them is right there, so p = min(1, 2 P(B <= min(a, b))), B ~ Binomial(a + b, 1/2). It concerns
    these two trained models and says nothing about other runs of their methods.
    """
    a, b, truth = (np.asarray(values) for values in (predictions_a, predictions_b, labels))
    if not (a.ndim == 1 and a.shape == b.shape == truth.shape and a.size):
        raise UserError(
            f"mcnemar: expected two predictions and a label per example, got shapes {a.shape}, {b.shape} and "
            f"{truth.shape}: use predictions for one test set"
        )
    a_right, b_right = a == truth, b == truth
    only_a, only_b = int(np.sum(a_right & ~b_right)), int(np.sum(b_right & ~a_right))
    tail = float(scipy.special.bdtr(min(only_a, only_b), only_a + only_b, 0.5))
    return McNemar(only_a, only_b, min(1.0, 2 * tail))


def holm(p_values: Sequence[float], family: int = 0) -> list[float]:
    """Adjust p-values by Holm's step-down procedure, which keeps the family-wise error rate; the order is kept.

    The i-th smallest of m becomes the largest of (m - j + 1) p_(j) over j <= i, at most 1. NaN, a test that does not
    exist, stays NaN and does not count, unless the ``family`` has more members than there are p-values.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    if any(p < 0 or p > 1 for p in p_values):
        raise ValueError(f"holm: expected p-values between 0 and 1, got {list(p_values)}")
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=p_values.__getitem__)
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (max(family, len(order)) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted
