"""Studies of the second protocol, written down in results/PROTOCOL.md before their runs.

The first group asks how the best strength depends on the length of training, the others repeat the authors' recipe and
Tables I to IV with the control that the paper lacks. A study differs from its neighbours in one thing: within a group
the data, the network, the recipe and the seed are shared, so that run i of every length starts from the same split and
the same initial weights. The seed differs from that of the first protocol, so every run is new.
"""

from __future__ import annotations

from typing import Any

from ...lab.study.study import Size, Study
from ..networks import CNN
from ..networks.models import Glorot
from ..recipes import Authors
from . import cifar_studies, common, dose
from .common import Images

SEED = 7  # 0 is the seed of the first protocol

LENGTHS = (20, 80, 320)  # epochs
BERNOULLI = tuple(f"bernoulli:r={r}" for r in ("0.1", "0.3", "1", "2", "4"))

_ON_MNIST = ("none", *BERNOULLI, "normal:r=0.3", "normal:r=1")
_ON_FASHION = ("none", *BERNOULLI, "gaussian:r=0.3", "uniform:r=0.3", "normal:r=1")
# The longest runs of the larger data have no room for the weakest noise and for all shapes.
_LONG_ON_MNIST = ("none", *BERNOULLI[1:], "normal:r=1")
_LONG_ON_FASHION = ("none", *BERNOULLI[1:], "gaussian:r=0.3", "normal:r=1")


def _size(runs: int, epochs: int, selection_epochs: int | None = None) -> dict[str, Size]:
    size = Size(runs=runs, epochs=epochs, selection_runs=common.SELECTION_RUNS, selection_epochs=selection_epochs)
    return {"quick": size}


def _lengths(
    study: Study, name: str, short: tuple[str, ...], long: tuple[str, ...], runs: tuple[int, int, int]
) -> tuple[Study, ...]:
    """Return the study once for each length, named ``NAME-EPOCHS``."""
    return tuple(
        study.replace(
            name=f"{name}-{epochs}",
            title=f"{study.description.title.partition(':')[0]}, {epochs} epochs: strength against length of training",
            methods=long if epochs == max(LENGTHS) else short,
            sizes=_size(number, epochs),
            seed=SEED,
        )
        for epochs, number in zip(LENGTHS, runs)
    )


MNIST_1000 = _lengths(dose.DOSE_1000, "length-mnist-1000", _ON_MNIST, _ON_MNIST, (20, 20, 20))
MNIST_5000 = _lengths(dose.DOSE_5000, "length-mnist-5000", _ON_MNIST, _LONG_ON_MNIST, (20, 20, 10))
FASHION_5000 = _lengths(dose.FASHION_MLP, "length-fashion-5000", _ON_FASHION, _LONG_ON_FASHION, (20, 20, 10))

_SMALL_CNN = dose.FASHION_MLP.replace(
    title="Fashion-MNIST, two convolutions and 150 ReLU units, 1000 training images",
    data=Images("fashion-mnist", train=1000, validation=1000),
    model=CNN(initialisation=Glorot()),
)
FASHION_CNN_1000 = _lengths(_SMALL_CNN, "length-fashion-cnn-1000", _ON_MNIST, _LONG_ON_MNIST, (20, 20, 10))

_FIRST_THIRD: dict[str, Any] = Authors(original_epochs=1000).settings()
_NOTES = (
    dose.AUTHORS_RELU.description.notes[0],
    "That code takes the test images for validation, and keeps the lowest test error of any epoch. Here nothing is "
    "selected, the last epoch counts, and the error is the mean of those of the test and the validation images.",
)

# The first 100 epochs of the 300 of replication-authors-relu: in both, epoch e has the rate and the momentum of epoch
# 10 e + 1 of the original 3000.
AUTHORS_100 = dose.AUTHORS_RELU.replace(
    name="authors-relu-100",
    title="MNIST, 784-800-800-10, ReLU, as the authors' code trains it, first third of a tenth of its epochs",
    **_FIRST_THIRD,
    methods=("none", "bernoulli", "gaussian", "uniform", "bernoulli-matched"),
    sizes=_size(20, 100),
    evaluate=5,
    notes=_NOTES,
    seed=SEED,
)
AUTHORS_300 = AUTHORS_100.replace(
    name="authors-relu-300",
    title=dose.AUTHORS_RELU.description.title,
    **Authors().settings(),
    methods=("bernoulli", "gaussian", "bernoulli-matched"),
    sizes=_size(5, 300),
    evaluate=10,
    seed=SEED + 1,  # new runs, not those of the study above
)
AUTHORS_1000 = AUTHORS_300.replace(
    name="authors-relu-1000",
    title="MNIST, 784-800-800-10, ReLU, as the authors' code trains it, in a third of its epochs",
    sizes=_size(2, 1000),
)

SIGMA_20 = dose.SIGMA.replace(
    name="sigma-5000-20",
    # The paper says "variance in {0.1, ..., 1.0}" and plots standard deviations, so both readings are run.
    methods=(
        "bernoulli",
        *(f"gaussian:sigma={width}" for width in common.TENTHS),
        *(f"gaussian:variance={width}" for width in common.TENTHS[:-1]),  # a variance of 1 is a width of 1
    ),
    sizes=_size(40, 20),
    seed=SEED,
)
SIGMA_80 = SIGMA_20.replace(
    name="sigma-5000-80",
    title=f"{dose.SIGMA.description.title}, 80 epochs",
    methods=("bernoulli", *(f"gaussian:sigma={width}" for width in ("0.1", "0.2", "0.3", "0.4", "0.6", "1"))),
    sizes=_size(20, 80),
)

NIN_HEAD = cifar_studies.NIN_HEAD.replace(name="cifar10-nin-head-fresh", seed=SEED)

_TABLE: dict[str, Any] = {**common.COMMON, "seed": SEED}

TABLE_1_RELU = dose.FULL_RELU.replace(
    name="table1-relu",
    title="MNIST, 784-800-800-10, ReLU, all methods of Table I and their controls",
    methods=common.METHODS,
    sizes=_size(30, 20, 10),
    **_TABLE,
)
TABLE_1_SIGMOID = dose.FULL_SIGMOID.replace(
    name="table1-sigmoid",
    title="MNIST, 784-800-800-10, sigmoid, all methods of Table I and their controls",
    methods=common.METHODS,
    sizes=_size(30, 40, 20),
    evaluate=10,
    **_TABLE,
)

# The paper's six, and the Gaussian's control.
_SEVEN = tuple(each for each in common.METHODS if each not in ("fast", "bernoulli-matched:uniform"))
_CONVOLUTIONAL: dict[str, Any] = {"methods": _SEVEN, "sizes": _size(30, 10, 5), **_TABLE}

TABLE_2 = dose.CNN_GAUSSIAN.replace(
    name="table2-cnn",
    title="MNIST, two convolutions and 150 ReLU units, Gaussian initial weights, all methods of Table II",
    **_CONVOLUTIONAL,
)
TABLE_3 = dose.CNN_UNIFORM.replace(
    name="table3-cnn",
    title="MNIST, two convolutions and 150 ReLU units, uniform initial weights, all methods of Table III",
    **_CONVOLUTIONAL,
)

# In the order in which they are run.
STUDIES = (
    *(*MNIST_1000, *FASHION_5000, *MNIST_5000, *FASHION_CNN_1000),
    *(AUTHORS_100, AUTHORS_300, SIGMA_20, NIN_HEAD, SIGMA_80),
    *(TABLE_1_RELU, TABLE_2, TABLE_3, TABLE_1_SIGMOID, AUTHORS_1000),
)
