"""Remaining time of a plan, and a progress display in plain lines for notebooks and scripts."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..store.schema import FAILED, FINISHED, Epoch, JobRecord
from ..store.writer import Store
from ..study import labels


class Estimate:
    """Remaining time of a plan, updated by epochs.

    An epoch is expected to take the median time of epochs of its method in its experiment; if there are none, of any
    method in the experiment, else of any.

    Attributes:
        left: Epochs left of each job that is not done, by id.
    """

    def __init__(self, jobs: Iterable[JobRecord]) -> None:
        self._jobs = {job.id: job for job in jobs}
        unfinished = [job for job in self._jobs.values() if job.status not in (FINISHED, FAILED)]
        self.left = {job.id: _left(job, job.epochs_done) for job in unfinished}
        self._seconds: dict[tuple[str, ...], list[float]] = {}
        for job in self._jobs.values():
            if job.epochs_done:
                self._note(job, job.seconds / job.epochs_done)

    def _note(self, job: JobRecord, seconds: float) -> None:
        for key in _keys(job):
            self._seconds.setdefault(key, []).append(seconds)

    def epoch(self, job_id: int, epoch: Epoch) -> None:
        """Note a finished epoch."""
        job = self._jobs[job_id]
        self.left[job_id] = _left(job, epoch.epoch)
        self._note(job, epoch.seconds)

    def ended(self, job_id: int) -> None:
        """Note the end of a job."""
        self.left.pop(job_id, None)

    def seconds_left(self, workers: int) -> float | None:
        """Return the seconds left with a number of workers; None before anything was measured."""
        if not self._seconds:
            return None
        medians = {key: statistics.median(known[-50:]) for key, known in self._seconds.items()}
        total = 0.0
        for job_id, epochs in self.left.items():
            total += epochs * next(medians[key] for key in _keys(self._jobs[job_id]) if key in medians)
        return total / max(1, min(workers, len(self.left)))


def _left(job: JobRecord, done: int) -> int:
    return max(0, job.epochs - done)  # a loop of the user's own may log more than were planned


def _keys(job: JobRecord) -> tuple[tuple[str, ...], ...]:
    return (job.experiment, labels.base(job.method)), (job.experiment,), ()


_EVERY = 0.5  # seconds between two updates


class TextProgress:
    """Observer that rewrites one line on a terminal or in a notebook, and writes few lines elsewhere."""

    def __init__(self, store: Store, jobs: Mapping[int, Any], estimate: Estimate, workers: int, *, show: bool) -> None:
        self._store, self._estimate, self._workers, self._show = store, estimate, max(1, workers), show
        self._total, self._done, self._begun = len(jobs), 0, False
        self._rewrites = sys.stderr.isatty() or "ipykernel" in sys.modules  # which understands a carriage return
        self._last = 0.0

    def started(self, worker: int, job_id: int, job: Any) -> None:
        self._begun = True
        self._say(str(job))

    def epoch(self, worker: int, job_id: int, job: Any, epoch: Epoch) -> None:
        self._estimate.epoch(job_id, epoch)
        self._say(f"{job}, epoch {epoch.epoch} of {job.epochs}")

    def ended(self, job_id: int, job: Any) -> None:
        self._done += 1
        self._estimate.ended(job_id)
        if self._begun:
            failed = self._store.job(job_id).status == FAILED
            self._say(f"{job}{' FAILED' if failed else ''}", ends=failed or self._done == self._total)

    def died(self, worker: int, job: Any) -> None:
        self._say("a worker process ended; another takes its place", ends=True)

    def _say(self, text: str, *, ends: bool = False) -> None:
        now = time.monotonic()
        if not self._show or (not ends and (not self._rewrites or now - self._last < _EVERY)):
            return
        self._last = now
        seconds = self._estimate.seconds_left(self._workers)
        left = f", about {seconds:.0f} s left" if seconds is not None and self._done < self._total else ""
        line = f"{self._done} of {self._total} done{left}: {text}"
        if self._rewrites:
            sys.stderr.write(f"\r{line[:118]:<118}" + ("\n" if ends else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
