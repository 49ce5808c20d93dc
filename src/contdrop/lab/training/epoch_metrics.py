"""Loss and metric of an epoch under dropout, at little cost, and predicted classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import examples_of, prediction_of, target_of
from .metrics import BUILT_IN, Metric

Gather = Callable[[Any], list[Any]]  # from the object of one process to those of all

# Batches are counted together: a dozen small operations per step would cost small networks a fifth of their speed.
_MOST_BATCHES = 256
_MOST_NUMBERS = 2**18


class EpochLoss:
    """Mean loss of an epoch's examples, summed in float64 in the order of the batches."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._waiting: list[Tensor] = []
        self._counts: list[int] = []
        self.examples = 0

    def add(self, mean: Tensor, count: int) -> None:
        """Add the mean loss of ``count`` examples."""
        self._waiting.append(mean.detach())
        self._counts.append(count)
        self.examples += count
        if len(self._waiting) >= _MOST_BATCHES:
            self._settle()

    def _settle(self) -> None:
        means = torch.stack(self._waiting)
        if means.dtype in (torch.float16, torch.bfloat16):  # whose sums overflow or are rounded
            means = means.float()
        for each in (means * torch.tensor(self._counts, dtype=means.dtype, device=means.device)).tolist():
            self._sum += each
        self._waiting, self._counts = [], []

    def mean(self, gather: Gather) -> float:
        """Return the mean over the examples of all processes."""
        if self._waiting:
            self._settle()
        sums, examples = zip(*gather((self._sum, self.examples)))
        return float(sum(sums) / sum(examples))


class EpochMetric:
    """Metric over the batches of an epoch, summed on the device of the model, so that nothing waits for it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._wrong: Tensor | None = None  # of plain classifiers
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._numbers = 0
        self._all: list[np.ndarray] = []
        self._examples = 0

    def add(self, output: Any, batch: Any) -> None:
        """Add the output of a batch."""
        if self._metric is BUILT_IN["error"] and (pair := plain_classes(output, batch)) is not None:
            self._add_classes(*pair)
        elif self._metric.of is not None:
            with torch.no_grad():
                self._all.append(self._metric.contributions(output, batch, examples_of(batch)))

    def _add_classes(self, logits: Tensor, classes: Tensor) -> None:
        if self._waiting and self._waiting[0][0].shape[1] != logits.shape[1]:
            self._settle()
        self._waiting.append((logits.detach(), classes))
        self._examples += len(classes)
        self._numbers += logits.numel()
        if self._numbers >= _MOST_NUMBERS or len(self._waiting) >= _MOST_BATCHES:
            self._settle()

    def _settle(self) -> None:
        logits, classes = (torch.cat(each) for each in zip(*self._waiting))
        wrong = (logits.argmax(1) != classes).sum()
        self._wrong = wrong if self._wrong is None else self._wrong + wrong
        self._waiting, self._numbers = [], 0

    def value(self, gather: Gather) -> float:
        """Return the metric over the examples of all processes."""
        if self._waiting:
            self._settle()
        wrong, examples, contributions = zip(*gather((float(self._wrong or 0), self._examples, self._all)))
        if sum(examples):
            return float(100 * sum(wrong) / sum(examples))
        everything = [each for one in contributions for each in one]
        return self._metric.value(np.concatenate(everything)) if everything else float("nan")


def plain_classes(output: Any, batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return logits [N, C] and classes [N]; None for outputs and targets of other forms."""
    if not isinstance(output, Tensor):
        try:
            output = prediction_of(output)
        except Exception:  # no logits, and so no classes
            return None
    target = target_of(batch)
    if output.dim() != 2 or target.dim() != 1 or output.shape[1] < 2 or target.is_floating_point():
        return None
    return output, target


def predicted_classes(output: Any, batch: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return predicted and true classes of a batch; None where there is not one class per example."""
    pair = plain_classes(output, batch)
    return None if pair is None else (pair[0].argmax(1).cpu().numpy(), pair[1].cpu().numpy())
