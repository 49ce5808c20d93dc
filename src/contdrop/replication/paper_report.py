"""Additions to the lab's reports: the paper's tables and claims, names of classes, and sample images."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UserError
from ..lab.analysis import dataset_ranks
from ..lab.extensions import Extension, Overall, register
from ..lab.report.cells import Cell, Table, size_of
from ..lab.store.results import Results
from ..lab.store.writer import Store
from ..lab.study import labels
from . import paper_tables
from .claims import claims_table
from .datasets import registry

if TYPE_CHECKING:
    from ..lab.report.figures.drawing import Picture

# Names of our data sets in the paper's Table VIII.
_DATASETS = {
    "mnist": "MNIST",
    "cifar-10": "CIFAR-10",
    "norb": "NORB",
    "ilsvrc": "ILSVRC-2012",
    **dict.fromkeys(("svhn", "svhn-extra"), "SVHN"),
}


def _class_names(dataset: str) -> tuple[str, ...]:
    try:
        return registry.find(dataset).classes
    except UserError:
        return ()


def _samples(dataset: str, directory: pathlib.Path | None) -> Picture | None:
    from .image_samples import samples  # matplotlib takes a second, and tables do without

    return samples(dataset, directory)


def _overall(store: Store, everything: Sequence[Results]) -> Overall:
    from .claims.claims_figure import claims

    entries = claims_table.entries(store, everything)
    tables, picture = (claims_table.table(entries), paper_ranks(everything)), claims(entries)
    return Overall(tuple(table for table in tables if table), (picture,) if picture else ())


def paper_ranks(every: Sequence[Results]) -> Table | None:
    """Return the paper's Table VIII over those of its data sets that have results, next to its own ranks."""
    found = dataset_ranks.rank_published(every, list(paper_tables.AVERAGE_RANKS), _DATASETS)
    if found is None:
        return None
    ours, sources = found
    lowest = min(ours.average.values())
    rows = []
    for method, theirs in paper_tables.AVERAGE_RANKS.items():
        cells = [
            Cell(
                f"{ours.by_dataset[name][method]:g} ({paper_tables.RANKS[name][method]})", ours.by_dataset[name][method]
            )
            for name in sources
        ]
        average = ours.average[method]
        rows.append(
            (
                Cell(labels.display_name(method, longest=10_000)),
                *cells,
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


register(
    Extension(
        studies="contdrop.replication.studies",
        published_table=paper_tables.table_of,
        average_ranks=paper_tables.AVERAGE_RANKS,
        ranks_note="The paper's ranks are over MNIST, CIFAR-10, SVHN, NORB and ILSVRC-2012, without “no dropout”.",
        class_names=_class_names,
        samples=_samples,
        overall=_overall,
    )
)
