"""Division of examples into training, validation and test parts by a seed.

Positions ascend within each part; they do not determine the order of training.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import mistake
from ..training import random_streams

Positions = npt.NDArray[np.int64]


def is_amount(value: Any) -> bool:
    """Return True for a number of examples or a fraction, rather than data."""
    return isinstance(value, numbers.Real)


def count(amount: Any, available: int, name: str) -> int:
    """Return the number of examples that an integer means, or a fraction, rounded (halves up) and at least 1.

    >>> count(0.25, 10, "test"), count(3, 10, "test")
    (3, 3)
    """
    is_bool = isinstance(amount, (bool, np.bool_))
    if isinstance(amount, numbers.Integral) and not is_bool:
        if not 1 <= int(amount) < available:
            raise mistake(f"data: {name}", f"at least 1 and fewer than the {available} examples of train", amount)
        return int(amount)
    if is_bool or not is_amount(amount) or not 0 < amount < 1:
        expected = "a fraction above 0 and below 1, or a whole number of examples"
        raise mistake(f"data: {name}", expected, repr(amount))
    return min(max(1, int(amount * available + 0.5)), available - 1)


def codes(values: Any, available: int, name: str) -> Positions:
    """Return numbers from 0 for arbitrary ids, one per example of train."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) != available:
        expected = f"one value for each of the {available} examples of train"
        raise mistake(f"data: {name}", expected, f"shape {array.shape}")
    if array.dtype == object:
        array = np.array([str(value) for value in array])
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def divide(
    available: int,
    train: int | None,
    held_out: int,
    seed: int,
    *,
    strata: Positions | None = None,
    groups: Positions | None = None,
    leave: int = 1,
) -> tuple[Positions, Positions]:
    """Draw two disjoint sets of positions by ``seed``: those to train on (all others if None) and those held out.

    With strata, each part holds every stratum in proportion, to within one example, and at least one example of each is
    trained on if possible. With groups, whole groups are drawn, so sizes are approximate; at least ``leave`` groups are
    not held out, one for each part that is still to be drawn.
    """
    if groups is not None:
        return _grouped(groups, train, held_out, seed, leave)
    train = available - held_out if train is None else train
    order = random_streams.permutation(available, seed)
    if strata is None:
        return np.sort(order[:train]), np.sort(order[train : train + held_out])
    return _stratified(order, strata[order], train, held_out)


def _stratified(order: Positions, strata: Positions, train: int, held_out: int) -> tuple[Positions, Positions]:
    """Take the first examples of each stratum, in the drawn order, to train on, and the next to hold out."""
    _, first, codes, sizes = np.unique(strata, return_index=True, return_inverse=True, return_counts=True)
    spare = sizes - 1 if held_out <= (sizes - 1).sum() else sizes
    out = _apportion(held_out, sizes, spare, first)
    kept = _apportion(train, sizes - out, sizes - out, first)
    by_stratum = np.argsort(codes, kind="stable")
    rank = np.empty(len(order), np.int64)  # of each example among those of its stratum
    rank[by_stratum] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_train = rank < kept[codes]
    is_out = ~is_train & (rank < (kept + out)[codes])
    return np.sort(order[is_train]), np.sort(order[is_out])


def _apportion(total: int, sizes: Positions, most: Positions, tie: Positions) -> Positions:
    """Divide ``total`` in proportion to ``sizes`` by largest remainders, at most ``most`` each; ``tie`` is random."""
    quota = total * sizes / max(sizes.sum(), 1)
    given: Positions = np.minimum(np.floor(quota).astype(np.int64), most)
    while (missing := total - given.sum()) > 0:
        room = np.flatnonzero(given < most)
        chosen = room[np.lexsort((tie[room], (given - quota)[room]))][:missing]
        given[chosen] += 1
    return given


def _grouped(groups: Positions, train: int | None, held_out: int, seed: int, leave: int) -> tuple[Positions, Positions]:
    """Hold out groups, in a drawn order, that bring the part nearer to its size, and train on the others."""
    sizes = np.bincount(groups)
    order = random_streams.permutation(len(sizes), seed)
    out = _nearest(order, sizes, held_out, leave)
    rest = order[~np.isin(order, out)]
    kept = rest if train is None else _nearest(rest, sizes, train, 0)
    return np.flatnonzero(np.isin(groups, kept)), np.flatnonzero(np.isin(groups, out))


def _nearest(order: Positions, sizes: Positions, wanted: int, leave: int) -> Positions:
    chosen: list[int] = []
    total = 0
    # The last group is never tried, not the last few: earlier splits that left enough groups come out again.
    for group in order[: len(order) - min(leave, 1)] if wanted else order[:0]:
        if len(chosen) < len(order) - leave and abs(total + sizes[group] - wanted) <= abs(total - wanted):
            chosen.append(group)
            total += sizes[group]
    if wanted and not chosen:  # all groups are far too large
        chosen = [min(order, key=lambda group: sizes[group])]
    return np.array(chosen, np.int64)
