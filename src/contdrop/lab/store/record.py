"""Record of a store's contents, a small file beside it that shows when the store has lost some of them.

SQLite takes a file that has lost its content, or its log, for an empty or an older one. The file has a line with the
record of each protocol. It is written after each commit that changes one, so a process that is killed in between
leaves a store that is ahead of its record, and only damage leaves one that is behind.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
from collections.abc import Mapping
from typing import Any

from ..._files import reading, replacing
from ..._text import plural
from ...errors import UserError
from . import schema

NAME = "-record"  # end of the file's name

Record = Mapping[str, Mapping[str, Any]]  # by protocol


def read(path: pathlib.Path) -> Record:
    """Return what a store has held; nothing if it has no record, or one that a power failure has emptied."""
    if not path.exists():
        return {}
    with reading(path):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        found = {str(json.loads(line)["protocol"]): schema.parse_record(line) for line in lines}
        if None in found.values():
            raise ValueError
        return {key: record for key, record in found.items() if record}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: expected the record of a store; got another file, or a damaged one; delete it"
        ) from error


def of_store(db: sqlite3.Connection) -> Record:
    """Return the record that a store should have. Damaged ones, which are found when they are read, are left out."""
    rows = db.execute("SELECT key, record FROM protocols ORDER BY rowid")
    return {row["key"]: found for row in rows if (found := schema.parse_record(row["record"]))}


def differs(recorded: Record, db: sqlite3.Connection) -> bool:
    """Return True if the store has something else than its record of the same version."""
    pairs = [(each, recorded.get(key, each)) for key, each in of_store(db).items()]
    return any(now != then and now["version"] == then["version"] for now, then in pairs)


def check(recorded: Record, db: sqlite3.Connection, path: pathlib.Path, *, has_records: bool) -> bool:
    """Return True if the store at ``path`` is ahead of its record; raise UserError if it is behind.

    A file without tables, or of an older contdrop, has no records.
    """
    found = of_store(db) if has_records else {}
    for key, then in recorded.items():
        now = found.get(key, schema.RECORD)
        if now["version"] < then["version"] and not (has_records and key not in found and _is_damaged(db, key)):
            raise UserError(
                f"--store: {path} is older than its record: {plural(then['finished'], 'job')} of an experiment had "
                f"finished, {now['finished']} are there; put back the latest copy, or import an archive into another "
                f"store; to go on without what is lost, delete {path.name}{NAME}"
            )
    versions = [(each["version"], recorded.get(key, schema.RECORD)["version"]) for key, each in found.items()]
    return not has_records or any(now > then for now, then in versions)


def _is_damaged(db: sqlite3.Connection, protocol: str) -> bool:
    """Return True for a protocol whose row has no record, or is missing although it has jobs."""
    rows = "SELECT 1 FROM protocols WHERE key = :key UNION SELECT 1 FROM jobs WHERE protocol = :key LIMIT 1"
    return db.execute(rows, {"key": protocol}).fetchone() is not None


def write(found: Record, path: pathlib.Path) -> None:
    """Replace a record; where that fails, as on a full disk, the last one stays."""
    text = "".join(json.dumps({"protocol": key, **record}) + "\n" for key, record in found.items())
    with contextlib.suppress(OSError), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
