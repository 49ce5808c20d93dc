"""The verdict in sentences: it claims what the tests support, and no more."""

import dataclasses

import numpy as np
import pytest
from scipy import stats as scipy_stats

from contdrop.lab import stats
from contdrop.lab.analysis import verdict as verdicts
from contdrop.lab.analysis.comparisons import ALPHA, compare, outcome_of, wilcoxon_rejects
from contdrop.lab.analysis.margin import margin_of
from contdrop.lab.analysis.metric_format import probability
from contdrop.lab.analysis.sample_size import needed_runs
from contdrop.lab.analysis.verdict import HEADLINE, analyze, verdict
from contdrop.lab.report import tables
from contdrop.lab.store.results import Results
from contdrop.lab.store.schema import FAILED, FINISHED, PLANNED, JobRecord, ProtocolRecord

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


def with_noise(results, rest, key="relative_variance", **by_method):
    """Set a figure of the noise of some methods by their names, and of the rest."""
    for each in results.final:
        value = by_method.get(each.method.partition(":")[0].replace("-", "_"), rest)
        each.results[key] = value
    return results


def configured(results, **configuration):
    results.protocol.configuration.update(configuration)
    return results


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


def against_control(reference, control, kind):
    """Results against a control of the noise as known, unknown, or against none."""
    errors = {reference: noisy(2), control: noisy(3, seed=1), "bernoulli-matched": noisy(1.5, seed=2)}
    results = results_of({m: e for m, e in errors.items() if kind != "no" or m != control}, reference=reference)
    for each in results.final:
        if kind == "unknown" and each.method == control:
            del each.results["relative_variance"]
    return results


