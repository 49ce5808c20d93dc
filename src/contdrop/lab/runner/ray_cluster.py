"""Jobs as tasks of a Ray cluster, or of Ray on this machine, which then listens on loopback only.

A task streams what its job writes, in order, to the driver (:mod:`.ray_driver`), which alone writes the store. Ray's
own retries are off: they would restart a job from its first epoch. Data are put into Ray's object store, of which every
node has one copy that its processes map without copying.
"""

from __future__ import annotations

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
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..data.data import PreparedData
from ..extensions import DATA_VARIABLE
from ..store.blobs import Buffer
from ..store.schema import Epoch, processor
from ..study.user_errors import printable_error
from ..training.distributed import LostError
from ..training.environment import machine, set_up_process, versions
from ..training.job import NullStore
from .queue import Task, WorkerContext

# Environment of a Ray that is started here, which reads some of it when it is imported.
_HERE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system, this makes it listen on loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else its workers wait for all other processes
}

_PROBE_SECONDS = 120.0  # a node without an answer is left out until it runs a job
_DONE = "done"
_UNITS = 10_000  # per processor or GPU, as Ray counts


@dataclass(frozen=True)
class RayResources:
    """Address of a Ray cluster, and what to ask of it.

    Attributes:
        address: Of the cluster; None starts Ray on this machine.
        cpus: Processors of each job; one for each thread of each device if None.
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
    """Connection to Ray, as a context manager.

    Args:
        resources: RayResources to ask for.
        threads: torch threads of each job.
        device: Where jobs train.
        devices: Processes of each job.
    """

    def __init__(self, resources: RayResources, *, threads: int, device: str, devices: int = 1) -> None:
        self.resources, self.threads, self.device, self.devices = resources, threads, device, devices
        self.ray = _import(starts_here=resources.address is None)
        cpus = threads * devices if resources.cpus is None else resources.cpus
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
        if any(not node["NodeManagerAddress"].startswith("127.") for node in self.nodes()):
            self.ray.shutdown()
            raise UserError(
                "ray: expected it to listen on loopback only; got a network address, as ray was imported before "
                "contdrop; restart Python, and import contdrop first"
            )

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def slots(self) -> dict[str, int]:
        """Return the number of jobs that each node of the chosen kind can run at a time."""
        found = {}
        for node in self.nodes():
            fits = [
                _units(node["Resources"].get(name, 0.0)) // _units(wanted)
                for name, wanted in (("CPU", self.options["num_cpus"]), ("GPU", self.options["num_gpus"]))
                if _units(wanted)
            ]
            if node["NodeID"] not in self.refused and fits:
                found[node["NodeID"]] = min(fits)
        return found

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
        tasks = {
            node: self.ray.remote(_about)
            .options(**self.options, scheduling_strategy=_on(node))
            .remote(self.threads, self.device, self.devices)
            for node, slots in self.slots().items()
            if slots
        }
        ready, _ = self.ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=_PROBE_SECONDS)
        answers = {node: self._answer(node, ref) for node, ref in tasks.items() if ref in ready}
        about = {node: found for node, found in answers.items() if found is not None}
        if not about:
            raise UserError(
                f"--address: expected an answer of a node of Ray in {_PROBE_SECONDS:.0f} s; got none; wait until they "
                "are less busy"
            )
        slots, kinds = self.slots(), {node: processor(found) for node, found in about.items()}
        totals = {kind: sum(slots.get(n, 0) for n in kinds if kinds[n] == kind) for kind in kinds.values()}
        self.kind = max(totals, key=lambda kind: totals[kind])
        self.machine = next(found for node, found in about.items() if kinds[node] == self.kind)
        self.refused = {node for node, kind in kinds.items() if kind != self.kind}

    def _answer(self, node: str, ref: Any) -> dict[str, Any] | None:
        try:
            found, theirs = self.ray.get(ref)
        except self.ray.exceptions.TaskUnschedulableError:
            return None  # the node left after it was listed
        except self.ray.exceptions.RayError as error:
            raise UserError(
                f"--address: node {node[:12]} cannot run jobs ({printable_error(_cause(error))}); install the same "
                "packages there as here, including contdrop[ray]"
            ) from error
        for name in ("contdrop", "torch"):
            if theirs[name] != versions()[name]:
                raise UserError(
                    f"--address: expected {name} {versions()[name]}, as on this machine; got {theirs[name]} on node "
                    f"{node[:12]}; install the same version"
                )
        return dict(found)

    def choose(self, doing: Sequence[str | None]) -> str | None:
        """Return a node with room if some nodes were refused; None to let Ray choose."""
        slots = self.slots() if self.refused else {}
        return max(slots, key=lambda node: slots[node] - list(doing).count(node), default=None)

    def put(self, content: Any) -> Any:
        return self.ray.put(content)

    def submit(self, node: str | None, *arguments: Any) -> Any:
        """Start a job, and return the stream of its messages."""
        strategy = _on(node) if node else "DEFAULT"
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

    def receive(self, stream: Any) -> list[Message] | None:
        """Return the next messages of a job, or None at its end.

        Raises:
            LostError: The worker or its node is gone.
            UserError: The task failed.
        """
        try:
            messages: list[Message] = self.ray.get(next(stream))
        except StopIteration:
            return None
        except self.ray.exceptions.RayTaskError as error:
            raise UserError(f"ray: {printable_error(_cause(error))}") from error
        except self.ray.exceptions.RayError as error:
            raise LostError(printable_error(error)) from error
        return messages

    def cancel(self, stream: Any) -> None:
        with contextlib.suppress(Exception):  # the task may have ended, or Ray may be gone
            self.ray.cancel(stream, force=True)


# ---- in Ray's processes


Message = tuple[str, tuple[Any, ...], dict[str, Any]]  # method of the store, and its arguments


class RemoteStore(NullStore):
    """Destination of a job on a node: messages to the driver, in order."""

    FORWARDED = frozenset({"drop_progress", "progress", "fail", "finish"})

    def __init__(self, saved: tuple[int, Buffer] | None, path: str, node: str) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._saved, self._node = saved, node
        # For files of a user's own loop: the store's directory where the node sees it, else one on the node.
        here = pathlib.Path(path)
        self.path = here if here.parent.is_dir() else pathlib.Path(tempfile.gettempdir()) / here.name

    def send(self, name: str, *arguments: Any, **named: Any) -> None:
        self.messages.put((name, arguments, named))

    def begin(self, job: int, **named: Any) -> str | None:
        """Send the identity of a job; the driver ends the task if something does not match."""
        self.send("begin", self._node, **named)
        return None

    def resume(self, job: int) -> tuple[int, Buffer] | None:
        return self._saved

    def drop_progress(self, job: int) -> None:
        self._saved = None
        self.send("drop_progress")

    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None:
        """Send epochs and a copy of the state."""
        copied = None if checkpoint is None else (checkpoint[0], [b"".join(checkpoint[1])])
        self.send("progress", list(epochs), copied)

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        self.send("fail", reason, list(epochs))

    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None:
        kept = [b"".join(weights)] if weights else []
        self.send("finish", list(epochs), dict(results), dict(artefacts), kept)


_contexts: dict[str, WorkerContext] = {}  # by token, of the current invocation only


def _do(
    token: str,
    config: list[Any],
    data: list[Any],
    task: Task,
    saved: tuple[int, bytes] | None,
    path: str,
    directory: str | None,
) -> Iterator[list[Any]]:
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
        context.config.data[task.protocol] = unpacked(ray.get(data[0]))
    threading.Thread(target=_train, args=(context, task, sink), daemon=True).start()
    while True:
        messages = [sink.messages.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(sink.messages.get_nowait())
        ended = messages[-1][0] == _DONE
        yield messages
        if ended:
            return


def _train(context: WorkerContext, task: Task, sink: RemoteStore) -> None:
    try:
        set_up_process(context.config.threads)  # for this thread
        sink.send("started")
        context.do(sink, task, lambda epoch: sink.send("epoch", epoch))
    except UserError as error:
        sink.send("error", str(error))
    except (MemoryError, LostError) as error:
        sink.send("lost", str(error))
    finally:
        if context.config.device.startswith("cuda"):
            torch.cuda.empty_cache()  # others may share the GPU
        sink.send(_DONE)


def _about(threads: int, device: str, devices: int) -> tuple[dict[str, Any], dict[str, str]]:
    torch.set_num_threads(threads)
    return machine(device, devices), versions()


def _on(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _cause(error: Any) -> BaseException:
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


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


def unpacked(content: list[Any]) -> PreparedData:
    """Return the data of :func:`packed`."""
    data: PreparedData = pickle.loads(content[0], buffers=content[1:])
    return data
