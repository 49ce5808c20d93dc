"""What a dry run finds, refuses or warns of, so that no training ends with it."""

from functools import partial

import numpy as np
import pytest
import torch
from small_study import STUDY, X, Y, begin, compare, model, rehearse
from torch import nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.data.fingerprints import of_arrays
from contdrop.lab.store import archive
from contdrop.lab.store.writer import Store
from contdrop.lab.study import dry_run
from contdrop.lab.study.plan import Variant, add_plan, plan
from contdrop.lab.training import job as running
from contdrop.lab.training.model import Averaged
from refusals import refusal

pytestmark = pytest.mark.usefixtures("one_thread")
UNSEEDED = torch.Generator().manual_seed(1)
SCHEDULERS = torch.optim.lr_scheduler


def run(tmp_path, **change):
    """A job as a worker does it, without a dry run."""
    study = STUDY.replace(**change)
    with Store(tmp_path / "runs.db", create=True) as store:
        number, job = next(iter(add_plan(store, plan(study)).items()))
        with store.locks.holding(number):
            running.run(store, number, job, Variant.parse(job.method), prepare(study.data(), task=study.task))


class Around(nn.Module):
    """A module around the small model; derived ones do something more."""

    def __init__(self):
        super().__init__()
        self.network = model()

    def forward(self, x):
        return self.network(x)


# ---- findings


def test_rehearsal_says_what_was_changed_and_how_large_it_is():
    found = rehearse(methods=lab.METHODS)
    assert found.sizes == (66, 24, 30)
    assert found.parameters == 5 * 8 + 8 + 8 * 2 + 2
    assert found.sites["gaussian:match"] == "1 of 1 dropout site changed"
    assert set(found.behaviour["methods"]) == set(lab.METHODS)


def test_rehearsal_counts_the_memory_of_a_step():
    """By hand, with AdamW's two moments and its count of steps beside each parameter."""
    found = rehearse(methods=("original", "none", "bernoulli:match")).memory
    weights, tensors, batch = 5 * 8 + 8 + 8 * 2 + 2, 4, 16
    held = 4 * 4 * weights + 4 * tensors
    x, hidden, loss = 4 * 5 * batch, 4 * 8 * batch, 4 * 2 * batch + 8 * batch + 4
    assert found["none"] == held + x + hidden + loss
    assert found["original"] == found["none"] + 2 * hidden  # the mask, in floats, and what it was multiplied with
    assert found["none"] < found["bernoulli:match"] < found["original"]  # the mask is made again, not kept


def unseeded_model():
    made = model()
    with torch.no_grad():
        made[0].weight.copy_(torch.rand(8, 5, generator=UNSEEDED))
    return made


def dry(*layers, **change):
    return rehearse(**({"model": lambda: nn.Sequential(*layers)} if layers else {}), **change)


def test_mistakes_are_told_in_one_line_before_training(code_refusals):
    code_refusals("refusals_of_dry_runs", globals())
    assert "division by zero (test_dry_run.py, line" in refusal(rehearse, optimizer=lambda network: 1 / 0)


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


class Half(Around):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)


def negative_log(output, batch):
    return nn.functional.nll_loss(output, batch[1])


def after_the_model(*layers):
    return {"model": lambda: nn.Sequential(model(), *layers)}


POSSIBLE = {
    "nothing": {},
    "Softmax": after_the_model(nn.Softmax(1)),
    "LogSoftmax": after_the_model(nn.LogSoftmax(1)),
    "Sigmoid": {"model": lambda: nn.Sequential(model(), nn.Linear(2, 1), nn.Sigmoid())},
    "one logit": {"model": lambda: nn.Sequential(model(), nn.Linear(2, 1))},
    "a loss that takes the logarithm": after_the_model(nn.LogSoftmax(1)) | {"loss": negative_log},
    "an unused layer": {"model": Half},
    "an untrained layer": {"optimizer": lambda network: torch.optim.SGD(network[3].parameters(), lr=0.1)},
    "no value": {"metric": lab.Metric.whole("share", lambda output, batch: output.argmax(1), lambda each: np.nan)},
}


