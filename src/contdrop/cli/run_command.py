"""``contdrop run``: run an experiment of the catalogue, or resume it."""

from __future__ import annotations

from typing import Annotated

import typer

from ..lab.runner.runner import PlannedStudy, find_cluster
from ..lab.study.plan import plan
from ..lab.study.source import StudySource
from ..replication import datasets, studies
from . import options, session

HELP = """Train every method of an experiment, run by run, and compare them.

In run i all methods share the split, the initial weights and the order of the data; only the masks differ. Everything
goes into one file, the store: what is finished is never done again, and an interrupted command resumes where it stopped
when it is given once more, bit for bit. More runs may be added later with a larger --runs. Two commands may work on one
store at the same time. For a model and data of your own, see contdrop compare --help.

Sigma, alpha and beta are selected first, on validation data, by runs of their own. The size is an affordable one, and
no replication, unless --preset paper asks for the paper's: a table then takes a month on two cores. What will take
more than a day says so before it begins.

\b
Examples:
  contdrop run digits-mlp
  contdrop run mnist-mlp-relu --runs 3
  contdrop run mnist-mlp-relu --methods none,bernoulli,gaussian:sigma=0.3
  contdrop run mnist-mlp --preset paper --store table1.db --workers 4
"""


def run(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name of contdrop list.")],
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The size: quick (default) or paper; see contdrop list.")
    ] = None,
    methods: options.Methods = None,
    runs: options.Runs = None,
    epochs: options.Epochs = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    devices: options.Devices = 1,
    device: options.Device = "cpu",
    shard: options.Shard = None,
    executor: options.Executor = "local",
    address: options.Address = None,
    cpus: options.Cpus = None,
    gpus: options.Gpus = 0.0,
    retry_failed: options.RetryFailed = False,
    redo: options.Redo = False,
    store: options.Store = options.STORE,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> int:
    """The command; ``HELP`` says what it does."""
    session.check_workers(workers)
    datasets.use_directory(data_dir)
    labels = session.split_labels(methods)
    plans = [
        PlannedStudy(
            plan(study, preset=preset, labels=labels, runs=runs, epochs=epochs, seed=seed),
            StudySource("catalogue", study.name),
        )
        for study in studies.find(experiment)
    ]
    cluster = find_cluster(executor, address=address, cpus=cpus, gpus=gpus, workers=workers)
    performance = session.perform(
        plans,
        store,
        workers=workers,
        threads=threads,
        devices=devices,
        device=device,
        retry_failed=retry_failed,
        redo=redo,
        shard=session.parse_shard(shard),
        cluster=cluster,
    )
    if performance.interrupted:
        return 130
    session.show(performance, store, as_json=as_json)
    return session.complain(performance)
