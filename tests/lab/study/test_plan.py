"""The plan: what is done, what is shared, what is selected; and the catalogue that plans are made from."""

import math
from functools import partial

import numpy as np
import pytest

from contdrop import kernels
from contdrop.errors import UserError
from contdrop.lab.analysis.metric_format import Measure
from contdrop.lab.store.schema import FAILED, FINAL, FINISHED, SELECTION, SelectionRecord
from contdrop.lab.store.writer import Store
from contdrop.lab.study import plan as planning
from contdrop.lab.study import selection
from contdrop.lab.study.plan import Variant, add_plan, plan
from contdrop.lab.study.study import Description, Selection, Size, Study
from contdrop.replication import paper_tables, studies
from contdrop.replication.networks import MLP
from contdrop.replication.recipes import Adam
from contdrop.replication.studies.common import Images
from refusals import refusal

EXPERIMENT = Study(
    name="some",
    data=Images("digits", train=60, validation=40),
    model=MLP(widths=(64, 16, 10)),
    reference="gaussian",
    methods=("none", "gaussian", "bernoulli-matched"),
    sizes={
        "paper": Size(runs=3, epochs=4, selection_runs=2),
        "quick": Size(runs=1, epochs=2, selection_runs=1, selection_epochs=1),
    },
    selection=Selection(
        candidates={"gaussian": ("gaussian:sigma=0.2", "gaussian:sigma=0.4")}, follows={"bernoulli-matched": "gaussian"}
    ),
    description=Description(title="Some experiment"),
).replace(**Adam(batch_size=20).settings())


def names(jobs):
    return [(job.stage, job.method, job.run) for job in jobs]


def test_plan_selects_first_and_then_goes_run_by_run():
    jobs = plan(EXPERIMENT, preset="paper")
    assert names(jobs) == [
        *[(SELECTION, f"gaussian:sigma={sigma}", run) for run in range(2) for sigma in ("0.2", "0.4")],
        *[(FINAL, method, run) for run in range(3) for method in EXPERIMENT.methods],
    ]
    assert {job.epochs for job in jobs} == {4}


def test_preset_and_options_change_the_size():
    jobs = plan(EXPERIMENT, preset="quick", labels=["gaussian"], runs=2, epochs=5)
    assert names(jobs)[2:] == [(FINAL, "gaussian", 0), (FINAL, "gaussian", 1)]
    assert [job.epochs for job in jobs] == [1, 1, 5, 5]


def test_selection_is_never_longer_than_the_final_runs():
    sizes = {"quick": Size(runs=1, epochs=6, selection_runs=1, selection_epochs=4)}
    for epochs, expected in ((None, [4, 4, 6]), (4, [4, 4, 4]), (2, [2, 2, 2])):
        jobs = plan(EXPERIMENT.replace(sizes=sizes), labels=["gaussian"], epochs=epochs)
        assert [job.epochs for job in jobs] == expected


def test_only_what_is_needed_is_selected():
    jobs = plan(EXPERIMENT, preset="quick", labels=["none", "gaussian:sigma=0.3"])
    assert names(jobs) == [(FINAL, "none", 0), (FINAL, "gaussian:sigma=0.3", 0)]
    assert plan(EXPERIMENT, labels=["bernoulli-matched"])[0].method == "gaussian:sigma=0.2"


def test_method_is_written_one_way():
    (job,) = plan(EXPERIMENT, preset="quick", labels=[" gaussian:sigma=0.30 "])
    assert job.method == "gaussian:sigma=0.3"


def test_variant_takes_the_selected_parameters():
    none, gaussian, matched = plan(EXPERIMENT, preset="quick")[2:]
    selected = {"gaussian": "gaussian:sigma=0.4"}
    variants = [str(job.variant(selected)) for job in (none, gaussian, matched)]
    assert variants == ["none", "gaussian:sigma=0.4", "bernoulli-matched:sigma=0.4"]


def test_more_runs_keep_the_keys_of_earlier_ones():
    keys = [job.key for job in plan(EXPERIMENT, runs=2)]
    assert keys == [job.key for job in plan(EXPERIMENT, runs=5)][: len(keys)]


@pytest.mark.parametrize("change", [{"epochs": 9}, {"seed": 1}, {"preset": "paper"}])
def test_whatever_changes_results_changes_the_key(change):
    assert plan(EXPERIMENT)[-1].protocol.key != plan(EXPERIMENT, **change)[-1].protocol.key


@pytest.mark.parametrize(
    "change",
    [
        {"data": Images("digits", train=50, validation=40)},
        {"model": MLP(widths=(64, 17, 10))},
        Adam(batch_size=20, learning_rate=0.1).settings(),
        {"batch_size": 21},
        {"clip": 1.0},
        {"candidates": {"gaussian": ("gaussian:sigma=0.2",)}},
        {"data": Images("mnist", train=60, validation=40)},
    ],
)
def test_whatever_changes_the_experiment_changes_the_key(change):
    other = EXPERIMENT.replace(**change)
    assert plan(EXPERIMENT)[-1].key != plan(other)[-1].key


