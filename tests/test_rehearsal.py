"""What a dry run refuses or warns of, so that no training ends with it: steps, measures, losses, resumption."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab import dryrun, running
from contdrop.lab.batches import prepare
from contdrop.lab.fingerprints import of_arrays
from contdrop.lab.plan import Variant, add_plan, plan
from contdrop.lab.store import Store
from contdrop.lab.training import Training

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(120, 5, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
pytestmark = pytest.mark.usefixtures("one_thread")


def data():
    return lab.Data(train=(X, Y), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


STUDY = lab.Study("own", data, model, epochs=2, runs=1, batch_size=16, methods=["original", "none"])  # 5 steps a pass


def rehearse(**change):
    study = dataclasses.replace(STUDY, **change)
    return dryrun.rehearse(plan(study), prepare(study.data(), task=study.task))


def begin(**change):
    study = dataclasses.replace(STUDY, **change)
    return Training(plan(study)[0], Variant.parse("original"), prepare(study.data(), task=study.task))


def run(tmp_path, **change):
    """A job as a worker does it, without a dry run."""
    study = dataclasses.replace(STUDY, **change)
    with Store(tmp_path / "runs.db", create=True) as store:
        number, job = next(iter(add_plan(store, plan(study)).items()))
        prepared = prepare(study.data(), task=study.task)
        with store.locks.holding(number):
            running.run(store, number, job, Variant.parse(job.method), prepared)


def compare(tmp_path, **change):
    study = dataclasses.replace(STUDY, **change)
    return lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)


# ---- steps

TOO_MANY = "study 'own': expected at least 3 epochs of 5 steps for steps=11; got epochs=2; give epochs=3 or fewer steps"


def test_more_steps_than_the_epochs_have_are_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        rehearse(steps=11)
    assert str(caught.value) == TOO_MANY
    with pytest.raises(UserError) as caught:
        run(tmp_path, steps=11)
    assert str(caught.value) == TOO_MANY


def test_fewer_steps_end_the_training_and_selections_may_be_shorter_still():
    rehearse(steps=10)
    trained = begin(steps=7)
    while not trained.is_over:
        trained.run_epoch()
    assert (trained.step, trained.epoch) == (7, 2)
    candidates = {"gaussian": ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]}
    rehearse(steps=10, selection_epochs=1, methods=["original", "gaussian"], candidates=candidates)


def by_some(dataset, generator):
    """Batches of 8 or of 16 examples, drawn anew for each pass."""
    order = torch.randperm(len(dataset), generator=generator)
    size = 8 * int(torch.randint(1, 3, (), generator=generator))
    return [each.tolist() for each in order.split(size)]


def test_passes_of_more_and_fewer_batches_are_all_whole():
    shown = []

    def loss(output, batch):
        shown.append(len(batch[1]))
        return nn.functional.cross_entropy(output, batch[1])

    own = lab.Data(train=(X, Y), test=0.25, validation=0.2, batches=by_some)
    trained = begin(data=lambda: own, epochs=8, loss=loss, accumulate=2)
    lengths = [len(trained.order(number)) for number in range(8)]
    assert len(set(lengths)) > 1
    shown.clear()
    while not trained.is_over:
        trained.network.train()
        trained._train()
        trained.epoch += 1
    assert sum(shown) == 8 * sum(len(each) for each in trained.order(0))
    assert trained.step == trained.total_steps == sum(-(-length // 2) for length in lengths)


def rates(scheduler, *factor):
    study = dataclasses.replace(STUDY, scheduler=scheduler, schedule_by="step")
    variant = Variant.parse("original@0.1" if factor else "original")
    trained = Training(plan(study)[0], variant, prepare(study.data(), task=study.task))
    found = []
    for batch in trained.parts.train.batches(trained.order(0), seed=0):
        found.append(trained.learning_rate)
        trained.backward(trained.batch_loss(batch)[0])
        trained.update()
    return found


def test_a_factor_of_the_learning_rate_holds_under_schedulers_that_set_it():
    schedulers = torch.optim.lr_scheduler
    for scheduler in (
        lambda optimiser, total: schedulers.OneCycleLR(optimiser, 0.01, total),
        lambda optimiser, total: schedulers.CosineAnnealingLR(optimiser, total),
    ):
        assert rates(scheduler, 0.1) == pytest.approx([0.1 * rate for rate in rates(scheduler)], rel=1e-12)
    with pytest.raises(UserError, match=r"expected a scheduler that starts from .* for original@0\.1; got CyclicLR"):
        rates(lambda optimiser, total: schedulers.CyclicLR(optimiser, 0.01, 0.1, cycle_momentum=False), 0.1)


# ---- measures


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"test_error": np.zeros(3)}, "measure: expected a name that the lab does not use itself; got 'test_error'"),
        ({"test_labels": np.zeros(3)}, "got 'test_labels'; choose another"),
        ({"test_predictions": np.zeros(3)}, "got 'test_predictions'; choose another"),
        ({"test_groups": np.zeros(3)}, "got 'test_groups'; choose another"),
        ({"test_nll": np.zeros(3)}, "got 'test_nll'; choose another"),
        ({"weights": np.zeros(3)}, "got 'weights'; choose another"),
        ({"nll": 1.0}, "got 'nll'; choose another"),
        ({"a": "text"}, "measure: expected a number or an array of numbers as 'a'; got str; leave it out"),
        ({"a": None}, "as 'a'; got NoneType; leave it out"),
        ({"a": np.array([None, "x"], object)}, "as 'a'; got an array of object; leave it out"),
        ({"a": np.array(["x", "y"])}, "as 'a'; got an array of <U1; leave it out"),
        ({"a": np.zeros(2, complex)}, "as 'a'; got an array of complex128; leave it out"),
        ({"a": np.zeros(2, "datetime64[D]")}, "as 'a'; got an array of datetime64[D]; leave it out"),
        (None, "measure: expected a dictionary of arrays and numbers by name; got NoneType"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_kept_of_a_measure_is_refused(tmp_path, found, message):
    for attempt in (rehearse, lambda **change: run(tmp_path, **change)):
        with pytest.raises(UserError) as caught:
            attempt(measure=lambda network, parts, seed: found)
        assert message in str(caught.value)
        assert str(caught.value).startswith("study 'own': measure: expected")
        assert "\n" not in str(caught.value)


def test_names_that_only_look_like_the_labs_are_kept(tmp_path):
    found = {"test_error": 3.5, "nll": np.zeros(2), "test_mine": np.ones(3), 1: 2}
    result = compare(tmp_path, measure=lambda network, parts, seed: found)
    job = result.results.job("original", 0)
    assert (job.results["test:test_error"], job.results["test:1"]) == (3.5, 2.0)
    with Store(tmp_path / "runs.db") as store:
        assert store.artefact(job.id, "nll").tolist() == [0.0, 0.0]


# ---- the metric loss


def smooth(output, batch):
    return nn.functional.cross_entropy(output, batch[1], label_smoothing=0.3)


@pytest.mark.parametrize(
    "change",
    [{}, {"loss": smooth}, {"loss": smooth, "task": None}, {"evaluation_batch_size": 7, "loss": smooth}],
    ids=["by task", "own", "without a task", "uneven batches"],
)
def test_the_metric_loss_is_the_loss_of_the_study(tmp_path, change):
    for job in compare(tmp_path, metric="loss", **change).results.finished:
        for part in ("train", "val", "test"):
            assert job.results[f"{part}_error"] == pytest.approx(job.results[f"{part}_loss"], rel=1e-6)


def test_the_metric_loss_of_a_built_in_loss_is_of_each_example():
    trained = begin(metric=["error", "loss", "nll"])
    found = trained.evaluate(trained.parts.test).contributions
    assert np.array_equal(found["loss"], found["nll"])
    assert len(np.unique(found["loss"])) > 2
    flat = begin(data=lambda: lab.Data((X, X[:, :2]), 0.25, 0.2), task="regression", metric=["loss", "mse"])
    found = flat.evaluate(flat.parts.test).contributions
    assert np.array_equal(found["loss"], found["mse"])


def test_the_metric_loss_of_a_models_own_loss_and_of_ones_own_is_of_each_batch():
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = model()

        def forward(self, x):
            return {"logits": self.network(x), "loss": torch.tensor(2.5)}

    own = begin(model=Returning, metric="loss")
    assert own.evaluate(own.parts.test).contributions["loss"].tolist() == [2.5] * 30
    other = begin(model=Returning, metric="loss", loss=lambda output, batch: output["logits"].sum() * 0 + 4)
    assert other.evaluate(other.parts.test).contributions["loss"].tolist() == [4.0] * 30


# ---- parameters of few bits


def test_a_model_of_bfloat16_is_trained(tmp_path):
    few = lab.Data(train=(X.bfloat16(), Y), test=0.25, validation=0.2)
    result = compare(tmp_path, data=lambda: few, model=lambda: model().bfloat16())
    assert len(result.results.finished) == 2
    shared = {job.shared["initial weights"] for job in result.results.finished}
    assert len(shared) == 1


def test_fingerprints_of_initial_weights_are_as_ever():
    def small():
        return model().bfloat16()

    trained = begin()
    parameters = [parameter.detach().numpy() for _, parameter in sorted(trained.network.named_parameters())]
    assert trained.fingerprints["initial weights"] == of_arrays(*parameters)
    found = {begin(model=small, seed=seed).fingerprints["initial weights"] for seed in (0, 0, 1)}
    assert len(found) == 2


# ---- resumption


class Counting(nn.Module):
    """Keeps a number that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.network, self.calls = model(), 0

    def forward(self, x):
        self.calls += self.training
        return self.network(x) / (1 + 0.1 * self.calls)


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = model()
        self.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))

    def forward(self, x):
        return self.network(x)


def test_what_a_checkpoint_would_lose_is_said():
    assert rehearse().warnings == ()
    (warning,) = rehearse(model=Counting).warnings
    assert warning.startswith("an interrupted training would go on otherwise: restored from its checkpoint, the model")
    (warning,) = rehearse(model=Quantised).warnings
    assert "a training cannot be saved and resumed: TypeError: expected tensors of float32" in warning


def test_what_diverges_resumed_or_not_is_no_loss_of_a_checkpoint():
    study = dataclasses.replace(STUDY, optimiser=lambda network: torch.optim.SGD(network.parameters(), 1e30))
    prepared = prepare(study.data(), task=study.task)
    assert dryrun._of_resumption(plan(study)[0], Variant.parse("original"), prepared, "cpu") == []
