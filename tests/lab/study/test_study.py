"""Studies: what they accept, how mistakes in them are told, and that they pair whatever they train."""

import html
import random
from functools import partial

import numpy as np
import pytest
import torch
from small_study import STUDY, X, Y, begin, compare, data, model
from torch import nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import plan
from refusals import refusal

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = {"methods": lab.METHODS, "runs": 2}
FEW = {"epochs": 1}


CANDIDATES = [
    *[["none"], {"nonne": ["none"]}, {"gaussian": ["gaussian"]}, {"none": ["uniform@2"]}, {"none": [0.1, 0.2]}],
    *[{"none": None}, {1: ["none"]}, {"none": ["none", "none"]}],
]
SETTINGS = [
    *[{"name": "a/b"}, {"task": "clustering"}, {"epochs": 0}, {"runs": 2.5}, {"runs": None}, {"steps": True}],
    *[{"selection": lab.Selection(epochs=0)}, {"seed": -1}, {"seed": 2**63}, {"evaluate": "never"}, {"clip": -1.0}],
    *[{"margin": float("inf")}, {"model": nn.Linear(5, 2)}, {"loss": nn.CrossEntropyLoss()}, {"model": None}],
    *[{"optimizer": torch.optim.SGD}, {"model": lambda a, b: None}, {"data": 3}, {"methods": ["gausian"]}],
    *[{"methods": ["none", "none"]}, {"methods": "none"}, {"methods": ["none", "gaussian"]}, {"task": None}],
    *[{"task": None, "networks": 2}, {"keep": "best", "evaluate": "last"}, {"methods": ["original", "own:mixup"]}],
    *[{"methods": ["original", "own"]}, {"run": print, "measure": print}, {"run": print, "keep": "best"}],
    *[{"follows": {"none": 1}}, {"follows": {"none": "original"}}, *({"candidates": each} for each in CANDIDATES)],
]
ARGUMENTS = [
    *[{"workers": -1}, {"threads": 0}, {"runs": "3"}, {"seed": 0.5}, {"methods": "original,none"}],
    {"study": "my_study.py"},
]


def test_bad_settings_and_arguments_get_one_line(refusals, tmp_path):
    given = {"study": STUDY, "store": tmp_path / "runs.db", "workers": 0, "progress": False}
    calls = [partial(lab.compare, **given | options) for options in ARGUMENTS]
    refusals("refusals_of_studies", [partial(STUDY.replace, **change) for change in SETTINGS] + calls)


# ---- comparisons


def test_comparison_in_this_process(tmp_path):
    result = compare(tmp_path, weights="last", **ALL)
    assert set(result.results.errors()) == set(lab.METHODS)
    assert all(set(runs) == {0, 1} for runs in result.results.errors().values())
    assert "<table>" in result._repr_html_()
    assert result.verdict.headline in str(result)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # a notebook shows it
    assert result.report(tmp_path / "page").exists()
    trained = result.model("gaussian:match", 1)
    with Store(tmp_path / "runs.db") as store:
        kept = store.artefact(result.results.job("gaussian:match", 1).id, "test_error")
    test = prepare(data(), task="classification").parts(0, "final", 1).test
    (x, y) = next(iter(test.batches(test.order(None, 100))))
    with torch.no_grad():
        assert np.array_equal(kept, 100.0 * (trained(x).argmax(1) != y).numpy())
    message = "gausian run 0 is not among the results; did you mean 'gaussian:match'"
    assert message in refusal(result.model, "gausian", 0)


def decayed(method):
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    network.decay = {"own:decay 0.1": 0.1, "own:decay 10": 10.0}.get(str(method), 0.0)
    return network


REGULARISED = {
    "model": decayed,
    "methods": ["none", "own:decay 0.1", "own:decay 10"],
    "reference": "none",
    "optimizer": lambda network: torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=network.decay),
    "epochs": 3,
    "runs": 2,
    "batch_size": 64,
}


