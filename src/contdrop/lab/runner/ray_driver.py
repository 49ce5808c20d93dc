"""Driver of a Ray cluster: hands out jobs and writes to the store what they send back.

It holds the lock of every job that it has handed out. A task or a node may be lost at any moment; its job then resumes
from the last checkpoint that arrived.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import UserError
from ..store.schema import FAILED, FINISHED, processor
from ..store.writer import Store, TakenError
from ..study.plan import PlannedJob
from ..training.distributed import LostError
from .queue import POLL_SECONDS, JobQueue, Observer, PlanOutcome, Task, WorkerConfig
from .ray_cluster import Cluster, RemoteStore, packed

_LOOK_SECONDS = 2.0  # between two looks for nodes that came or went


@dataclass
class _Slot:
    """Job that runs on the cluster, and the stream of its messages."""

    index: int
    task: Task
    stream: Any
    node: str | None


def run(
    store: Store, jobs: Mapping[int, PlannedJob], config: WorkerConfig, observer: Observer, *, cluster: Cluster
) -> PlanOutcome:
    """Run all unfinished jobs in order on the cluster."""
    return _Driver(JobQueue(store, jobs, observer), config, cluster).run()


class _Driver:
    def __init__(self, todo: JobQueue, config: WorkerConfig, cluster: Cluster) -> None:
        self.todo, self.store, self.cluster = todo, todo.store, cluster
        self.token = uuid.uuid4().hex  # of this invocation; a process of Ray may have served another
        self.config = self.cluster.put(replace(config, data={}))
        self.data = {key: self.cluster.put(packed(data)) for key, data in config.data.items()}
        self.slots: dict[int, _Slot] = {}
        self._looked, self._capacity = 0.0, 0

    def run(self) -> PlanOutcome:
        self.todo.collect()
        try:
            while self.todo.pending:
                self._hand_out()
                self._listen()
        finally:
            for slot in list(self.slots.values()):
                self._free(slot, cancel=True)
        return self.todo.outcome

    @property
    def _doing(self) -> set[int | None]:
        return {slot.task.job_id for slot in self.slots.values()}

    def _hand_out(self) -> None:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked, self._capacity = time.monotonic(), self.cluster.processes
        while len(self.slots) < self._capacity:
            task = self.todo.next(self._doing)
            if task is None:
                return
            if not self.store.locks.acquire(task.job_id):
                self.todo.busy(task.job_id)
            elif self.store.status(task.job_id) in (FINISHED, FAILED):  # another invocation ran it
                self.store.locks.release(task.job_id)
                self.todo.busy(task.job_id)
            else:
                self._submit(task)

    def _submit(self, task: Task) -> None:
        index = next(number for number in range(len(self.slots) + 1) if number not in self.slots)
        node = self.cluster.choose([slot.node for slot in self.slots.values()])
        data, saved = self.data.get(task.protocol), self.store.resume(task.job_id)
        stream = self.cluster.submit(
            node,
            self.token,
            [self.config],  # in a list, references are not resolved, as a process may have their content already
            [] if data is None else [data],
            task,
            saved and (saved[0], bytes(saved[1])),
            str(self.store.path.absolute()),
        )
        self.slots[index] = _Slot(index, task, stream, node)

    def _listen(self) -> None:
        """Wait at most ``POLL_SECONDS`` for messages and deaths, then look at the store."""
        streams = {slot.stream: slot for slot in self.slots.values()}
        ready = self.cluster.wait(list(streams), POLL_SECONDS)
        if sum([self._receive(streams[stream]) for stream in ready]) or not ready:
            self.todo.collect(self._doing)

    def _receive(self, slot: _Slot) -> bool:
        """Handle the messages of a task; return True if the store should be looked at."""
        job_id, messages = slot.task.job_id, None
        try:
            messages = self.cluster.receive(slot.stream)
            if messages is not None and all(self._apply(slot, *message) for message in messages):
                return False
        except TakenError:
            pass  # the invocation that has it writes the same
        except LostError as error:
            self._free(slot, cancel=True)
            self.todo.died(slot.index, job_id, str(error))
            self._looked = 0.0
            return True
        self._free(slot, cancel=messages is not None)
        if messages is None and self.store.status(job_id) not in (FINISHED, FAILED):
            self.todo.died(slot.index, job_id, "its task ended without a result")
        return True

    def _apply(self, slot: _Slot, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Apply a message of a job; return False if the job must stop."""
        job_id = slot.task.job_id
        if name == "error":
            raise UserError(arguments[0])
        if name == "lost":
            raise LostError(*arguments)
        if name == "begin":
            return self._begin(job_id, *arguments, **named)
        if name in RemoteStore.FORWARDED:
            getattr(self.store, name)(job_id, *arguments, **named)
        else:
            self.todo.reported(slot.index, job_id, name, *arguments)
        return True

    def _begin(self, job_id: int, node: str, **named: Any) -> bool:
        if processor(named["machine"]) != self.cluster.kind:  # a node that joined later
            self.cluster.refused.add(node)
            self._looked = 0.0
            if not self.cluster.slots():
                raise UserError(
                    f"ray: expected a node of processor kind {self.cluster.kind}; got none; start one again"
                )
            return False
        mismatch = self.store.begin(job_id, **named)
        if mismatch:
            self.store.fail(job_id, mismatch)
        return mismatch is None

    def _free(self, slot: _Slot, *, cancel: bool) -> None:
        if cancel:
            self.cluster.cancel(slot.stream)
        del self.slots[slot.index]
        self.store.locks.release(slot.task.job_id)
