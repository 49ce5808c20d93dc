"""Studies: what they accept, how mistakes in them are told, and that they pair whatever they train."""

import dataclasses
import html
import pathlib
import random
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.data.data import prepare
from contdrop.lab.store import merge
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments, dry_run
from contdrop.lab.study import source as sources
from contdrop.lab.study.plan import plan

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(120, 5, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def data():
    return lab.Data(train=(X, Y), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


STUDY = lab.Study("some", data, model, epochs=2, runs=2, batch_size=16)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a/b"}, "expected a name of letters"),
        ({"task": "clustering"}, "expected task to be one of 'classification', 'regression', None; got 'clustering'"),
        ({"epochs": 0}, "expected epochs to be a whole number of at least 1; got 0"),
        ({"runs": 2.5}, "expected runs to be a whole number of at least 1; got 2.5"),
        ({"seed": -1}, "expected seed to be a whole number from 0"),
        ({"evaluate": "never"}, "expected evaluate to be 'epoch', 'last' or a whole number"),
        ({"clip": -1.0}, "expected clip to be a number above 0"),
        ({"model": nn.Linear(5, 2)}, "expected model to be a function that makes the model"),
        ({"loss": nn.CrossEntropyLoss()}, "write loss=lambda output, batch: nn.CrossEntropyLoss()(output, batch[1])"),
        ({"model": None}, "expected a function model, or run= for a loop of your own; got neither"),
        ({"model": lambda a, b: None}, "expected model to take no argument, or the method; it takes 2"),
        ({"data": 3}, "expected data to be a function; got int"),
        ({"methods": ["gausian"]}, "did you mean 'gaussian'?"),
        ({"methods": ["none", "none"]}, "expected each method once"),
        ({"methods": "none"}, "expected methods to be a list of labels"),
        ({"methods": ["none", "gaussian"]}, "the reference is not among the methods"),
        ({"task": None}, "without a task, give loss= and metric="),
        ({"keep": "best", "evaluate": "last"}, "need validation data in every epoch"),
        ({"candidates": ["none"]}, "expected candidates to be a dictionary by label; got list"),
        ({"candidates": {"nonne": ["none"]}}, "did you mean 'none'?"),
        ({"candidates": {"gaussian": ["gaussian"]}}, "candidates: 'gaussian' is not among the methods"),
        ({"candidates": {"none": ["uniform@2"]}}, "candidates['none'] to be variants of none; got 'uniform@2'"),
        ({"candidates": {"none": [0.1, 0.2]}}, "expected candidates['none'] to be a list of labels; got [0.1, 0.2]"),
        ({"candidates": {"none": None}}, "expected candidates['none'] to be a list of labels; got None"),
        ({"candidates": {1: ["none"]}}, "expected candidates[1] to be a list of labels"),
        ({"candidates": {"none": ["none", "none"]}}, "expected each of candidates['none'] once; got 'none', 'none'"),
        ({"methods": ["original", "own:mixup"]}, "expected a function that knows own:mixup, def model(method) or run="),
        ({"methods": ["original", "own"]}, "expected own: and a name"),
        ({"run": print, "measure": print}, "a loop of your own (run=) does not use measure"),
        ({"run": print, "keep": "best"}, "a loop of your own (run=) does not use keep"),
        ({"follows": {"none": 1}}, "follows: 1 has no candidates"),
        ({"follows": {"none": "original"}}, "follows: 'original' has no candidates; known: none"),
    ],
)
def test_bad_settings_get_one_line(change, message):
    with pytest.raises(UserError) as caught:
        STUDY.replace(**change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def rehearse(**change):
    study = STUDY.replace(**change)
    return dry_run.dry_run(plan(study), prepare(study.data(), task=study.task))


def test_rehearsal_says_what_was_changed_and_how_large_it_is():
    found = rehearse()
    assert found.sizes == (66, 24, 30)
    assert found.parameters == 5 * 8 + 8 + 8 * 2 + 2
    assert found.sites["gaussian:match"] == "1 of 1 dropout site changed"
    assert set(found.behaviour["methods"]) == set(lab.METHODS)


def broken_model():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))


