"""What the rows of a store are.

Checksums of what a store holds: of a row, and of a job's epochs one after the other.

A row's checksum is SHA-256 over the names, types and values of its columns, except those that are NULL (so that a later
version may add columns) and the checksum itself. It is made from what SQLite gives back, not from what it was given.

The tables of a store, their versions, and the way from each to the next.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PLANNED, RUNNING, FINISHED, FAILED = "planned", "running", "finished", "failed"
SELECTION, FINAL = "selection", "final"
ONLY_SIZE = "study"  # the preset of a study that names no sizes
IMPORTED = "imported"  # the preset of numbers that come from elsewhere

METRICS = ("train_loss", "train_error", "val_loss", "val_error", "test_loss", "test_error")


@dataclass(frozen=True)
class ProtocolRecord:
    """A row of ``protocols``."""

    key: str
    experiment: str
    preset: str
    epochs: int
    configuration: dict[str, Any]
    description: dict[str, Any]
    created: float


@dataclass(frozen=True)
class JobRecord:
    """A row of ``jobs``. ``status`` is what the table says; see :meth:`Store.is_interrupted`.

    ``results`` of a finished job has the final model's losses and errors (in per cent), in evaluation mode, under the
    names of ``METRICS``; a selection job has none of the test data. ``seconds`` is the time of its epochs together.
    ``origin`` is the file that it was imported from, and None if it was done in this store.
    """

    id: int
    key: str
    protocol: str
    experiment: str
    stage: str
    method: str
    run: int
    epochs: int
    configuration: dict[str, Any]
    status: str
    error: str | None
    variant: str | None
    seeds: dict[str, int]
    fingerprints: dict[str, str]
    versions: dict[str, str]
    machine: dict[str, Any]
    results: dict[str, float]
    created: float
    started: float | None
    ended: float | None
    epochs_done: int
    seconds: float
    origin: str | None

    @property
    def shared(self) -> dict[str, str]:
        """What all methods of a run have to have in common."""
        return {**self.fingerprints, PROCESSOR: processor(self.machine)}


PROCESSOR, ORDER = "kind of processor", "data order"


def processor(machine: Mapping[str, Any]) -> str:
    """What decides the last bits of a result: the same in two places, the results are the same."""
    threads, devices = machine.get("threads", "?"), machine.get("devices", 1)
    return (
        f"{machine.get('architecture', '?')} {machine.get('instructions', '?')}, "
        f"{threads} thread{'' if threads == 1 else 's'}{'' if devices == 1 else f', {devices} devices'}"
    )


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch, counted from 1; None where nothing was.

    Training figures are those under dropout, as it went.
    """

    epoch: int
    train_loss: float | None
    train_error: float | None
    val_loss: float | None
    val_error: float | None
    test_loss: float | None
    test_error: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class SelectionRecord:
    """Which variant was selected for a label, from which validation errors. ``variant`` is None if all failed."""

    protocol: str
    method: str
    variant: str | None
    reason: str
    candidates: dict[str, Any]
    decided: float


EMPTY_CURVE = ""  # of no epochs
_FLOAT = struct.Struct("<d")


def digest_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_json(content: Any) -> str:
    """Of data as JSON has them, whatever the order of their keys."""
    return digest_bytes(canonical_json(content).encode())


def canonical_json(content: Any) -> str:
    """As JSON, the same for equal contents."""
    return json.dumps(content, sort_keys=True, allow_nan=False)


def row_checksum(row: Mapping[str, Any] | sqlite3.Row) -> str:
    values = tuple(row if isinstance(row, sqlite3.Row) else row.values())
    parts: list[bytes] = []
    for number, name in _column_codes(tuple(row.keys())):
        if values[number] is not None:
            parts += (name, _encoded(values[number]))
    return hashlib.sha256(b"".join(parts)).hexdigest()


@functools.lru_cache(maxsize=64)
def _column_codes(names: tuple[str, ...]) -> list[tuple[int, bytes]]:
    """Places and codes of the columns that count, by name: a store of ten thousand jobs has few kinds of rows."""
    order = sorted(range(len(names)), key=lambda number: names[number])
    return [(number, _encoded(names[number])) for number in order if names[number] != "checksum"]


def extend_curve(before: str, epochs: Iterable[Iterable[Any]]) -> str:
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


APPLICATION = 0x636F6E74  # "cont": tells our files from other programs' SQLite files
TABLES = ("protocols", "jobs", "epochs", "artefacts", "checkpoints", "selections", "totals")

