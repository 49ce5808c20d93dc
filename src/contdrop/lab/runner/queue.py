"""What every executor shares: which job is next, what is done, how failures are counted, and how a job is done.

An executor decides where jobs are done and how they are handed out. All else is here, so that a study ends the same
whichever does it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from ...errors import UserError
from ..data.data import PreparedData, prepare
from ..store.integrity import Backups
from ..store.schema import FAILED, FINISHED, SELECTION, Epoch, SelectionRecord
from ..store.writer import Store, TakenError
from ..study import plan, selection
from ..study.plan import PlannedJob, StudyPlan, Variant
from ..study.source import StudySpec
from ..study.user_errors import explained, place_of, printable_error
from ..training import job as running
from ..training.distributed import LostError, ProcessGroup, device_of, together
from ..training.job import JobSink, NullStore
from . import custom_loop

NO_MEMORY = 12  # the exit code of a process, after the system's number of that error
POLL_SECONDS = 0.3  # how often to look what other invocations have done
DEATHS_ALLOWED = 3  # of workers in a row over one job, without an epoch finished between


class Observer(Protocol):
    """Is told what happens, for a progress display."""

    def started(self, worker: int, job_id: int, job: PlannedJob) -> None: ...
    def epoch(self, worker: int, job_id: int, job: PlannedJob, epoch: Epoch) -> None: ...
    def ended(self, job_id: int, job: PlannedJob) -> None:
        """By this invocation or by another."""

    def died(self, worker: int, job: PlannedJob | None) -> None: ...


@dataclass
class PlanOutcome:
    """How the plan ended."""

    finished: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker needs to know; shipments and data are by the keys of protocols."""

    shipments: Mapping[str, StudySpec]
    data: dict[str, PreparedData | None]  # None where every process prepares its own
    threads: int = 1  # of torch, in each process
    device: str = "cpu"
    devices: int = 1  # processes that do a job together


class Task(NamedTuple):
    """A job on its way to a worker, which has no plan."""

    job_id: int
    protocol: str
    stage: str
    method: str
    run: int
    variant: str


class JobQueue:
    """The jobs of a plan that are not done yet, in the order in which to do them."""

    def __init__(self, store: Store, jobs: Mapping[int, PlannedJob], observer: Observer) -> None:
        self.store, self.jobs, self.observer = store, jobs, observer
        self.pending = dict.fromkeys(jobs)  # an ordered set
        self.outcome = PlanOutcome()
        self._deaths: dict[int | None, int] = {}
        self._reached: dict[int, int] = {}  # the epoch of a job's last checkpoint when its worker died
        self._busy_until: dict[int, float] = {}  # jobs that another invocation holds
        self._selected: dict[str, dict[str, SelectionRecord]] = {}
        self._backups = Backups(store.path)

    def collect(self, doing: Collection[int | None] = ()) -> None:
        """Takes off the list what is done, by whomever, but for what this invocation's own workers are ``doing``.

        Decides selections that can be decided.
        """
        statuses = self.store.statuses()
        for job_id in list(self.pending):
            if statuses[job_id] in (FINISHED, FAILED) and job_id not in doing:
                del self.pending[job_id]
                self._busy_until.pop(job_id, None)
                kind = self.outcome.finished if statuses[job_id] == FINISHED else self.outcome.failed
                kind.append(job_id)
                self.observer.ended(job_id, self.jobs[job_id])
        for job_id in list(self.pending):
            self._decide_for(job_id)
        self._backups.make_if_due(at_once=not self.pending)

    def _decide_for(self, job_id: int) -> None:
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
                return  # cheap: nothing can be decided yet
            if plan.decided(self.store, protocol, label) is None:
                return
            self._selected[protocol.key] = decided = self.store.selections(protocol.key)
        if decided[label].variant is None:
            self._fail(job_id, f"no parameters could be selected: {decided[label].reason}")

    def _fail(self, job_id: int, reason: str) -> None:
        """Unless another invocation has the job."""
        with self.store.locks.holding(job_id) as mine:
            if mine and self.store.status(job_id) not in (FINISHED, FAILED):
                self.store.fail(job_id, reason)

    def next(self, doing: Collection[int | None] = ()) -> Task | None:
        """The first job that nobody is known to do, and that waits for no selection."""
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
        """Another invocation has this job: it is looked at again in a moment."""
        self._busy_until[job_id] = time.monotonic() + POLL_SECONDS

    def told(self, worker: int, job_id: int, kind: str, *content: Any) -> None:
        """What a worker says of its job: that it has started, or an epoch."""
        if kind == "started":
            self.observer.started(worker, job_id, self.jobs[job_id])
        elif kind == "epoch":
            self.observer.epoch(worker, job_id, self.jobs[job_id], *content)

    def ready(self) -> None:
        """A worker has started: whatever ended those before it has passed."""
        self._deaths.pop(None, None)

    def died(self, worker: int, job_id: int | None, how: str, *, idle: bool = False) -> None:
        """A worker has ended. Its job goes on from its last checkpoint, unless it has cost too many already.

        Args:
            worker: Its number.
            job_id: Of the job that it did, if any.
            how: In words.
            idle: It waited for a job, so that nothing of the study can have ended it.
        """
        self.observer.died(worker, None if job_id is None else self.jobs[job_id])
        if idle:
            return
        if job_id is not None and self._has_come_further(job_id):
            self._deaths.pop(job_id, None)
        self._deaths[job_id] = self._deaths.get(job_id, 0) + 1
        if self._deaths[job_id] < DEATHS_ALLOWED:
            return
        if job_id is None:
            raise UserError(
                f"expected worker processes that start; got {DEATHS_ALLOWED} that ended at once ({how}); is there "
                "enough memory? lab.compare(study, workers=0), in Python, does without them"
            )
        self._fail(job_id, f"its worker ended {DEATHS_ALLOWED} times in a row ({how}); is there enough memory?")

    def _has_come_further(self, job_id: int) -> bool:
        """Whether a checkpoint was saved since the last death; epochs that are done again each time do not count."""
        before, now = self._reached.get(job_id, 0), self.store.job(job_id).epochs_done
        self._reached[job_id] = now
        return now > before


