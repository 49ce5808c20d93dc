"""Jobs in worker processes on this machine.

One torch thread per worker: small networks gain little from more, and on two cores two workers of one thread do more
than one worker of two. The main process never trains; it hands out jobs, one pipe per worker, so a worker that is
killed in the middle of a message spoils nobody else's. Arrays are loaded once, into memory that all workers share;
other data each worker opens itself.

Several invocations may work on one store at a time: a job is done by whoever gets its lock, and each invocation waits
for what others are doing until all of its own plan is done.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from ...errors import UserError
from ..store.writer import Store
from ..study.plan import PlannedJob, StudyPlan
from ..training.distributed import LostError
from . import processes
from .queue import (
    NO_MEMORY,
    POLL_SECONDS,
    JobQueue,
    Observer,
    PlanOutcome,
    Task,
    WorkerConfig,
    WorkerContext,
    set_up_process,
)


@dataclass
class _Worker:
    index: int
    process: BaseProcess
    pipe: Connection
    job_id: int | None = None  # of the job it is doing
    ready: bool = False


def run(
    store: Store, jobs: Mapping[int, PlannedJob], work: WorkerConfig, observer: Observer, *, workers: int
) -> PlanOutcome:
    """Does all jobs that are not done yet, in their order, by so many processes, which open the store themselves."""
    for data in work.data.values():
        if data is not None:
            data.share()
    return _Pool(JobQueue(store, jobs, observer), work).all(workers)


def run_here(
    store: Store,
    jobs: Mapping[int, PlannedJob],
    work: WorkerConfig,
    observer: Observer,
    protocols: Mapping[str, StudyPlan],
) -> PlanOutcome:
    """Does all jobs in this process, for a debugger, or where no other process can be had."""
    agenda, bench = JobQueue(store, jobs, observer), WorkerContext(work, protocols)
    threads = torch.get_num_threads()
    set_up_process(work)
    try:
        while True:
            agenda.collect()
            if not agenda.pending:
                return agenda.outcome
            task = agenda.next()
            if task is None:
                time.sleep(POLL_SECONDS)
            elif _do_here(bench, agenda, task) == "busy":
                agenda.busy(task.job_id)
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def _do_here(bench: WorkerContext, agenda: JobQueue, task: Task) -> str:
    try:
        return bench.claim_and_do(agenda.store, task, functools.partial(agenda.told, 0, task.job_id))
    except (MemoryError, LostError) as error:
        agenda.died(0, task.job_id, str(error))
        return "ended"


class _Pool:
    def __init__(self, agenda: JobQueue, work: WorkerConfig) -> None:
        self.agenda, self.work = agenda, work
        self.workers: list[_Worker] = []

    def all(self, workers: int) -> PlanOutcome:
        self.agenda.collect()
        try:
            for index in range(min(workers, len(self.agenda.pending))):
                self.workers.append(self._start(index))
            while self.agenda.pending:
                self._hand_out()
                self._listen()
        finally:
            self._stop()
        return self.agenda.outcome

    @property
    def _doing(self) -> set[int | None]:
        return {worker.job_id for worker in self.workers}

    def _hand_out(self) -> None:
        for worker in self.workers:
            if not worker.ready or worker.job_id is not None:
                continue
            task = self.agenda.next(self._doing)
            if task is None:
                return
            worker.job_id = task.job_id
            try:
                worker.pipe.send(task)
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died; _listen finds out

    def _start(self, index: int) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.agenda.store.path.absolute(), self.work)
        process = context.Process(target=_work, args=arguments, daemon=True, name=f"contdrop worker {index + 1}")
        processes.begin(process)
        theirs.close()
        return _Worker(index, process, ours)

    def _listen(self) -> None:
        """Waits for messages and deaths, at most a moment; then looks at the store."""
        events = wait([worker.pipe for worker in self.workers], POLL_SECONDS)
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
            self.agenda.collect(self._doing)

    def _receive(self, worker: _Worker, kind: str, content: list[Any]) -> bool:
        """Handles one message; says whether the store should be looked at."""
        job_id = worker.job_id
        if kind == "ready":
            worker.ready = True
            self.agenda.ready()
        elif kind == "error":
            raise UserError(content[0])
        elif job_id is None:
            return False
        elif kind == "busy":
            worker.job_id = None
            self.agenda.busy(job_id)
        elif kind == "ended":
            worker.job_id = None
            return True
        else:
            self.agenda.told(worker.index, job_id, kind, *content)
        return False

    def _replace(self, worker: _Worker) -> None:
        """A worker is dead: another takes its place, and resumes its job."""
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode
        how = "out of memory" if code == NO_MEMORY else f"exit code {code}"
        idle = worker.ready and worker.job_id is None
        self.agenda.died(worker.index, worker.job_id, how, idle=idle)
        self.workers[self.workers.index(worker)] = self._start(worker.index)

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.kill()  # at any moment: the store holds whole epochs only
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()


def _work(pipe: Connection, path: Path, work: WorkerConfig) -> None:
    """What a worker process does until it is told to end, or its main process ends."""
    set_up_process(work)
    tasks: queue.Queue[Task] = queue.Queue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    try:
        with Store(path) as store:
            bench = WorkerContext(work)
            _tell(pipe, "ready")
            while True:
                _tell(pipe, bench.claim_and_do(store, tasks.get(), lambda *message: _tell(pipe, *message)))
    except UserError as error:
        _tell(pipe, "error", str(error))
    except MemoryError:
        os._exit(NO_MEMORY)
    except LostError:
        os._exit(1)


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
