"""The distribution functions that the tests need, with types."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]

from ...errors import UserError

Array = npt.NDArray[np.float64]
RESOLUTION = 1e-9


class PValues(NamedTuple):
    """Of the alternative "the reference is less", and of the two-sided one."""

    less: float
    two_sided: float


def normal_cdf(z: float) -> float:
    return float(scipy.special.ndtr(z))


def normal_cdfs(z: Array) -> Array:
    return np.asarray(scipy.special.ndtr(z), dtype=np.float64)


def normal_quantile(probability: float) -> float:
    return float(scipy.special.ndtri(probability))


def student_cdf(t: float, freedom: int) -> float:
    return float(scipy.special.stdtr(freedom, t))


def student_quantile(probability: float, freedom: float) -> float:
    return float(scipy.special.stdtrit(freedom, probability))


def binomial_cdf(successes: int, trials: int) -> float:
    """Of a fair coin."""
    return float(scipy.special.bdtr(successes, trials, 0.5))


def chi_square_quantiles(probabilities: tuple[float, ...], freedom: int) -> list[float]:
    return [float(scipy.special.chdtri(freedom, 1 - each)) for each in probabilities]


@functools.cache
def studentised_range_quantile(probability: float, groups: int) -> float:
    """With infinitely many degrees of freedom."""
    # Half a second to import, and only this one needs it.
    from scipy.stats import studentized_range  # type: ignore[import-untyped]

    return float(studentized_range.ppf(probability, groups, np.inf))


def finite(name: str, values: Iterable[float]) -> Array:
    """One-dimensional, not empty, numbers only."""
    try:
        array = np.array(list(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected one number per run, got something else: check the values") from None
    if array.ndim != 1:
        raise UserError(f"{name}: expected one number per run, got values of shape {array.shape[1:]}")
    if not array.size:
        raise UserError(f"{name}: expected at least one run, got none: finish a run first")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise UserError(
            f"{name}: expected finite values, got {array[bad[0]]} at position {bad[0]}: leave diverged runs out"
        )
    return array


def merged(values: Array, tolerance: Array) -> Array:
    """Values, each neighbour in size that lies within the tolerance of one below it set to that one."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    near = np.diff(ordered) <= np.maximum(tolerance[order][1:], tolerance[order][:-1])
    starts = np.concatenate([[True], ~near])[: len(ordered)]
    result = np.empty_like(values)
    result[order] = ordered[np.flatnonzero(starts)][np.cumsum(starts) - 1] if len(ordered) else ordered
    return result


def unit_scale(values: Array) -> tuple[Array, float]:
    """Values divided by the largest size, and that size: squares then neither overflow nor vanish."""
    scale = float(np.max(np.abs(values)))
    return (values / scale, scale) if scale else (values, 1.0)


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence: expected a number between 0 and 1, such as 0.95, got {confidence}")
