"""Options that several commands have."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

STORE = pathlib.Path("runs.db")

# Headings in --help.
PLAN, MACHINE, RESUME = "Plan", "Where and how jobs run", "Resuming"

Store = Annotated[pathlib.Path, typer.Option("--store", metavar="FILE", help="Where all runs are kept.")]
DataDir = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Where the data sets are; else $CONTDROP_DATA, else your cache directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Methods = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD,...",
        help="Only these, such as none,gaussian,gaussian:sigma=0.5.  [default: all]",
        rich_help_panel=PLAN,
    ),
]
Runs = Annotated[
    int | None,
    typer.Option(metavar="RUNS", help="Paired runs per method.  [default: the study's]", rich_help_panel=PLAN),
]
Epochs = Annotated[
    int | None, typer.Option(metavar="EPOCHS", help="Epochs per run.  [default: the study's]", rich_help_panel=PLAN)
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="SEED",
        help="Seed of all that is random; another seed gives other runs.  [default: the study's, 0]",
        rich_help_panel=PLAN,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="PROCESSES", help="Processes that train at a time.  [default: one per core]", rich_help_panel=MACHINE
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="THREADS", help="torch threads in each of them.  [default: the study's, 1]", rich_help_panel=MACHINE
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        metavar="DEVICES",
        help="Processes, or GPUs, that do each job together, for jobs too large for one.",
        rich_help_panel=MACHINE,
    ),
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda|mps|auto", help="Where to train.", rich_help_panel=MACHINE)]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Do failed jobs once more.", rich_help_panel=RESUME)]
Redo = Annotated[
    bool,
    typer.Option(
        "--redo",
        help="Do finished jobs again whose runs would mix kinds of processors or --threads.",
        rich_help_panel=RESUME,
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Do part I of N of the runs, for contdrop merge; 0/N: the selection alone.",
        rich_help_panel=MACHINE,
    ),
]
Executor = Annotated[str, typer.Option(metavar="local|ray", help="Where jobs are done.", rich_help_panel=MACHINE)]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of a Ray cluster, or auto.  [default: Ray is started here, on loopback]",
        rich_help_panel=MACHINE,
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option(
        metavar="CPUS", help="With Ray: processors per job.  [default: --threads x --devices]", rich_help_panel=MACHINE
    ),
]
Gpus = Annotated[
    float,
    typer.Option(metavar="GPUS", help="With Ray: GPUs per job; 0.25 puts four jobs on one.", rich_help_panel=MACHINE),
]
