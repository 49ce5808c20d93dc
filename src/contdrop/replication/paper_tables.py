"""The paper's tables as plain data, errors in per cent.

X. Shen, X. Tian, T. Liu, F. Xu, D. Tao: Continuous Dropout. Every table compares Gaussian dropout with the other
methods over paired runs. Keys of ``TABLES`` are names of experiments.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from ..lab.extensions import PublishedResult, PublishedTable

# A block for each column of errors. First the experiment, the number of the table, the runs, the decimals of the means,
# and the title; then for each method the mean, the standard deviation, and the p-values of the t-test and of Wilcoxon's
# test of Gaussian dropout against it.
_FILE = pathlib.Path(__file__).with_name("paper_tables.txt")


def _read(text: str) -> dict[str, PublishedTable]:
    found = {}
    for block in text.strip().split("\n\n"):
        head, *rows = block.splitlines()
        name, number, runs, decimals, title = head.split(maxsplit=4)
        results = {method: PublishedResult(*map(float, figures)) for method, *figures in map(str.split, rows)}
        found[name] = PublishedTable(number, title, int(runs), int(decimals), MappingProxyType(results))
    return found


TABLES: Mapping[str, PublishedTable] = MappingProxyType(_read(_FILE.read_text(encoding="utf-8")))

# The experiments that train as the authors' code does are of the same table. Its baselines are what that code has, so
# the names with "authors" are those that the paper's figures belong to.
_OF_THE_AUTHORS = ("adaptive", "dropconnect")
_STUDIES = {"svhn-local": "svhn", "norb-local": "norb", "ilsvrc-vgg16": "ilsvrc-top1"}


def table_of(experiment: str) -> PublishedTable | None:
    """Return the paper's table that an experiment repeats, or None."""
    name = experiment.removesuffix("-authors")
    table = TABLES.get(_STUDIES.get(name, name))
    if table is None or name == experiment:
        return table
    renamed = {f"{m}-authors" if m in _OF_THE_AUTHORS else m: result for m, result in table.results.items()}
    return dataclasses.replace(table, results=MappingProxyType(renamed))


# Table VIII.
RANKS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "MNIST": {"bernoulli": 3, "adaptive": 5, "dropconnect": 4, "uniform": 2, "gaussian": 1},
        "CIFAR-10": {"bernoulli": 5, "adaptive": 3, "dropconnect": 2, "uniform": 3, "gaussian": 1},
        "SVHN": {"bernoulli": 4, "adaptive": 5, "dropconnect": 3, "uniform": 1, "gaussian": 2},
        "NORB": {"bernoulli": 3, "adaptive": 4, "dropconnect": 5, "uniform": 2, "gaussian": 1},
        "ILSVRC-2012": {"bernoulli": 5, "adaptive": 3, "dropconnect": 4, "uniform": 2, "gaussian": 1},
    }
)
AVERAGE_RANKS: Mapping[str, float] = MappingProxyType(
    {"bernoulli": 4.0, "adaptive": 4.0, "dropconnect": 3.6, "uniform": 2.0, "gaussian": 1.2}
)
