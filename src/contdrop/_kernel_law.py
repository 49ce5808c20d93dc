"""Encoding of the built-in laws for the kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

KINDS = ("bernoulli", "uniform", "gaussian")  # in the order of the numbers in ``kernels/native/api.h``


def check_kind(kind: str) -> None:
    """Raise an error if the kernels do not draw such laws."""
    if kind not in KINDS:
        raise ValueError(
            f"kernels: expected a law of {', '.join(KINDS)}, got {kind!r}; pass custom laws to contdrop.functional or "
            "to a layer, which draw them by their quantile"
        )


class KernelLaw(NamedTuple):
    """The encoding of a scaled built-in law that the kernels and the fast path take.

    A mask value is ``factor`` times a value drawn from the law ``kind`` with ``params``. The operators take the same
    numbers as a float64 tensor: ``[number of the kind, factor, mean, variance, *params]``, with the moments of the
    scaled law. So a schedule changes an input of a compiled graph, not the graph.
    """

    kind: str
    params: tuple[float, ...]
    factor: float
    mean: float = math.nan
    variance: float = math.nan

    def tensor(self) -> Tensor:
        """Return the tensor form."""
        check_kind(self.kind)
        numbers = [float(KINDS.index(self.kind)), self.factor, self.mean, self.variance, *self.params]
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    @classmethod
    def of_tensor(cls, law: Tensor) -> KernelLaw:
        """Read the tensor form."""
        kind, factor, mean, variance, *params = law.tolist()
        return cls(KINDS[int(kind)], tuple(params), factor, mean, variance)
