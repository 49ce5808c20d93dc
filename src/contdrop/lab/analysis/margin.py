"""Smallest difference that matters: the margin of equivalence tests."""

from __future__ import annotations

from .. import stats
from ..store.results import Results

# Where nobody names the smallest difference that matters: this share of what the reference leaves to gain. A share of
# the value itself would mean little for a metric that is to be maximised: a tenth of an area of 0.98 is more than all
# that is left.
MARGIN_SHARE = 0.1


def margin_of(results: Results, wanted: float | None = None) -> float | None:
    """Return the smallest difference that matters, in the metric's unit; None if there is none.

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
    """Return the margin that the study fixed before there were results."""
    planned = results.protocol.description.get("margin")
    return float(planned) if isinstance(planned, int | float) and planned > 0 else None
