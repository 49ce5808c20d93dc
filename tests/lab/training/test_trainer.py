"""Training: paired, bit-exact when resumed, blind to test data in the selection, and honest about divergence."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from contdrop.lab.data.data import prepare
from contdrop.lab.store.schema import FAILED, FINAL, FINISHED, SELECTION
from contdrop.lab.store.writer import Store
from contdrop.lab.study.dry_run import dry_run
from contdrop.lab.study.plan import PlannedJob, StudyPlan, Variant, add_plan
from contdrop.lab.study.study import Study
from contdrop.lab.training import job as running
from contdrop.lab.training import random_streams, trainer
from contdrop.lab.training.trainer import DivergenceError, Trainer
from contdrop.replication.networks import CNN, MLP
from contdrop.replication.recipes import Adam, Authors, Hinton, LayeredPlateau, Plateau, Steps
from contdrop.replication.studies.common import Images, InOrder

METHODS = (
    *("none", "bernoulli", "uniform", "gaussian", "adaptive", "dropconnect", "fast", "bernoulli-matched"),
    *("adaptive-authors", "dropconnect-authors"),
)
DATA = Images("digits", train=80, validation=40)
pytestmark = pytest.mark.usefixtures("one_thread")
STUDY = Study(
    name="some",
    data=DATA,
    model=MLP(widths=(64, 24, 16, 10), divisor=16.0),
    methods=METHODS,
    reference="gaussian",
    metric="error",
).replace(**Adam(batch_size=30).settings())


@pytest.fixture(scope="module")
def images():
    return prepare(DATA(), task="classification")


def job(method="gaussian", *, run=0, stage=FINAL, epochs=3, **changes):
    settings = changes.pop("recipe").settings() if "recipe" in changes else {}
    study = STUDY.replace(**settings, **changes)
    return PlannedJob(StudyPlan(study, "study", epochs, 1, epochs, 0), stage, method, run)


def start(images, method="gaussian", **options):
    return Trainer(job(method, **options), Variant.parse(method), images)


def exact(epoch):
    return epoch._replace(seconds=0.0)


def recorded(images, method="gaussian", *, epochs=2, **options):
    """The inputs of all training batches, in a list by epoch, and the trainer."""
    seen = []

    def forward(model, batch):
        if model.training:
            seen[-1].append(batch[0].flatten(1).clone())
        return model(batch[0])

    trained = start(images, method, forward=forward, **options)
    for _ in range(epochs):
        seen.append([])
        trained.run_epoch()
    return seen, trained


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.db", create=True) as opened:
        yield opened


def run(store, wanted, data, **options):
    """Run a job in a store; returns its id."""
    (number,) = add_plan(store, [wanted])
    running.run(store, number, wanted, Variant.parse(wanted.method), data, **options)
    return number


def weights(training):
    return {name: value.clone() for name, value in training.network.state_dict().items()}


RECIPES = {
    "adam": Adam(batch_size=30),
    "hinton": Hinton(learning_rate=1.0, batch_size=30),
    "authors": Authors(batch_size=30),
    "plateau": Plateau(),
    "layered-plateau": LayeredPlateau(),
}


def resume(begin, *, epochs, interrupted):
    """Train with an interruption, and check that nothing differs from training without one; returns both trainers."""
    whole, first, second = (begin(epochs=epochs) for _ in range(3))
    undisturbed = [exact(whole.run_epoch()) for _ in range(epochs)]
    resumed = [exact(first.run_epoch()) for _ in range(interrupted)]
    state = b"".join(first.state())
    torch.rand(17)  # other draws from the global generator
    second.restore(state)
    resumed += [exact(second.run_epoch()) for _ in range(epochs - interrupted)]
    assert resumed == undisturbed
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(whole).items())
    assert second.results()[0] == whole.results()[0]
    return first, second


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_resumption_is_bit_exact(images, method, recipe):
    resume(partial(start, images, method, recipe=RECIPES[recipe]), epochs=4, interrupted=2)


def test_resumption_is_bit_exact_for_a_convolutional_network(images):
    model = CNN(maps=(4,), kernel=3, hidden=8, image=(1, 8, 8), divisor=16.0)
    resume(partial(start, images, model=model, recipe=Plateau(batch_size=20)), epochs=3, interrupted=1)


def test_methods_of_a_run_share_all_but_masks(images):
    shared = [start(images, method).fingerprints for method in METHODS]
    assert all(found == shared[0] for found in shared)
    assert set(shared[0]) == {"data", "split", "initial weights", "data order"}
    seeds = [start(images, method).seeds for method in ("uniform", "gaussian")]
    assert seeds[0].pop("masks") != seeds[1].pop("masks")
    assert seeds[0] == seeds[1]


def test_runs_and_stages_share_nothing_but_the_data(images):
    base = start(images).fingerprints
    for options in ({"run": 1}, {"stage": SELECTION}):
        other = start(images, **options).fingerprints
        assert other.pop("data") == base["data"]
        assert not set(other.values()) & set(base.values())


def test_mask_draws_do_not_shift_the_data_order(images):
    """A method that draws many masks and one that draws none see the same batches in the same epoch."""
    for one, other in zip(*(recorded(images, method)[0] for method in ("none", "dropconnect")), strict=True):
        assert torch.equal(torch.cat(one), torch.cat(other))


def test_order_changes_from_epoch_to_epoch_unless_it_is_fixed(images):
    shuffled = start(images)
    orders = [torch.cat(shuffled.order(epoch)) for epoch in (0, 1)]
    assert not torch.equal(*orders)
    assert torch.equal(orders[1].sort().values, torch.arange(80))
    fixed = start(prepare(dataclasses.replace(DATA, batches=InOrder(100))(), task="classification"))
    for epoch in (0, 2):
        assert torch.equal(torch.cat(fixed.order(epoch)), torch.arange(80))
    seen = [torch.cat(batches) for batches in recorded(images, epochs=3)[0]]
    assert len({tuple(order.flatten().tolist()) for order in seen}) == 3
    assert len({frozenset(map(tuple, order.tolist())) for order in seen}) == 1
    assert len(set(map(tuple, seen[0].tolist()))) == 80


def seeds_of_masks(images, method, **options):
    """What torch's generator was seeded with at the first batch of each epoch."""
    trained, seen, found = start(images, method, **options), [], []
    trained.network.register_forward_pre_hook(
        lambda network, _: seen.append(torch.initial_seed()) if network.training else None
    )
    for _ in range(2):
        seen.clear()
        trained.run_epoch()
        assert len(set(seen)) == 1, "nothing seeds the generator within an epoch"
        found.append(seen[0])
    return found


