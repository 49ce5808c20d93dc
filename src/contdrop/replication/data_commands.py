"""The commands ``data`` and ``weights``: data sets and published weights on this machine."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .._text import plural, printable, visible
from ..cli import options, terminal
from ..cli.options import option
from . import datasets, pretrained
from .datasets import dataset
from .datasets.dataset import MissingError

data = typer.Typer(add_completion=False, rich_markup_mode=None)


@data.callback(invoke_without_command=True)
def data_command(context: typer.Context) -> None:
    """List, get and check the data sets that experiments use.

    They are kept in the directory given by --data-dir, or else by the environment variable CONTDROP_DATA, or else in
    "contdrop" within your cache directory; each in a folder of its own name.

    Examples:
      contdrop data list
      contdrop data get mnist
      contdrop data check
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@data.command("list", short_help="Show the data sets, and which of them are here.")
def data_list(data_dir: options.DataDir = None, as_json: options.Json = False) -> None:
    """Show the data sets, and which of them are here.

    Whether their files are whole is another question: contdrop data check.

    Examples:
      contdrop data list
      contdrop data list --data-dir /data --json
    """
    directory = dataset.data_directory(data_dir)
    missing = {source.name: source.missing(directory) for source in datasets.SOURCES}
    if as_json:
        names = ("name", "title", "train", "test", "shape", "classes")
        content = [
            {
                **{name: getattr(source, name) for name in names},
                "present": not missing[source.name],
                "missing": missing[source.name],
                "place": source.place(directory),
            }
            for source in datasets.SOURCES
        ]
        terminal.print_json({"directory": str(directory), "data_sets": content})
        return
    rows = []
    for source in datasets.SOURCES:
        size, classes = "x".join(map(str, source.shape)), str(len(source.classes))
        here = f"no, {len(missing[source.name])} missing" if missing[source.name] else "yes"
        cells = source.name, f"{source.train:,}", f"{source.test:,}", size, classes
        rows.append((*cells, here, source.place(directory)))
    _print_places(("name", "training\nimages", "test\nimages", "size", "classes"), rows)
    print(f"Data directory: {visible(str(directory))}")


def _print_places(
    headings: Sequence[str], rows: Sequence[tuple[str, ...]], *, right: Collection[int] | None = None
) -> None:
    """Print a table of files whose last two cells are whether they are on this machine, and where."""
    aligned = range(1, len(headings)) if right is None else right
    made = terminal.table(None, (*headings, "here", "where"), right=aligned)
    made.columns[0].no_wrap, made.columns[-1].overflow = True, "fold"
    for row in rows:
        made.add_row(*row, style="dim" if row[-2].startswith("no") else "")
    terminal.screen().print(made)


