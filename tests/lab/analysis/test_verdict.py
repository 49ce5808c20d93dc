"""The verdict in sentences: it claims what the tests support, and no more."""

import dataclasses

import numpy as np
import pytest
from scipy import stats as scipy_stats

from contdrop.lab import stats
from contdrop.lab.analysis import verdict as verdicts
from contdrop.lab.analysis.comparisons import ALPHA, compare, margin_of, outcome_of, wilcoxon_rejects
from contdrop.lab.analysis.phrases import capital, probability
from contdrop.lab.analysis.sample_size import needed_runs
from contdrop.lab.analysis.verdict import HEADLINE, analyze, verdict
from contdrop.lab.report import tables
from contdrop.lab.store.results import Results
from contdrop.lab.store.schema import FAILED, FINISHED, PLANNED, JobRecord, ProtocolRecord
from contdrop.lab.study.labels import name_in_text

METHODS = ("gaussian", "bernoulli", "uniform", "bernoulli-matched")


def job(method, run, error=None, status=FINISHED, noise=0.3):
    results = {} if error is None else {"test_error": error, "relative_variance": noise}
    reason = "diverged" if status == FAILED else None
    empty = {"seeds": {}, "fingerprints": {}, "versions": {}, "machine": {}}
    return JobRecord(
        id=0, key="", protocol="p", experiment="e", stage="final", method=method, run=run, epochs=5, configuration={},
        status=status, error=reason, variant=None, results=results, created=0, started=None, ended=None, epochs_done=0,
        seconds=0, origin=None, **empty,
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


def by_steps(steps, *others):
    """Errors of the reference, and of others that differ from it by these steps."""
    return {"gaussian": [3.0] * len(steps)} | {name: [3.0 + step for step in steps] for name in others}


def levels(errors, **options):
    """Errors with these means."""
    return {m: noisy(e, seed=i, **options) for i, (m, e) in enumerate(errors.items())}


def with_other_noise():
    results = results_of(levels(dict(zip(METHODS, (2, 3, 4, 5)))))
    for each in results.final:
        if each.method == "bernoulli-matched":
            each.results["relative_variance"] = 0.156
    return results


BASE = noisy(3, runs=30)
CLOSE, FAR = ([e + step + 0.01 * (-1) ** run for run, e in enumerate(BASE)] for step in (0.05, 1))
SEVEN = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02)
TEN = noisy(3, runs=10)
CASES = {
    "better than all": results_of(levels(dict(zip(METHODS, (2, 3, 4, 5))))),
    "better and worse": results_of({"gaussian": noisy(3), "bernoulli": noisy(4, seed=1), "uniform": noisy(2, seed=2)}),
    "worse": results_of({"gaussian": noisy(3), "uniform": noisy(2, seed=2)}),
    "a gain by the strength of the noise": results_of(
        levels({"gaussian": 2.0, "bernoulli": 3.0, "bernoulli-matched": 2.0}, spread=0.02, runs=20)
    ),
    # The shape may make as much of a difference as the whole gain, and the equivalence test would not see it.
    "a gain within the margin": results_of(
        levels({"gaussian": 2.0, "bernoulli": 2.1, "bernoulli-matched": 2.005}, spread=0.02, runs=20)
    ),
    "a control with other noise": with_other_noise(),
    "no dropout, with a failed run": results_of(
        {"gaussian": noisy(2), "none": noisy(3, seed=1)}, failed=[("none", 12)]
    ),
    "no dropout as the reference": results_of(
        {"none": noisy(2), "bernoulli-matched": noisy(3, seed=1)}, reference="none"
    ),
    "a difference below the margin": results_of({"gaussian": BASE, "bernoulli": CLOSE}),
    "one of two below the margin": results_of({"gaussian": BASE, "bernoulli": CLOSE, "none": FAR}),
    "ties in all runs": results_of({"gaussian": [3.0] * 10, "bernoulli": [3.0] * 10}),
    "ties in some runs": results_of({"gaussian": [3.0] * 10, "bernoulli": [3.1] * 5 + [3.0] * 3 + [2.9] * 2}),
    # Twelve wins of twelve, of which one is so large that the t-test takes the rest for chance.
    "Wilcoxon alone": results_of({"gaussian": [3.0] * 12, "bernoulli": [3.01 + 0.001 * n for n in range(11)] + [9.0]}),
    "no errors": results_of({"gaussian": [0.0] * 10, "bernoulli": [0.0] * 10}),
    "no errors of the reference": results_of({"gaussian": [0.0] * 10, "bernoulli": noisy(1, runs=10)}),
    # Without spread there is no t-test, no interval and no equivalence test, and none is quoted.
    "the same difference in every run": results_of({"gaussian": TEN, "bernoulli": [e + 0.125 for e in TEN]}),
    "the same difference in four runs": results_of({"gaussian": TEN[:4], "bernoulli": [e + 1 for e in TEN[:4]]}),
    "too few runs for Wilcoxon's test": results_of(by_steps(SEVEN, "bernoulli", "uniform", "fast", "none")),
    # Alone, seven runs could reach 5 %: 2 / 2^7 is 0.016.
    "not confirmed by Wilcoxon's test": results_of(by_steps((1.0, 1.1, -0.01, 1.05, 0.95, 1.0, -0.02), "bernoulli")),
    # They saw a gap of 4 points with a spread of 0.1; which smaller one they could have detected is not said.
    "two runs": results_of(levels(dict(zip(METHODS, (2, 6, 10, 14))), runs=2)),
    "five runs": results_of(levels(dict(zip(METHODS, (2, 6, 10, 14))), runs=5)),
    "two runs, close": results_of(levels(dict(zip(METHODS, (2, 2.001, 2.002, 2.003))), runs=2)),
    "five runs, close": results_of(levels(dict(zip(METHODS, (2, 2.001, 2.002, 2.003))), runs=5)),
    "one run": results_of({"gaussian": [3.0], "bernoulli": [2.0], "uniform": [4.0]}),
    "equal in every run": results_of({"gaussian": noisy(3), "bernoulli": noisy(3)}),
    "three equal in every run": results_of({m: noisy(3) for m in ("gaussian", "bernoulli", "none")}),
    "nothing planned": results_of({}),
    "nothing finished": results_of({}, missing=[("gaussian", 0)]),
    "everything failed": results_of({}, failed=[("gaussian", 0), ("none", 0)]),
    "the reference alone": results_of({"gaussian": [1.0]}),
    "without the reference": results_of({"none": [1.0]}, missing=[("gaussian", 0)]),
    "no shared run": results_of({"gaussian": {0: 1.0}, "none": {1: 1.0}}),
}