def unseeded_model():
    made = model()
    with torch.no_grad():
        made[0].weight.copy_(torch.rand(8, 5, generator=UNSEEDED))
    return made


UNSEEDED = torch.Generator().manual_seed(1)


def other_data():
    return lab.Data(train=(X + torch.rand((), generator=UNSEEDED), Y), test=0.25)


def test_rehearsal_counts_the_memory_of_a_step():
    """By hand, with AdamW's two moments and its count of steps beside each parameter."""
    study = STUDY.replace(methods=("original", "none", "bernoulli:match"))
    found = dry_run.dry_run(plan(study), prepare(data(), task="classification")).memory
    weights, tensors, batch = 5 * 8 + 8 + 8 * 2 + 2, 4, 16
    held = 4 * 4 * weights + 4 * tensors
    x, hidden, loss = 4 * 5 * batch, 4 * 8 * batch, 4 * 2 * batch + 8 * batch + 4
    assert found["none"] == held + x + hidden + loss
    assert found["original"] == found["none"] + 2 * hidden  # the mask, in floats, and what it was multiplied with
    assert found["none"] < found["bernoulli:match"] < found["original"]  # the mask is made again, not kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": broken_model}, "original: training step: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ({"model": unseeded_model}, "start from different weights"),
        (
            {"methods": ["original"], "model": unseeded_model},
            "two calls of model() with one seed give different weights",
        ),
        ({"data": other_data}, "two calls of data() return different data"),
        ({"loss": lambda output, batch: torch.tensor(1.0)}, "the loss does not depend on the model"),
        ({"loss": lambda output, batch: output.sum() * torch.nan}, "the loss of the first batch is nan"),
        ({"loss": lambda output, batch: output.mean(1)}, "expected the loss to be one number"),
        ({"model": lambda: nn.Linear(5, 2)}, "the model has no dropout layer that a method could replace"),
        ({"model": lambda: 3}, "expected model() to return a torch.nn.Module; got int"),
        ({"task": "regression"}, "regression"),
        (
            {"metric": lab.Metric("mine", lambda output, batch: output.mean(0, keepdim=True))},
            "metric mine: expected of= to give [examples] or [examples, k] for",
        ),
        ({"optimizer": lambda network: 1 / 0}, "ZeroDivisionError: division by zero (test_study.py, line"),
        (
            {"data": lambda: lab.Data(train=(X, Y), test=(X[:, 1:], Y))},
            "evaluation of test data, whose rows have shape [4] in test[0] and [5] in train[0]: RuntimeError: mat1",
        ),
        (
            {"measure": lambda network, parts, seed: {"a": 1 / 0}},
            "original: measure: ZeroDivision",
        ),
        (
            {"candidates": {"none": ["none", "none@0"]}, "methods": ["original", "none"]},
            "candidate 'none@0': expected a factor of the learning rate behind @",
        ),
    ],
)
def test_mistakes_are_told_in_one_line_before_training(change, message):
    with pytest.raises(UserError) as caught:
        rehearse(**change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_one_batch_is_too_little_for_gets_all_of_the_data():
    """Files on a disk are often sorted by class, and a metric may need two."""
    order = torch.argsort(Y)

    def of_both(values):
        if len(set(values[:, 1])) < 2:
            raise ValueError("one class only")
        return 1.0

    def measured(network, parts, seed):
        if len(parts.test) < len(Y):
            raise ValueError("too few")
        return {"size": len(parts.test)}

    metric = lab.Metric.whole("both", lambda output, batch: torch.stack([output[:, 1], batch[1]], 1), of_both)
    sorted_by_class = lab.Data((X, Y), (X[order], Y[order]), validation=0.2)
    rehearse(data=lambda: sorted_by_class, metric=metric, measure=measured, evaluation_batch_size=8)


def test_parameters_without_a_gradient_are_named():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = model(), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    assert rehearse(model=Half).warnings == ("no gradient reaches unused.weight, unused.bias",)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (list, ()),
        (
            lambda: [nn.Softmax(1)],
            ("outputs look like those of a Softmax, but the loss, cross-entropy, expects logits",),
        ),
        (
            lambda: [nn.LogSoftmax(1)],
            ("outputs look like those of a LogSoftmax, which the loss, cross-entropy, applies",),
        ),
        (
            lambda: [nn.Linear(2, 1), nn.Sigmoid()],
            ("outputs look like those of a Sigmoid, but the loss expects logits",),
        ),
        (lambda: [nn.Linear(2, 1)], ()),
    ],
)
def test_probabilities_in_place_of_logits_are_noted(last, words):
    found = rehearse(model=lambda: nn.Sequential(model(), *last())).warnings
    assert len(found) == len(words)
    assert all(warning.startswith(word) for warning, word in zip(found, words))


