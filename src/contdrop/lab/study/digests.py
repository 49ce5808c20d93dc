"""Digests of a study's functions: whether one has become another, as far as its code and plain values tell.

Line numbers, names of files and of local variables do not count. Code of this package and of others stands for itself
by its name: what it is given counts, a new version of it does not.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from .study import Study
from .user_errors import is_users

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # others make other byte code of the same text
# By the first steps of a training, which a momentum, for example, does not change.
UNSEEN = ("metric", "run", "measure", "scheduler", "optimizer")
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def of_study(study: Study) -> dict[str, str]:
    """By name, of what decides results beside data and model."""
    things: dict[str, Any] = {
        name: getattr(study.training if name == "scheduler" else study, name) for name in (*UNSEEN, "loss", "forward")
    }
    things["metric"] = [(each.name, each.of, each.combine, each.function) for each in study.metrics]
    return {name: hashlib.sha256(repr(_plain(each, {})).encode()).hexdigest() for name, each in things.items()}


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """Something whose ``repr`` is the same in every process; what was ``seen`` is not looked at again."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, tuple):
        return [_plain(each, seen) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(each) for each in value if isinstance(each, _SIMPLE))
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    if isinstance(value, list):
        return _plain(tuple(value), seen)
    if isinstance(value, Mapping):
        names = sorted((name for name in value if isinstance(name, _SIMPLE)), key=repr)
        return [(name, _plain(value[name], seen)) for name in names]
    if isinstance(value, functools.partial):
        return _plain((value.func, value.args, value.keywords), seen)
    if isinstance(value, MethodType):
        return _plain((value.__func__, value.__self__), seen)
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        # Of a static method, its function.
        members = {name: getattr(each, "__func__", each) for name, each in vars(value).items()}
        own = {name: each for name, each in members.items() if isinstance(each, FunctionType) and _is_own(each)}
        settings = {n: each for n, each in members.items() if own and isinstance(each, _SIMPLE) and n[:2] != "__"}
        return value.__qualname__, _plain(own | settings, seen)
    settings = vars(value) if callable(value) and hasattr(value, "__dict__") else {}
    return getattr(value, "__name__", ""), _plain((type(value), settings), seen)


def _is_own(function: FunctionType) -> bool:
    return is_users(function.__code__.co_filename)


def _function(function: FunctionType, seen: dict[int, Any]) -> Any:
    code = function.__code__
    enclosed = {name: _content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or ())}
    given = [function.__defaults__, function.__kwdefaults__]
    if not _is_own(function):
        return function.__qualname__, _plain([*given, enclosed], seen)
    body = _code(code, {**function.__globals__, **enclosed}, function.__doc__, seen)
    return body, _plain(given, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _code(code: CodeType, known: Mapping[str, Any], doc: str | None, seen: dict[int, Any]) -> Any:
    """With the functions, classes and plain values that it reads from outside, unless it writes them, too."""
    steps = list(dis.get_instructions(code))
    read = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE")}
    written = {step.argval for step in steps if step.opname.startswith("STORE_")}
    used = {name: known[name] for name in read - written if name in known}
    kept = {n: each for n, each in used.items() if isinstance(each, (*_SIMPLE, tuple, FunctionType, type))}
    constants = [
        _code(each, known, None, seen) if isinstance(each, CodeType) else _plain(None if each == doc else each, seen)
        for each in code.co_consts
    ]
    return code.co_code, code.co_names, constants, _plain(kept, seen)