def test_verdicts(snapshot):
    """Every sentence, for results of every kind."""
    parts = []
    for name, results in CASES.items():
        found = verdict(results)
        outcomes = ", ".join(f"{method} {outcome}" for method, outcome in found.outcomes.items())
        parts += [f"## {name}", f"{found.outcome}: {found.headline}", *found.details, f"[{outcomes}]"]
        parts += [f"- {each.label} ({each.outcome}; {each.gap}): {each.text}" for each in found.findings]
        parts += [*(f"* {caveat}" for caveat in found.caveats), ""]
        assert len(found.headline) <= HEADLINE
    snapshot("verdicts", "\n".join(parts))


def test_complete_runs_are_those_that_every_method_has():
    errors = {"gaussian": {0: 1.0, 1: 1.0, 2: 1.0}, "none": {1: 1.0, 2: 1.0, 3: 1.0}, "uniform": {2: 1.0, 1: 1.0}}
    assert results_of(errors).complete_runs() == (1, 2)
    assert results_of({**errors, "uniform": {7: 1.0}}).complete_runs() == ()
    assert results_of({}, missing=[("none", 0)]).complete_runs() == ()
    found = results_of({"gaussian": {0: 9.0, 1: 2.0}, "none": {1: 3.0}, "uniform": {1: 4.0}})
    assert verdict(found).details == ("Gaussian has the lowest mean error of 3 methods (2.00 %).",)


@pytest.mark.parametrize("known", [(), ("gaussian",), ("bernoulli-matched",), ("gaussian", "bernoulli-matched")])
def test_unscaled_masks_are_of_equal_noise_only_if_both_means_are_known(known):
    results = results_of({"gaussian": noisy(2), "bernoulli-matched": noisy(3, seed=1)})
    jobs = [
        dataclasses.replace(each, results={**each.results, "mean": 0.5} if each.method in known else each.results)
        for each in results.final
    ]
    protocol = dataclasses.replace(results.protocol, configuration={"recipe": {"scale": "paper"}})
    found = verdict(dataclasses.replace(results, final=tuple(jobs), protocol=protocol)).findings[-1]
    assert found.label == "At equal noise"
    assert ("the store does not say whether" in found.text) == (len(known) < 2)


def test_limits_of_tests_without_spread_are_no_evidence():
    """Eight equal differences: a t-test would be infinitely sure of them, and so would one of equivalence."""
    found = compare(results_of({"gaussian": [2.0] * 8, "none": [2.125] * 8, "uniform": [2.0] * 8}))
    for method in ("none", "uniform"):
        one = found[method]
        assert one.sd == 0
        shown = [one.minimum_detectable, *one.interval, *one.simultaneous, one.equivalence_p]
        assert np.isnan(shown).all()
    assert np.isnan([found["none"].t_p, found["none"].t_p_two_sided, found["none"].effect]).all()


def test_a_comparison_without_a_t_test_counts_in_the_correction_of_the_others():
    found = compare(
        results_of({"gaussian": noisy(3), "none": [x + 0.125 for x in noisy(3)], "uniform": noisy(3.1, seed=1)})
    )
    assert np.isnan(found["none"].t_p_two_sided)
    assert found["uniform"].t_p_two_sided_holm == 2 * found["uniform"].t_p_two_sided < 1
    assert found["uniform"].minimum_detectable == stats.minimum_detectable(found["uniform"].sd, 12, alpha=0.025)


