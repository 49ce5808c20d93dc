"""Processes of our own: how one is begun, whoever begins it."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing.process import BaseProcess


def begin(process: BaseProcess) -> None:
    """Starts a process that is not disturbed by Ctrl-C, which goes to all, not even while it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it inherits
    try:
        with _no_main(), children_allowed():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """A new process would execute the user's script once more; it needs nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def children_allowed() -> Iterator[None]:
    """A worker of an executor is daemonic, and multiprocessing lets such processes have no children.

    It fears orphans; ours end with their parents by themselves.
    """
    configuration = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    daemon = configuration.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            configuration["daemon"] = daemon
