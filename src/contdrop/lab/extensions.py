"""Hooks by which a package of published studies adds its tables, data sets and pictures to the lab's reports."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import UserError

if TYPE_CHECKING:
    from .report.figures.drawing import Picture
    from .report.formats import Table
    from .store.results import Results
    from .store.writer import Store

# The environment variable with the directory of the data sets; workers on other machines get its value too.
DATA_VARIABLE = "CONTDROP_DATA"

Overall: TypeAlias = "tuple[Sequence[Table], Sequence[Picture]]"

_MODULE = "contdrop.replication.paper_report"


@dataclass(frozen=True)
class PublishedResult:
    """Published mean error and standard deviation of a method, with the reference's p-values against it.

    Both tests are one-sided, of "the reference's error is less". The reference itself has no p-values.
    """

    mean: float
    sd: float
    t_p: float | None = None
    wilcoxon_p: float | None = None


@dataclass(frozen=True)
class PublishedTable:
    """A published column of errors by method; ``decimals`` is the number of decimals of its means."""

    number: str
    title: str
    runs: int
    decimals: int
    results: Mapping[str, PublishedResult]

    @property
    def means(self) -> dict[str, float]:
        return {method: result.mean for method, result in self.results.items()}


@dataclass(frozen=True)
class Extension:
    """Additions to studies and reports; every field is optional.

    Attributes:
        studies: The module with the published studies and its function ``find``, imported when one is asked for.
        published_table: Returns the published table of an experiment, or None.
        average_ranks: The published average rank of each method.
        ranks_note: A sentence about those ranks.
        class_names: Returns the names of a data set's classes; none if it is unknown.
        samples: Draws training images of a data set that is in a directory; None if it is not there.
        overall: Returns tables and pictures about all experiments of a store together.
    """

    studies: str = ""
    published_table: Callable[[str], PublishedTable | None] = lambda experiment: None
    average_ranks: Mapping[str, float] = field(default_factory=dict)
    ranks_note: str = ""
    class_names: Callable[[str], tuple[str, ...]] = lambda dataset: ()
    samples: Callable[[str, pathlib.Path | None], Picture | None] = lambda dataset, directory: None
    overall: Callable[[Store, Sequence[Results]], Overall] = lambda store, everything: ((), ())


@functools.cache
def extension() -> Extension:
    """Return that of the package of published studies; one without any additions if it is not installed."""
    if importlib.util.find_spec(_MODULE.rpartition(".")[0]) is None:
        return Extension()
    found: Extension = importlib.import_module(_MODULE).EXTENSION
    return found


def find_studies(name: str) -> list[Any]:
    """Return the published studies of a name, or of the name of a group."""
    if not extension().studies:
        raise UserError(f'study {name!r} has no file; for studies by name run: pip install "contdrop[replication]"')
    found: list[Any] = importlib.import_module(extension().studies).find(name)
    return found