def test_masks_are_a_part_of_the_protocol_and_other_masks_do_not_resume(tmp_path, monkeypatch):
    protocol = plan(EXPERIMENT)[-1].protocol
    key = protocol.key
    assert protocol.configuration["masks"] == kernels.MASKS_VERSION
    with Store(tmp_path / "runs.db", create=True) as store:
        planned = add_plan(store, plan(EXPERIMENT))
        monkeypatch.setattr(planning, "MASKS_VERSION", kernels.MASKS_VERSION + 1)
        assert plan(EXPERIMENT)[-1].protocol.key != key
        said = refusal(add_plan, store, plan(EXPERIMENT))
        assert f"was begun with version {kernels.MASKS_VERSION} of the masks, and this" in said
        assert len(store.jobs()) == len(planned)


def test_words_do_not_change_the_key():
    other = EXPERIMENT.replace(title="Other words", notes=("A note.",), reference="none")
    assert plan(EXPERIMENT)[-1].key == plan(other)[-1].key


OPTIONS = [
    *[{"runs": 0}, {"epochs": -1}, {"seed": -1}, {"preset": "huge"}, {"labels": ["gausian"]}, {"labels": ["none", ""]}],
    *[{"labels": ["none", "none"]}, {"labels": ["uniform", "bernoulli", "bernoulli:keep=0.5"]}],
]


def test_bad_options_get_one_line(refusals):
    refusals("refusals_of_plans", [partial(plan, EXPERIMENT, **options) for options in OPTIONS])


def _selection_jobs(tmp_path, outcomes):
    """A store in which the selection's jobs ended with these validation errors and losses, or failed (None)."""
    jobs = plan(EXPERIMENT, preset="paper")
    protocol = jobs[0].protocol
    with Store(tmp_path / "runs.db", create=True) as store:
        add_plan(store, jobs)
        for record, outcome in zip(store.jobs(), outcomes):
            if outcome is None:
                store.fail(record.id, "diverged")
            else:
                store.finish(record.id, [], dict(zip(("val_error", "val_loss"), outcome)), {})
        records = store.jobs()
    assert {r.status for r in records[: len(outcomes)]} <= {FINISHED, FAILED}
    return protocol, records


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        ([(2.0, 1), (1.0, 1), (2.0, 1), (2.5, 1)], "gaussian:sigma=0.4"),  # means 2.0 and 1.75
        ([(2.0, 1), (2.0, 3), (2.0, 5), (2.0, 2)], "gaussian:sigma=0.4"),  # equal errors; losses 3 and 2.5
        ([(2.0, 1), (2.0, 1), (2.0, 1), (2.0, 1)], "gaussian:sigma=0.2"),  # equal in all: named first
        ([(9.0, 1), None, (9.0, 1), (1.0, 1)], "gaussian:sigma=0.2"),  # one that fails is out
        ([None, None, None, None], None),
    ],
)
def test_lowest_mean_validation_error_is_selected(tmp_path, outcomes, chosen):
    decision = _decide(_selection_jobs(tmp_path, outcomes))
    assert decision.variant == chosen
    assert set(decision.candidates) == set(EXPERIMENT.selection.candidates["gaussian"])


def test_nothing_is_selected_before_all_candidates_are_done(tmp_path):
    assert _decide(_selection_jobs(tmp_path, [(1.0, 1)] * 3)) is None


def _decide(found):
    protocol, records = found
    candidates = EXPERIMENT.selection.candidates["gaussian"]
    return selection.decide(protocol.key, "gaussian", candidates, protocol.selection_runs, records, Measure())


def test_lead_of_the_selected_candidate(tmp_path):
    """Differences by run, other minus selected: 1.0 and 0.2. Student's interval by hand: t of 1 degree is 12.706."""
    decision = _decide(_selection_jobs(tmp_path, [(2.0, 1), (1.0, 1), (2.0, 1), (1.8, 1)]))
    assert decision.candidates["gaussian:sigma=0.4"]["val_errors"] == [1.0, 1.8]
    found = selection.lead(decision)
    reach = 12.706204736 * math.sqrt(0.32) / math.sqrt(2)
    assert (found.runner_up, found.runs) == ("gaussian:sigma=0.2", 2)
    assert (found.difference, found.spread) == pytest.approx((0.6, 0.6))
    assert found.interval == pytest.approx((0.6 - reach, 0.6 + reach))
    assert not found.is_clear
    (tmp_path / "other").mkdir()
    clear = selection.lead(_decide(_selection_jobs(tmp_path / "other", [(2.0, 1), (1.0, 1), (2.12, 1), (1.1, 1)])))
    assert clear.is_clear


def test_no_lead_without_a_second_candidate_or_single_runs():
    def made(candidates):
        return SelectionRecord("key", "gaussian", "a", "reason", candidates, 0.0)

    scores = {"val_error": 1.0, "val_loss": 1.0, "val_errors": [1.0]}
    assert selection.lead(made({"a": scores})) is None
    assert selection.lead(made({"a": scores, "b": {"failed": 1}})) is None
    assert selection.lead(made({name: {"val_error": 1.0, "val_loss": 1.0} for name in "ab"})) is None
    one_run = selection.lead(made({"a": scores, "b": scores}))
    assert one_run.runs == 1
    assert not one_run.is_clear


