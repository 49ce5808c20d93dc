"""File access: one-line errors for reading, and atomic writing."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import stat
import tempfile
import threading
import time
from collections.abc import Iterator

from .errors import UserError

TEMPORARY = ".tmp"
_OLD = 3600.0  # seconds: nobody writes one file for so long
_UMASK = threading.Lock()  # of the whole process


@contextlib.contextmanager
def reading(path: pathlib.Path) -> Iterator[None]:
    """Convert an OSError while reading a file into a one-line error."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, durable: bool = False) -> Iterator[pathlib.Path]:
    """Yield a temporary path next to ``path``, which replaces it at the end, or is removed on error.

    Args:
        path: The file to create or replace. Readers see the old content or all of the new one.
        durable: Whether to wait until the content is on the disk. Needed for files that must be complete after a power
            failure; not for files that are easily made again.
    """
    handle, name = tempfile.mkstemp(suffix=TEMPORARY, prefix=_start(path), dir=path.parent)
    os.close(handle)
    temporary = pathlib.Path(name)
    try:
        yield temporary
        if durable:
            with temporary.open("r+b") as file:  # Windows flushes only what may be written
                os.fsync(file.fileno())
        temporary.chmod(_mode(path))  # mkstemp's files are for their owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _mode(path: pathlib.Path) -> int:
    """Return the permissions of the existing file, or those of a new one."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    with _UMASK:
        mask = os.umask(0o077)  # which cannot be read otherwise
        os.umask(mask)
    return 0o666 & ~mask


def remove_old_temporaries(path: pathlib.Path) -> None:
    """Remove the temporary files of processes that were killed while writing this file."""
    for each in path.parent.glob(f"{glob.escape(_start(path))}*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # gone already, or not ours
            if time.time() - each.stat().st_mtime > _OLD:
                each.unlink()


def _start(path: pathlib.Path) -> str:
    return f".{path.name[:40]}-"
