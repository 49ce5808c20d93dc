"""The command line. One file per command; it alone needs typer and rich, which the extra "lab" brings."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs ``contdrop``. Exit codes: 0 done, 2 wrong usage or bad input."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f'contdrop: the command line needs {error.name}, which is not installed; run: pip install "contdrop[lab]"',
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run())
