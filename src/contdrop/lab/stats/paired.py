"""Paired comparison of two methods, and corrections for several comparisons."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...errors import UserError
from .intervals import bca_interval, t_interval
from .power import minimum_detectable
from .significance import (
    RESOLUTION,
    Array,
    finite,
    holm,
    merged,
    scaled_moments,
    signed_rank_test,
    student_quantile,
    t_test,
    tost,
)

# By run number, or in the order of the runs.
Results: TypeAlias = Mapping[int, float] | Sequence[float] | Sequence[tuple[int, float]] | Array

_TESTS = ("t_p", "t_p_two_sided", "wilcoxon_p", "wilcoxon_p_two_sided", "equivalence_p")
# With five, not even five wins out of five reach 5 % in a two-sided Wilcoxon test: 2 / 2^5 = 0.0625.
ENOUGH_RUNS = 6
_ROUNDING = 1e-12  # of the spread: the mean difference of equal means


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (with n - 1; NaN for one value) and number of values."""

    mean: float
    sd: float
    n: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A reference method against another one, over paired runs.

    Attributes:
        difference: Mean of reference - other. **Negative means that the reference is better**, unless ``better`` is
            "higher".
        sd: Standard deviation of the differences.
        interval: Of the difference, for this comparison alone: by the bootstrap, see ``bca_interval``; with fewer than
            ``ENOUGH_RUNS`` runs, which are too few to draw from, Student's, see ``t_interval``.
        simultaneous: Student's interval that holds for all comparisons of one family at once (Bonferroni), see
            ``adjusted``. If it excludes 0, Holm's p-value of the t-test is below 1 - confidence.
        two_way: Interval of the difference over runs and test examples, for this comparison alone: see
            ``two_way_interval``; None unless the caller has given what each example contributes.
        t_p: One-sided p-value of the paired t-test; the alternative is that the reference is better.
        wilcoxon_p: The same of Wilcoxon's signed-rank test.
        wilcoxon_method: "exact", or "approximate" of more than 500 runs.
        t_p_holm: Holm-adjusted over the comparisons of one family; alone, equal to ``t_p``. So with the others.
        effect: Paired d, difference / sd, with the sign of the difference; infinite if sd is 0.
        wins: Runs in which the reference is better.
        ties: Runs in which the two are equal.
        superiority: Share of the runs in which the reference is better; ties count half.
        minimum_detectable: The difference that this many runs with this sd find with power 80 %: two-sided, at 5 %
            divided by the number of comparisons of one family.
        margin: The smallest difference that matters, if the caller named one.
        equivalence_p: p-value of the equivalence test with that margin, see ``tost``; None without a margin.
        equivalence_p_holm: Holm-adjusted like the others.
        notes: Sentences on what limits this comparison.
        better: Which values are, "lower" or "higher".
    """

    reference: Summary
    other: Summary
    runs: int
    difference: float
    sd: float
    interval: tuple[float, float]
    simultaneous: tuple[float, float]
    confidence: float
    t_p: float
    t_p_two_sided: float
    wilcoxon_p: float
    wilcoxon_p_two_sided: float
    wilcoxon_method: str
    t_p_holm: float
    t_p_two_sided_holm: float
    wilcoxon_p_holm: float
    wilcoxon_p_two_sided_holm: float
    effect: float
    wins: int
    ties: int
    superiority: float
    minimum_detectable: float
    margin: float | None
    equivalence_p: float | None
    equivalence_p_holm: float | None
    notes: tuple[str, ...]
    two_way: tuple[float, float] | None = None
    better: str = "lower"

    @property
    def is_better(self) -> bool:
        """True if the reference's mean is the better one."""
        return self.difference > 0 if self.better == "higher" else self.difference < 0

    @property
    def losses(self) -> int:
        """Number of runs in which the reference is worse."""
        return self.runs - self.wins - self.ties