@data.command("check", short_help="Verify the data sets that are here.")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Read data sets and verify that they are the published ones.

    Prints a line for each: ok, missing or damaged, and why. The exit code is 2 if a data set that you name is not ok;
    if you name none, all are checked and it is 2 if one that is here is damaged.

    Examples:
      contdrop data check
      contdrop data check mnist fashion-mnist
      contdrop data check --json
    """
    chosen = [datasets.find(name).name for name in names or datasets.names()]
    directory = dataset.data_directory(data_dir)
    findings = []
    for name in dict.fromkeys(chosen):
        findings.append(datasets.check(name, directory))
        if not as_json:
            detail = findings[-1].detail.removeprefix(f"{name}: ")
            print(printable(f"{name}: {findings[-1].status}: {detail}"), flush=True)
    if as_json:
        content = [dataclasses.asdict(finding) for finding in findings]
        terminal.print_json({"directory": str(directory), "data_sets": content})
    if any(finding.status == "damaged" or (names and finding.status == "missing") for finding in findings):
        raise typer.Exit(2)


@data.command("get", short_help="Download a data set, unless it is here.")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)], data_dir: options.DataDir = None
) -> None:
    """Download a data set, unless it is here.

    Files are fetched from public mirrors and compared with the published checksums; Fashion-MNIST is copied from
    Debian's package dataset-fashion-mnist instead, if that is installed. What is here already and right stays; a
    damaged file is replaced; after an interrupt, complete files are kept. If no mirror can be reached, an error names
    the files to put into the data directory.

    Examples:
      contdrop data get mnist
      contdrop data get fashion-mnist --data-dir /data
    """
    source = datasets.find(name)
    directory = dataset.data_directory(data_dir)
    downloads = Downloads()
    try:
        with downloads.progress:
            source.get(directory, downloads)
    except KeyboardInterrupt:
        again = visible(dataset.get_command(name, directory))
        print(f"contdrop: interrupted; complete files are kept; to get the rest, run: {again}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(f"{name}: complete, {visible(str(source.place(directory)))}")


class Downloads:
    """Progress of downloads: on a terminal a bar per file, elsewhere a line now and then."""

    SECONDS = 5.0  # between two lines

    def __init__(self) -> None:
        screen = terminal.screen(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=screen, disable=not screen.is_terminal)
        self._bars: dict[str, TaskID] = {}
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        if self.progress.disable:
            terminal.say(text)
        else:
            self.progress.console.print(printable(text))

    def received(self, file: str, done: int, size: int) -> None:
        if file not in self._bars:
            self._bars[file] = self.progress.add_task(file, total=size)
        self.progress.update(self._bars[file], completed=done)
        if self.progress.disable and time.monotonic() - self._last >= self.SECONDS:
            self._last = time.monotonic()
            self.note(f"{file}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")


weights = typer.Typer(add_completion=False, rich_markup_mode=None)


@weights.callback(invoke_without_command=True)
def weights_command(context: typer.Context) -> None:
    """List and check the published weights that networks can start from.

    They are kept in the data directory (see contdrop data --help), each in a folder of its own name.

    Examples:
      contdrop weights list
      contdrop weights check nin-cifar10
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@weights.command("list", short_help="Show the published weights, and which of them are here.")
def weights_list(data_dir: options.DataDir = None, as_json: options.Json = False) -> None:
    """Show the published weights, and which of them are here.

    Examples:
      contdrop weights list
      contdrop weights list --data-dir /data --json
    """
    rows: list[dict[str, Any]] = [
        {
            "name": published.name,
            "title": published.title,
            "parameters": published.parameters,
            "present": published.path(data_dir).is_file(),
            "place": str(published.path(data_dir)),
            "offered": published.offered,
        }
        for published in pretrained.PUBLISHED
    ]
    if as_json:
        terminal.print_json({"directory": str(dataset.data_directory(data_dir)), "weights": rows})
        return
    shown = [
        (row["name"], row["title"], f"{row['parameters']:,}", "yes" if row["present"] else "no", row["place"])
        for row in rows
    ]
    _print_places(("name", "network", "parameters"), shown, right=(2,))


@weights.command("check", short_help="Check a file of weights against its network.")
def weights_check(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    file: Annotated[
        pathlib.Path | None, option("FILE", "This file, not the one in the data directory.", "--weights")
    ] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Read weights, compare their shapes layer by layer, and measure the network's error if its data are here.

    A file is a Caffe model or a state_dict that torch saved; nothing in it is executed. Layers that the file does not
    have are named: they would stay random. What takes minutes is computed once and kept in the directory that
    CONTDROP_CACHE names, or in your cache directory.

    Examples:
      contdrop weights check nin-cifar10
      contdrop weights check nin-cifar10 --weights mine.pt
    """
    published = pretrained.find(name)
    path = file or published.here(data_dir)
    assigned = pretrained.assign(published.network(), pretrained.read(path), str(path))
    if not as_json:
        for layer, shape in assigned.layers.items():
            print(printable(f"{layer}: ok, {'x'.join(map(str, shape))}, {math.prod(shape):,} weights"))
        if assigned.left:
            print(f"no published weights, so random: {', '.join(assigned.left)}")
        if assigned.unused:
            unused = plural(len(assigned.unused), "layer")
            print(printable(f"not used: {unused} of the file, {', '.join(assigned.unused)}"))
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
        terminal.print_json(found)
    elif error is not None:
        print(f"test error on {published.data}: {error:.2f} % (published: {published.error} %)")
    elif reason:
        print(printable(f"test error: not measured, {reason}"))


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
