"""One job in several processes: each trains on its examples of every batch, and all take the step that one would take.

Each draws its rows of the batch's masks (:mod:`contdrop._torch.data_parallel`), weights its mean loss by its share
of the batch, and
adds up gradients with the others. This is not torch's DistributedDataParallel: that one takes all parts of a batch for
equally large, which the last batch's are not, and wraps the model, which a study's own functions may use as they like.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

from ..._torch import data_parallel
from ...errors import UserError
from ..runner import processes
from ..study.user_errors import printable_error

_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NOTHING = contextlib.nullcontext()
# A process that is gone is noticed at once; this is for one that is stopped.
_PATIENCE = datetime.timedelta(days=1)


class LostError(Exception):
    """A process that a job needs is gone, or its node; the text says how."""


class ProcessGroup:
    """The processes of a job, as one of them sees it; by itself, unless :func:`together` makes more.

    Attributes:
        rank: Which one this is, from 0. The first writes to the store.
        size: How many there are.
        share: What part of the batch this one has.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.share = rank, size, 1.0

    def rows(self, count: int) -> slice:
        """Which examples of a batch of so many are this process's; where there are too few, one that counts nothing."""
        first, stop = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        return slice(first, stop) if first < stop else slice(0, 1)

    @property
    def cut(self) -> Callable[[int], slice] | None:
        """:meth:`rows`, or None if a process has all of a batch."""
        return self.rows if self.size > 1 else None

    def batch(self, count: int) -> contextlib.AbstractContextManager[None]:
        """In there, what is drawn is for this process's examples of a batch of so many."""
        if self.size == 1:
            return _NOTHING
        mine = self.rows(count)
        self.share = (count * (self.rank + 1) // self.size - count * self.rank // self.size) / count
        return data_parallel.of_batch(mine.start, mine.stop - mine.start, count)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Puts the sum of all processes' gradients in place of each's own."""
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
                each.grad = total.view_as(each) if is_used else None  # an unused one has none, which optimisers see

    def gather(self, mine: Any) -> list[Any]:
        """What each process has, in all of them."""
        found = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(found, mine)
        return found

    def first(self, mine: Any) -> Any:
        """What the first process has, in all of them."""
        found = [mine]
        if self.size > 1:
            dist.broadcast_object_list(found, 0)
        return found[0]

    def turns(self, batches: Sequence[Any]) -> Sequence[Any]:
        """Those that are this process's when batches are evaluated in turn."""
        return batches[self.rank :: self.size] if self.size > 1 else batches

    def in_order(self, mine: list[Any]) -> list[Any]:
        """What all processes have of their turns, in the order of the batches."""
        if self.size == 1:
            return mine
        found = self.gather(mine)
        return [found[number % self.size][number // self.size] for number in range(sum(map(len, found)))]


SINGLE_PROCESS = ProcessGroup()


@contextlib.contextmanager
def together(size: int, device: str, function: Callable[..., None], *arguments: Any) -> Iterator[ProcessGroup]:
    """Makes this process the first of so many on this machine; the others call ``function(team, *arguments)``.

    They find each other by a file, talk over loopback only, and end with this one.

    Raises:
        LostError: One of them has ended.
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
                what = (theirs, rank, size, device, meeting, function, arguments)
                others.append((context.Process(target=_follow, args=what, daemon=True), ours))
                processes.begin(others[-1][0])
                theirs.close()
            yield _join(0, size, device, meeting)
        except Exception as error:
            _find_cause(error, others)
            raise
        finally:
            for process, pipe in others:
                process.kill()
                process.join()
                pipe.close()
            if dist.is_initialized():
                dist.destroy_process_group()


def device_of(team: ProcessGroup, device: str) -> str:
    """Each process of several has a GPU of its own."""
    return f"{device}:{team.rank}" if team.size > 1 and device == "cuda" else device


def _join(rank: int, size: int, device: str, meeting: pathlib.Path) -> ProcessGroup:
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # else they listen where the host's name leads
        os.environ.setdefault(variable, loopback)
    if device.startswith("cuda"):
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        init_method=meeting.as_uri(),
        rank=rank,
        world_size=size,
        timeout=_PATIENCE,
    )
    return ProcessGroup(rank, size)


def _follow(
    pipe: Connection,
    rank: int,
    size: int,
    device: str,
    meeting: pathlib.Path,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    threading.Thread(target=_end_with_the_first, args=(pipe,), daemon=True).start()
    try:
        function(_join(rank, size, device, meeting), *arguments)
    except Exception as error:
        pipe.send(printable_error(error))
        os._exit(1)


def _end_with_the_first(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def _find_cause(error: Exception, others: Sequence[tuple[BaseProcess, Connection]]) -> None:
    """Says so if this process has an error because another has ended."""
    if not isinstance(error, RuntimeError):  # torch's, of a connection
        return
    for rank, (process, pipe) in enumerate(others, 1):
        name = f"process {rank + 1} of {len(others) + 1}"
        process.join(1.0)  # its connection breaks a moment before it is gone
        try:
            if pipe.poll():
                raise RuntimeError(f"{name}: {pipe.recv()}") from error
        except EOFError:
            raise LostError(f"{name} ended with exit code {process.exitcode}") from error


def check_division(
    team: ProcessGroup,
    network: nn.Module,
    count: int,
    batch_of: Callable[[slice], Any],
    loss_of: Callable[[Any], Tensor],
    tolerance: float,
) -> None:
    """Refuses what several processes would do otherwise than one: some examples are tried both ways.

    Args:
        team: The processes.
        network: What is trained.
        count: How many examples to try.
        batch_of: Those in a slice.
        loss_of: Their mean loss.
        tolerance: How much of a gradient rounding may change.
    """
    for name, module in network.named_modules():
        if isinstance(module, _NORMALISATIONS) and module.training:
            raise UserError(
                f"--devices: {name} ({type(module).__name__}) takes its statistics from a whole batch, which no "
                "process has; use one device, or a normalisation of each example, such as GroupNorm"
            )
    kept = {name: buffer.clone() for name, buffer in network.named_buffers()}
    trained = [each for each in network.parameters() if each.requires_grad]
    gradients = []
    for whole in (True, False):
        batch = batch_of(slice(0, count) if whole else team.rows(count))
        torch.manual_seed(0)
        with contextlib.nullcontext() if whole else team.batch(count):
            loss = loss_of(batch)
            (loss if whole else loss * team.share).backward()  # type: ignore[no-untyped-call]
        if not whole:
            team.add_gradients(trained)
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
        network.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(kept[name])
    total = max(float(each.norm()) for each in gradients[0])
    worst = max(float((a - b).norm()) / (float(a.norm()) + 1e-3 * total + 1e-30) for a, b in zip(*gradients))
    if not worst <= tolerance:
        raise UserError(
            f"--devices: {team.size} processes would take another step than one (gradients differ by {worst:.1%}): the "
            "model or the loss joins the examples of a batch, or is no mean over them; use one device"
        )
