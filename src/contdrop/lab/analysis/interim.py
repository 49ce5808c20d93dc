"""Interim results: the difference and its interval after each finished pair of runs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from .. import stats
from ..store.results import Results
from .comparisons import control_of
from .findings import BERNOULLI

_MOST = 60  # interim results: more cannot be seen in a chart, and each takes a bootstrap


@dataclass(frozen=True)
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
    low, high = found.interval if found.sd else (math.nan, math.nan)  # as comparisons.compare has it
    return InterimResult(len(pairs), found.difference, low, high)
