"""Training steps per second of the lab's executor, plain PyTorch, Keras and Lightning, in one run.

The network is 784-800-800-10 with dropout on both hidden layers, in mini-batches of 100; the data are random, for speed
does not depend on them. Contestants take turns, and the best of several rounds counts, on whatever cores there are:

- contdrop: the local executor, a worker process with one torch thread per core, from the first job's start to the last
  one's end in the store;
- PyTorch: a plain loop in one process with as many threads as cores, a DataLoader, ``nn.Dropout`` and ``optim.SGD``;
- Keras (on torch) and Lightning: the same network, where they are installed.

    python benchmarks/throughput.py [--steps 500] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.runner import local
from contdrop.lab.runner.queue import JobQueue, WorkerConfig
from contdrop.lab.store.schema import Epoch
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import PlannedJob, add_plan, plan
from contdrop.lab.study.source import StudySpec, of_study
from contdrop.replication.networks import MLP
from contdrop.replication.recipes import Hinton

BATCH = 100
WIDTHS = (784, 800, 800, 10)


def random_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return pixels, torch.randint(0, 10, (count,), generator=generator)


class Clock:
    """Observer of the executor that records the start of the first job, to exclude the start of processes."""

    def __init__(self) -> None:
        self.begin: float | None = None

    def started(self, worker: int, number: int, job: PlannedJob) -> None:
        self.begin = self.begin or time.perf_counter()

    def epoch(self, worker: int, number: int, job: PlannedJob, epoch: Epoch) -> None: ...
    def ended(self, number: int, job: PlannedJob) -> None: ...
    def died(self, worker: int, job: PlannedJob | None) -> None: ...


def executor(method: str, steps: int, workers: int) -> float:
    """Return steps per second of the local executor, including evaluation, checkpoints and the store."""
    pixels, labels = random_images(steps * BATCH + 100)

    def data() -> lab.Data:
        return lab.Data((pixels, labels), (pixels[:100], labels[:100]), 100, subset=steps * BATCH, stratify=False)

    study = lab.Study(
        name="throughput",
        data=data,
        model=MLP(widths=WIDTHS, scale="paper"),
        scale="paper",
        methods=(method,),
        reference=method,
        metric="error",
        sizes={"quick": lab.Size(runs=workers, epochs=2)},
    ).replace(**Hinton(learning_rate=0.1).settings(), evaluation_batch_size=1000)
    planned = plan(study)
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory, Store(pathlib.Path(directory) / "runs.db", create=True) as store:
        jobs = add_plan(store, planned)
        protocol = planned[0].protocol
        shipments = {protocol.key: StudySpec.of(protocol, of_study(study))}
        work = WorkerConfig(shipments, {protocol.key: prepare(data(), task="classification")})
        local.run(JobQueue(store, jobs, clock), work, workers=workers)
        seconds = time.perf_counter() - (clock.begin or math.nan)
        assert all(job.status == "finished" for job in store.jobs())
    return sum(job.epochs for job in planned) * steps / seconds


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 800),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(800, 800),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(800, 10),
    )


def float_data(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = random_images(steps * BATCH)
    return pixels.float().div_(255), labels


def plain_pytorch(steps: int) -> float:
    pixels, labels = float_data(steps)
    data = torch.utils.data.TensorDataset(pixels, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return _rate(epoch, steps)


def lightning_trainer(steps: int) -> float:
    import lightning

    pixels, labels = float_data(steps)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pixels, labels), BATCH, shuffle=True)

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    model = Classifier()

    def epoch() -> None:
        lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(model, loader)

    return _rate(epoch, steps)


def keras_fit(steps: int) -> float:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    pixels, labels = (tensor.numpy() for tensor in float_data(steps))
    hidden = [layer for _ in range(2) for layer in (keras.layers.Dense(800, "relu"), keras.layers.Dropout(0.5))]
    model = keras.Sequential([keras.layers.Flatten(), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    return _rate(lambda: model.fit(pixels, labels, batch_size=BATCH, epochs=1, verbose=0), steps)


def _rate(epoch: Callable[[], object], steps: int) -> float:
    epoch()  # warm up
    start = time.perf_counter()
    epoch()
    return steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    contestants: dict[str, Callable[[], float]] = {
        "PyTorch loop, DataLoader, nn.Dropout": lambda: plain_pytorch(options.steps),
        f"contdrop, gaussian, {cores} workers": lambda: executor("gaussian", options.steps, cores),
        f"contdrop, bernoulli, {cores} workers": lambda: executor("bernoulli", options.steps, cores),
    }
    for name, package, run in (("Lightning", "lightning", lightning_trainer), ("Keras on torch", "keras", keras_fit)):
        if importlib.util.find_spec(package):
            contestants[name] = lambda run=run: run(options.steps)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name, run in contestants.items():
            rates[name].append(run())
    base = max(rates["PyTorch loop, DataLoader, nn.Dropout"])
    if options.json:
        print(
            json.dumps(
                {name: {"best": max(r), "ratio": max(r) / base, "all": r} for name, r in rates.items()}, indent=1
            )
        )
        return
    print(
        f"Steps per second, best of {options.rounds}, {cores} cores, torch {torch.__version__}, numpy {np.__version__}"
    )
    for name, found in rates.items():
        print(f"{name:42} {max(found):8.1f}   {max(found) / base:5.2f}x")


if __name__ == "__main__":
    main()