# Step i brings a store from version i to i + 1. A step that was ever released is never changed.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE protocols (
        key TEXT PRIMARY KEY, experiment TEXT NOT NULL, preset TEXT NOT NULL, epochs INTEGER NOT NULL,
        configuration TEXT NOT NULL, description TEXT NOT NULL, created REAL NOT NULL
    );
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, protocol TEXT NOT NULL REFERENCES protocols(key),
        experiment TEXT NOT NULL, stage TEXT NOT NULL, method TEXT NOT NULL, run INTEGER NOT NULL,
        epochs INTEGER NOT NULL, configuration TEXT NOT NULL, status TEXT NOT NULL, error TEXT, variant TEXT,
        seeds TEXT, fingerprints TEXT, versions TEXT, machine TEXT, results TEXT,
        created REAL NOT NULL, started REAL, ended REAL
    );
    CREATE INDEX jobs_of_protocol ON jobs (protocol, stage, run);
    CREATE TABLE epochs (
        job INTEGER NOT NULL REFERENCES jobs(id), epoch INTEGER NOT NULL, train_loss REAL, train_error REAL,
        val_loss REAL, val_error REAL, test_loss REAL, test_error REAL, learning_rate REAL, seconds REAL NOT NULL,
        PRIMARY KEY (job, epoch)
    ) WITHOUT ROWID;
    CREATE TABLE artefacts (
        job INTEGER NOT NULL REFERENCES jobs(id), name TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (job, name)
    );
    CREATE TABLE checkpoints (
        job INTEGER PRIMARY KEY REFERENCES jobs(id), epoch INTEGER NOT NULL, state BLOB NOT NULL
    );
    CREATE TABLE selections (
        protocol TEXT NOT NULL REFERENCES protocols(key), method TEXT NOT NULL, variant TEXT, reason TEXT NOT NULL,
        candidates TEXT NOT NULL, decided REAL NOT NULL, PRIMARY KEY (protocol, method)
    );
    """,
    # A job's row has the checksums of what belongs to it: its epochs, its artefacts by name, its checkpoint. What was
    # to be resumed starts over, because its checkpoints were pickled.
    """
    ALTER TABLE protocols ADD COLUMN planned INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE protocols ADD COLUMN checksum TEXT;
    ALTER TABLE selections ADD COLUMN checksum TEXT;
    ALTER TABLE jobs ADD COLUMN epochs_done INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN seconds REAL NOT NULL DEFAULT 0;
    ALTER TABLE jobs ADD COLUMN curve TEXT NOT NULL DEFAULT '';
    ALTER TABLE jobs ADD COLUMN artefacts TEXT NOT NULL DEFAULT '{}';
    ALTER TABLE jobs ADD COLUMN checkpoint TEXT;
    ALTER TABLE jobs ADD COLUMN origin TEXT;
    ALTER TABLE jobs ADD COLUMN checksum TEXT;
    CREATE TABLE totals (id INTEGER PRIMARY KEY, protocols INTEGER, selections INTEGER, checksum TEXT);
    DELETE FROM checkpoints;
    DELETE FROM epochs WHERE job IN (SELECT id FROM jobs WHERE status = 'running');
    UPDATE jobs SET status = 'planned' WHERE status = 'running';
    UPDATE protocols SET planned = (SELECT count(*) FROM jobs WHERE protocol = protocols.key)
    """,
)

# The columns of an epoch that its checksum covers, in this order.
EPOCH_COLUMNS = tuple(Epoch.__dataclass_fields__)


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Brings a file from a version to the newest; within a transaction of the caller."""
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        for statement in step.split(";"):
            db.execute(statement)
        if number == 2:
            _seal_all(db)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, object], how: str = "") -> int:
    """Writes a row; returns its id."""
    places = ", ".join("?" * len(row))
    made = db.execute(f"INSERT {how} INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
    return int(made.lastrowid or 0)


def update_checksum(db: sqlite3.Connection, table: str, where: str, *values: object) -> None:
    """Gives the rows of a table that were just written their checksums."""
    for row in db.execute(f"SELECT rowid AS number, * FROM {table} WHERE {where}", values).fetchall():
        content = {name: row[name] for name in row.keys() if name != "number"}  # noqa: SIM118 -- a Row is no dict
        db.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (row_checksum(content), row["number"]))


def count_rows(db: sqlite3.Connection) -> tuple[int, int]:
    """Experiments and selections."""
    protocols, selections = db.execute(
        "SELECT (SELECT count(*) FROM protocols), (SELECT count(*) FROM selections)"
    ).fetchone()
    return protocols, selections


def seal_totals(db: sqlite3.Connection, before: tuple[int, int] | None = None) -> None:
    """Notes how many rows there are, so that one that is lost is missed.

    Args:
        db: The connection.
        before: What :func:`count_rows` said before rows were added, so that one lost earlier stays missed; None to take
            what is there for right.
    """
    now = count_rows(db)
    noted = db.execute("SELECT protocols, selections FROM totals").fetchone()
    if before is not None and noted is not None:
        now = (noted[0] + now[0] - before[0], noted[1] + now[1] - before[1])
    db.execute("INSERT OR REPLACE INTO totals VALUES (1, ?, ?, '')", now)
    update_checksum(db, "totals", "id = 1")


def _seal_all(db: sqlite3.Connection) -> None:
    columns = ", ".join(EPOCH_COLUMNS)
    for (job,) in db.execute("SELECT id FROM jobs").fetchall():
        epochs = db.execute(f"SELECT {columns} FROM epochs WHERE job = ? ORDER BY epoch", (job,)).fetchall()
        kept = db.execute("SELECT name, content FROM artefacts WHERE job = ? ORDER BY name", (job,)).fetchall()
        db.execute(
            "UPDATE jobs SET epochs_done = ?, seconds = ?, curve = ?, artefacts = ? WHERE id = ?",
            (
                len(epochs),
                sum(row["seconds"] for row in epochs),
                extend_curve(EMPTY_CURVE, epochs),
                artefact_list({row["name"]: row["content"] for row in kept}),
                job,
            ),
        )
    for table in ("protocols", "jobs", "selections"):
        update_checksum(db, table, "1")
    seal_totals(db)


def artefact_list(contents: dict[str, bytes]) -> str:
    """What a job's row says about its artefacts."""
    return json.dumps({name: digest_bytes(content) for name, content in contents.items()}, sort_keys=True)


@functools.cache
def expected_columns(migrations: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    """Names and types of the columns of every table, by the steps themselves."""
    db = sqlite3.connect(":memory:")
    try:
        for step in migrations:
            db.executescript(step)
        return {table: columns(db, table) for table in TABLES}
    finally:
        db.close()


def columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    return [(row[1], row[2]) for row in db.execute(f"PRAGMA table_info({table})").fetchall()]
