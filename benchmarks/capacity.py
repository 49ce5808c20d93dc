"""Time of a comparison by the width of the network and the number of workers.

A network 784-w-w-10 on 6000 random images, batch 100, one torch thread: seconds of an epoch by width, alone in this
process; then the same study, 8 jobs of 2 epochs, by each executor, from its first job's start to its last one's end.

python benchmarks/capacity.py [--executors local:1,local:2,ray:2] [--widths 100,200,400,800]
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time

import torch
from torch import nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.runner.runner import PlannedStudy, StudyRunner, find_cluster
from contdrop.lab.store.schema import Epoch
from contdrop.lab.study.plan import PlannedJob, plan
from contdrop.lab.study.source import of_study
from contdrop.lab.training.trainer import Trainer

EXAMPLES, METHODS, RUNS, EPOCHS = 6000, ("original", "gaussian:match"), 4, 2


def make(width: int) -> lab.Study:
    def data() -> lab.Data:
        images = torch.rand(EXAMPLES + 2000, 784, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(EXAMPLES + 2000) % 10
        train, test = (images[:-1000], labels[:-1000]), (images[-1000:], labels[-1000:])
        return lab.Data(train, test, 1000)

    def model() -> nn.Module:
        hidden = [
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.3),
        ]
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    return lab.Study(
        f"width-{width}", data, model, methods=METHODS, runs=RUNS, epochs=EPOCHS, batch_size=100, metric="error"
    )


def epoch(width: int) -> float:
    """Return the seconds of one epoch with evaluation, measured after a warm-up epoch."""
    study = make(width)
    assert study.data is not None
    job = plan(study)[0]
    training = Trainer(job, job.variant({}), prepare(study.data(), task=study.task))
    return [training.run_epoch().seconds for _ in range(2)][1]


class Clock:
    begun: float | None = None

    def started(self, worker: int, number: int, job: PlannedJob) -> None:
        self.begun = self.begun or time.perf_counter()

    def epoch(self, worker: int, number: int, job: PlannedJob, epoch: Epoch) -> None: ...
    def ended(self, number: int, job: PlannedJob) -> None: ...
    def died(self, worker: int, job: PlannedJob | None) -> None: ...


def whole(executor: str, workers: int, width: int) -> tuple[float, float]:
    """Return the seconds of all jobs, without and with the start of all processes."""
    study, clock = make(width), Clock()
    cluster = find_cluster(executor, workers=workers)
    runner = StudyRunner([PlannedStudy(plan(study), of_study(study))], workers=workers, cluster=cluster)
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        with runner.session(pathlib.Path(directory) / "runs.db"):
            runner.run(clock)
            end = time.perf_counter()
    return end - (clock.begun or end), end - begin


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--executors", default="local:1,local:2,ray:2")
    options.add_argument("--widths", default="100,200,400,800")
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    widths = [int(width) for width in given.widths.split(",")]
    for width in widths:
        print(f"784-{width}-{width}-10: {epoch(width):.2f} s per epoch of {EXAMPLES} examples", flush=True)
    for each in given.executors.split(","):
        executor, _, workers = each.partition(":")
        jobs, everything = whole(executor, int(workers), widths[-1])
        count = len(METHODS) * RUNS
        print(
            f"{executor}, {workers} at a time: {count} jobs of {EPOCHS} epochs in {jobs:.1f} s, {jobs / count:.2f} s "
            f"per job; {everything:.1f} s with the start of all processes",
            flush=True,
        )


if __name__ == "__main__":
    main()
