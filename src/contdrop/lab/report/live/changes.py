"""Noticing that a store has changed, and making the report again."""

from __future__ import annotations

import contextlib
import math
import pathlib
import sqlite3
import time
from collections.abc import Callable

from ....errors import UserError

POLL_SECONDS = 2.0


class Changes:
    """Tells whether other processes have written to a store since the last look, until it is closed."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int] | None = None

    def there_are(self) -> bool:
        """True at the first call, and when something was committed, or the file replaced, since the last one."""
        state = self._state()
        changed, self._seen = state is None or state != self._seen, state
        return changed

    def _state(self) -> tuple[int, int] | None:
        try:
            file = self._path.stat().st_ino
        except OSError:
            return None
        try:
            if self._seen is None or file != self._seen[0]:
                self.close()
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            # SQLite's own count of what other connections have committed.
            return file, int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:  # it cannot be opened here, as in a directory that may not be written to
            return file, self._latest()

    def _latest(self) -> int:
        """When the file or its log was last written to."""
        found = 0
        for path in (self._path, self._path.with_name(f"{self._path.name}-wal")):
            with contextlib.suppress(OSError):
                found = max(found, path.stat().st_mtime_ns)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def follow(
    path: pathlib.Path,
    rebuild: Callable[[], None],
    complain: Callable[[str], None],
    *,
    seconds: float | None = None,
    at_least: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Calls ``rebuild`` at once and whenever a store has changed, until interrupted.

    An error in the store is raised the first time; later on it is said, once, for it may be mended.

    Args:
        path: The store.
        rebuild: Makes the report.
        complain: Is told why that was not possible; the last report stays.
        seconds: Between looks; POLL_SECONDS if None.
        at_least: After so many seconds, ``rebuild`` is called though nothing has changed.
        stop: Asked before every look.
    """
    complaint, last = "", time.monotonic()
    with contextlib.closing(Changes(path)) as changes:
        changes.there_are()  # before the first report, lest what is written meanwhile be missed
        rebuild()
        while not stop():
            time.sleep(POLL_SECONDS if seconds is None else seconds)
            if changes.there_are() or complaint or time.monotonic() - last >= at_least:
                last = time.monotonic()
                try:
                    rebuild()
                    complaint = ""
                except UserError as error:
                    if str(error) != complaint:
                        complain(str(error))
                    complaint = str(error)
