"""What the commands' pictures have in common: where they may be written, and how."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

from .._files import replacing
from ..errors import UserError

FORMATS = (".png", ".svg")


def check(path: pathlib.Path) -> None:
    """Everything that would spoil the plot, before time is spent on what it shows."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"--plot: expected a file name that ends in {' or '.join(FORMATS)}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise UserError(f"--plot: there is no directory {str(path.parent)!r}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError('--plot: needs matplotlib, which is not installed; run: pip install "contdrop[lab]"')


def save(figure: Any, path: pathlib.Path) -> None:
    """Writes a figure; the same numbers give the same file."""
    import matplotlib

    ending = path.suffix.lower()
    with replacing(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "contdrop"}):
        metadata = {"Date": None} if ending == ".svg" else None
        figure.savefig(temporary, format=ending.removeprefix("."), dpi=160, metadata=metadata)
