"""Additions to the lab's reports: the paper's tables and claims, names of classes, and sample images."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..lab.analysis import dataset_ranks
from ..lab.extensions import Extension, Overall
from ..lab.report.formats import Cell, Table
from ..lab.report.protocol import size_of
from ..lab.store.results import Results
from ..lab.store.writer import Store
from ..lab.study import labels
from . import datasets, paper_tables
from .claims import verdicts
from .claims.claims import CLAIMS
from .claims.verdicts import ClaimVerdict, judge

if TYPE_CHECKING:
    from ..lab.report.figures.drawing import Picture


def claims_of(store: Store, everything: Sequence[Results]) -> list[ClaimVerdict]:
    """Return the verdicts on all claims about the store's studies, at the size that the protocol planned."""
    names = Counter(results.protocol.experiment for results in everything)
    once = [results for results in everything if names[results.protocol.experiment] == 1]  # else: which is meant?
    runs = verdicts.of_results(store, once)
    concerned = [claim for claim in CLAIMS if runs.keys() & set(claim.studies)]
    return judge(concerned, runs, {}, ())


def claims_table(found: Sequence[ClaimVerdict]) -> Table:
    """Return a table with a row for each claim."""
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


# Names of our data sets in the paper's Table VIII.
_DATASETS = {
    "mnist": "MNIST",
    "cifar-10": "CIFAR-10",
    "norb": "NORB",
    "ilsvrc": "ILSVRC-2012",
    **dict.fromkeys(("svhn", "svhn-extra"), "SVHN"),
}


def _class_names(dataset: str) -> tuple[str, ...]:
    return datasets.find(dataset).classes if dataset in datasets.names() else ()


def _samples(dataset: str, directory: pathlib.Path | None) -> Picture | None:
    from .paper_figures import samples  # matplotlib takes a second, and tables do without

    return samples(dataset, directory)


def _overall(store: Store, everything: Sequence[Results]) -> Overall:
    from .paper_figures import claims_picture

    entries, ranks = claims_of(store, everything), paper_ranks(everything)
    tables = (ranks,) if ranks else ()
    return ((claims_table(entries), *tables), (claims_picture(entries),)) if entries else (tables, ())


def paper_ranks(every: Sequence[Results]) -> Table | None:
    """Return the paper's Table VIII over those of its data sets that have results, next to its own ranks."""
    found = dataset_ranks.rank_published(every, list(paper_tables.AVERAGE_RANKS), _DATASETS)
    if found is None:
        return None
    ours, sources = found
    lowest = min(ours.average.values())
    rows = []
    for method, theirs in paper_tables.AVERAGE_RANKS.items():
        ranks = {name: ours.by_dataset[name][method] for name in sources}
        average = ours.average[method]
        rows.append(
            (
                Cell(labels.display_name(method, longest=10_000)),
                *(Cell(f"{rank:g} ({paper_tables.RANKS[name][method]})", rank) for name, rank in ranks.items()),
                Cell(f"{average:.2f}", average, average == lowest),
                Cell(f"{theirs:g}", theirs),
            )
        )
    used = "; ".join(
        f"{name}: {labels.printable(results.protocol.experiment)}, {size_of(results)}"
        for name, results in sources.items()
    )
    notes = (
        f"Ranks of the paper's five methods by their mean error; in brackets, those of its Table VIII. Ours: {used}.",
        "The paper's average is over MNIST, CIFAR-10, SVHN, NORB and ILSVRC-2012; ours over the data sets shown. Ranks "
        "say nothing of how far methods are apart, nor whether that is more than chance.",
    )
    headings = ("Method", *sources, "Average", "The paper's average")
    return Table("paper-ranks", "Ranks as in the paper's Table VIII", headings, tuple(rows), notes)


EXTENSION = Extension(
    studies="contdrop.replication.studies",
    published_table=paper_tables.table_of,
    average_ranks=paper_tables.AVERAGE_RANKS,
    ranks_note="The paper's ranks are over MNIST, CIFAR-10, SVHN, NORB and ILSVRC-2012, without “no dropout”.",
    class_names=_class_names,
    samples=_samples,
    overall=_overall,
)
