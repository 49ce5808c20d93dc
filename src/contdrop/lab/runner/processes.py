"""Start of child processes, with SIGINT blocked and without running `__main__` again."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing.process import BaseProcess


def begin(process: BaseProcess) -> None:
    """Start a process that Ctrl-C, which is sent to the whole group, never interrupts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    try:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")  # else the new process would execute the user's script
        try:
            with children_allowed():
                process.start()
        finally:
            sys.modules["__main__"] = main
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def children_allowed() -> Iterator[None]:
    """Let a daemonic process, such as a worker, have children; multiprocessing forbids it for fear of orphans.

    Ours end with their parents by themselves.
    """
    configuration = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    daemon = configuration.pop("daemon", None)
    try:
        yield
    finally:
        if daemon is not None:
            configuration["daemon"] = daemon
