"""One job of the lab's own training: begun, resumed, saved on the way, and finished in the store; and what it takes."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..data.batch import to_device
from ..data.data import PreparedData
from ..store.blobs import Buffer
from ..store.schema import FINAL, Epoch
from ..study.plan import PlannedJob, Variant
from . import checkpoint
from .distributed import SINGLE_PROCESS, ProcessGroup, check_division
from .environment import machine, versions
from .trainer import DivergenceError, Trainer

_CHECKPOINT_SHARE = 0.05  # of the time, at most, goes into checkpoints
_TRIED = 12  # batches, to see how long they take


class JobSink(Protocol):
    """Destination for a job's progress: a store, or what stands in for one."""

    path: pathlib.Path

    def begin(
        self,
        job: int,
        *,
        variant: str,
        seeds: Mapping[str, int],
        fingerprints: Mapping[str, str],
        versions: Mapping[str, str],
        machine: Mapping[str, Any],
    ) -> str | None: ...
    def resume(self, job: int) -> tuple[int, Buffer] | None: ...
    def drop_progress(self, job: int) -> None: ...
    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None: ...
    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None: ...
    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None: ...


class NullStore:
    """Destination of a job's other processes, of which only the first writes."""

    path = pathlib.Path()

    def begin(self, job: int, **_: Any) -> str | None: ...
    def resume(self, job: int) -> tuple[int, Buffer] | None: ...
    def drop_progress(self, job: int) -> None: ...
    def progress(self, job: int, *_: Any) -> None: ...
    def fail(self, job: int, *_: Any) -> None: ...
    def finish(self, job: int, *_: Any) -> None: ...


def run(
    store: JobSink,
    job_id: int,
    job: PlannedJob,
    variant: Variant,
    prepared: PreparedData,
    *,
    device: str = "cpu",
    team: ProcessGroup = SINGLE_PROCESS,
    checkpoint_seconds: float = 1.0,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Does one job, whose lock this process holds, and writes all of it to the store.

    All processes of a team call this, and the first of them writes. The state is saved at the first epoch's end after
    ``checkpoint_seconds``.
    """
    training = Trainer(job, variant, prepared, device, team)
    training.check_steps()
    mismatch = store.begin(
        job_id,
        variant=str(variant),
        seeds=training.seeds,
        fingerprints=training.fingerprints,
        versions=versions(),
        machine=machine(device, team.size),
    )
    if mismatch:
        store.fail(job_id, mismatch)
        return
    if team.size > 1:
        check_division(training)
    saved = _checkpoint(store, job_id, team)
    if saved:
        try:
            training.restore(saved[1])
        except (ValueError, KeyError, TypeError, RuntimeError):  # whole, but of another version: it starts over
            store.drop_progress(job_id)
            training = Trainer(job, variant, prepared, device, team)
    unsaved: list[Epoch] = []
    next_save = time.monotonic() + max(checkpoint_seconds, training.seconds_to_save / _CHECKPOINT_SHARE)
    try:
        while not training.is_over:
            unsaved.append(training.run_epoch())
            after_epoch(unsaved[-1])
            if time.monotonic() >= next_save and not training.is_over:
                begun = time.monotonic()
                try:
                    saved_state = training.state()
                except TypeError:  # of which the dry run has warned: such a job starts over if it is interrupted
                    next_save = math.inf
                    continue
                store.progress(job_id, unsaved, (training.epoch, saved_state))
                unsaved, now = [], time.monotonic()
                next_save = now + max(checkpoint_seconds, (now - begun) / _CHECKPOINT_SHARE)
        results, artefacts = training.results()
    except DivergenceError as reason:
        store.fail(job_id, f"diverged: {reason}", unsaved)
        return
    keeps = job.protocol.study.training.weights == "last" and job.stage == FINAL
    weights = checkpoint.parts(checkpoint.of_network(training.network)) if keeps else ()
    store.finish(job_id, unsaved, results, artefacts, weights)


def _checkpoint(store: JobSink, job_id: int, team: ProcessGroup) -> tuple[int, Buffer] | None:
    """The last one, in every process of a team."""
    saved = store.resume(job_id)
    if saved and team.size > 1:
        saved = saved[0], bytes(saved[1])  # a large one is a mapped file, which cannot be sent
    found: tuple[int, Buffer] | None = team.first(saved)
    return found


def seconds_per_epoch(
    job: PlannedJob, variant: Variant, prepared: PreparedData, *, threads: int, device: str = "cpu"
) -> float:
    """About how long an epoch of a job takes here, all in all: a few batches are trained, and nothing is kept."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training = Trainer(job, variant, prepared, device)
        study, parts = training.study, training.parts
        training.network.train()
        ends = [time.perf_counter()]
        for batch in parts.train.batches(training.order(0)[:_TRIED], seed=0):
            loss, _ = training.batch_loss(to_device(batch, training.device))
            training.backward(loss)
            training.update()
            loss.item()  # waits for the device
            ends.append(time.perf_counter())
        training.evaluate(parts.validation, training.metrics[:1], batches=1)
        evaluation = time.perf_counter() - ends[-1]
    finally:
        torch.set_num_threads(before)
    if study.training.evaluate == "last":
        evaluation /= job.epochs
    elif isinstance(study.training.evaluate, int):
        evaluation /= study.training.evaluate
    size = study.training.evaluation_batch_size or 4 * study.batch_size
    evaluated = len(parts.validation) + (len(parts.test) if job.stage == FINAL else 0)
    steps = training.steps_per_epoch * study.training.accumulate * len(training.members)
    return float(np.median(np.diff(ends))) * steps + evaluation * -(-evaluated // size)
