"""The studies of the replication; results/PROTOCOL.md says what each is to decide, and what it costs.

But for the authors' recipe all masks are scaled to mean one, so that noise alone differs between methods. Nothing is
selected, every strength is fixed here, but on CIFAR-10, where the paper's own choices are made on validation images.
Test images are looked at once, at the end, except where the curve of a run is the question.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...lab.study.study import Size
from ..networks import CNN, MLP
from ..networks.models import Glorot, Normal
from ..recipes import AdamCosine, Authors
from . import cifar_studies, common, mnist_studies
from .common import CommonNoise, Images, UnusedError

# Relative variances: Bernoulli dropout with rates from 9 to 80 per cent.
STRENGTHS = ("0.1", "0.2", "0.3", "0.6", "1", "2", "4")
CLIPPED = STRENGTHS[:4]  # what the clipped Gaussian reaches
UNIFORM = STRENGTHS[:3]  # what the uniform law reaches

DOSES = (
    "none",
    *(f"bernoulli:r={r}" for r in STRENGTHS),
    *(f"normal:r={r}" for r in STRENGTHS),
    *(f"gaussian:r={r}" for r in CLIPPED),
    *(f"uniform:r={r}" for r in UNIFORM),
)

# The paper's laws as it has them, each with the Bernoulli law of its strength.
PAPERS = ("none", "bernoulli", "gaussian", "uniform", "bernoulli-matched", "bernoulli-matched:uniform")

_RELU = MLP(widths=(784, 800, 800, 10), activation="relu", initialisation=Glorot())
_SIGMOID = dataclasses.replace(_RELU, activation="sigmoid", initialisation=Glorot(gain=4.0))
_SMALL_STEPS = AdamCosine(learning_rate=0.001, batch_size=50)
_LARGE_STEPS = AdamCosine(learning_rate=0.001, batch_size=100)
_TENTH = "a fifth of what any noise gains over none in the pilot, 0.5 points and more; less is of no use to anybody"


def _size(runs: int, epochs: int) -> dict[str, Size]:
    return {"quick": Size(runs=runs, epochs=epochs)}


_COMMON: dict[str, Any] = {"evaluate": "last", "evaluation_batch_size": 1000}


DOSE_1000 = common.study(
    name="dose-1000",
    title="MNIST, 784-800-800-10, ReLU, 1000 training images: how much noise, and of which shape",
    data=Images("mnist", train=1000, validation=1000),
    model=_RELU,
    **_SMALL_STEPS.settings(),
    methods=DOSES,
    sizes=_size(30, 80),
    margin=0.1,
    margin_reason=_TENTH,
    measure=UnusedError(),
    reference="none",
    **_COMMON,
)

DOSE_5000 = DOSE_1000.replace(
    name="dose-5000",
    title="MNIST, 784-800-800-10, ReLU, 5000 training images: how much noise, and of which shape",
    data=Images("mnist", train=5000, validation=1000),
    sizes=_size(30, 20),
)

FULL_RELU = common.study(
    name="full-relu",
    title="MNIST, 784-800-800-10, ReLU, all 50,000 images, Adam with cosine decay",
    data=mnist_studies.IMAGES,
    model=_RELU,
    **_LARGE_STEPS.settings(),
    methods=PAPERS,
    sizes=_size(20, 20),
    margin=0.05,
    margin_reason="about half of what the paper's Table I has between Gaussian and Bernoulli dropout, 0.95 and 1.06 %",
    reference="bernoulli",
    evaluation_batch_size=1000,
    evaluate=5,  # four points of a curve, for Figure 2
)

FULL_SIGMOID = FULL_RELU.replace(
    name="full-sigmoid",
    title="MNIST, 784-800-800-10, sigmoid, all 50,000 images, Adam with cosine decay",
    model=_SIGMOID,
    sizes=_size(10, 20),
    margin=0.1,
    margin_reason="half of what the paper's Table I has between Gaussian and Bernoulli dropout, 1.15 and 1.35 %",
)

_CNN_METHODS = ("none", "bernoulli", "gaussian", "uniform", "bernoulli-matched")

CNN_GAUSSIAN = common.study(
    name="replication-cnn-gaussian",
    title="MNIST, two convolutions and 150 ReLU units, Gaussian initial weights, Adam with cosine decay",
    data=mnist_studies.IMAGES,
    model=CNN(initialisation=Normal(0.01)),
    **_LARGE_STEPS.settings(),
    methods=_CNN_METHODS,
    sizes=_size(10, 10),
    margin=0.01,
    margin_reason="about half of the gap between Gaussian and Bernoulli in the paper's Table II, 0.534 and 0.551 %",
    reference="bernoulli",
    **_COMMON,
)

CNN_UNIFORM = CNN_GAUSSIAN.replace(
    name="replication-cnn-uniform",
    title="MNIST, two convolutions and 150 ReLU units, uniform initial weights, Adam with cosine decay",
    model=CNN(initialisation=Glorot()),
    # The protocol has the same for both networks.
    margin_reason="about a quarter of what Gaussian gains over Bernoulli in the paper's Table III, 0.521 and 0.558 %",
)

_AUTHORS = Authors()  # all of the schedule, in fewer epochs

AUTHORS_RELU = mnist_studies.RELU_AUTHORS.replace(
    name="replication-authors-relu",
    title="MNIST, 784-800-800-10, ReLU, as the authors' code trains it, in a tenth of its epochs",
    paper="",
    **_AUTHORS.settings(),
    methods=("none", "bernoulli", "gaussian", "uniform"),
    reference="bernoulli",
    candidates={},
    follows={},
    sizes=_size(3, 300),
    margin=FULL_RELU.margin,
    margin_reason=FULL_RELU.description.margin_reason,
    notes=(
        mnist_studies.RELU_AUTHORS.description.notes[0],
        "That code takes the test images for validation, and keeps the lowest test error of any epoch. Here nothing is "
        "selected and the last epoch counts; a table of its own shows what the lowest would be.",
    ),
)

FASHION_MLP = DOSE_5000.replace(
    name="fashion-5000",
    title="Fashion-MNIST, 784-800-800-10, ReLU, 5000 training images",
    data=Images("fashion-mnist", train=5000, validation=1000),
    methods=("none", "bernoulli:r=1", "normal:r=1", "bernoulli:r=0.3", "gaussian:r=0.3", "uniform:r=0.3"),
    margin=0.2,
    margin_reason="two test images in a thousand, where networks like these err on more than a hundred",
)

FASHION_CNN = CNN_GAUSSIAN.replace(
    name="fashion-cnn",
    title="Fashion-MNIST, two convolutions and 150 ReLU units, uniform initial weights",
    data=Images("fashion-mnist", train=50_000, validation=10_000),
    model=CNN(initialisation=Glorot()),
    sizes=_size(10, 10),
    margin=0.2,
    margin_reason=FASHION_MLP.description.margin_reason,
)

COADAPTATION = DOSE_5000.replace(
    name="coadaptation",
    title="MNIST, 784-800-800-10, ReLU, 5000 training images: covariance of units under one common noise",
    methods=("none", "bernoulli:r=1", "normal:r=1", "bernoulli:r=0.3", "gaussian:r=0.3", "uniform:r=0.3"),
    sizes=_size(10, 20),
    measure=CommonNoise(_RELU),
)

SIGMA = DOSE_5000.replace(
    name="sigma-5000",
    title="MNIST, 784-800-800-10, ReLU, 5000 training images: error against the Gaussian's width",
    methods=("bernoulli", *(f"gaussian:sigma={width}" for width in common.TENTHS)),
    reference="bernoulli",
    sizes=_size(10, 20),
)

# In the order of their value to the question; the protocol gives the cost of each.
STUDIES = (
    *(DOSE_1000, DOSE_5000, FASHION_MLP, cifar_studies.NIN_HEAD, FULL_RELU, COADAPTATION),
    *(SIGMA, CNN_GAUSSIAN, FULL_SIGMOID, FASHION_CNN, AUTHORS_RELU, CNN_UNIFORM),
)
