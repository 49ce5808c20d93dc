"""The commands ``contdrop import`` and ``contdrop merge``."""

from __future__ import annotations

import functools
import pathlib
from typing import Annotated

import typer

from .._text import plural, printable
from ..errors import UserError
from ..lab.store import csv_import
from ..lab.store.merge import MergeResult, import_file, is_table
from ..lab.store.merge import merge as merge_stores
from ..lab.training.metric_values import better_of
from . import options, terminal

IMPORT_HELP = """Add an archive, or a table of finished numbers, to a store, which is made if there is none.

An archive of contdrop export --archive holds everything but the states of jobs under way. After it, contdrop run does
only what is missing, and contdrop report writes the same page. What the store has already must be equal, or nothing is
added.

A CSV file with the columns method, run and value (one line per run) becomes an experiment of its own, marked as
imported: for the statistics of runs that were done elsewhere. Values are errors in per cent, unless --metric names
something else, of which --better says which values are better.

\b
Examples:
  contdrop import table1.jsonl.gz --store table1.db
  contdrop import errors.csv --name "their table 2" --reference baseline
  contdrop import auroc.csv --metric auroc --better higher --margin 0.01
"""

MERGE_HELP = """Join stores and archives into a new store.

What one has and the others have not is added; what several have must be equal in everything but times, or nothing is
written. Every job keeps the name of the file that it came from (contdrop export shows it).

\b
Examples:
  contdrop merge all.db laptop.db cluster.jsonl.gz
"""


def import_command(
    file: Annotated[pathlib.Path, typer.Argument(metavar="FILE", help="An archive, a store or a CSV file.")],
    store: options.Store = options.STORE,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the experiment that a CSV file becomes.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="METHOD", help="What its methods are compared with.  [default: the first]")
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="What its values are.  [default: error]")] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="UNIT", help="Unit of the values.  [default: % of errors, else none]")
    ] = None,
    better: Annotated[
        str | None,
        typer.Option(metavar="lower|higher", help="Which values are better.  [default: by the name, else lower]"),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="The smallest difference that matters, fixed before the numbers were seen."
        ),
    ] = None,
) -> None:
    """The command; ``IMPORT_HELP`` says what it does."""
    given = {"name": name, "reference": reference, "metric": metric, "unit": unit, "better": better, "margin": margin}
    told = [option for option, value in given.items() if value is not None]
    if told and not is_table(file):
        raise UserError(f"--{told[0]}: expected a CSV file with it; {file} says by itself what is in it")
    metric = metric or "error"
    unit = ("%" if metric == "error" else "") if unit is None else unit
    measured = {"name": metric, "unit": unit, "better": better or better_of(metric) or "lower"}
    table = functools.partial(csv_import.read, name=name, reference=reference, metric=measured, margin=margin)
    _show(import_file(file, store, table), store)


def merge(
    out: Annotated[pathlib.Path, typer.Argument(metavar="NEW_STORE", help="The new store.")],
    sources: Annotated[list[pathlib.Path], typer.Argument(metavar="STORE_OR_ARCHIVE", help="Stores and archives.")],
) -> None:
    """The command; ``MERGE_HELP`` says what it does."""
    _show(merge_stores(out, sources), out)


def _show(outcome: MergeResult, store: pathlib.Path) -> None:
    there = f", {plural(outcome.kept, 'job')} there already" if outcome.kept else ""
    print(printable(f"{store}: {plural(outcome.added, 'job')} added{there}."))
    for note in outcome.notes:
        terminal.say(f"contdrop: {note}")
