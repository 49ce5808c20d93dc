"""Tables II and III: MNIST, two convolutions and a fully connected layer, two kinds of initial weights."""

from ...lab.study.study import Size
from ..initialization import Glorot, Normal
from ..networks import CNN
from ..recipes import Plateau
from . import common, mnist_mlp

GAUSSIAN = common.study(
    name="mnist-cnn-gaussian",
    title="MNIST, two convolutions and 150 ReLU units, Gaussian initial weights",
    paper="Table II",
    data=mnist_mlp.IMAGES,
    model=CNN(initialisation=Normal(0.01)),  # inverted masks, as in the authors' Caffe layers
    **Plateau().settings(),
    methods=common.METHODS,
    sizes={
        "paper": Size(runs=30, epochs=100, selection_runs=common.SELECTION_RUNS),
        "quick": Size(runs=3, epochs=6, selection_runs=common.SELECTION_RUNS, selection_epochs=4),
    },
    **common.COMMON,
    notes=("The paper does not say for how many epochs it trained; 100 is our choice.",),
    margin=0.01,
    margin_reason="about half of the gap between Gaussian and Bernoulli in the paper's Table II, 0.534 and 0.551 %",
)

UNIFORM = GAUSSIAN.replace(
    name="mnist-cnn-uniform",
    title="MNIST, two convolutions and 150 ReLU units, uniform initial weights",
    paper="Table III",
    model=CNN(initialisation=Glorot()),
    margin=0.02,
    margin_reason="about half of the gap between Gaussian and Bernoulli in the paper's Table III, 0.521 and 0.558 %",
)