def test_possible_mistakes_are_noted(snapshot):
    found = {name: rehearse(**change).warnings for name, change in POSSIBLE.items()}
    snapshot("warnings_of_dry_runs", "".join(f"{name}: {warnings}\n" for name, warnings in found.items()))


def test_one_hot_labels_and_missing_values_are_noted():
    x = X.clone()
    x[5, 1] = torch.nan

    class Patient(Around):
        def forward(self, x):
            return super().forward(torch.nan_to_num(x))

    one_hot = lab.Data(train=(x, nn.functional.one_hot(Y).float()), test=0.25)
    found = rehearse(data=lambda: one_hot, model=Patient).warnings
    assert found[0].startswith("labels look one-hot")
    assert found[1:] == ("train[0] has nan or infinity in 1 of 120 examples, first in 5",)


def test_classes_count_as_the_model_is_shown_them():
    """What collate makes of labels is what has to have an output."""
    train = [(x, y + 1) for x, y in zip(X, Y)]

    def collate(items):
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items]) - 1

    for given in (train, (X, Y + 1)):
        rehearse(data=lambda given=given: lab.Data(train=given, test=0.25, collate=collate))
    message = refusal(rehearse, data=lambda: lab.Data(train=train, test=0.25))
    assert "train has 1 to 2; number them from 0: y - 1" in message


# ---- steps

TOO_MANY = "study 'own': expected at least 3 epochs of 5 steps for steps=11; got epochs=2; give epochs=3 or fewer steps"


@pytest.mark.parametrize("by_worker", [False, True])
def test_more_steps_than_the_epochs_have_are_refused(tmp_path, by_worker):
    arguments = (run, tmp_path) if by_worker else (rehearse,)
    assert refusal(*arguments, steps=11) == TOO_MANY


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


def rates(scheduler, label="original"):
    trained, found = begin(label, scheduler=scheduler, schedule_by="step"), []
    for batch in trained.parts.train.batches(trained.order(0), seed=0):
        found.append(trained.learning_rate)
        trained.backward(trained.batch_loss(batch)[0])
        trained.update()
    return found


def test_a_factor_of_the_learning_rate_holds_under_schedulers_that_set_it():
    for scheduler in (
        lambda optimizer, total: SCHEDULERS.OneCycleLR(optimizer, 0.01, total),
        lambda optimizer, total: SCHEDULERS.CosineAnnealingLR(optimizer, total),
    ):
        slower = rates(scheduler, "original@0.1")
        assert slower == pytest.approx([0.1 * rate for rate in rates(scheduler)], rel=1e-12)
    cyclic = lambda optimizer, total: SCHEDULERS.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False)  # noqa: E731
    message = refusal(rates, cyclic, "original@0.1")
    assert "expected a scheduler that starts from the optimizer's learning rate for original@0.1; got Cyclic" in message


# ---- measures


MEASURED = [
    *({name: np.zeros(3)} for name in ("test_error", "test_labels", "test_predictions", "test_groups", "test_nll")),
    *[{"weights": np.zeros(3)}, {"nll": 1.0}, {"a": "text"}, {"a": None}, {"a": np.array([None, "x"], object)}],
    *[{"a": np.array(["x", "y"])}, {"a": np.zeros(2, complex)}, {"a": np.zeros(2, "datetime64[D]")}, None],
]


def measured(found, network, parts, seed):
    return found


@pytest.mark.parametrize("by_worker", [False, True])
def test_what_cannot_be_kept_of_a_measure_is_refused(tmp_path, refusals, by_worker):
    call = partial(run, tmp_path) if by_worker else rehearse
    refusals("refusals_of_measures", [partial(call, measure=partial(measured, found)) for found in MEASURED])


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
    class Returning(Around):
        def forward(self, x):
            return {"logits": super().forward(x), "loss": torch.tensor(2.5)}

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


