"""Which of a method's candidates the final runs use: the one with the lowest validation error."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from .experiment import Protocol
from .store import FAILED, FINISHED, SELECTION, JobRecord, Selection


def decide(protocol: Protocol, label: str, jobs: Iterable[JobRecord]) -> Selection | None:
    """The selection for a label, or None while candidates are still to be trained.

    The lowest mean validation error of the final models over the selection's runs wins; then the lowest validation
    loss; then the candidate named first. A candidate that failed in any run cannot be selected.

    Args:
        protocol: Of the experiment.
        label: With candidates.
        jobs: All jobs of that protocol.
    """
    candidates = protocol.experiment.candidates[label]
    found: dict[str, list[JobRecord]] = {variant: [] for variant in candidates}
    for job in jobs:
        if job.stage == SELECTION and job.method in found and job.run < protocol.selection_runs:
            found[job.method].append(job)
    done = (FINISHED, FAILED)
    if any(sum(job.status in done for job in trained) < protocol.selection_runs for trained in found.values()):
        return None
    scores = {variant: _score(trained) for variant, trained in found.items()}
    able = [variant for variant in candidates if "failed" not in scores[variant]]
    if not able:
        reason, best = "every candidate failed", None
    else:
        best = min(able, key=lambda variant: (scores[variant]["val_error"], scores[variant]["val_loss"]))
        reason = f"lowest validation error of {len(candidates)} candidates: {scores[best]['val_error']:.2f} %"
    return Selection(protocol.key, label, best, reason, scores, time.time())


def _score(jobs: list[JobRecord]) -> dict[str, float]:
    if any(job.status == FAILED for job in jobs):
        return {"failed": sum(job.status == FAILED for job in jobs)}
    return {name: _mean([job.results[name] for job in jobs]) for name in ("val_error", "val_loss")}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def chosen(selections: Mapping[str, Selection]) -> dict[str, str]:
    """The selected variants by label, without those for which every candidate failed."""
    return {label: selection.variant for label, selection in selections.items() if selection.variant}
