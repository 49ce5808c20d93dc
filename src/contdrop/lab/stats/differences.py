"""From the results of two methods to paired differences: what is refused, and which differences count as equal."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ...errors import UserError
from .distributions import RESOLUTION, Array, finite, merged

# By run number, or in the order of the runs.
Results: TypeAlias = Mapping[int, float] | Sequence[float] | Sequence[tuple[int, float]] | Array

def paired(reference: Results, other: Results, names: tuple[str, str]) -> tuple[Array, Array]:
    """The values of both in the same order of runs; refuses what is not paired."""
    first, second = _by_run(names[0], reference), _by_run(names[1], other)
    if (first.runs is None) != (second.runs is None):
        with_runs, without = names if second.runs is None else names[::-1]
        raise UserError(f"expected run numbers for both, got them for {with_runs} only: give {without}'s as well")
    if first.runs is None or second.runs is None:
        if len(first.values) != len(second.values):
            raise UserError(
                f"expected as many runs of {names[0]} as of {names[1]}, got {len(first.values)} and "
                f"{len(second.values)}: compare paired runs only"
            )
        return first.values, second.values
    for one, another, name in ((first.runs, second.runs, names[1]), (second.runs, first.runs, names[0])):
        missing = sorted(set(one) - set(another))
        if missing:
            raise UserError(
                f"expected the same runs of {names[0]} and {names[1]}, but {name} lacks run{'s' * (len(missing) > 1)} "
                f"{_listed(missing)}: compare only runs that both have"
            )
    return first.values, second.values


class _Results(NamedTuple):
    runs: list[int] | None
    values: Array


def _by_run(name: str, results: Results) -> _Results:
    if isinstance(results, Mapping):
        pairs = list(results.items())
    elif len(results) and all(isinstance(item, tuple) and len(item) == 2 for item in results):
        pairs = list(results)  # type: ignore[arg-type]
    else:
        return _Results(None, finite(name, results))  # type: ignore[arg-type]
    runs = [_run_number(name, run) for run, _ in pairs]
    duplicates = sorted(run for run, times in collections.Counter(runs).items() if times > 1)
    if duplicates:
        raise UserError(
            f"{name}: expected every run once, got run {_listed(duplicates)} more than once: keep one of each"
        )
    values = finite(name, (value for _, value in pairs))
    order = sorted(range(len(runs)), key=runs.__getitem__)
    return _Results([runs[index] for index in order], values[order])


def _run_number(name: str, run: Hashable) -> int:
    if isinstance(run, (int, np.integer)):
        return int(run)
    raise UserError(f"{name}: expected run numbers that are integers, got {run!r}")


def _listed(runs: list[int]) -> str:
    return ", ".join(map(str, runs[:5])) + (", …" if len(runs) > 5 else "")


def differences(reference: Array, other: Array) -> Array:
    """reference - other, where differences that are equal but for rounding are made equal.

    Errors are counts over the number of test examples, so 1.15 - 1.13 and 1.07 - 1.05 are the same difference, though
    not the same float. Differences whose sizes lie within ``RESOLUTION`` times the larger value of their runs are
    given one size, and those that small themselves are 0.
    """
    with np.errstate(over="ignore"):
        raw = reference - other
    if not np.all(np.isfinite(raw)):
        raise UserError("expected differences that a float can hold, got an overflow: give the values in other units")
    tolerance = RESOLUTION * np.maximum(np.abs(reference), np.abs(other))
    sizes = np.abs(raw)
    moved = sizes > tolerance
    sizes[~moved] = 0.0
    sizes[moved] = merged(sizes[moved], tolerance[moved])
    return np.where(sizes == 0.0, 0.0, np.copysign(sizes, raw))


