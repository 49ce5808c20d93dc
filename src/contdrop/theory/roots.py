"""Roots that can be differentiated where a variance is zero."""

from __future__ import annotations

import torch
from torch import Tensor

# Below it, squares and reciprocals of a deviation leave the range of float64. A variable whose deviation is below 1e-75
# is taken as certain.
NO_VARIANCE = 1e-150


def is_random(variance: Tensor) -> Tensor:
    """Where a variance is large enough to divide by its root."""
    return variance > NO_VARIANCE


def deviation(variance: Tensor) -> Tensor:
    """The root of a variance, and zero with slope zero where there is no variance.

    The slope of the root is infinite at zero, and infinity times the zero slope of a function that does not use the
    result, or of the variance itself at its minimum, is NaN. ``torch.where`` behind the root would not help: its slope
    of zero meets the root's infinite one. So the root is taken of 1 there.
    """
    random = is_random(variance)
    return torch.where(random, torch.where(random, variance, 1).sqrt(), 0)
