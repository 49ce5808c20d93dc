"""Table I: MNIST, fully connected, sigmoid and ReLU units."""

import dataclasses

from ..data import Split
from ..experiment import Experiment, Size
from ..models import MLP
from ..recipes import Hinton
from . import shared

SPLIT = Split(train=50_000, validation=10_000)
PAPER = Size(runs=30, epochs=3000)

# In few epochs the whole schedule would spend most of them at rates at which nothing is learnt any more, so a quick run
# goes through its first third.
QUICK_EPOCHS = 1000

# Chosen on validation data by tools/choose_rate.py; see docs/reproduction.md. With the original's 10 neither kind of
# network learns in a few epochs.
RELU_RATE, SIGMOID_RATE = 1.0, 2.0


def quick(rate: float, runs: int = 3, epochs: int = 16) -> Size:
    recipe = Hinton(learning_rate=rate, original_epochs=QUICK_EPOCHS)
    return Size(runs=runs, epochs=epochs, selection_epochs=4, recipe=recipe)


SIGMOID = Experiment(
    name="mnist-mlp-sigmoid",
    title="MNIST, 784-800-800-10, sigmoid",
    paper="Table I, left",
    dataset="mnist",
    split=SPLIT,
    model=MLP(widths=(784, 800, 800, 10), activation="sigmoid"),
    recipe=Hinton(learning_rate=SIGMOID_RATE),
    methods=shared.METHODS,
    sizes={"paper": PAPER, "quick": quick(SIGMOID_RATE)},
    candidates=shared.CANDIDATES,
    follows=shared.FOLLOWS,
    margin=0.1,
    margin_reason="half of what the paper's Table I has between Gaussian and Bernoulli dropout, 1.15 and 1.35 %",
)

RELU = dataclasses.replace(
    SIGMOID,
    name="mnist-mlp-relu",
    title="MNIST, 784-800-800-10, ReLU",
    paper="Table I, right",
    model=MLP(widths=(784, 800, 800, 10), activation="relu"),
    recipe=Hinton(learning_rate=RELU_RATE),
    sizes={"paper": PAPER, "quick": quick(RELU_RATE)},
    margin=0.05,
    margin_reason="about half of what the paper's Table I has between Gaussian and Bernoulli dropout, 0.95 and 1.06 %",
)
