"""The paper's tables as plain data, errors in per cent.

X. Shen, X. Tian, T. Liu, F. Xu, D. Tao: Continuous Dropout. Every table compares Gaussian dropout with the other
methods over paired runs. Keys of ``TABLES`` are names of experiments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ..lab.extensions import PublishedResult, PublishedTable

# A block for each column of errors. First the experiment, the number of the table, the runs, the decimals of the means,
# and the title; then for each method the mean, the standard deviation, and the p-values of the t-test and of Wilcoxon's
# test of Gaussian dropout against it.
_TEXT = """
mnist-mlp-sigmoid   I   30 2 MNIST, 784-800-800-10, sigmoid
none         1.58    0.045   6.5e-26 9.1e-7
bernoulli    1.35    0.049   3.1e-17 9.1e-7
adaptive     1.30    0.072   7.4e-11 1.1e-6
dropconnect  1.37    0.058   8.7e-19 9.1e-7
uniform      1.21    0.046   9.0e-7  1.2e-5
gaussian     1.15    0.035

mnist-mlp-relu      I   30 2 MNIST, 784-800-800-10, ReLU
none         1.15    0.036   1.7e-19 9.1e-7
bernoulli    1.06    0.037   3.6e-17 9.1e-7
adaptive     1.02    0.027   1.9e-11 1.2e-6
dropconnect  1.01    0.052   8.5e-6  6.0e-5
uniform      0.96    0.039   0.031   0.027
gaussian     0.95    0.028

mnist-cnn-gaussian  II  30 3 MNIST, two convolutions and a layer of 150, Gaussian initialisation
none         0.674   0.047   1.8e-15 9.1e-7
bernoulli    0.551   0.017   3.3e-5  1.5e-4
adaptive     0.591   0.017   8.6e-18 9.1e-7
dropconnect  0.581   0.012   4.2e-18 9.1e-7
uniform      0.549   0.021   2.9e-3  4.5e-3
gaussian     0.534   0.006

mnist-cnn-uniform   III 30 3 MNIST, two convolutions and a layer of 150, uniform initialisation
none         0.670   0.051   3.0e-16 9.1e-7
bernoulli    0.558   0.018   4.4e-8  6.5e-6
adaptive     0.586   0.016   3.2e-13 1.0e-6
dropconnect  0.579   0.011   4.6e-16 9.1e-7
uniform      0.558   0.018   1.3e-11 1.4e-6
gaussian     0.521   0.017

cifar10-nin         IV  30 2 CIFAR-10, Network in Network
none         10.65   0.114   1.5e-14 9.1e-7
bernoulli    10.55   0.050   5.5e-15 9.1e-7
adaptive     10.46   0.081   1.6e-10 9.1e-7
dropconnect  10.40   0.178   2.9e-7  7.8e-6
uniform      10.47   0.142   5.2e-10 2.0e-6
gaussian     10.18   0.129

svhn                V   30 2 SVHN, five networks averaged
none         2.09    0.002   1.8e-35 9.1e-7
bernoulli    2.00    0.012   4.2e-19 9.1e-7
adaptive     2.13    0.235   3.5e-5  1.3e-4
dropconnect  1.96    0.007   8.4e-16 9.1e-7
uniform      1.92    0.012   0.982   0.981
gaussian     1.93    0.012

norb                VI  30 2 NORB jittered-cluttered, five networks averaged
none         3.55    0.070   1.4e-16 9.1e-7
bernoulli    3.33    0.128   1.6e-5  9.9e-5
adaptive     3.49    0.204   1.4e-8  2.0e-6
dropconnect  3.53    0.059   1.2e-15 9.1e-7
uniform      3.29    0.197   1.2e-3  2.4e-3
gaussian     3.15    0.114

ilsvrc-top5         VII 10 2 ILSVRC-2012, VGG-16, top-5 error
bernoulli    8.86    0.042   9.5e-11 9.8e-4
adaptive     8.41    0.061   1.1e-6  9.8e-4
dropconnect  8.56    0.037   2.3e-8  9.8e-4
uniform      8.08    0.048   0.017   0.024
gaussian     7.99    0.065

ilsvrc-top1         VII 10 2 ILSVRC-2012, VGG-16, top-1 error
bernoulli    26.99   0.065   7.4e-11 9.8e-4
adaptive     26.27   0.046   2.8e-8  9.8e-4
dropconnect  26.82   0.050   6.2e-11 9.8e-4
uniform      25.91   0.046   0.005   0.014
gaussian     25.79   0.045
"""


def _read(text: str) -> dict[str, PublishedTable]:
    found = {}
    for block in text.strip().split("\n\n"):
        head, *rows = block.splitlines()
        name, number, runs, decimals, title = head.split(maxsplit=4)
        results = {method: PublishedResult(*map(float, figures)) for method, *figures in map(str.split, rows)}
        found[name] = PublishedTable(number, title, int(runs), int(decimals), MappingProxyType(results))
    return found


TABLES: Mapping[str, PublishedTable] = MappingProxyType(_read(_TEXT))

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
