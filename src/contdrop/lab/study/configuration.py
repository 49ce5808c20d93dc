"""What an experiment is configured with: frozen dataclasses that can be written down as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Configuration:
    """Base of the frozen dataclasses that describe networks and their training."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """The kind and all fields, as JSON would give them back; functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}


def described_as(name: str) -> Callable[[_Function], _Function]:
    """Fix the name that a configuration has of one of our own functions: keys hash it, so a new name keeps it."""

    def fix(function: _Function) -> _Function:
        function.described_as = name  # type: ignore[attr-defined]
        return function

    return fix


def name_of(thing: Callable[..., Any], otherwise: Any) -> Any:
    """Return what a configuration says of a function."""
    return getattr(thing, "described_as", getattr(thing, "__qualname__", otherwise))


def is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _plain(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.as_dict()
    if callable(value):
        return name_of(value, value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
