"""Paired statistics: against scipy, against naive second computations, and by simulation."""

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from contdrop.lab import stats
from contdrop.lab.stats import paired as pairing
from contdrop.lab.stats.power import _power

INPUTS = 500
EXACT = {"rel": 1e-10, "abs": 1e-10}


def cases(seed=0, smallest=2):
    """Random pairs of errors in per cent and their difference, and whether the errors are counts over 10 000."""
    rng = np.random.default_rng(seed)
    for index in range(INPUTS):
        n, is_counted = int(rng.integers(smallest, 41)), index % 2 == 0  # with many ties and zeros
        if is_counted:
            counts = rng.integers(90, 90 + rng.integers(2, 40), (2, n))
            (reference, other), change = counts / 100, (counts[0] - counts[1]) / 100
        else:
            reference, other = rng.normal(1.0, 0.1, n), rng.normal(1.05, 0.1, n)
            change = reference - other
        if np.ptp(change):
            yield reference, other, change, is_counted


# Second computations.


def enumerated_signed_rank(differences):
    """P(W <= w) and the two-sided p-value over all 2^n signs, each equally likely."""
    ranks = scipy.stats.rankdata(np.abs(differences))
    observed = sum(ranks[np.asarray(differences) > 0])
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    less = sum(value <= observed + 1e-9 for value in sums) / len(sums)
    greater = sum(value >= observed - 1e-9 for value in sums) / len(sums)
    return less, min(1.0, 2 * min(less, greater))


def bca_by_hand(differences, cut, seed, resamples):
    values = [float(value) for value in differences]
    n, normal = len(values), scipy.stats.norm
    mean = math.fsum(values) / n
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))
    means = sorted(math.fsum(values[index] for index in row) / n for row in rows)
    near = 1e-9 * max(map(abs, values))
    below, equal = sum(value < mean - near for value in means), sum(abs(value - mean) <= near for value in means)
    bias = normal.ppf((below + equal / 2) / resamples)
    without = [(math.fsum(values) - value) / (n - 1) for value in values]
    gaps = [math.fsum(without) / n - value for value in without]
    acceleration = math.fsum(gap**3 for gap in gaps) / (6 * math.fsum(gap**2 for gap in gaps) ** 1.5)
    ends = []
    for z in (-cut, cut):
        place = normal.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) * (resamples - 1)
        low, high = means[math.floor(place)], means[math.ceil(place)]
        ends.append(low + (high - low) * (place - math.floor(place)))
    return ends


def closed_testing(p_values):
    """Holm's adjustment as what it shortens: the largest Bonferroni p-value of all families that hold a hypothesis."""
    everyone = range(len(p_values))
    families = [family for size in everyone for family in itertools.combinations(everyone, size + 1)]
    bonferroni = {family: min(1.0, len(family) * min(p_values[member] for member in family)) for family in families}
    return [max(p for family, p in bonferroni.items() if index in family) for index in everyone]


# Against scipy and by hand.


def test_p_values_agree_with_scipy():
    seen = set()
    for index, (reference, other, change, is_counted) in enumerate(cases()):
        counts = np.round(100 * change) if is_counted else change
        found = pairing.differences(reference, other)
        t, wilcoxon = stats.t_test(found), stats.signed_rank_test(found)
        exact = len(np.unique(np.abs(counts[counts != 0]))) == len(counts)
        assert wilcoxon.method == "exact"
        seen.add((exact, is_counted))
        for alternative, ours, our_wilcoxon in zip(("less", "two-sided"), t, wilcoxon):
            expected = scipy.stats.ttest_rel(reference, other, alternative=alternative).pvalue
            assert ours == pytest.approx(expected, **EXACT)
            if exact:  # scipy's knows no ties
                expected = scipy.stats.wilcoxon(counts, alternative=alternative, method="exact").pvalue
                assert our_wilcoxon == pytest.approx(expected, **EXACT)
        if index < 50:
            whole = stats.compare_paired(reference, other)
            assert (whole.t_p, whole.t_p_two_sided) == t
            assert (whole.wilcoxon_p, whole.wilcoxon_p_two_sided, whole.wilcoxon_method) == wilcoxon
    assert seen == {(True, False), (True, True), (False, True)}


