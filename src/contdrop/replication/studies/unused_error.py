"""A second, larger test set: the training images that a run did not use."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from ...lab.data.data import Part, Parts
from ...lab.study.study import Configuration

UNUSED = "unused error"


@dataclasses.dataclass(frozen=True)
class UnusedError(Configuration):
    """Measures the error, in per cent, on training images that were neither trained nor validated on.

    All methods of a run leave the same images out, so they are compared on the same ones.
    """

    kind: ClassVar[str] = "unused-error"

    most: int = 40_000  # images, the first ones in the order of the data set
    batch_size: int = 1000

    def __call__(self, model: nn.Module, parts: Parts, seed: int) -> dict[str, np.ndarray]:
        part = unused(parts, self.most)
        device = next(model.parameters()).device
        wrong = 0
        model.eval()
        with torch.inference_mode():
            for images, labels in part.batches(part.order(None, self.batch_size)):
                wrong += int((model(images.to(device)).argmax(1).cpu() != labels).sum())
        return {UNUSED: np.asarray(100 * wrong / len(part))}


def unused(parts: Parts, most: int) -> Part:
    """Training images, the first ``most``, that a run neither trains nor validates on."""
    free = torch.ones(len(parts.train.source), dtype=torch.bool)
    free[parts.train.positions] = False
    free[parts.validation.positions] = False
    return dataclasses.replace(parts.train, name="unused", positions=free.nonzero()[:most, 0])
