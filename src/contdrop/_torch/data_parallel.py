"""Masks of a batch that is divided among processes, each of which draws the rows of its examples.

All processes draw the same seeds, so together they do what one process does with the complete batch. torch's own
dropout is drawn for the complete batch, because torch cannot start in the middle, and the rows are taken from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .private import DispatchMode


@dataclass(frozen=True)
class Rows:
    """Range of examples ``first`` to ``first + count - 1`` of ``total``."""

    first: int
    count: int
    total: int

    def window(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the complete tensor and the offset of the part, as a window of a mask."""
        if not shape:
            return []
        each = self._each(shape)
        return [each * self.total, *shape[1:], each * self.first, *[0] * (len(shape) - 1)]

    def _each(self, shape: Sequence[int]) -> int:
        """Return the rows per example: several if positions or heads were folded into the first axis."""
        each, rest = divmod(shape[0], self.count)
        if rest:
            raise ValueError(
                f"dropout: in a batch that is divided among processes, expected the {self.count} examples of this one "
                f"along the first axis, got shape {tuple(shape)}"
            )
        return each


_current: Rows | None = None


def window(shape: Sequence[int]) -> list[int]:
    """Return the window of a tensor with the examples along its first axis; empty unless the batch is divided."""
    return [] if _current is None else _current.window(shape)


@contextlib.contextmanager
def of_batch(first: int, count: int, total: int) -> Iterator[None]:
    """Draw masks, in forward and backward passes, for the examples from ``first`` on of a larger batch."""
    global _current
    before, _current = _current, Rows(first, count, total)
    try:
        with _OfTorch(_current):
            yield
    finally:
        _current = before


class _OfTorch(DispatchMode):  # type: ignore[no-untyped-call]
    """Mode that divides the draws of torch's own dropout and refuses other random operators."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **kwargs)
        if function is torch.ops.aten.bernoulli_.float:
            return self._divided(*args, **kwargs)
        before = torch.get_rng_state()
        result = function(*args, **kwargs)
        is_seed = isinstance(result, Tensor) and result.dim() == 0
        if not is_seed and not torch.equal(before, torch.get_rng_state()):
            raise ValueError(f"{function} draws random numbers that cannot be divided among processes; use one")
        return result

    def _divided(self, noise: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        window = self._rows.window(noise.shape)
        axes = noise.dim()
        if not axes:
            return noise.bernoulli_(*args, **kwargs)
        first, whole = window[axes], noise.new_empty(window[:axes])
        if axes == 4 and not noise.is_contiguous() and noise.is_contiguous(memory_format=torch.channels_last):
            whole = whole.to(memory_format=torch.channels_last)  # in whose order torch draws
        return noise.copy_(whole.bernoulli_(*args, **kwargs)[first : first + len(noise)])
