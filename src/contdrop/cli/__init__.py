"""The command line, a file per command or group. It needs typer and rich, which the extra "lab" brings."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run ``contdrop``. Exit codes: 0 done, 1 some jobs failed, 2 wrong usage or bad input, 130 interrupted."""
    try:
        from .app import run
    except KeyboardInterrupt:  # while torch is being imported, which takes a moment
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f'contdrop: the command line needs {error.name}, which is not installed; run: pip install "contdrop[lab]"',
            file=sys.stderr,
        )
        sys.exit(2)
    code = run()
    try:
        sys.stdout.flush()
    except OSError as error:
        code = spoiled_output(error)
    sys.exit(code)


def spoiled_output(error: OSError) -> int:
    """Return the exit code for output that failed: 0 if the reader closed the pipe, 2 otherwise."""
    # Whatever is left in the buffer cannot be written either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"contdrop: cannot write the output: {error.strerror}; make room or write it elsewhere", file=sys.stderr)
    return 2
