"""Progress on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .._text import duration
from ..lab.analysis.metric_format import Measure
from ..lab.runner.progress import Estimate
from ..lab.store.schema import FAILED, Epoch
from ..lab.store.writer import Store
from ..lab.study.plan import PlannedJob
from . import terminal


class Dashboard:
    """Observer of the runner; its ``progress`` is a context manager."""

    def __init__(self, store: Store, jobs: dict[int, PlannedJob], estimate: Estimate, *, workers: int) -> None:
        self._store, self._estimate, self._workers = store, estimate, workers
        self._total, self._done, self._begun = len(jobs), 0, False
        self._screen = terminal.screen(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._screen,
            transient=True,
            disable=not self._screen.is_terminal,
        )
        self._whole = self.progress.add_task("all jobs", total=self._total, note="")
        self._bars: dict[int, TaskID] = {}

    def started(self, worker: int, job_id: int, job: PlannedJob) -> None:
        self._begun = True
        if worker not in self._bars:
            self._bars[worker] = self.progress.add_task("", total=1, note="")
        done = self._store.job(job_id).epochs_done
        self.progress.reset(self._bars[worker], total=job.epochs, completed=done, description=f"  {job}", note="")

    def epoch(self, worker: int, job_id: int, job: PlannedJob, epoch: Epoch) -> None:
        self._estimate.epoch(job_id, epoch)
        if not self._screen.is_terminal:
            return
        measure = Measure.of(job.protocol.description)
        value = "" if epoch.val_error is None else f", validation {measure.name} {measure.value(epoch.val_error)}"
        note = f"epoch {epoch.epoch} of {job.epochs}{value}"
        self.progress.update(self._bars[worker], completed=epoch.epoch, note=note)
        self.progress.update(self._whole, note=self._left())

    def ended(self, job_id: int, job: PlannedJob) -> None:
        self._done += 1
        self._estimate.ended(job_id)
        self.progress.update(self._whole, completed=self._done, note=self._left())
        if self._begun:  # what was done before needs no line each
            self._say(self._line(job_id, job))

    def died(self, worker: int, job: PlannedJob | None) -> None:
        doing = f"while it did {job}; another resumes it" if job else "; another takes its place"
        self._say(f"a worker process ended {doing}")

    def _left(self) -> str:
        seconds = self._estimate.seconds_left(self._workers)
        left = f", about {duration(seconds)} left" if seconds is not None and self._done < self._total else ""
        return f"{self._done} of {self._total}{left}"

    def _line(self, job_id: int, job: PlannedJob) -> str:
        record = self._store.job(job_id)
        if record.status == FAILED:
            return f"[{self._left()}] {job}: FAILED, {record.error}"
        found = record.results
        measure = Measure.of(job.protocol.description)
        names = {"val_error": "validation", "test_error": "test"}
        values = [f"{names[key]} {measure.name} {measure.value(found[key])}" for key in names if key in found]
        variant = f" as {record.variant}" if record.variant not in (None, job.method) else ""
        return f"[{self._left()}] {job}{variant}: {', '.join(values)} in {record.seconds:.1f} s"

    def _say(self, line: str) -> None:
        if self._screen.is_terminal:
            self._screen.print(line, style="red" if "FAILED" in line else "dim")
        else:
            terminal.say(line)


class Stages:
    """Reports the stages of a long command, ``total`` in number, one after the other."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._screen = terminal.screen(stderr=True)

    @contextlib.contextmanager
    def __call__(self, name: str, steps: int = 1) -> Iterator[Callable[[], None]]:
        """Run one stage; its body calls the yielded function once for each of its ``steps``."""
        self._number += 1
        label = f"[{self._number}/{self._total}] {name}"
        start = time.perf_counter()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._screen, transient=True, disable=not self._screen.is_terminal) as bar:
            task = bar.add_task(label, total=steps)
            yield lambda: bar.advance(task)
        if not self._screen.is_terminal:
            terminal.say(f"{label}: {time.perf_counter() - start:.1f} s")