def test_no_difference_is_claimed_only_by_the_equivalence_test():
    same = {m: noisy(3, spread=0.02, runs=20, seed=i) for i, m in enumerate(METHODS)}
    found = verdict(results_of(same))
    assert found.outcome == "equivalent"
    assert found.headline == "Gaussian is within ±0.30 percentage points of every other method."
    assert "with as much noise, its shape makes no difference that matters" in found.findings[-1].text
    said = "No difference that matters: the equivalence test puts it within ±0.30 percentage points (p < 0.001 after"
    assert all(said in finding.text for finding in found.findings)
    wild = {m: noisy(3, spread=1.0, seed=i) for i, m in enumerate(METHODS)}
    found = verdict(results_of(wild))
    assert found.outcome == "open"
    assert found.headline == "Undecided: 12 runs cannot tell Gaussian from any other method."
    detectable = compare(results_of(wild))["bernoulli"].minimum_detectable
    assert (
        f"12 such runs could only have detected a gap of {detectable:.2f} points or more (with 80 % power after "
        "correction for 3 comparisons)." in found.findings[0].text
    )
    assert "is open" in found.findings[-1].text
    assert not any("o difference" in finding.text for finding in found.findings)


def test_what_matters_can_be_said():
    same = results_of({m: noisy(3, spread=0.1, seed=i) for i, m in enumerate(METHODS[:2])})
    assert verdict(same, margin=1.0).outcome == "equivalent"
    assert verdict(same, margin=0.001).outcome == "open"
    assert margin_of(same) == pytest.approx(0.3)
    assert "Differences of less than 0.30 points, a tenth of the error of Gaussian, count" in verdict(same).caveats[0]
    assert "comes from the results" in verdict(same).caveats[0]


AUROC = {"name": "auroc", "unit": "", "better": "higher", "kind": "built-in"}


@pytest.mark.parametrize(
    ("metric", "value", "margin", "said"),
    [
        (AUROC, 0.96, 0.004, "the distance of the auroc of Gaussian to 1, count as negligible; a share of"),
        ({**AUROC, "name": "r2"}, -0.5, 0.15, "the distance of the r2 of Gaussian to 1"),
        ({**AUROC, "name": "accuracy", "unit": "%"}, 97, 0.3, "the distance of the accuracy of Gaussian to 100"),
        ({**AUROC, "name": "perplexity", "better": "lower"}, 21, 2, "the distance of the perplexity of Gaussian to 1"),
        ({"name": "rmse", "better": "lower"}, 2, 0.2, "0.2, a tenth of the rmse of Gaussian, count as negligible"),
        ({"name": "reward", "better": "higher", "kind": "mean"}, 0.5, None, "How good reward can be is not known, so"),
        ({"name": "loss", "better": "lower", "kind": "mean"}, -3, None, "How good loss can be is not known, so"),
        ({"name": "gain", "unit": "%", "better": "higher", "kind": "mean"}, 12, None, "How good gain can be is not"),
        (AUROC, 1.0, None, "Gaussian leaves nothing to gain, so"),
    ],
)  # fmt: skip
def test_the_margin_is_a_share_of_what_is_left_to_gain(metric, value, margin, said):
    spread = 1e-3 if value != 1.0 else 0
    results = results_of({m: noisy(value, spread=spread, seed=i) for i, m in enumerate(METHODS[:2])}, metric=metric)
    assert margin_of(results) == (None if margin is None else pytest.approx(margin))
    assert any(said in caveat for caveat in verdict(results).caveats)
    note = " ".join(tables.differences(analyze(results)).notes)
    assert ("Equivalent:" in note) == (margin is not None)
    (line,) = needed_runs([results])
    assert ("without a difference that matters" in line) == (margin is None)


def test_needed_runs_are_those_of_the_corrected_tests():
    results = results_of({m: noisy(3, spread=0.1, seed=i) for i, m in enumerate(METHODS)}, margin=0.1)
    sd = compare(results)["bernoulli"].sd
    (line,) = (each for each in needed_runs([results]) if each.startswith("Bernoulli "))
    runs = stats.runs_needed(0.1, sd, alpha=0.05 / 3)
    assert f": {runs} runs would find a difference of 0.10 points with 80 % power after correction for 3 comp" in line


def test_nothing_is_planned_without_a_finished_run_of_the_reference():
    failed = [("gaussian", run) for run in range(12)]
    results = results_of({m: noisy(3, seed=i) for i, m in enumerate(METHODS[1:])}, failed=failed, margin=0.1)
    (line,) = needed_runs([results])
    assert line == "The number of runs needed cannot be estimated: Gaussian, the reference, has no run that finished."


