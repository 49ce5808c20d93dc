"""How the reference fares against one method, in a word: the rule that headline, findings, table and figures share."""

from __future__ import annotations

import math

from ..stats import Comparison
from ..stats.paired import ENOUGH_RUNS

ALPHA = 0.05
BETTER, WORSE, EQUIVALENT, OPEN, FEW = "better", "worse", "equivalent", "open", "few"
WORDS = {BETTER: "better", WORSE: "worse", EQUIVALENT: "within margin", OPEN: "open", FEW: "too few runs"}


def outcome_of(comparison: Comparison) -> str:
    """How the reference fares in one comparison."""
    if comparison.runs < ENOUGH_RUNS:
        return FEW
    p = comparison.t_p_two_sided_holm  # none where all differences are equal
    if (comparison.wilcoxon_p_two_sided_holm if math.isnan(p) else p) < ALPHA:
        return BETTER if comparison.is_better else WORSE
    return EQUIVALENT if is_equivalent(comparison) else OPEN


def is_equivalent(comparison: Comparison) -> bool:
    if comparison.margin is None or comparison.equivalence_p_holm is None:
        return False
    if comparison.sd == 0:  # no test: the same difference in every run
        return abs(comparison.difference) < comparison.margin
    return comparison.equivalence_p_holm < ALPHA


def ranks_say(comparison: Comparison) -> bool:
    return comparison.wilcoxon_p_two_sided_holm < ALPHA


def ranks_can(comparison: Comparison, comparisons: int) -> bool:
    """Whether Wilcoxon's test can reach 5 % at all: with n runs its p-value is at least 2^(1 - n), before Holm."""
    return comparisons * 2.0 ** (1 - comparison.runs) < ALPHA


def includes_zero(interval: tuple[float, float] | None) -> bool:
    """False if there is none."""
    return interval is not None and interval[0] <= 0 <= interval[1]
