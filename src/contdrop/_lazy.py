"""Packages that import what they offer when it is asked for: torch takes seconds, and not every command needs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that offers its modules and what its module ``public`` imports."""

    def fill() -> None:
        offered = vars(importlib.import_module(f"{package}.public"))
        names = [name for name in offered if not name.startswith("_")]
        vars(sys.modules[package]).update({name: offered[name] for name in names}, __all__=names)

    def get(name: str) -> Any:
        # Whoever looks a module over asks for such names too, which are no reason to import anything.
        special = name.startswith("__") and name != "__all__"
        if not special and PathFinder.find_spec(f"{package}.{name}", sys.modules[package].__path__):
            return importlib.import_module(f"{package}.{name}")
        if not special:
            fill()
        if special or name not in vars(sys.modules[package]):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return vars(sys.modules[package])[name]

    def listed() -> list[str]:
        fill()
        return sorted(vars(sys.modules[package]))

    return get, listed
