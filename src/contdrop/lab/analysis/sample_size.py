"""Number of runs that a study needs, estimated from the runs it has."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..._text import plural
from ...errors import UserError
from .. import stats
from ..stats.paired import ENOUGH_RUNS, differences
from ..store.results import Results
from ..study.labels import display_name, name_in_text
from .comparisons import ALPHA, margin_of

PILOT = 5  # runs: with fewer, their spread says next to nothing


def needed_runs(every: Iterable[Results]) -> Iterable[str]:
    """Yield for each method the runs that find a difference of the margin with 80 % power, with an interval.

    Never fewer than a verdict takes.
    """
    for results in every:
        errors, reference = results.errors(), results.reference
        runs = results.complete_runs()
        if len(runs) < PILOT:
            yield (
                f"How many runs it takes cannot be said from {plural(len(runs), 'complete run')}: do at least {PILOT} "
                f"first (--runs {PILOT}), then ask again."
            )
            continue
        if reference not in errors:
            name = display_name(reference)
            yield f"How many runs it takes cannot be said: {name}, the reference, has no run that finished."
            continue
        margin = margin_of(results)
        if margin is None:
            yield "How many runs it takes cannot be said without a difference that matters: give the study a margin."
            continue
        others = [method for method in errors if method != reference]
        corrected = f" after correction for {len(others)} comparisons" if len(others) > 1 else ""
        for method in others:
            name = display_name(method)
            ours, theirs = (np.array([errors[each][run] for run in runs]) for each in (reference, method))
            sd = stats.summary(differences(ours, theirs)).sd
            if not sd:
                yield f"{name}: all {len(runs)} runs differ alike, so that more of them would say no more."
                continue
            low, high = stats.sd_interval(sd, len(runs))
            try:
                needed, least, most = (
                    max(ENOUGH_RUNS, stats.runs_needed(margin, each, alpha=ALPHA / len(others)))
                    for each in (sd, low, high)
                )
            except UserError:
                yield f"{name}: no number of runs that could be done finds {results.measure.gap(margin)}."
                continue
            yield (
                f"{name} against {name_in_text(reference)}: {plural(needed, 'run')} would find a difference of "
                f"{results.measure.gap(margin)} with 80 % power{corrected}, from the spread of {len(runs)} runs "
                f"(95 % interval {least} to {most})."
            )