def test_losses_of_the_users_own_may_take_probabilities():
    loss = lambda output, batch: nn.functional.nll_loss(output, batch[1])  # noqa: E731
    assert rehearse(model=lambda: nn.Sequential(model(), nn.LogSoftmax(1)), loss=loss).warnings == ()


def test_one_hot_labels_and_missing_values_are_noted():
    x = X.clone()
    x[5, 1] = torch.nan

    class Patient(nn.Sequential):
        def forward(self, x):
            return super().forward(torch.nan_to_num(x))

    found = rehearse(
        data=lambda: lab.Data(train=(x, nn.functional.one_hot(Y).float()), test=0.25), model=lambda: Patient(model())
    ).warnings
    assert found[0].startswith("labels look one-hot")
    assert found[1:] == ("train[0] has nan or infinity in 1 of 120 examples, first in 5",)


def test_classes_count_as_the_model_is_shown_them():
    """What collate makes of labels is what has to have an output."""
    train = [(x, y + 1) for x, y in zip(X, Y)]

    def collate(items):
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items]) - 1

    rehearse(data=lambda: lab.Data(train=train, test=0.25, collate=collate))
    rehearse(data=lambda: lab.Data(train=(X, Y + 1), test=0.25, collate=collate))
    with pytest.raises(UserError, match="train has 1 to 2; number them from 0: y - 1"):
        rehearse(data=lambda: lab.Data(train=train, test=0.25))
    rare = Y.clone()
    rare[-1] = 9
    with pytest.raises(UserError, match=r"test has 0 to 9.*or let the model return 10"):
        rehearse(data=lambda: lab.Data(train=(X, Y), test=(X, rare)))


# ---- comparisons


def compare(tmp_path, **change):
    study = STUDY.replace(**change)
    return lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)


def test_comparison_in_this_process(tmp_path):
    result = compare(tmp_path, weights="last")
    assert set(result.results.errors()) == set(lab.METHODS)
    assert all(set(runs) == {0, 1} for runs in result.results.errors().values())
    assert "<table>" in result._repr_html_()
    assert result.verdict.headline in str(result)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # a notebook shows it
    assert result.report(tmp_path / "page").exists()
    trained = result.model("gaussian:match", 1)
    with Store(tmp_path / "runs.db") as store:
        job = result.results.job("gaussian:match", 1)
        kept = store.artefact(job.id, "test_error")
        order = prepare(data(), task="classification").parts(0, "final", 1).test
    (x, y) = next(iter(order.batches(order.order(None, 100))))
    with torch.no_grad():
        wrong = 100.0 * (trained(x).argmax(1) != y)
    assert np.array_equal(kept, wrong.numpy())
    with pytest.raises(UserError, match="gausian run 0 is not among the results; did you mean 'gaussian:match'"):
        result.model("gausian", 0)


def decayed(method):
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    network.decay = {"own:decay 0.1": 0.1, "own:decay 10": 10.0}.get(str(method), 0.0)
    return network


def with_decay(network):
    return torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=network.decay)


REGULARISED = lab.Study(
    "regularisers",
    data,
    decayed,
    methods=["none", "own:decay 0.1", "own:decay 10"],
    reference="none",
    optimizer=with_decay,
    epochs=3,
    runs=2,
    selection=lab.Selection(runs=1),
)


