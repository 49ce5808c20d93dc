"""Train one network: one job, from its first epoch or from where it was interrupted, to its row in the store.

Bit-exact on resumption: the data order and the masks of an epoch follow from seeds of that epoch alone, so the weights
and the optimiser's state are all there is to save.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import contdrop

from ..coadaptation import coadaptation
from ..kernels import backend
from . import state, streams
from .data import Dataset
from .experiment import Covariance, Job
from .methods import Method
from .recipes import Optimiser
from .store import FINAL, METRICS, Epoch, Store

_EVALUATED_AT_ONCE = 1000


class DivergenceError(Exception):
    """Training went where no number is; the text says when."""


@dataclass(frozen=True, eq=False)
class Images:
    """A data set as tensors. They may lie in memory that several processes share, for nobody writes to them."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    divisor: float
    fingerprint: str

    @classmethod
    def of(cls, data: Dataset) -> Images:
        arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
        images, labels, test_images, test_labels = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        return cls(images, labels, test_images, test_labels, data.divisor, data.fingerprint)

    def share(self) -> Images:
        """Moves the tensors to shared memory, so that handing them to another process copies nothing."""
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the images: for training, validation or testing."""

    images: Tensor
    labels: Tensor
    divisor: float

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        pixels = self.images.index_select(0, indices).to(torch.float32).div_(self.divisor)
        return pixels, self.labels.index_select(0, indices)

    def __len__(self) -> int:
        return len(self.labels)


class Training:
    """A network on its way from epoch to epoch.

    Args:
        job: What to train.
        method: The job's method with all parameters.
        images: The data set.
    """

    def __init__(self, job: Job, method: Method, images: Images) -> None:
        experiment = job.protocol.experiment
        self.job, self.method, self.recipe = job, method, job.protocol.recipe
        self.seeds = {name: self._seed(name) for name in (streams.SPLIT, streams.WEIGHTS, streams.ORDER)}
        self.seeds[streams.MASKS] = self._seed(streams.MASKS, method)
        chosen = experiment.split.indices(len(images.train_labels), self.seeds[streams.SPLIT])
        train, validation = (torch.from_numpy(part) for part in chosen)
        self.train_part = _part(images, train)
        self.validation_part = _part(images, validation)
        self.test_part = Part(images.test_images, images.test_labels, images.divisor)
        input_keep = self.recipe.input_keep_of(method.name)
        self.network = experiment.model.build(method, scale=self.recipe.scale, input_keep=input_keep)
        self.recipe.initialise(self.network, torch.Generator().manual_seed(self.seeds[streams.WEIGHTS]))
        self.optimiser: Optimiser = self.recipe.optimiser(self.network, job.epochs)
        self.epoch = 0  # finished epochs
        self.fingerprints = {
            "data": images.fingerprint,
            "split": _digest(train.numpy(), validation.numpy()),
            "initial weights": _digest(*(p.detach().numpy() for _, p in sorted(self.network.named_parameters()))),
            "data order": self._order_fingerprint(),
        }

    def _seed(self, stream: str, *detail: object) -> int:
        return streams.seed(self.job.protocol.seed, self.job.stage, self.job.run, stream, *detail)

    def _order(self, epoch: int) -> Tensor:
        if not self.recipe.shuffle:
            return torch.arange(len(self.train_part))
        seed = self._seed(streams.ORDER, epoch)
        return torch.from_numpy(streams.permutation(len(self.train_part), seed))

    def _order_fingerprint(self) -> str:
        """Of every epoch's seed, from which its order follows, and of the first and the last order themselves."""
        seeds = np.array([self._seed(streams.ORDER, epoch) for epoch in range(self.job.epochs)], np.uint64)
        return _digest(seeds, *(self._order(epoch).numpy() for epoch in {0, self.job.epochs - 1}))

    def state(self) -> bytes:
        """All that is needed to resume after this epoch."""
        return state.dumps(
            {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict(), "epoch": self.epoch}
        )

    def restore(self, saved: bytes) -> None:
        content = state.loads(saved)
        self.network.load_state_dict(content["network"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.epoch = content["epoch"]

    def run_epoch(self) -> Epoch:
        """Trains for one epoch and evaluates; raises :class:`DivergenceError` if the loss is no number."""
        start = time.perf_counter()
        # From here on torch's default generator is drawn from by masks only.
        torch.manual_seed(self._seed(streams.MASKS, self.method, self.epoch))
        self.optimiser.begin_epoch(self.epoch)
        train_loss, train_error = self._train()
        self.epoch += 1
        if not np.isfinite(train_loss):
            raise DivergenceError(f"the training loss is {train_loss} in epoch {self.epoch}")
        val_loss, val_error, _ = self.evaluate(self.validation_part)
        if not np.isfinite(val_loss):
            raise DivergenceError(f"the validation loss is {val_loss} in epoch {self.epoch}")
        test_loss, test_error = None, None
        if self.job.stage == FINAL:  # for the curve; nothing is decided by it
            test_loss, test_error, _ = self.evaluate(self.test_part)
        rate = self.optimiser.learning_rate
        self.optimiser.end_epoch(val_loss)
        seconds = time.perf_counter() - start
        return Epoch(self.epoch, train_loss, train_error, val_loss, val_error, test_loss, test_error, rate, seconds)

    def _train(self) -> tuple[float, float]:
        """One pass over the training images; mean loss and error in per cent as it went, under dropout."""
        network, optimiser, part = self.network.train(), self.optimiser, self.train_part
        total_loss, wrong = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        for indices in torch.split(self._order(self.epoch), self.recipe.batch_size):
            pixels, labels = part.batch(indices)
            logits = network(pixels)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total_loss += loss.detach() * len(labels)
            wrong += (logits.argmax(1) != labels).sum()
        return float(total_loss) / len(part), 100 * float(wrong) / len(part)

    @torch.no_grad()
    def evaluate(self, part: Part) -> tuple[float, float, np.ndarray]:
        """Mean loss, error in per cent, and the predicted classes, in evaluation mode."""
        network = self.network.eval()
        total_loss, predictions = 0.0, []
        for indices in torch.split(torch.arange(len(part)), _EVALUATED_AT_ONCE):
            pixels, labels = part.batch(indices)
            logits = network(pixels)
            total_loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            predictions.append(logits.argmax(1))
        predicted = torch.cat(predictions)
        wrong = int((predicted != part.labels).sum())
        return total_loss / len(part), 100 * wrong / len(part), predicted.numpy().astype(np.int16)

    def results(self) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """The final model's losses and errors, and what else is kept of it."""
        parts = {"train": self.train_part, "val": self.validation_part}
        if self.job.stage == FINAL:
            parts["test"] = self.test_part
        found, artefacts = {}, {}
        for name, part in parts.items():
            found[f"{name}_loss"], found[f"{name}_error"], predictions = self.evaluate(part)
            if name == "test":
                artefacts["test_predictions"] = predictions
                artefacts["test_labels"] = part.labels.numpy().astype(np.int16)
        covariance = self.job.protocol.experiment.covariance
        if covariance and self.job.stage == FINAL:
            artefacts |= self._covariances(covariance)
        results = {name: found[name] for name in METRICS if name in found}
        # The noise is for reports, which compare methods at equal mean and strength.
        return results | self.method.noise(self.recipe.scale), artefacts

    def _covariances(self, what: Covariance) -> dict[str, np.ndarray]:
        """Histograms of the covariance between units, over some validation images."""
        seed = self._seed(streams.MEASURE)
        chosen = torch.from_numpy(streams.permutation(len(self.validation_part), seed)[: what.inputs])
        pixels, _ = self.validation_part.batch(chosen)
        layers = list(self.job.protocol.experiment.model.hidden_layers)
        found = coadaptation(self.network, pixels, layers, what.repeats, seed=seed)
        edges = torch.linspace(-what.largest, what.largest, what.bins + 1, dtype=torch.float64)
        kept = {"covariance_edges": edges.numpy()}
        for number, layer in enumerate(layers, 1):
            counts, _ = found.histogram(layer, edges)
            kept[f"covariance_layer{number}"] = counts.numpy()
        return kept


def run(
    store: Store,
    job_id: int,
    job: Job,
    method: Method,
    images: Images,
    *,
    checkpoint_seconds: float = 1.0,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Does one job, whose lock this process holds, and writes all of it to the store.

    Args:
        store: Where.
        job_id: Of the job, in the store.
        job: What to train.
        method: The job's method with all parameters.
        images: The data set.
        checkpoint_seconds: Save the state at the first epoch's end after so much time.
        after_epoch: Called with every finished epoch.
    """
    training = Training(job, method, images)
    mismatch = store.begin(
        job_id,
        variant=str(method),
        seeds=training.seeds,
        fingerprints=training.fingerprints,
        versions=versions(),
        machine=machine(),
    )
    if mismatch:
        store.fail(job_id, mismatch)
        return
    saved = store.resume(job_id)
    if saved:
        try:
            training.restore(saved[1])
        except (ValueError, KeyError, TypeError, RuntimeError):  # whole, but of another version: it starts over
            store.drop_progress(job_id)
            training = Training(job, method, images)
    unsaved: list[Epoch] = []
    last_saved = time.monotonic()
    try:
        while training.epoch < job.epochs:
            unsaved.append(training.run_epoch())
            after_epoch(unsaved[-1])
            if time.monotonic() - last_saved >= checkpoint_seconds and training.epoch < job.epochs:
                store.progress(job_id, unsaved, (training.epoch, training.state()))
                unsaved, last_saved = [], time.monotonic()
        results, artefacts = training.results()
    except DivergenceError as reason:
        store.fail(job_id, f"diverged: {reason}", unsaved)
        return
    store.finish(job_id, unsaved, results, artefacts)


def seconds_per_epoch(job: Job, method: Method, images: Images, *, threads: int, batches: int = 12) -> float:
    """About how long an epoch of a job takes on this machine: a few batches are trained, and nothing is kept."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training = Training(job, method, images)
        part, size = training.train_part, training.recipe.batch_size
        times = []
        training.optimiser.begin_epoch(0)
        training.network.train()
        for indices in torch.split(torch.arange(len(part)), size)[:batches]:
            start = time.perf_counter()
            pixels, labels = part.batch(indices)
            torch.nn.functional.cross_entropy(training.network(pixels), labels).backward()  # type: ignore[no-untyped-call]
            training.optimiser.step()
            times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return sorted(times)[len(times) // 2] * len(part) / size


def versions() -> dict[str, str]:
    """Of everything that may change a number."""
    packages = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    return {
        "contdrop": contdrop.__version__,
        "python": platform.python_version(),
        **packages,
        "backend": backend().name,
    }


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor()


def _part(images: Images, indices: Tensor) -> Part:
    return Part(
        images.train_images.index_select(0, indices), images.train_labels.index_select(0, indices), images.divisor
    )


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]
