"""What a dry run refuses or warns of, so that no training ends with it: steps, measures, losses, resumption."""

import numpy as np
import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.data.data import prepare
from contdrop.lab.data.fingerprints import of_arrays
from contdrop.lab.store import archive
from contdrop.lab.store.writer import Store
from contdrop.lab.study import dry_run
from contdrop.lab.study.plan import Variant, add_plan, plan
from contdrop.lab.training import job as running
from contdrop.lab.training.model import Averaged
from contdrop.lab.training.trainer import Trainer

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
    study = STUDY.replace(**change)
    return dry_run.dry_run(plan(study), prepare(study.data(), task=study.task))


def begin(**change):
    study = STUDY.replace(**change)
    return Trainer(plan(study)[0], Variant.parse("original"), prepare(study.data(), task=study.task))


def run(tmp_path, **change):
    """A job as a worker does it, without a dry run."""
    study = STUDY.replace(**change)
    with Store(tmp_path / "runs.db", create=True) as store:
        number, job = next(iter(add_plan(store, plan(study)).items()))
        prepared = prepare(study.data(), task=study.task)
        with store.locks.holding(number):
            running.run(store, number, job, Variant.parse(job.method), prepared)


def compare(tmp_path, **change):
    study = STUDY.replace(**change)
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
    selection = lab.Selection(candidates=candidates, epochs=1)
    rehearse(steps=10, methods=["original", "gaussian"], selection=selection)


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
    study = STUDY.replace(scheduler=scheduler, schedule_by="step")
    variant = Variant.parse("original@0.1" if factor else "original")
    trained = Trainer(plan(study)[0], variant, prepare(study.data(), task=study.task))
    found = []
    for batch in trained.parts.train.batches(trained.order(0), seed=0):
        found.append(trained.learning_rate)
        trained.backward(trained.batch_loss(batch)[0])
        trained.update()
    return found


def test_a_factor_of_the_learning_rate_holds_under_schedulers_that_set_it():
    schedulers = torch.optim.lr_scheduler
    for scheduler in (
        lambda optimizer, total: schedulers.OneCycleLR(optimizer, 0.01, total),
        lambda optimizer, total: schedulers.CosineAnnealingLR(optimizer, total),
    ):
        assert rates(scheduler, 0.1) == pytest.approx([0.1 * rate for rate in rates(scheduler)], rel=1e-12)
    with pytest.raises(UserError, match=r"expected a scheduler that starts from .* for original@0\.1; got CyclicLR"):
        rates(lambda optimizer, total: schedulers.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False), 0.1)


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


class Remembering(Quantised):
    def get_extra_state(self):
        return slice(1, 2)

    def set_extra_state(self, state):
        pass


def test_what_a_checkpoint_would_lose_is_said():
    assert rehearse().warnings == ()
    (warning,) = rehearse(model=Counting).warnings
    assert warning.startswith("an interrupted training would go on otherwise: restored from its checkpoint, the model")
    assert rehearse(model=Quantised).warnings == ()
    (warning,) = rehearse(model=Remembering).warnings
    assert "a training cannot be saved and resumed: TypeError: expected tensors, numbers, texts" in warning


def test_what_diverges_resumed_or_not_is_no_loss_of_a_checkpoint():
    study = STUDY.replace(optimizer=lambda network: torch.optim.SGD(network.parameters(), 1e30))
    prepared = prepare(study.data(), task=study.task)
    job = plan(study)[0]
    assert dry_run._resumption_warnings(lambda: Trainer(job, Variant.parse("original"), prepared)) == []


# ---- the optimizer


def test_an_optimizer_of_another_model_is_refused():
    other = torch.optim.SGD(model().parameters(), lr=0.1)
    with pytest.raises(
        UserError, match="expected an optimizer of the model that it is given; it has none of its param"
    ):
        rehearse(optimizer=lambda model: other)
    warnings = rehearse(optimizer=lambda model: torch.optim.SGD(model[3].parameters(), lr=0.1)).warnings
    assert "not trained, because the optimizer leaves it out: 0.weight, 0.bias" in warnings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"optimizer": lambda model: torch.optim.LBFGS(model.parameters())},
            "got LBFGS; it needs a loop of your own, run=",
        ),
        ({"optimizer": lambda model: torch.optim.SGD(model)}, "study 'own': optimizer: TypeError"),
        (
            {"scheduler": lambda o, n: torch.optim.lr_scheduler.ReduceLROnPlateau(o), "evaluate": "last"},
            "ReduceLROnPlateau needs validation data in every epoch; use evaluate='epoch'",
        ),
    ],
)
def test_optimizers_and_schedules_that_cannot_work(change, message):
    with pytest.raises(UserError) as caught:
        rehearse(**change)
    assert message in str(caught.value)


def test_a_class_of_optimizers_is_no_function_of_the_model():
    with pytest.raises(UserError, match=r"write optimizer=lambda model: torch\.optim\.SGD\(model\.parameters\(\), lr="):
        rehearse(optimizer=torch.optim.SGD)


def test_parameters_that_nobody_trains_count_for_nothing():
    """Their gradients would add up, and be most of the norm that is clipped."""

    def frozen():
        made = model()
        made[0].requires_grad_(False)
        return made

    def of_the_head(network):
        return torch.optim.SGD(network[3].parameters(), lr=0.1)

    results = []
    for function in (model, frozen):
        trained = begin(model=function, optimizer=of_the_head, clip=0.1, epochs=2)
        while not trained.is_over:
            trained.run_epoch()
        results.append(trained.network[3].weight.detach())
    assert torch.equal(*results)


# ---- what only shows at the end


