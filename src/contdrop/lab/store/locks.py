"""A lock for every job, which the operating system takes away from a process that ends, however it ends.

One file; job number n is its byte n. The locks are POSIX record locks: they vanish with their process, also when it is
killed, so nobody waits for a time-out and no stale lock is left behind.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import UserError

try:
    import fcntl
except ImportError:  # Windows: what only reads a store works without
    fcntl = None  # type: ignore[assignment]


def check_available() -> None:
    """Raises UserError where the system has no such locks, and so nothing that trains can work."""
    if fcntl is None:
        raise UserError(
            "training in the lab needs POSIX file locks, which this system does not have; use Linux, macOS or WSL "
            "(status, export, report and check work here)"
        )


# By the names that Linux has for them. SQLite's log needs memory that all processes share, which these do not give.
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "gfs2", "glusterfs", "gpfs", "lustre"),
    *("beegfs", "orangefs", "pvfs2", "panfs", "wekafs", "davfs", "ocfs2", "virtiofs", "vboxsf"),
}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs"}
_MOUNTS = pathlib.Path("/proc/self/mounts")


def check_place(path: pathlib.Path) -> None:
    """Raises UserError if a file to be written is on a network file system, where locks may fail in silence."""
    kind = _file_system(path)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise UserError(
            f"--store: {path} is on a network file system ({kind}), where locks cannot be relied on; put it on a local "
            "disk; for several machines: --shard 1/2 on one, --shard 2/2 on the other, then contdrop merge"
        )


def _file_system(path: pathlib.Path) -> str:
    """The kind of the mount that a file is on, the last one with the longest matching place; "" if unknown."""
    if not _MOUNTS.exists():
        return ""
    place, found = path.absolute().parent.resolve(), ("", "")
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        _, mounted, kind, *_ = line.split()
        mounted = mounted.replace("\\040", " ")
        if place.is_relative_to(mounted) and len(mounted) >= len(found[0]):
            found = mounted, kind
    return found[1]


@dataclass
class _Opened:
    """A file of locks that this process has open, the locks that it has, and how many use it."""

    key: tuple[int, int, int]
    descriptor: int
    mine: set[int] = field(default_factory=set)
    users: int = 0


_OPENED: dict[tuple[int, int, int], _Opened] = {}  # by process, because a child has none of the locks, and by file
_GUARD = threading.Lock()


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


def _open(path: pathlib.Path) -> _Opened:
    with _GUARD:
        opened = _OPENED.get(_key(path.stat())) if path.exists() else None
        if opened is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened = _Opened(_key(os.fstat(descriptor)), descriptor)
            _OPENED[opened.key] = opened
        opened.users += 1
        return opened


def _close(opened: _Opened) -> None:
    with _GUARD:
        opened.users -= 1
        if not opened.users:
            del _OPENED[opened.key]
            os.close(opened.descriptor)


class Locks:
    """The locks of one process. POSIX drops all of them when the process closes *any* descriptor of the file.

    So all of a process's :class:`Locks` of a file share one, which the last of them closes. Without a path, for a store
    that cannot be written to, no lock can be had, and none is held.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._opened: _Opened | None = None
        self._file: int | None = None
        self._mine: set[int] = set()
        if path is None or fcntl is None:
            return
        try:
            self._opened = _open(path)
        except OSError as error:
            raise UserError(f"--store: cannot write {path}: {error.strerror}; check its permissions") from error
        self._file, self._mine = self._opened.descriptor, self._opened.mine

    def acquire(self, number: int) -> bool:
        """Takes a lock if no other process has it; says whether it did.

        It may fail by mistake while another process only looks whether the lock is held: try again later.
        """
        if self._file is None or number in self._mine:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        self._mine.add(number)
        return True

    @contextlib.contextmanager
    def holding(self, number: int) -> Iterator[bool]:
        """Holds a lock if it can be had at once; gives whether it is."""
        mine = self.acquire(number)
        try:
            yield mine
        finally:
            if mine:
                self.release(number)

    @contextlib.contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """Holds a lock, once it can be had; without one where there are no locks."""
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def release(self, number: int) -> None:
        assert self._file is not None
        self._mine.discard(number)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def is_held(self, number: int) -> bool:
        """Whether this or another process has the lock."""
        if self._file is None or number in self._mine:
            return self._file is not None
        if self.acquire(number):
            self.release(number)
            return False
        return True

    def close(self) -> None:
        if self._opened is not None:
            _close(self._opened)
            self._opened = self._file = None
