"""``lab.compare``: a study from Python or a notebook, and the :class:`Result` that shows itself."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence

from .result import Result
from .runner.progress import Lines
from .runner.ray_cluster import resources
from .runner.runner import Conductor, Planned
from .store.writer import Store
from .study import plan
from .study.source import Source, of_study
from .study.study import Study


def compare(
    study: Study,
    *,
    runs: int | None = None,
    epochs: int | None = None,
    methods: Sequence[str] | None = None,
    store: pathlib.Path | str = "runs.db",
    workers: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    devices: int = 1,
    seed: int | None = None,
    preset: str | None = None,
    retry_failed: bool = False,
    redo: bool = False,
    progress: bool = True,
    executor: str = "local",
    address: str | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
) -> Result:
    """Trains all methods of a study, run by run, and compares them.

    What is in the store already is not done again, so a larger ``runs`` adds runs, and an interrupted call resumes.

    Args:
        study: What is compared. Its functions may exist in this process only.
        runs: Paired runs per method; the study's if None.
        epochs: Per run; the study's if None.
        methods: Labels; the study's if None.
        store: File that keeps everything.
        workers: Processes that train at a time; one per core if None, and 0 trains in this process.
        device: "cpu", "cuda", "mps", or "auto" for the fastest there is.
        threads: torch threads in each process; the study's if None.
        devices: Processes that do each job together, each with its part of every batch.
        seed: Of everything random; the study's if None.
        preset: The size, if the study has several.
        retry_failed: Whether failed jobs are done once more.
        redo: Whether finished runs are done again that came from another kind of processor, or another number of
            threads, than what is to be added to them.
        progress: Whether to show how it goes.
        executor: "local", or "ray" for a cluster.
        address: Of the cluster; Ray is started on this machine, on loopback only, if None.
        cpus: Processors of each job there; one per thread if None.
        gpus: GPUs of each job there; 0.25 puts four jobs on one.

    Raises:
        UserError: Something is wrong with the study; the text says what and where, before anything is trained.
    """
    jobs = plan.plan(study, preset=preset, labels=methods, runs=runs, epochs=epochs, seed=seed)
    source = Source("pickle", study.name) if workers == 0 else of_study(study)
    path = pathlib.Path(store)
    conductor = Conductor(
        [Planned(jobs, source)],
        workers=workers,
        device=device,
        threads=threads,
        devices=devices,
        retry_failed=retry_failed,
        redo=redo,
        cluster=resources(executor, address=address, cpus=cpus, gpus=gpus, workers=workers),
        say=lambda line: print(line) if progress else None,
    )
    with contextlib.closing(conductor):
        conductor.load()
        with Store(path, create=True) as opened:
            conductor.prepare(opened)
            estimate = conductor.estimate()
            conductor.run(Lines(opened, conductor.jobs, estimate, conductor.processes, show=progress))
    return Result(path, jobs[0].protocol.key, study)
