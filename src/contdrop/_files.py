"""Reading files with one line if that fails, and writing them so that nobody ever sees half of one."""

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
    """Turns what the system says about a file that cannot be read into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, durable: bool = False) -> Iterator[pathlib.Path]:
    """Gives a temporary name beside ``path``; what is written there takes its place at the end, or vanishes on error.

    Args:
        path: The file to make or replace. Readers see what was there before, or all of what is new.
        durable: Waits until the content is on the disk before the name points to it. Needed where a file that is
            there is taken to be whole after a power cut; not for what can be made again at once.
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
    """The permissions of the file that is there, else those of a new one."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    with _UMASK:
        mask = os.umask(0o077)  # which cannot be read otherwise
        os.umask(mask)
    return 0o666 & ~mask


def remove_old_temporaries(path: pathlib.Path) -> None:
    """Removes what processes that were killed while they wrote this file have left beside it."""
    for each in path.parent.glob(f"{glob.escape(_start(path))}*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # gone already, or not ours
            if time.time() - each.stat().st_mtime > _OLD:
                each.unlink()


def _start(path: pathlib.Path) -> str:
    return f".{path.name[:40]}-"
