"""Ray executor: jobs as tasks of a cluster, or of Ray on this machine, which then listens on loopback only.

A task streams what its job writes, in order, to the driver, which alone writes the store and holds the locks of jobs
that it has handed out. Ray's own retries are off: they would restart a job from its first epoch, not from the last
checkpoint that arrived. Data are put into Ray's object store, of which every node has one copy that its processes map.
"""

from __future__ import annotations

import collections
import contextlib
import io
import logging
import os
import pathlib
import pickle
import queue
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..data.data import PreparedData
from ..extensions import DATA_VARIABLE
from ..store.blobs import Buffer
from ..store.schema import FAILED, FINISHED, Epoch, processor
from ..store.writer import TakenError
from ..study.user_errors import printable_error
from ..training.environment import machine, set_up_process, versions
from .queue import POLL_SECONDS, JobQueue, PlanOutcome, Task, WorkerConfig, WorkerContext

# Environment of a Ray that is started here, which reads some of it when it is imported.
_HERE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system, this makes it listen on loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else its workers wait for all other processes
}

_PROBE_SECONDS = 120.0  # a node without an answer is left out until it runs a job
_LOOK_SECONDS = 2.0  # between two looks for nodes that came or went
_UNITS = 10_000  # per processor or GPU, as Ray counts
_Message = list[Any]  # the name of a method of the store or of an event, and its arguments


class LostError(Exception):
    """Loss of a worker that runs a job, or of its node."""


@dataclass(frozen=True)
class RayResources:
    """Address of a Ray cluster, and what to ask of it.

    Attributes:
        address: Of the cluster; None starts Ray on this machine.
        cpus: Processors of each job; one for each thread if None.
        gpus: GPUs of each job.
        workers: Largest number of jobs at a time; no limit if None.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float = 0.0
    workers: int | None = None

    def __post_init__(self) -> None:
        for option, value in (("--cpus", self.cpus), ("--gpus", self.gpus)):
            if value and not 1 / _UNITS <= value < float("inf"):
                raise UserError(
                    f"{option}: expected a number from 0, at least {1 / _UNITS} if any, such as 0.25; got {value}"
                )
        if self.cpus == 0 and not self.gpus:  # nothing would limit how many jobs begin at once
            raise UserError("--cpus: expected more than 0, or --gpus with it; got 0")


def _units(amount: float) -> int:
    """Return an amount in Ray's units: 1 // 0.2 is 4, but five jobs of 0.2 processors fit on one."""
    return round(amount * _UNITS)


