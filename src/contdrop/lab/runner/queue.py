"""Queue of a plan's jobs, and the part of a worker that is the same wherever it runs.

An executor only decides where jobs run and how they are handed out, so that a study ends the same with each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from ...errors import UserError
from ..data.data import PreparedData, prepare
from ..store.schema import FAILED, FINISHED, SELECTION, Epoch, SelectionRecord
from ..store.writer import Store, TakenError
from ..study import plan, selection
from ..study.plan import PlannedJob, StudyPlan, Variant
from ..study.source import StudySpec
from ..study.user_errors import explained, place_of, printable_error
from ..training import job as running
from ..training.job import JobSink
from . import custom_loop

NO_MEMORY = 12  # exit code of a process, as the system's errno ENOMEM
POLL_SECONDS = 0.3  # between two looks at what other invocations have done
DEATHS_ALLOWED = 3  # of workers in a row with one job, without a checkpoint in between


class Observer(Protocol):
    """Receiver of events, for a progress display."""

    def started(self, worker: int, job_id: int, job: PlannedJob) -> None: ...
    def epoch(self, worker: int, job_id: int, job: PlannedJob, epoch: Epoch) -> None: ...
    def ended(self, job_id: int, job: PlannedJob) -> None: ...  # in this invocation or in another
    def died(self, worker: int, job: PlannedJob | None) -> None: ...


@dataclass
class PlanOutcome:
    """Ids of the jobs that finished and of those that failed."""

    finished: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of a worker.

    Attributes:
        specs: Studies by the keys of their plans.
        data: Prepared data by the keys of plans, of those whose data not every process prepares itself.
        threads: torch threads in each process.
        device: Where to train.
    """

    specs: Mapping[str, StudySpec]
    data: dict[str, PreparedData]
    threads: int = 1
    device: str = "cpu"


class Task(NamedTuple):
    """Message that hands a job to a worker, which has no plan."""

    job_id: int
    protocol: str
    stage: str
    method: str
    run: int
    variant: str


class JobQueue:
    """Unfinished jobs of a plan, in the order in which to run them."""

    def __init__(self, store: Store, jobs: Mapping[int, PlannedJob], observer: Observer) -> None:
        self.store, self.jobs, self.observer = store, jobs, observer
        self.pending = dict.fromkeys(jobs)  # an ordered set
        self.outcome = PlanOutcome()
        self._deaths: dict[int | None, int] = {}
        self._reached: dict[int, int] = {}  # the epoch of a job's last checkpoint when its worker died
        self._busy_until: dict[int, float] = {}  # jobs that another invocation holds
        self._selected: dict[str, dict[str, SelectionRecord]] = {}

    def collect(self, doing: Collection[int | None] = ()) -> None:
        """Remove jobs that ended in this or another invocation, except those in ``doing``; decide ready selections."""
        statuses = self.store.statuses()
        for job_id in list(self.pending):
            if statuses[job_id] in (FINISHED, FAILED) and job_id not in doing:
                del self.pending[job_id]
                self._busy_until.pop(job_id, None)
                kind = self.outcome.finished if statuses[job_id] == FINISHED else self.outcome.failed
                kind.append(job_id)
                self.observer.ended(job_id, self.jobs[job_id])
        for job_id in list(self.pending):
            self._decide_selection(job_id)

    def _decide_selection(self, job_id: int) -> None:
        """Select the parameters that a job waits for, if its candidates are done; fail it if all of them failed."""
        job = self.jobs[job_id]
        label, protocol = job.waits_for, job.protocol
        if label is None:
            return
        if protocol.key not in self._selected:
            self._selected[protocol.key] = self.store.selections(protocol.key)
        decided = self._selected[protocol.key]
        if label not in decided:
            if any(
                self.jobs[other].stage == SELECTION and self.jobs[other].protocol.key == protocol.key
                for other in self.pending
            ):
                return  # candidates are still pending
            if plan.decided(self.store, protocol, label) is None:
                return
            self._selected[protocol.key] = decided = self.store.selections(protocol.key)
        if decided[label].variant is None:
            self._fail(job_id, f"no parameters could be selected: {decided[label].reason}")

    def _fail(self, job_id: int, reason: str) -> None:
        """Record a failure, unless another invocation holds the job."""
        with self.store.locks.holding(job_id) as mine:
            if mine and self.store.status(job_id) not in (FINISHED, FAILED):
                self.store.fail(job_id, reason)

    def next(self, doing: Collection[int | None] = ()) -> Task | None:
        """Return the next runnable job: not locked elsewhere, selection decided."""
        now = time.monotonic()
        for job_id in self.pending:
            if job_id in doing or self._busy_until.get(job_id, 0) > now:
                continue
            job = self.jobs[job_id]
            chosen = selection.chosen(self._selected.get(job.protocol.key, {}))
            if job.waits_for is None or job.waits_for in chosen:
                variant = str(job.variant(chosen))
                return Task(job_id, job.protocol.key, job.stage, job.method, job.run, variant)
        return None

    def busy(self, job_id: int) -> None:
        """Skip a job that another invocation holds until the next poll."""
        self._busy_until[job_id] = time.monotonic() + POLL_SECONDS

    def reported(self, worker: int, job_id: int, kind: str, *content: Any) -> None:
        """Pass on a worker's report of its job: that it has started, or an epoch."""
        if kind == "started":
            self.observer.started(worker, job_id, self.jobs[job_id])
        elif kind == "epoch":
            self.observer.epoch(worker, job_id, self.jobs[job_id], *content)

    def ready(self) -> None:
        """Note that a worker has started, so that the cause of earlier failed starts has passed."""
        self._deaths.pop(None, None)

    def died(self, worker: int, job_id: int | None, how: str, *, idle: bool = False) -> None:
        """Count the death of a worker, which was ``idle`` or ran a job; it resumes, or fails after too many deaths."""
        self.observer.died(worker, None if job_id is None else self.jobs[job_id])
        if idle:
            return
        if job_id is not None:  # epochs that are repeated each time do not count as progress
            saved = self.store.job(job_id).epochs_done
            if saved > self._reached.get(job_id, 0):
                self._deaths.pop(job_id, None)
            self._reached[job_id] = saved
        self._deaths[job_id] = self._deaths.get(job_id, 0) + 1
        if self._deaths[job_id] < DEATHS_ALLOWED:
            return
        if job_id is None:
            raise UserError(
                f"expected worker processes that start; got {DEATHS_ALLOWED} that ended at once ({how}); free memory, "
                "or train in this process with lab.compare(study, workers=0) in Python"
            )
        self._fail(job_id, f"its worker ended {DEATHS_ALLOWED} times in a row ({how}); is there enough memory?")


