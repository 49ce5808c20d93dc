"""Batches from single examples, made in this process or in loader processes with equal content.

The global generators of torch, NumPy and Python are seeded before each example from (run, epoch, position); collation
continues from the last example. Random numbers of datasets, transforms and collate functions are therefore the same for
all methods and any number of loader processes, and do not shift the masks, which use torch's default generator too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing.process
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, default_collate

from ...errors import UserError
from ..study.user_errors import explained
from .inputs import Examples

Seeds = npt.NDArray[np.uint64]
_WEYL = np.array([0x9E3779B97F4A7C15], np.uint64)
# As torch does: with one thread and no inherited locks a fork is safe, quick, and needs no pickles of datasets and
# functions. macOS's libraries do not support it.
_START_METHOD = "fork" if sys.platform == "linux" else "spawn"
_GLOBAL = 0x5DEECE66D2B79F35  # separates the global generators from that of a transform


@dataclass(frozen=True)
class Request:
    """A batch to be made: examples of a part, with a seed for each."""

    part: str
    indices: Sequence[int]
    seeds: Sequence[int]
    transformed: bool


def requests(part: str, batches: Sequence[npt.NDArray[np.int64]], seed: int, *, transformed: bool) -> list[Request]:
    """Return a request per batch; positions that repeat in an epoch get other seeds each time."""
    if not batches:
        return []
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    everything = np.concatenate(batches)
    seeds = np.split(_item_seeds(everything, seed), ends)
    return [Request(part, batch.tolist(), own.tolist(), transformed) for batch, own in zip(batches, seeds)]


def _item_seeds(indices: npt.NDArray[np.int64], seed: int) -> Seeds:
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.maximum.accumulate(np.where(is_first, np.arange(len(ordered)), 0))
    occurrence = np.empty(len(indices), np.uint64)
    occurrence[order] = np.arange(len(ordered)) - starts
    start = _mix(np.array([seed], np.uint64))
    return _mix(_mix(indices.astype(np.uint64) * _WEYL + start) + occurrence * _WEYL) >> np.uint64(1)


def _mix(x: Seeds) -> Seeds:
    """Compute the last step of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class BatchBuilder:
    """Construction of batches; ``transform`` is applied to training examples."""

    sources: Mapping[str, Examples]
    collate: Callable[[list[Any]], Any] | None
    transform: Callable[[Any, torch.Generator], Any] | None

    def make(self, request: Request) -> Any:
        """Make a batch in this process and leave its generators as they were."""
        with _undisturbed():
            return self._make(request)

    def __getitem__(self, request: Request) -> Any:
        """Make a batch in a loader process."""
        try:
            return self._make(request)
        except UserError as error:  # raised here, it would come back with its traceback as text
            return error

    def items(self, part: str, indices: Sequence[int]) -> list[Any]:
        """Return untransformed items, the same ones each time."""
        with _undisturbed():
            return [self._item(part, index, 0) for index in indices]

    def _item(self, part: str, index: int, seed: int) -> Any:
        own = seed ^ _GLOBAL
        torch.default_generator.manual_seed(own)
        np.random.seed(own & 0xFFFFFFFF)
        random.seed(own)
        with explained(f"data: item {index} of {part}"):
            return self.sources[part][index]

    def _make(self, request: Request) -> Any:
        generator = torch.Generator()
        items = []
        for index, seed in zip(request.indices, request.seeds):
            item = self._item(request.part, index, seed)
            if request.transformed and self.transform is not None:
                generator.manual_seed(seed)
                with explained(f"data: transform of item {index} of {request.part}"):
                    item = self.transform(item, generator)
            items.append(item)
        if self.collate is not None:
            with explained("data: collate"):
                return self.collate(items)
        with explained("data: batches of these items need collate="):
            batch = default_collate(items)
        # As arrays give it: default_collate makes lists of tuples.
        return tuple(batch) if type(items[0]) is tuple else batch


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the global generators afterwards, and use one thread, as a loader process does."""
    torch_state, numpy_state, state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(state)


@dataclass(eq=False)
class Loaders:
    """Groups of ``count`` loader processes, kept for later epochs and jobs; with 0, this process makes the batches.

    ``own_order`` is the function that divides the training data into batches, if the study has one.
    """

    maker: BatchBuilder
    count: int
    own_order: Callable[[Any, torch.Generator], Any] | None
    _idle: list[tuple[list[Request], DataLoader[Any]]] = field(default_factory=list, init=False)

    def __reduce__(self) -> Any:
        return Loaders, (self.maker, self.count, self.own_order)

    def batches(self, wanted: Sequence[Request]) -> Iterator[Any]:
        """Yield batches in the wanted order; an evaluation within an epoch gets processes of its own."""
        return self._loaded(wanted) if self.count else map(self.maker.make, wanted)

    def _loaded(self, wanted: Sequence[Request]) -> Iterator[Any]:
        with _own_decisions():
            queued, loader = idle = self._idle.pop() if self._idle else self._begun()
            queued[:] = wanted
            with children_allowed():
                iterator = iter(loader)
        try:
            for batch in iterator:
                if isinstance(batch, UserError):
                    raise batch
                yield batch
        except (GeneratorExit, UserError):  # the next iteration discards pending batches
            self._idle.append(idle)
            raise
        self._idle.append(idle)

    def _begun(self) -> tuple[list[Request], DataLoader[Any]]:
        """Return a loader and the list of requests that it takes in each iteration."""
        queued: list[Request] = []
        return queued, DataLoader(
            self.maker,  # type: ignore[arg-type]
            batch_size=None,
            sampler=queued,
            num_workers=self.count,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # else torch draws from the masks' generator
            persistent_workers=True,
            multiprocessing_context=_START_METHOD,
            worker_init_fn=functools.partial(_begin, threading.current_thread() is threading.main_thread()),
        )


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


def _unchanged(batch: Any) -> Any:
    return batch


@contextlib.contextmanager
def _own_decisions() -> Iterator[None]:
    """Suppress warnings about more processes than cores, which the user decides, and about forking."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
        yield


def _begin(started_by_main_thread: bool, number: int) -> None:
    """Set up a loader process: one thread, and on Linux death with the parent, whose pipes it holds open."""
    torch.set_num_threads(1)
    if sys.platform == "linux" and started_by_main_thread:  # the signal is tied to the starting thread
        set_signal_at_parents_death = 1
        ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGKILL)
