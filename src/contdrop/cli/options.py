"""Options that several commands have."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer


def option(metavar: str | None, text: str, *names: str, heading: str | None = None) -> Any:
    """Declare an option for ``Annotated``; a flag has no metavar, and its name, lest typer adds one that negates it."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=heading)


STORE = pathlib.Path("runs.db")

Store = Annotated[pathlib.Path, option("FILE", "Where all runs are kept.")]
DataDir = Annotated[
    pathlib.Path | None, option("DIR", "Where the data sets are; else $CONTDROP_DATA, else your cache directory.")
]
Json = Annotated[bool, option(None, "Print JSON instead, with every number.", "--json")]
Details = Annotated[bool, option(None, "Show every comparison.", "--details")]
Draws = Annotated[int, option("MASKS", "Masks per expectation; more show smaller errors.")]
Plot = Annotated[pathlib.Path | None, option("FILE", "Draw the findings into a .png or .svg file.", "--plot")]
