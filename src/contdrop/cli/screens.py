"""How tables and durations look in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_WIDTH = 120  # where there is no terminal to ask


def screen(*, stderr: bool = False) -> Console:
    """For plain text: nothing in it is taken for markup, and numbers are not coloured."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(width=None if stream.isatty() else _WIDTH, highlight=False, markup=False, stderr=stderr)


def table(title: str | None, headings: Sequence[str], *, right: Collection[int] | None = None) -> Table:
    """An empty table; columns in ``right`` are aligned right, all but the first if None."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for place, heading in enumerate(headings):
        aligned_right = place > 0 if right is None else place in right
        made.add_column(heading, justify="right" if aligned_right else "left")
    return made


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (0.4, 42, 185, 7500, 200000)]
    ['0 s', '42 s', '3 min 5 s', '2 h 5 min', '2 d 7 h']
    """
    whole = round(seconds)
    for size, larger, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {larger} {whole % size // part} {smaller}"
    return f"{whole} s"
