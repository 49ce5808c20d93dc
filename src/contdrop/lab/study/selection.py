"""Selection of a method's candidate by validation value, and how clear it was."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import stats
from ..analysis.metric_format import Measure
from ..stats.paired import differences as differences_of
from ..store.schema import FAILED, FINISHED, SELECTION, JobRecord, SelectionRecord


def decide(
    protocol: str, label: str, candidates: Sequence[str], runs: int, jobs: Iterable[JobRecord], measure: Measure
) -> SelectionRecord | None:
    """Return the selection for a label, or None while candidates are still to be trained.

    The best mean validation value of the final models over the selection's runs wins; then the lowest validation loss;
    then the candidate named first. A candidate that failed in any run cannot be selected.
    """
    relevant = sorted((job for job in jobs if job.stage == SELECTION and job.run < runs), key=lambda job: job.run)
    found = {variant: [job for job in relevant if job.method == variant] for variant in candidates}
    if any(sum(job.status in (FINISHED, FAILED) for job in trained) < runs for trained in found.values()):
        return None
    scores = {variant: _score(trained) for variant, trained in found.items()}
    order = _ranked({variant: score for variant, score in scores.items() if "failed" not in score}, measure)
    if not order:
        return SelectionRecord(protocol, label, None, "every candidate failed", scores, time.time())
    value = measure.value(scores[order[0]]["val_error"])
    reason = f"{measure.best} validation {measure.name} of {len(candidates)} candidates: {value}"
    return SelectionRecord(protocol, label, order[0], reason, scores, time.time())


def _ranked(scores: Mapping[str, Any], measure: Measure) -> list[str]:
    """Return candidates from the best mean value to the worst; lower losses come first, then those named first."""
    return sorted(
        scores, key=lambda variant: (measure.sign * scores[variant]["val_error"], scores[variant].get("val_loss", 0))
    )


def _score(jobs: list[JobRecord]) -> dict[str, Any]:
    """Return the means over the runs, and the error of each run in order."""
    if any(job.status == FAILED for job in jobs):
        return {"failed": sum(job.status == FAILED for job in jobs)}
    errors = [job.results["val_error"] for job in jobs]
    losses = [job.results.get("val_loss", 0.0) for job in jobs]  # a loop of the user's own reports none
    return {"val_error": sum(errors) / len(jobs), "val_loss": sum(losses) / len(jobs), "val_errors": errors}


def chosen(selections: Mapping[str, SelectionRecord]) -> dict[str, str]:
    """Return the selected variants by label, without labels whose candidates all failed."""
    return {label: selection.variant for label, selection in selections.items() if selection.variant}


@dataclass(frozen=True)
class Lead:
    """Lead of the selected candidate in mean validation value."""

    runner_up: str  # the next best
    spread: float  # from the best to the worst
    difference: float  # from the selected one to the runner-up
    interval: tuple[float, float]  # Student's 95 % interval of that, paired by run; NaN where nothing varies
    runs: int

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0; that is lenient, as the best of several is ahead by chance too."""
        return self.interval[0] > 0


def lead(selection: SelectionRecord, measure: Measure = Measure()) -> Lead | None:
    """Return the lead; None with fewer than two candidates, or without values of single runs."""
    scores = {variant: score for variant, score in selection.candidates.items() if score.get("val_errors")}
    best = scores.pop(selection.variant, None) if selection.variant else None
    if best is None or not scores:
        return None
    sign, order = measure.sign, _ranked(scores, measure)
    values = (np.array(found["val_errors"]) for found in (scores[order[0]], best))
    differences = sign * differences_of(*values)
    return Lead(
        order[0],
        sign * (scores[order[-1]]["val_error"] - best["val_error"]),
        float(differences.mean()),
        stats.t_interval(differences) if np.ptp(differences) else (math.nan, math.nan),
        len(differences),
    )