BASE = noisy(3, runs=30)
CLOSE, FAR = ([e + step + 0.01 * (-1) ** run for run, e in enumerate(BASE)] for step in (0.05, 1))
SEVEN = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02)
TEN = noisy(3, runs=10)
STEPS = levels(dict(zip(METHODS, (2, 3, 4, 5))))
MATCHED = levels({"original": 2, "gaussian:match": 3, "uniform:match": 4})
PAIR = levels(dict.fromkeys(METHODS[:2], 3))
LABELS = [f"gaussian:sigma=0.{i}:mean=0.12345678" for i in range(1, 10)]
LONG = {"bernoulli": noisy(4)} | {m: noisy(3 if i % 2 else 5, seed=i) for i, m in enumerate(LABELS)}
WILD = {"gaussian": noisy(3, spread=1), "uniform": noisy(3.01, spread=1, seed=1)}
MOVED = {"changes": [{"time": 1.0, "what": "margin", "before": None, "after": 0.2, "results": 6}]}
PLANNED_MARGIN = {"margin": 0.2, "margin_reason": "half of the paper's gap."}
SIGMAS = {"bernoulli": noisy(5)} | {f"gaussian:sigma=0.{i}": noisy(3, seed=i) for i in range(1, 10)}
ROUNDED = [0.3, 0.7, 1.1, 1.15, 1.4]  # which differ by 0.2 in several ways
HARD = [1.0, *noisy(5, runs=7)]
SHARED = {m: list(np.random.default_rng(i).choice([3.0 + i / 4, 3.1 + i / 4], 10)) for i, m in enumerate(METHODS[:2])}
CASES = {
    "better than all": results_of(STEPS),
    "better and worse": results_of({"gaussian": noisy(3), "bernoulli": noisy(4, seed=1), "uniform": noisy(2, seed=2)}),
    "worse": results_of({"gaussian": noisy(3), "uniform": noisy(2, seed=2)}),
    "a gain by the strength of the noise": results_of(
        levels({"gaussian": 2.0, "bernoulli": 3.0, "bernoulli-matched": 2.0}, spread=0.02, runs=20)
    ),
    # The shape may make as much of a difference as the whole gain, and the equivalence test would not see it.
    "a gain within the margin": results_of(
        levels({"gaussian": 2.0, "bernoulli": 2.1, "bernoulli-matched": 2.005}, spread=0.02, runs=20)
    ),
    "a control with other noise": with_noise(results_of(STEPS), rest=0.3, bernoulli_matched=0.156),
    "a control with masks of another mean": with_noise(results_of(STEPS), rest=0.5, key="mean", bernoulli_matched=0.77),
    "a control with masks of the same mean": with_noise(results_of(STEPS), rest=0.5, key="mean"),
    "unscaled masks without means": configured(results_of(STEPS), recipe={"scale": "paper"}),
    "scaled masks without means": configured(results_of(STEPS), recipe={"scale": "inverted"}),
    **{
        f"{kind} control of {reference}": against_control(reference, control, kind)
        for reference, control in {
            "uniform": "bernoulli-matched:uniform",
            "gaussian:sigma=0.3": "bernoulli-matched:sigma=0.3",
            "gaussian:match": "original",
            "gaussian:r=0.3": "bernoulli:r=0.3",
            "uniform:r=0.3": "bernoulli:r=0.3",
        }.items()
        for kind in ("known", "unknown", "no")
    },
    "a law weaker than its name says": with_noise(results_of(MATCHED, reference="original"), 1.0, uniform=1 / 3),
    "a weaker law in few runs": with_noise(
        results_of({m: e[:3] for m, e in MATCHED.items()}, reference="original"), 1.0, uniform=1 / 3
    ),
    "laws about as strong as they say": with_noise(results_of(MATCHED, reference="original"), 1.0, uniform=0.995),
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
    "alike": results_of({m: noisy(3, spread=0.02, runs=20, seed=i) for i, m in enumerate(METHODS)}),
    "alike in wild runs": results_of({m: noisy(3, spread=1.0, seed=i) for i, m in enumerate(METHODS)}),
    "one other that is open": results_of(WILD),
    "two others that are open": results_of({**WILD, "none": noisy(3.01, spread=1, seed=2)}),
    "a planned margin": results_of(PAIR, **PLANNED_MARGIN),
    "a planned margin, another chosen": (results_of(PAIR, **PLANNED_MARGIN), 1.0),
    "a margin that has changed": results_of(PAIR, **PLANNED_MARGIN, **MOVED),
    "a margin that has changed, another chosen": (results_of(PAIR, **PLANNED_MARGIN, **MOVED), 1.0),
    "a large margin chosen afterwards": (results_of(PAIR), 1.0),
    "a small margin chosen afterwards": (results_of(PAIR), 0.001),
    "long names": results_of(LONG, reference="bernoulli"),
    "long names below the margin": (results_of(LONG, reference="bernoulli"), 1.5),
    "many names": results_of(SIGMAS, reference="bernoulli"),
    "many names and an open one": results_of(SIGMAS | {"none": noisy(5, seed=11)}, reference="bernoulli"),
    "a split and a recipe": configured(results_of(STEPS), split={"train": 50_000}, recipe={"scale": "inverted"}),
    "a loop of one's own": configured(results_of(STEPS), run={"name": "run"}),
    "failed, missing and fewer than the paper's": results_of(
        {"gaussian": noisy(2), "bernoulli": noisy(3, seed=1)[:11]}, failed=[("bernoulli", 11)],
        missing=[("gaussian", 12), ("bernoulli", 12)], paper="Table I, ReLU", paper_runs=30, paper_epochs=3000,
    ),
    "as many as the paper's": results_of(
        levels(dict.fromkeys(METHODS, 2), runs=30), paper="Table I", paper_runs=30, paper_epochs=5
    ),
    "few runs of one method": results_of(
        {**levels({"gaussian": 2, "bernoulli": 3}), "uniform": dict(enumerate(noisy(3, seed=2)[:3]))}
    ),
    "within the margin of one, one run of another": results_of({**PAIR, "none": {0: 3.3}}, margin=0.5),
    # A method that failed where the others err much has a low mean, and was never ahead.
    "the closest rival in shared runs": results_of(
        {"gaussian": HARD, "uniform": np.add(noisy(-0.3, 8, 0.01), HARD).tolist(), "none": {0: 1.5}}
    ),
    "other images may not show the difference": with_answers(SHARED, shared=0.95),
    "other images would show the difference": with_answers({"gaussian": [3.0, 3.1] * 5, "bernoulli": [9.0, 9.2] * 5}),
    "within the margin over runs but not over images": (
        with_answers({"gaussian": [3.0, 3.1] * 10, "bernoulli": [3.1, 3.0, 3.0, 3.1] * 5}, shared=0.95), 0.1,
    ),
    "within the margin over runs and over images": (
        with_answers({"gaussian": [3.0, 3.1] * 10, "bernoulli": [3.1, 3.0, 3.0, 3.1] * 5}, shared=0.95), 3.0,
    ),
    **{f"a tie, {list(order)}, {others}": results_of({name: [values[name]] for name in order})
       for others in ((3.0, 4.0), (2.0, 3.0), (2.0, 2.0))
       for values in (dict(zip(("bernoulli", "uniform"), others), gaussian=3.0),)
       for order in (("bernoulli", "uniform", "gaussian"), ("gaussian", "bernoulli", "uniform"))},
    **{f"unscaled masks with the means of {known}": configured(
        with_noise(results_of({"gaussian": noisy(2), "bernoulli-matched": noisy(3, seed=1)}), None, "mean", **known),
        recipe={"scale": "paper"},
       ) for known in ({}, {"gaussian": 0.5}, {"bernoulli_matched": 0.5}, {"gaussian": 0.5, "bernoulli_matched": 0.5})},
    "means of the runs that every method has": results_of(
        {"gaussian": {0: 9.0, 1: 2.0}, "none": {1: 3.0}, "uniform": {1: 4.0}}
    ),
    "no finished run of the reference": results_of(
        levels(dict.fromkeys(METHODS[1:], 3)), failed=[("gaussian", run) for run in range(12)], margin=0.1
    ),
    # With a small spread two runs have the power, but nothing is said of fewer than six.
    "a small spread": results_of(levels(dict.fromkeys(METHODS[:2], 3), spread=0.001), margin=0.5),
    "runs that differ alike but for rounding": results_of(
        {"gaussian": ROUNDED, "bernoulli": [error - 0.2 for error in ROUNDED]}, margin=0.1
    ),
    "the highest value wins": results_of(
        levels({"none": 2.0, "bernoulli": 3.0, "gaussian": 6.0, "uniform": 9.0}),
        metric={"name": "mean IoU", "unit": "", "better": "higher"},
    ),
    "runs beyond number of one method": results_of(
        {"gaussian": [2e-7 + 1e-9 * run for run in range(6)], "uniform": noisy(100, 6, 50),
         "none": noisy(2e-7, 6, 1e-9)}
    ),
}  # fmt: skip


