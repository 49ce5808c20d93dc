"""Checks of what the theory is given: one clear line for every mistake. Everything is computed in float64."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from ..laws import Law, check_law


def tensor(owner: str, name: str, value: Any, *, axes: int | None = None) -> Tensor:
    """The value as a float64 tensor; finite, and with that many axes if a number is given."""
    if isinstance(value, complex):
        raise TypeError(f"{owner}: expected {name} to be real, got {value!r}")
    try:
        # Python's numbers are float64; torch would take them for float32.
        result = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{owner}: expected {name} to be a tensor or numbers, got {type(value).__name__}") from None
    if result.is_complex():
        raise TypeError(f"{owner}: expected {name} to be real, got {result.dtype}")
    result = result.to(torch.float64)
    if axes is not None and result.dim() != axes:
        raise ValueError(f"{owner}: expected {name} to have {axes} axes, got shape {tuple(result.shape)}")
    if not torch.isfinite(result).all():
        raise ValueError(f"{owner}: expected {name} to be finite, got inf or nan; look at what produced it")
    return result


def variance(owner: str, name: str, value: Any) -> Tensor:
    """The value as a float64 tensor of variances."""
    result = tensor(owner, name, value)
    if (result < 0).any():
        raise ValueError(f"{owner}: expected {name} to be at least 0, got {result.min().item():.4g}")
    return result


def law(owner: str, value: Any) -> Law:
    """A law with a finite mean and a finite variance."""
    check_law(owner, value)
    if not (math.isfinite(value.mean) and math.isfinite(value.variance)):
        raise ValueError(f"{owner}: expected a law with finite moments, got {value!r}")
    result: Law = value
    return result


def number(owner: str, name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{owner}: expected {name} to be a finite number, got {value!r}")
    return float(value)


def is_forward_of(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Whether the module computes what this class does: neither its own class nor itself has another forward."""
    return type(module).forward is kind.forward and "forward" not in vars(module)
