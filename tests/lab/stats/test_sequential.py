"""Sequential comparisons: boundaries against the multivariate normal distribution, error rates by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from contdrop.errors import UserError
from contdrop.lab.stats import sequential
from contdrop.lab.stats.sequential import VERDICTS, Sequential, decide, decide_all, normal_boundaries, settle

NEGATIVE, POSITIVE, EQUAL = (VERDICTS.index(name) for name in ("negative", "positive", "equal"))
STUDIES = 4000


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def at_most(share, limit, count):
    """Return True if a share of ``count`` is at most a limit, allowing for three standard errors."""
    return share <= limit + 3 * math.sqrt(limit * (1 - limit) / count)


@pytest.mark.parametrize("spending", sequential.LEVELS)
@pytest.mark.parametrize("looks", [(10, 20), (10, 15, 40)])
def test_normal_boundaries_agree_with_the_multivariate_normal_distribution(spending, looks):
    level, bounds = 0.05, normal_boundaries(0.05, looks, spending)
    correlations = np.sqrt(np.minimum.outer(looks, looks) / np.maximum.outer(looks, looks))
    for count in range(2, len(looks) + 1):
        part = np.array(bounds[:count])
        inside = stats.multivariate_normal(cov=correlations[:count, :count]).cdf(part, lower_limit=-part)
        assert 1 - inside == pytest.approx(sequential.spent(level, looks[count - 1] / looks[-1], spending), rel=1e-3)


def test_one_look_is_the_fixed_test():
    assert normal_boundaries(0.05, (30,), "quadratic") == pytest.approx([stats.norm.isf(0.025)], abs=1e-6)
    assert Sequential(20, 20).nominal_levels().shape == (1,)


@pytest.mark.parametrize("spending", sequential.LEVELS)
@pytest.mark.parametrize("looks", [(6, 7, 8, 9, 10, 11, 12), (10, 20, 50)])
def test_normal_boundaries_spend_what_was_planned(spending, looks):
    level, count = 0.2, 200_000
    sums = np.cumsum(normal(count, looks[-1]), 1)[:, np.array(looks) - 1]
    crossed = np.abs(sums) > np.array(normal_boundaries(level, looks, spending)) * np.sqrt(looks)
    for index, look in enumerate(looks):
        planned = sequential.spent(level, look / looks[-1], spending)
        share = crossed[:, : index + 1].any(1).mean()
        assert share == pytest.approx(planned, abs=4 * math.sqrt(planned / count) + 1e-4)


@pytest.mark.parametrize("spending", sequential.LEVELS)
@pytest.mark.parametrize(("most", "comparisons"), [(10, 1), (10, 4), (30, 4), (60, 2)])
def test_studies_without_a_difference_keep_the_level(spending, most, comparisons):
    plan = Sequential(most, spending=spending)
    verdicts, _ = settle(normal(STUDIES, comparisons, most), np.full(comparisons, -math.inf), plan)
    assert at_most(np.mean((verdicts > 0).any(1)), 0.05, STUDIES)
    assert not (verdicts == EQUAL).any()


@pytest.mark.parametrize("margin", [0.7, 1.0])
def test_studies_at_the_margin_keep_the_level(margin):
    plan, signs = Sequential(30), np.array([1, -1, 1, -1.0])
    verdicts, _ = settle(normal(STUDIES, 4, 30) + margin * signs[:, None], np.full(4, margin), plan)
    wrong = (verdicts == EQUAL) | (verdicts == np.where(signs > 0, NEGATIVE, POSITIVE))
    assert at_most(np.mean(wrong.any(1)), 0.05, STUDIES)


def test_a_decision_is_not_changed_by_later_runs():
    values = normal(200, 3, 40) + np.array([0.8, 0.0, -0.4])[:, None]
    plan, margins = Sequential(40), np.full(3, 0.6)
    final, ends = settle(values, margins, plan)
    for runs in (6, 10, 25):
        early, stopped = settle(values[:, :, :runs], margins, plan)
        known = ends <= runs
        # At the last look of the shorter table nothing differs, since looks depend on the number of runs only.
        assert np.array_equal(early[known], final[known])
        assert np.array_equal(stopped[known], ends[known])
        assert not early[~known].any()


def test_families_are_decided_as_one_by_one_with_holms_correction():
    values = normal(60, 3, 20, seed=3) + np.array([1.0, 0.5, 0.0])[:, None]
    plan, margins = Sequential(20), np.array([0.9, 0.9, 0.9])
    found, ends = settle(values, margins, plan)
    for family in range(len(values)):
        verdicts, stops = [0, 0, 0], [20, 20, 20]
        for look in plan.looks:
            while True:
                differing = sum(each in (0, EQUAL) for each in verdicts)
                unequal = sum(each != EQUAL for each in verdicts)
                news = {}
                for i in (each for each in range(3) if not verdicts[each]):
                    part = values[family, i, :look]
                    if look < 20 and abs(stats.skew(part)) > sequential.SKEWED:
                        continue
                    p = stats.ttest_1samp(part, 0).pvalue
                    if p < plan.nominal_levels(differing)[plan.looks.index(look)]:
                        news[i] = POSITIVE if part.mean() > 0 else NEGATIVE
                        continue
                    level = plan.nominal_levels(unequal)[plan.looks.index(look)]
                    reach = stats.t.isf(level / 2, look - 1) * stats.sem(part)
                    if abs(part.mean()) + reach < margins[i]:
                        news[i] = EQUAL
                if not news:
                    break
                for i, verdict in news.items():
                    verdicts[i], stops[i] = verdict, look
        assert (verdicts, stops) == (found[family].tolist(), ends[family].tolist())


@pytest.mark.parametrize("mean", [0.0, 0.6, 1.5])
def test_intervals_at_the_stop_cover_and_estimates_are_median_unbiased(mean):
    found = [decide(row + mean, margin=0.8, max_runs=24) for row in normal(400, 24, seed=5)]
    assert at_most(np.mean([not each.interval[0] <= mean <= each.interval[1] for each in found]), 0.05, 400)
    above = np.mean([each.estimate > mean for each in found])
    assert above == pytest.approx(0.5, abs=3 * 0.5 / math.sqrt(400) + 0.03)  # the variance is estimated


def test_failed_runs_are_left_out():
    values = [-1.0, math.nan, -1.2, -0.8, -1.1, -0.9, -1.05, -0.95, -1.0, -1.1]
    found = decide_all({"a": values}, Sequential(20), margins={"a": None})["a"]
    without = decide([each for each in values if not math.isnan(each)], margin=None, max_runs=20)
    assert (found.verdict, found.mean) == ("negative", pytest.approx(without.mean, abs=0.1))
    assert found.runs == 6  # finite ones among the first seven


def test_early_looks_wait_for_skewed_differences():
    values = np.r_[np.full(11, -1.0) + 0.01 * normal(11), -9.0]
    assert decide(values[:11], margin=None, max_runs=20).runs == 6
    assert decide(np.r_[values[11], values[:9]], margin=None, max_runs=20).verdict == "undecided"


def test_runs_that_are_all_equal_decide_nothing():
    assert decide([0.0] * 20, margin=0.1, max_runs=20).verdict == "undecided"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_runs": 5}, "max_runs: expected an integer of at least 6; got 5"),
        ({"max_runs": True}, "max_runs: expected an integer of at least 6; got True"),
        ({"max_runs": 10, "min_runs": 12}, "max_runs: expected at least min_runs, 12; got 10"),
        ({"spending": "linear"}, "spending: expected quadratic or obrien-fleming; got 'linear'"),
        ({"max_runs": 20, "looks": (8, 16)}, "looks: expected increasing numbers of runs from 6 to 20; got (8, 16)"),
        (
            {"max_runs": 20, "looks": (8, 8, 20)},
            "looks: expected increasing numbers of runs from 6 to 20; got (8, 8, 20)",
        ),
    ],
)
def test_wrong_plans_are_refused(settings, message):
    with pytest.raises(UserError) as found:
        Sequential(**settings)
    assert str(found.value) == message


def test_numpy_integers_are_integers():
    assert Sequential(np.int64(20)) == Sequential(20)
