"""How a study goes, in plain lines: for notebooks and scripts. The command line has a display of its own."""

from __future__ import annotations

import sys
import time

from ..store.writer import FAILED, Epoch, Store
from ..study.plan import PlannedJob
from .estimate import Estimate

_EVERY = 0.5  # seconds between two updates of the line


class Lines:
    """An observer that rewrites one line where it can, and writes a line now and then where it cannot."""

    def __init__(
        self, store: Store, jobs: dict[int, PlannedJob], estimate: Estimate, workers: int, *, show: bool
    ) -> None:
        self._store, self._estimate, self._workers, self._show = store, estimate, max(1, workers), show
        self._total, self._done, self._begun = len(jobs), 0, False
        # A notebook understands a carriage return, though it is no terminal.
        self._rewrites = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._last = 0.0

    def started(self, worker: int, job_id: int, job: PlannedJob) -> None:
        self._begun = True
        self._say(str(job))

    def epoch(self, worker: int, job_id: int, job: PlannedJob, epoch: Epoch) -> None:
        self._estimate.epoch(job_id, epoch)
        self._say(f"{job}, epoch {epoch.epoch} of {job.epochs}")

    def ended(self, job_id: int, job: PlannedJob) -> None:
        self._done += 1
        self._estimate.ended(job_id)
        if self._begun:
            failed = self._store.job(job_id).status == FAILED
            self._say(f"{job}{' FAILED' if failed else ''}", ends=failed or self._done == self._total)

    def died(self, worker: int, job: PlannedJob | None) -> None:
        self._say("a worker process ended; another takes its place", ends=True)

    def _say(self, what: str, *, ends: bool = False) -> None:
        now = time.monotonic()
        if not self._show or (not ends and (not self._rewrites or now - self._last < _EVERY)):
            return
        self._last = now
        seconds = self._estimate.seconds_left(self._workers)
        left = f", about {seconds:.0f} s left" if seconds is not None and self._done < self._total else ""
        line = f"{self._done} of {self._total} done{left}: {what}"
        if self._rewrites:
            sys.stderr.write(f"\r{line[:118]:<118}" + ("\n" if ends else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
