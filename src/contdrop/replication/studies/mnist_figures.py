"""The figures on MNIST: error against sigma, error against epochs, and histograms of covariance."""

import dataclasses

from . import mnist_mlp
from .covariance_study import Covariance

_TENTHS = tuple(f"{tenths / 10:g}" for tenths in range(1, 11))

SIGMA = mnist_mlp.RELU.replace(
    name="mnist-sigma",
    title="MNIST, 784-800-800-10, ReLU: error against the Gaussian's width",
    paper="Figure 3, ReLU",
    # The paper says "variance in {0.1, ..., 1.0}" and plots standard deviations, so both readings are run.
    methods=(
        "bernoulli",
        *(f"gaussian:sigma={width}" for width in _TENTHS),
        *(f"gaussian:variance={width}" for width in _TENTHS),
    ),
    reference="bernoulli",
    candidates={},
    follows={},
    sizes={"paper": mnist_mlp.PAPER, "quick": mnist_mlp.quick(mnist_mlp.RELU_RECIPE, runs=2, epochs=6)},
)

SIGMA_SIGMOID = SIGMA.replace(
    name="mnist-sigma-sigmoid",
    title="MNIST, 784-800-800-10, sigmoid: error against the Gaussian's width",
    paper="Figure 3, sigmoid",
    model=mnist_mlp.SIGMOID.model,
    **mnist_mlp.SIGMOID_RECIPE.settings(),
    sizes={"paper": mnist_mlp.PAPER, "quick": mnist_mlp.quick(mnist_mlp.SIGMOID_RECIPE, runs=2, epochs=6)},
    margin=mnist_mlp.SIGMOID.margin,
    margin_reason=mnist_mlp.SIGMOID.description.margin_reason,
)

EPOCHS = mnist_mlp.RELU.replace(
    name="mnist-epochs",
    title="MNIST, 784-800-800-10, ReLU: test error per epoch",
    paper="Figure 2, ReLU",
    methods=("bernoulli", "uniform", "gaussian", "bernoulli-matched", "bernoulli-matched:uniform"),
)

EPOCHS_SIGMOID = EPOCHS.replace(
    name="mnist-epochs-sigmoid",
    title="MNIST, 784-800-800-10, sigmoid: test error per epoch",
    paper="Figure 2, sigmoid",
    model=mnist_mlp.SIGMOID.model,
    **mnist_mlp.SIGMOID_RECIPE.settings(),
    sizes=mnist_mlp.SIGMOID.sizes,
    margin=mnist_mlp.SIGMOID.margin,
    margin_reason=mnist_mlp.SIGMOID.description.margin_reason,
)

COVARIANCE = mnist_mlp.RELU.replace(
    name="mnist-covariance",
    title="MNIST, 784-800-800-10, ReLU: covariance between units of a layer",
    paper="Figure 4",
    methods=("none", "bernoulli", "uniform", "gaussian", "bernoulli-matched", "bernoulli-matched:uniform"),
    sizes={
        "paper": dataclasses.replace(mnist_mlp.PAPER, runs=1),
        "quick": mnist_mlp.quick(mnist_mlp.RELU_RECIPE, runs=1),
    },
    measure=Covariance(layers=mnist_mlp.RELU_MODEL.hidden_layers),
)