def test_exact_signed_rank_test_agrees_with_enumeration():
    rng = np.random.default_rng(1)
    for index in range(100):
        change = rng.normal(0.2, 1, int(rng.integers(1, 11)))
        if index % 2:  # ties, and zeros
            change = np.round(change)
        found = stats.signed_rank_test(change)
        assert found.method == "exact"
        assert found[:2] == pytest.approx(enumerated_signed_rank(change[change != 0]), **EXACT)
    assert stats.signed_rank_test([-0.1] * 6)[:2] == (2**-6, 2**-5)


def test_signed_rank_test_of_many_runs_is_exact_up_to_a_limit_and_close_to_it_beyond():
    rng = np.random.default_rng(2)
    change = rng.normal(-0.05, 1, 501)
    assert stats.signed_rank_test(change[:500]).method == "exact"
    beyond = stats.signed_rank_test(change)
    assert beyond.method == "approximate"
    assert beyond.less == pytest.approx(
        scipy.stats.wilcoxon(change, alternative="less", method="exact").pvalue, rel=0.01
    )
    tied = np.round(4 * change)
    assert stats.signed_rank_test(tied).method == "exact"  # of those that are not 0
    tied[tied == 0] = 1
    for alternative, ours in zip(("less", "two-sided"), stats.signed_rank_test(tied)):
        theirs = scipy.stats.wilcoxon(tied, alternative=alternative, correction=True, method="approx").pvalue
        assert ours == pytest.approx(theirs, **EXACT)


def test_equivalence_test_agrees_with_two_t_tests():
    margin = 0.07
    for _, _, change, _ in cases():
        n = len(change)
        error = np.std(change, ddof=1) / math.sqrt(n)
        above = scipy.stats.t.sf((np.mean(change) + margin) / error, n - 1)
        below = scipy.stats.t.cdf((np.mean(change) - margin) / error, n - 1)
        assert stats.tost(change, margin) == pytest.approx(max(above, below), **EXACT)
    reference, other, change, _ = next(cases())
    result = stats.compare_paired(reference, other, margin=margin)
    assert (result.margin, result.equivalence_p) == (margin, pytest.approx(stats.tost(change, margin), **EXACT))


def test_interval_agrees_with_scipy_and_with_a_naive_computation():
    for index, (_, _, change, is_counted) in enumerate(cases(smallest=3)):
        n = len(change)
        cuts = (scipy.stats.norm.ppf(0.975), math.sqrt(n / (n - 1)) * scipy.stats.t.ppf(0.975, n - 1))
        for small_sample, cut in enumerate(cuts):
            found = stats.bca_interval(change, seed=index, resamples=99, small_sample=bool(small_sample))
            assert found == pytest.approx(bca_by_hand(change, cut, index, 99), **EXACT)
        if not is_counted:  # scipy splits resampled means that equal the mean but for rounding by chance
            rng = np.random.default_rng(index)
            theirs = scipy.stats.bootstrap((change,), np.mean, method="BCa", n_resamples=99, rng=rng, batch=99)
            plain = stats.bca_interval(change, seed=index, resamples=99, small_sample=False)
            assert plain == pytest.approx(tuple(theirs.confidence_interval), **EXACT)


def test_interval_of_extreme_confidence_stays_within_the_differences():
    change = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    assert stats.bca_interval(change, confidence=0.99999) == (0.0, 1.0)
    assert stats.bca_interval(-change, confidence=0.99999) == (-1.0, 0.0)
    assert stats.bca_interval([0.1, 0.2]) == (0.1, 0.2)
    assert np.isnan(stats.bca_interval([0.3])).all()


