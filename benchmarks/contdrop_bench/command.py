"""The command ``contdrop bench``."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import contdrop
from contdrop.cli.options import check_plot, save_plot
from contdrop.cli.progress_bars import Stages
from contdrop.errors import UserError

from . import environment, plot, sheets
from .goals import goals
from .results import Report, to_json
from .sections import SECTIONS, Settings, measure

SIZES, QUICK_SIZES = "1e3,1e4,128x800,1e6,1024x4096,3e7", "1e3,128x800,1024x4096"
ROUNDS, QUICK_ROUNDS = 15, 6
STEPS, QUICK_STEPS = 500, 100

# x, gradient, factor, result, mask, gradient of x, and what is needed on the way: float32 each.
_BYTES_PER_ELEMENT = 8 * 4
_DIGITS = 18  # of an axis
_LONGEST = 40  # characters of a size in a message
_COUNTABLE = 10**21  # bytes
_MOST_THREADS = 1024


def bench(
    chosen: Annotated[
        str,
        typer.Option("--sections", metavar="SECTION,...", help="What to measure. [default: all]", show_default=False),
    ] = ",".join(SECTIONS),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes, rounds and steps, no torch.compile: about half a minute.")
    ] = False,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SIZE,...", help=f"Tensors of the elementwise section. [default: {SIZES}]"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="ROUNDS",
            help="Measurements of each contestant, of which the best counts; a third of it from 10^7 elements on, and "
            f"for DropConnect. [default: {ROUNDS}]",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="STEPS", help=f"Training steps of each network. [default: {STEPS}]")
    ] = None,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compiled/--no-compiled",
            help="Let torch.compile compete, too. [default: yes, but not with --quick]",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="THREADS", help="Threads for torch and contdrop. [default: torch's]")
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instruction set of the native kernels: avx512, avx2, neon, portable. [default: the best of this CPU]",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables: every measurement and the environment.")
    ] = False,
    plot_file: Annotated[
        pathlib.Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw time per element against size into a .png or .svg file."),
    ] = None,
) -> None:
    """Measure how fast the layers are here, against nn.Dropout, plain torch, Keras and JAX.

    All contestants take turns in one process, in another order each round, so that whatever disturbs the machine
    disturbs them alike; the best round counts. Times are in nanoseconds per element; the multiplication x * w is the
    yardstick. Keras and JAX compete where they are installed. The whole takes three to four minutes on two cores; close
    other programs first, for a busy machine shows in the ratios.

    Sections:
      elementwise  forward, and forward+backward, in float32, from a
                   thousand to thirty million elements
      types        float32, bfloat16, float16 and float64
      memory       bytes that autograd keeps between forward and backward
      step         a whole training step of a 784-800-800-10 network, with
                   and without dropout
      dropconnect  a mask of weights for each example, against masks that
                   are stored (needs 1 GB of memory)

    Examples:
      contdrop bench --quick
      contdrop bench --plot speed.png
      contdrop bench --sections elementwise,memory --sizes 1e5,64x1000
      contdrop bench --instructions avx2 --threads 1 --json > avx2.json
    """
    settings = Settings(
        sections=parse_sections(chosen),
        sizes=parse_sizes(sizes or (QUICK_SIZES if quick else SIZES)),
        rounds=_positive("--rounds", rounds, QUICK_ROUNDS if quick else ROUNDS),
        steps=_positive("--steps", steps, QUICK_STEPS if quick else STEPS),
        compiled=not quick if compiled is None else compiled,
    )
    if plot_file:
        _check_plot(plot_file, settings)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_threads(_positive("--threads", threads, torch.get_num_threads(), _most_threads())))
        _check_backend()
        if instructions:
            _force_instructions(instructions, stack)
        report = measure(settings, Stages(settings.stages), shlex.join(["contdrop", *sys.argv[1:]]))
    if as_json:
        print(to_json({**report.as_dict(), "goals": [goal.as_dict() for goal in goals(report)]}))
    else:
        _show(report)
    if plot_file:
        try:
            save_plot(plot.draw(report), plot_file)
        except OSError as error:
            raise UserError(f"--plot: cannot write {plot_file}: {error.strerror}") from error


def parse_sections(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise UserError(f"--sections: expected some of {', '.join(SECTIONS)}, separated by commas; got {name!r}")
    return tuple(name for name in SECTIONS if name in names)


def parse_sizes(text: str) -> tuple[tuple[int, ...], ...]:
    """Reads shapes such as ``1000``, ``1e6`` and ``128x800``."""
    shapes = []
    for part in map(str.strip, text.split(",")):
        shown = part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…"
        if not re.fullmatch(r"\d+(e\d{1,2})?(x\d+)*", part):
            raise UserError(f"--sizes: expected sizes such as 1000, 1e6 or 128x800, separated by commas; got {shown!r}")
        if re.search(rf"\d{{{_DIGITS + 1}}}", part):
            raise UserError(f"--sizes: expected numbers of at most {_DIGITS} digits; got {shown!r}")
        shape = tuple(_whole(axis) for axis in part.split("x"))
        needed, there_is = math.prod(shape) * _BYTES_PER_ELEMENT, environment.memory()
        if not needed:
            raise UserError(f"--sizes: expected tensors with at least one element; got {shown!r}")
        if needed > there_is:
            about = f"about {needed / 1e9:.0f} GB" if needed < _COUNTABLE else f"more than {_COUNTABLE / 1e9:.0f} GB"
            raise UserError(
                f"--sizes: {shown} needs {about} of memory, and this machine has {there_is / 1e9:.0f} GB; choose a "
                "smaller size"
            )
        shapes.append(shape)
    return tuple(dict.fromkeys(shapes))


def _whole(text: str) -> int:
    digits, _, exponent = text.partition("e")
    return int(digits + "0" * int(exponent or 0))


def _positive(option: str, value: int | None, default: int, most: int | None = None) -> int:
    if value is not None and value < 1:
        raise UserError(f"{option}: expected a whole number of at least 1; got {value}")
    if value is not None and most is not None and value > most:
        raise UserError(f"{option}: expected a whole number of at most {most}; got {value}")
    return default if value is None else value


def _check_plot(path: pathlib.Path, settings: Settings) -> None:
    """Everything that would spoil the plot, before minutes are spent on measuring."""
    check_plot(path)
    if "elementwise" not in settings.sections:
        raise UserError("--plot: draws the elementwise section; add it to --sections")


def _most_threads() -> int:
    """More would end the process: it cannot start them."""
    return max(_MOST_THREADS, os.cpu_count() or 1)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_backend() -> None:
    try:
        contdrop.backend()
    except (ValueError, RuntimeError) as error:  # the environment variable asks for one that there is not
        raise UserError(str(error).removeprefix("contdrop: ")) from error


def _force_instructions(name: str, stack: contextlib.ExitStack) -> None:
    if contdrop.backend().name != "native":
        raise UserError(f"--instructions: only the native back end has a choice; in use is {contdrop.backend()}")
    from contdrop.kernels import native

    try:
        stack.enter_context(native.use_instructions(name))
    except ValueError as error:
        raise UserError(f"--instructions: {str(error).partition(': ')[2]}") from error


def _show(report: Report) -> None:
    screen = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    for sheet in sheets.sheets(report):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=sheet.title, title_justify="left", title_style="bold")
        for place, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in sheet.rows:
            style = {"pass": "green", "FAIL": "bold red"}.get(row[-1], "bold" if row[0].startswith("contdrop") else "")
            table.add_row(*row, style=style)
        screen.print(table)
        if sheet.note:
            screen.print(sheet.note, style="dim")
            screen.print()
    for line in sheets.environment(report):
        screen.print(line)
