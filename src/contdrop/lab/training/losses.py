"""Losses that a study minimizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UserError
from ..data.batch import (
    binary,
    examples_of,
    logits_and_classes,
    loss_of,
    per_example,
    prediction_and_target,
    target_of,
    whole_numbers,
)


@dataclass(frozen=True)
class Loss:
    """Loss of a batch, as functions (output, batch) -> scalar.

    Attributes:
        mean: Over the examples of a batch, for training.
        whole: Sum over the examples; the mean times their number if None, or if the model returns its own loss.
    """

    mean: Callable[[Any, Any], Tensor]
    whole: Callable[[Any, Any], Tensor] | None = None

    def total(self, output: Any, batch: Any) -> Tensor:
        """Return the sum over the examples of a batch, for evaluation."""
        if self.whole is None or loss_of(output) is not None:
            return self.mean(output, batch) * examples_of(batch)
        return self.whole(output, batch)


def default_loss(task: str | None) -> Loss:
    """Return cross-entropy or squared error, or for a model that returns a loss, that loss."""
    return _LOSSES[task]


def _cross_entropy(output: Any, batch: Any) -> Tensor:
    if (own := loss_of(output)) is not None:
        return own
    if (plain := _plain(output, batch)) is not None:
        return functional.cross_entropy(*plain)
    if (two := binary(output, batch)) is not None:
        return functional.binary_cross_entropy_with_logits(two[0], two[1].to(two[0].dtype))
    return functional.cross_entropy(*logits_and_classes(output, batch))


def _cross_entropy_total(output: Any, batch: Any) -> Tensor:
    if (plain := _plain(output, batch)) is not None:
        return functional.cross_entropy(*plain, reduction="sum")
    logits, target = logits_and_classes(output, batch)
    return per_example(functional.cross_entropy(logits, target, reduction="none"), target).sum()


def _plain(output: Any, batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return logits [N, C] and classes [N], the usual case; None for other forms."""
    target = target_of(batch)
    if not isinstance(output, Tensor) or output.dim() != 2 or target.dim() != 1 or output.shape[1] == 1:
        return None
    return output, target if target.dtype == torch.int64 else whole_numbers(target)


def _squares(output: Any, batch: Any) -> Tensor:
    if (own := loss_of(output)) is not None:
        return own
    prediction, target = prediction_and_target(output, batch)
    return functional.mse_loss(prediction, target.to(prediction.dtype))


def _own(output: Any, batch: Any) -> Tensor:
    if (own := loss_of(output)) is not None:
        return own
    raise UserError(f"task=None: expected loss=, or a model that returns a loss; got {type(output).__name__}")


_LOSSES = {
    "classification": Loss(_cross_entropy, _cross_entropy_total),
    "regression": Loss(_squares),
    None: Loss(_own),
}
