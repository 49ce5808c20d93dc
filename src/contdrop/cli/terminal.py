"""How tables and durations look in the terminal, and what never gets there: control characters.

What a command prints may come from a store that somebody sent. So all of it goes
through :func:`contdrop._text.visible`:
on a :class:`Screen` by itself, elsewhere by :func:`say` and :func:`print_json`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .._text import printable, visible

_WIDTH = 120  # where there is no terminal to ask


class Screen(Console):
    """A console that shows text and obeys nothing in it."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)


class _Table(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def screen(*, stderr: bool = False) -> Screen:
    """For plain text: nothing in it is taken for markup, and numbers are not coloured."""
    stream = sys.stderr if stderr else sys.stdout
    return Screen(width=None if stream.isatty() else _WIDTH, highlight=False, markup=False, stderr=stderr)


def say(line: str) -> None:
    """One line on standard error, as it is: not wrapped."""
    print(printable(line), file=sys.stderr, flush=True)


def print_json(content: Any) -> None:
    """All but ASCII is escaped, as is the one control character that JSON leaves alone; what is no number is null."""
    print(json.dumps(_finite(content), indent=1).replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str | None, headings: Sequence[str], *, right: Collection[int] | None = None) -> Table:
    """An empty table; columns in ``right`` are aligned right, all but the first if None."""
    made = _Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=None if title is None else visible(title),
        title_justify="left",
        title_style="bold",
    )
    for place, heading in enumerate(visible(each) for each in headings):
        aligned_right = place > 0 if right is None else place in right
        made.add_column(heading, justify="right" if aligned_right else "left")
    return made


def print_places(
    headings: Sequence[str], rows: Sequence[tuple[tuple[str, ...], str, str]], *, right: Collection[int] | None = None
) -> None:
    """What may be kept on this machine: of each its cells, of which the first is its name, whether it is here, where.

    Args:
        headings: Of the cells.
        rows: Those that are not here are pale.
        right: Cells that are aligned right; all but the first if None.
    """
    aligned = range(1, len(headings)) if right is None else right
    made = table(None, (*headings, "here", "where"), right=aligned)
    made.columns[0].no_wrap, made.columns[-1].overflow = True, "fold"
    for cells, here, place in rows:
        made.add_row(*cells, here, place, style="dim" if here.startswith("no") else "")
    screen().print(made)