def test_no_fewer_runs_are_promised_than_a_verdict_takes():
    """With a small spread two runs have the power, but nothing is said of fewer than six."""
    results = results_of({m: noisy(3, spread=0.001, seed=i) for i, m in enumerate(METHODS[:2])}, margin=0.5)
    (line,) = needed_runs([results])
    assert "Bernoulli against Gaussian: 6 runs would find" in line
    assert line.endswith("(95 % interval 6 to 6).")


def test_runs_that_differ_alike_but_for_rounding_plan_nothing():
    errors = [0.3, 0.7, 1.1, 1.15, 1.4]
    assert len({error - (error - 0.2) for error in errors}) > 1
    results = results_of({"gaussian": errors, "bernoulli": [error - 0.2 for error in errors]}, margin=0.1)
    assert "all 5 runs differ by the same amount" in " ".join(needed_runs([results]))


def test_the_margin_is_the_experiments_and_one_chosen_afterwards_is_called_that():
    errors = {m: noisy(3, spread=0.1, seed=i) for i, m in enumerate(METHODS[:2])}
    planned = results_of(errors, margin=0.2, margin_reason="half of the paper's gap.")
    assert margin_of(planned) == 0.2
    assert compare(planned)["bernoulli"].margin == 0.2
    assert verdict(planned).caveats[0] == (
        "Differences of less than 0.20 points count as negligible, which the experiment fixed before the "
        "results: half of the paper's gap."
    )
    assert verdict(planned, margin=1.0).caveats[0] == (
        "The margin of ±1.00 points was chosen after the fact (--margin), not before the results; the experiment had "
        "fixed ±0.20."
    )
    change = {"time": 1.0, "what": "margin", "before": None, "after": 0.2, "results": 6}
    moved = results_of(errors, margin=0.2, changes=[change])
    assert "which the experiment chose when results were there." in verdict(moved).caveats[0]
    assert verdict(moved, margin=1.0).caveats[0].endswith("; the experiment had changed to ±0.20.")
    assert any("points, fixed by the experiment;" in note for note in tables.differences(analyze(planned)).notes)
    words = "points, chosen by the experiment when results were there;"
    assert any(words in note for note in tables.differences(analyze(moved)).notes)
    assert compare(planned, 1.0)["bernoulli"].margin == 1.0
    assert verdict(results_of(errors), margin=1.0).caveats[0].endswith("not before the results.")


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1.0])
def test_small_values_are_told_apart_and_shown_as_large_ones_are(scale):
    errors = {m: [scale * each for each in noisy(3 + i, seed=i)] for i, m in enumerate(("gaussian", "uniform"))}
    results = results_of(errors, metric={"name": "mse", "unit": "", "better": "lower"})
    (finding,) = (each for each in verdict(results).findings if "rival" in each.label)
    assert finding.gap.endswith(" lower")
    assert float(finding.gap.split()[0]) == pytest.approx(scale)
    overview, differences = tables.overview(analyze(results)), tables.differences(analyze(results))
    assert [row[1].bold for row in overview.rows] == [True, False]
    for cell in (overview.rows[1][2], differences.rows[0][1], differences.rows[0][11]):
        assert float(cell.text.split()[0].replace("\N{MINUS SIGN}", "-")) == pytest.approx(cell.value, rel=0.1)


@pytest.mark.parametrize("runs", [3, 12])
def test_a_law_that_is_weaker_than_its_name_says_is_called_that(runs):
    methods = ("original", "gaussian:match", "uniform:match")
    results = results_of({m: noisy(2 + i, runs, seed=i) for i, m in enumerate(methods)}, reference="original")
    assert not any("weaker" in each for each in verdict(results).details)
    for each in results.final:
        each.results["relative_variance"] = 1 / 3 if each.method == "uniform:match" else 1.0
    assert (
        "Uniform of equal strength is weaker than its name says: no such law is as strong as original dropout (noise "
        "0.333 instead of 1.000)." in verdict(results).details
    )


def test_a_control_with_masks_of_another_mean_is_none():
    results = results_of({m: noisy(2 + i, seed=i) for i, m in enumerate(METHODS)})
    for each in results.final:
        each.results["mean"] = 0.77 if each.method == "bernoulli-matched" else 0.5
    assert verdict(results).findings[-1].text == (
        "Inconclusive: matched Bernoulli was run with masks of another mean, mean of the masks 0.770 instead of 0.500."
    )
    for each in results.final:
        each.results["mean"] = 0.5
    assert verdict(results).findings[-1].outcome == "better"
    for each in results.final:
        del each.results["mean"]
    results.protocol.configuration["recipe"] = {"scale": "paper"}
    assert "the store does not say whether those of matched Bernoulli have" in verdict(results).findings[-1].text
    results.protocol.configuration["recipe"] = {"scale": "inverted"}
    assert verdict(results).findings[-1].outcome == "better"


