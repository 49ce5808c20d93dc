"""Options that several commands have."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

STORE = pathlib.Path("runs.db")

Store = Annotated[pathlib.Path, typer.Option("--store", metavar="FILE", help="Where all runs are kept.")]
DataDir = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="Where the data sets are; else $CONTDROP_DATA, else your cache directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, with every number.")]
Details = Annotated[bool, typer.Option("--details", help="Show every comparison.")]
Draws = Annotated[int, typer.Option(metavar="MASKS", help="Masks per expectation; more show smaller errors.")]
Plot = Annotated[
    pathlib.Path | None, typer.Option("--plot", metavar="FILE", help="Draw the findings into a .png or .svg file.")
]
