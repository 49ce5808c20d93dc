"""Tables of a store, the records made of their rows, and the digests that prove them intact.

The row of a job has the digests of everything that belongs to the job: its epochs, its arrays by name and its
checkpoint. So the checksum of that row is the digest of the job. The row of a protocol has its record: the numbers of
its jobs, results and selections, and the digests of its own columns, its selections and its results.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sqlite3
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

PLANNED, RUNNING, FINISHED, FAILED = "planned", "running", "finished", "failed"
SELECTION, FINAL = "selection", "final"
ONLY_SIZE = "study"  # the preset of a study that names no sizes
IMPORTED = "imported"  # the preset of numbers that come from elsewhere
PROCESSOR, ORDER = "kind of processor", "data order"


@dataclass(frozen=True)
class ProtocolRecord:
    """Row of ``protocols``."""

    key: str
    experiment: str
    preset: str
    epochs: int
    configuration: dict[str, Any]
    description: dict[str, Any]
    created: float


@dataclass(frozen=True)
class JobRecord:
    """Row of ``jobs``. A process may have ended without changing ``status``; see :meth:`Store.is_interrupted`.

    ``results`` of a finished job has the final model's losses and errors (in per cent), in evaluation mode, under the
    names ``train_loss`` to ``test_error``; a selection job has none of the test data. ``seconds`` is the total time of
    its epochs. ``origin`` is the file that the job was imported from, and None if it was done in this store.
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
        """Return what must be equal for all methods of a run."""
        return {**self.fingerprints, PROCESSOR: processor(self.machine)}


def processor(machine: Mapping[str, Any]) -> str:
    """Return what the last bits of a result depend on: architecture, instruction set, threads and devices."""
    threads, devices = machine.get("threads", "?"), machine.get("devices", 1)
    return (
        f"{machine.get('architecture', '?')} {machine.get('instructions', '?')}, "
        f"{threads} thread{'' if threads == 1 else 's'}{'' if devices == 1 else f', {devices} devices'}"
    )


class Epoch(NamedTuple):
    """Row of ``epochs``: measurements of one epoch, counted from 1; None where nothing was measured.

    Training figures are those of the training mode, noise included.
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
    """Row of ``selections``: the variant selected for a label, with the validation errors of all candidates.

    ``variant`` is None if all failed.
    """

    protocol: str
    method: str
    variant: str | None
    reason: str
    candidates: dict[str, Any]
    decided: float


# ---- tables

APPLICATION = 0x636F6E74  # "cont": tells our files from other programs' SQLite files
VERSION = 5
READABLE = (2, 3, 4, VERSION)  # 0.1.0 wrote version 2
TABLES = ("protocols", "jobs", "epochs", "artefacts", "checkpoints", "selections")
JSON_COLUMNS = {"configuration", "description", "candidates", "seeds", "fingerprints", "versions", "machine", "results"}
EPOCH_COLUMNS = Epoch._fields  # in the order in which their checksum covers them

_TABLES = """
CREATE TABLE protocols (
    key TEXT PRIMARY KEY, experiment TEXT NOT NULL, preset TEXT NOT NULL, epochs INTEGER NOT NULL,
    configuration TEXT NOT NULL, description TEXT NOT NULL, created REAL NOT NULL, record TEXT
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, protocol TEXT NOT NULL REFERENCES protocols(key),
    experiment TEXT NOT NULL, stage TEXT NOT NULL, method TEXT NOT NULL, run INTEGER NOT NULL,
    epochs INTEGER NOT NULL, configuration TEXT NOT NULL, status TEXT NOT NULL, error TEXT, variant TEXT,
    seeds TEXT, fingerprints TEXT, versions TEXT, machine TEXT, results TEXT,
    created REAL NOT NULL, started REAL, ended REAL,
    epochs_done INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0, curve TEXT NOT NULL DEFAULT '',
    artefacts TEXT NOT NULL DEFAULT '{}', checkpoint TEXT, origin TEXT, checksum TEXT, UNIQUE (protocol, key)
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
)
"""


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Migrate a file to the current version, within a transaction of the caller."""
    if version in READABLE[:-1]:
        _migrate(db, version)
    elif not version:
        for statement in _TABLES.split(";"):
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """Rebuild the tables that have changed. What does not match its checksum now will not match its record.

    Earlier versions had a checksum in every row, and totals in the rows of protocols.
    """
    records = {row["key"]: _earlier_record(db, row, version) for row in db.execute("SELECT * FROM protocols")}
    statements = [statement.strip() for statement in _TABLES.split(";")]
    for table in ("protocols", "jobs", "selections"):
        there = {name for name, _ in _columns(db, table)}
        shared = ", ".join(name for name, _ in expected_columns()[table] if name in there)
        (create,) = (each for each in statements if each.startswith(f"CREATE TABLE {table} "))
        db.execute(create.replace(f"TABLE {table}", f"TABLE new_{table}"))
        db.execute(f"INSERT INTO new_{table} ({shared}) SELECT {shared} FROM {table}")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE new_{table} RENAME TO {table}")
    db.execute(next(each for each in statements if each.startswith("CREATE INDEX")))
    db.execute("DROP TABLE IF EXISTS totals")
    for key, record in records.items():
        update(db, "protocols", {"record": record}, "key = ?", key)


