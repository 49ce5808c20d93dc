"""Templates of studies for ``contdrop compare --init``; each runs unchanged."""

from __future__ import annotations

import pathlib

from ...._files import replacing
from ....errors import UserError, suggest

KINDS = ("classification", "regression", "text", "images", "loop")
_PLACE = pathlib.Path(__file__).parent


def read(kind: str) -> str:
    if kind not in KINDS:
        raise UserError(f"--kind: unknown kind {kind!r}; {suggest(kind, KINDS)}")
    return (_PLACE / f"{kind}.py.txt").read_text(encoding="utf-8")


def write(path: pathlib.Path, kind: str) -> None:
    """Write a template to a new study file."""
    text = read(kind)
    if path.suffix != ".py":
        raise UserError(f"--init: expected a name that ends with .py; got {path}")
    if path.exists():
        raise UserError(f"--init: {path} already exists and is not overwritten; choose another name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--init: there is no directory {path.absolute().parent}; make it first")
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