def test_methods_of_ones_own_are_compared_like_any(tmp_path):
    result = compare(tmp_path, **REGULARISED)
    errors = result.results.errors()
    # All started from the same weights, as the lab has proven, and the strong decay has forgotten everything.
    assert sum(errors["own:decay 10"].values()) > sum(errors["none"].values())
    text, page = str(result), result.report(tmp_path / "page").read_text(encoding="utf-8")
    assert "decay 0.1" in text
    assert not [words for words in ("own:", "by unit") if words in text]  # nothing of the noise of what may have none
    assert "as the study has it" in page
    assert "differs from unit to unit" not in page


def test_a_method_of_ones_own_is_selected_among_its_variants(tmp_path):
    selection = lab.Selection(runs=1, candidates={"own:decay": ["own:decay 0.1", "own:decay 10"]})
    result = compare(tmp_path, **REGULARISED | {"methods": ["none", "own:decay"]}, selection=selection)
    assert result.results.selections["own:decay"].variant == "own:decay 0.1"
    assert result.results.variants()["own:decay"] == "own:decay 0.1"


def test_a_loop_of_ones_own_knows_its_methods(tmp_path):
    def run(job):
        network = job.build(model)
        return network[0].weight.detach().sum().item() + (job.method == "own:heavy")

    study = lab.Study("loop", run=run, methods=["original", "own:heavy"], metric=lab.Metric("loss"), runs=2)
    errors = lab.compare(study, store=tmp_path / "runs.db", workers=0, progress=False).results.errors()
    assert errors["own:heavy"] == pytest.approx({run: value + 1 for run, value in errors["original"].items()})
    assert "own:light is not a method of the study" in refusal(plan, study, labels=["original", "own:light"])


def test_the_reference_is_the_one_that_was_asked_for(tmp_path):
    values = {"original": [3.0, 3.1, 2.9, 3.2, 3.0, 3.1], "bernoulli:match": [2.0, 2.2, 2.1, 1.9, 2.0, 2.1]}
    for reference in values:
        assert lab.analyze(values, reference=reference, metric="rmse").results.reference == reference
    result = compare(tmp_path, methods=["original", "none", "bernoulli:match"], reference="bernoulli:match", runs=2)
    assert result.results.reference == "bernoulli:match"


def test_a_candidate_of_two_methods_is_trained_once():
    both = ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]
    methods = ["original", "gaussian", "gaussian:sigma=0.3"]
    study = STUDY.replace(methods=methods, candidates={"gaussian": both, "gaussian:sigma=0.3": both[::-1]}, runs=2)
    jobs = plan(study)
    assert len({job.key for job in jobs}) == len(jobs) == 3 * 2 + 2 * 3


def test_the_page_of_a_study_is_of_that_study_alone(tmp_path):
    compare(tmp_path, name="other")
    text = html.unescape(compare(tmp_path, name="mine").report(tmp_path / "page").read_text(encoding="utf-8"))
    assert "study is the one named 'mine'" in text
    assert "named 'other'" not in text


