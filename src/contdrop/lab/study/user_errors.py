"""One-line errors with file and line for exceptions in user code."""

from __future__ import annotations

import contextlib
import inspect
import pathlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

from ...errors import UserError, suggest

_ARGUMENT = re.compile(r"^(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'$")
_PLACE = re.compile(r" \(\S+, line \d+\)$")
_PACKAGE = pathlib.Path(__file__).resolve().parents[2]
_STANDARD = {pathlib.Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")}  # Python's own library
_INSTALLED = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def explained(what: str, of: Any = None) -> Iterator[None]:
    """Convert exceptions raised in user code into one-line errors that say what is being done, and where.

    If no line is known, it is that of the user's function ``of``.
    """
    try:
        yield
    except UserError as error:
        place = "" if _PLACE.search(str(error)) else place_of(error) or line_of(of)
        if not place:
            raise
        raise UserError(f"{error}{place}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {printable_error(error)}{place_of(error)}") from error


def printable_error(error: BaseException) -> str:
    """Return the kind of error and the first line of its text."""
    reported = error.msg if isinstance(error, SyntaxError) else str(error)  # str repeats the place
    text = next(iter(reported.strip().splitlines()), "")
    return f"{type(error).__name__}: {text}"[:300] + _meant(text) if text else type(error).__name__


def _meant(text: str) -> str:
    """Suggest an argument of the lab's own classes for an unexpected one."""
    found = _ARGUMENT.search(text)
    lab = sys.modules["contdrop.lab"]
    if found is None or found[1] not in dir(lab):
        return ""
    name = {"optimiser": "optimizer"}.get(found[2], found[2])
    if found[1] == "Study":
        for group in ("Selection", "Training", "Description"):
            inside = name.removeprefix("selection_") if group == "Selection" else name
            if inside in inspect.signature(getattr(lab, group)).parameters:
                return f"; write {group.lower()}=lab.{group}({inside}=...)"
    return f"; {suggest(name, inspect.signature(getattr(lab, found[1])).parameters)}"


def place_of(error: BaseException) -> str:
    """Return the last line of user code that an error passed through; empty if none."""
    if isinstance(error, SyntaxError) and error.filename:
        return _place(error.filename, error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return _place(frames[-1].filename, frames[-1].lineno) if frames else ""


def line_of(function: Any) -> str:
    """Return the line where a user's function is defined; empty if unknown."""
    code = getattr(function, "__code__", None)
    return _place(code.co_filename, code.co_firstlineno) if code and is_users(code.co_filename) else ""


def _place(file: str, line: int | None) -> str:
    return f" ({pathlib.Path(file).name}, line {line})"


def is_users(file: str) -> bool:
    """Return True for a file that is neither this package's nor an installed one."""
    path = pathlib.Path(file)
    return not (
        file.startswith(("<frozen", "<string>"))
        or _INSTALLED.intersection(path.parts)
        or {_PACKAGE, *_STANDARD}.intersection(path.parents)
    )
