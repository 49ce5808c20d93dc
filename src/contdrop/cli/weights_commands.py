"""``contdrop weights``: which published weights there are, and whether a file of them fits."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Annotated, Any

import typer

from .._text import plural, printable
from ..replication import pretrained
from ..replication.datasets import location
from ..replication.datasets.dataset_source import MissingError
from . import terminal

HELP = """List and check the published weights that networks can start from.

They are kept in the data directory (see contdrop data --help), each in a folder of its own name.

\b
Examples:
  contdrop weights list
  contdrop weights check nin-cifar10
"""

LIST_HELP = """Show the published weights, and which of them are here.

\b
Examples:
  contdrop weights list
  contdrop weights list --data-dir /data --json
"""

CHECK_HELP = """Read weights, compare their shapes layer by layer, and measure the network's error if its data are here.

A file is a Caffe model or a state_dict that torch saved; nothing in it is executed. Layers that the file does not have
are named: they would stay random. What takes minutes is computed once and kept in the directory that CONTDROP_CACHE
names, or in your cache directory.

\b
Examples:
  contdrop weights check nin-cifar10
  contdrop weights check nin-cifar10 --weights mine.pt
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, help=HELP)

_DataDir = Annotated[
    pathlib.Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where data sets and weights are kept.", show_default=False),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


@app.callback(invoke_without_command=True)
def weights_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", help=LIST_HELP, short_help="Show the published weights, and which of them are here.")
def list_command(data_dir: _DataDir = None, as_json: _Json = False) -> None:
    rows = [_row(each, data_dir) for each in pretrained.PUBLISHED]
    if as_json:
        print(json.dumps({"directory": str(location.directory(data_dir)), "weights": rows}, indent=1))
        return
    shown = [
        ((row["name"], row["title"], f"{row['parameters']:,}"), "yes" if row["present"] else "no", row["place"])
        for row in rows
    ]
    terminal.print_places(("name", "network", "parameters"), shown, right=(2,))


def _row(published: pretrained.Published, data_dir: pathlib.Path | None) -> dict[str, Any]:
    return {
        "name": published.name,
        "title": published.title,
        "parameters": published.parameters,
        "present": published.path(data_dir).is_file(),
        "place": str(published.path(data_dir)),
        "offered": published.offered,
    }


@app.command("check", help=CHECK_HELP, short_help="Check a file of weights against its network.")
def check_command(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    file: Annotated[
        pathlib.Path | None,
        typer.Option("--weights", metavar="FILE", help="This file, not the one in the data directory."),
    ] = None,
    data_dir: _DataDir = None,
    as_json: _Json = False,
) -> None:
    published = pretrained.find(name)
    path = file or published.here(data_dir)
    assigned = pretrained.assign(published.network(), pretrained.read(path), str(path))
    if not as_json:
        _print_layers(assigned)
    error, reason = _error(published, path, data_dir, assigned)
    if as_json:
        found = {
            "name": name,
            "file": str(path),
            "layers": assigned.layers,
            "random": assigned.left,
            "unused": assigned.unused,
            "data": published.data,
            "test_error": error,
            "published_error": published.error,
        }
        print(json.dumps(found, indent=1))
    elif error is not None:
        print(f"test error on {published.data}: {error:.2f} % (published: {published.error} %)")
    elif reason:
        print(printable(f"test error: not measured, {reason}"))


def _print_layers(assigned: pretrained.Assigned) -> None:
    for layer, shape in assigned.layers.items():
        print(printable(f"{layer}: ok, {'x'.join(map(str, shape))}, {math.prod(shape):,} weights"))
    if assigned.left:
        print(f"no published weights, so random: {', '.join(assigned.left)}")
    if assigned.unused:
        print(printable(f"not used: {plural(len(assigned.unused), 'layer')} of the file, {', '.join(assigned.unused)}"))


def _error(
    published: pretrained.Published, path: pathlib.Path, data_dir: pathlib.Path | None, assigned: pretrained.Assigned
) -> tuple[float | None, str]:
    if published.measure is None:
        return None, ""
    if assigned.left:
        return None, "as some layers would be random"
    try:
        return published.measure(path, data_dir), ""
    except MissingError as problem:
        return None, str(problem)
