"""Stores that travel: to an archive, from one, and several into one."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

from ..._files import reading, replacing
from ...errors import UserError
from . import archive, contents, csv_import
from .contents import Contents
from .merge import Outcome, add
from .writer import Store

_SQLITE = b"SQLite format 3\0"


def export(store: pathlib.Path, target: pathlib.Path, *, small: bool = False) -> int:
    """Writes an archive of a store, all of it or what is shown of it; returns the number of its jobs."""
    if target.exists() and target.read_bytes()[:2] != archive.MAGIC:
        raise UserError(f"--archive: {target} is there, and no archive; choose another name")
    with Store(store) as opened:
        found = contents.read(opened)
    archive.write(contents.smaller(found) if small else found, target)
    return len(found.jobs)


def load(path: pathlib.Path, table: Callable[[pathlib.Path], Contents] = csv_import.read) -> tuple[Contents, str]:
    """What a store, an archive or a ``table`` of numbers holds, and what to call the file as an origin."""
    start = _start(path)
    if start == _SQLITE:
        with Store(path) as store:
            return contents.read(store), path.name
    origin = f"{path.name} (SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"
    if start.startswith(archive.MAGIC):
        return archive.read(path), origin
    return table(path), origin


def is_table(path: pathlib.Path) -> bool:
    """Whether it is neither a store nor an archive."""
    return not _start(path).startswith((_SQLITE, archive.MAGIC))


def _start(path: pathlib.Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(len(_SQLITE))


def take(
    path: pathlib.Path, store: pathlib.Path, table: Callable[[pathlib.Path], Contents] = csv_import.read
) -> Outcome:
    """Adds a file's jobs to a store, which is made if there is none."""
    found, origin = load(path, table)
    with Store(store, create=True) as opened:
        return add(opened, found, origin)


def merge(out: pathlib.Path, sources: Sequence[pathlib.Path]) -> Outcome:
    """Makes a store of several; all of it, or nothing."""
    if out.exists():
        raise UserError(f"{out} is there already; give a new name, or add to it by: contdrop import FILE --store {out}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no directory {out.absolute().parent}; make it first")
    loaded = [load(path) for path in sources]
    whole = Outcome()
    with replacing(out) as temporary, _beside(temporary), Store(temporary, create=True) as store:
        for found, origin in loaded:
            added = add(store, found, origin)
            notes = tuple(dict.fromkeys((*whole.notes, *added.notes)))
            whole = Outcome(whole.added + added.added, whole.kept + added.kept, notes)
    return whole


@contextlib.contextmanager
def _beside(path: pathlib.Path) -> Iterator[None]:
    """Removes what SQLite and the locks leave beside a file."""
    try:
        yield
    finally:
        for ending in ("-wal", "-shm", "-locks"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
