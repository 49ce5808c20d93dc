"""Cost of dispatching a job: jobs that do nothing, by executor, without the start of its processes.

The time from the first job's beginning to the last one's end, times the workers, over the jobs: all that an executor
and the store do for a job. The goal is 150 ms.

python benchmarks/executors.py [--jobs 100] [--executors local,ray] [--workers 1,2]
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time

from contdrop import lab
from contdrop.lab.runner.runner import PlannedStudy, StudyRunner, find_cluster
from contdrop.lab.store.schema import Epoch
from contdrop.lab.study.plan import PlannedJob, plan
from contdrop.lab.study.source import of_study

GOAL = 0.150  # seconds


class Clock:
    """Recorder of when jobs ended and how many workers had started, as some take seconds longer to start."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.ends: dict[int, list[float]] = {}

    def started(self, worker: int, number: int, job: PlannedJob) -> None:
        self.begun.add(worker)

    def epoch(self, worker: int, number: int, job: PlannedJob, epoch: Epoch) -> None: ...
    def ended(self, number: int, job: PlannedJob) -> None:
        self.ends.setdefault(len(self.begun), []).append(time.perf_counter())

    def died(self, worker: int, job: PlannedJob | None) -> None: ...

    def rate(self) -> tuple[int, float]:
        """Return the number of workers, and seconds per job while most jobs were done."""
        workers = max(self.ends, key=lambda number: len(self.ends[number]))
        ends = self.ends[workers]
        return workers, (ends[-1] - ends[0]) / (len(ends) - 1)


def nothing(job: lab.Job) -> float:
    return 1.0


def measure(executor: str, jobs: int, workers: int) -> tuple[int, float]:
    study = lab.Study("empty", methods=("none", "gaussian"), reference="none", run=nothing, runs=jobs // 2)
    cluster = find_cluster(executor, workers=workers)
    runner = StudyRunner([PlannedStudy(plan(study), of_study(study))], workers=workers, cluster=cluster)
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory, runner.session(pathlib.Path(directory) / "runs.db"):
        outcome = runner.run(clock)
    assert len(outcome.finished) == jobs
    return clock.rate()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=100)
    options.add_argument("--executors", default="local,ray")
    options.add_argument("--workers", default="1,2")
    given = options.parse_args()
    for executor in given.executors.split(","):
        for workers in map(int, given.workers.split(",")):
            busy, rate = measure(executor, given.jobs, workers)
            cost = rate * busy
            verdict = "goal met" if cost < GOAL else "GOAL MISSED"
            print(
                f"{executor}, {busy} at a time: {1000 * cost:.0f} ms per job and worker, {1 / rate:.0f} jobs per "
                f"second, {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
