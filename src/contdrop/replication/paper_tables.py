"""What the paper reports, to be set beside our own results: its tables as plain data, errors in per cent.

X. Shen, X. Tian, T. Liu, F. Xu, D. Tao: Continuous Dropout. Every table compares Gaussian dropout with the other
methods over paired runs. Keys of ``TABLES`` are names of experiments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True)
class Result:
    """Mean error and standard deviation of one method, and the p-values of the reference against it.

    Both tests are one-sided, of "the reference's error is less". The reference itself has none.
    """

    mean: float
    sd: float
    t_p: float | None = None
    wilcoxon_p: float | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """One column of errors of one of the paper's tables, with the number of decimals that it gives of the means."""

    number: str
    title: str
    runs: int
    decimals: int
    results: Mapping[str, Result]

    @property
    def means(self) -> dict[str, float]:
        return {method: result.mean for method, result in self.results.items()}


def _table(number: str, title: str, *, runs: int = 30, decimals: int = 2, **results: Result) -> Table:
    return Table(number, title, runs, decimals, MappingProxyType(results))


TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "mnist-mlp-sigmoid": _table(
            "I",
            "MNIST, 784-800-800-10, sigmoid",
            none=Result(1.58, 0.045, 6.5e-26, 9.1e-7),
            bernoulli=Result(1.35, 0.049, 3.1e-17, 9.1e-7),
            adaptive=Result(1.30, 0.072, 7.4e-11, 1.1e-6),
            dropconnect=Result(1.37, 0.058, 8.7e-19, 9.1e-7),
            uniform=Result(1.21, 0.046, 9.0e-7, 1.2e-5),
            gaussian=Result(1.15, 0.035),
        ),
        "mnist-mlp-relu": _table(
            "I",
            "MNIST, 784-800-800-10, ReLU",
            none=Result(1.15, 0.036, 1.7e-19, 9.1e-7),
            bernoulli=Result(1.06, 0.037, 3.6e-17, 9.1e-7),
            adaptive=Result(1.02, 0.027, 1.9e-11, 1.2e-6),
            dropconnect=Result(1.01, 0.052, 8.5e-6, 6.0e-5),
            uniform=Result(0.96, 0.039, 0.031, 0.027),
            gaussian=Result(0.95, 0.028),
        ),
        "mnist-cnn-gaussian": _table(
            "II",
            "MNIST, two convolutions and a layer of 150, Gaussian initialisation",
            decimals=3,
            none=Result(0.674, 0.047, 1.8e-15, 9.1e-7),
            bernoulli=Result(0.551, 0.017, 3.3e-5, 1.5e-4),
            adaptive=Result(0.591, 0.017, 8.6e-18, 9.1e-7),
            dropconnect=Result(0.581, 0.012, 4.2e-18, 9.1e-7),
            uniform=Result(0.549, 0.021, 2.9e-3, 4.5e-3),
            gaussian=Result(0.534, 0.006),
        ),
        "mnist-cnn-uniform": _table(
            "III",
            "MNIST, two convolutions and a layer of 150, uniform initialisation",
            decimals=3,
            none=Result(0.670, 0.051, 3.0e-16, 9.1e-7),
            bernoulli=Result(0.558, 0.018, 4.4e-8, 6.5e-6),
            adaptive=Result(0.586, 0.016, 3.2e-13, 1.0e-6),
            dropconnect=Result(0.579, 0.011, 4.6e-16, 9.1e-7),
            uniform=Result(0.558, 0.018, 1.3e-11, 1.4e-6),
            gaussian=Result(0.521, 0.017),
        ),
        "cifar10-nin": _table(
            "IV",
            "CIFAR-10, Network in Network",
            none=Result(10.65, 0.114, 1.5e-14, 9.1e-7),
            bernoulli=Result(10.55, 0.050, 5.5e-15, 9.1e-7),
            adaptive=Result(10.46, 0.081, 1.6e-10, 9.1e-7),
            dropconnect=Result(10.40, 0.178, 2.9e-7, 7.8e-6),
            uniform=Result(10.47, 0.142, 5.2e-10, 2.0e-6),
            gaussian=Result(10.18, 0.129),
        ),
        "svhn": _table(
            "V",
            "SVHN, five networks averaged",
            none=Result(2.09, 0.002, 1.8e-35, 9.1e-7),
            bernoulli=Result(2.00, 0.012, 4.2e-19, 9.1e-7),
            adaptive=Result(2.13, 0.235, 3.5e-5, 1.3e-4),
            dropconnect=Result(1.96, 0.007, 8.4e-16, 9.1e-7),
            uniform=Result(1.92, 0.012, 0.982, 0.981),
            gaussian=Result(1.93, 0.012),
        ),
        "norb": _table(
            "VI",
            "NORB jittered-cluttered, five networks averaged",
            none=Result(3.55, 0.070, 1.4e-16, 9.1e-7),
            bernoulli=Result(3.33, 0.128, 1.6e-5, 9.9e-5),
            adaptive=Result(3.49, 0.204, 1.4e-8, 2.0e-6),
            dropconnect=Result(3.53, 0.059, 1.2e-15, 9.1e-7),
            uniform=Result(3.29, 0.197, 1.2e-3, 2.4e-3),
            gaussian=Result(3.15, 0.114),
        ),
        "ilsvrc-top5": _table(
            "VII",
            "ILSVRC-2012, VGG-16, top-5 error",
            runs=10,
            bernoulli=Result(8.86, 0.042, 9.5e-11, 9.8e-4),
            adaptive=Result(8.41, 0.061, 1.1e-6, 9.8e-4),
            dropconnect=Result(8.56, 0.037, 2.3e-8, 9.8e-4),
            uniform=Result(8.08, 0.048, 0.017, 0.024),
            gaussian=Result(7.99, 0.065),
        ),
        "ilsvrc-top1": _table(
            "VII",
            "ILSVRC-2012, VGG-16, top-1 error",
            runs=10,
            bernoulli=Result(26.99, 0.065, 7.4e-11, 9.8e-4),
            adaptive=Result(26.27, 0.046, 2.8e-8, 9.8e-4),
            dropconnect=Result(26.82, 0.050, 6.2e-11, 9.8e-4),
            uniform=Result(25.91, 0.046, 0.005, 0.014),
            gaussian=Result(25.79, 0.045),
        ),
    }
)

# The experiments that train as the authors' code does are of the same table. Its baselines are what that code has, so
# the names with "authors" are those that the paper's figures belong to.
_OF_THE_AUTHORS = ("adaptive", "dropconnect")
_STUDIES = {"svhn-local": "svhn", "norb-local": "norb", "ilsvrc-vgg16": "ilsvrc-top1"}


def table_of(experiment: str) -> Table | None:
    """The table that an experiment is of."""
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