def _earlier_record(db: sqlite3.Connection, row: sqlite3.Row, version: int) -> dict[str, Any]:
    """Return the record of a protocol of an earlier version, without the digests of what is damaged."""
    stated = COUNTS[: version - 1]  # more with each version
    (counts,) = db.execute(f"SELECT {', '.join(stated)} FROM protocols WHERE key = ?", (row["key"],))
    found = {"version": 1, **totals(db, row["key"]), **dict(zip(stated, counts))}
    if version == 2:  # a table of totals counted the selections of all protocols
        (made,) = db.execute("SELECT count(*) FROM selections").fetchone()
        counted = [total["selections"] for total in db.execute("SELECT * FROM totals") if is_intact(total)]
        found["decided"] += int(counted != [made])  # 1 too many where one is missing
    selections = db.execute("SELECT * FROM selections WHERE protocol = ?", (row["key"],))
    unknown = {"experiment": is_intact(row), "selections": all(map(is_intact, selections))}
    return found | {name: "" for name, intact in unknown.items() if not intact}


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, object]) -> int:
    """Write a row, that of a job with its checksum, and return its id."""
    values = tuple(map(_column, row.values()))
    made = db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", values)
    number = int(made.lastrowid or 0)
    update(db, table, {}, "rowid = ?", number)
    return number


def update(
    db: sqlite3.Connection, table: str, changes: Mapping[str, object], where: str = "true", *values: object
) -> None:
    """Change rows, and compute the checksums of jobs."""
    if changes:
        places = ", ".join(f"{name} = ?" for name in changes)
        db.execute(f"UPDATE {table} SET {places} WHERE {where}", (*map(_column, changes.values()), *values))
    if table == "jobs":
        for row in db.execute(f"SELECT * FROM jobs WHERE {where}", values).fetchall():
            db.execute("UPDATE jobs SET checksum = ? WHERE id = ?", (row_checksum(row), row["id"]))


def _column(value: object) -> object:
    return canonical_json(value) if isinstance(value, Mapping) else value


def update_job(db: sqlite3.Connection, job: int, **changes: object) -> None:
    """Change the row of a job and compute its checksum, and bring the record of its protocol up to date."""
    query = "SELECT protocol, status, checksum FROM jobs WHERE id = ?"
    before = db.execute(query, (job,)).fetchone()
    update(db, "jobs", changes, "id = ?", job)
    after = db.execute(query, (job,)).fetchone()
    gone, come = ([row["checksum"]] if row["status"] == FINISHED else [] for row in (before, after))
    row = db.execute("SELECT record FROM protocols WHERE key = ?", (after["protocol"],)).fetchone()
    record = row and parse_record(row["record"])
    if gone != come and record:
        record["version"] += 1
        record["finished"] += len(come) - len(gone)
        record["results"] = combined_digest(come, gone, record["results"])
        update(db, "protocols", {"record": record}, "key = ?", after["protocol"])


# ---- records of protocols

COUNTS = ("planned", "decided", "finished")
_DIGESTS = ("experiment", "selections", "results")
RECORD: Mapping[str, Any] = {  # of nothing; ``version`` counts the changes
    "version": 0, **dict.fromkeys(COUNTS, 0), **dict.fromkeys(_DIGESTS, ""),
}  # fmt: skip


def totals(db: sqlite3.Connection, protocol: str) -> dict[str, Any]:
    """Return the record that a protocol should have by its jobs, results and selections, except its version."""
    jobs = db.execute("SELECT status, checksum FROM jobs WHERE protocol = ?", (protocol,)).fetchall()
    finished = [checksum for status, checksum in jobs if status == FINISHED]
    selected = db.execute("SELECT * FROM selections WHERE protocol = ?", (protocol,)).fetchall()
    row = db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchone()
    return {
        "experiment": experiment_digest(row) if row else "",
        **dict(zip(COUNTS, (len(jobs), len(selected), len(finished)))),
        "selections": combined_digest(map(row_checksum, selected)),
        "results": combined_digest(finished),
    }


def experiment_digest(row: sqlite3.Row) -> str:
    """Return the digest of a protocol's own columns."""
    return row_checksum({name: row[name] for name in ProtocolRecord.__dataclass_fields__})


def is_intact_protocol(row: sqlite3.Row) -> bool:
    """Return True for the row of a protocol that matches its record."""
    return bool((parse_record(row["record"]) or RECORD)["experiment"] == experiment_digest(row))


