"""Networks to certify: half of the training images make the prior, the other half the posterior and its bound."""

from __future__ import annotations

from ...lab.study.study import Size
from ..initialization import Glorot
from ..networks import MLP
from ..recipes import AdamCosine
from . import common
from .study_data import Images

MNIST = common.study(
    name="mnist-certificate",
    title="MNIST, 784-300-300-10, ReLU, 30,000 training images: networks to certify",
    # Nothing is chosen by the validation images: PAC-Bayes posteriors are trained on them.
    data=Images("mnist", train=30_000, validation=30_000),
    model=MLP(widths=(784, 300, 300, 10), activation="relu", initialisation=Glorot()),
    **AdamCosine(learning_rate=0.001, batch_size=100).settings(),
    methods=("none", "bernoulli", "gaussian", "uniform", "bernoulli-matched"),
    sizes={"quick": Size(runs=1, epochs=20)},
    reference="bernoulli",
    margin=0.1,
    margin_reason="one test image in a thousand",
    weights="last",
    evaluate="last",
    evaluation_batch_size=1000,
)
