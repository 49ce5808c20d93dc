"""Number of runs that a study needs, estimated from the runs it has."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import UserError
from .. import stats
from ..stats.paired import ENOUGH_RUNS, differences
from ..store.results import Results
from .comparisons import ALPHA
from .margin import margin_of
from .rendering import texts

PILOT = 5  # runs: with fewer, their spread says next to nothing


def needed_runs(every: Iterable[Results]) -> Iterable[str]:
    """Yield for each method the runs that find a difference of the margin with 80 % power, with an interval.

    Never fewer than a verdict takes.
    """
    for results in every:
        errors, reference, runs, margin = (
            results.errors(),
            results.reference,
            results.complete_runs(),
            margin_of(results),
        )
        if reason := texts("needed", results, len(runs), PILOT, margin):
            yield from reason
            continue
        others = [method for method in errors if method != reference]
        for method in others:
            ours, theirs = (np.array([errors[each][run] for run in runs]) for each in (reference, method))
            sd = stats.summary(differences(ours, theirs)).sd
            needed = _needed(sd, len(runs), margin, len(others)) if sd and margin else ()
            yield from texts("needed_against", results, method, len(others), len(runs), sd, needed, margin)


def _needed(sd: float, runs: int, margin: float, methods: int) -> tuple[int, ...]:
    """Return the runs needed with this spread of these runs, and the ends of their interval; empty if beyond number."""
    spreads = (sd, *stats.sd_interval(sd, runs))
    try:
        return tuple(max(ENOUGH_RUNS, stats.runs_needed(margin, each, alpha=ALPHA / methods)) for each in spreads)
    except UserError:
        return ()