def test_mcnemar_agrees_with_binomial_sums_and_scipy():
    rng = np.random.default_rng(3)
    for _ in range(INPUTS):
        n = int(rng.integers(1, 200))
        labels, a, b = rng.integers(0, 3, (3, n)).tolist()
        result = stats.mcnemar(a, b, labels)
        only_a = sum(x == y != z for x, y, z in zip(a, labels, b))
        only_b = sum(z == y != x for x, y, z in zip(a, labels, b))
        assert (result.only_a_right, result.only_b_right) == (only_a, only_b)
        trials = only_a + only_b
        tail = sum(math.comb(trials, k) for k in range(min(only_a, only_b) + 1))
        assert result.p == pytest.approx(min(1.0, 2 * tail / 2**trials), **EXACT)
        if trials:
            assert result.p == pytest.approx(scipy.stats.binomtest(only_a, trials).pvalue, **EXACT)
    assert stats.mcnemar([0], [0], [0]).p == 1.0


def test_holm_agrees_with_closed_testing():
    rng = np.random.default_rng(4)
    for _ in range(INPUTS):
        p_values = (rng.integers(0, 20, int(rng.integers(0, 6))) / 20 * rng.choice([0.1, 1.0])).tolist()
        assert stats.holm(p_values) == pytest.approx(closed_testing(p_values), **EXACT)
    assert stats.holm([0.02, math.nan, 0.01]) == pytest.approx([0.02, math.nan, 0.02], nan_ok=True)
    assert stats.holm([0.02, math.nan, 0.01], 3) == pytest.approx([0.04, math.nan, 0.03], nan_ok=True)
    with pytest.raises(ValueError, match=r"between 0 and 1, got \[1.5\]"):
        stats.holm([1.5])


def test_power_agrees_with_scipys_noncentral_t():
    for n in (2, 3, 5, 10, 30, 100, 1000):
        for noncentrality in (0.0, 0.5, 1.7, 2.8, 4.0):
            for alpha in (0.001, 0.05, 0.3):
                critical = scipy.stats.t.ppf(1 - alpha / 2, n - 1)
                law = scipy.stats.nct(n - 1, noncentrality)
                expected = law.sf(critical) + law.cdf(-critical)
                found = stats.power(-noncentrality * 3.0, 3.0 * math.sqrt(n), n, alpha)
                assert found == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("noncentrality", [500.0, 3000.0, 9000.0])
def test_power_of_two_runs_at_a_severe_level(noncentrality):
    """Where the power's integrand is a step that is thousands of times narrower than its range.

    With one degree of freedom S = |Z|, so the power is E[Phi(nc - c |Z|) + Phi(-nc - c |Z|)]: the trapezoidal rule with
    25 points to the width of the step.
    """
    alpha = 1e-4
    critical = scipy.stats.t.ppf(1 - alpha / 2, 1)
    z = np.linspace(0, 12, 2_000_001)
    step = scipy.special.ndtr(noncentrality - critical * z) + scipy.special.ndtr(-noncentrality - critical * z)
    density = 2 * np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    expected = np.trapezoid(density * step, z) if hasattr(np, "trapezoid") else np.trapz(density * step, z)
    assert _power(noncentrality, 2, alpha) == pytest.approx(expected, abs=1e-9)


def test_detectable_difference_and_needed_runs_invert_the_power():
    for n in (2, 5, 10, 30, 200):
        for share in (0.5, 0.8, 0.99):
            difference = stats.minimum_detectable(0.04, n, power=share)
            assert stats.power(difference, 0.04, n) == pytest.approx(share, **EXACT)
            assert stats.runs_needed(difference * 1.000001, 0.04, power=share) == n
    assert [stats.runs_needed(*given) for given in ((0.5, 1.0), (-0.5, 1.0), (1.0, 0.0))] == [34, 34, 2]
    edges = ((1.0, 0.0, 5), (0.0, 0.0, 5, 0.02), (1.0, 1.0, 1), (1e300, 1.0, 30))
    assert [stats.power(*given) for given in edges] == [1.0, 0.02, 0.0, 1.0]


# What a comparison holds.