def is_out_of_memory(error: Exception) -> bool:
    """Return True for torch's error class for a GPU's memory, and for its sentence about the machine's."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class WorkerContext:
    """Studies and data of one process, which runs jobs one after another."""

    def __init__(self, config: WorkerConfig, protocols: Mapping[str, StudyPlan] | None = None) -> None:
        self.config = config
        self.data: dict[str, PreparedData] = {}  # that this process prepared
        self._protocols = dict(protocols or {})

    def claim_and_do(self, store: Store, task: Task, report: Callable[..., None]) -> str:
        """Run a job unless another invocation holds it; return "ended" or "busy"."""
        with store.locks.holding(task.job_id) as mine:
            if mine and store.status(task.job_id) not in (FINISHED, FAILED):  # another invocation may have been quicker
                report("started")
                self.do(store, task, lambda epoch: report("epoch", epoch))
        return "ended" if mine else "busy"

    def do(self, store: JobSink, task: Task, after_epoch: Callable[[Epoch], None]) -> None:
        """Run a job, and record the reason if it fails; raise MemoryError, which says little about it."""
        try:
            self.train(store, task, after_epoch)
        except UserError:
            raise
        except TakenError:
            return  # the invocation that has it writes the same
        except Exception as error:
            reason = f"{printable_error(error)}{place_of(error)}"
            if is_out_of_memory(error):
                raise MemoryError(reason) from error
            store.fail(task.job_id, reason)

    def train(self, store: JobSink, task: Task, after_epoch: Callable[[Epoch], None]) -> None:
        """Run a job."""
        job = PlannedJob(self._protocol(task.protocol), task.stage, task.method, task.run)
        variant = Variant.parse(task.variant)
        if job.protocol.study.run is not None:
            custom_loop.do(store, task.job_id, job, variant, after_epoch)
            return
        prepared, device = self._prepared(job.protocol), self.config.device
        running.run(store, task.job_id, job, variant, prepared, device=device, after_epoch=after_epoch)

    def _protocol(self, key: str) -> StudyPlan:
        if key not in self._protocols:
            self._protocols[key] = self.config.specs[key].unpack()
        return self._protocols[key]

    def _prepared(self, protocol: StudyPlan) -> PreparedData:
        key, study = protocol.key, protocol.study
        if key in self.config.data:
            return self.config.data[key]
        if key not in self.data:
            assert study.data is not None
            with explained(f"study {study.name!r}: data()"):
                self.data[key] = prepare(study.data(), task=study.task)
        return self.data[key]