@pytest.mark.parametrize(
    ("reference", "control"),
    [
        ("uniform", "bernoulli-matched:uniform"),
        ("gaussian:sigma=0.3", "bernoulli-matched:sigma=0.3"),
        ("gaussian:match", "original"),
        ("gaussian:r=0.3", "bernoulli:r=0.3"),
        ("uniform:r=0.3", "bernoulli:r=0.3"),
    ],
)
def test_each_continuous_law_is_held_against_its_own_control(reference, control):
    errors = {reference: noisy(2), control: noisy(3, seed=1), "bernoulli-matched": noisy(1.5, seed=2)}
    results = results_of(errors, reference=reference)
    found = verdict(results).findings[-1]
    assert (found.label, found.outcome) == ("At equal noise", "better")
    assert found.text.startswith(f"{capital(name_in_text(reference))} errs 2.00 %, {name_in_text(control)} 3.00 %: ")
    assert f"the shape of the noise of {name_in_text(reference)} matters here" in found.text
    for each in results.final:
        if each.method == control:
            del each.results["relative_variance"]
    assert verdict(results).findings[-1].text == (
        f"Inconclusive: the store does not say whether the masks of {name_in_text(control)} have the strength of "
        f"those of {name_in_text(reference)}."
    )
    del errors[control]
    found = verdict(results_of(errors, reference=reference)).findings[-1]
    assert found.text.startswith(f"Inconclusive: {name_in_text(control)}, the Bernoulli law with as much noise, has no")


def test_equivalence_is_corrected_for_the_number_of_methods():
    """One equivalence test that just passes alone does not pass among three that all just pass."""
    change = np.array(noisy(0, runs=12, spread=0.1))
    reach = scipy_stats.t.ppf(0.97, 11) * change.std(ddof=1) / np.sqrt(12)  # p = 0.03
    base = noisy(3, seed=9)
    other = list(np.subtract(base, change))
    alone = results_of({"gaussian": base, "bernoulli": other})
    three = results_of({"gaussian": base, "bernoulli": other, "uniform": other, "none": other})
    assert compare(alone, reach)["bernoulli"].equivalence_p == pytest.approx(0.03, rel=1e-6)
    assert verdict(alone, reach).outcomes == {"bernoulli": "equivalent"}
    assert compare(three, reach)["uniform"].equivalence_p_holm == pytest.approx(0.09, rel=1e-6)
    assert set(verdict(three, reach).outcomes.values()) == {"open"}


def test_an_interval_that_excludes_zero_beside_an_open_question_is_explained():
    change = np.array(noisy(0, runs=12, spread=0.1))
    change += scipy_stats.t.ppf(1 - 0.02 / 2, 11) * change.std(ddof=1) / np.sqrt(12)  # p = 0.02 alone, 0.06 of three
    base = noisy(3, seed=9)
    other = list(np.subtract(base, change))
    results = results_of({"gaussian": base, "bernoulli": other, "uniform": other, "none": other})
    found = compare(results)["bernoulli"]
    assert found.interval[0] > 0
    text = verdict(results, margin=0.01).findings[0].text
    low, high = found.simultaneous
    assert low < 0 < high
    assert (
        "the interval is for this comparison alone, and one that holds for all 3 at once includes 0 (\N{MINUS SIGN}"
        in text
    )


def test_a_headline_has_two_lines_and_the_rest_stands_below():
    labels = [f"gaussian:sigma=0.{i}:mean=0.12345678" for i in range(1, 10)]
    errors = {"bernoulli": noisy(4)} | {m: noisy(3 if i % 2 else 5, seed=i) for i, m in enumerate(labels)}
    found = verdict(results_of(errors, reference="bernoulli"))
    assert found.headline == "Bernoulli is better than 5 and worse than 4 of 9 methods."
    assert len(found.headline) <= HEADLINE
    assert found.details[0].startswith(f"Better than {labels[0]}, {labels[2]}, ")
    assert found.details[1].startswith(f"Worse than {labels[1]}, {labels[3]}, ")
    assert found.details[0].endswith(", by 1.00 points.")
    small = verdict(results_of(errors, reference="bernoulli"), margin=1.5)
    assert small.headline == "Bernoulli is better than 5 and worse than 4 of 9 methods, all below the margin."
    assert len(small.headline) <= HEADLINE


def test_an_open_question_names_the_only_other_method_and_not_all_of_several():
    errors = {"gaussian": noisy(3, spread=1), "uniform": noisy(3.01, spread=1, seed=1)}
    assert verdict(results_of(errors)).headline == "Undecided: 12 runs cannot tell Gaussian from uniform."
    several = verdict(results_of({**errors, "none": noisy(3.01, spread=1, seed=2)}))
    assert several.headline == "Undecided: 12 runs cannot tell Gaussian from any other method."


