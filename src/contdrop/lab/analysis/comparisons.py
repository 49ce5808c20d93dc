"""The one place that decides which runs are compared, so that verdict, table and figures agree.

Each method is compared with the reference over the runs that both have finished; a method that failed often takes away
no runs from the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from .. import stats
from ..store.results import Results

# Where nobody names the smallest difference that matters: this share of what the reference leaves to gain. A share of
# the value itself would mean little for a metric that is to be maximised: a tenth of an area of 0.98 is more than all
# that is left.
MARGIN_SHARE = 0.1


def margin_of(results: Results, wanted: float | None = None) -> float | None:
    """The smallest difference that matters, in the metric's unit; None if that cannot be said.

    In this order: the one asked for after the fact, the experiment's own, a share of the distance of the reference's
    mean to the best value that there can be, which for an error is the error itself.
    """
    if wanted is not None:
        return wanted
    planned = planned_margin(results)
    if planned is not None:
        return planned
    errors = results.errors().get(results.reference)
    room = results.measure.room(stats.summary(list(errors.values())).mean) if errors else None
    return MARGIN_SHARE * room if room else None


def planned_margin(results: Results) -> float | None:
    """The margin that the experiment fixed before there were results."""
    planned = results.protocol.description.get("margin")
    return float(planned) if isinstance(planned, int | float) and planned > 0 else None


def compare(results: Results, margin: float | None = None) -> dict[str, stats.Comparison]:
    """The reference against every other method that shares finished runs with it, in the experiment's order.

    The margin is that of the equivalence test, see :func:`margin_of`.
    """
    errors, better = results.errors(), results.measure.better
    reference = errors.pop(results.reference, {})
    comparisons = {}
    for method, found in errors.items():
        shared = sorted(reference.keys() & found.keys())
        if shared:
            comparison = stats.compare_paired(
                {run: reference[run] for run in shared},
                {run: found[run] for run in shared},
                margin=margin_of(results, margin),
                names=(results.reference, method),
                better=better,
            )
            comparisons[method] = dataclasses.replace(comparison, two_way=_two_way(results, method, shared))
    return stats.adjusted({method: without_limits(found) for method, found in comparisons.items()})


def _two_way(results: Results, method: str, runs: Sequence[int]) -> tuple[float, float] | None:
    """The interval over these runs and the test examples; None without the contributions of each."""
    found = results.contributions
    pairs = [(found.get((results.reference, run)), found.get((method, run))) for run in runs]
    rows = [ours.astype(float) - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    ends = stats.two_way_interval(np.stack(rows)) if len(rows) == len(pairs) else None
    return None if ends is None or math.isnan(ends[0]) else ends  # one run has none


def without_limits(found: stats.Comparison) -> stats.Comparison:
    """Differences that are all equal have no spread: what a t-test says of them is a limit, and no evidence."""
    if found.sd != 0:
        return found
    none = math.nan
    found = dataclasses.replace(found, minimum_detectable=none, interval=(none, none), simultaneous=(none, none))
    if found.equivalence_p is not None:
        found = dataclasses.replace(found, equivalence_p=none, equivalence_p_holm=none)
    if found.difference != 0:
        found = dataclasses.replace(found, t_p=none, t_p_two_sided=none, effect=none)
    return found
