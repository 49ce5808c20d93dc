"""A lock for every job, which the operating system takes away from a process that ends, however it ends.

One file; job number n is its byte n. The locks are POSIX record locks: they vanish with their process, also when it is
killed, so nobody waits for a time-out and no stale lock is left behind.
"""

from __future__ import annotations

import fcntl
import os
import pathlib

from ..errors import UserError


class Locks:
    """The locks of one process. POSIX drops all of them when the process closes *any* descriptor of the file.

    So a process has one open :class:`Locks` per file, and it is closed last.
    """

    def __init__(self, path: pathlib.Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"--store: cannot write {path}: {error.strerror}; check its permissions") from error
        self._mine: set[int] = set()

    def acquire(self, number: int) -> bool:
        """Takes a lock if no other process has it; says whether it did.

        It may fail by mistake while another process only looks whether the lock is held: try again later.
        """
        if number in self._mine:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        self._mine.add(number)
        return True

    def release(self, number: int) -> None:
        self._mine.discard(number)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def is_held(self, number: int) -> bool:
        """Whether this or another process has the lock."""
        if number in self._mine:
            return True
        if self.acquire(number):
            self.release(number)
            return False
        return True

    def close(self) -> None:
        os.close(self._file)