def test_methods_of_ones_own_are_compared_like_any(tmp_path):
    result = lab.compare(REGULARISED, store=tmp_path / "runs.db", workers=0, progress=False)
    errors = result.results.errors()
    # All started from the same weights, as the lab has proven, and the strong decay has forgotten everything.
    assert sum(errors["own:decay 10"].values()) > sum(errors["none"].values())
    text = str(result)
    assert "decay 0.1" in text
    assert "own:" not in text
    assert "by unit" not in text  # nothing is said of the noise of what may have none
    page = result.report(tmp_path / "page").read_text(encoding="utf-8")
    assert "as the study has it" in page
    assert "differs from unit to unit" not in page


def test_a_method_of_ones_own_is_selected_among_its_variants(tmp_path):
    variants = {"own:decay": ["own:decay 0.1", "own:decay 10"]}
    study = REGULARISED.replace(methods=["none", "own:decay"], candidates=variants)
    result = lab.compare(study, store=tmp_path / "runs.db", workers=0, progress=False)
    assert result.results.selections["own:decay"].variant == "own:decay 0.1"
    assert result.results.variants()["own:decay"] == "own:decay 0.1"


def test_a_loop_of_ones_own_knows_its_methods(tmp_path):
    def run(job):
        network = job.build(model)
        return network[0].weight.detach().sum().item() + (job.method == "own:heavy")

    study = lab.Study("loop", run=run, methods=["original", "own:heavy"], metric=lab.Metric("loss"), runs=2)
    errors = lab.compare(study, store=tmp_path / "runs.db", workers=0, progress=False).results.errors()
    assert errors["own:heavy"] == pytest.approx({run: value + 1 for run, value in errors["original"].items()})
    with pytest.raises(UserError, match="own:light is not a method of the study"):
        plan(study, labels=["original", "own:light"])


def test_the_reference_is_the_one_that_was_asked_for(tmp_path):
    values = {"original": [3.0, 3.1, 2.9, 3.2, 3.0, 3.1], "bernoulli:match": [2.0, 2.2, 2.1, 1.9, 2.0, 2.1]}
    for reference in values:
        assert lab.analyze(values, reference=reference, metric="rmse").results.reference == reference
    result = compare(tmp_path, methods=["original", "none", "bernoulli:match"], reference="bernoulli:match")
    assert result.results.reference == "bernoulli:match"


def test_a_candidate_of_two_methods_is_trained_once():
    both = ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]
    study = STUDY.replace(
        methods=["original", "gaussian", "gaussian:sigma=0.3"],
        candidates={"gaussian": both, "gaussian:sigma=0.3": both[::-1]},
    )
    jobs = plan(study)
    assert len({job.key for job in jobs}) == len(jobs) == 3 * 2 + 2 * 3


def test_the_page_of_a_study_is_of_that_study_alone(tmp_path):
    compare(tmp_path, name="other", methods=("original", "none"), runs=1)
    result = compare(tmp_path, name="mine", methods=("original", "none"), runs=1)
    text = html.unescape(result.report(tmp_path / "page").read_text(encoding="utf-8"))
    assert "study is the one named 'mine'" in text
    assert "named 'other'" not in text


