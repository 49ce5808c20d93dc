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

_UNKNOWN = "The number of runs needed cannot be estimated"
PILOT = 5  # runs: with fewer, their spread says next to nothing


def needed_runs(every: Iterable[Results]) -> Iterable[str]:
    """Yield for each method the runs that find a difference of the margin with 80 % power, with an interval.

    Never fewer than a verdict takes.
    """
    for results in every:
        errors, reference = results.errors(), results.reference
        runs = results.complete_runs()
        if len(runs) < PILOT:
            done = plural(len(runs), "complete run")
            yield f"{_UNKNOWN} from {done}: do at least {PILOT} first (--runs {PILOT}), then ask again."
            continue
        if reference not in errors:
            yield f"{_UNKNOWN}: {display_name(reference)}, the reference, has no run that finished."
            continue
        margin = margin_of(results)
        if margin is None:
            yield f"{_UNKNOWN} without a difference that matters: give the study a margin."
            continue
        others = [method for method in errors if method != reference]
        corrected = f" after correction for {len(others)} comparisons" if len(others) > 1 else ""
        for method in others:
            name = display_name(method)
            ours, theirs = (np.array([errors[each][run] for run in runs]) for each in (reference, method))
            sd = stats.summary(differences(ours, theirs)).sd
            if not sd:
                yield f"{name}: all {len(runs)} runs differ by the same amount; more runs would add no information."
                continue
            low, high = stats.sd_interval(sd, len(runs))
            try:
                needed, least, most = (
                    max(ENOUGH_RUNS, stats.runs_needed(margin, each, alpha=ALPHA / len(others)))
                    for each in (sd, low, high)
                )
            except UserError:
                yield f"{name}: no feasible number of runs would find {results.measure.gap(margin)}."
                continue
            yield (
                f"{name} against {name_in_text(reference)}: {plural(needed, 'run')} would find a difference of "
                f"{results.measure.gap(margin)} with 80 % power{corrected}, from the spread of {len(runs)} runs "
                f"(95 % interval {least} to {most})."
            )
