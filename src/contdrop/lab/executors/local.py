"""Jobs in worker processes on this machine.

One torch thread per worker: small networks gain little from more, and on two cores two workers of one thread do more
than one worker of two. The main process never trains; it hands out jobs, one pipe per worker, so a worker that is
killed in the middle of a message spoils nobody else's. The data are loaded once, into memory that all workers share.

Several invocations may work on one store at a time: a job is done by whoever gets its lock, and each invocation waits
for what others are doing until all of its own plan is done.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.multiprocessing

from ...errors import UserError
from .. import selection, training
from ..experiment import Job
from ..methods import Method
from ..store import FAILED, FINISHED, SELECTION, Epoch, Selection, Store
from ..training import Images

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


def run(
    store: Store,
    jobs: Mapping[int, Job],
    images: Mapping[str, Images],
    observer: Observer,
    *,
    workers: int,
    threads: int = 1,
) -> Outcome:
    """Does all jobs that are not done yet.

    Args:
        store: Where the jobs are planned; workers open it themselves.
        jobs: By their ids in the store, in the order in which to do them.
        images: The data sets by name.
        observer: Is told what happens.
        workers: Number of processes.
        threads: torch threads in each.
    """
    for data in images.values():
        data.share()
    return _Run(store, jobs, images, observer, threads).all(workers)


class _Run:
    def __init__(
        self, store: Store, jobs: Mapping[int, Job], images: Mapping[str, Images], observer: Observer, threads: int
    ) -> None:
        self.store, self.jobs, self.images, self.observer, self.threads = store, jobs, images, observer, threads
        self.pending = dict.fromkeys(jobs)  # an ordered set
        self.outcome = Outcome()
        self.workers: list[_Worker] = []
        self.deaths: dict[int | None, int] = {}
        self.busy_until: dict[int, float] = {}  # jobs that another invocation holds
        self.selected: dict[str, dict[str, Selection]] = {}

    def all(self, workers: int) -> Outcome:
        self._collect()
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

    def _collect(self) -> None:
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
                protocol.experiment.candidates[label],
                protocol.selection_runs,
                self.store.jobs(protocol=protocol.key),
            )
            if decision is None:
                return
            self.store.select(decision)
            self.selected[protocol.key] = decided = self.store.selections(protocol.key)
        if decided[label].variant is None and self.store.locks.acquire(job_id):
            self.store.fail(job_id, f"no parameters could be selected: {decided[label].reason}")
            self.store.locks.release(job_id)

    def _next(self) -> tuple[int, Method] | None:
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
            task = self._next()
            if task is None:
                return
            job_id, method = task
            worker.job_id = job_id
            try:
                worker.pipe.send((job_id, self.jobs[job_id], method))
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died; _listen finds out

    # ---- workers

    def _start(self, index: int) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.store.path.absolute(), dict(self.images), self.threads)
        process = context.Process(target=_work, args=arguments, daemon=True, name=f"contdrop worker {index + 1}")
        # A worker inherits this, so Ctrl-C, which goes to all, does not disturb it while it starts either.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
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
            self._collect()

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


def _work(pipe: Connection, path: Path, images: dict[str, Images], threads: int) -> None:
    """What a worker process does until it is told to end, or its main process ends."""
    torch.set_num_threads(threads)
    # Tiny numbers would take a hundred times as long to multiply, and mean nothing here.
    torch.set_flush_denormal(True)
    tasks: queue.Queue[tuple[int, Job, Method]] = queue.Queue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    try:
        with Store(path) as store:
            _tell(pipe, "ready")
            while True:
                job_id, job, method = tasks.get()
                _tell(pipe, _do(store, job_id, job, method, images[job.protocol.experiment.dataset], pipe))
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


def _do(store: Store, job_id: int, job: Job, method: Method, images: Images, pipe: Connection) -> str:
    if not store.locks.acquire(job_id):
        return "busy"
    try:
        if store.statuses()[job_id] in (FINISHED, FAILED):  # another invocation was quicker
            return "ended"
        _tell(pipe, "started")
        training.run(store, job_id, job, method, images, after_epoch=lambda epoch: _tell(pipe, "epoch", epoch))
    except UserError:
        raise
    except Exception as error:  # a run that cannot be done is recorded with its reason, not lost
        store.fail(job_id, f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        store.locks.release(job_id)
    return "ended"
