"""Jobs as tasks of a Ray cluster, or of Ray on this machine alone, which then listens on loopback only.

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
from ..training.distributed import LostError as LostError
from ..training.environment import machine, versions
from ..training.job import JobSink
from .queue import Task, WorkerContext, set_up_process

# What Ray is told when it is started here; it reads some of it when it is imported.
_HERE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # which, on any system, makes it listen on loopback only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else its workers wait for whatever else the machine does
}

_PROBE_SECONDS = 120.0  # a node that says nothing for so long is left out until it does a job
_DONE = "done"
_UNITS = 10_000  # in which Ray counts a processor or a GPU


@dataclass(frozen=True)
class Resources:
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
    """As Ray counts: 1 // 0.2 is 4, and yet five jobs that take 0.2 of a processor each fit on one."""
    return round(amount * _UNITS)


class Cluster:
    """A connection to Ray; a context manager.

    Args:
        resources: What is asked for.
        threads: torch threads of each job.
        device: Where jobs train.
        devices: Processes of each job.
    """

    def __init__(self, resources: Resources, *, threads: int, device: str, devices: int = 1) -> None:
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
        except Exception as error:  # of that very class if a busy machine takes too long to start it
            raise UserError(
                f"--address: cannot reach Ray at {address or 'this machine'} ({printable_error(error)}); start it by: "
                "ray start --head"
            ) from error
        if any(not node["NodeManagerAddress"].startswith("127.") for node in self.nodes()):
            self.ray.shutdown()
            raise UserError("ray was imported before contdrop, and would listen to the network; start Python anew")

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def slots(self) -> dict[str, int]:
        """How many jobs each node that is of our kind can do at a time."""
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
        """How many jobs are done at a time."""
        return min(sum(self.slots().values()), self.resources.workers or 2**31)

    def _probe(self) -> None:
        """Asks every node what it is; the most capable kind does all jobs, for the last bits depend on it."""
        if not self.processes:
            raise UserError(
                f"--cpus, --gpus: no node of this Ray has {self.options['num_cpus']:g} processors and "
                f"{self.options['num_gpus']:g} GPUs, which each job is to have"
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
                f"--address: no node of Ray answered in {_PROBE_SECONDS:.0f} s; is it busy with other work?"
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
            return None  # the node has gone since it was listed
        except self.ray.exceptions.RayError as error:
            raise UserError(
                f"--address: node {node[:12]} cannot do jobs ({printable_error(_cause(error))}); install there what is "
                "installed here, contdrop[ray] among it"
            ) from error
        for name in ("contdrop", "torch"):
            if theirs[name] != versions()[name]:
                raise UserError(
                    f"--address: node {node[:12]} has {name} {theirs[name]}, and this machine {versions()[name]}; "
                    "install the same one"
                )
        return dict(found)

    def choose(self, doing: Sequence[str | None]) -> str | None:
        """Ray chooses the node, unless some are of another kind; then it is one of ours with room."""
        slots = self.slots() if self.refused else {}
        return max(slots, key=lambda node: slots[node] - list(doing).count(node), default=None)

    def put(self, content: Any) -> Any:
        return self.ray.put(content)

    def submit(self, node: str | None, *arguments: Any) -> Any:
        """Begins a job; the stream of what it writes."""
        strategy = _on(node) if node else "DEFAULT"
        task = self.ray.remote(_do).options(**self.options, scheduling_strategy=strategy, num_returns="streaming")
        return task.remote(*arguments, os.environ.get(DATA_VARIABLE))

    def wait(self, streams: Sequence[Any], seconds: float) -> list[Any]:
        """Those that have something to say, once one has, or after so long."""
        if not streams:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(streams, num_returns=1, timeout=seconds, fetch_local=False)
        if ready:  # whoever else has, lest some wait for others
            ready, _ = self.ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)
        return list(ready)

    def receive(self, stream: Any) -> list[Message] | None:
        """What a job writes; None at its end.

        Raises:
            LostError: The worker or its node is gone.
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
        with contextlib.suppress(Exception):  # it may have ended, or Ray may be gone
            self.ray.cancel(stream, force=True)


# ---- in the processes of Ray


Message = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method of the store, and with what to call it


class RemoteStore(JobSink):
    """Destination of a job on a node: messages to the driver, in order."""

    FORWARDED = frozenset({"drop_progress", "progress", "fail", "finish"})

    def __init__(self, saved: tuple[int, Buffer] | None, path: str, node: str) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._saved, self._node = saved, node
        # Files of a user's own loop: beside the store where the node sees that directory, else on the node.
        here = pathlib.Path(path)
        self.path = here if here.parent.is_dir() else pathlib.Path(tempfile.gettempdir()) / here.name

    def send(self, name: str, *arguments: Any, **named: Any) -> None:
        self.messages.put((name, arguments, named))

    def begin(self, job: int, **named: Any) -> str | None:
        """The driver ends this task if something does not match."""
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
        """The state is copied, for its pieces are the training's own memory, which goes on."""
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


_benches: dict[str, WorkerContext] = {}  # of the invocation that this process works for


def _do(
    token: str,
    work: list[Any],
    data: list[Any],
    task: Task,
    saved: tuple[int, bytes] | None,
    path: str,
    directory: str | None,
) -> Iterator[list[Any]]:
    """Does one job; yields what it writes. A thread trains, for a generator can only yield from its own."""
    if directory is not None:
        os.environ.setdefault(DATA_VARIABLE, directory)
    bench, wire = _bench(token, work), RemoteStore(saved, path, _node())
    if data and task.protocol not in bench.work.data:
        bench.work.data[task.protocol] = unpacked(_import().get(data[0]))
    threading.Thread(target=_train, args=(bench, task, wire), daemon=True).start()
    while True:
        messages = [wire.messages.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(wire.messages.get_nowait())
        ended = messages[-1][0] == _DONE
        yield messages
        if ended:
            return


def _bench(token: str, work: list[Any]) -> WorkerContext:
    if token not in _benches:
        _benches.clear()
        _benches[token] = WorkerContext(_import().get(work[0]))
    return _benches[token]


def _train(bench: WorkerContext, task: Task, wire: RemoteStore) -> None:
    try:
        set_up_process(bench.work)  # of this thread
        wire.send("started")
        bench.do(wire, task, lambda epoch: wire.send("epoch", epoch))
    except UserError as error:
        wire.send("error", str(error))
    except (MemoryError, LostError) as error:
        wire.send("lost", str(error))
    finally:
        if bench.work.device.startswith("cuda"):
            torch.cuda.empty_cache()  # others may share the GPU
        wire.send(_DONE)


def _about(threads: int, device: str, devices: int) -> tuple[dict[str, Any], dict[str, str]]:
    torch.set_num_threads(threads)
    return machine(device, devices), versions()


def _node() -> str:
    return str(_import().get_runtime_context().get_node_id())


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
        raise UserError("--executor ray: Ray is not installed; install it by: pip install 'contdrop[ray]'") from error
    return ray


class _Pickler(pickle.Pickler):
    def reducer_override(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            raw = content.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (raw, content.dtype, tuple(content.shape))
        return NotImplemented


def _tensor(raw: np.ndarray, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody may write to it, which nobody does
        return torch.from_numpy(raw).view(kind).reshape(shape)


def packed(data: PreparedData) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(data)
    return [file.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


def unpacked(content: list[Any]) -> PreparedData:
    data: PreparedData = pickle.loads(content[0], buffers=content[1:])
    return data