def test_comparison_describes_the_runs():
    result = stats.compare_paired({4: 0.9, 0: 1.0, 2: 1.1, 1: 1.3}, {0: 1.2, 1: 1.3, 2: 1.0, 4: 1.4})
    sd = np.std([-0.2, 0.0, 0.1, -0.5], ddof=1)
    assert (result.runs, result.wins, result.ties, result.losses) == (4, 2, 1, 1)
    assert (result.difference, result.sd, result.effect) == pytest.approx((-0.15, sd, -0.15 / sd))
    assert result.superiority == (2 + 1 / 2) / 4
    assert result.minimum_detectable == pytest.approx(stats.minimum_detectable(result.sd, 4))
    assert result.interval[0] < result.difference < result.interval[1]
    assert dataclasses.astuple(result.reference) == pytest.approx((1.075, np.std([0.9, 1, 1.1, 1.3], ddof=1), 4))
    assert dataclasses.astuple(result.other) == pytest.approx((1.225, np.std([1.2, 1.3, 1, 1.4], ddof=1), 4))
    assert (result.margin, result.equivalence_p) == (None, None)
    assert result.notes == (
        "4 runs are fewer than 6: a p-value means little "
        "(even 4 wins out of 4 give an exact two-sided Wilcoxon test only 0.12).",
        "The two are equal in 1 of 4 runs, which Wilcoxon's test leaves out.",
    )


def test_order_and_form_of_the_results_do_not_matter():
    by_run = {run: 1 + run % 7 / 100 for run in range(20)}
    other = {run: 1.02 + run % 5 / 100 for run in reversed(range(20))}
    expected = stats.compare_paired(by_run, other)
    assert stats.compare_paired(list(by_run.values()), [other[run] for run in range(20)]) == expected
    assert stats.compare_paired(list(by_run.items())[::-1], other) == expected
    numbered = {np.int64(run): value for run, value in by_run.items()}
    assert stats.compare_paired(numbered, other) == expected


def test_fewer_than_six_runs_have_students_interval_and_a_warning():
    rng = np.random.default_rng(7)
    for n in (2, 3, 5):
        reference, other = rng.normal(size=(2, n))
        theirs = tuple(scipy.stats.ttest_rel(reference, other).confidence_interval())
        found = stats.compare_paired(reference, other)
        assert found.interval == pytest.approx(theirs, **EXACT)
        assert stats.t_interval(reference - other) == pytest.approx(theirs, **EXACT)
        assert "a p-value means little" in found.notes[0]
    reference, other = rng.normal(size=(2, 6))
    found = stats.compare_paired(reference, other)
    assert (found.interval, found.notes) == (stats.bca_interval(reference - other), ())


def test_seed_decides_the_interval_and_touches_nothing_else():
    rng = np.random.default_rng(6)
    reference, other = rng.normal(size=(2, 12))
    before = np.random.get_state()[1].copy()
    first, again, second = (stats.compare_paired(reference, other, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.interval != second.interval
    assert dataclasses.replace(first, interval=second.interval) == second
    assert np.array_equal(np.random.get_state()[1], before)
    narrow = stats.compare_paired(reference, other, confidence=0.5)
    assert first.interval[0] < narrow.interval[0] < narrow.interval[1] < first.interval[1]


def test_equal_counts_are_ties_although_their_floats_differ():
    reference, other = np.array([1.15, 0.35, 5.00, 0.1 + 0.2]), np.array([1.13, 0.33, 5.02, 0.3])
    assert len(set(np.abs(reference - other))) == 4
    found = pairing.differences(reference, other)
    assert len(set(np.abs(found))) == 2
    assert found[3] == 0


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=40))
def test_differences_of_counts_are_equal_exactly_where_the_counts_are(pairs):
    counts = np.array(pairs)
    found = pairing.differences(counts[:, 0] * 100 / 10_000, counts[:, 1] * 100 / 10_000)
    whole = counts[:, 0] - counts[:, 1]
    assert found == pytest.approx(whole / 100, rel=1e-9, abs=1e-12)
    equal = np.abs(whole)[:, None] == np.abs(whole)
    assert np.array_equal(np.abs(found)[:, None] == np.abs(found), equal)
    assert np.array_equal(np.sign(found), np.sign(whole))


