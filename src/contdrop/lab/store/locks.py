"""Locks of jobs, which the operating system releases when their process ends.

Job number n is byte n of one file. The locks are POSIX record locks: they vanish with their process, also when it is
killed, so there are no time-outs and no stale locks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import weakref
from collections.abc import Iterator

from ...errors import UserError

try:
    import fcntl
except ImportError:  # Windows: commands that only read a store work without
    fcntl = None  # type: ignore[assignment]

# Linux's names of network file systems. SQLite's log needs shared memory, which they do not provide.
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "gfs2", "glusterfs", "gpfs", "lustre"),
    *("beegfs", "orangefs", "pvfs2", "panfs", "wekafs", "davfs", "ocfs2", "virtiofs", "vboxsf"),
}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.mergerfs"}
_MOUNTS = pathlib.Path("/proc/self/mounts")


def check_available() -> None:
    """Raise UserError where the system has no such locks, so that nothing can be trained."""
    if fcntl is None:
        raise UserError(
            "training in the lab needs POSIX file locks, which this system does not have; use Linux, macOS or WSL "
            "(status, export, report and check work here)"
        )


def check_place(path: pathlib.Path) -> None:
    """Raise UserError if a file to be written is on a network file system, where locks may fail silently."""
    kind = _file_system(path)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise UserError(
            f"--store: {path} is on a network file system ({kind}), where locks cannot be relied on; put it on a local "
            "disk; for several machines: --shard 1/2 on one, --shard 2/2 on the other, then contdrop merge"
        )


def _file_system(path: pathlib.Path) -> str:
    """Return the type of the file system that a file is on; empty if unknown."""
    place, found = path.absolute().parent.resolve(), ("", "")
    for line in _MOUNTS.read_text(errors="replace").splitlines() if _MOUNTS.exists() else ():
        _, mounted, kind, *_ = line.split()
        mounted = mounted.replace("\\040", " ")
        if place.is_relative_to(mounted) and len(mounted) >= len(found[0]):
            found = mounted, kind
    return found[1]


class _LockFile:
    """Open file with the locks that this process has on it; closed when nothing refers to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.mine = descriptor, set[int]()
        weakref.finalize(self, os.close, descriptor)


_Key = tuple[int, int, int]  # of a process, because a child has none of the locks, and of a file
_FILES: weakref.WeakValueDictionary[_Key, _LockFile] = weakref.WeakValueDictionary()
_GUARD = threading.Lock()


def _key(found: os.stat_result) -> _Key:
    return os.getpid(), found.st_dev, found.st_ino


def _open(path: pathlib.Path) -> _LockFile:
    with _GUARD:
        opened = _FILES.get(_key(path.stat())) if path.exists() else None
        if opened is None:
            opened = _LockFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            _FILES[_key(os.fstat(opened.descriptor))] = opened
        return opened


class Locks:
    """Locks of one process, which must share a descriptor: POSIX drops all of them when *any* of the file is closed.

    Without a path, for a store that cannot be written to, no lock can be acquired, and none is held.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._file: _LockFile | None = None
        if path is not None and fcntl is not None:
            try:
                self._file = _open(path)
            except OSError as error:
                raise UserError(f"--store: cannot write {path}: {error.strerror}; check its permissions") from error

    def acquire(self, number: int) -> bool:
        """Take a lock unless another process has it; return True if it was taken.

        This can fail while another process merely tests the lock: try again later.
        """
        if self._file is None or number in self._file.mine:
            return False
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        self._file.mine.add(number)
        return True

    @contextlib.contextmanager
    def holding(self, number: int) -> Iterator[bool]:
        """Hold a lock if no other process does; the value is True if it is held."""
        mine = self.acquire(number)
        try:
            yield mine
        finally:
            if mine:
                self.release(number)

    @contextlib.contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """Wait for a lock and hold it; do nothing where there are no locks."""
        if self._file is not None:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            if self._file is not None:
                self.release(number)

    def release(self, number: int) -> None:
        """Release a lock that this process has."""
        assert self._file is not None
        self._file.mine.discard(number)
        fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, number)

    def is_held(self, number: int) -> bool:
        """Return True if this or another process has the lock."""
        if self._file is None or number in self._file.mine:
            return self._file is not None
        with self.holding(number) as mine:
            return not mine

    def close(self) -> None:
        """Close the file, unless others of this process need it."""
        self._file = None
