"""Jobs in worker processes on this machine.

One torch thread per worker: small networks gain little from more, and on two cores two workers of one thread do more
than one worker of two. The main process never trains; it hands out jobs, one pipe per worker, so a worker that is
killed in the middle of a message spoils nobody else's. Arrays are loaded once, into memory that all workers share;
other data each worker opens itself.

Several invocations may work on one store at a time: a job is done by whoever gets its lock, and each invocation waits
for what others are doing until all of its own plan is done.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.multiprocessing

from ...errors import UserError
from .. import asking, selection, training
from ..batches import Prepared, prepare
from ..measures import Measure
from ..plan import Job, Variant
from ..plan import Protocol as StudyProtocol
from ..sources import Shipment, explained, place_of, printable_error
from ..store import FAILED, FINISHED, SELECTION, Epoch, Selection, Store

_POLL_SECONDS = 0.3  # how often to look what other invocations have done
_DEATHS_ALLOWED = 3  # of workers in a row over one job, without an epoch finished between


class Observer(Protocol):
    """Is told what happens, for a progress display."""

    def started(self, worker: int, job_id: int, job: Job) -> None: ...
    def epoch(self, worker: int, job_id: int, job: Job, epoch: Epoch) -> None: ...
    def ended(self, job_id: int, job: Job) -> None:
        """By this invocation or by another."""

    def died(self, worker: int, job: Job | None) -> None: ...


@dataclass
class Outcome:
    """How the plan ended. ``given_up`` are jobs whose workers kept dying: they stay in the plan."""

    finished: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)


@dataclass
class _Worker:
    index: int
    process: BaseProcess
    pipe: Connection
    job_id: int | None = None  # of the job it is doing
    ready: bool = False


@dataclass(frozen=True)
class Work:
    """What a worker process needs to know.

    Attributes:
        shipments: The protocols by their keys.
        data: Of each protocol; None where every process prepares its own.
        threads: torch threads in each process.
        device: Where to train.
    """

    shipments: Mapping[str, Shipment]
    data: Mapping[str, Prepared | None]
    threads: int = 1
    device: str = "cpu"


def run(store: Store, jobs: Mapping[int, Job], work: Work, observer: Observer, *, workers: int) -> Outcome:
    """Does all jobs that are not done yet.

    Args:
        store: Where the jobs are planned; workers open it themselves.
        jobs: By their ids in the store, in the order in which to do them.
        work: What they need.
        observer: Is told what happens.
        workers: Number of processes.
    """
    for data in work.data.values():
        if data is not None:
            data.share()
    return _Run(store, jobs, work, observer).all(workers)


def run_here(
    store: Store,
    jobs: Mapping[int, Job],
    work: Work,
    observer: Observer,
    protocols: Mapping[str, StudyProtocol],
) -> Outcome:
    """Does all jobs in this process, for a debugger, or where no other process can be had."""
    plan = _Run(store, jobs, work, observer)
    current: list[int] = []

    def tell(kind: str, *content: Any) -> None:
        if kind == "started":
            observer.started(0, current[0], jobs[current[0]])
        elif kind == "epoch":
            observer.epoch(0, current[0], jobs[current[0]], content[0])

    bench = Bench(store, work, tell, protocols)
    threads = torch.get_num_threads()
    torch.set_num_threads(work.threads)
    torch.set_flush_denormal(True)
    try:
        while True:
            plan.collect()
            if not plan.pending:
                return plan.outcome
            task = plan.next()
            if task is None:
                time.sleep(_POLL_SECONDS)
                continue
            job_id, variant = task
            job, current[:] = jobs[job_id], [job_id]
            if bench.do(job_id, job.protocol.key, job.stage, job.method, job.run, str(variant)) == "busy":
                plan.busy_until[job_id] = time.monotonic() + _POLL_SECONDS
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


class _Run:
    def __init__(self, store: Store, jobs: Mapping[int, Job], work: Work, observer: Observer) -> None:
        self.store, self.jobs, self.work, self.observer = store, jobs, work, observer
        self.pending = dict.fromkeys(jobs)  # an ordered set
        self.outcome = Outcome()
        self.workers: list[_Worker] = []
        self.deaths: dict[int | None, int] = {}
        self.busy_until: dict[int, float] = {}  # jobs that another invocation holds
        self.selected: dict[str, dict[str, Selection]] = {}

    def all(self, workers: int) -> Outcome:
        self.collect()
        try:
            for index in range(min(workers, len(self.pending))):
                self.workers.append(self._start(index))
            while self.pending:
                self._hand_out()
                self._listen()
        finally:
            self._stop()
        return self.outcome

    # ---- what to do

    def collect(self) -> None:
        """Takes what is done, by whomever, off the list; decides selections that can be decided."""
        statuses = self.store.statuses()
        doing = {worker.job_id for worker in self.workers}
        for job_id in list(self.pending):
            if statuses[job_id] in (FINISHED, FAILED) and job_id not in doing:
                del self.pending[job_id]
                self.busy_until.pop(job_id, None)
                kind = self.outcome.finished if statuses[job_id] == FINISHED else self.outcome.failed
                kind.append(job_id)
                self.observer.ended(job_id, self.jobs[job_id])
        for job_id in list(self.pending):
            self._decide_for(job_id)

    def _decide_for(self, job_id: int) -> None:
        job = self.jobs[job_id]
        label, protocol = job.waits_for, job.protocol
        if label is None:
            return
        if protocol.key not in self.selected:
            self.selected[protocol.key] = self.store.selections(protocol.key)
        decided = self.selected[protocol.key]
        if label not in decided:
            if any(
                self.jobs[other].stage == SELECTION and self.jobs[other].protocol.key == protocol.key
                for other in self.pending
            ):
                return  # cheap: nothing can be decided yet
            decision = selection.decide(
                protocol.key,
                label,
                (protocol.study.candidates or {})[label],
                protocol.selection_runs,
                self.store.jobs(protocol=protocol.key),
                measure=Measure.of(protocol.description),
            )
            if decision is None:
                return
            self.store.select(decision)
            self.selected[protocol.key] = decided = self.store.selections(protocol.key)
        if decided[label].variant is None and self.store.locks.acquire(job_id):
            self.store.fail(job_id, f"no parameters could be selected: {decided[label].reason}")
            self.store.locks.release(job_id)

    def next(self) -> tuple[int, Variant] | None:
        now = time.monotonic()
        doing = {worker.job_id for worker in self.workers}
        for job_id in self.pending:
            if job_id in doing or self.busy_until.get(job_id, 0) > now:
                continue
            job = self.jobs[job_id]
            chosen = selection.chosen(self.selected.get(job.protocol.key, {}))
            if job.waits_for is None or job.waits_for in chosen:
                return job_id, job.variant(chosen)
        return None

    def _hand_out(self) -> None:
        for worker in self.workers:
            if not worker.ready or worker.job_id is not None:
                continue
            task = self.next()
            if task is None:
                return
            job_id, variant = task
            worker.job_id = job_id
            job = self.jobs[job_id]
            try:
                worker.pipe.send((job_id, job.protocol.key, job.stage, job.method, job.run, str(variant)))
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died; _listen finds out

    # ---- workers

    def _start(self, index: int) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.store.path.absolute(), self.work)
        process = context.Process(target=_work, args=arguments, daemon=True, name=f"contdrop worker {index + 1}")
        # A worker inherits this, so Ctrl-C, which goes to all, does not disturb it while it starts either.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _no_main():
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        return _Worker(index, process, ours)

    def _listen(self) -> None:
        """Waits for messages and deaths, at most a moment; then looks at the store."""
        events = wait([worker.pipe for worker in self.workers], _POLL_SECONDS)
        look = not events
        for worker in [worker for worker in self.workers if worker.pipe in events]:
            try:
                kind, *content = worker.pipe.recv()
            except (EOFError, OSError):  # it has ended, perhaps in the middle of a message
                self._replace(worker)
                look = True
            else:
                look |= self._receive(worker, kind, content)
        if look:
            self.collect()

    def _receive(self, worker: _Worker, kind: str, content: list[Any]) -> bool:
        """Handles one message; says whether the store should be looked at."""
        job_id = worker.job_id
        if kind == "ready":
            worker.ready = True
        elif kind == "error":
            raise UserError(content[0])
        elif job_id is None:
            return False
        elif kind == "started":
            self.observer.started(worker.index, job_id, self.jobs[job_id])
        elif kind == "epoch":
            self.deaths.pop(job_id, None)
            self.observer.epoch(worker.index, job_id, self.jobs[job_id], content[0])
        elif kind == "busy":
            worker.job_id = None
            self.busy_until[job_id] = time.monotonic() + _POLL_SECONDS
        elif kind == "ended":
            worker.job_id = None
            return True
        return False

    def _replace(self, worker: _Worker) -> None:
        """A worker is dead: another takes its place, and resumes its job."""
        worker.process.join()
        worker.pipe.close()
        job_id = worker.job_id
        self.observer.died(worker.index, None if job_id is None else self.jobs[job_id])
        self.deaths[job_id] = self.deaths.get(job_id, 0) + 1
        if self.deaths[job_id] >= _DEATHS_ALLOWED:
            if job_id is None:
                raise RuntimeError(f"worker processes end at once, with exit code {worker.process.exitcode}")
            self.pending.pop(job_id, None)
            self.outcome.given_up.append(job_id)
        self.workers[self.workers.index(worker)] = self._start(worker.index)

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.kill()  # at any moment: the store holds whole epochs only
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """A new process would execute the user's script once more; it needs nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(pipe: Connection, path: Path, work: Work) -> None:
    """What a worker process does until it is told to end, or its main process ends."""
    torch.set_num_threads(work.threads)
    # Tiny numbers would take a hundred times as long to multiply, and mean nothing here.
    torch.set_flush_denormal(True)
    tasks: queue.Queue[tuple[int, str, str, str, int, str]] = queue.Queue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    try:
        with Store(path) as store:
            bench = Bench(store, work, lambda *message: _tell(pipe, *message))
            _tell(pipe, "ready")
            while True:
                job_id, key, stage, method, run, variant = tasks.get()
                _tell(pipe, bench.do(job_id, key, stage, method, run, variant))
    except UserError as error:
        _tell(pipe, "error", str(error))


