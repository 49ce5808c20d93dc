"""Job of the lab's own training: begun, resumed, saved and finished in a store; and a measurement of its time."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from ..data.batch import to_device
from ..data.data import PreparedData
from ..store.blobs import Buffer
from ..store.schema import FINAL, Epoch
from ..study.plan import PlannedJob, Variant
from . import checkpoint
from .environment import machine, versions
from .trainer import DivergenceError, Trainer

_CHECKPOINT_SHARE = 0.05  # of the time, at most, for checkpoints
_TRIED = 12  # batches to measure


class JobSink(Protocol):
    """Destination of a job's progress: the store, or a remote driver."""

    path: pathlib.Path

    def begin(self, *args: Any, **kwargs: Any) -> str | None: ...
    def resume(self, *args: Any, **kwargs: Any) -> tuple[int, Buffer] | None: ...
    def drop_progress(self, *args: Any, **kwargs: Any) -> None: ...
    def progress(self, *args: Any, **kwargs: Any) -> None: ...
    def fail(self, *args: Any, **kwargs: Any) -> None: ...
    def finish(self, *args: Any, **kwargs: Any) -> None: ...


def run(
    store: JobSink,
    job_id: int,
    job: PlannedJob,
    variant: Variant,
    prepared: PreparedData,
    *,
    device: str = "cpu",
    checkpoint_seconds: float = 1.0,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Run one job, whose lock this process holds, and write all of it to the store.

    The state is saved at the end of the first epoch after ``checkpoint_seconds``.
    """
    training = Trainer(job, variant, prepared, device)
    training.check_steps()
    mismatch = store.begin(
        job_id,
        variant=str(variant),
        seeds=training.seeds,
        fingerprints=training.fingerprints,
        versions=versions(),
        machine=machine(device),
    )
    if mismatch:
        store.fail(job_id, mismatch)
        return
    saved = store.resume(job_id)
    if saved:
        try:
            training.restore(saved[1])
        except (ValueError, KeyError, TypeError, RuntimeError):  # intact, but of another version
            store.drop_progress(job_id)
            training = Trainer(job, variant, prepared, device)
    unsaved: list[Epoch] = []
    try:
        _train(store, job_id, training, checkpoint_seconds, after_epoch, unsaved)
        results, artefacts = training.results()
    except DivergenceError as reason:
        store.fail(job_id, f"diverged: {reason}", unsaved)
        return
    keeps = job.protocol.study.training.weights == "last" and job.stage == FINAL
    weights = checkpoint.parts(checkpoint.of_network(training.network)) if keeps else ()
    store.finish(job_id, unsaved, results, artefacts, weights)


def _train(
    store: JobSink,
    job_id: int,
    training: Trainer,
    checkpoint_seconds: float,
    after_epoch: Callable[[Epoch], None],
    unsaved: list[Epoch],
) -> None:
    """Train to the end, and save the state and the ``unsaved`` epochs from time to time."""
    next_save = time.monotonic() + max(checkpoint_seconds, training.seconds_to_save / _CHECKPOINT_SHARE)
    while not training.is_over:
        unsaved.append(training.run_epoch())
        after_epoch(unsaved[-1])
        begun = time.monotonic()
        if begun < next_save or training.is_over:
            continue
        try:
            state = training.state()
        except TypeError:  # the dry run has warned that such a job cannot be resumed
            next_save = math.inf
            continue
        store.progress(job_id, unsaved, (training.epoch, state))
        unsaved.clear()
        now = time.monotonic()
        next_save = now + max(checkpoint_seconds, (now - begun) / _CHECKPOINT_SHARE)


def seconds_per_epoch(
    job: PlannedJob, variant: Variant, prepared: PreparedData, *, threads: int, device: str = "cpu"
) -> float:
    """Estimate the time of an epoch and its evaluation from a few batches, without storing anything."""
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
            loss.item()  # wait for the device
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