def test_groups_of_test_examples_are_kept_and_are_what_varies(tmp_path):
    groups = torch.arange(len(X)) // 6
    result = compare(tmp_path, data=lambda: lab.Data((X, Y), 0.25, 0.2, groups=groups), methods=("original", "none"))
    job = result.results.job("none", 0)
    with Store(tmp_path / "runs.db") as store:
        kept, wrong = (store.artefact(job.id, f"test_{name}") for name in ("groups", "error"))
    assert sorted(np.bincount(kept)[np.unique(kept)]) == [6] * (len(wrong) // 6)  # whole ones
    by_group = [wrong[kept == group].mean() for group in np.unique(kept)]
    assert result.results.contributions["none", 0] == pytest.approx(by_group)


def test_in_this_process_and_in_others_the_numbers_are_the_same(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here = compare(tmp_path / "a")
    there = lab.compare(STUDY, store=tmp_path / "b" / "runs.db", workers=2, device="cpu", progress=False)
    assert here.results.errors() == there.results.errors()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "--workers: expected a whole number of at least 0; got -1"),
        ({"threads": 0}, "--threads: expected a whole number of at least 1; got 0"),
        ({"runs": "3"}, "--runs: expected a whole number of at least 1; got '3'"),
        ({"seed": 0.5}, "--seed: expected a whole number from 0"),
        ({"methods": "original,none"}, "got 'original,none'; write ['original', 'none']"),
        ({"study": "my_study.py"}, "expected a lab.Study; got str; a file is for contdrop compare FILE"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, options, message):
    with pytest.raises(UserError) as caught:
        lab.compare(**{"study": STUDY, "store": tmp_path / "runs.db", "workers": 0, "progress": False, **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def one_class():
    return lab.Data(train=(X, Y), test=(X[:10], 0 * Y[:10]))


@pytest.mark.filterwarnings("ignore:some .* test (auroc|made) is nan, and is left out")
def test_what_is_no_number_on_test_data_is_left_out_unless_it_decides(tmp_path):
    options = {"data": one_class, "methods": ["original", "none"], "epochs": 1, "runs": 1}
    made = {"measure": lambda network, parts, seed: {"made": np.nan, "kept": 1.0}}
    beside = compare(tmp_path, metric=["error", "auroc"], **made, **options).results.finished
    assert [{name for name in job.results if ":" in name} for job in beside] == [{"test:kept"}] * 2
    empty = lab.Metric.whole("share", lambda output, batch: output.argmax(1), lambda classes: np.nan)
    first = compare(tmp_path, name="first", metric=empty, **options).results.final
    assert {job.error for job in first} == {"diverged: the test share is nan"}
    with pytest.raises(
        UserError, match="the auroc of all 10 test examples is not a number, because they are of one cl"
    ):
        compare(tmp_path, name="area", metric="auroc", **options)


def test_more_runs_are_added(tmp_path):
    first = compare(tmp_path).results.errors()["none"]
    more = lab.compare(STUDY, runs=3, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    assert {run: more.results.errors()["none"][run] for run in (0, 1)} == first
    assert set(more.results.errors()["none"]) == {0, 1, 2}


def test_study_that_behaves_otherwise_is_refused(tmp_path):
    compare(tmp_path)

    def wider():
        return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 2))

    wider.__qualname__ = "model"
    with pytest.raises(UserError, match=r"is not what .*runs\.db was begun with: with original, the loss of step 1 is"):
        compare(tmp_path, model=wider)

    def others():
        return lab.Data(train=(X + 1, Y), test=0.25, validation=0.2)

    others.__qualname__ = "data"
    with pytest.raises(UserError, match="its data are others"):
        compare(tmp_path, data=others)


FEW = {"methods": ["original", "none"], "epochs": 1, "runs": 1}


def rate(factor):
    return lambda optimizer, total: torch.optim.lr_scheduler.StepLR(optimizer, 3, factor)


def test_changed_code_is_refused_where_first_steps_do_not_show_it(tmp_path):
    def distance(factor):
        """Some text."""
        return {"metric": lab.Metric("distance", lambda output, batch: factor * output.argmax(1).float())}

    def smooth(amount):
        return {"loss": lambda output, batch: nn.functional.cross_entropy(output, batch[1]) + 0 * amount}

    compare(tmp_path, **distance(1), scheduler=rate(0.5), **smooth(1), **FEW)
    compare(tmp_path, **distance(1), scheduler=rate(0.5), **smooth(2), **FEW)  # the first steps are the same
    for change, name in (
        (distance(2) | {"scheduler": rate(0.5)}, "metric distance has other values"),
        (distance(1) | {"scheduler": rate(0.1)}, "learning rates has other values"),
    ):
        with pytest.raises(UserError, match=rf"is not what .*runs\.db was begun with: with original, {name}"):
            compare(tmp_path, **change, **smooth(2), **FEW)


def test_a_changed_measure_is_refused(tmp_path):
    def total(sign):
        return {"measure": lambda model, parts, seed: {"first": sign * next(model.parameters()).detach().numpy()}}

    compare(tmp_path, **total(1), **FEW)
    with pytest.raises(UserError, match="with original, measure has other values"):
        compare(tmp_path, **total(-1), **FEW)


def test_a_changed_loop_is_refused_and_merging_says_so(tmp_path):
    def one(job):
        """Return a number."""
        return 1.0

    def other(job):
        return 2.0

    other.__qualname__ = one.__qualname__

    def loop(run, name, runs=1):
        study = lab.Study("own", metric=lab.Metric("loss"), run=run, runs=runs, methods=["original"])
        return lab.compare(study, store=tmp_path / f"{name}.db", workers=0, device="cpu", progress=False)

    for name, run in (("one", one), ("two", other), ("three", one)):
        loop(run, name)
    assert len(loop(one, "one", runs=2).results.finished) == 2
    with pytest.raises(UserError, match=r"is not what .*one\.db was begun with: the code of its loop is another; give"):
        loop(other, "one")
    assert merge.merge(tmp_path / "same.db", [tmp_path / "one.db", tmp_path / "three.db"]).notes == ()
    with Store(tmp_path / "one.db") as first, Store(tmp_path / "two.db") as second:
        here, there = (store.protocols()[0].description for store in (first, second))
    words = "own: the study that is added is not the one in the store: the code of its loop is another"
    assert list(merge._differences("own", here, there)) == [words]


def test_comments_docstrings_and_more_runs_leave_a_loop_what_it_is(tmp_path):
    text = 'def run(job):\n    """Old."""\n    return 1.0\n\nstudy = lab.Study("a", run=run, runs=2, epochs=3)\n'
    digests = []
    for name, old, new in (
        ("same", "", ""), ("comment", "1.0", "1.0  # one"), ("docstring", "Old.", "New."), ("runs", "runs=2", "runs=9"),
        ("value", "1.0", "2.0"), ("epochs", "epochs=3", "epochs=4"),
    ):  # fmt: skip
        path = tmp_path / f"{name}.py"
        path.write_text(text.replace(old, new) if old else text)
        digests.append(amendments.loop_digest(None, path))
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(set(digests)) == 3


def test_what_is_chosen_when_results_are_there_is_said(tmp_path):
    compare(tmp_path, **FEW, margin=1.0)
    later = FEW | {"methods": ["original", "none", "uniform"], "reference": "none", "margin": 40.0}
    compare(tmp_path, **later)
    caveats = " ".join(compare(tmp_path, **later).verdict.caveats)
    assert "count as negligible, which the experiment chose when results were there." in caveats
    for words in ("The margin was changed from 1.0 to 40.0 on", "The reference was changed from original to none on"):
        assert words in caveats
    assert "when 2 results were there: uniform. Every method added is one more chance" in caveats
    assert caveats.count("was changed") == 2
    metric = lab.Metric("mine", lambda output, batch: output.sum(1))
    compare(tmp_path, **FEW, name="own", metric=metric)
    with pytest.raises(UserError, match=r"metric mine: lower was better when the results .* now higher is to be"):
        compare(tmp_path, **FEW, name="own", metric=dataclasses.replace(metric, better="higher"))


def test_finished_runs_are_done_again_only_if_asked(tmp_path):
    def compared(**options):
        return lab.compare(
            STUDY.replace(**FEW), store=tmp_path / "runs.db", workers=0, device="cpu", progress=False,
            threads=2, **options,
        )  # fmt: skip

    before = compare(tmp_path, **FEW).results
    assert compared().results.finished == before.finished  # complete
    with pytest.raises(
        UserError, match=r"2 finished jobs of runs to go on, .* 1 thread; got .* 2 threads, .* with --redo"
    ):
        compared(methods=["original", "none", "uniform"])
    with Store(tmp_path / "runs.db") as store:
        assert store.jobs() == list(before.final)
        assert store.protocols()[0].description == before.protocol.description
    again = compared(methods=["original", "none", "uniform"], redo=True).results.finished
    assert [job.machine["threads"] for job in again] == [2, 2, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"clip": 0.1},
        {"accumulate": 2},
        {"precision": "bfloat16"},
        {"keep": "best"},
        {"patience": 1, "epochs": 6},
        {"evaluate": "last"},
        {"evaluate": 2, "epochs": 4},
        {"steps": 6, "epochs": 4},
        {"scheduler": lambda optimizer, total: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total)},
        {
            "scheduler": lambda optimizer, total: torch.optim.lr_scheduler.StepLR(optimizer, 1),
            "schedule_by": "epoch",
        },
        {"scheduler": lambda optimizer, total: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)},
        {"optimizer": lambda network: torch.optim.RMSprop(network.parameters(), 0.01, momentum=0.5)},
    ],
    ids=lambda change: "-".join(change),
)
def test_resumption_is_bit_exact_whatever_the_training(change):
    check_resumption(change)