def test_masks_have_a_seed_for_every_method_run_and_epoch(images):
    """Else two methods would be dropped the same units, and errors would look more alike than they are."""
    first = seeds_of_masks(images, "gaussian")
    assert first == seeds_of_masks(images, "gaussian")
    others = [*seeds_of_masks(images, "gaussian", run=1)]
    for method in ("uniform", "bernoulli", "gaussian:sigma=0.4"):
        others += seeds_of_masks(images, method)
    assert len({*first, *others}) == 2 + len(others)


def test_fingerprint_of_the_order_knows_seeds_and_orders(images, monkeypatch):
    first = start(images).fingerprints["data order"]
    assert start(images, "none").fingerprints["data order"] == first
    fixed = prepare(dataclasses.replace(DATA, batches=InOrder(100))(), task="classification")
    assert start(fixed).fingerprints["data order"] != first
    seeds = random_streams.seed
    monkeypatch.setattr(random_streams, "seed", lambda *key: seeds(*key) + (key[3:] == ("order", 1)))  # a middle epoch
    assert start(images).fingerprints["data order"] != first
    monkeypatch.undo()
    permutation = random_streams.permutation
    monkeypatch.setattr(random_streams, "permutation", lambda *given: permutation(*given)[::-1].copy())
    assert start(images).fingerprints["data order"] != first


def test_the_default_optimizer_is_the_fused_one_where_it_can_be(images):
    assert start(images, optimizer=None, scheduler=None).optimizer.defaults["fused"]
    factors = torch.nn.ParameterList([torch.ones(3, dtype=torch.complex64)])  # of which the fused one knows nothing
    plain = trainer._adamw(factors)
    factors[0].abs().sum().backward()
    plain.step()
    assert factors[0].abs().max() < 1


def test_an_optimizer_may_forget_gradients_in_its_own_way(images):
    class Own(torch.optim.SGD):
        calls = 0

        def zero_grad(self, set_to_none=True):
            Own.calls += 1
            super().zero_grad(set_to_none)

    own = start(images, optimizer=lambda model: Own(model.parameters(), 0.1), scheduler=None)
    own.run_epoch()
    assert Own.calls == own.step > 0
    assert all(parameter.grad is None for parameter in own.network.parameters())


def test_selection_never_touches_test_data(images, store):
    class Blind:
        fingerprint = images.fingerprint

        def parts(self, *given):
            return dataclasses.replace(images.parts(*given), test=None)

    record = store.job(run(store, job("none", stage=SELECTION), Blind()))
    assert record.status == FINISHED
    assert {"val_error", "train_error"} <= set(record.results)
    assert not any(name.startswith("test") for name in record.results)


def test_finished_job_has_everything(images, store):
    epochs = []
    number = run(store, job("gaussian:sigma=0.3"), images, checkpoint_seconds=0, after_epoch=epochs.append)
    record, stored = store.job(number), store.epochs(number)
    predictions, labels = (store.artefact(number, f"test_{what}") for what in ("predictions", "labels"))
    assert record.status == FINISHED
    assert stored == epochs
    assert [epoch.epoch for epoch in stored] == [1, 2, 3]
    assert record.results["test_error"] == pytest.approx(100 * np.mean(predictions != labels))
    assert record.results["test_error"] == stored[-1].test_error
    assert record.results["val_error"] == stored[-1].val_error
    assert record.results["relative_variance"] == pytest.approx(0.3018, abs=1e-4)
    assert record.results["mean"] == 1.0  # masks are scaled
    assert {"torch", "numpy", "contdrop", "python", "backend"} <= set(record.versions)
    assert record.machine["threads"] == 1


