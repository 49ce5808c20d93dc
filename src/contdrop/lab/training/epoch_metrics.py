"""Mean loss and metric of an epoch under dropout, at little cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import examples_of, size_of
from .metrics import BUILT_IN, Metric, plain_classes

# Batches are counted together: a dozen small operations per step would cost small networks a fifth of their speed.
_MOST_BATCHES = 256
_MOST_NUMBERS = 2**18


class EpochMetrics:
    """Mean loss, summed in float64 in the order of the batches, and the metric of an epoch's examples.

    Wrong answers of plain classifiers are summed on the device of the model, so that nothing waits for it.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._loss, self._examples = 0.0, 0
        self._losses: list[tuple[Tensor, int]] = []
        self._wrong, self._classified = torch.zeros((), dtype=torch.int64), 0
        self._answers: list[tuple[Tensor, Tensor]] = []
        self._contributions: list[np.ndarray] = []

    def add(self, loss: Tensor, output: Any, batch: Any) -> None:
        """Add the mean loss and the output of a batch."""
        self._losses.append((loss.detach(), size_of(batch)))
        if len(self._losses) >= _MOST_BATCHES:
            self._settle_losses()
        if self._metric is BUILT_IN["error"] and (pair := plain_classes(output, batch)) is not None:
            self._add_answers(*pair)
        elif self._metric.of is not None:
            with torch.no_grad():
                self._contributions.append(self._metric.contributions(output, batch, examples_of(batch)))

    def _add_answers(self, logits: Tensor, classes: Tensor) -> None:
        if self._answers and self._answers[0][0].shape[1] != logits.shape[1]:
            self._settle_answers()
        self._answers.append((logits.detach(), classes))
        if len(self._answers) * logits.numel() >= _MOST_NUMBERS or len(self._answers) >= _MOST_BATCHES:
            self._settle_answers()

    def _settle_losses(self) -> None:
        means = torch.stack([mean for mean, _ in self._losses])
        if means.dtype in (torch.float16, torch.bfloat16):  # whose sums overflow or are rounded
            means = means.float()
        counts = torch.tensor([count for _, count in self._losses], dtype=means.dtype, device=means.device)
        for each in (means * counts).tolist():
            self._loss += each
        self._examples += sum(count for _, count in self._losses)
        self._losses = []

    def _settle_answers(self) -> None:
        logits, classes = (torch.cat(each) for each in zip(*self._answers))
        self._wrong = self._wrong.to(logits.device) + (logits.argmax(1) != classes).sum()
        self._classified += len(classes)
        self._answers = []

    def values(self, gather: Callable[[Any], list[Any]]) -> tuple[float, float]:
        """Return the mean loss and the metric over the examples of all processes; ``gather`` collects their parts."""
        if self._losses:
            self._settle_losses()
        if self._answers:
            self._settle_answers()
        mine = (self._loss, self._examples, float(self._wrong), self._classified, self._contributions)
        losses, examples, wrong, classified, contributions = zip(*gather(mine))
        loss = float(sum(losses) / sum(examples))
        if sum(classified):
            return loss, float(100 * sum(wrong) / sum(classified))
        everything = [each for one in contributions for each in one]
        return loss, self._metric.value(np.concatenate(everything)) if everything else float("nan")
