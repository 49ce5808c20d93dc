"""Progress on standard error: a bar on a terminal, a plain line per finished stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Stages:
    """Reports the stages of a long command, ``total`` in number, one after the other."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._screen = Console(stderr=True)

    @contextlib.contextmanager
    def __call__(self, name: str, steps: int) -> Iterator[Callable[[], None]]:
        """Runs one stage; its body calls what it is given once for each of its ``steps``."""
        self._number += 1
        label = f"[{self._number}/{self._total}] {name}"
        start = time.perf_counter()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._screen, transient=True, disable=not self._screen.is_terminal) as bar:
            task = bar.add_task(label, total=steps)
            yield lambda: bar.advance(task)
        if not self._screen.is_terminal:
            print(f"{label}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
