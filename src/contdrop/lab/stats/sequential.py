"""Group-sequential paired comparison: a verdict after as few runs as the data need, within a planned maximum.

Methods are compared with a reference after listed numbers of paired runs, the *looks*. At a look a comparison has the
repeated confidence interval ``mean ± b s / sqrt(n)``, with s the standard deviation of the n differences. It is decided
when the interval excludes 0 ("negative" or "positive"), or when the equivalence interval lies within the margin
("equal"); otherwise it goes on to the next look, and after the last one it is "undecided".

The boundaries b spend the error as Lan and DeMets (Biometrika 70, 1983) do: after a fraction t of the maximum, the
error spent is ``alpha t^2`` or that of O'Brien and Fleming's type, ``2 - 2 Phi(z / sqrt(t))``. Those of a normal
statistic are converted to quantiles of Student's t with n - 1 degrees of freedom. That alone exceeds the level by 5 to
20 %, so the level that is spent is lowered by the factors of ``LEVELS``, which
``tools/sequential_boundaries.py levels`` simulates.

Several comparisons are corrected by Holm's method, separately for differences and for equalities: what has been decided
returns its share of the level to those that go on. The probability of any false difference is at most alpha, and that
of any false equality, for which one end of the interval is wrong, half of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special  # type: ignore[import-untyped]

from ...errors import mistake
from .significance import Array, finite, student_quantile

Indices: TypeAlias = npt.NDArray[np.int64]
Verdict: TypeAlias = Literal["negative", "positive", "equal", "undecided"]
Spending: TypeAlias = Literal["quadratic", "obrien-fleming"]

FEWEST = 6  # runs before the first look: with fewer, Student's t depends on the shape of the distribution
SKEWED = 1.0  # absolute skewness of the differences above which an early look decides nothing
_STEP = 0.4  # between the nodes of integrals over sums of differences, in units of a difference's standard deviation
_REACH = 1e-7  # of a boundary: where its search ends

# Factors of the level by spending, maximal number of runs and number of comparisons (the level is 0.05 / comparisons):
# with looks after every run from the sixth on, the simulated error of Student's t is then the nominal one.
COMPARISONS = (1, 2, 4, 8, 16, 32)
LEVELS: dict[str, dict[int, tuple[float, ...]]] = {
    "quadratic": {
        7: (0.970, 0.964, 0.957, 0.952, 0.940, 0.940),
        8: (0.940, 0.927, 0.922, 0.913, 0.913, 0.909),
        10: (0.902, 0.891, 0.883, 0.872, 0.866, 0.856),
        12: (0.884, 0.869, 0.857, 0.845, 0.841, 0.827),
        15: (0.881, 0.866, 0.851, 0.837, 0.832, 0.823),
        20: (0.890, 0.876, 0.863, 0.852, 0.835, 0.819),
        30: (0.904, 0.892, 0.879, 0.866, 0.850, 0.841),
        40: (0.917, 0.904, 0.889, 0.872, 0.856, 0.852),
        60: (0.933, 0.921, 0.911, 0.899, 0.880, 0.868),
        80: (0.943, 0.932, 0.925, 0.920, 0.914, 0.911),
        100: (0.951, 0.946, 0.937, 0.932, 0.932, 0.929),
        150: (0.970, 0.961, 0.953, 0.940, 0.935, 0.930),
        200: (0.972, 0.968, 0.965, 0.961, 0.951, 0.929),
    },
    "obrien-fleming": {
        7: (0.958, 0.939, 0.924, 0.912, 0.910, 0.906),
        8: (0.925, 0.904, 0.891, 0.884, 0.883, 0.883),
        10: (0.893, 0.880, 0.875, 0.875, 0.872, 0.865),
        12: (0.882, 0.872, 0.867, 0.864, 0.863, 0.863),
        15: (0.888, 0.882, 0.873, 0.868, 0.862, 0.854),
        20: (0.906, 0.902, 0.894, 0.892, 0.887, 0.886),
        30: (0.926, 0.921, 0.913, 0.907, 0.898, 0.884),
        40: (0.939, 0.933, 0.927, 0.917, 0.905, 0.898),
        60: (0.956, 0.948, 0.943, 0.936, 0.924, 0.918),
        80: (0.962, 0.956, 0.954, 0.954, 0.954, 0.945),
        100: (0.969, 0.966, 0.964, 0.961, 0.961, 0.961),
    },
}


@dataclass(frozen=True)
class Sequential:
    """Sequential plan: looks at which a comparison may be decided, up to a maximal number of runs.

    Examples:
        >>> plan = Sequential(max_runs=20)
        >>> plan.looks[:3], plan.looks[-1]
        ((6, 7, 8), 20)

    Args:
        max_runs: Number of runs after which every comparison ends.
        min_runs: Number of runs of the first look, at least 6.
        looks: Numbers of runs of all looks, the last one being ``max_runs``; by default all from ``min_runs`` on.
        spending: Share of the error that is spent after a fraction t of the runs: "quadratic" is t^2;
            "obrien-fleming" spends less early and more late.
    """

    max_runs: int = 60
    min_runs: int = FEWEST
    looks: tuple[int, ...] = ()
    spending: Spending = "quadratic"

    def __post_init__(self) -> None:
        for name in ("max_runs", "min_runs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < FEWEST:
                raise mistake(name, f"an integer of at least {FEWEST}", repr(value))
            object.__setattr__(self, name, int(value))
        if self.max_runs < self.min_runs:
            raise mistake("max_runs", f"at least min_runs, {self.min_runs}", self.max_runs)
        if self.spending not in LEVELS:
            raise mistake("spending", " or ".join(LEVELS), repr(self.spending))
        looks = tuple(map(int, self.looks)) or tuple(range(self.min_runs, self.max_runs + 1))
        if list(looks) != sorted(set(looks)) or looks[0] < FEWEST or looks[-1] != self.max_runs:
            raise mistake("looks", f"increasing numbers of runs from {FEWEST} to {self.max_runs}", looks)
        object.__setattr__(self, "looks", looks)

    def nominal_levels(self, comparisons: int = 1, alpha: float = 0.05) -> Array:
        """Return the two-sided p-value of a t-test that decides at each look, for a level of alpha / comparisons."""
        spent = calibration(self.spending, self.max_runs, 0.05 * comparisons / alpha) * alpha / comparisons
        return np.asarray(2 * special.ndtr(-np.array(normal_boundaries(spent, self.looks, self.spending))))


@dataclass(frozen=True)
class Decision:
    """Outcome of one sequential comparison.

    Attributes:
        verdict: "negative" or "positive" if the mean difference has that sign, "equal" if it lies within the margin,
            or "undecided".
        runs: Number of paired runs at the decision, or of all so far.
        estimate: Median-unbiased estimate of the mean difference, which allows for the early stop.
        interval: Repeated confidence interval: it holds whenever one stops.
        mean: Mean of the differences of these runs.
        max_runs: The planned maximum.
    """

    verdict: Verdict
    runs: int
    estimate: float
    interval: tuple[float, float]
    mean: float
    max_runs: int


def decide(
    differences: Sequence[float] | Array,
    *,
    margin: float | None,
    max_runs: int,
    min_runs: int = FEWEST,
    alpha: float = 0.05,
    comparisons: int = 1,
    spending: Spending = "quadratic",
) -> Decision:
    """Decide a paired comparison after as few runs as its differences allow.

    Runs after the decision are ignored, so calling this after each new run or once at the end gives the same decision.

    Examples:
        >>> decision = decide([-0.5, -0.7, -0.4, -0.6, -0.5, -0.8, -0.6, -0.5], margin=0.1, max_runs=20)
        >>> decision.verdict, decision.runs
        ('negative', 6)

    Args:
        differences: One per paired run, in the order of the runs.
        margin: The largest difference that counts as equal; None decides differences only.
        max_runs: The planned number of runs at which the comparison ends.
        min_runs: Number of runs of the first look.
        alpha: Probability of a false difference; that of a false equality is half of it.
        comparisons: How many comparisons share alpha (Bonferroni); :func:`decide_all` corrects by Holm's method.
        spending: See :class:`Sequential`.
    """
    plan = Sequential(max_runs, min_runs, spending=spending)
    values = finite("differences", differences)
    return decide_all({"": values}, plan, margins={"": margin}, alpha=alpha / comparisons)[""]


def decide_all(
    differences: Mapping[str, Sequence[float] | Array],
    plan: Sequential,
    *,
    margins: Mapping[str, float | None],
    alpha: float = 0.05,
) -> dict[str, Decision]:
    """Decide a family of comparisons, corrected by Holm's method.

    Args:
        differences: For each comparison one value per run in the order of the runs; NaN for a run that failed.
        plan: The looks.
        margins: The largest difference of each comparison that counts as equal; None for none.
        alpha: Probability of any false difference; that of any false equality is half of it.

    Examples:
        >>> more = [0.31, 0.28, 0.35, 0.30, 0.27, 0.33, 0.32, 0.29]
        >>> same = [0.01, -0.02, 0.00, 0.02, -0.01, 0.01, -0.01, 0.00]
        >>> found = decide_all({"a": more, "b": same}, Sequential(20), margins={"a": 0.1, "b": 0.1})
        >>> [(name, each.verdict, each.runs) for name, each in found.items()]
        [('a', 'positive', 6), ('b', 'equal', 6)]
    """
    runs = min(max(map(len, differences.values())), plan.max_runs)
    table = np.full((1, len(differences), runs), np.nan)
    for row, values in zip(table[0], differences.values()):
        part = np.asarray(values, dtype=np.float64)[:runs]
        row[: len(part)] = part
    limits = np.array([-math.inf if margins[name] is None else margins[name] for name in differences], dtype=np.float64)
    verdicts, ends = settle(table, limits, plan, alpha=alpha)
    return {
        name: _decision(VERDICTS[int(verdict)], row[: int(end)], margins[name], plan, alpha)
        for name, verdict, end, row in zip(differences, verdicts[0], ends[0], table[0])
    }


VERDICTS: tuple[Verdict, ...] = ("undecided", "positive", "equal", "negative")
_OPEN, _POSITIVE, _EQUAL, _NEGATIVE = range(4)


def settle(table: Array, margins: Array, plan: Sequential, *, alpha: float = 0.05) -> tuple[Indices, Indices]:
    """Decide many families at once.

    Args:
        table: Differences of shape [families, comparisons, runs]; NaN for runs that failed or are not there yet.
        margins: One per comparison; -inf for none.
        plan: The looks.
        alpha: Probability of any false difference in a family.

    Returns:
        Indices into ``VERDICTS`` and numbers of runs at the decision (or of all), both [families, comparisons].
    """
    families, comparisons, runs = table.shape
    verdicts = np.zeros((families, comparisons), dtype=np.int64)
    ends = np.full((families, comparisons), runs)
    levels = _family_levels(plan, comparisons, alpha)
    for index, look in enumerate(each for each in plan.looks if each <= runs):
        mean, error, count = _moments(table[:, :, :look])
        usable = (count >= FEWEST) & (error > 0)
        if look < plan.max_runs:
            usable &= np.abs(_skewness(table[:, :, :look])) <= SKEWED
        while True:
            going = usable & (verdicts == _OPEN)
            undistinguished = np.sum((verdicts == _OPEN) | (verdicts == _EQUAL), axis=1)
            unequal = np.sum(verdicts != _EQUAL, axis=1)
            reach = [
                special.stdtrit(count - 1, 1 - levels[np.maximum(left, 1) - 1, index][:, None] / 2) * error
                for left in (undistinguished, unequal)
            ]
            differs = going & (np.abs(mean) > reach[0])
            equal = going & ~differs & (np.abs(mean) + reach[1] < margins)
            if not (differs | equal).any():
                break
            verdicts[differs] = np.where(mean[differs] > 0, _POSITIVE, _NEGATIVE)
            verdicts[equal] = _EQUAL
            ends[differs | equal] = look
    return verdicts, ends


def _family_levels(plan: Sequential, comparisons: int, alpha: float) -> Array:
    return np.stack([plan.nominal_levels(left, alpha) for left in range(1, comparisons + 1)])


def _moments(values: Array) -> tuple[Array, Array, Array]:
    """Return mean, standard error and number of the finite values along the last axis."""
    count = np.sum(np.isfinite(values), axis=-1)
    safe = np.maximum(count, 1)
    mean = np.nansum(values, axis=-1) / safe
    spread = np.nansum((values - mean[..., None]) ** 2, axis=-1) / np.maximum(count - 1, 1)
    return mean, np.sqrt(spread / safe), count


def _skewness(values: Array) -> Array:
    """Return the third central moment over the second to the power 3/2, along the last axis."""
    centered = values - np.nanmean(values, axis=-1, keepdims=True)
    second = np.nanmean(centered**2, axis=-1)
    return np.asarray(np.nanmean(centered**3, axis=-1) / np.where(second > 0, second, 1.0) ** 1.5)


def _decision(verdict: Verdict, values: Array, margin: float | None, plan: Sequential, alpha: float) -> Decision:
    values = values[np.isfinite(values)]
    mean, error, count = (float(each) for each in _moments(values))
    passed = [look for look in plan.looks if look <= count]
    if not passed or not error > 0:
        interval = (mean, mean) if passed else (-math.inf, math.inf)
        return Decision(verdict, int(count), mean, interval, mean, plan.max_runs)
    levels = plan.nominal_levels(1, alpha)[: len(passed)]
    reach = student_quantile(1 - levels[-1] / 2, count - 1) * error
    estimate = mean if verdict == "undecided" else _median_unbiased(values, margin, passed, levels)
    return Decision(verdict, int(count), estimate, (mean - reach, mean + reach), mean, plan.max_runs)


def _median_unbiased(values: Array, margin: float | None, looks: Sequence[int], levels: Array) -> float:
    """Return the mean at which a final mean of at most the observed one has probability one half.

    Outcomes are ordered by the mean at the stop (Emerson and Fleming, Biometrika 77, 1990), for a normal distribution
    with the standard deviation of the values.
    """
    from scipy import optimize  # takes longer to import than all else here

    sd, observed, count = float(np.std(values, ddof=1)), float(np.mean(values)), len(values)
    bounds = [student_quantile(1 - level / 2, look - 1) for look, level in zip(looks, levels)]
    zone = math.inf if margin is None else margin / sd
    start, width = observed / sd, 4 / math.sqrt(count)

    def excess(drift: float) -> float:
        return _mean_at_most(start, drift, looks, bounds, zone) - 0.5

    return sd * float(optimize.brentq(excess, start - width, start + width, xtol=1e-3 / math.sqrt(count)))


def _mean_at_most(limit: float, drift: float, looks: Sequence[int], bounds: Sequence[float], margin: float) -> float:
    """Return the probability that the mean at the stop is at most ``limit``; the last look ends in any case.

    Each look stops where the mean leaves ``± bound / sqrt(n)``, or lies within ``± (margin - bound / sqrt(n))``.
    """
    nodes, mass, before, found = np.zeros(1), np.ones(1), 0, 0.0
    for number, (look, bound) in enumerate(zip(looks, bounds)):
        step, edge = math.sqrt(look - before), bound * math.sqrt(look)
        centers = nodes + drift * (look - before)
        inner = max(0.0, look * margin - edge) if math.isfinite(margin) else 0.0
        stops = (
            [(-math.inf, math.inf)]
            if number == len(looks) - 1
            else [(-math.inf, -edge), (-inner, inner), (edge, math.inf)]
        )
        for low, high in stops:
            top = min(high, limit * look)
            if top > low:
                found += float(mass @ (special.ndtr((top - centers) / step) - special.ndtr((low - centers) / step)))
        pieces = [(-edge, -inner), (inner, edge)] if inner < edge else []
        if not pieces:
            return found
        grids = [_simpson(low, high) for low, high in pieces]
        nodes, weights = (np.concatenate(each) for each in zip(*grids))
        mass = (_density(nodes, centers, step) @ mass) * weights
        before = look
    return found


def _simpson(low: float, high: float) -> tuple[Array, Array]:
    """Return the nodes and weights of Simpson's rule on an interval."""
    half = max(math.ceil((high - low) / _STEP / 2), 8)
    weights = np.full(2 * half + 1, 2.0)
    weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
    return np.linspace(low, high, 2 * half + 1), weights * (high - low) / (6 * half)


