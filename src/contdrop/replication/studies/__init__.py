"""The studies by name: the paper's tables and figures, the replication, and the demonstration."""

from __future__ import annotations

from ...errors import UserError, suggest
from ...lab.study.study import Study
from . import cifar_studies, dose, evidence, image_studies, mnist_studies

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *mnist_studies.STUDIES,
        *(cifar_studies.NIN, image_studies.SVHN, image_studies.NORB, image_studies.VGG16),
        *mnist_studies.FASHION,
        *dose.STUDIES,
        *evidence.STUDIES,
    )
}

# One name for several.
GROUPS: dict[str, tuple[str, ...]] = {
    "mnist-mlp": ("mnist-mlp-sigmoid", "mnist-mlp-relu"),
    "mnist-mlp-authors": ("mnist-mlp-sigmoid-authors", "mnist-mlp-relu-authors"),
    "fashion-mlp": ("fashion-mlp-sigmoid", "fashion-mlp-relu"),
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
