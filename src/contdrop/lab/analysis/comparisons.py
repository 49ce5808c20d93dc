"""Comparisons of methods with the reference, final and interim, their outcomes, and controls of equal noise.

Each method is compared with the reference over the runs that both have finished; a method that failed often removes no
runs from the others. Verdict, tables and figures all use these comparisons.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import stats
from ..stats import Comparison
from ..stats.paired import ENOUGH_RUNS
from ..store.results import Results
from ..study.labels import MATCH, ORIGINAL, name_in_text
from .margin import margin_of


def compare(results: Results, margin: float | None = None) -> dict[str, Comparison]:
    """Compare the reference with every other method that shares finished runs with it, in the study's order.

    The margin is that of the equivalence test, see :func:`margin_of`.
    """
    errors, better, margin = results.errors(), results.measure.better, margin_of(results, margin)
    reference = errors.pop(results.reference, {})
    comparisons = {}
    for method, found in errors.items():
        if shared := sorted(reference.keys() & found.keys()):
            pair = ([values[run] for run in shared] for values in (reference, found))
            names = (results.reference, method)
            comparison = stats.compare_paired(*pair, margin=margin, names=names, better=better)
            two_way = _two_way(results, method, shared)
            comparisons[method] = without_limits(dataclasses.replace(comparison, two_way=two_way))
    return stats.adjusted(comparisons)


def _two_way(results: Results, method: str, runs: Sequence[int]) -> tuple[float, float] | None:
    """Return the interval over these runs and the test examples; None without the contributions of each example."""
    found = results.contributions
    pairs = [(found.get((results.reference, run)), found.get((method, run))) for run in runs]
    rows = [ours.astype(float) - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    ends = stats.two_way_interval(np.stack(rows)) if len(rows) == len(pairs) else None
    return ends if is_known(ends) else None  # one run has none


def without_limits(found: Comparison) -> Comparison:
    """Remove t-test results from a comparison whose differences are all equal: without spread they are only limits."""
    if found.sd != 0:
        return found
    limits = ["minimum_detectable"]
    if found.equivalence_p is not None:
        limits += ["equivalence_p", "equivalence_p_holm"]
    if found.difference != 0:
        limits += ["t_p", "t_p_two_sided", "effect"]
    none: dict[str, Any] = dict.fromkeys(limits, math.nan)
    none |= dict.fromkeys(("interval", "simultaneous"), (math.nan, math.nan))
    return dataclasses.replace(found, **none)


ALPHA = 0.05
BETTER, WORSE, EQUIVALENT, OPEN, FEW = "better", "worse", "equivalent", "open", "few"
OUTCOME_WORDS = {BETTER: "better", WORSE: "worse", EQUIVALENT: "within margin", OPEN: "open", FEW: "too few runs"}


def outcome_of(comparison: Comparison) -> str:
    """Classify a comparison from the reference's side."""
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


def wilcoxon_rejects(comparison: Comparison) -> bool:
    return comparison.wilcoxon_p_two_sided_holm < ALPHA


def wilcoxon_can_reject(comparison: Comparison, comparisons: int) -> bool:
    """Return True if Wilcoxon's test can reach 5 %: with n runs p is at least 2^(1 - n), before Holm."""
    return comparisons * 2.0 ** (1 - comparison.runs) < ALPHA


def is_known(interval: tuple[float, float] | None) -> bool:
    """Return True if the interval exists."""
    return interval is not None and not math.isnan(interval[0])


def includes_zero(interval: tuple[float, float] | None) -> bool:
    """Return True if the interval exists and includes 0."""
    return interval is not None and interval[0] <= 0 <= interval[1]


BERNOULLI = "bernoulli"
_MATCHED = "bernoulli-matched"
_ALIKE = 0.01  # in proportion: strengths that count as equal


