"""How long the rest will take, from the epochs that are done."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ..store.writer import FAILED, FINISHED, Epoch, JobRecord
from ..study import labels


class Estimate:
    """Seconds left of a plan; kept up to date by its epochs.

    An epoch of a job takes as long as the median of what epochs of that method took in that experiment; if there are
    none, of any method in that experiment, and else of any.
    """

    def __init__(self, jobs: Iterable[JobRecord]) -> None:
        self._jobs = {job.id: job for job in jobs}
        unfinished = [job for job in self._jobs.values() if job.status not in (FINISHED, FAILED)]
        self._left = {job.id: _left(job, job.epochs_done) for job in unfinished}
        self._seconds: dict[tuple[str, ...], list[float]] = {}
        for job in self._jobs.values():
            if job.epochs_done:
                self._note(job, job.seconds / job.epochs_done)

    @property
    def left(self) -> tuple[int, ...]:
        """Ids of the jobs that are not done."""
        return tuple(self._left)

    def _note(self, job: JobRecord, seconds: float) -> None:
        for key in _keys(job):
            self._seconds.setdefault(key, []).append(seconds)

    def epoch(self, job_id: int, epoch: Epoch) -> None:
        job = self._jobs[job_id]
        self._left[job_id] = _left(job, epoch.epoch)
        self._note(job, epoch.seconds)

    def ended(self, job_id: int) -> None:
        self._left.pop(job_id, None)

    def seconds_left(self, workers: int) -> float | None:
        """With so many workers; None before anything was measured."""
        if not self._seconds:
            return None
        medians = {key: statistics.median(known[-50:]) for key, known in self._seconds.items()}
        total = 0.0
        for job_id, epochs in self._left.items():
            total += epochs * next(medians[key] for key in _keys(self._jobs[job_id]) if key in medians)
        return total / max(1, min(workers, len(self._left)))


def _left(job: JobRecord, done: int) -> int:
    """Epochs; a loop of the user's own may log more than were planned."""
    return max(0, job.epochs - done)


def _keys(job: JobRecord) -> tuple[tuple[str, ...], ...]:
    return (job.experiment, labels.base(job.method)), (job.experiment,), ()