@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_is_that_of_the_larger_value(sign):
    """Both runs differ by 10000000.2, whichever of the two methods has the large values."""
    small, large = np.array([0.1, 0.3]), np.array([10000000.3, 10000000.5])
    assert len(set(large - small)) == 2
    made = pairing.differences(*(large, small)[::sign])
    assert made[0] == made[1] == pytest.approx(sign * 10000000.2)
    assert pairing.differences(np.array([100000.3]), np.array([100000.3 * (1 + 1e-14)])) == 0
    reference = np.array([1.0, 1.0, 1e6])
    others = reference - np.array([1e-7, 1.01e-7, 5e-3])
    assert len(set(pairing.differences(reference, others))) == 3  # different ones stay different


# Edges.


def test_one_and_two_runs():
    one = stats.compare_paired([1.0], [1.2], margin=0.1)
    assert np.isnan([one.t_p, one.sd, one.effect, *one.interval, one.minimum_detectable, one.equivalence_p]).all()
    assert (one.wilcoxon_p, one.wilcoxon_p_two_sided, one.difference) == (0.5, 1.0, pytest.approx(-0.2))
    assert one.notes == ("1 run has no spread: there is no t-test, no interval and no detectable difference.",)
    assert math.isnan(stats.compare_paired([1.0], [1.0]).t_p)
    two = stats.compare_paired([1.0, 1.0], [1.1, 1.3])
    assert two.wilcoxon_p == 0.25
    assert two.t_p == pytest.approx(scipy.stats.ttest_rel([1.0, 1.0], [1.1, 1.3], alternative="less").pvalue)


def test_no_difference_at_all():
    result = stats.compare_paired([1.1, 1.2, 1.3], [1.1, 1.2, 1.3], margin=0.1)
    assert result.t_p == result.t_p_two_sided == result.wilcoxon_p == result.wilcoxon_p_two_sided == 1.0
    assert (result.difference, result.effect, result.superiority) == (0.0, 0.0, 0.5)
    assert result.interval == (0.0, 0.0)
    assert result.equivalence_p == 0.0
    assert "The two are equal in every run: without spread" in result.notes[1]


def test_constant_difference():
    """The floats differ: 0.02000000000000024 and so on."""
    other = np.array([1.13, 1.05, 1.09, 0.97, 1.01, 1.07, 1.17])
    better = stats.compare_paired(other - 0.02, other, margin=0.05)
    assert (better.t_p, better.t_p_two_sided, better.effect) == (0.0, 0.0, -math.inf)
    assert better.interval == (better.difference, better.difference)
    assert better.difference == pytest.approx(-0.02)
    assert better.equivalence_p == 0.0
    assert better.notes[0].startswith("All differences are equal: without spread, p-values of t-tests")
    worse = stats.compare_paired(other, other - 0.02, margin=0.02)
    assert (worse.t_p, worse.t_p_two_sided, worse.effect) == (1.0, 0.0, math.inf)
    assert worse.equivalence_p == 1.0


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_units_do_not_matter(scale):
    rng = np.random.default_rng(8)
    reference, other = rng.normal(size=(2, 9))
    plain = stats.compare_paired(reference, other, margin=0.5)
    scaled = stats.compare_paired(reference * scale, other * scale, margin=0.5 * scale)
    for name in ("t_p", "t_p_two_sided", "wilcoxon_p", "effect", "superiority", "equivalence_p"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name), **EXACT)
    for name in ("difference", "sd", "minimum_detectable"):
        assert getattr(scaled, name) / scale == pytest.approx(getattr(plain, name), **EXACT)
    assert [end / scale for end in scaled.interval] == pytest.approx(plain.interval, **EXACT)


