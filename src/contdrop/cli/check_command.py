"""``contdrop check``: is a store whole?"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from .._text import plural, printable
from ..lab.store.integrity import check as find
from ..lab.store.writer import Store
from . import options, terminal

HELP = """Read everything in a store and hold it against its checksums.

The database itself, every row, every epoch, prediction and checkpoint; that the plan is complete and the runs paired;
that each test error is that of the stored predictions. One line per finding, then what to do. The exit code is 2 if
anything is wrong.

\b
Examples:
  contdrop check runs.db
  contdrop check table1.db --json
"""


def check(
    store: Annotated[pathlib.Path, typer.Argument(metavar="STORE", help="The file.")] = options.STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> int:
    """The command; ``HELP`` says what it does."""
    with Store(store) as opened:
        found = find(opened)
        jobs = len(opened.statuses()) if not found else 0
    if as_json:
        terminal.print_json({"store": str(store), "findings": [vars(finding) for finding in found]})
    elif not found:
        print(printable(f"{store}: whole. {plural(jobs, 'job')}, every checksum holds."))
    else:
        for finding in found:
            print(printable(f"{store}: {finding.text}"))
        print(printable(_advice(all(finding.mendable for finding in found))))
    return 2 if found else 0


def _advice(mendable: bool) -> str:
    if mendable:
        return "What to do: give the contdrop run command again. What is damaged is done again, all else is kept."
    return (
        "What to do: put back a copy of the file, or contdrop import an archive of it. If there is neither, begin "
        "another store: contdrop does not guess what was written."
    )