def check_resumption(change):
    from contdrop.lab.study.plan import Variant
    from contdrop.lab.training.trainer import Trainer

    study = STUDY.replace(methods=["original", "gaussian:match"], **change)
    prepared = prepare(study.data(), task=study.task)
    job = plan(study)[1]

    def epochs(training):
        while not training.is_over:
            yield dataclasses.replace(training.run_epoch(), seconds=0.0)

    whole = list(epochs(Trainer(job, Variant.parse(job.method), prepared)))
    first = Trainer(job, Variant.parse(job.method), prepared)
    begun = [dataclasses.replace(first.run_epoch(), seconds=0.0)]
    second = Trainer(job, Variant.parse(job.method), prepared)
    second.restore(b"".join(first.state()))
    assert begun + list(epochs(second)) == whole
    assert second.results()[0] == second.results()[0]


class Skipping(nn.Module):
    """Leaves a layer out by chance of Python's and NumPy's, as LayerDrop does."""

    def __init__(self):
        super().__init__()
        self.network = model()

    def forward(self, x):
        return self.network(x) * (random.random() + np.random.random() if self.training else 1)


def test_models_that_draw_from_python_and_numpy_resume_bit_for_bit():
    check_resumption({"model": Skipping, "epochs": 3})


def unsteady(network):
    return torch.optim.SGD(network.parameters(), 3.0)