def test_half_precision_is_rehearsed_with_its_scaler():
    plain, half = rehearse(), rehearse(precision="float16")
    for label, figures in half.behaviour["methods"].items():
        assert figures == pytest.approx(plain.behaviour["methods"][label], rel=0.02)


def test_a_metric_that_the_targets_leave_without_a_value_is_refused():
    def one_class():
        return lab.Data(train=(X, Y), test=(X[:20], torch.ones(20, dtype=torch.long)), validation=0.2)

    with pytest.raises(
        UserError, match="the auroc of all 20 test examples is not a number, because they are of one cl"
    ):
        rehearse(data=one_class, metric="auroc")
    share = lab.Metric.whole("share", lambda output, batch: output.argmax(1), lambda each: np.nan)
    assert any("the share of all 30 test examples is not a number before" in w for w in rehearse(metric=share).warnings)


def test_a_last_batch_of_one_example_is_tried():
    def normalised():
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    examples = len(begin(model=normalised).parts.train)
    size = next(size for size in range(5, 40) if examples % size == 1)
    with pytest.raises(
        UserError, match=r"training step with the 1 example of a pass's smallest batch \(another batch_"
    ):
        rehearse(model=normalised, batch_size=size)
    rehearse(model=normalised, batch_size=size - 1)


# ---- several networks as one


def test_the_mean_of_networks_with_one_logit_is_that_of_their_probabilities():
    members = [nn.Linear(5, 1) for _ in range(3)]
    expected = torch.stack([member(X).sigmoid() for member in members]).mean(0)
    torch.testing.assert_close(Averaged(members)(X).sigmoid(), expected)
    torch.testing.assert_close(Averaged([nn.Flatten(0), nn.Flatten(0)])(X[:, :1]), X[:, 0])
    far = Averaged([nn.Identity(), nn.Identity()])(torch.tensor([[-200.0], [200.0]]))
    assert far.flatten().tolist() == pytest.approx([-200.0, 200.0])


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [(3, torch.randint(2, (120, 3), generator=GENERATOR).float()), (4, torch.zeros(120, 2, dtype=torch.long))],
)
def test_outputs_whose_classes_cannot_be_told_are_not_averaged(outputs, targets):
    def several():
        reshaped = nn.Unflatten(1, (2, 2)) if outputs == 4 else nn.Identity()
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, outputs), reshaped)

    def labelled():
        return lab.Data(train=(X, targets), test=0.25, validation=0.2)

    if outputs == 3:
        rehearse(data=labelled, model=several)
        with pytest.raises(UserError, match=r"expected logits \[N, classes, \.\.\.\] and classes .* for networks=2"):
            rehearse(data=labelled, model=several, networks=2)
    rehearse(networks=2)


# ---- out of reach


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = model()

    def forward(self, x):
        return nn.functional.dropout(self.network(x), 0.8, self.training)


def test_dropout_that_stays_on_is_said_beside_the_verdict(tmp_path):
    caveats = compare(tmp_path, model=Hidden).verdict.caveats
    (said,) = (each for each in caveats if each.startswith("Not all dropout of the model is compared"))
    assert said.endswith("1 place with dropout out of reach: Hidden; it stays on with every method, no dropout too.")
    assert not any("out of reach" in each for each in compare(tmp_path, name="other").verdict.caveats)


def test_a_model_with_nothing_but_dropout_out_of_reach_is_told_where():
    def recurrent():
        return nn.Sequential(nn.Unflatten(1, (5, 1)), nn.LSTM(1, 4, 2, dropout=0.3), Last())

    with pytest.raises(UserError, match=r"\(out of reach is 1: between the layers of LSTM\); put nn\.Dropout where it"):
        rehearse(model=recurrent)


class Last(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, found):
        return super().forward(found[0][:, -1])


# ---- float16


def far():
    return lab.Data(train=(100 * X, 1000 * X[:, :1] + 3000), test=0.25, validation=0.2)


def test_a_gradient_beyond_float16_is_no_change_and_can_be_exported(tmp_path):
    settings = {"data": far, "model": lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 1)), "task": "regression"}
    for _ in range(2):
        compare(tmp_path, name="far", metric="rmse", precision="float16", epochs=1, **settings)
    with Store(tmp_path / "runs.db") as store:
        (record,) = store.protocols()
    assert None in record.description["behaviour"]["methods"]["original"]
    archive.export(tmp_path / "runs.db", tmp_path / "far.jsonl.gz")


# ---- steps of several batches


def test_a_step_of_fewer_batches_at_the_end_of_a_pass_is_their_mean():
    """Three batches of 22, two to a step, are what batches of 44 and 22 are."""
    found = []
    for change in ({"batch_size": 22, "accumulate": 2}, {"batch_size": 44}):
        trained = begin(model=lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.0)), **change)
        assert sum(map(len, trained.order(0))) == 66
        while not trained.is_over:
            trained.run_epoch()
        found.append([p.detach().clone() for p in trained.network.parameters()])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs)


# ---- weights that are kept


class Averaging(nn.Module):
    """Adds what it has counted in training to its output, and keeps it out of its state."""

    def __init__(self):
        super().__init__()
        self.layers = model()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.layers(x) + self.seen


class Opaque(Averaging):
    def get_extra_state(self):
        return object()

    def set_extra_state(self, state):
        pass


def test_kept_weights_have_the_buffers_that_the_state_leaves_out(tmp_path):
    result = compare(tmp_path, model=Averaging, weights="last")
    assert result.model("original", 0).seen == 10  # two epochs of five steps


def test_weights_that_cannot_be_kept_are_told_before_the_training():
    with pytest.raises(UserError, match=r"weights='last' cannot keep this model \(.*object.*\); leave weights= out"):
        rehearse(model=Opaque, weights="last")