def test_swapping_mirrors_the_comparison():
    for reference, other, *_ in itertools.islice(cases(seed=9), 50):
        one, two = stats.compare_paired(reference, other), stats.compare_paired(other, reference)
        assert one.difference == pytest.approx(-two.difference, **EXACT)
        assert one.superiority == pytest.approx(1 - two.superiority)
        assert one.wilcoxon_p_two_sided == two.wilcoxon_p_two_sided
        if one.sd:
            assert one.t_p == pytest.approx(1 - two.t_p, **EXACT)


def numbered(*runs):
    return dict.fromkeys(runs, 1.0)


REFUSED = [
    lambda: stats.compare_paired([], []),
    lambda: stats.compare_paired({}, {}),
    lambda: stats.compare_paired([1.0, 2.0], [1.0]),
    lambda: stats.compare_paired(numbered(0, 1, 2), numbered(0, 3)),
    lambda: stats.compare_paired(numbered(0), numbered(0, 3), names=("b", "d")),
    lambda: stats.compare_paired(numbered(0, 1, 2, 3, 4, 5), numbered(0)),
    lambda: stats.compare_paired(numbered(0, 1, 2, 3, 4, 5, 6), numbered(0)),
    lambda: stats.compare_paired([(0, 1.0), (1, 1.0), (0, 1.1)], numbered(0, 1)),
    lambda: stats.compare_paired(numbered(0), [1.0]),
    lambda: stats.compare_paired([1.0], numbered(0)),
    lambda: stats.compare_paired(numbered("0"), numbered("0")),
    lambda: stats.compare_paired([1.0, math.nan], [1.0, 1.0]),
    lambda: stats.compare_paired([1.0], [math.inf]),
    lambda: stats.compare_paired(["good"], [1.0]),
    lambda: stats.compare_paired([[1.0, 2.0]], [1.0]),
    lambda: stats.compare_paired([1e308], [-1e308]),
    lambda: stats.compare_paired([1.0, 2], [2.0, 2], confidence=95),
    lambda: stats.bca_interval([1.0, 2.0], resamples=0),
    lambda: stats.tost([1.0, 2.0], 0.0),
    lambda: stats.tost([1.0, 2.0], math.nan),
    lambda: stats.power(1, -1, 5),
    lambda: stats.power(1, 1, 0),
    lambda: stats.power(1, 1, 5, alpha=5),
    lambda: stats.power(1, 1, 5, alpha=1),
    lambda: stats.minimum_detectable(1, 5, power=80),
    lambda: stats.minimum_detectable(1, 5, power=0.05),
    lambda: stats.runs_needed(0, 1),
    lambda: stats.runs_needed(1e-6, 1),
    lambda: stats.mcnemar([1, 2], [1], [1, 2]),
    lambda: stats.mcnemar([], [], []),
    lambda: stats.summary([]),
]


def test_bad_arguments_get_one_line(refusals):
    refusals("refusals_of_pairs", REFUSED)


# All methods.


def compare_all(errors, reference, **options):
    others = [method for method in errors if method != reference]
    return stats.adjusted({m: stats.compare_paired(errors[reference], errors[m], **options) for m in others})


def test_all_methods_are_compared_with_the_reference_and_adjusted():
    rng = np.random.default_rng(10)
    errors = {
        name: dict(enumerate(rng.normal(1 + shift, 0.05, 12))) for name, shift in zip("abcd", (0.06, 0, 0.03, 0.05))
    }
    found = compare_all(errors, "b", margin=0.1)
    assert list(found) == ["a", "c", "d"]
    for name in ("t_p", "t_p_two_sided", "wilcoxon_p", "wilcoxon_p_two_sided"):
        raw = [getattr(comparison, name) for comparison in found.values()]
        assert [getattr(comparison, f"{name}_holm") for comparison in found.values()] == closed_testing(raw)
        alone = stats.compare_paired(errors["b"], errors["c"], margin=0.1)
        assert getattr(alone, name) == getattr(alone, f"{name}_holm") == getattr(found["c"], name)
    for comparison in found.values():
        detectable = stats.minimum_detectable(comparison.sd, 12, alpha=0.05 / 3)
        assert comparison.minimum_detectable == pytest.approx(detectable, **EXACT)
    assert found["c"].difference == alone.difference
    assert stats.adjusted({}) == {}


