"""Data-parallel training of one job in several processes, which take the steps that one process would take.

Each process trains on its part of every batch: it draws its rows of the batch's masks
(:mod:`contdrop._torch.sharding`), weights its mean loss by its share of the batch, and adds up gradients with the
others. torch's DistributedDataParallel does not fit: it takes all parts of a batch to be equally large, which those of
the last batch are not, and it wraps the model, which a study's own functions may use as they like.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import multiprocessing.process
import os
import pathlib
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from ..._torch import sharding
from ...errors import UserError
from ..data.batch import to_device
from ..study.user_errors import printable_error

if TYPE_CHECKING:
    from .trainer import Trainer

_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NOTHING = contextlib.nullcontext()
_PATIENCE = datetime.timedelta(days=1)  # with a process that is stopped; one that has ended is noticed at once


class LostError(Exception):
    """Loss of a process that a job needs, or of its node."""


class ProcessGroup:
    """Processes of a job, as one of them sees them; only itself unless :func:`process_group` starts more.

    Attributes:
        rank: Number of this process. Number 0 writes to the store.
        size: Number of processes.
        share: Part of the batch that this process has.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.share = rank, size, 1.0

    def rows(self, count: int) -> slice:
        """Return this process's examples of a batch of ``count``; one with weight 0 where there are too few."""
        mine = self._range(count)
        return slice(mine.start, mine.stop) if mine else slice(0, 1)

    def _range(self, count: int) -> range:
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def batch(self, count: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which masks are drawn for this process's rows of a batch of ``count`` examples."""
        if self.size == 1:
            return _NOTHING
        mine = self.rows(count)
        self.share = len(self._range(count)) / count
        return sharding.of_batch(mine.start, mine.stop - mine.start, count)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over all processes."""
        if self.size == 1:
            return
        trained = [each for each in parameters if each.requires_grad]
        for kind in dict.fromkeys(each.dtype for each in trained):
            group = [each for each in trained if each.dtype == kind]
            used = group[0].new_tensor([each.grad is not None for each in group])
            pieces = [torch.zeros_like(each) if each.grad is None else each.grad for each in group]
            flat = torch.cat([used, *(piece.flatten() for piece in pieces)])
            dist.all_reduce(flat)
            used, *sums = torch.split(flat, [len(group), *(each.numel() for each in group)])
            for each, is_used, total in zip(group, used.tolist(), sums):
                each.grad = total.view_as(each) if is_used else None  # which optimizers skip

    def gather(self, mine: Any) -> list[Any]:
        """Return the objects of all processes, in all of them."""
        found = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(found, mine)
        return found

    def first(self, mine: Any) -> Any:
        """Return the first process's object, in all processes."""
        found = [mine]
        if self.size > 1:
            dist.broadcast_object_list(found, 0)
        return found[0]

    def turns(self, batches: Sequence[Any]) -> Sequence[Any]:
        """Return the batches that this process evaluates."""
        return batches[self.rank :: self.size]

    def in_order(self, mine: list[Any]) -> list[Any]:
        """Return the results of all processes in the order of the batches."""
        found = self.gather(mine)
        return [found[number % self.size][number // self.size] for number in range(sum(map(len, found)))]


SINGLE_PROCESS = ProcessGroup()


@contextlib.contextmanager
def process_group(size: int, device: str, function: Callable[..., None], *arguments: Any) -> Iterator[ProcessGroup]:
    """Make this process the first of ``size`` on this machine; the others call ``function(team, *arguments)``.

    They meet by a file, communicate over loopback only, and end with this one.

    Raises:
        LostError: One of them ended.
    """
    if size == 1:
        yield SINGLE_PROCESS
        return
    context = torch.multiprocessing.get_context("spawn")
    others: list[tuple[BaseProcess, Connection]] = []
    with tempfile.TemporaryDirectory(prefix="contdrop-") as directory:
        meeting = pathlib.Path(directory) / "ranks"
        try:
            for rank in range(1, size):
                ours, theirs = context.Pipe()
                join = functools.partial(_join, rank, size, device, meeting)
                what = (theirs, join, function, arguments)
                others.append((context.Process(target=_follow, args=what, daemon=True), ours))
                start_process(others[-1][0])
                theirs.close()
            yield _join(0, size, device, meeting)
        except RuntimeError as error:  # as torch raises for a connection
            _find_cause(error, others)
            raise
        finally:
            for process, pipe in others:
                process.kill()
                process.join()
                pipe.close()
            if dist.is_initialized():
                dist.destroy_process_group()


def start_process(process: BaseProcess) -> None:
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


@contextlib.contextmanager
def children_allowed() -> Iterator[None]:
    """Let a daemonic process, such as a worker, have children; multiprocessing forbids it for fear of orphans.

    Ours end with their parents by themselves.
    """
    configuration = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    daemon = configuration.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            configuration["daemon"] = daemon


def device_of(team: ProcessGroup, device: str) -> str:
    """Return the device of this process; each of several has its own GPU."""
    return f"{device}:{team.rank}" if team.size > 1 and device == "cuda" else device


def _join(rank: int, size: int, device: str, meeting: pathlib.Path) -> ProcessGroup:
    is_gpu = device.startswith("cuda")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # else they listen on the host's address
        os.environ.setdefault(variable, "lo0" if sys.platform == "darwin" else "lo")
    if is_gpu:
        torch.cuda.set_device(rank)
    backend = "nccl" if is_gpu else "gloo"
    dist.init_process_group(backend, init_method=meeting.as_uri(), rank=rank, world_size=size, timeout=_PATIENCE)
    return ProcessGroup(rank, size)


def _follow(
    pipe: Connection, join: Callable[[], ProcessGroup], function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    threading.Thread(target=_end_with_the_first, args=(pipe,), daemon=True).start()
    try:
        function(join(), *arguments)
    except Exception as error:
        pipe.send(printable_error(error))
        os._exit(1)


def _end_with_the_first(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def _find_cause(error: RuntimeError, others: Sequence[tuple[BaseProcess, Connection]]) -> None:
    """Raise LostError, or the other process's error, if another process is the cause of this error."""
    for rank, (process, pipe) in enumerate(others, 1):
        name = f"process {rank + 1} of {len(others) + 1}"
        process.join(1.0)  # its connection breaks just before it ends
        try:
            if pipe.poll():
                raise RuntimeError(f"{name}: {pipe.recv()}") from error
        except EOFError:
            raise LostError(f"{name} ended with exit code {process.exitcode}") from error


def check_division(trainer: Trainer) -> None:
    """Refuse a study for which the group would take another step than one process.

    The gradients of some examples are compared, computed from all of them and by the group.
    """
    network, size = trainer.network, trainer.team.size
    for name, module in network.named_modules():
        if isinstance(module, _NORMALIZATIONS) and module.training:
            raise UserError(
                f"--devices: {name} ({type(module).__name__}) takes its statistics from a whole batch, which no "
                "process has; use one device, or a normalization of each example, such as GroupNorm"
            )
    network.train()
    kept = {name: buffer.clone() for name, buffer in network.named_buffers()}
    alone, divided = (_gradients(trainer, group) for group in (SINGLE_PROCESS, trainer.team))
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(kept[name])
    total = max(float(each.norm()) for each in alone)
    worst = max(float((a - b).norm()) / (float(a.norm()) + 1e-3 * total + 1e-30) for a, b in zip(alone, divided))
    if not worst <= (3e-2 if isinstance(trainer.autocast(), torch.autocast) else 1e-3):
        raise UserError(
            f"--devices: expected {size} processes to take the step of one; got gradients that differ by {worst:.1%}: "
            "the model or the loss joins the examples of a batch, or is no mean over them; use one device"
        )


def _gradients(trainer: Trainer, group: ProcessGroup) -> list[torch.Tensor]:
    """Return the gradients of a few examples, a number that the processes cannot share evenly."""
    order = [torch.cat(trainer.order(0))[: 3 * trainer.team.size + 1]]
    rows = group.rows if group.size > 1 else None
    batch = to_device(next(trainer.parts.train.batches(order, seed=0, rows=rows)), trainer.device)
    trained = [each for each in trainer.network.parameters() if each.requires_grad]
    torch.manual_seed(0)
    with group.batch(len(order[0])):
        loss, _ = trainer.batch_loss(batch)
        (loss * group.share).backward()  # type: ignore[no-untyped-call]
    group.add_gradients(trained)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    trainer.network.zero_grad(set_to_none=True)
    return found
