"""What a store's runs decide of the paper's claims, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...lab.report.cells import Cell, Table
from ...lab.store.results import Results
from ...lab.store.writer import Store
from . import evidence
from .claims import CLAIMS
from .verdicts import Entry, ledger


def entries(store: Store, everything: Sequence[Results]) -> list[Entry]:
    """The verdicts on all claims that name one of the store's studies, at the size that the protocol planned."""
    names = Counter(results.protocol.experiment for results in everything)
    once = [results for results in everything if names[results.protocol.experiment] == 1]  # else: which is meant?
    runs = evidence.of_results(store, once)
    concerned = [claim for claim in CLAIMS if runs.keys() & set(claim.studies)]
    return ledger(concerned, runs, {}, ())


def table(found: Sequence[Entry]) -> Table | None:
    """A row for each claim."""
    if not found:
        return None
    rows = tuple(
        (
            Cell(f"{entry.claim.id} {entry.claim.text}", entry.claim.id),
            Cell(entry.claim.where),
            Cell(entry.verdict, entry.verdict),
            Cell(entry.reason),
        )
        for entry in found
    )
    notes = (
        "By the rules of the replication's protocol: differences corrected over all comparisons of a study that a "
        "claim names, equivalence within the margin, and nothing decided before all planned runs are there. Claims "
        "that other studies decide are not here: contdrop claims --results results has them all.",
    )
    headings = ("Claim", "Where in the paper", "Verdict", "Evidence")
    return Table("claims", "The paper's claims that these runs are to decide", headings, rows, notes)