def test_summary_uses_n_minus_one():
    assert dataclasses.astuple(stats.summary([0.01, 0.02, 0.03])) == pytest.approx((0.02, 0.01, 3))
    assert math.isnan(stats.summary([1.0]).sd)


# By simulation: what the documentation says of levels and coverage.


def share(outcomes):
    return float(np.mean(list(outcomes)))


def rejects(p_values):
    return share(p <= 0.05 for p in p_values)


# Of mean 0: symmetric, as between methods that do not differ, and skewed.
SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "Laplace": lambda rng, size: rng.laplace(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
}


@pytest.mark.parametrize(
    ("shape", "levels"), [("normal", (5.0, 5.0, 5.0)), ("Laplace", (3.7, 4.2, 4.8)), ("exponential", (11.4, 9.9, 7.2))]
)
def test_the_level_of_the_t_test_is_as_documented_where_differences_are_not_normal(shape, levels):
    """docs/lab.md has these figures, of 6, 10 and 30 runs; they are from 400 000 draws."""
    rng = np.random.default_rng(19)
    for runs, level in zip((6, 10, 30), levels):
        found = rejects(stats.t_test(row).two_sided for row in SHAPES[shape](rng, (3000, runs)))
        assert abs(found - level / 100) < 4 * math.sqrt(level / 100 / 3000)


def covers(rows, true, **options):
    intervals = [stats.bca_interval(row, seed=seed, **options) for seed, row in enumerate(rows)]
    return share(low <= true <= high for low, high in intervals)


@pytest.mark.slow
def test_intervals_cover_at_full_size():
    rng = np.random.default_rng(18)
    assert 0.925 <= covers(rng.normal(-0.05, 0.05, (2000, 30)), -0.05) <= 0.97
    assert 0.925 <= covers(np.round(rng.normal(-2, 5, (2000, 30))) / 100, -0.02, resamples=2000) <= 0.97
    few = rng.normal(size=(2000, 5))
    assert covers(few, 0.0, resamples=2000) > covers(few, 0.0, resamples=2000, small_sample=False) + 0.04


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_coverage_of_plain_intervals_is_as_documented(shape):
    """docs/lab.md has these bounds; three standard errors of 2000 intervals are two points."""
    rng = np.random.default_rng(20)
    for runs, low, high in ((6, 0.90, 0.93), (10, 0.91, 0.945), (30, 0.92, 0.95)):
        assert low - 0.02 <= covers(SHAPES[shape](rng, (2000, runs)), 0.0, resamples=2000) <= high + 0.02


# Cost.


def test_a_comparison_takes_milliseconds():
    rng = np.random.default_rng(19)
    reference, other = rng.normal(size=(2, 30))
    stats.compare_paired(reference, other, margin=1.0)
    started = time.process_time()
    for _ in range(5):
        stats.compare_paired(reference, other, margin=1.0)
    assert (time.process_time() - started) / 5 < 0.05


def test_simultaneous_intervals_hold_together_and_agree_with_holm():
    """Bonferroni's: Student's interval at 1 - 0.05 / 3; excludes 0 only where Holm's p-value is below 5 %."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        runs = int(rng.integers(2, 15))
        errors = {m: list(rng.normal(rng.choice([3.0, 3.1]), 0.1, runs)) for m in "abcd"}
        for method, found in compare_all(errors, "a").items():
            change = np.subtract(errors["a"], errors[method])
            expected = scipy.stats.t.interval(1 - 0.05 / 3, runs - 1, change.mean(), scipy.stats.sem(change))
            assert found.simultaneous == pytest.approx(expected, rel=1e-7, abs=1e-12)
            if found.simultaneous[0] > 0 or found.simultaneous[1] < 0:
                assert found.t_p_two_sided_holm < 0.05