class Counting(Around):
    """Keeps a number that no state_dict has."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x) / (1 + 0.1 * self.calls)


class Quantised(Around):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))


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
    diverging = {"optimizer": lambda network: torch.optim.SGD(network.parameters(), 1e30)}
    assert dry_run._resumption_warnings(lambda: begin(**diverging)) == []


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


def test_half_precision_is_rehearsed_with_its_scaler():
    plain, half = rehearse(), rehearse(precision="float16")
    for label, figures in half.behaviour["methods"].items():
        assert figures == pytest.approx(plain.behaviour["methods"][label], rel=0.02)


def test_a_last_batch_of_one_example_is_tried():
    def normalised():
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    examples = len(begin(model=normalised).parts.train)
    size = next(size for size in range(5, 40) if examples % size == 1)
    message = refusal(rehearse, model=normalised, batch_size=size)
    assert "training step with the 1 example of a pass's smallest batch (another batch_size has others)" in message
    rehearse(model=normalised, batch_size=size - 1)


# ---- several networks as one


def test_the_mean_of_networks_with_one_logit_is_that_of_their_probabilities():
    members = [nn.Linear(5, 1) for _ in range(3)]
    expected = torch.stack([member(X).sigmoid() for member in members]).mean(0)
    torch.testing.assert_close(Averaged(members)(X).sigmoid(), expected)
    torch.testing.assert_close(Averaged([nn.Flatten(0), nn.Flatten(0)])(X[:, :1]), X[:, 0])
    far = Averaged([nn.Identity(), nn.Identity()])(torch.tensor([[-200.0], [200.0]]))
    assert far.flatten().tolist() == pytest.approx([-200.0, 200.0])


def test_outputs_whose_classes_cannot_be_told_are_not_averaged():
    targets = torch.randint(2, (120, 3), generator=torch.Generator().manual_seed(0)).float()
    several = {
        "data": lambda: lab.Data(train=(X, targets), test=0.25, validation=0.2),
        "model": lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 3)),
    }
    rehearse(**several)
    message = refusal(rehearse, **several, networks=2)
    assert "expected logits [N, classes, ...] and classes [N, ...], or one logit per example, for networks=2" in message
    rehearse(networks=2)


class Hidden(Around):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.8, self.training)


def test_dropout_that_stays_on_is_said_beside_the_verdict(tmp_path):
    caveats = compare(tmp_path, model=Hidden).verdict.caveats
    (said,) = (each for each in caveats if each.startswith("Not all dropout of the model is compared"))
    assert said.endswith("1 place with dropout out of reach: Hidden; it stays on with every method, no dropout too.")
    assert not any("out of reach" in each for each in compare(tmp_path, name="other").verdict.caveats)


class Last(nn.Linear):
    def forward(self, found):
        return super().forward(found[0][:, -1])


def test_a_model_with_nothing_but_dropout_out_of_reach_is_told_where():
    message = refusal(
        rehearse, model=lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.LSTM(1, 4, 2, dropout=0.3), Last(4, 2))
    )
    assert "(out of reach is 1: between the layers of LSTM); put nn.Dropout where it" in message


def test_a_gradient_beyond_float16_is_no_change_and_can_be_exported(tmp_path):
    far = lab.Data(train=(100 * X, 1000 * X[:, :1] + 3000), test=0.25, validation=0.2)
    single = {"model": lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 1)), "task": "regression"}
    for _ in range(2):
        compare(tmp_path, name="far", metric="rmse", precision="float16", epochs=1, data=lambda: far, **single)
    with Store(tmp_path / "runs.db") as store:
        (record,) = store.protocols()
    assert None in record.description["behaviour"]["methods"]["original"]
    archive.export(tmp_path / "runs.db", tmp_path / "far.jsonl.gz")


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


class Averaging(Around):
    """Adds what it has counted in training to its output, and keeps it out of its state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen += self.training
        return super().forward(x) + self.seen


class Opaque(Averaging):
    def get_extra_state(self):
        return object()

    def set_extra_state(self, state):
        pass


def test_kept_weights_have_the_buffers_that_the_state_leaves_out(tmp_path):
    result = compare(tmp_path, model=Averaging, weights="last")
    assert result.model("original", 0).seen == 10  # two epochs of five steps


def test_weights_that_cannot_be_kept_are_told_before_the_training():
    assert "weights='last' cannot keep this model (" in (message := refusal(rehearse, model=Opaque, weights="last"))
    assert "object" in message
    assert message.endswith("); leave weights= out")
