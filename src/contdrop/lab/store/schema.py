"""The tables of a store, their versions, and the way from each to the next."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Mapping

from . import checksums
from .records import Epoch

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


def seal(db: sqlite3.Connection, table: str, where: str, *values: object) -> None:
    """Gives the rows of a table that were just written their checksums."""
    for row in db.execute(f"SELECT rowid AS number, * FROM {table} WHERE {where}", values).fetchall():
        content = {name: row[name] for name in row.keys() if name != "number"}  # noqa: SIM118 -- a Row is no dict
        db.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (checksums.of_row(content), row["number"]))


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
    seal(db, "totals", "id = 1")


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
                checksums.after_epochs(checksums.EMPTY, epochs),
                artefact_list({row["name"]: row["content"] for row in kept}),
                job,
            ),
        )
    for table in ("protocols", "jobs", "selections"):
        seal(db, table, "1")
    seal_totals(db)


def artefact_list(contents: dict[str, bytes]) -> str:
    """What a job's row says about its artefacts."""
    return json.dumps({name: checksums.of_bytes(content) for name, content in contents.items()}, sort_keys=True)


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