def test_sentences_that_fill_the_headline_exactly_are_in_it():
    exact, longer = ["a" * 40, "b" * (HEADLINE - 41)], ["a" * 40, "b" * (HEADLINE - 40)]
    assert (verdicts._number_that_fits(exact), verdicts._number_that_fits(longer)) == (2, 1)
    full = "a" * HEADLINE
    assert verdicts._fitting(full, "short") == full
    assert verdicts._fitting(full + "a", "short") == "short"


def test_a_p_value_of_exactly_five_per_cent_is_no_evidence():
    (found,) = compare(results_of({"gaussian": noisy(3), "none": noisy(3.1, seed=1)})).values()
    at = {"t_p_two_sided_holm": ALPHA, "wilcoxon_p_two_sided_holm": ALPHA, "equivalence_p_holm": ALPHA}
    found = dataclasses.replace(found, **at)
    assert outcome_of(found) == "open"
    assert not wilcoxon_rejects(found)
    below = np.nextafter(ALPHA, 0)
    assert outcome_of(dataclasses.replace(found, t_p_two_sided_holm=below)) == "better"
    assert outcome_of(dataclasses.replace(found, equivalence_p_holm=below)) == "equivalent"
    assert wilcoxon_rejects(dataclasses.replace(found, wilcoxon_p_two_sided_holm=below))


def test_a_reviewer_is_told_what_limits_every_result():
    results = results_of({m: noisy(2 + i, seed=i) for i, m in enumerate(METHODS)})
    results.protocol.configuration.update(split={"train": 50_000}, recipe={"scale": "inverted"})
    told = " ".join(verdict(results).caveats)
    for expected in ("one test set", "trained on 50,000 examples", "share one recipe", "not corrected for the looks"):
        assert expected in told


def test_one_test_set_is_not_claimed_of_a_loop_that_may_draw_its_own():
    results = results_of({m: noisy(2 + i, seed=i) for i, m in enumerate(METHODS)})
    assert any(caveat.startswith("All runs share one test set:") for caveat in verdict(results).caveats)
    results.protocol.configuration["run"] = {"name": "run"}
    told = verdict(results).caveats
    assert any(caveat.startswith("Runs may share one test set; then p-values") for caveat in told)
    assert not any("All runs share" in caveat for caveat in told)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ((3.0, 4.0), "shares the lowest mean error of 3 methods"),
        ((2.0, 3.0), "shares the second lowest mean error of 3 methods"),
        ((2.0, 2.0), "has the third lowest mean error of 3 methods"),
    ],
)
def test_a_tie_is_no_rank_of_its_own(others, said):
    """Whichever order the methods are in."""
    for names in (("bernoulli", "uniform", "gaussian"), ("gaussian", "bernoulli", "uniform")):
        values = dict(zip(("bernoulli", "uniform"), others), gaussian=3.0)
        found = verdict(results_of({name: [values[name]] for name in names}))
        assert found.details == (f"Gaussian {said} (3.00 %).",)


def test_caveats_of_failed_missing_and_size():
    errors = {"gaussian": noisy(2), "bernoulli": noisy(3, seed=1)[:11]}
    results = results_of(
        errors, failed=[("bernoulli", 11)], missing=[("gaussian", 12), ("bernoulli", 12)], paper="Table I, ReLU",
        paper_runs=30, paper_epochs=3000,
    )  # fmt: skip
    caveats = verdict(results).caveats
    assert caveats[0].startswith("1 of 26 runs failed (Bernoulli 1).")
    assert caveats[1] == "2 of 26 runs are not finished yet, so this may change."
    assert caveats[2] == (
        "Not a replication of the paper's Table I, ReLU: 11 to 12 runs of 5 epochs here, 30 of 3000 with the preset "
        "“paper”."
    )
    paper_size = results_of({m: noisy(2, runs=30) for m in METHODS}, paper="Table I", paper_runs=30, paper_epochs=5)
    assert not any("replication" in caveat for caveat in verdict(paper_size).caveats)


@pytest.mark.parametrize(
    ("runs", "epochs", "falls_short"),
    [({"gaussian": 30, "none": 30}, 5, False), ({"gaussian": 31, "none": 31}, 5, False),
     ({"gaussian": 30, "none": 30}, 4, False), ({"gaussian": 30, "none": 29}, 5, True),
     ({"gaussian": 30, "none": 30}, 6, True)],
)  # fmt: skip
def test_table_and_caveats_agree_on_what_is_a_replication(runs, epochs, falls_short):
    """More runs or epochs than the paper's are none the less one; a method with fewer runs makes it none."""
    errors = {method: noisy(2, runs=number) for method, number in runs.items()}
    results = results_of(errors, paper="Table II", paper_runs=30, paper_epochs=epochs)
    results = dataclasses.replace(
        results, protocol=dataclasses.replace(results.protocol, experiment="mnist-cnn-gaussian")
    )
    assert any("Not a replication" in caveat for caveat in verdict(results).caveats) == falls_short
    assert ("no replication" in tables.comparison(analyze(results)).notes[0]) == falls_short