def _tell(pipe: Connection, *message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)  # the main process is gone, which says nothing about the job


def _receive_tasks(pipe: Connection, tasks: queue.Queue[Any]) -> None:
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)  # the main process is gone; whoever comes next resumes


class Bench:
    """Where jobs are done, one after the other: the protocols and data of one process."""

    def __init__(
        self,
        store: Store,
        work: Work,
        tell: Callable[..., None],
        protocols: Mapping[str, StudyProtocol] | None = None,
    ) -> None:
        self.store, self.work, self.tell = store, work, tell
        self._protocols = dict(protocols or {})
        self._data: dict[str, Prepared] = {}

    def do(self, job_id: int, key: str, stage: str, method: str, run: int, variant: str) -> str:
        """Does a job if nobody else has it; says what became of it."""
        store = self.store
        if not store.locks.acquire(job_id):
            return "busy"
        try:
            if store.statuses()[job_id] in (FINISHED, FAILED):  # another invocation was quicker
                return "ended"
            self.tell("started")
            self._train(job_id, Job(self._protocol(key), stage, method, run), Variant.parse(variant))
        except UserError:
            raise
        except Exception as error:  # a run that cannot be done is recorded with its reason, not lost
            store.fail(job_id, f"{printable_error(error)}{place_of(error)}")
        finally:
            store.locks.release(job_id)
        return "ended"

    def _train(self, job_id: int, job: Job, variant: Variant) -> None:
        def after_epoch(epoch: Epoch) -> None:
            self.tell("epoch", epoch)

        if job.protocol.study.run is not None:
            asking.do(self.store, job_id, job, variant, after_epoch)
            return
        prepared = self._prepared(job.protocol)
        training.run(self.store, job_id, job, variant, prepared, device=self.work.device, after_epoch=after_epoch)

    def _protocol(self, key: str) -> StudyProtocol:
        if key not in self._protocols:
            self._protocols[key] = self.work.shipments[key].unpack()
        return self._protocols[key]

    def _prepared(self, protocol: StudyProtocol) -> Prepared:
        key = protocol.key
        if key not in self._data:
            shared = self.work.data.get(key)
            if shared is None:
                assert protocol.study.data is not None
                with explained(f"study {protocol.study.name!r}: data()"):
                    shared = prepare(protocol.study.data(), task=protocol.study.task)
            self._data[key] = shared
        return self._data[key]