def control_of(method: str) -> str | None:
    """Return the label of the Bernoulli method with the same mean and strength; None if there is none.

    >>> control_of("gaussian:sigma=0.3"), control_of("uniform"), control_of("none")
    ('bernoulli-matched:sigma=0.3', 'bernoulli-matched:uniform', None)
    >>> control_of("gaussian:r=0.3")
    'bernoulli:r=0.3'
    """
    name, _, given = method.partition(":")
    if name not in ("gaussian", "uniform"):
        return None
    if given == MATCH:  # the strength is that of the model's own dropout
        return ORIGINAL
    if given.startswith("r="):  # a strength that Bernoulli takes as it is
        return f"bernoulli:{given}"
    word = given or ("uniform" if name == "uniform" else "")
    return f"{_MATCHED}:{word}" if word else _MATCHED


def noise_mismatch(results: Results, first: str, second: str) -> str | None:
    """Return why the noise of two methods is not equal, in relative variance or mean, or not known to be; else None."""
    found = {job.method: job.results for job in results.finished}
    for key, what in (("relative_variance", "relative variance"), ("mean", "mean of the masks")):
        ours, theirs = found[first].get(key), found[second].get(key)
        if ours is not None and theirs is not None and not math.isclose(ours, theirs, rel_tol=_ALIKE):
            kind = "another amount of noise" if key == "relative_variance" else "masks of another mean"
            return f"{name_in_text(second)} was run with {kind}, {what} {theirs:.3f} instead of {ours:.3f}"
    configuration = results.protocol.configuration
    scale = configuration.get("scale") or (configuration.get("recipe") or {}).get("scale")
    for key, what in (("relative_variance", "strength"), ("mean", "mean")):
        known = all(found[each].get(key) is not None for each in (first, second))
        if not known and (key != "mean" or scale == "paper"):
            start, masks = ("masks are unscaled here, and ", "those") if key == "mean" else ("", "the masks")
            return (
                f"{start}the store does not say whether {masks} of {name_in_text(second)} have the {what} of those of "
                f"{name_in_text(first)}"
            )
    return None


def weaker_than_named(results: Results) -> list[tuple[str, float, float]]:
    """Return methods whose law cannot reach the strength of the model's own dropout, with both strengths."""
    found = {job.method: job.results.get("relative_variance") for job in results.finished}
    own = found.get(ORIGINAL) or 0.0
    return [
        (method, strength, own)
        for method, strength in found.items()
        if method.endswith(f":{MATCH}") and strength is not None and strength < own * (1 - _ALIKE)
    ]


# ---- interim results: the difference after each finished pair of runs

_MOST = 60  # interim results: more cannot be seen in a chart, and each takes a bootstrap


@dataclasses.dataclass(frozen=True)
class InterimResult:
    """Mean difference, reference minus method, after ``pairs`` pairs, and its interval (NaN if there is none)."""

    pairs: int
    difference: float
    low: float
    high: float


def followed_method(results: Results) -> str | None:
    """Return the method whose interim results are shown: Bernoulli, the control, or the first other one.

    The plan decides, not the results, so that the choice is not biased towards the best of them.
    """
    others = [method for method in results.methods if method != results.reference]
    wanted = (BERNOULLI, control_of(results.reference), *others)
    return next((method for method in wanted if method in others), None)


def interim_results(results: Results, method: str) -> list[InterimResult]:
    """Return the results after each pair, in the order in which pairs were completed."""
    errors, ended = results.errors(), {(job.method, job.run): job.ended or 0.0 for job in results.finished}
    ours, theirs = errors.get(results.reference, {}), errors.get(method, {})
    order = sorted(
        ours.keys() & theirs.keys(), key=lambda run: (max(ended[results.reference, run], ended[method, run]), run)
    )
    pairs = [(run, ours[run], theirs[run]) for run in order]
    counts = {*range(1, len(pairs) + 1, 1 + len(pairs) // _MOST), len(pairs)} - {0}
    return [_interim_result(tuple(sorted(pairs[:count]))) for count in sorted(counts)]


@functools.lru_cache(maxsize=1000)
def _interim_result(pairs: tuple[tuple[int, float, float], ...]) -> InterimResult:
    """Compute one interim result; cached, because one more pair changes none of the earlier ones."""
    found = stats.compare_paired({run: ours for run, ours, _ in pairs}, {run: theirs for run, _, theirs in pairs})
    low, high = found.interval if found.sd else (math.nan, math.nan)  # as compare has it
    return InterimResult(len(pairs), found.difference, low, high)
