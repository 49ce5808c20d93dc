"""Progress on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .._text import duration, printable
from ..lab.analysis.metric_format import Measure
from ..lab.runner.progress import Estimate
from ..lab.store.schema import FAILED, Epoch
from ..lab.store.writer import Store
from ..lab.study.plan import PlannedJob
from . import terminal


class Dashboard:
    """An observer of the executor; a context manager."""

    def __init__(self, store: Store, jobs: dict[int, PlannedJob], estimate: Estimate, *, workers: int) -> None:
        self._store, self._estimate = store, estimate
        self._total, self._done = len(jobs), 0
        self._workers = workers
        self._screen = terminal.screen(stderr=True)
        self._live = self._screen.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._screen,
            transient=True,
            disable=not self._live,
        )
        self._whole = self._progress.add_task("all jobs", total=self._total, note="")
        self._bars: dict[int, TaskID] = {}
        self._begun = False

    def __enter__(self) -> Dashboard:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, worker: int, job_id: int, job: PlannedJob) -> None:
        self._begun = True
        bar = self._bars.get(worker)
        if bar is None:
            bar = self._bars[worker] = self._progress.add_task("", total=1, note="")
        done = self._store.job(job_id).epochs_done
        self._progress.reset(bar, total=job.epochs, completed=done, description=f"  {job}", note="")

    def epoch(self, worker: int, job_id: int, job: PlannedJob, epoch: Epoch) -> None:
        self._estimate.epoch(job_id, epoch)
        if not self._live:
            return
        measure = Measure.of(job.protocol.description)
        value = "" if epoch.val_error is None else f", validation {measure.name} {measure.value(epoch.val_error)}"
        note = f"epoch {epoch.epoch} of {job.epochs}{value}"
        self._progress.update(self._bars[worker], completed=epoch.epoch, note=note)
        self._progress.update(self._whole, note=self._left())

    def ended(self, job_id: int, job: PlannedJob) -> None:
        self._done += 1
        self._estimate.ended(job_id)
        self._progress.update(self._whole, completed=self._done, note=self._left())
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
        if self._live:
            self._screen.print(line, style="dim" if "FAILED" not in line else "red")
        else:
            terminal.say(line)


class Stages:
    """Reports the stages of a long command, ``total`` in number, one after the other."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._screen = Console(stderr=True)

    @contextlib.contextmanager
    def __call__(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        """Run one stage; its body calls the yielded function once for each of its ``steps``."""
        self._number += 1
        label = f"[{self._number}/{self._total}] {name}"
        start = time.perf_counter()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._screen, transient=True, disable=not self._screen.is_terminal) as bar:
            task = bar.add_task(label, total=steps)
            yield lambda: bar.advance(task)
        if not self._screen.is_terminal:
            print(f"{label}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


class DownloadBars:
    """Progress of downloads on a terminal: a bar per file."""

    def __init__(self, screen: Console) -> None:
        description = TextColumn("{task.description}", markup=False)
        self._progress = Progress(description, BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=screen)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> DownloadBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(printable(text))

    def received(self, file: str, done: int, size: int) -> None:
        if file not in self._tasks:
            self._tasks[file] = self._progress.add_task(file, total=size)
        self._progress.update(self._tasks[file], completed=done)


class DownloadLines:
    """Progress of downloads elsewhere: a line now and then."""

    SECONDS = 5.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        terminal.say(text)

    def received(self, file: str, done: int, size: int) -> None:
        if time.monotonic() - self._last >= self.SECONDS:
            self._last = time.monotonic()
            self.note(f"{file}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")
