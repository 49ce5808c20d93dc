"""Worker processes that draw figures while the main process reads the next experiment."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

Task = Callable[[], object]
_AT_ONCE = 4  # of a child: to make one costs as much as a small figure


class FigurePool:
    """Process pool for tasks that write files; it runs them in order where forking is unsafe, or if ``alone``."""

    def __init__(self, *, alone: bool) -> None:
        # A child is a fork of this process, which only Linux and a process without other threads of ours can rely on.
        forks = sys.platform == "linux" and threading.active_count() == 1
        # More than processors, so that some are left to do while this process does what comes last.
        self._most = 2 * (os.cpu_count() or 1) if forks and not alone else 0
        self._warm = False
        self._next: list[Task] = []
        self._running: list[tuple[Any, list[Task]]] = []

    def do(self, task: Task) -> None:
        if not self._most or not self._warm:
            task()  # the first one here, for what it loads, fonts among it, every child then has
            self._warm = True
            return
        self._next.append(task)
        if len(self._next) == _AT_ONCE:
            self._begin()

    def _begin(self) -> None:
        while len(self._running) >= self._most:
            self._wait()
        child = multiprocessing.get_context("fork").Process(target=_quietly, args=(self._next,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which NumPy has, and knows how to fork
            child.start()
        self._running.append((child, self._next))
        self._next = []

    def finish(self) -> None:
        if self._next:
            self._begin()
        while self._running:
            self._wait()

    def _wait(self) -> None:
        child, tasks = self._running.pop(0)
        child.join()
        for task in tasks if child.exitcode else ():
            task()  # here, where the error can be reported


def _quietly(tasks: list[Task]) -> None:
    os.nice(5)  # the parent goes first: what it has read, others draw
    gc.disable()  # it would touch, and so copy, all that is shared with the parent
    try:
        for task in tasks:
            task()
    except BaseException:
        os._exit(1)