def test_each_method_is_compared_over_the_runs_it_shares():
    errors = {"gaussian": noisy(2), "bernoulli": noisy(3, seed=1), "uniform": dict(enumerate(noisy(3, seed=2)[:3]))}
    results = results_of(errors)
    assert {m: c.runs for m, c in compare(results).items()} == {"bernoulli": 12, "uniform": 3}
    found = verdict(results)
    assert found.outcomes == {"bernoulli": "better", "uniform": "few"}
    assert found.details[-1] == "Too few runs to be compared with uniform."
    assert "Not every method shares 12 runs with Gaussian: uniform 3." in found.caveats


def test_many_names_are_not_all_listed():
    errors = {"bernoulli": noisy(5)} | {f"gaussian:sigma=0.{i}": noisy(3, seed=i) for i in range(1, 10)}
    found = verdict(results_of(errors, reference="bernoulli"))
    assert found.headline.startswith("Bernoulli is worse than every other method, by ")
    errors["none"] = noisy(5, seed=11)
    found = verdict(results_of(errors, reference="bernoulli"))
    assert "Gaussian \N{GREEK SMALL LETTER SIGMA}=0.1, Gaussian \N{GREEK SMALL LETTER SIGMA}=0.2, " in " ".join(
        [found.headline, *found.details]
    )
    assert " and 5 others" in " ".join([found.headline, *found.details])
    assert not any(finding.label == "At equal noise" for finding in found.findings)


def _beyond(errors, method, margin):
    """The larger p-value of scipy's two one-sided tests against the margin."""
    change = np.subtract(errors["gaussian"], errors[method])
    less = scipy_stats.ttest_1samp(change, margin, alternative="less").pvalue
    return max(less, scipy_stats.ttest_1samp(change, -margin, alternative="greater").pvalue)


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
        equivalent = set()
        for rank, method in enumerate(sorted(others, key=lambda m: _beyond(errors, m, 0.2))):
            if _beyond(errors, method, 0.2) * (len(others) - rank) >= 0.05:
                break
            equivalent.add(method)
        for method in others:
            change = np.subtract(errors["gaussian"], errors[method])
            if method in rejected:
                expected = "better" if change.mean() < 0 else "worse"
            else:
                expected = "equivalent" if method in equivalent else "open"
            assert outcomes[method] == expected
            seen.add(expected)
    assert seen == {"better", "worse", "equivalent", "open"}


def test_comparison_agrees_with_the_statistics_where_all_runs_are_shared():
    errors = {m: noisy(2 + i / 10, seed=i) for i, m in enumerate(METHODS)}
    alone = {m: stats.compare_paired(errors["gaussian"], errors[m], margin=0.2) for m in METHODS if m != "gaussian"}
    assert compare(results_of(errors), margin=0.2) == stats.adjusted(alone)


# ---- runs and test examples


def with_answers(errors, images=1000, shared=0.0):
    """Results with wrong answers that give these errors; a share of them on the same images in every run."""
    rng, answers = np.random.default_rng(0), {}
    for method, found in errors.items():
        order = rng.permutation(images)
        for run, error in enumerate(found):
            number = round(error * images / 100)
            same = order[: round(shared * number)]
            rest = rng.choice(order[len(same) :], number - len(same), replace=False)
            answers[method, run] = np.zeros(images, np.float32)
            answers[method, run][[*same, *rest]] = 100
    exact = {method: [answers[method, run].mean() for run in range(len(errors[method]))] for method in errors}
    return dataclasses.replace(results_of(exact), contributions=answers)


def test_a_difference_over_runs_that_other_images_may_not_show_is_called_that():
    errors = {
        m: list(np.random.default_rng(i).choice([3.0 + i / 4, 3.1 + i / 4], 10)) for i, m in enumerate(METHODS[:2])
    }
    found = verdict(with_answers(errors, shared=0.95))
    assert found.outcome == "better"
    assert "On other test examples the difference from Bernoulli may vanish." in (
        found.headline + " ".join(found.details)
    )
    comparison = compare(with_answers(errors, shared=0.95))["bernoulli"]
    assert comparison.interval[1] < 0 < comparison.two_way[1]
    low, high = (f"{end:.2f}".replace("-", "\N{MINUS SIGN}") for end in comparison.two_way)
    text = found.findings[0].text
    assert f" over runs, {low} to {high} over runs and test examples)" in text
    assert text.endswith("the difference may vanish, since the interval over runs and examples includes 0.")
    assert any("only the interval over runs and test examples says" in caveat for caveat in found.caveats)


def test_a_difference_that_other_images_would_show_has_no_such_sentence():
    errors = {"gaussian": [3.0, 3.1] * 5, "bernoulli": [9.0, 9.2] * 5}
    found = verdict(with_answers(errors))
    assert found.outcome == "better"
    assert compare(with_answers(errors))["bernoulli"].two_way[1] < 0
    assert "other test examples" not in " ".join([found.headline, *found.details, found.findings[0].text])