def parse_record(text: object) -> dict[str, Any] | None:
    """Return a record from JSON; None if it is none."""
    try:
        found = json.loads(str(text))
        return {name: type(empty)(found[name]) for name, empty in RECORD.items()}
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def recount(db: sqlite3.Connection, protocol: str, **stated: object) -> None:
    """Write the record of a protocol after its jobs or selections have changed, with what is ``stated`` of them."""
    (text,) = db.execute("SELECT record FROM protocols WHERE key = ?", (protocol,)).fetchone()
    before = parse_record(text) or RECORD
    found = {"version": before["version"] + 1, **totals(db, protocol), **stated}
    update(db, "protocols", {"record": found}, "key = ?", protocol)


def combined_digest(added: Iterable[object], removed: Iterable[object] = (), before: str = "") -> str:
    """Return the digest of several checksums in any order, from that of those ``before``."""
    added_sum, removed_sum = (
        sum(int(digest_bytes(str(checksum).encode()), 16) for checksum in checksums) for checksums in (added, removed)
    )
    return f"{(int(before or '0', 16) + added_sum - removed_sum) % 2**256:064x}"


def wrong_tables(db: sqlite3.Connection) -> list[str]:
    """Return the tables that a file lacks, or that have other columns than those of a new store."""
    statements = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master")}
    if statements >= {statement.strip() for statement in _TABLES.split(";")}:
        return []
    expected = expected_columns()  # a file that was migrated has other statements
    return [table for table in TABLES if _columns(db, table) != expected[table]]


@functools.cache
def expected_columns() -> dict[str, list[tuple[str, str]]]:
    """Return names and types of the columns of every table of a new store."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_TABLES)
        return {table: _columns(db, table) for table in TABLES}


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    return [(row[1], row[2]) for row in db.execute(f"PRAGMA table_info({table})")]


# ---- checksums

_FLOATS = struct.Struct("<" + 8 * "3sd")  # of an epoch, each after its code
_NULL = b"n"
_CODES: dict[type, tuple[bytes, Callable[[Any], bytes]]] = {  # of the types that SQLite returns
    str: (b"s", lambda text: text.encode("utf-8", "surrogatepass")),
    int: (b"i", lambda number: str(number).encode()),
    float: (b"f", struct.Struct("<d").pack),
    bytes: (b"b", bytes),
}


def digest_bytes(content: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(content: Any) -> str:
    """Return JSON that is the same for equal contents."""
    return json.dumps(content, sort_keys=True, allow_nan=False)


def digest_json(content: Any) -> str:
    """Return the SHA-256 of data as JSON, which does not depend on the order of their keys."""
    return digest_bytes(canonical_json(content).encode())


def row_checksum(row: Mapping[str, Any] | sqlite3.Row) -> str:
    """Return the SHA-256 of the names, types and values of a row's columns.

    Columns that are NULL, and the checksum itself, are left out. The values are those that SQLite returns, which may
    differ in type from those that it was given.
    """
    values = tuple(row if isinstance(row, sqlite3.Row) else row.values())
    found = [(name, _encoded(values[number])) for number, name in _column_codes(tuple(row.keys()))]
    return hashlib.sha256(b"".join(name + value for name, value in found if value != _NULL)).hexdigest()


def is_intact(row: sqlite3.Row) -> bool:
    """Return True for a row that matches its checksum."""
    return bool(row["checksum"] == row_checksum(row))


@functools.lru_cache(maxsize=64)
def _column_codes(names: tuple[str, ...]) -> list[tuple[int, bytes]]:
    """Return places and codes of the columns that count, by name; cached because ten thousand rows have few kinds."""
    order = sorted(range(len(names)), key=lambda number: names[number])
    return [(number, _encoded(names[number])) for number in order if names[number] != "checksum"]


def curve_digest(epochs: Iterable[Sequence[Any]], before: str = "") -> str:
    """Return the checksum of a curve from that of the epochs ``before``; that of no epochs is empty."""
    for number, *values in epochs:
        try:  # a large store has millions of numbers
            code = _FLOATS.pack(*[part for value in values for part in (b"f8:", value)])
        except struct.error:  # some of them were not measured
            code = b"".join(map(_encoded, values))
        before = hashlib.sha256(before.encode() + _encoded(number) + code).hexdigest()
    return before


def checkpoint_digest(epoch: int, state: bytes) -> str:
    """Return the checksum of a checkpoint."""
    return digest_bytes(f"{epoch} ".encode() + state)


def artefact_digests(contents: Mapping[str, bytes]) -> str:
    """Return the checksums of a job's artefacts by name, as JSON."""
    return json.dumps({name: digest_bytes(content) for name, content in contents.items()}, sort_keys=True)


def _encoded(value: Any) -> bytes:
    """Return the code of a value; no two values share one, and none is the beginning of another's."""
    if value is None:
        return _NULL
    kind, code = _CODES[type(value)]
    content = code(value)
    return b"%b%d:%b" % (kind, len(content), content)
