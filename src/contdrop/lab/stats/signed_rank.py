"""Wilcoxon's signed-rank test."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .distributions import Array, finite, normal_cdf

# The exact distribution takes n^3 / 3 additions; far beyond this many runs the normal one is as good.
EXACT_UP_TO = 500


class SignedRank(NamedTuple):
    """Result of Wilcoxon's test; ``method`` is "exact" or "approximate"."""

    less: float
    two_sided: float
    method: str


def signed_rank_test(differences: Sequence[float] | Array) -> SignedRank:
    """Wilcoxon's signed-rank test of paired differences, as the paper uses it.

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
    variance = n * (n + 1) * (2 * n + 1) / 24 - float(np.sum(counts**3 - counts)) / 48
    distance = (positive - negative) / 2
    less = normal_cdf((distance + 0.5) / math.sqrt(variance))
    two_sided = min(1.0, 2 * normal_cdf(-max(abs(distance) - 0.5, 0.0) / math.sqrt(variance)))
    return SignedRank(less, two_sided, "approximate")


@functools.lru_cache(maxsize=64)
def _exact_cdf(doubled: tuple[int, ...]) -> Array:
    """P(2 W <= w) for w = 0 .. n (n + 1), by the ranks, doubled since those of ties may be halves."""
    probability = np.zeros(sum(doubled) + 1)
    probability[0] = 1.0
    reached = 1
    for rank in doubled:
        without = probability[:reached].copy()
        reached += rank
        probability[rank:reached] += without
        probability[:reached] /= 2
    return np.minimum(np.cumsum(probability), 1.0)
