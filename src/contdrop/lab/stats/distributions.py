"""The distribution functions that the tests need, with types."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]


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