def test_job_goes_on_from_its_checkpoint(images, store):
    """Interrupted after two of three epochs, of which only the first was saved."""
    undisturbed = start(images)
    expected = [exact(undisturbed.run_epoch()) for _ in range(3)]

    class Killed(BaseException):
        pass

    def kill_after_two(epoch):
        if epoch.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        run(store, job(), images, checkpoint_seconds=0, after_epoch=kill_after_two)
    (number,) = (record.id for record in store.jobs())
    assert store.checkpoint(number)[0] == 1
    seen = []
    assert run(store, job(), images, checkpoint_seconds=0, after_epoch=seen.append) == number
    assert [epoch.epoch for epoch in seen] == [2, 3]
    assert [exact(epoch) for epoch in store.epochs(number)] == expected


@pytest.mark.filterwarnings("ignore:overflow")
def test_divergence_is_a_failed_run_with_its_reason(images, store):
    wanted = job("none", recipe=Plateau(learning_rate=1e30))
    trained = Trainer(wanted, Variant.parse("none"), images)
    with pytest.raises(DivergenceError, match="loss is"):
        list(iter(trained.run_epoch, None))
    record = store.job(run(store, wanted, images))
    assert record.status == FAILED
    assert "diverged: the" in record.error
    assert "in epoch" in record.error


def test_mismatched_job_is_a_failed_run(images, store):
    run(store, job("none"), images)
    number = run(store, job("uniform"), dataclasses.replace(images, fingerprint="other data"))
    assert store.job(number).error == "uniform and none do not share the same data, so they are not paired"


# ---- epochs by steps, and several networks in a run

BY_STEPS = {"epoch_steps": 2, "recipe": Steps(batch_size=30, learning_rate=0.1)}  # three batches make a pass


@pytest.mark.parametrize("networks", [1, 2])
def test_resumption_from_the_middle_of_a_pass_is_bit_exact(images, networks):
    first, second = resume(partial(start, images, **BY_STEPS, networks=networks), epochs=5, interrupted=2)
    assert (first.step, first.passes, first.shown) == (4, 1, 1)
    assert (second.is_over, second.step) == (True, 10)


def test_epochs_by_steps_show_the_passes_one_after_another(images):
    """Every example once before any comes again, whatever the number of steps between evaluations."""
    by_epoch, trained = recorded(images, **BY_STEPS, epochs=3)
    seen = [batch for batches in by_epoch for batch in batches]
    assert trained.is_over
    assert [len(batch) for batch in seen] == [30, 30, 20] * 2
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(first, second)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, second.tolist()))


def test_networks_of_a_run_differ_and_their_mean_probabilities_count(images):
    (orders,), trained = recorded(images, networks=2, epochs=1)
    alone = start(images)
    one, other = trained.network
    for name, value in alone.network.named_parameters():
        assert not torch.equal(one.state_dict()[name], other.state_dict()[name]) or "bias" in name
        assert torch.equal(weights(start(images, networks=2))[f"0.{name}"], value)
    assert not torch.equal(orders[0], orders[1])
    found = trained.evaluate(trained.parts.test)
    x, y = next(trained.parts.test.batches(trained.parts.test.order(None, len(trained.parts.test))))
    with torch.no_grad():
        probabilities = (one(x).softmax(1) + other(x).softmax(1)) / 2
    assert found.loss == pytest.approx(float(-probabilities.gather(1, y[:, None]).log().mean()), rel=1e-4)
    wrong = (probabilities.argmax(1) != y).numpy()
    assert found.contributions["error"].mean() == pytest.approx(100 * wrong.mean())


def test_a_network_of_a_run_learns_as_it_would_alone(images):
    """They share an optimizer and nothing else; without masks, which come from one generator."""
    pair, alone = (start(images, "none", **BY_STEPS, networks=networks) for networks in (2, 1))
    for trained in (pair, alone):
        trained.run_epoch()
    for name, value in weights(alone).items():
        assert torch.equal(pair.network[0].state_dict()[name], value)


def test_several_networks_are_in_the_configuration_only_if_they_change_something(images):
    """So stores that were begun before there were epochs by steps and several networks are gone on with."""
    assert not {"epoch_steps", "networks"} & set(STUDY.configuration["training"])
    changed = STUDY.replace(epoch_steps=5, networks=2).configuration["training"]
    assert (changed["epoch_steps"], changed["networks"]) == (5, 2)
    assert dry_run([job("gaussian", networks=2)], images).warnings == ()
