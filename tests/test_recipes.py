"""Recipes: initial weights, optimisers against independent references, and going on where a run stopped."""

import io
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from contdrop.lab.methods import NAMES, parse
from contdrop.lab.models import CNN, MLP
from contdrop.lab.optimisers import PlateauOptimiser
from contdrop.lab.recipes import Adam, Authors, Glorot, Hinton, Normal, Plateau, Recipe

MODELS = (MLP((64, 7, 6, 5)), CNN(maps=(3, 4), kernel=3, hidden=7, classes=5, image=(1, 12, 12)))
RECIPES = (Hinton(learning_rate=3.0), Authors(), Plateau(patience=0.25), Adam())
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """In networks this small, threads that wait for each other are most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fresh(recipe, model, method="none", seed=0):
    network = model.build(parse(method), scale=recipe.scale)
    recipe.initialise(network, torch.Generator().manual_seed(seed))
    return network


def batches(model, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (1, 8, 8) if isinstance(model, MLP) else model.image
    for _ in range(count):
        yield torch.rand(8, *shape, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def backward(network, batch):
    images, labels = batch
    nn.functional.cross_entropy(network(images), labels).backward()


def weights(network):
    return [parameter.detach().clone() for parameter in network.parameters()]


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Initial weights.


@every_model
@pytest.mark.parametrize("initialisation", [Normal(0.01), Glorot()], ids=lambda i: i.kind)
def test_initial_weights_are_the_same_for_every_method(model, initialisation):
    recipe = Plateau(initialisation=initialisation)
    first = weights(fresh(recipe, model, "none"))
    assert all(equal(first, weights(fresh(recipe, model, name))) for name in NAMES)
    assert equal(first, weights(fresh(recipe, model)))
    assert not equal(first, weights(fresh(recipe, model, seed=1)))
    assert all((parameter == 0).all() for parameter in first if parameter.dim() == 1)


@every_model
def test_initialising_leaves_the_global_generator_alone(model):
    network = model.build(parse("none"), scale="paper")
    state = torch.get_rng_state()
    for initialisation in (Normal(), Glorot()):
        Plateau(initialisation=initialisation).initialise(network, torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_have_their_distribution():
    model = MLP((400, 300, 10))
    weight = weights(fresh(Plateau(initialisation=Normal(0.01)), model))[0]
    assert weight.std() == pytest.approx(0.01, rel=5 / math.sqrt(2 * weight.numel()))
    assert weight.mean().abs() < 5 * 0.01 / math.sqrt(weight.numel())
    bound = math.sqrt(6 / 700)
    weight = weights(fresh(Plateau(initialisation=Glorot()), model))[0]
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    kernels = weights(fresh(Plateau(initialisation=Glorot()), CNN()))[2]
    bound = math.sqrt(6 / (25 * (32 + 64)))
    assert 0.99 * bound < kernels.abs().max() <= bound


# Hinton et al.


def test_hinton_schedule_is_the_original_at_3000_epochs():
    network = nn.Linear(1, 1)
    optimiser = Hinton(learning_rate=10.0).optimiser(network, 3000)
    for epoch in (0, 1, 123, 499, 500, 501, 2999):
        optimiser.begin_epoch(epoch)
        share = epoch / 500
        momentum = share * 0.99 + (1 - share) * 0.5 if epoch < 500 else 0.99
        assert optimiser.state_dict()["momentum"] == momentum
        assert optimiser.learning_rate == 10 * 0.998**epoch


@pytest.mark.parametrize("epochs", [1, 2, 10, 12, 300, 6000])
def test_hinton_schedule_depends_on_the_fraction_of_the_run(epochs):
    network = nn.Linear(1, 1)
    original = Hinton(learning_rate=10.0).optimiser(network, 3000)
    compressed = Hinton(learning_rate=10.0).optimiser(network, epochs)
    for epoch in range(epochs):
        if (3000 * epoch) % epochs == 0:
            original.begin_epoch(3000 * epoch // epochs)
            compressed.begin_epoch(epoch)
            assert compressed.learning_rate == original.learning_rate
            assert compressed.state_dict()["momentum"] == original.state_dict()["momentum"]


def scaled_down(row, squared_length):
    squares = sum(w * w for w in row)
    return [w * math.sqrt(squared_length / squares) for w in row] if squares > squared_length else row


@every_model
def test_hinton_against_a_naive_reference(model):
    """The update of one number at a time, in double precision, from the same gradients."""
    recipe = Hinton(learning_rate=5.0, initialisation=Normal(0.3), squared_length=1.2)
    epochs, network = 4, fresh(recipe, model)
    optimiser = recipe.optimiser(network, epochs)
    parameters = list(network.parameters())
    output = parameters[-2]
    velocities = [[[0.0] * p[0].numel() for _ in p] for p in parameters]
    bounded = unbounded = 0
    for epoch in range(epochs):
        optimiser.begin_epoch(epoch)
        t = 3000 * epoch / epochs
        momentum = t / 500 * 0.99 + (1 - t / 500) * 0.5 if t < 500 else 0.99
        rate = 5.0 * 0.998**t
        for batch in batches(model, 3, seed=epoch):
            backward(network, batch)
            expected = []
            for parameter, velocity in zip(parameters, velocities):
                rows = parameter.detach().reshape(len(parameter), -1).tolist()
                for row, v, g in zip(rows, velocity, parameter.grad.reshape(len(parameter), -1).tolist()):
                    for i in range(len(row)):
                        v[i] = momentum * v[i] - (1 - momentum) * rate * g[i]
                        row[i] += v[i]
                if parameter.dim() > 1:
                    excess = sum(sum(w * w for w in row) > 1.2 for row in rows)
                    if parameter is output:
                        unbounded += excess
                    else:
                        bounded += excess
                        rows = [scaled_down(row, 1.2) for row in rows]
                expected.append(torch.tensor(rows).reshape(parameter.shape))
            optimiser.step()
            torch.testing.assert_close(weights(network), expected, rtol=1e-5, atol=1e-7)
    assert bounded > 10  # the bound was at work
    assert unbounded > 10  # and left the output layer alone


def test_rows_within_the_bound_are_not_touched():
    recipe = Hinton(learning_rate=0.0, squared_length=1.0)
    network = fresh(recipe, MODELS[0])
    with torch.no_grad():
        network.hidden1.linear.weight[0] = 1.0
    before = network.hidden1.linear.weight.detach().clone()
    optimiser = recipe.optimiser(network, 1)
    backward(network, next(batches(MODELS[0], 1)))
    optimiser.step()
    after = network.hidden1.linear.weight.detach()
    assert torch.equal(after[1:], before[1:])
    assert after[0].square().sum() == pytest.approx(1.0, rel=1e-6)


# The authors' code.


def test_authors_schedule_counts_from_one_and_is_the_original_at_3000_epochs():
    optimiser = Authors().optimiser(nn.Linear(1, 1), 3000)
    for epoch in (0, 1, 123, 498, 499, 500, 2999):
        optimiser.begin_epoch(epoch)
        t = epoch + 1
        momentum = 0.5 * (1 - t / 500) + 0.99 * t / 500 if t < 500 else 0.99
        assert optimiser.state_dict()["momentum"] == pytest.approx(momentum, rel=1e-12)
        assert optimiser.learning_rate == pytest.approx(0.998**t, rel=1e-12)
    optimiser.begin_epoch(0)
    assert optimiser.learning_rate == 0.998  # the first epoch has decayed already
    short = Authors().optimiser(nn.Linear(1, 1), 12)
    short.begin_epoch(6)
    assert short.learning_rate == pytest.approx(0.998**1501, rel=1e-12)


@pytest.mark.parametrize("bounded", ["outgoing", "incoming"])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_authors_against_naive_numpy_steps(bounded, sigmoid):
    """Their update in double precision from the same gradients: velocity of gradients, rate outside, then the bound."""
    initialisation = Glorot(gain=4.0, zero_output=True) if sigmoid else Glorot(zero_output=True)
    recipe = Authors(initialisation=initialisation, squared_length=0.2, bounded=bounded)
    model = MLP((64, 7, 6, 5), "sigmoid" if sigmoid else "relu")
    network, epochs = fresh(recipe, model), 4
    optimiser = recipe.optimiser(network, epochs)
    expected = [p.detach().double().numpy().copy() for p in network.parameters()]
    velocity = [np.zeros_like(w) for w in expected]
    bounds = 0
    for epoch in range(epochs):
        optimiser.begin_epoch(epoch)
        t = 1 + 3000 * epoch / epochs
        p = 0.5 + (0.99 - 0.5) * min(t / 500, 1)
        for batch in batches(model, 3, seed=epoch):
            backward(network, batch)
            for i, parameter in enumerate(network.parameters()):
                velocity[i] = p * velocity[i] + (1 - p) * parameter.grad.double().numpy()
                expected[i] = expected[i] - 0.998**t * velocity[i]
                is_output = i == len(expected) - 2
                if expected[i].ndim == 2 and (bounded == "outgoing" or not is_output):
                    # Of [out, in]: a row comes in to a unit of this layer, a column goes out of one of the layer below.
                    squares = (expected[i] ** 2).sum(0 if bounded == "outgoing" else 1, keepdims=True)
                    bounds += (squares > 0.2).sum()
                    expected[i] = expected[i] * np.sqrt(np.minimum(1, 0.2 / np.maximum(squares, 1e-300)))
            optimiser.step()
            for parameter, wanted in zip(network.parameters(), expected):
                np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=0, atol=1e-6)
                wanted[...] = parameter.detach().double().numpy()  # single steps: errors do not add up
    assert bounds > 3


def test_authors_initial_weights():
    model = MLP((400, 300, 200, 10))
    for gain in (1.0, 4.0):
        first, _, second, _, output, bias = weights(
            fresh(Authors(initialisation=Glorot(gain, zero_output=True)), model)
        )
        assert (output == 0).all()
        assert (bias == 0).all()
        for weight, fans in ((first, 700), (second, 500)):
            bound = gain * math.sqrt(6 / fans)
            assert 0.99 * bound < weight.abs().max() <= bound


def test_authors_drop_inputs_except_without_dropout():
    recipe = Authors()
    assert [recipe.input_keep_of(name) for name in ("none", "bernoulli", "adaptive-authors")] == [1.0, 0.8, 0.8]
    assert Hinton(learning_rate=1.0, input_keep=0.9).input_keep_of("none") == 0.9
    network = MODELS[0].build(parse("bernoulli"), scale=recipe.scale, input_keep=recipe.input_keep)
    x = torch.rand(3, 64) + 0.5
    with torch.no_grad():
        torch.testing.assert_close(network.eval().input(x), 0.8 * x)
        torch.manual_seed(0)
        assert set((network.train().input(x) / x).unique().tolist()) == {0.0, 1.0}


def test_bound_has_to_be_known():
    with pytest.raises(ValueError, match="Authors: expected bounded to be one of 'incoming', 'outgoing'; got 'both'"):
        Authors(bounded="both")


def test_hinton_is_for_masks_that_are_not_rescaled():
    assert Hinton(learning_rate=1.0).scale == "paper"
    assert Hinton(learning_rate=1.0).initialisation == Normal(0.01)


# Plateau and Adam.


@every_model
@pytest.mark.parametrize(
    ("recipe", "reference"),
    [
        (Plateau(), lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
        (Plateau(learning_rate=0.3, momentum=0.5), lambda p: torch.optim.SGD(p, 0.3, momentum=0.5)),
        (Adam(), lambda p: torch.optim.Adam(p, 0.005)),
        (Adam(learning_rate=0.1, betas=(0.5, 0.9)), lambda p: torch.optim.Adam(p, 0.1, betas=(0.5, 0.9))),
    ],
    ids=["sgd", "sgd-fast", "adam", "adam-fast"],
)
def test_against_torch(model, recipe, reference):
    network, copy = fresh(recipe, model), fresh(recipe, model)
    optimiser, peer = recipe.optimiser(network, 2), reference(list(copy.parameters()))
    for batch in batches(model, 20):
        backward(network, batch)
        optimiser.step()
        peer.zero_grad()
        backward(copy, batch)
        peer.step()
        torch.testing.assert_close(weights(network), weights(copy), rtol=1e-4, atol=1e-6)


def test_plateau_goes_on_with_the_new_rate():
    recipe = Plateau(factors=(0.1,))
    network, copy = fresh(recipe, MODELS[0]), fresh(recipe, MODELS[0])
    optimiser, peer = recipe.optimiser(network, 2), torch.optim.SGD(copy.parameters(), 0.01, momentum=0.9)
    for number, batch in enumerate(batches(MODELS[0], 10)):
        if number == 5:
            for _ in range(3):
                optimiser.end_epoch(1.0)
            peer.param_groups[0]["lr"] = 0.001
        backward(network, batch)
        optimiser.step()
        peer.zero_grad()
        backward(copy, batch)
        peer.step()
    torch.testing.assert_close(weights(network), weights(copy))


def rates(losses, epochs, patience=0.1, factors=(0.5, 0.1)):
    optimiser = Plateau(learning_rate=1.0, patience=patience, factors=factors).optimiser(nn.Linear(1, 1), epochs)
    found = []
    for epoch, loss in enumerate(losses):
        optimiser.begin_epoch(epoch)
        found.append(optimiser.learning_rate)
        optimiser.end_epoch(loss)
    return found


def test_plateau_lowers_the_rate():
    assert rates([5, 4, 3, 2, 1], 10) == [1, 1, 1, 1, 1]
    # Two epochs make a plateau; a new lowest loss starts the count anew; the factors come in turn.
    assert rates([5, 5, 4, 4, 5, 6, 6, 7], 20) == pytest.approx([1, 1, 1, 1, 1, 0.5, 0.5, 0.05])
    assert rates([5] * 8, 20) == pytest.approx([1, 1, 1, 0.5, 0.5, 0.05, 0.05, 0.025])
    # Twice the epochs, twice the patience; but one epoch is never enough.
    assert rates([5] * 10, 40) == pytest.approx([1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.05])
    assert rates([5] * 5, 3) == pytest.approx([1, 1, 1, 0.5, 0.5])
    assert rates([5, 5, 5, 5, 5, 5], 10, patience=0.3, factors=(0.1,)) == pytest.approx([1, 1, 1, 1, 0.1, 0.1])


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_plateau_against_a_naive_reference(patience):
    """An epoch is flat if some earlier one was as good; count flat ones since the last change."""
    losses = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(patience)).tolist()
    losses = [loss + 60 - epoch // 5 for epoch, loss in enumerate(losses)]
    expected, rate, flat, changes = [], 1.0, 0, 0
    for epoch, loss in enumerate(losses):
        expected.append(rate)
        flat = flat + 1 if epoch and min(losses[:epoch]) <= loss else 0
        if flat == patience:
            rate, flat, changes = rate * (0.5, 0.9)[changes % 2], 0, changes + 1
    assert changes > 10
    optimiser = PlateauOptimiser(nn.Linear(1, 1), 1.0, 0.9, (0.5, 0.9), patience)
    for rate, loss in zip(expected, losses):
        assert optimiser.learning_rate == rate
        optimiser.end_epoch(loss)


def test_patience_is_measured_in_the_run():
    def patience(epochs):
        return Plateau(patience=0.1).optimiser(nn.Linear(1, 1), epochs)._patience

    assert [patience(epochs) for epochs in (1, 10, 20, 24, 26, 100)] == [2, 2, 2, 2, 3, 10]


# What all have in common.


# For the plateau recipe: two plateaus of two epochs, and a count that is under way at most of the ends of epochs.
LOSSES = [3.0, 3.1, 2.0, 2.5, 2.6, 2.7, 2.8, 1.0]
EPOCHS = len(LOSSES)


def train(network, optimiser, model, epochs):
    for epoch in epochs:
        torch.manual_seed(epoch)
        optimiser.begin_epoch(epoch)
        for batch in batches(model, 4, seed=epoch):
            backward(network, batch)
            optimiser.step()
        optimiser.end_epoch(LOSSES[epoch])


@every_recipe
@every_model
def test_a_loaded_run_goes_on_bit_for_bit(recipe, model):
    whole = fresh(recipe, model, "gaussian")
    whole_optimiser = recipe.optimiser(whole, EPOCHS)
    train(whole, whole_optimiser, model, range(EPOCHS))
    for stop in range(1, EPOCHS):
        first = fresh(recipe, model, "gaussian")
        optimiser = recipe.optimiser(first, EPOCHS)
        train(first, optimiser, model, range(stop))
        file = io.BytesIO()
        torch.save({"network": first.state_dict(), "optimiser": optimiser.state_dict()}, file)
        train(first, optimiser, model, range(stop, stop + 1))  # what is saved does not change any more
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        second = fresh(recipe, model, "gaussian", seed=7)
        resumed = recipe.optimiser(second, EPOCHS)
        second.load_state_dict(saved["network"])
        resumed.load_state_dict(saved["optimiser"])
        train(second, resumed, model, range(stop, EPOCHS))
        assert equal(weights(second), weights(whole))
        assert resumed.learning_rate == whole_optimiser.learning_rate


@every_recipe
def test_a_run_loaded_within_an_epoch_goes_on_bit_for_bit(recipe):
    model = MODELS[0]
    first, second = fresh(recipe, model), fresh(recipe, model)
    optimiser, resumed = recipe.optimiser(first, EPOCHS), recipe.optimiser(second, EPOCHS)
    train(first, optimiser, model, range(4))
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(optimiser.state_dict())
    for batch in batches(model, 3):
        for network, one in ((first, optimiser), (second, resumed)):
            backward(network, batch)
            one.step()
    assert equal(weights(first), weights(second))


@every_recipe
def test_two_runs_are_the_same(recipe):
    networks = [fresh(recipe, MODELS[0], "gaussian") for _ in range(2)]
    for network in networks:
        train(network, recipe.optimiser(network, EPOCHS), MODELS[0], range(EPOCHS))
    assert equal(weights(networks[0]), weights(networks[1]))
    assert not equal(weights(networks[0]), weights(fresh(recipe, MODELS[0])))


@every_recipe
def test_state_of_another_network_is_refused(recipe):
    optimiser = recipe.optimiser(nn.Linear(3, 2), 1)
    with pytest.raises(ValueError, match=r"expected shapes \[\(2, 3\), \(2,\)\], got \[\(2, 1\), \(2,\)\]"):
        optimiser.load_state_dict(recipe.optimiser(nn.Linear(1, 2), 1).state_dict())


@every_recipe
def test_step_uses_up_the_gradients(recipe):
    network = fresh(recipe, MODELS[0])
    optimiser = recipe.optimiser(network, 1)
    backward(network, next(batches(MODELS[0], 1)))
    optimiser.step()
    assert all(parameter.grad is None for parameter in network.parameters())
    with pytest.raises(AssertionError, match=r"step\(\) comes after backward\(\)"):
        optimiser.step()


@every_recipe
def test_as_dict_is_what_json_gives_back(recipe):
    described = recipe.as_dict()
    assert json.loads(json.dumps(described)) == described
    assert isinstance(recipe, Recipe)


def test_as_dict_says_all():
    assert Hinton(learning_rate=3.0).as_dict() == {
        "kind": "hinton",
        "batch_size": 100,
        "initialisation": {"kind": "normal", "std": 0.01},
        "scale": "paper",
        "input_keep": 1.0,
        "whole_inputs": [],
        "shuffle": True,
        "learning_rate": 3.0,
        "decay": 0.998,
        "momentum": [0.5, 0.99],
        "ramp_epochs": 500,
        "original_epochs": 3000,
        "squared_length": 15.0,
    }
    assert Adam().as_dict()["initialisation"] == {"kind": "glorot", "gain": 1.0, "zero_output": False}
    assert Authors().as_dict() == {
        "kind": "authors",
        "batch_size": 100,
        "initialisation": {"kind": "glorot", "gain": 1.0, "zero_output": True},
        "scale": "paper",
        "input_keep": 0.8,
        "whole_inputs": ["none"],
        "shuffle": False,
        "learning_rate": 1.0,
        "decay": 0.998,
        "momentum": [0.5, 0.99],
        "ramp_epochs": 500,
        "original_epochs": 3000,
        "squared_length": 15.0,
        "bounded": "outgoing",
    }
    assert Plateau(initialisation=Glorot()).as_dict() == {
        "kind": "plateau",
        "batch_size": 64,
        "initialisation": {"kind": "glorot", "gain": 1.0, "zero_output": False},
        "scale": "paper",
        "input_keep": 1.0,
        "whole_inputs": [],
        "shuffle": True,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "factors": [0.5, 0.1],
        "patience": 0.1,
    }


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"scale": "half"}, {"input_keep": 0.0}, {"input_keep": 1.1}])
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ValueError, match="Adam: expected batch_size >= 1, scale to be one of inverted, paper, and 0 <"):
        Adam(**wrong)
