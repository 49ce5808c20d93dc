"""Ranks of methods over data sets, the Friedman test and post-hoc tests (Demšar 2006)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import scipy.special  # type: ignore[import-untyped]

from ...errors import UserError
from .significance import RESOLUTION, Array, finite, holm, merged

TIES = ("average", "competition")
ENOUGH_DATASETS = 3
PERMUTATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Rank of every method on every data set, 1 the lowest error, and the averages over data sets."""

    by_dataset: Mapping[str, Mapping[str, float]]
    average: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class RankComparison:
    """Tests of the differences in rank between methods over data sets.

    Attributes:
        ranks: With average ranks for ties, which the tests need.
        chi_square: Friedman's statistic, corrected for ties.
        permutation_p: Its p-value by permutation. The chi-square and F distributions, which are for many data sets, are
            not used: with 5 methods on 3 data sets, tests by them at 5 % reject without a difference in 1.7 and 6.4 %.
        alpha: Level of the critical difference.
        critical_difference: Nemenyi's: methods whose average ranks differ by at least this much differ.
        groups: Maximal sets of two or more methods that Nemenyi's test does not tell apart, best first: the bars of a
            critical-difference diagram.
        against_reference: Two-sided Holm-adjusted p-value of every other method against the reference.
    """

    ranks: Ranks
    reference: str
    chi_square: float
    permutation_p: float
    alpha: float
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]
    against_reference: Mapping[str, float]


def ranks(errors: Mapping[str, Mapping[str, float]], *, ties: str = "average") -> Ranks:
    """Rank the methods on each data set by their mean error.

    Args:
        errors: Mean error by data set and method.
        ties: "average": equal methods share the mean of their ranks. "competition": they share the best of these ranks
            and the others stay free (1, 2, 2, 4), as in the paper.
    """
    if ties not in TIES:
        raise ValueError(f"ranks: expected ties to be one of {', '.join(TIES)}, got {ties!r}")
    methods, table = _table(errors)
    return _named(errors, methods, _rank(table, ties))


def compare_ranks(
    errors: Mapping[str, Mapping[str, float]], reference: str, *, alpha: float = 0.05, seed: int = 0
) -> RankComparison:
    """Run the Friedman test over data sets, with Nemenyi's critical difference and Holm's test against the reference.

    For n data sets, k methods and average ranks R_j::

        chi^2 = 12 n / (k (k + 1)) sum_j (R_j - (k + 1) / 2)^2 / (1 - sum over ties of (t^3 - t) / (n k (k^2 - 1)))
        CD    = q_alpha(k) / sqrt(2) sqrt(k (k + 1) / (6 n))   q: studentised range with infinitely many
        z_j   = (R_j - R_reference) / sqrt(k (k + 1) / (6 n))

    Args:
        errors: Mean error by data set and method; at least three of each.
        reference: The method that the others are compared with.
        alpha: Level of the critical difference.
        seed: Of the permutations.
    """
    methods, table = _table(errors)
    n, k = table.shape
    if n < ENOUGH_DATASETS:
        raise UserError(
            f"expected at least {ENOUGH_DATASETS} data sets to compare ranks over, got {n}: run more experiments"
        )
    if k < 3:
        raise UserError(f"expected at least 3 methods to compare ranks of, got {k}: compare two by their paired runs")
    if reference not in methods:
        raise UserError(f"expected results of the reference {reference!r}, got those of {', '.join(methods)}")
    if not 0 < alpha < 1:
        raise UserError(f"alpha: expected a level between 0 and 1, such as 0.05, got {alpha}")
    from scipy.stats import friedmanchisquare  # type: ignore[import-untyped]  # takes half a second to import

    ranked = _rank(table, "average")
    average = dict(zip(methods, ranked.mean(axis=0).tolist()))
    error = math.sqrt(k * (k + 1) / (6 * n))
    critical = _studentized_range_quantile(1 - alpha, k) / math.sqrt(2) * error
    others = [method for method in methods if method != reference]
    p_values = [2 * float(scipy.special.ndtr(-abs(average[each] - average[reference]) / error)) for each in others]
    return RankComparison(
        ranks=_named(errors, methods, ranked),
        reference=reference,
        chi_square=float(friedmanchisquare(*table.T).statistic) if np.ptp(table, axis=1).any() else 0.0,
        permutation_p=_permutation_p(ranked, seed),
        alpha=alpha,
        critical_difference=critical,
        groups=_groups(average, critical),
        against_reference=dict(zip(others, holm(p_values))),
    )


@functools.cache
def _studentized_range_quantile(probability: float, groups: int) -> float:
    """Return the quantile for infinitely many degrees of freedom."""
    from scipy.stats import studentized_range  # takes half a second to import

    return float(studentized_range.ppf(probability, groups, np.inf))


def _table(errors: Mapping[str, Mapping[str, float]]) -> tuple[list[str], Array]:
    if not errors:
        raise UserError("expected the errors of at least one data set, got none")
    methods = list(next(iter(errors.values())))
    for dataset, by_method in errors.items():
        odd = sorted(set(methods) ^ set(by_method))
        if odd:
            raise UserError(
                f"expected every method on every data set, but {dataset} and {next(iter(errors))} differ in "
                f"{', '.join(odd)}: rank only methods that all data sets have"
            )
    rows = [finite(dataset, (by_method[method] for method in methods)) for dataset, by_method in errors.items()]
    # Equal but for rounding is equal: means are sums of counts in some order.
    return methods, np.array([merged(row, RESOLUTION * np.abs(row)) for row in rows])


def _rank(table: Array, ties: str) -> Array:
    better = np.sum(table[:, None, :] < table[:, :, None], axis=2)
    equal = np.sum(table[:, None, :] == table[:, :, None], axis=2)
    return np.asarray(1.0 + better + ((equal - 1) / 2 if ties == "average" else 0.0))


def _named(datasets: Iterable[str], methods: Sequence[str], ranked: Array) -> Ranks:
    by_dataset = {dataset: dict(zip(methods, row)) for dataset, row in zip(datasets, ranked.tolist())}
    return Ranks(by_dataset, dict(zip(methods, ranked.mean(axis=0).tolist())))


def _permutation_p(ranked: Array, seed: int) -> float:
    """Return the share of random reorderings within data sets, the given one included, that agree at least as much."""
    shuffled = np.random.default_rng(seed).permuted(np.broadcast_to(ranked, (PERMUTATIONS, *ranked.shape)), axis=2)
    # Chi-square grows with this, and ranks are whole or half numbers: no rounding.
    agreement = np.sum(np.sum(shuffled, axis=1) ** 2, axis=1)
    return float(1 + np.sum(agreement >= np.sum(np.sum(ranked, axis=0) ** 2))) / (1 + PERMUTATIONS)


def _groups(average: Mapping[str, float], critical: float) -> tuple[tuple[str, ...], ...]:
    ordered = sorted(average, key=average.__getitem__)
    groups: list[tuple[str, ...]] = []
    reached = 0
    for start, first in enumerate(ordered):
        stop = start + sum(average[method] - average[first] < critical for method in ordered[start:])
        if stop - start > 1 and stop > reached:
            groups.append(tuple(ordered[start:stop]))
        reached = max(reached, stop)
    return tuple(groups)
