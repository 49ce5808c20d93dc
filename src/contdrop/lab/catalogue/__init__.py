"""The experiments by name: the paper's tables and figures, and the demonstration."""

from __future__ import annotations

from ...errors import UserError, suggest
from ..experiment import Experiment
from . import digits, mnist_cnn, mnist_figures, mnist_mlp

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        digits.DIGITS,
        mnist_mlp.SIGMOID,
        mnist_mlp.RELU,
        mnist_mlp.SIGMOID_AUTHORS,
        mnist_mlp.RELU_AUTHORS,
        mnist_cnn.GAUSSIAN,
        mnist_cnn.UNIFORM,
        mnist_figures.SIGMA,
        mnist_figures.SIGMA_SIGMOID,
        mnist_figures.EPOCHS,
        mnist_figures.EPOCHS_SIGMOID,
        mnist_figures.COVARIANCE,
    )
}

# One name for several.
GROUPS: dict[str, tuple[str, ...]] = {
    "mnist-mlp": (mnist_mlp.SIGMOID.name, mnist_mlp.RELU.name),
    "mnist-mlp-authors": (mnist_mlp.SIGMOID_AUTHORS.name, mnist_mlp.RELU_AUTHORS.name),
}


def find(name: str) -> list[Experiment]:
    """The experiment, or the experiments, of that name."""
    names = GROUPS.get(name, (name,))
    if names == (name,) and name not in EXPERIMENTS:
        hint = suggest(name, [*EXPERIMENTS, *GROUPS])
        raise UserError(f"unknown experiment {name!r}; {hint} (contdrop list shows all)")
    return [EXPERIMENTS[name] for name in names]