IMAGES = torch.randn(48, 3, 8, 8, generator=GENERATOR)


@pytest.mark.parametrize(
    "kind", [{"fused": True}, {"foreach": True}, {"amsgrad": True}], ids=["fused", "foreach", "amsgrad"]
)
def test_channels_last_and_fused_optimizers_resume_bit_for_bit(kind):
    def network():
        layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(96, 2)]
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)

    check_resumption(
        {
            "data": lambda: lab.Data(train=(IMAGES, Y[:48]), test=0.25, validation=0.2),
            "model": network,
            "forward": lambda network, batch: network(batch[0].contiguous(memory_format=torch.channels_last)),
            "optimizer": lambda network: torch.optim.AdamW(network.parameters(), 0.01, **kind),
            "epochs": 3,
        }
    )


@pytest.mark.slow
def test_a_compiled_model_resumes_bit_for_bit():
    check_resumption({"compile": True})


def test_patience_stops_early_and_the_best_model_counts(tmp_path):
    stopping = {"patience": 1, "epochs": 30, "keep": "best", "optimizer": unsteady}
    result = compare(tmp_path, methods=["original", "none"], metric=["nll", "error"], **stopping)
    done = {job.epochs_done for job in result.results.finished}
    assert min(done) < 30
    with Store(tmp_path / "runs.db") as store:
        for job in result.results.finished:
            best = min(epoch.val_error for epoch in store.epochs(job.id))
            assert job.results["val_error"] == pytest.approx(best)


# ---- files


GOOD = """
import torch
from torch import nn
from contdrop import lab

def data():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    return lab.Data(train=(x, (x[:, 0] > 0).long()), test=0.3)

def model():
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))

study = lab.Study("from-a-file", data, model, epochs=1, runs=2, methods=["original", "gaussian:match"])
"""


FLOAT64 = (
    "data() gives float64 to a model of float32; convert it there: x.astype('float32'), or x.to(torch.float32) "
    "(my_study.py, line 6)"
)


