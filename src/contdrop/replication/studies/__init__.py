"""The studies by name: the paper's tables and figures, the replication, and the demonstration."""

from __future__ import annotations

from ...errors import UserError, suggest
from ...lab.study.study import Study
from . import cifar_studies, dose, evidence, ilsvrc_vgg, mnist_studies, svhn_norb
from .mnist_studies import DIGITS, FASHION_CNN_GAUSSIAN, FASHION_CNN_UNIFORM, FASHION_MLP_RELU, FASHION_MLP_SIGMOID

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        DIGITS,
        mnist_studies.CERTIFICATE,
        mnist_studies.SIGMOID,
        mnist_studies.RELU,
        mnist_studies.SIGMOID_AUTHORS,
        mnist_studies.RELU_AUTHORS,
        mnist_studies.CNN_GAUSSIAN,
        mnist_studies.CNN_UNIFORM,
        mnist_studies.SIGMA,
        mnist_studies.SIGMA_SIGMOID,
        mnist_studies.EPOCHS,
        mnist_studies.EPOCHS_SIGMOID,
        mnist_studies.COVARIANCE,
        cifar_studies.NIN,
        svhn_norb.SVHN,
        svhn_norb.NORB,
        ilsvrc_vgg.VGG16,
        FASHION_MLP_SIGMOID,
        FASHION_MLP_RELU,
        FASHION_CNN_GAUSSIAN,
        FASHION_CNN_UNIFORM,
        *dose.STUDIES,
        *evidence.STUDIES,
    )
}

# One name for several.
GROUPS: dict[str, tuple[str, ...]] = {
    "mnist-mlp": (mnist_studies.SIGMOID.name, mnist_studies.RELU.name),
    "mnist-mlp-authors": (mnist_studies.SIGMOID_AUTHORS.name, mnist_studies.RELU_AUTHORS.name),
    "fashion-mlp": (FASHION_MLP_SIGMOID.name, FASHION_MLP_RELU.name),
    "replication": tuple(study.name for study in dose.STUDIES),
    "evidence": tuple(study.name for study in evidence.STUDIES),
}


def find(name: str) -> list[Study]:
    """Return the studies of a name, or of a group."""
    names = GROUPS.get(name, (name,))
    if names == (name,) and name not in STUDIES:
        hint = suggest(name, [*STUDIES, *GROUPS])
        raise UserError(f"unknown experiment {name!r}; {hint} (contdrop list shows all)")
    return [STUDIES[name] for name in names]