def summary(values: Sequence[float] | Array) -> Summary:
    """Compute mean and standard deviation of results.

    Examples:
        >>> summary([1.0, 2.0, 3.0])
        Summary(mean=2.0, sd=1.0, n=3)
    """
    array = finite("values", values)
    mean, sd, scale = scaled_moments(array)
    return Summary(mean * scale, sd * scale, len(array))


def compare_paired(
    reference: Results,
    other: Results,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    margin: float | None = None,
    names: tuple[str, str] = ("reference", "other"),
    better: str = "lower",
) -> Comparison:
    """Compare the values of two methods run by run.

    Examples:
        >>> result = compare_paired({0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.3, 1: 1.2, 2: 1.4})
        >>> round(result.difference, 9), result.wilcoxon_p
        (-0.3, 0.125)

    Args:
        reference: Errors of the reference by run number: a mapping or pairs (run, error); or in the order of the runs.
        other: Errors of the other method, for the same runs.
        confidence: Of the interval.
        seed: Of the bootstrap interval.
        margin: The smallest difference that matters; gives an equivalence test.
        names: What to call the two in messages.
        better: Which values are, "lower" or "higher".

    Raises:
        UserError: If runs are missing on one side, given twice or not finite.
    """
    first, second = _match_runs(reference, other, names)
    change = differences(first, second)
    judged = -change if better == "higher" else change  # negative where the reference is better
    spread, n = summary(change), len(change)
    student = t_interval(change, confidence=confidence)
    bootstrap = student if n < ENOUGH_RUNS else bca_interval(change, confidence=confidence, seed=seed)
    return Comparison(
        reference=summary(first),
        other=summary(second),
        runs=n,
        difference=0.0 if abs(spread.mean) < _ROUNDING * spread.sd else spread.mean,
        sd=spread.sd,
        interval=bootstrap,
        simultaneous=student,
        confidence=confidence,
        **_p_values(judged, None if margin is None else tost(change, margin)),
        effect=_effect(spread),
        wins=int(np.sum(judged < 0)),
        ties=int(np.sum(judged == 0)),
        superiority=float(np.mean(judged < 0) + np.mean(judged == 0) / 2),
        minimum_detectable=minimum_detectable(spread.sd, n),
        margin=margin,
        notes=_notes(change),
        better=better,
    )


def _p_values(judged: Array, equivalence_p: float | None) -> dict[str, Any]:
    """Return the fields of all tests; those of one comparison alone need no correction."""
    t, wilcoxon = t_test(judged), signed_rank_test(judged)
    found = (t.less, t.two_sided, wilcoxon.less, wilcoxon.two_sided, equivalence_p)
    adjusted = {f"{test}_holm": p for test, p in zip(_TESTS, found)}
    return dict(zip(_TESTS, found)) | adjusted | {"wilcoxon_method": wilcoxon.method}


def _effect(spread: Summary) -> float:
    if spread.sd:
        return spread.mean / spread.sd
    return math.copysign(math.inf, spread.mean) if spread.mean else 0.0


def adjusted(comparisons: Mapping[str, Comparison], family: int = 0) -> dict[str, Comparison]:
    """Adjust p-values (Holm), intervals and detectable differences for the number of comparisons.

    Args:
        comparisons: By whatever names them.
        family: How many were planned, if some of them are not there yet.
    """
    members = max(family, family_size(comparisons.values()))
    columns = [_holm_of(comparisons.values(), test, members) for test in _TESTS]
    return {
        method: dataclasses.replace(
            comparison,
            **{f"{test}_holm": p for test, p in zip(_TESTS, p_values)},
            **_for_family(comparison, members),
        )
        for (method, comparison), *p_values in zip(comparisons.items(), *columns)
    }


def _holm_of(comparisons: Iterable[Comparison], test: str, members: int) -> list[float | None]:
    """Return a test's p-values adjusted over the comparisons of two or more runs; None where there is no test."""
    raw = [(getattr(each, test), each.runs) for each in comparisons]
    corrected = holm([math.nan if p is None or runs == 1 else p for p, runs in raw], members)
    return [None if p is None else found for (p, _), found in zip(raw, corrected)]


