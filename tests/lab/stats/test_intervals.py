"""The interval over runs and test examples: against a second computation, and by simulation for its coverage."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from contdrop.lab import stats
from contdrop.lab.store.results import by_group

# Standard deviations of the effects of runs, of examples and of the rest, times what makes the three parts of the
# variance of the mean equal.
WORLDS = {"all": (1, 1, 1), "runs": (5, 0.1, 1), "examples": (0.1, 5, 1), "neither": (0, 0, 1)}


def normal_worlds(kind, runs, examples, number, rng):
    by_run, by_example, rest = WORLDS[kind]
    return (
        by_run * rng.normal(size=(number, runs, 1)) / math.sqrt(examples)
        + by_example * rng.normal(size=(number, 1, examples)) / math.sqrt(runs)
        + rest * rng.normal(size=(number, runs, examples))
    )


CUT, LEAD, BY_RUN, BY_EXAMPLE, REST = 2.1, 0.1, 0.05, 0.5, 0.5


def wrong_answers(runs, examples, rng):
    """Of two methods about as good as on MNIST: what is hard for one is hard for the other, but not equally."""
    difficulty = rng.normal(size=examples)

    def errors(lead):
        own = BY_EXAMPLE * rng.normal(size=examples)
        noise = BY_RUN * rng.normal(size=(runs, 1)) + REST * rng.normal(size=(runs, examples))
        return 100.0 * (difficulty + own + noise > CUT + lead)

    return errors(LEAD) - errors(0.0)


def true_difference():
    spread = math.sqrt(1 + BY_RUN**2 + BY_EXAMPLE**2 + REST**2)
    return 100 * float(scipy.stats.norm.sf((CUT + LEAD) / spread) - scipy.stats.norm.sf(CUT / spread))


def pigeonhole(values, rng, resamples=300):
    """The two-way bootstrap: runs and examples drawn anew, independently."""
    runs, examples = values.shape
    rows = rng.multinomial(runs, [1 / runs] * runs, resamples)
    columns = rng.multinomial(examples, [1 / examples] * examples, resamples)
    return np.quantile(((rows @ values) * columns).sum(axis=1) / values.size, [0.025, 0.975])


def coverage(worlds, interval, truth=0.0):
    hits = [low <= truth <= high for low, high in map(interval, worlds)]
    return float(np.mean(hits)), math.sqrt(0.05 * 0.95 / len(hits))


def by_hand(values, confidence):
    runs, examples = len(values), len(values[0])
    mean = math.fsum(itertools.chain(*values)) / (runs * examples)
    rows = [math.fsum(row) / examples for row in values]
    columns = [math.fsum(row[i] for row in values) / runs for i in range(examples)]
    a = math.fsum((row - mean) ** 2 for row in rows) / (runs - 1) / runs
    b = math.fsum((column - mean) ** 2 for column in columns) / (examples - 1) / examples
    left = [values[r][i] - rows[r] - columns[i] + mean for r in range(runs) for i in range(examples)]
    e = math.fsum(x * x for x in left) / ((runs - 1) * (examples - 1)) / (runs * examples)
    v = max(a, b, a + b - e)
    nu = v * v / (a * a / (runs - 1) + b * b / (examples - 1) + e * e / ((runs - 1) * (examples - 1)))
    nu = max(nu, min(runs, examples) - 1)
    t = scipy.stats.t
    reach = max(t.ppf((1 + confidence) / 2, nu) * v**0.5, t.ppf((1 + confidence) / 2, runs - 1) * a**0.5)
    return mean - reach, mean + reach


@pytest.mark.parametrize("kind", WORLDS)
def test_interval_equals_a_second_computation(kind):
    rng = np.random.default_rng(0)
    for runs, examples in ((2, 2), (3, 50), (12, 7), (6, 40)):
        for values in normal_worlds(kind, runs, examples, 20, rng):
            for confidence in (0.5, 0.95):
                ours = stats.two_way_interval(1e6 * values, confidence=confidence)
                assert ours == pytest.approx(by_hand((1e6 * values).tolist(), confidence), rel=1e-9)


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("runs", [3, 6, 10])
def test_coverage_is_nominal_whatever_makes_the_difference(kind, runs):
    worlds = normal_worlds(kind, runs, 100, 800, np.random.default_rng([runs, len(kind)]))
    found, error = coverage(worlds, stats.two_way_interval)
    assert 0.95 - 4 * error < found < 0.98 + 4 * error


def test_an_interval_over_runs_does_not_cover_other_examples():
    worlds = normal_worlds("examples", 10, 100, 200, np.random.default_rng(5))
    assert coverage(worlds, lambda values: stats.t_interval(values.mean(axis=1)))[0] < 0.8
    assert coverage(worlds, stats.two_way_interval)[0] > 0.9


def test_the_two_way_bootstrap_is_too_short_for_few_runs_and_too_long_for_the_rest():
    """Why it is not used."""
    rng = np.random.default_rng(6)
    few, _ = coverage(normal_worlds("runs", 3, 100, 300, rng), lambda values: pigeonhole(values, rng))
    rest, _ = coverage(normal_worlds("neither", 10, 100, 300, rng), lambda values: pigeonhole(values, rng))
    assert few < 0.9
    assert rest > 0.98


def test_coverage_of_wrong_answers():
    rng = np.random.default_rng(7)
    worlds = [wrong_answers(6, 1000, rng) for _ in range(300)]
    found, error = coverage(worlds, stats.two_way_interval, true_difference())
    assert 0.95 - 4 * error < found < 0.98 + 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("runs", [3, 6, 10, 30])
def test_coverage_at_full_size(kind, runs):
    rng = np.random.default_rng([8, runs, len(kind)])
    worlds = (world for _ in range(40) for world in normal_worlds(kind, runs, 300, 50, rng))
    found, error = coverage(worlds, stats.two_way_interval)
    assert 0.95 - 3 * error < found < 0.975 + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "examples"), [(3, 10_000), (10, 10_000), (30, 10_000), (10, 360)])
def test_coverage_of_wrong_answers_at_full_size(runs, examples):
    rng = np.random.default_rng([9, runs, examples])
    worlds = (wrong_answers(runs, examples, rng) for _ in range(1000))
    found, error = coverage(worlds, stats.two_way_interval, true_difference())
    assert 0.95 - 3 * error < found < 0.975 + 3 * error


def test_never_shorter_than_students_over_runs():
    rng = np.random.default_rng(10)
    for kind in WORLDS:
        for values in normal_worlds(kind, 3, 20, 100, rng):
            inner, outer = stats.t_interval(values.mean(axis=1)), stats.two_way_interval(values)
            assert outer[0] <= inner[0] + 1e-12
            assert inner[1] - 1e-12 <= outer[1]


def test_more_examples_leave_the_runs_and_more_runs_leave_the_examples():
    rng = np.random.default_rng(11)
    runs = rng.normal(size=(8, 1)) + 0.01 * rng.normal(size=(8, 20_000))
    assert stats.two_way_interval(runs) == pytest.approx(stats.t_interval(runs.mean(axis=1)), rel=1e-3)
    examples = rng.normal(size=(1, 400)) + 0.01 * rng.normal(size=(3000, 400))
    assert stats.two_way_interval(examples) == pytest.approx(stats.t_interval(examples.mean(axis=0)), rel=1e-2)


def test_edges():
    nothing = (math.nan, math.nan)
    for values in ([[1.0, 2.0]], [[1.0], [2.0]], [[3.0, 3.0], [3.0, 3.0]], np.zeros((4, 9))):
        assert stats.two_way_interval(values) == pytest.approx(nothing, nan_ok=True)
    low, high = stats.two_way_interval([[1.0, -1.0, 0.0], [1.0, -1.0, 0.0]])  # equal runs, but examples differ
    assert low < 0 < high
    tiny = stats.two_way_interval(1e-300 * np.array([[1.0, 2.0], [4.0, 3.0]]))
    assert tiny[0] < 2.5e-300 < tiny[1]


REFUSED = [
    lambda: stats.two_way_interval([1.0, 2.0]),
    lambda: stats.two_way_interval([]),
    lambda: stats.two_way_interval([[1.0, 2.0], [1.0]]),
    lambda: stats.two_way_interval([[1.0, math.nan], [1.0, 2.0]]),
    lambda: stats.two_way_interval([[1.0, 2.0], [4.0, 3.0]], confidence=95),
]


def test_what_is_refused(refusals):
    refusals("refusals_of_intervals", REFUSED)


def test_examples_of_a_group_count_as_one():
    """Ten copies of each example say no more than one does; and of groups of different sizes the mean stays."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 12))
    copies, groups = np.repeat(values, 10, axis=1), np.repeat(np.arange(12), 10)
    grouped = [by_group(row, groups) for row in copies]
    assert stats.two_way_interval(grouped) == pytest.approx(stats.two_way_interval(values))
    shuffled, odd = rng.permutation(120), np.minimum(groups, 3)
    assert by_group(copies[0][shuffled], groups[shuffled]) == pytest.approx(grouped[0])
    assert by_group(copies[0], odd).mean() == pytest.approx(copies[0].mean())
    assert by_group(np.ones(120), odd) == pytest.approx(np.ones(4))
