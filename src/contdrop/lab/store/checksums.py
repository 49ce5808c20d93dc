"""Checksums of what a store holds: of a row, and of a job's epochs one after the other.

A row's checksum is SHA-256 over the names, types and values of its columns, except those that are NULL (so that a later
version may add columns) and the checksum itself. It is made from what SQLite gives back, not from what it was given.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from typing import Any

EMPTY = ""  # of no epochs
_FLOAT = struct.Struct("<d")


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def of_plain(content: Any) -> str:
    """Of data as JSON has them, whatever the order of their keys."""
    return of_bytes(dumped(content).encode())


def dumped(content: Any) -> str:
    """As JSON, the same for equal contents."""
    return json.dumps(content, sort_keys=True, allow_nan=False)


def of_row(row: Mapping[str, Any] | sqlite3.Row) -> str:
    values = tuple(row if isinstance(row, sqlite3.Row) else row.values())
    parts: list[bytes] = []
    for number, name in _columns(tuple(row.keys())):
        if values[number] is not None:
            parts += (name, _encoded(values[number]))
    return hashlib.sha256(b"".join(parts)).hexdigest()


@functools.lru_cache(maxsize=64)
def _columns(names: tuple[str, ...]) -> list[tuple[int, bytes]]:
    """Places and codes of the columns that count, by name: a store of ten thousand jobs has few kinds of rows."""
    order = sorted(range(len(names)), key=lambda number: names[number])
    return [(number, _encoded(names[number])) for number in order if names[number] != "checksum"]


def after_epochs(before: str, epochs: Iterable[Iterable[Any]]) -> str:
    """The checksum of a curve that some epochs are added to; of each the values in the table's order.

    They are nearly all floats, and a large store has millions, so these are encoded here, without a call for each.
    """
    for values in epochs:
        codes = [b"f8:" + _FLOAT.pack(value) if type(value) is float else _encoded(value) for value in values]
        before = hashlib.sha256(b"".join([before.encode(), *codes])).hexdigest()
    return before


def _encoded(value: Any) -> bytes:
    """No two values have the same code, and none is the beginning of another's."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        content, kind = value.encode("utf-8", "surrogatepass"), b"s"
    elif isinstance(value, int):
        content, kind = str(value).encode(), b"i"
    elif isinstance(value, float):
        content, kind = _FLOAT.pack(value), b"f"
    else:
        content, kind = bytes(value), b"b"
    return b"%b%d:%b" % (kind, len(content), content)
