"""Checksums of what a store holds: of a row, and of a job's epochs one after the other.

A row's checksum is SHA-256 over the names, types and values of its columns, except those that are NULL (so that a later
version may add columns) and the checksum itself. It is made from what SQLite gives back, not from what it was given.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from typing import Any

EMPTY = ""  # of no epochs


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def of_row(row: Mapping[str, Any] | sqlite3.Row) -> str:
    digest = hashlib.sha256()
    for name in sorted(row.keys()):
        if name != "checksum" and row[name] is not None:
            digest.update(_encoded(name))
            digest.update(_encoded(row[name]))
    return digest.hexdigest()


def after_epochs(before: str, epochs: Iterable[Iterable[Any]]) -> str:
    """The checksum of a curve that some epochs are added to; of each the values in the table's order."""
    for values in epochs:
        digest = hashlib.sha256(before.encode())
        for value in values:
            digest.update(_encoded(value))
        before = digest.hexdigest()
    return before


def _encoded(value: Any) -> bytes:
    """No two values have the same code, and none is the beginning of another's."""
    if value is None:
        return b"n"
    if isinstance(value, int):
        content, kind = str(value).encode(), b"i"
    elif isinstance(value, float):
        content, kind = struct.pack("<d", value), b"f"
    elif isinstance(value, str):
        content, kind = value.encode("utf-8", "surrogatepass"), b"s"
    else:
        content, kind = bytes(value), b"b"
    return kind + str(len(content)).encode() + b":" + content
