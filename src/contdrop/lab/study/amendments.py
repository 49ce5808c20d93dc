"""Changes of a study after its store was begun: its plan, its margin, and its behaviour.

Adding runs until the answer pleases finds a difference more often than p-values say. A study's description in the store
therefore keeps a line for each time that its number of runs grew, and for each time that margin, reference or methods
changed when there were results.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import pathlib
import sqlite3
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ..store import schema
from ..store.schema import FINAL, FINISHED

KEY, CHANGES = "plans", "changes"
_LOSS_TOLERANCE = 1e-3  # between the first losses of one study on different processors
_VALUE_TOLERANCE = 0.05  # between metrics after two steps, which on few examples may differ by one of them
_FIGURES = ("the loss of step 1", "the gradient of step 1", "the loss of step 2", "the gradient of step 2")
_AMENDABLE = ("runs", "methods", "margin", "reference", "description", "title", "notes", "sizes")
_YEAR_9999 = 2.5e11  # seconds since 1970; a calendar ends there


@dataclass(frozen=True, order=True)
class PlanEntry:
    """Number of planned runs, and of finished jobs, at a time in seconds since 1970."""

    time: float
    runs: int
    results: int


@dataclass(frozen=True)
class PlanChange:
    """Change of "margin", "reference" or "methods", with the number of finished jobs at the time."""

    time: float
    what: str
    before: Any
    after: Any
    results: int


def plans(description: Mapping[str, Any]) -> list[PlanEntry]:
    """Return the plans in a description; none if they are malformed."""
    return _entries(
        description, KEY, lambda line: PlanEntry(float(line["time"]), int(line["runs"]), int(line["results"]))
    )


def changes(description: Mapping[str, Any]) -> list[PlanChange]:
    """Return the changes in a description; none if they are malformed."""

    def change(line: Any) -> PlanChange:
        return PlanChange(float(line["time"]), str(line["what"]), line["before"], line["after"], int(line["results"]))

    return _entries(description, CHANGES, change)


def _entries(description: Mapping[str, Any], key: str, entry: Callable[[Any], Any]) -> list[Any]:
    try:
        found = [entry(line) for line in description[key]]
        hash(tuple(found))
        return found if all(0 <= each.time < _YEAR_9999 for each in found) else []
    except (KeyError, TypeError, ValueError, OverflowError):
        return []


def has_moved(description: Mapping[str, Any], what: str) -> bool:
    """Return True if a setting changed when there were results."""
    return any(change.what == what for change in changes(description))


def noted(
    db: sqlite3.Connection, protocol: str, description: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]], now: float
) -> dict[str, Any]:
    """Return the description with earlier plans and changes, and with those of this plan.

    Raises:
        UserError: The better direction of a metric has been reversed, and there are results.
    """
    known = db.execute("SELECT * FROM protocols WHERE key = ?", (protocol,)).fetchone()
    is_intact = known is not None and schema.is_intact_protocol(known)
    then: dict[str, Any] = json.loads(known["description"]) if is_intact else {}
    there = db.execute("SELECT run, method, status FROM jobs WHERE protocol = ? AND stage = ?", (protocol, FINAL))
    rows, wanted = there.fetchall(), [job for job in jobs if job["stage"] == FINAL]
    results = sum(row["status"] == FINISHED for row in rows)
    found, changed = plans(then), changes(then)
    before = {row["run"] for row in rows}
    after = before | {job["run"] for job in wanted}
    if after != before:
        found.append(PlanEntry(now, len(after), results))
    if then and results:
        refuse_other_direction(then, description)
        methods = {row["method"] for row in rows}
        added = dict.fromkeys(job["method"] for job in wanted if job["method"] not in methods)
        pairs = [(name, then.get(name), description.get(name)) for name in ("margin", "reference")]
        pairs += [("methods", None, ", ".join(added) or None)]
        changed += [PlanChange(now, *each, results) for each in pairs if each[1] != each[2]]
    return _with(description, found, changed)


def refuse_other_direction(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise an error if the better direction of a metric has been reversed."""
    listed = ([about.get("metric"), *(about.get("others") or ())] for about in (then, now))
    old, new = ({each.get("name"): each.get("better") for each in m if isinstance(each, Mapping)} for m in listed)
    for name, better in old.items():
        if better != new.get(name, better):
            raise UserError(
                f"metric {name}: {better} was better when the results in the store were made, and now {new[name]} is "
                "to be; put it back, or give another name or --store"
            )


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first description with the plans and changes of both."""
    changed = sorted({*changes(first), *changes(second)}, key=lambda change: change.time)
    return _with(first, sorted({*plans(first), *plans(second)}), changed)


def _with(description: Mapping[str, Any], found: Sequence[PlanEntry], changed: Sequence[PlanChange]) -> dict[str, Any]:
    rest = {name: value for name, value in description.items() if name not in (KEY, CHANGES)}
    log = {KEY: [vars(plan) for plan in found], CHANGES: [vars(change) for change in changed]}
    return rest | {name: lines for name, lines in log.items() if lines}


def behaviour_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first difference between a study's behaviour and that recorded in its store; None if there is none.

    The data and each method's figures from the dry run are compared, or the statements of a custom loop. Unknown
    figures (None, or those of a new method) equal any.
    """
    for name, change in (("data", "its data are others"), ("loop", "the code of its loop is another")):
        if before.get(name, now.get(name)) != now.get(name):
            return change
    for label, figures in now.get("methods", {}).items():
        for name, new, old in zip(_FIGURES, figures, before.get("methods", {}).get(label, ())):
            if not _is_alike(new, old, _LOSS_TOLERANCE, 1e-6):
                return f"with {label}, {name} is {new:.6g} and was {old:.6g}"
    for label, settings in now.get("settings", {}).items():
        earlier = before.get("settings", {}).get(label, {})
        for name, numbers in settings.items():
            known = earlier.get(name, numbers)
            if len(known) != len(numbers) or not all(map(_is_alike, numbers, known)):
                return f"with {label}, {name} has other values"
        if earlier.keys() - settings.keys():
            return f"with {label}, {min(earlier.keys() - settings.keys())} is gone"
    return None


def _is_alike(new: float | None, old: float | None, relative: float = _VALUE_TOLERANCE, absolute: float = 1e-9) -> bool:
    return new is None or old is None or math.isclose(new, old, rel_tol=relative, abs_tol=absolute)


def joined_behaviour(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the later behaviour with the methods that only the earlier one has."""
    return {**now, **{name: {**before.get(name, {}), **now[name]} for name in ("methods", "settings") if name in now}}


def loop_digest(loop: Any, file: pathlib.Path | None = None) -> str:
    """Return a digest of the statements of a study file, or else of the loop's own code; empty if unknown.

    Comments, layout, docstrings and the arguments of Study that may change later (``runs`` …) are left out.
    """
    try:
        text = file.read_text("utf-8") if file else inspect.getsource(loop if inspect.isroutine(loop) else type(loop))
    except (OSError, TypeError):
        return ""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:  # a lambda in the middle of a statement, or a notebook's commands
        return hashlib.sha256(text.encode()).hexdigest()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Study"):
            node.keywords = [each for each in node.keywords if each.arg not in _AMENDABLE]
        elif isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