def write(text, name="my_study.py"):
    path = pathlib.Path(name)
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_file_gives_a_table_a_verdict_and_a_page(cli):
    code, out, err = cli("compare", write(GOOD), "--workers", "1")
    assert code == 0, err
    assert "from-a-file" in out
    assert pathlib.Path("from-a-file-report/index.html").exists()
    with Store("runs.db") as store:
        assert all(job.status == FINISHED for job in store.jobs())
    code, _, err = cli("compare", write(GOOD + "\n# other text\n"), "--workers", "1")
    assert code == 0, err
    code, _, err = cli("compare", write(GOOD.replace("Linear(3, 6)", "Linear(3, 7)").replace("(6, 2)", "(7, 2)")))
    assert code == 2
    assert "is not what runs.db was begun with" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "my_study.py: expected a line study = lab.Study(...); there is none"),
        ("import torch\ndef f(:", "my_study.py: SyntaxError: invalid syntax (my_study.py, line 2)\n"),
        ("import torch\n\nx = unknown", "NameError: name 'unknown' is not defined (my_study.py, line 3)"),
        (GOOD.replace("study =", "mine ="), "expected a study called study; there is mine: write study = mine"),
        (GOOD.replace("Linear(3, 6)", "Linear(4, 6)"), "training step: RuntimeError: mat1 and mat2"),
        (GOOD.replace("> 0).long()", "> 0).float()"), "expected"),
        (GOOD.replace("lab.Data(train=(", "((").replace(", test=0.3", ", 0.3"), "got tuple (my_study.py, line 6)"),
        (GOOD.replace("model, epochs", "model(), epochs"), "as each run trains new ones; got Sequential"),
        (GOOD.replace("torch.randn(90, 3,", "torch.randn(90, 3, dtype=torch.float64,"), FLOAT64),
        (GOOD.replace(".long()", ".long() + 1"), "train has 1 to 2; number them from 0: y - 1 (my_study.py, line 6)"),
        (GOOD.replace("return lab", "x[7] = torch.nan; return lab"), "is nan; train[0] has nan or infinity in 1 of 90"),
        (GOOD.replace("runs=2", "runs=0"), "a whole number of at least 1; got 0 (my_study.py, line 13)"),
        (
            GOOD.replace("runs=2", "optimiser=1"),
            "argument 'optimiser'; did you mean 'optimizer'? (my_study.py, line 13)",
        ),
        (GOOD.replace("runs=2", "clip=1.0"), "argument 'clip'; write training=lab.Training(clip=...) (my_study.py"),
        (
            GOOD.replace("runs=2", "selection_runs=1"),
            "argument 'selection_runs'; write selection=lab.Selection(runs=...) (my_study.py, line 13)",
        ),
        (
            GOOD.replace("runs=2", "training=lab.Training(clipp=1)"),
            "argument 'clipp'; did you mean 'clip'? (my_study.py, line 13)",
        ),
        (GOOD.replace("runs=2", "training={}"), "expected training to be lab.Training(...); got dict (my_study.py"),
        (GOOD.replace("def model", "def modell"), "NameError: name 'model' is not defined (my_study.py, line 13)"),
    ],
)
def test_mistakes_in_a_file_get_one_line(cli, text, message):
    code, out, err = cli("compare", write(text))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not pathlib.Path("runs.db").exists()


def test_estimate_prints_the_plan_and_trains_nothing(cli):
    code, out, err = cli("compare", write(GOOD), "--estimate", "--workers", "1")
    assert code == 0, err
    assert "4 jobs, 0 of them done" in out
    assert "Time: about" in out
    assert "Memory: about" in out
    assert "do at least 5 first (--runs 5), then ask again" in out
    assert not pathlib.Path("runs.db").exists()


def test_estimate_changes_nothing_in_a_store(cli):
    path = pathlib.Path(write(GOOD))
    lab.compare(sources.load_file(path), store="runs.db", runs=1, workers=0, device="cpu", progress=False)

    def content():
        with Store("runs.db") as store:
            return store.jobs(), store.protocols()

    before = content()
    more = ["compare", str(path), "--estimate", "--device", "cpu", "--methods", "original,gaussian:match,none"]
    code, out, err = cli(*more, "--runs", "3")
    assert (code, "9 jobs, 2 of them done" in out) == (0, True), err
    code, _, err = cli(*more, "--threads", "2")
    assert (code, "2 finished jobs of runs to go on" in err) == (2, True)
    assert content() == before


def test_source_of_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(GOOD)
    source = sources.of_file(path)
    assert source.load().name == "from-a-file"
    path.write_text(GOOD + "#")
    with pytest.raises(UserError, match="has changed since the command began"):
        source.load()
