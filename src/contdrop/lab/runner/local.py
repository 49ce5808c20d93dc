"""Executor that runs jobs in worker processes on this machine.

The main process never trains. It hands out jobs over one pipe per worker, so that a worker that is killed in the middle
of a message disturbs no other. Arrays are loaded once, into memory that all workers share; each worker opens other data
itself. Workers have one torch thread by default: small networks gain little from more.

Several invocations may work on one store at a time. The one that gets a job's lock runs the job, and each invocation
waits until all jobs of its own plan are done.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from ...errors import UserError
from ..data.loaders import children_allowed
from ..store.writer import Store
from ..study.plan import StudyPlan
from ..training.environment import set_up_process
from .queue import (
    NO_MEMORY,
    POLL_SECONDS,
    JobQueue,
    PlanOutcome,
    Task,
    WorkerConfig,
    WorkerContext,
)


@dataclass
class _Worker:
    index: int
    process: BaseProcess
    pipe: Connection
    job_id: int | None = None  # the job that it runs
    ready: bool = False


def run(todo: JobQueue, config: WorkerConfig, *, workers: int) -> PlanOutcome:
    """Run all jobs of a queue in order in ``workers`` processes, which open the store themselves."""
    for data in config.data.values():
        data.share()
    return _Pool(todo, config).run(workers)


def run_here(todo: JobQueue, config: WorkerConfig, protocols: Mapping[str, StudyPlan]) -> PlanOutcome:
    """Run all jobs of a queue in this process, for a debugger or where no other process can be started."""
    context = WorkerContext(config, protocols)
    threads = torch.get_num_threads()
    set_up_process(config.threads)
    try:
        while True:
            todo.collect()
            if not todo.pending:
                return todo.outcome
            task = todo.next()
            if task is None:
                time.sleep(POLL_SECONDS)
                continue
            try:
                if context.claim_and_do(todo.store, task, functools.partial(todo.reported, 0, task.job_id)) == "busy":
                    todo.busy(task.job_id)
            except MemoryError as error:
                todo.died(0, task.job_id, str(error))
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


class _Pool:
    """Worker processes of one invocation."""

    def __init__(self, todo: JobQueue, config: WorkerConfig) -> None:
        self.todo, self.config = todo, config
        self.workers: list[_Worker] = []

    def run(self, workers: int) -> PlanOutcome:
        self.todo.collect()
        try:
            for index in range(min(workers, len(self.todo.pending))):
                self.workers.append(self._start(index))
            while self.todo.pending:
                self._hand_out()
                self._listen()
        finally:
            self._stop()
        return self.todo.outcome

    @property
    def _doing(self) -> set[int | None]:
        return {worker.job_id for worker in self.workers}

    def _hand_out(self) -> None:
        for worker in self.workers:
            if not worker.ready or worker.job_id is not None:
                continue
            task = self.todo.next(self._doing)
            if task is None:
                return
            worker.job_id = task.job_id
            try:
                worker.pipe.send(task)
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died, which _listen notices

    def _start(self, index: int) -> _Worker:
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.todo.store.path.absolute(), self.config)
        process = context.Process(target=_run_worker, args=arguments, daemon=True, name=f"contdrop worker {index + 1}")
        _start_process(process)
        theirs.close()
        return _Worker(index, process, ours)

    def _listen(self) -> None:
        """Wait at most ``POLL_SECONDS`` for messages and deaths, then look at the store."""
        events = wait([worker.pipe for worker in self.workers], POLL_SECONDS)
        look = not events
        for worker in [worker for worker in self.workers if worker.pipe in events]:
            try:
                kind, *content = worker.pipe.recv()
            except (EOFError, OSError):  # it ended, perhaps in the middle of a message
                self._replace(worker)
                look = True
            else:
                look |= self._receive(worker, kind, content)
        if look:
            self.todo.collect(self._doing)

    def _receive(self, worker: _Worker, kind: str, content: list[Any]) -> bool:
        """Handle one message; return True if the store should be looked at."""
        job_id = worker.job_id
        if kind == "ready":
            worker.ready = True
            self.todo.ready()
        elif kind == "error":
            raise UserError(content[0])
        elif job_id is None:
            return False
        elif kind == "busy":
            worker.job_id = None
            self.todo.busy(job_id)
        elif kind == "ended":
            worker.job_id = None
            return True
        else:
            self.todo.reported(worker.index, job_id, kind, *content)
        return False

    def _replace(self, worker: _Worker) -> None:
        """Start a process in place of a dead worker's; the job is resumed."""
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode
        how = "out of memory" if code == NO_MEMORY else f"exit code {code}"
        idle = worker.ready and worker.job_id is None
        self.todo.died(worker.index, worker.job_id, how, idle=idle)
        self.workers[self.workers.index(worker)] = self._start(worker.index)

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.kill()  # at any moment, since the store holds complete epochs only
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()


def _start_process(process: BaseProcess) -> None:
    """Start a process that Ctrl-C, which is sent to the whole group, never interrupts."""
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    sys.modules["__main__"] = types.ModuleType("__main__")  # else the new process would execute the user's script
    try:
        with children_allowed():
            process.start()
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_worker(pipe: Connection, path: Path, config: WorkerConfig) -> None:
    """Run jobs in a worker process until its main process kills it or ends."""
    set_up_process(config.threads)
    tasks: queue.Queue[Task] = queue.Queue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    try:
        with Store(path) as store:
            context = WorkerContext(config)
            _send(pipe, "ready")
            while True:
                _send(pipe, context.claim_and_do(store, tasks.get(), lambda *message: _send(pipe, *message)))
    except UserError as error:
        _send(pipe, "error", str(error))
    except MemoryError:
        os._exit(NO_MEMORY)


def _send(pipe: Connection, *message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)  # the main process is gone


def _receive_tasks(pipe: Connection, tasks: queue.Queue[Any]) -> None:
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)  # the main process is gone; the next invocation resumes
