"""The directory of a page: what may be there, and what may not be overwritten. Quick to import, to be asked early."""

from __future__ import annotations

import pathlib

from ...errors import UserError

INDEX = "index.html"
_GENERATOR = b'<meta name="generator" content="contdrop'


def check(out: pathlib.Path) -> None:
    """Refuses a file, and a directory with a page of somebody else's."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: expected a directory; {out} is a file")
    index = out / INDEX
    if index.exists() and _GENERATOR not in index.read_bytes()[:4000]:
        raise UserError(f"--out: {index} is not a report of contdrop, and stays as it is; choose another directory")
