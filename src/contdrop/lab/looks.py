"""When how many runs were planned, and how many results were there then.

Whoever looks at results and adds runs until the answer pleases finds one more often than p-values say. So a protocol's
description keeps a line for every time that its number of runs grew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import checksums
from .records import FINAL, FINISHED

KEY = "plans"
_YEAR_9999 = 2.5e11  # seconds since 1970; a calendar ends there


@dataclass(frozen=True, order=True)
class Plan:
    """At a time (seconds since 1970) there were to be so many runs, and so many results were there."""

    time: float
    runs: int
    results: int


def plans(description: Mapping[str, Any]) -> list[Plan]:
    """What a description says; empty if it says nothing that makes sense."""
    try:
        found = [Plan(float(each["time"]), int(each["runs"]), int(each["results"])) for each in description[KEY]]
    except (KeyError, TypeError, ValueError, OverflowError):
        return []
    return found if all(0 <= plan.time < _YEAR_9999 for plan in found) else []


def noted(
    db: sqlite3.Connection, protocol: str, description: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]], now: float
) -> dict[str, Any]:
    """The description with the plans so far, and with this one if it has runs that were not planned yet."""
    found: list[Plan] = []
    for row in db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchall():
        if row["checksum"] == checksums.of_row(row):
            found = plans(json.loads(row["description"]))
    query = "SELECT DISTINCT run FROM jobs WHERE protocol = ? AND stage = ?"
    before = {run for (run,) in db.execute(query, (protocol, FINAL))}
    after = before | {job["run"] for job in jobs if job["stage"] == FINAL}
    if after != before:
        query = "SELECT count(*) FROM jobs WHERE protocol = ? AND stage = ? AND status = ?"
        (results,) = db.execute(query, (protocol, FINAL, FINISHED)).fetchone()
        found.append(Plan(now, len(after), results))
    return _with(description, found)


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The first description with the plans of both."""
    return _with(first, sorted({*plans(first), *plans(second)}))


def _with(description: Mapping[str, Any], found: Sequence[Plan]) -> dict[str, Any]:
    rest = {name: value for name, value in description.items() if name != KEY}
    return {**rest, KEY: [vars(plan) for plan in found]} if found else rest
