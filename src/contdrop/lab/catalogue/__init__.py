"""The studies by name: the paper's tables and figures, the replication, and the demonstration."""

from __future__ import annotations

from ...errors import UserError, suggest
from ..study import Study
from . import (
    certificate,
    cifar,
    conv_local,
    digits,
    evidence,
    fashion,
    ilsvrc,
    mnist_cnn,
    mnist_figures,
    mnist_mlp,
    replication,
)

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        digits.DIGITS,
        certificate.MNIST,
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
        cifar.NIN,
        conv_local.SVHN,
        conv_local.NORB,
        ilsvrc.VGG16,
        fashion.MLP_SIGMOID,
        fashion.MLP_RELU,
        fashion.CNN_GAUSSIAN,
        fashion.CNN_UNIFORM,
        *replication.STUDIES,
        *evidence.STUDIES,
    )
}

# One name for several.
GROUPS: dict[str, tuple[str, ...]] = {
    "mnist-mlp": (mnist_mlp.SIGMOID.name, mnist_mlp.RELU.name),
    "mnist-mlp-authors": (mnist_mlp.SIGMOID_AUTHORS.name, mnist_mlp.RELU_AUTHORS.name),
    "fashion-mlp": (fashion.MLP_SIGMOID.name, fashion.MLP_RELU.name),
    "replication": tuple(study.name for study in replication.STUDIES),
    "evidence": tuple(study.name for study in evidence.STUDIES),
}


def find(name: str) -> list[Study]:
    """The study, or the studies, of that name."""
    names = GROUPS.get(name, (name,))
    if names == (name,) and name not in STUDIES:
        hint = suggest(name, [*STUDIES, *GROUPS])
        raise UserError(f"unknown experiment {name!r}; {hint} (contdrop list shows all)")
    return [STUDIES[name] for name in names]