def family_size(comparisons: Iterable[Comparison]) -> int:
    """Return the number of comparisons with at least two runs."""
    return sum(each.runs > 1 for each in comparisons)


def _for_family(comparison: Comparison, members: int) -> dict[str, Any]:
    """Return interval and detectable difference by Bonferroni: each misses with a part of the probability for any."""
    if math.isnan(comparison.minimum_detectable):  # one run, or a comparison without limits
        return {}
    n, sd, difference = comparison.runs, comparison.sd, comparison.difference
    miss = (1 - comparison.confidence) / members
    reach = student_quantile(1 - miss / 2, n - 1) * sd / math.sqrt(n)
    return {
        "simultaneous": (difference - reach, difference + reach),
        "minimum_detectable": minimum_detectable(sd, n, alpha=0.05 / members),
    }


def _notes(change: Array) -> tuple[str, ...]:
    n, zeros = len(change), int(np.sum(change == 0))
    notes = []
    if n == 1:
        notes.append("1 run has no spread: there is no t-test, no interval and no detectable difference.")
    elif n < ENOUGH_RUNS:
        notes.append(
            f"{n} runs are fewer than {ENOUGH_RUNS}: a p-value means little "
            f"(even {n} wins out of {n} give an exact two-sided Wilcoxon test only {2 / 2**n:.2g})."
        )
    if n > 1 and np.ptp(change) == 0:
        what = "The two are equal in every run" if zeros else "All differences are equal"
        notes.append(
            f"{what}: without spread, p-values of t-tests and the detectable difference are limits, not evidence."
        )
    elif zeros:
        notes.append(f"The two are equal in {zeros} of {n} runs, which Wilcoxon's test leaves out.")
    return tuple(notes)


def _match_runs(reference: Results, other: Results, names: tuple[str, str]) -> tuple[Array, Array]:
    """Return the values of both methods in the same order of runs; raise if they are not paired."""
    (ours, first), (theirs, second) = _by_run(names[0], reference), _by_run(names[1], other)
    if bool(ours) != bool(theirs):
        numbered, plain = names if ours else names[::-1]
        raise UserError(f"expected run numbers for both, got them for {numbered} only: give {plain}'s as well")
    for name, missing in ((names[1], set(ours) - set(theirs)), (names[0], set(theirs) - set(ours))):
        if missing:
            raise UserError(
                f"expected the same runs of {names[0]} and {names[1]}, but {name} lacks run{'s' * (len(missing) > 1)} "
                f"{_listed(missing)}: compare only runs that both have"
            )
    if len(first) != len(second):
        expected, got = f"as many runs of {names[0]} as of {names[1]}", f"{len(first)} and {len(second)}"
        raise UserError(f"expected {expected}, got {got}: compare paired runs only")
    return first, second


def _by_run(name: str, results: Results) -> tuple[list[int], Array]:
    """Return run numbers and values in their order; no numbers for results that have none."""
    pairs: Any = results.items() if isinstance(results, Mapping) else results
    is_numbered = len(pairs) and all(isinstance(item, tuple) and len(item) == 2 for item in pairs)
    if not is_numbered:
        return [], finite(name, pairs)
    runs = [run for run, _ in pairs]
    for run in runs:
        if not isinstance(run, (int, np.integer)):
            raise UserError(f"{name}: expected run numbers that are integers, got {run!r}")
    duplicates = [run for run, times in collections.Counter(runs).items() if times > 1]
    if duplicates:
        got = f"run {_listed(duplicates)} more than once"
        raise UserError(f"{name}: expected every run once, got {got}: keep one of each")
    values = finite(name, (value for _, value in pairs))
    return sorted(map(int, runs)), values[np.argsort(runs)]


def _listed(runs: Iterable[int]) -> str:
    ordered = sorted(runs)
    return ", ".join(map(str, ordered[:5])) + (", …" if len(ordered) > 5 else "")


def differences(reference: Array, other: Array) -> Array:
    """Return reference - other, with differences made equal that are equal but for rounding.

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