# ---- the catalogue


def test_studies_are_found_by_the_name_of_a_group_or_their_own():
    assert [e.name for e in studies.find("mnist-mlp")] == ["mnist-mlp-sigmoid", "mnist-mlp-relu"]
    assert "unknown experiment 'mnist-mpl'; did you mean 'mnist-mlp'" in refusal(studies.find, "mnist-mpl")
    for name in ("mnist-mlp-sigmoid", "mnist-mlp-relu", "mnist-cnn-gaussian", "mnist-cnn-uniform"):
        assert studies.find(name)[0].name in paper_tables.TABLES


@pytest.mark.parametrize("experiment", studies.STUDIES.values(), ids=list(studies.STUDIES))
def test_every_experiment_can_be_planned_and_built(experiment):
    for preset in experiment.sizes:
        for job in plan(experiment, preset=preset, runs=1):
            chosen = {label: variants[-1] for label, variants in experiment.selection.candidates.items()}
            try:
                job.protocol.study.model(job.variant(chosen).method)
            except UserError as error:  # published weights, which not every machine has
                if "the weights are missing" not in str(error):
                    raise
                break
        assert not experiment.selection.candidates or experiment.sizes[preset].selection_runs >= 3
    assert "quick" in experiment.sizes
    assert experiment.reference in experiment.methods
    if experiment.description.paper:
        assert experiment.sizes["paper"].epochs >= experiment.sizes["quick"].epochs


@pytest.mark.parametrize("experiment", studies.STUDIES.values(), ids=list(studies.STUDIES))
def test_every_continuous_law_of_a_table_has_its_control(experiment):
    if experiment.name.startswith("mnist-sigma") or experiment.name in studies.GROUPS["replication"]:
        # a sweep of widths, against Bernoulli; tests/replication/studies/test_dose.py has those of the replication
        return
    if experiment.name in studies.GROUPS["evidence"] and not experiment.name.startswith(("table1", "cifar10")):
        return  # strengths by name, or the Gaussian's control alone
    if experiment.name == "mnist-certificate":
        return  # bounds on the error of each network, not a comparison
    jobs = [job for job in plan(experiment, preset="quick", runs=1) if job.stage == FINAL]
    chosen = {label: variants[-1] for label, variants in experiment.selection.candidates.items()}
    noise = {job.method: job.variant(chosen).method.noise(job.protocol.study.scale) for job in jobs}
    for law, control in (("gaussian", "bernoulli-matched"), ("uniform", "bernoulli-matched:uniform")):
        assert noise[control] == pytest.approx(noise[law])
    if experiment.scale == "paper" and not experiment.name.startswith(("mnist-epochs", "mnist-covariance")):
        assert noise["none:mean=0.5"] == pytest.approx({"mean": noise["gaussian"]["mean"], "relative_variance": 0})
    else:
        assert "none:mean=0.5" not in noise


def test_convolutional_networks_scale_masks_as_caffe_does():
    for name in ("mnist-cnn-gaussian", "mnist-cnn-uniform"):
        assert studies.STUDIES[name].scale == "inverted"
        said = refusal(plan, studies.STUDIES[name], labels=["none:mean=0.5"])
        assert "none:mean=0.5: expected masks that are not rescaled" in said


def test_experiments_of_the_authors_code():
    sigmoid, relu = studies.find("mnist-mlp-authors")
    assert (sigmoid.name, relu.name) == ("mnist-mlp-sigmoid-authors", "mnist-mlp-relu-authors")
    assert (sigmoid.model.initialisation.gain, relu.model.initialisation.gain) == (4.0, 1.0)
    for each in (sigmoid, relu):
        assert each.optimizer.__self__.kind == "authors"
        assert set(paper_tables.table_of(each.name).results) <= set(each.methods)
        jobs = plan(each, preset="quick", runs=1, labels=["adaptive-authors"])
        assert str(jobs[-1].variant({"adaptive": "adaptive:alpha=0,beta=0.5"})) == "adaptive-authors:alpha=0,beta=0.5"


def test_candidate_may_change_the_learning_rate():
    assert str(Variant.parse("gaussian:sigma=0.2@0.50")) == "gaussian:sigma=0.2@0.5"
    assert str(Variant.parse("none@1")) == "none"
    assert str(Variant.parse("none@2")) == "none@2"
    assert Variant.parse(str(Variant.parse("none@0.33333333"))).rate == 0.33333333
    for text in ("none@x", "none@0", "none@-1", "none@inf"):
        assert "expected a factor of the learning rate behind @" in refusal(Variant.parse, text)


def test_numpy_numbers_plan_the_same_jobs_as_python_numbers():
    numbers = {"runs": 2, "epochs": 3, "seed": 7}
    numpy = {name: np.int64(value) for name, value in numbers.items()}
    for make in (lambda given: plan(EXPERIMENT, **given), lambda given: plan(EXPERIMENT.replace(sizes={}, **given))):
        assert [job.key for job in make(numpy)] == [job.key for job in make(numbers)]