def test_within_the_margin_over_runs_but_not_over_images():
    errors = {"gaussian": [3.0, 3.1] * 10, "bernoulli": [3.1, 3.0, 3.0, 3.1] * 5}
    results = with_answers(errors, shared=0.95)
    found = verdict(results, margin=0.1)
    assert found.outcome == "equivalent"
    assert "On other test examples the difference from Bernoulli may be larger than that." in (
        found.headline + " ".join(found.details)
    )
    assert "may be larger" not in " ".join([(wide := verdict(results, margin=3.0)).headline, *wide.details])


def test_the_interval_over_images_needs_the_answers_of_every_run():
    results = with_answers({"gaussian": [3.0, 3.1] * 5, "bernoulli": [9.0, 9.2] * 5})
    assert compare(results)["bernoulli"].two_way is not None
    fewer = {key: value for key, value in results.contributions.items() if key != ("gaussian", 4)}
    assert compare(dataclasses.replace(results, contributions=fewer))["bernoulli"].two_way is None
    found = verdict(dataclasses.replace(results, contributions=fewer))
    assert "over runs" not in found.findings[0].text
    assert any(caveat.endswith("on these test examples, and not on others.") for caveat in found.caveats)


@pytest.mark.parametrize(
    "reference", ["gaussian:match", "bernoulli-matched:uniform", "a name of their own that does not end"]
)
@pytest.mark.parametrize("spread", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("steps", [(0, 0, 0), (1, 1, 2), (-1, 0.1, 1)])
@pytest.mark.parametrize("margin", [None, 0.2, 5.0])
def test_a_headline_fits_whatever_the_reference_is_called(reference, spread, steps, margin):
    errors = {reference: noisy(12, spread=spread)}
    errors |= {m: noisy(12 + s, spread=spread, seed=i) for i, (m, s) in enumerate(zip(METHODS, steps), 1)}
    found = verdict(results_of(errors, reference=reference), margin=margin)
    assert len(found.headline) <= HEADLINE, found.headline
    significant = [kind in ("better", "worse") for kind in found.outcomes.values()]
    if any(significant) and margin == 5.0:
        assert "below the margin" in found.headline or "that matter" in found.headline


def test_within_the_margin_of_one_and_too_few_runs_of_another():
    errors = {"gaussian": noisy(3, seed=0), "uniform": noisy(3, seed=1), "none": {0: 3.3}}
    found = verdict(results_of(errors, margin=0.5))
    assert found.outcome == "equivalent"
    assert found.headline.startswith("Gaussian is within ±0.50 percentage points of uniform.")
    assert "Too few runs to be compared with no dropout." in f"{found.headline} {' '.join(found.details)}"


def test_the_closest_rival_is_the_one_of_the_runs_that_both_have():
    """A method that failed where the others err much has a low mean, and was never ahead."""
    hard = [1.0, *noisy(5, runs=7)]
    errors = {"gaussian": hard, "uniform": [value - 0.3 for value in noisy(0, 8, 0.01)], "none": {0: 1.5}}
    errors["uniform"] = [value + error for value, error in zip(errors["uniform"], hard)]
    found = verdict(results_of(errors))
    (rival,) = (each for each in found.findings if each.label == "The best of the others")
    assert ", uniform " in rival.text


def test_one_run_is_in_no_family_of_tests():
    pairs = {"gaussian": noisy(2, runs=8), "uniform": noisy(3, runs=8, seed=1)}
    alone, beside = (compare(results_of(errors)) for errors in (pairs, {**pairs, "none": {0: 2.0}}))
    for name in ("t_p_two_sided_holm", "wilcoxon_p_two_sided_holm"):
        assert getattr(beside["uniform"], name) == getattr(alone["uniform"], name)
        assert np.isnan(getattr(beside["none"], name))
    texts = [each.text for each in verdict(results_of({**pairs, "none": {0: 2.0}})).findings]
    assert any("uniform" in text for text in texts)
    assert not any("after correction" in text for text in texts)


def test_a_p_value_shows_on_which_side_of_five_per_cent_it_is():
    texts = [probability(p) for p in (0.0495, 0.04999, 0.05, 0.0501, 0.0504)]
    assert texts == ["p = 0.0495", "p = 0.04999", "p = 0.05", "p = 0.0501", "p = 0.0504"]


def test_runs_beyond_number_are_said_of_one_method_and_the_next_has_its_line():
    errors = {"gaussian": [2e-7 + 1e-9 * run for run in range(6)], "uniform": noisy(100, 6, 50)}
    lines = list(needed_runs([results_of(errors | {"none": noisy(2e-7, 6, 1e-9)})]))
    assert [line.split(":")[0].split(" against")[0] for line in lines] == ["Uniform", "No dropout"]
    assert "no feasible number of runs" in lines[0]
    assert "would find a difference" in lines[1]