def test_groups_of_test_examples_are_kept_and_are_what_varies(tmp_path):
    groups = torch.arange(len(X)) // 6
    result = compare(tmp_path, data=lambda: lab.Data((X, Y), 0.25, 0.2, groups=groups))
    job = result.results.job("none", 0)
    with Store(tmp_path / "runs.db") as store:
        kept, wrong = (store.artefact(job.id, f"test_{name}") for name in ("groups", "error"))
    assert sorted(np.bincount(kept)[np.unique(kept)]) == [6] * (len(wrong) // 6)  # whole ones
    by_group = [wrong[kept == group].mean() for group in np.unique(kept)]
    assert result.results.contributions["none", 0] == pytest.approx(by_group)


def test_in_this_process_and_in_others_the_numbers_are_the_same(tmp_path):
    here = compare(tmp_path, **ALL)
    there = compare(tmp_path, **ALL, options={"workers": 2, "store": tmp_path / "other.db"})
    assert here.results.errors() == there.results.errors()


@pytest.mark.filterwarnings("ignore:own .* test (auroc|made) is nan, and is left out")
def test_what_is_no_number_on_test_data_is_left_out_unless_it_decides(tmp_path):
    options = {"data": lambda: lab.Data(train=(X, Y), test=(X[:10], 0 * Y[:10])), **FEW}
    made = {"measure": lambda network, parts, seed: {"made": np.nan, "kept": 1.0}}
    beside = compare(tmp_path, metric=["error", "auroc"], **made, **options).results.finished
    assert [{name for name in job.results if ":" in name} for job in beside] == [{"test:kept"}] * 2
    empty = lab.Metric.whole("share", lambda output, batch: output.argmax(1), lambda classes: np.nan)
    first = compare(tmp_path, name="first", metric=empty, **options).results.final
    assert {job.error for job in first} == {"diverged: the test share is nan"}
    message = "the auroc of all 10 test examples is not a number, because they are of one class"
    assert message in refusal(compare, tmp_path, name="area", metric="auroc", **options)


def test_finished_runs_are_done_again_only_if_asked(tmp_path):
    before = compare(tmp_path, **FEW).results
    other = {"threads": 2, "methods": ["original", "none", "uniform"]}
    assert compare(tmp_path, **FEW, options={"threads": 2}).results.finished == before.finished  # complete
    message = refusal(compare, tmp_path, **FEW, options=other)
    for words in ("2 finished jobs of runs to go on, ", " 1 thread; got ", " 2 threads, ", " with --redo"):
        assert words in message
    with Store(tmp_path / "runs.db") as store:
        assert store.jobs() == list(before.final)
        assert store.protocols()[0].description == before.protocol.description
    again = compare(tmp_path, **FEW, options={**other, "redo": True}).results.finished
    assert [job.machine["threads"] for job in again] == [2, 2, 2]


# ---- interrupted trainings


class Skipping(nn.Module):
    """Leaves a layer out by chance of Python's and NumPy's, as LayerDrop does."""

    def __init__(self):
        super().__init__()
        self.network = model()

    def forward(self, x):
        return self.network(x) * (random.random() + np.random.random() if self.training else 1)


def convolutional():
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(96, 2)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


IMAGES = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SCHEDULERS = torch.optim.lr_scheduler


def channels_last(**kind):
    return {
        "data": lambda: lab.Data(train=(IMAGES, Y[:48]), test=0.25, validation=0.2),
        "model": convolutional,
        "forward": lambda network, batch: network(batch[0].contiguous(memory_format=torch.channels_last)),
        "optimizer": lambda network: torch.optim.AdamW(network.parameters(), 0.01, **kind),
        "epochs": 3,
    }


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
        {"scheduler": lambda optimizer, total: SCHEDULERS.OneCycleLR(optimizer, 0.01, total)},
        {"scheduler": lambda optimizer, total: SCHEDULERS.StepLR(optimizer, 1), "schedule_by": "epoch"},
        {"scheduler": lambda optimizer, total: SCHEDULERS.ReduceLROnPlateau(optimizer)},
        {"optimizer": lambda network: torch.optim.RMSprop(network.parameters(), 0.01, momentum=0.5)},
        pytest.param({"model": Skipping, "epochs": 3}, id="draws from Python and NumPy"),
        *[pytest.param(channels_last(**{kind: True}), id=kind) for kind in ("fused", "foreach", "amsgrad")],
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
    ids=lambda change: "-".join(change),
)
def test_resumption_is_bit_exact_whatever_the_training(change):
    def epochs(training):
        while not training.is_over:
            yield training.run_epoch()._replace(seconds=0.0)

    whole, first, second = (begin("gaussian:match", methods=["original", "gaussian:match"], **change) for _ in range(3))
    expected = list(epochs(whole))
    begun = [first.run_epoch()._replace(seconds=0.0)]
    second.restore(b"".join(first.state()))
    assert begun + list(epochs(second)) == expected
    assert second.results()[0] == whole.results()[0]


def test_patience_stops_early_and_the_best_model_counts(tmp_path):
    unsteady = {"optimizer": lambda network: torch.optim.SGD(network.parameters(), 3.0)}
    result = compare(tmp_path, metric=["nll", "error"], patience=1, epochs=30, keep="best", runs=2, **unsteady)
    done = {job.epochs_done for job in result.results.finished}
    assert min(done) < 30
    with Store(tmp_path / "runs.db") as store:
        for job in result.results.finished:
            best = min(epoch.val_error for epoch in store.epochs(job.id))
            assert job.results["val_error"] == pytest.approx(best)
