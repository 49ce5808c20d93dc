"""The verdict in sentences: it claims what the tests support, and no more."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from contdrop.lab import stats
from contdrop.lab.analysis.comparisons import compare, margin_of
from contdrop.lab.analysis.verdict import verdict
from contdrop.lab.results import Results
from contdrop.lab.store import FAILED, FINISHED, PLANNED, JobRecord, ProtocolRecord

METHODS = ("gaussian", "bernoulli", "uniform", "bernoulli-matched")


def job(method, run, error=None, status=FINISHED, noise=0.3):
    results = {} if error is None else {"test_error": error, "relative_variance": noise}
    reason = "diverged" if status == FAILED else None
    empty = {"seeds": {}, "fingerprints": {}, "versions": {}, "machine": {}}
    return JobRecord(
        id=0, key="", protocol="p", experiment="e", stage="final", method=method, run=run, epochs=5, configuration={},
        status=status, error=reason, variant=None, results=results, created=0, started=None, ended=None, epochs_done=0,
        seconds=0, **empty,
    )  # fmt: skip


def results_of(errors, *, failed=(), missing=(), reference="gaussian", **description):
    """Results with these errors: by method a list by run, or a mapping."""
    jobs = [
        job(method, run, error)
        for method, found in errors.items()
        for run, error in (found.items() if isinstance(found, dict) else enumerate(found))
    ]
    jobs += [job(method, run, status=FAILED) for method, run in failed]
    jobs += [job(method, run, status=PLANNED) for method, run in missing]
    methods = tuple(dict.fromkeys(each.method for each in jobs))
    protocol = ProtocolRecord("p", "e", "quick", 5, {}, {"reference": reference, **description}, 0.0)
    return Results(protocol, methods, tuple(jobs), (), {})


def noisy(mean, runs=12, spread=0.1, seed=0):
    """Errors whose mean is exact."""
    values = np.random.default_rng(seed).normal(0, spread, runs)
    return list(mean + values - values.mean())


def test_better_than_all():
    found = verdict(results_of({m: noisy(2 + i, seed=i) for i, m in enumerate(METHODS)}))
    assert found.outcome == "better"
    assert found.headline == (
        "Gaussian is better than every other method here, by 1.00 to 3.00 percentage points of error, beyond chance."
    )
    assert set(found.outcomes.values()) == {"better"}
    first = found.findings[0]
    assert (first.label, first.gap, first.outcome) == ("Against Bernoulli", "1.00 points less", "better")
    assert first.text.startswith("Gaussian errs 2.00 %, bernoulli 3.00 %: 1.00 points less (95 % interval ")
    assert (
        "better in 12 of 12 runs. That is beyond chance after correction for 3 comparisons (p < 0.001)." in first.text
    )
    assert found.findings[-1].text.endswith("So the shape of gaussian's noise matters here, not its strength alone.")


def test_worse_and_mixed():
    errors = {"gaussian": noisy(3), "bernoulli": noisy(4, seed=1), "uniform": noisy(2, seed=2)}
    found = verdict(results_of(errors))
    assert found.outcome == "mixed"
    assert "better than bernoulli (by 1.00 percentage points" in found.headline
    assert "but worse than uniform (by 1.00 percentage points" in found.headline
    assert found.findings[1].label == "The best of the others"
    assert found.findings[1].gap == "1.00 points more"
    del errors["bernoulli"]
    found = verdict(results_of(errors))
    assert found.outcome == "worse"
    assert found.headline == "Gaussian is worse than uniform, by 1.00 percentage points of error."


def test_no_difference_is_claimed_only_by_the_equivalence_test():
    same = {m: noisy(3, spread=0.02, runs=20, seed=i) for i, m in enumerate(METHODS)}
    found = verdict(results_of(same))
    assert found.outcome == "equivalent"
    assert found.headline == (
        "Gaussian makes no difference that matters: it and every other method are within ±0.30 percentage points."
    )
    assert "with as much noise, its shape makes no difference that matters" in found.findings[-1].text
    wild = {m: noisy(3, spread=1.0, seed=i) for i, m in enumerate(METHODS)}
    found = verdict(results_of(wild))
    assert found.outcome == "open"
    assert found.headline == "Undecided: 12 runs cannot tell gaussian from any other method."
    detectable = compare(results_of(wild))["bernoulli"].minimum_detectable
    assert (
        f"12 such runs could only have seen a gap of {detectable:.2f} points or more (with 80 % power)."
        in found.findings[0].text
    )
    assert "is open" in found.findings[-1].text
    assert not any("o difference" in finding.text for finding in found.findings)


def test_what_matters_can_be_said():
    same = results_of({m: noisy(3, spread=0.1, seed=i) for i, m in enumerate(METHODS[:2])})
    assert verdict(same, margin=1.0).outcome == "equivalent"
    assert verdict(same, margin=0.001).outcome == "open"
    assert margin_of(same) == pytest.approx(0.3)
    assert "Differences of less than 0.30 points" in verdict(same).caveats[-1]
    assert verdict(same, margin=1.0).caveats == ()


def test_a_gain_by_strength_of_noise_alone_is_called_that():
    errors = {"gaussian": 2.0, "bernoulli": 3.0, "bernoulli-matched": 2.0}
    found = verdict(results_of({m: noisy(e, spread=0.02, runs=20, seed=i) for i, (m, e) in enumerate(errors.items())}))
    assert found.headline == (
        "Gaussian is better than bernoulli, by 1.00 percentage points of error; no different from bernoulli-matched "
        "(within ±0.20 percentage points)."
    )
    assert found.findings[-1].text.endswith("comes from the strength of its noise, not from its shape.")


def test_a_control_with_other_noise_is_none():
    results = results_of({m: noisy(2 + i, seed=i) for i, m in enumerate(METHODS)})
    for each in results.final:
        if each.method == "bernoulli-matched":
            each.results["relative_variance"] = 0.156
    assert verdict(results).findings[-1].text == (
        "Nothing to say: bernoulli-matched was run with another amount of noise, relative variance 0.156 instead "
        "of 0.300."
    )


def test_no_dropout_is_called_that():
    found = verdict(results_of({"gaussian": noisy(2), "none": noisy(3, seed=1)}, failed=[("none", 12)]))
    assert found.headline == "Gaussian is better than no dropout, by 1.00 percentage points of error."
    assert found.findings[0].text.startswith("Gaussian errs 2.00 %, no dropout 3.00 %")
    assert "(no dropout 1)" in found.caveats[0]
    found = verdict(results_of({"none": noisy(2), "bernoulli-matched": noisy(3, seed=1)}, reference="none"))
    assert found.headline == "No dropout is better than bernoulli-matched, by 1.00 percentage points of error."
    assert [finding.label for finding in found.findings] == ["The closest rival"]


def test_real_but_too_small_to_matter():
    base = noisy(3, runs=30)
    other = [error + 0.05 + 0.01 * (-1) ** run for run, error in enumerate(base)]
    found = verdict(results_of({"gaussian": base, "bernoulli": other}))
    assert found.outcome == "better"
    assert "less than the 0.30 points that would matter" in found.findings[0].text


def test_doubt_where_the_tests_disagree():
    base = [3.0] * 7
    steps = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02]
    errors = {"gaussian": base} | {
        m: [e + step for e, step in zip(base, steps)] for m in ("bernoulli", "uniform", "fast", "none")
    }
    found = verdict(results_of(errors))
    assert found.headline.endswith("points of error, by the t-test. Wilcoxon's test does not confirm all of that.")
    assert "Wilcoxon's test does not reach 5 % (p = 0.089), so a reviewer may doubt it" in found.findings[0].text


@pytest.mark.parametrize("runs", [2, 5])
def test_few_runs_give_no_verdict(runs):
    found = verdict(results_of({m: noisy(2 + i, runs=runs, seed=i) for i, m in enumerate(METHODS)}))
    assert found.outcome == "few"
    assert found.headline == (
        f"Too few runs to say: gaussian has the lowest mean error of 4 methods (2.00 %), but {runs} runs cannot tell "
        "that from chance."
    )
    assert "Fewer than 6 runs, so a test means little" in found.findings[0].text
    assert "could only have seen a gap of" in found.findings[0].text


def test_one_run():
    found = verdict(results_of({"gaussian": [3.0], "bernoulli": [2.0], "uniform": [4.0]}))
    assert "the second lowest mean error of 3 methods (3.00 %), but 1 run cannot tell" in found.headline
    assert found.findings[0].text == (
        "Gaussian errs 3.00 %, bernoulli 2.00 %: 1.00 points more, better in 0 of 1 run. "
        "One run says nothing about chance."
    )


def test_equal_in_every_run():
    found = verdict(results_of({"gaussian": noisy(3), "bernoulli": noisy(3)}))
    assert found.outcome == "equivalent"
    assert found.findings[0].gap == "equal"
    assert found.findings[0].text.startswith("Gaussian and bernoulli both err 3.00 %")
    assert found.caveats[0].startswith("Against bernoulli: the two are equal in every run")


@pytest.mark.parametrize(
    ("arguments", "headline"),
    [
        ({"errors": {}}, "No verdict yet: parameters are still being selected, and no final run is planned."),
        ({"errors": {}, "missing": [("gaussian", 0)]}, "No verdict yet: none of 1 planned run has finished."),
        ({"errors": {}, "failed": [("gaussian", 0), ("none", 0)]}, "No verdict: all 2 runs failed."),
        (
            {"errors": {"gaussian": [1.0]}},
            "No verdict: only gaussian has finished runs, and there is nothing to compare it with.",
        ),
        (
            {"errors": {"none": [1.0]}, "missing": [("gaussian", 0)]},
            "No verdict: gaussian, with which the others are compared, has no finished run.",
        ),
        (
            {"errors": {"gaussian": {0: 1.0}, "none": {1: 1.0}}},
            "No verdict yet: gaussian shares no finished run with another method.",
        ),
    ],
)  # fmt: skip
def test_nothing_to_compare(arguments, headline):
    found = verdict(results_of(**arguments))
    assert (found.outcome, found.headline, found.findings) == ("none", headline, ())


def test_caveats_of_failed_missing_and_size():
    errors = {"gaussian": noisy(2), "bernoulli": noisy(3, seed=1)[:11]}
    results = results_of(
        errors, failed=[("bernoulli", 11)], missing=[("gaussian", 12), ("bernoulli", 12)], paper="Table I, ReLU",
        paper_runs=30, paper_epochs=3000,
    )  # fmt: skip
    caveats = verdict(results).caveats
    assert caveats[0].startswith("1 of 26 runs failed (bernoulli 1).")
    assert caveats[1] == "2 of 26 runs are not finished yet, so this may change."
    assert caveats[2] == "Not a replication of the paper's Table I, ReLU: 12 runs of 5 epochs here, 30 of 3000 there."
    paper_size = results_of({m: noisy(2, runs=30) for m in METHODS}, paper="Table I", paper_runs=30, paper_epochs=5)
    assert not any("replication" in caveat for caveat in verdict(paper_size).caveats)


def test_each_method_is_compared_over_the_runs_it_shares():
    errors = {"gaussian": noisy(2), "bernoulli": noisy(3, seed=1), "uniform": dict(enumerate(noisy(3, seed=2)[:3]))}
    results = results_of(errors)
    assert {m: c.runs for m, c in compare(results).items()} == {"bernoulli": 12, "uniform": 3}
    found = verdict(results)
    assert found.outcomes == {"bernoulli": "better", "uniform": "few"}
    assert found.headline.endswith("; with too few runs to be compared with uniform.")
    assert "Not every method shares 12 runs with gaussian: uniform 3." in found.caveats


def test_many_names_are_not_all_listed():
    errors = {"bernoulli": noisy(5)} | {f"gaussian:sigma=0.{i}": noisy(3, seed=i) for i in range(1, 10)}
    found = verdict(results_of(errors, reference="bernoulli"))
    assert found.headline.startswith("Bernoulli is worse than gaussian:sigma=0.1, gaussian:sigma=0.2, ")
    assert "and 5 others, by " in found.headline
    assert not any(finding.label == "At equal noise" for finding in found.findings)


def test_outcomes_follow_the_tests():
    """Against scipy's t-test and a second reading of Holm and of the equivalence test, on 80 random experiments."""
    rng = np.random.default_rng(7)
    seen = set()
    for _ in range(80):
        runs, spread = int(rng.integers(6, 15)), rng.choice([0.02, 0.1, 0.4])
        errors = {m: list(3 + rng.choice([0, 0.1, 0.3]) + rng.normal(0, spread, runs)) for m in METHODS}
        outcomes = verdict(results_of(errors), margin=0.2).outcomes
        others = METHODS[1:]
        p = {m: scipy_stats.ttest_rel(errors["gaussian"], errors[m]).pvalue for m in others}
        rejected = set()
        for rank, method in enumerate(sorted(others, key=p.__getitem__)):
            if p[method] * (len(others) - rank) >= 0.05:
                break
            rejected.add(method)
        for method in others:
            change = np.subtract(errors["gaussian"], errors[method])
            half = scipy_stats.t.ppf(0.95, runs - 1) * change.std(ddof=1) / np.sqrt(runs)
            if method in rejected:
                expected = "better" if change.mean() < 0 else "worse"
            else:
                expected = "equivalent" if abs(change.mean()) + half < 0.2 else "open"
            assert outcomes[method] == expected
            seen.add(expected)
    assert seen == {"better", "worse", "equivalent", "open"}


def test_comparison_agrees_with_the_statistics_where_all_runs_are_shared():
    errors = {m: noisy(2 + i / 10, seed=i) for i, m in enumerate(METHODS)}
    assert compare(results_of(errors), margin=0.2) == stats.compare_all(errors, "gaussian", margin=0.2)