class Cluster:
    """Connection to Ray, for jobs with ``threads`` each; a context manager."""

    def __init__(self, resources: RayResources, *, threads: int, device: str) -> None:
        self.resources, self.threads, self.device = resources, threads, device
        self.ray = _import(starts_here=resources.address is None)
        cpus = threads if resources.cpus is None else resources.cpus
        self.options = {"num_cpus": cpus, "num_gpus": resources.gpus, "max_retries": 0}
        self._owned = not self.ray.is_initialized()
        self.kind = ""  # of processor
        self.machine: dict[str, Any] = {}
        self.refused: set[str] = set()  # nodes of another kind

    def __enter__(self) -> Cluster:
        if self._owned:
            self._connect()
        try:
            self._probe()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.ray.shutdown()

    def _connect(self) -> None:
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        address = self.resources.address
        try:
            if address is not None:
                self.ray.init(address=address, **quiet)
                return
            cpus = -(-(self.resources.workers or 1) * _units(self.options["num_cpus"]) // _UNITS)
            gpus = {"num_gpus": torch.cuda.device_count()} if self.resources.gpus else {}
            self.ray.init(address="local", num_cpus=max(1, cpus), include_dashboard=False, **gpus, **quiet)
        except Exception as error:  # Exception itself if a busy machine takes too long to start Ray
            raise UserError(
                f"--address: cannot reach Ray at {address or 'this machine'} ({printable_error(error)}); start it by: "
                "ray start --head"
            ) from error
        if not all(node["NodeManagerAddress"].startswith("127.") for node in self.nodes()):
            self.ray.shutdown()
            raise UserError(
                "ray: expected it to listen on loopback only; got a network address, as ray was imported before "
                "contdrop; restart Python, and import contdrop first"
            )

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def slots(self) -> dict[str, int]:
        """Return the number of jobs that each node of the chosen kind can run at a time."""
        wanted = {"CPU": _units(self.options["num_cpus"]), "GPU": _units(self.options["num_gpus"])}
        nodes = [node for node in self.nodes() if node["NodeID"] not in self.refused]
        return {
            node["NodeID"]: min(_units(node["Resources"].get(name, 0)) // each for name, each in wanted.items() if each)
            for node in nodes
        }

    @property
    def processes(self) -> int:
        """Number of jobs that run at a time."""
        return min(sum(self.slots().values()), self.resources.workers or 2**31)

    def _probe(self) -> None:
        """Ask every node for its processor, and choose the kind with most slots, as the last bits depend on it."""
        if not self.processes:
            raise UserError(
                f"--cpus, --gpus: expected a node of Ray with {self.options['num_cpus']:g} processors and "
                f"{self.options['num_gpus']:g} GPUs for a job; got none; ask for less"
            )
        about = self._ask([node for node, slots in self.slots().items() if slots])
        kinds, slots = {node: processor(found) for node, found in about.items()}, self.slots()
        totals: collections.Counter[str] = collections.Counter()
        for node, kind in kinds.items():
            totals[kind] += slots.get(node, 0)
        self.kind = max(totals, key=lambda kind: totals[kind])
        self.machine = next(about[node] for node, kind in kinds.items() if kind == self.kind)
        self.refused = {node for node, kind in kinds.items() if kind != self.kind}

    def _ask(self, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what nodes say of their processors; those that do not answer in time are left out."""
        task = self.ray.remote(_about)
        options = [{**self.options, "scheduling_strategy": self._on(node)} for node in nodes]
        asked = [task.options(**each).remote(self.threads, self.device) for each in options]
        refs = dict(zip(nodes, asked))
        ready, _ = self.ray.wait(list(refs.values()), num_returns=len(refs), timeout=_PROBE_SECONDS)
        answers = {node: self._answer(node, ref) for node, ref in refs.items() if ref in ready}
        about = {node: found for node, found in answers.items() if found}
        if not about:
            raise UserError(
                f"--address: expected an answer of a node of Ray in {_PROBE_SECONDS:.0f} s; got none; wait until they "
                "are less busy"
            )
        return about

    def _answer(self, node: str, ref: Any) -> dict[str, Any] | None:
        try:
            found, theirs = self.ray.get(ref)
        except self.ray.exceptions.TaskUnschedulableError:
            return None  # the node left after it was listed
        except self.ray.exceptions.RayError as error:
            raise UserError(
                f"--address: node {node[:12]} cannot run jobs ({_cause(error)}); install the same packages there as "
                "here, including contdrop[ray]"
            ) from error
        for name, mine in versions().items():
            if name in ("contdrop", "torch") and theirs[name] != mine:
                raise UserError(
                    f"--address: expected {name} {mine}, as on this machine; got {theirs[name]} on node {node[:12]}; "
                    "install the same version"
                )
        return dict(found)

    def _on(self, node: str) -> Any:
        return self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def choose(self, doing: Sequence[str | None]) -> str | None:
        """Return a node with room if some nodes were refused; None to let Ray choose."""
        slots = self.slots() if self.refused else {}
        return max(slots, key=lambda node: slots[node] - list(doing).count(node), default=None)

    def submit(self, node: str | None, *arguments: Any) -> Any:
        """Start a job, and return the stream of its messages."""
        strategy = self._on(node) if node else "DEFAULT"
        task = self.ray.remote(_do).options(**self.options, scheduling_strategy=strategy, num_returns="streaming")
        return task.remote(*arguments, os.environ.get(DATA_VARIABLE))

    def wait(self, streams: Sequence[Any], seconds: float) -> list[Any]:
        """Return the streams with messages, once there is one, or after ``seconds``."""
        if not streams:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(streams, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:  # all that have some, or a busy stream would keep others waiting
            ready, _ = self.ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        return list(ready)

    def receive(self, stream: Any) -> list[_Message] | None:
        """Return the next messages of a job, or None at its end; raise LostError if its worker or node is gone."""
        try:
            messages: list[_Message] = self.ray.get(next(stream))
        except StopIteration:
            return None
        except self.ray.exceptions.RayTaskError as error:
            raise UserError(f"ray: {_cause(error)}") from error
        except self.ray.exceptions.RayError as error:
            raise LostError(printable_error(error)) from error
        return messages


# ---- driver


@dataclass
class _Slot:
    """Job that runs on the cluster, and the stream of its messages."""

    index: int
    task: Task
    stream: Any
    node: str | None


def run(todo: JobQueue, config: WorkerConfig, cluster: Cluster) -> PlanOutcome:
    """Run all jobs of a queue in order on the cluster."""
    return _Driver(todo, config, cluster).run()


class _Driver:
    def __init__(self, todo: JobQueue, config: WorkerConfig, cluster: Cluster) -> None:
        self.todo, self.store, self.cluster = todo, todo.store, cluster
        self.token = uuid.uuid4().hex  # of this invocation; a process of Ray may have served another
        put = cluster.ray.put
        # In lists, references are not resolved, as a process may have their content already.
        self.config = [put(replace(config, data={}))]
        self.data = {key: [put(packed(data))] for key, data in config.data.items()}
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
        while len(self.slots) < self._capacity and (task := self.todo.next(self._doing)):
            mine = self.store.locks.acquire(task.job_id)
            if mine and self.store.status(task.job_id) not in (FINISHED, FAILED):
                self._submit(task)
                continue
            self.todo.busy(task.job_id)  # another invocation runs or ran it
            if mine:
                self.store.locks.release(task.job_id)

    def _submit(self, task: Task) -> None:
        index = next(number for number in range(len(self.slots) + 1) if number not in self.slots)
        node = self.cluster.choose([slot.node for slot in self.slots.values()])
        saved, path = self.store.resume(task.job_id), str(self.store.path.absolute())
        state, data = saved and (saved[0], bytes(saved[1])), self.data.get(task.protocol, [])
        stream = self.cluster.submit(node, self.token, self.config, data, task, state, path)
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

    def _apply(self, slot: _Slot, name: str, *arguments: Any) -> bool:
        """Apply a message of a job; return False if the job must stop."""
        job_id = slot.task.job_id
        if name == "error":
            raise UserError(arguments[0])
        if name == "lost":
            raise LostError(*arguments)
        if name == "begin":
            return self._begin(job_id, *arguments)
        if name in RemoteStore.FORWARDED:
            getattr(self.store, name)(job_id, *arguments)
        else:
            self.todo.reported(slot.index, job_id, name, *arguments)
        return True

    def _begin(self, job_id: int, node: str, identity: dict[str, Any]) -> bool:
        if processor(identity["machine"]) != self.cluster.kind:  # a node that joined later
            self.cluster.refused.add(node)
            self._looked = 0.0
            if not self.cluster.slots():
                raise UserError(
                    f"ray: expected a node of processor kind {self.cluster.kind}; got none; start one again"
                )
            return False
        mismatch = self.store.begin(job_id, **identity)
        if mismatch:
            self.store.fail(job_id, mismatch)
        return mismatch is None

    def _free(self, slot: _Slot, *, cancel: bool) -> None:
        if cancel:
            with contextlib.suppress(Exception):  # the task may have ended, or Ray may be gone
                self.cluster.ray.cancel(slot.stream, force=True)
        del self.slots[slot.index]
        self.store.locks.release(slot.task.job_id)


# ---- in Ray's processes


class RemoteStore:
    """Destination of a job on a node: messages to the driver, in order."""

    FORWARDED = frozenset({"drop_progress", "progress", "fail", "finish"})

    def __init__(self, saved: tuple[int, Buffer] | None, path: str, node: str) -> None:
        self.messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._saved, self._node = saved, node
        # For files of a user's own loop: the store's directory where the node sees it, else one on the node.
        here = pathlib.Path(path)
        self.path = here if here.parent.is_dir() else pathlib.Path(tempfile.gettempdir()) / here.name

    def send(self, name: str, *arguments: Any) -> None:
        self.messages.put([name, *arguments])

    def begin(self, job: int, **identity: Any) -> str | None:
        """Send the identity of a job; the driver ends the task if something does not match."""
        self.send("begin", self._node, identity)
        return None

    def resume(self, job: int) -> tuple[int, Buffer] | None:
        return self._saved

    def drop_progress(self, job: int) -> None:
        self._saved = None
        self.send("drop_progress")

    def progress(self, job: int, epochs: list[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None) -> None:
        """Send copies of the epochs and of the state, because training changes both before they are on their way."""
        self.send("progress", list(epochs), checkpoint and (checkpoint[0], [b"".join(checkpoint[1])]))

    def fail(self, job: int, *content: Any) -> None:
        self.send("fail", *content)

    def finish(self, job: int, epochs: Any, results: Any, artefacts: Any, weights: Sequence[Buffer] = ()) -> None:
        self.send("finish", epochs, results, artefacts, [b"".join(weights)] if weights else [])


_contexts: dict[str, WorkerContext] = {}  # by token, of the current invocation only


def _do(
    token: str,
    config: list[Any],
    data: list[Any],
    task: Task,
    saved: tuple[int, bytes] | None,
    path: str,
    directory: str | None,
) -> Iterator[list[_Message]]:
    """Run one job in a thread, and yield its messages, which a generator can do from its own thread only."""
    if directory is not None:
        os.environ.setdefault(DATA_VARIABLE, directory)
    ray = _import()
    if token not in _contexts:
        _contexts.clear()
        _contexts[token] = WorkerContext(ray.get(config[0]))
    context = _contexts[token]
    sink = RemoteStore(saved, path, str(ray.get_runtime_context().get_node_id()))
    if data and task.protocol not in context.config.data:
        content, *buffers = ray.get(data[0])
        context.config.data[task.protocol] = pickle.loads(content, buffers=buffers)
    threading.Thread(target=_train, args=(context, task, sink), daemon=True).start()
    messages: list[_Message] = []
    while not messages or messages[-1] != ["done"]:
        messages = [sink.messages.get()]
        while not sink.messages.empty():
            messages.append(sink.messages.get())
        yield messages


def _train(context: WorkerContext, task: Task, sink: RemoteStore) -> None:
    try:
        set_up_process(context.config.threads)  # for this thread
        sink.send("started")
        context.do(sink, task, lambda epoch: sink.send("epoch", epoch))
    except UserError as error:
        sink.send("error", str(error))
    except MemoryError as error:
        sink.send("lost", str(error))
    finally:
        if context.config.device.startswith("cuda"):
            torch.cuda.empty_cache()  # others may share the GPU
        sink.send("done")


def _about(threads: int, device: str) -> tuple[dict[str, Any], dict[str, str]]:
    torch.set_num_threads(threads)
    return machine(device), versions()


def _cause(error: Exception) -> str:
    return printable_error(getattr(error, "cause", None) or error)


def _import(*, starts_here: bool = False) -> Any:
    if starts_here:
        os.environ.update({name: value for name, value in _HERE.items() if name not in os.environ})
    try:
        import ray
    except ImportError as error:
        raise UserError("--executor ray: Ray is not installed; run: pip install 'contdrop[ray]'") from error
    return ray


class _Pickler(pickle.Pickler):
    """Pickler of tensors as arrays."""

    def reducer_override(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            raw = content.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (raw, content.dtype, tuple(content.shape))
        return NotImplemented


def _tensor(raw: np.ndarray, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only, and nothing writes to it
        return torch.from_numpy(raw).view(kind).reshape(shape)


def packed(data: PreparedData) -> list[Any]:
    """Return data as a pickle and its arrays, which Ray's object store hands out without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(data)
    return [file.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
