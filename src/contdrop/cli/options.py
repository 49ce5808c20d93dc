"""Options that several commands have, and the file that ``--plot`` writes."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Annotated, Any

import typer

from .._files import replacing
from ..errors import UserError


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

PLOT_FORMATS = (".png", ".svg")


def check_plot(path: pathlib.Path) -> None:
    """Check that a plot can be written, before time is spent on its content."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise UserError(f"--plot: expected a file name that ends in {' or '.join(PLOT_FORMATS)}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise UserError(f"--plot: there is no directory {str(path.parent)!r}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError('--plot: needs matplotlib, which is not installed; run: pip install "contdrop[lab]"')


def save_plot(figure: Any, path: pathlib.Path) -> None:
    """Write a figure; the same numbers give the same file."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if form == "svg" else None
    try:
        with replacing(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "contdrop"}):
            figure.savefig(temporary, format=form, dpi=160, metadata=metadata)
    except OSError as error:
        raise UserError(f"--plot: cannot write {path}: {error.strerror}") from error
