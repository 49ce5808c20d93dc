"""A copy beside the store, for the day its file is damaged beyond what SQLite can mend.

SQLite survives a full disk, a power cut and a kill by means of its log, ``runs.db-wal``. If that is deleted when a disk
was full in the middle of moving it into the file, the file is torn. Then the last copy takes its place, and what was
done since is done again.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sqlite3
import time

from ... import _files

ENDING, DAMAGED = "-backup", "-damaged"
_MAKING = 5.0  # seconds that another process may take from a new file to its first table
_OF_SQLITE = ("-wal", "-shm")
_SECONDS, _SHARE = 600.0, 0.01  # between copies, and of the time that goes into them


class Backups:
    """Makes copies of a store from time to time."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._next = path, 0.0

    def make_if_due(self, *, at_once: bool) -> None:
        """A disk too full for a copy is no reason to stop: the last one stays."""
        now = time.monotonic()
        if now >= self._next or at_once:
            with contextlib.suppress(sqlite3.DatabaseError, OSError):
                make(self._path)
            end = time.monotonic()
            self._next = end + max(_SECONDS, (end - now) / _SHARE)


def make(path: pathlib.Path) -> None:
    """Copies a store that may be in use, and lets the copy take the last one's place if it is whole."""
    _files.remove_old_temporaries(_beside(path, ENDING))
    with _files.replacing(_beside(path, ENDING), durable=True) as temporary:
        copy(path, temporary)
        if not is_whole(temporary):
            raise sqlite3.DatabaseError("the store is damaged")


def copy(path: pathlib.Path, to: pathlib.Path) -> None:
    to.touch()
    with contextlib.closing(_connect(path)) as db, contextlib.closing(_connect(to)) as other:
        db.backup(other)


def is_whole(path: pathlib.Path) -> bool:
    """Whether SQLite can read all of a file; the rows themselves have checksums."""
    try:
        with contextlib.closing(_connect(path)) as db:
            return bool(db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError:
        return True  # in use, or not for us to read: opening it says so
    except sqlite3.DatabaseError:
        return False


def restore_if_damaged(path: pathlib.Path) -> str | None:
    """Puts the copy in the place of a file that SQLite cannot read, which is kept under another name; says so."""
    copy = _beside(path, ENDING)
    if not copy.exists() or (is_whole(path) and not _is_emptied(path)) or not is_whole(copy):
        return None
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.stat().st_mtime))
    # At every moment there is a file of this name, and the copy stays: the next one may be long in coming.
    with _files.replacing(path, durable=True) as temporary:
        shutil.copyfile(copy, temporary)
        shutil.copyfile(path, _beside(path, DAMAGED))
        for ending in _OF_SQLITE:
            if _beside(path, ending).exists():
                os.replace(_beside(path, ending), _beside(path, DAMAGED + ending))
    return (
        f"{path} was damaged, and its copy of {made} has taken its place; what was done since is done again "
        f"({_beside(path, DAMAGED).name} is the damaged file)"
    )


def _is_emptied(path: pathlib.Path) -> bool:
    """Whether nothing is left in it, which SQLite takes for a new file; one that is just being made is new indeed."""
    found, log = path.stat(), _beside(path, "-wal")
    if found.st_size or (log.exists() and log.stat().st_size):
        return False
    return time.time() - found.st_mtime > _MAKING


def _beside(path: pathlib.Path, ending: str) -> pathlib.Path:
    return path.with_name(path.name + ending)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    return sqlite3.connect(path.absolute().as_uri() + "?mode=rw", timeout=60, uri=True)