def test_verdicts(snapshot):
    """Every sentence, for results of every kind."""
    parts = []
    for name, case in CASES.items():
        found = verdict(*case) if isinstance(case, tuple) else verdict(case)
        outcomes = ", ".join(f"{method} {outcome}" for method, outcome in found.outcomes.items())
        parts += [f"## {name}", f"{found.outcome}: {found.headline}", *found.details, f"[{outcomes}]"]
        parts += [f"- {each.label} ({each.outcome}; {each.gap}): {each.text}" for each in found.findings]
        parts += [f"* {caveat}" for caveat in found.caveats]
        parts += [*(f"> {line}" for line in needed_runs(case[:1] if isinstance(case, tuple) else [case])), ""]
        assert len(found.headline) <= HEADLINE
    snapshot("verdicts", "\n".join(parts))


def test_complete_runs_are_those_that_every_method_has():
    errors = {"gaussian": {0: 1.0, 1: 1.0, 2: 1.0}, "none": {1: 1.0, 2: 1.0, 3: 1.0}, "uniform": {2: 1.0, 1: 1.0}}
    assert results_of(errors).complete_runs() == (1, 2)
    assert results_of({**errors, "uniform": {7: 1.0}}).complete_runs() == ()
    assert results_of({}, missing=[("none", 0)]).complete_runs() == ()


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


def test_the_margin_is_the_experiments_and_one_chosen_afterwards_is_called_that():
    planned, moved = CASES["a planned margin"], CASES["a margin that has changed"]
    assert margin_of(planned) == compare(planned)["bernoulli"].margin == 0.2
    assert compare(planned, 1.0)["bernoulli"].margin == 1.0
    assert margin_of(results_of(PAIR)) == pytest.approx(0.3)
    for results, words in (
        (planned, "points, fixed by the experiment;"),
        (moved, "points, chosen by the experiment when results were there;"),
    ):
        assert any(words in note for note in tables.differences(analyze(results)).notes)


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
    shown = [probability(p) for p in (0.0495, 0.04999, 0.05, 0.0501, 0.0504)]  # on which side it is
    assert shown == ["p = 0.0495", "p = 0.04999", "p = 0.05", "p = 0.0501", "p = 0.0504"]


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


def test_one_run_is_in_no_family_of_tests():
    pairs = {"gaussian": noisy(2, runs=8), "uniform": noisy(3, runs=8, seed=1)}
    alone, beside = (compare(results_of(errors)) for errors in (pairs, {**pairs, "none": {0: 2.0}}))
    for name in ("t_p_two_sided_holm", "wilcoxon_p_two_sided_holm"):
        assert getattr(beside["uniform"], name) == getattr(alone["uniform"], name)
        assert np.isnan(getattr(beside["none"], name))
    texts = [each.text for each in verdict(results_of({**pairs, "none": {0: 2.0}})).findings]
    assert any("uniform" in text for text in texts)
    assert not any("after correction" in text for text in texts)
