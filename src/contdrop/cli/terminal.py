"""Tables and lines in the terminal, without control characters.

The text may come from a store that somebody sent, so all of it goes through :func:`contdrop._text.visible`: a
:class:`Screen` does so by itself, as do :func:`say` and :func:`print_json`.
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
from rich.text import Text

from .._text import printable, visible

_WIDTH = 120  # where there is no terminal to ask


class Screen(Console):
    """A console that shows text and obeys nothing in it."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a line, or a cell, heading or title of a table."""
        return super().render_str(visible(text), **options)


def screen(*, stderr: bool = False) -> Screen:
    """Return a console for plain text, without markup and without coloured numbers."""
    stream = sys.stderr if stderr else sys.stdout
    return Screen(width=None if stream.isatty() else _WIDTH, highlight=False, markup=False, stderr=stderr)


def say(line: str) -> None:
    """Write one line to standard error, unwrapped."""
    print(printable(line), file=sys.stderr, flush=True)


def print_json(content: Any) -> None:
    """Print JSON with all but printable ASCII escaped; numbers that are not finite become null."""
    print(json.dumps(_finite(content), indent=1).replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str | None, headings: Sequence[str], *, right: Collection[int] | None = None) -> Table:
    """Return an empty table; columns in ``right`` are aligned right, all but the first if None."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for place, heading in enumerate(headings):
        aligned_right = place > 0 if right is None else place in right
        made.add_column(heading, justify="right" if aligned_right else "left")
    return made
