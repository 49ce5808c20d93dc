"""File access: one-line errors for reading, and atomic writing."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import stat
import time
import uuid
from collections.abc import Iterator

from .errors import UserError

TEMPORARY = ".tmp"
_OLD = 3600.0  # seconds: nobody writes one file for so long


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
    temporary = path.with_name(f"{_start(path)}{uuid.uuid4().hex}{TEMPORARY}")
    temporary.touch(exist_ok=False)
    try:
        mode = stat.S_IMODE(temporary.stat().st_mode)
        with contextlib.suppress(OSError):  # it is a new file
            mode = stat.S_IMODE(path.stat().st_mode)
        temporary.chmod(mode | stat.S_IWUSR)  # private from the beginning if the file is
        yield temporary
        if durable:
            with temporary.open("r+b") as file:  # Windows flushes only what may be written
                os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_old_temporaries(path: pathlib.Path) -> None:
    """Remove the temporary files of processes that were killed while writing this file."""
    for each in path.parent.glob(f"{glob.escape(_start(path))}*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # gone already, or not ours
            if time.time() - each.stat().st_mtime > _OLD:
                each.unlink()


def _start(path: pathlib.Path) -> str:
    return f".{path.name[:40]}-"
