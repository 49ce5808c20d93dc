"""McNemar's test: two models on the same test examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from .distributions import binomial_cdf


@dataclasses.dataclass(frozen=True)
class McNemar:
    """Test examples that one of two models got right; ``p`` is exact and two-sided."""

    only_a_right: int
    only_b_right: int
    p: float


def mcnemar(
    predictions_a: Sequence[int] | npt.NDArray[np.integer],
    predictions_b: Sequence[int] | npt.NDArray[np.integer],
    labels: Sequence[int] | npt.NDArray[np.integer],
) -> McNemar:
    """Exact test of "both models have the same error" on one set of examples.

    Only examples that one model gets right and the other wrong count. If the models are equally good, a fair coin
    decides which of them is right there, so p = min(1, 2 P(B <= min(a, b))), B ~ Binomial(a + b, 1/2). It concerns
    these two trained models and says nothing about other runs of their methods.
    """
    a, b, truth = (np.asarray(values) for values in (predictions_a, predictions_b, labels))
    if not (a.ndim == 1 and a.shape == b.shape == truth.shape and a.size):
        raise UserError(
            f"mcnemar: expected two predictions and a label per example, got shapes {a.shape}, {b.shape} and "
            f"{truth.shape}: use predictions for one test set"
        )
    a_right, b_right = a == truth, b == truth
    only_a, only_b = int(np.sum(a_right & ~b_right)), int(np.sum(b_right & ~a_right))
    return McNemar(only_a, only_b, min(1.0, 2 * binomial_cdf(min(only_a, only_b), only_a + only_b)))