def is_out_of_memory(error: Exception) -> bool:
    """torch has a class of errors for a GPU's memory, and a sentence for the machine's."""
    text = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text


class WorkerContext:
    """Where jobs are done, one after the other: the protocols and data of one process."""

    def __init__(self, work: WorkerConfig, protocols: Mapping[str, StudyPlan] | None = None) -> None:
        self.work = work
        self.data: dict[str, PreparedData] = {}
        self._protocols = dict(protocols or {})

    def claim_and_do(self, store: Store, task: Task, tell: Callable[..., None]) -> str:
        """Does a job if nobody else has it; says what became of it."""
        with store.locks.holding(task.job_id) as mine:
            if mine and store.status(task.job_id) not in (FINISHED, FAILED):  # another invocation may have been quicker
                tell("started")
                self.do(store, task, lambda epoch: tell("epoch", epoch))
        return "ended" if mine else "busy"

    def do(self, store: JobSink, task: Task, after_epoch: Callable[[Epoch], None]) -> None:
        """Does a job; one that cannot be done is recorded with its reason, not lost.

        Raises:
            MemoryError: There was not enough, for this process at this time, which says little about the job.
            LostError: Another process of the job is gone.
        """
        try:
            self.train(store, task, after_epoch)
        except (UserError, LostError):
            raise
        except TakenError:
            return  # whoever else does it writes the same
        except Exception as error:
            reason = f"{printable_error(error)}{place_of(error)}"
            if is_out_of_memory(error):
                raise MemoryError(reason) from error
            store.fail(task.job_id, reason)

    def train(
        self, store: JobSink, task: Task, after_epoch: Callable[[Epoch], None], team: ProcessGroup | None = None
    ) -> None:
        """Does a job, together with as many processes as are asked for unless there is a team already."""
        job = PlannedJob(self._protocol(task.protocol), task.stage, task.method, task.run)
        variant = Variant.parse(task.variant)
        if job.protocol.study.run is not None:
            custom_loop.do(store, task.job_id, job, variant, after_epoch)
            return
        prepared, work = self._prepared(job.protocol), self.work
        with contextlib.nullcontext(team) if team else together(work.devices, work.device, _assist, work, task) as team:
            device = device_of(team, work.device)
            running.run(store, task.job_id, job, variant, prepared, device=device, team=team, after_epoch=after_epoch)

    def _protocol(self, key: str) -> StudyPlan:
        if key not in self._protocols:
            self._protocols[key] = self.work.shipments[key].unpack()
        return self._protocols[key]

    def _prepared(self, protocol: StudyPlan) -> PreparedData:
        key = protocol.key
        if key not in self.data:
            shared = self.work.data.get(key)
            if shared is None:
                assert protocol.study.data is not None
                with explained(f"study {protocol.study.name!r}: data()"):
                    shared = prepare(protocol.study.data(), task=protocol.study.task)
            self.data[key] = shared
        return self.data[key]


def set_up_process(work: WorkerConfig) -> None:
    torch.set_num_threads(work.threads)
    # Tiny numbers would take a hundred times as long to multiply, and mean nothing here.
    torch.set_flush_denormal(True)


def _assist(team: ProcessGroup, work: WorkerConfig, task: Task) -> None:
    """What the other processes of a job do: the same, and write nothing."""
    set_up_process(work)
    try:
        WorkerContext(work).train(NullStore(), task, lambda epoch: None, team)
    except Exception as error:
        if is_out_of_memory(error):
            os._exit(NO_MEMORY)
        raise
