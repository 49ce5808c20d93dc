"""Figures drawn by other processes, while this one reads the next experiment: of a large report they are most."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any


class Painters:
    """Does tasks that write files, several at a time, and in order where that cannot be had.

    Args:
        alone: Whether this process is to do all itself.
    """

    def __init__(self, *, alone: bool) -> None:
        # A child is a fork of this process, which only Linux and a process without other threads of ours can rely on.
        forks = sys.platform == "linux" and threading.active_count() == 1
        # Twice as many as processors, so that some are left to do while this process does what comes last.
        self._most = 2 * (os.cpu_count() or 1) if forks and not alone else 0
        self._warm = False
        self._running: list[tuple[Any, Callable[[], object]]] = []

    def do(self, task: Callable[[], object]) -> None:
        if not self._most or not self._warm:
            task()  # the first one here, for what it loads, fonts among it, every child then has
            self._warm = True
            return
        while len(self._running) >= self._most:
            self._wait()
        child = multiprocessing.get_context("fork").Process(target=_quietly, args=(task,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which NumPy has, and knows how to fork
            child.start()
        self._running.append((child, task))

    def finish(self) -> None:
        while self._running:
            self._wait()

    def _wait(self) -> None:
        child, task = self._running.pop(0)
        child.join()
        if child.exitcode:
            task()  # here, where what is wrong can be told


def _quietly(task: Callable[[], object]) -> None:
    gc.disable()  # it would touch, and so copy, all that is shared with the parent
    try:
        task()
    except BaseException:
        os._exit(1)