def _density(at: Array, centers: Array, step: float) -> Array:
    """Return the density of a normal step from each center to each node, [nodes, centers]."""
    return np.exp(-0.5 * ((at[:, None] - centers[None, :]) / step) ** 2) / (step * math.sqrt(2 * math.pi))


def spent(level: float, fraction: float, spending: Spending) -> float:
    """Return the two-sided error that may be spent after a fraction of the runs."""
    if spending == "quadratic":
        return level * fraction**2
    return float(2 * special.ndtr(special.ndtri(level / 2) / math.sqrt(fraction)))


@functools.lru_cache(maxsize=4096)
def normal_boundaries(level: float, looks: tuple[int, ...], spending: Spending) -> tuple[float, ...]:
    """Return the boundaries of a standard normal statistic at each look, by recursive integration.

    The density of the sum of n differences that have crossed no boundary is carried from look to look (Armitage,
    McPherson and Rowe 1969); at each the boundary is found that spends the error of that look. Error: below 1e-4.
    """
    found: list[float] = []
    nodes, mass, before, done = np.zeros(1), np.ones(1), 0, 0.0
    for look in looks:
        step, root = math.sqrt(look - before), math.sqrt(look)
        budget = spent(level, look / looks[-1], spending) - done
        bound = found[-1] if found else -float(special.ndtri(budget / 2))
        for _ in range(50):  # Newton's method for the logarithm of the error
            up, down = (bound * root - nodes) / step, (-bound * root - nodes) / step
            error = float(mass @ (special.ndtr(-up) + special.ndtr(down)))
            slope = (
                -float(mass @ (np.exp(-0.5 * up**2) + np.exp(-0.5 * down**2))) * root / (step * math.sqrt(2 * math.pi))
            )
            change = math.log(error / budget) * error / slope
            bound -= change
            if abs(change) < _REACH:
                break
        found.append(bound)
        new, weights = _simpson(-bound * root, bound * root)
        mass = (_density(new, nodes, step) @ mass) * weights
        nodes, before, done = new, look, done + budget
    return tuple(found)


def calibration(spending: Spending, max_runs: int, comparisons: float) -> float:
    """Return the factor of the level from ``LEVELS``, interpolated in the logarithms; at the ends the nearest one."""
    table = LEVELS[spending]
    columns = [np.interp(math.log(max_runs), np.log(list(table)), column) for column in zip(*table.values())]
    return float(np.interp(math.log(max(comparisons, 1.0)), np.log(COMPARISONS), columns))
