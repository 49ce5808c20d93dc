"""Recipes: initial weights, optimizers and schedules against independent references, and resumption."""

import copy
import dataclasses
import json
import math
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from contdrop.lab.study.methods import NAMES, parse
from contdrop.lab.training import checkpoint
from contdrop.replication.networks import CNN, MLP
from contdrop.replication.networks.models import Glorot, Normal
from contdrop.replication.recipes import (
    Adam,
    AlternatingPlateau,
    Authors,
    EpochTable,
    Hinton,
    LayeredPlateau,
    Plateau,
    RampOptimizer,
    Steps,
)

SMALL = {"maps": (3, 4), "kernel": 3, "hidden": 7, "classes": 5, "image": (1, 12, 12)}
MODELS = (MLP((64, 7, 6, 5), scale="paper"), CNN(**SMALL, scale="paper"))
RECIPES = (Hinton(learning_rate=3.0), Authors(), Plateau(patience=0.25), LayeredPlateau(patience=0.25), Adam())
pytestmark = pytest.mark.usefixtures("one_thread")
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)


def fresh(model, method="none", seed=0):
    torch.manual_seed(seed)
    return model(parse(method))


def with_weights(model, initialisation):
    return dataclasses.replace(model, initialisation=initialisation)


class Trainer:
    """What a study's loop does with the settings of a recipe."""

    def __init__(self, recipe, network, epochs):
        settings = recipe.settings()
        assert settings["schedule_by"] == "epoch"
        self.network = network
        self.optimizer = settings["optimizer"](network)
        self.scheduler = settings["scheduler"](self.optimizer, epochs) if settings["scheduler"] else None

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]

    @property
    def momentum(self):
        return self.optimizer.param_groups[0]["momentum"]

    def step(self, batch=None):
        self.optimizer.zero_grad()
        if batch:
            backward(self.network, batch)
        self.optimizer.step()

    def end_epoch(self, loss=1.0):
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler:
            self.scheduler.step()

    def parts(self):
        return [each for each in (self.network, self.optimizer, self.scheduler) if each]

    def state(self):
        return b"".join(checkpoint.parts({str(n): part.state_dict() for n, part in enumerate(self.parts())}))


def schedule(recipe, epochs):
    """(rate, momentum) of each epoch."""
    trainer, found = Trainer(recipe, nn.Linear(1, 1), epochs), []
    trainer.step()  # without which torch warns
    for _ in range(epochs):
        found.append((trainer.rate, trainer.momentum))
        trainer.end_epoch()
    return found


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
def test_initial_weights_follow_from_the_seed_alone(model, initialisation):
    model = with_weights(model, initialisation)
    first = weights(fresh(model))
    assert all(equal(first, weights(fresh(model, name))) for name in NAMES)
    assert not equal(first, weights(fresh(model, seed=1)))
    assert all((parameter == 0).all() for parameter in first if parameter.dim() == 1)
    expected = fresh(model, "gaussian")
    before = torch.get_rng_state()
    initialisation.apply(expected, torch.Generator().manual_seed(17))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(17)
    torch.rand(5)  # what was drawn since does not matter
    assert equal(weights(model(parse("gaussian"))), weights(expected))


def assert_uniform(weight, bound):
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_weights_have_their_distribution():
    weight = weights(fresh(MLP((400, 300, 10), initialisation=Normal(0.01))))[0]
    assert weight.std() == pytest.approx(0.01, rel=5 / math.sqrt(2 * weight.numel()))
    assert weight.mean().abs() < 5 * 0.01 / math.sqrt(weight.numel())
    assert_uniform(weights(fresh(MLP((400, 300, 10), initialisation=Glorot())))[0], math.sqrt(6 / 700))
    assert_uniform(weights(fresh(CNN(initialisation=Glorot())))[2], math.sqrt(6 / (25 * (32 + 64))))


def test_output_weights_may_start_at_zero():
    for gain in (1.0, 4.0):
        model = MLP((400, 300, 200, 10), initialisation=Glorot(gain, zero_output=True))
        first, _, second, _, output, bias = weights(fresh(model))
        assert not output.any()
        assert not bias.any()
        for weight, fans in ((first, 700), (second, 500)):
            assert_uniform(weight, gain * math.sqrt(6 / fans))


# The ramps of Hinton et al. and of the authors' code.


def ramp_at(recipe, epoch, epochs):
    """Rate and momentum of an epoch."""
    t = isinstance(recipe, Authors) + 3000 * epoch / epochs
    return recipe.learning_rate * 0.998**t, t / 500 * 0.99 + (1 - t / 500) * 0.5 if t < 500 else 0.99


@pytest.mark.parametrize("recipe", [Hinton(learning_rate=10.0), Authors()], ids=lambda recipe: recipe.kind)
@pytest.mark.parametrize("epochs", [1, 2, 10, 12, 300, 3000, 6000])
def test_ramps_depend_on_the_fraction_of_the_run(recipe, epochs):
    """At 3000 epochs they are the original; that of the authors' code counts from one."""
    found = schedule(recipe, epochs)
    for epoch in {0, 1, 5, 123, 498, 499, 500, 501, 2999} & set(range(epochs)):
        assert found[epoch] == pytest.approx(ramp_at(recipe, epoch, epochs), rel=1e-12)
    assert found[0] == (pytest.approx((10.0, 0.5)) if recipe.kind == "hinton" else pytest.approx((0.998, 0.50098)))


ZERO = Glorot(zero_output=True)
RAMPS = [
    *((Hinton(learning_rate=5.0, squared_length=1.2), with_weights(model, Normal(0.3)), 10) for model in MODELS),
    *(
        (Authors(squared_length=0.2, bounded=bounded), MLP((64, 7, 6, 5), activation, initialisation=initialisation), 0)
        for bounded in ("outgoing", "incoming")
        for activation, initialisation in (("relu", ZERO), ("sigmoid", Glorot(gain=4.0, zero_output=True)))
    ),
]


@pytest.mark.parametrize(("recipe", "model", "left"), RAMPS)
def test_ramps_against_naive_steps(recipe, model, left):
    """The update in double precision from the same gradients, one step at a time, and then the bound."""
    network, epochs, in_velocity = fresh(model), 4, isinstance(recipe, Hinton)
    trainer = Trainer(recipe, network, epochs)
    expected = [p.detach().double().numpy().copy() for p in network.parameters()]
    velocity = [np.zeros_like(w) for w in expected]
    outgoing = getattr(recipe, "bounded", "incoming") == "outgoing"
    shortened = unbounded = 0
    for epoch in range(epochs):
        rate, momentum = ramp_at(recipe, epoch, epochs)
        inside, outside = (rate, 1.0) if in_velocity else (1.0, rate)
        for batch in batches(model, 3, seed=epoch):
            backward(network, batch)
            for i, parameter in enumerate(network.parameters()):
                gradient = parameter.grad.double().numpy()
                velocity[i] = momentum * velocity[i] + (1 - momentum) * inside * gradient
                expected[i] -= outside * velocity[i]
                if expected[i].ndim < 2:
                    continue
                # Of [out, in]: a row comes in to a unit of this layer, a column goes out of one of the layer below.
                others = tuple(axis for axis in range(expected[i].ndim) if axis != outgoing)
                squares = (expected[i] ** 2).sum(others, keepdims=True)
                excess = (squares > recipe.squared_length).sum()
                if i == len(expected) - 2 and not outgoing:
                    unbounded += excess
                else:
                    shortened += excess
                    expected[i] *= np.sqrt(np.minimum(1, recipe.squared_length / np.maximum(squares, 1e-300)))
            trainer.optimizer.step()
            network.zero_grad()
            for parameter, wanted in zip(network.parameters(), expected):
                np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-5, atol=1e-6)
                wanted[...] = parameter.detach().double().numpy()  # single steps: errors do not add up
        trainer.end_epoch()
    assert shortened > max(3, left)  # the bound was at work
    assert unbounded >= left  # and left the output layer alone


# Plateau and Adam.


@every_model
@pytest.mark.parametrize(
    ("recipe", "reference"),
    [
        (Plateau(), lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, fused=True)),
        (Plateau(learning_rate=0.3, momentum=0.5), lambda p: torch.optim.SGD(p, 0.3, momentum=0.5, fused=True)),
        (Adam(), lambda p: torch.optim.Adam(p, 0.005, fused=True)),
        (Adam(learning_rate=0.1, betas=(0.5, 0.9)), lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.9), 1e-8, fused=True)),
    ],
    ids=["sgd", "sgd-fast", "adam", "adam-fast"],
)
def test_against_torch_bit_for_bit(model, recipe, reference):
    model = with_weights(model, Glorot())
    network, copied = fresh(model), fresh(model)
    trainer, peer = Trainer(recipe, network, 2), reference(list(copied.parameters()))
    for batch in batches(model, 20):
        trainer.step(batch)
        peer.zero_grad()
        backward(copied, batch)
        peer.step()
        assert equal(weights(network), weights(copied))


@pytest.mark.parametrize(
    ("recipe", "decays"),
    [
        (LayeredPlateau(), {"local3": 4e-3, "fc": 0.0, "output": 1e-2}),
        (Steps(), dict.fromkeys(("local3", "fc", "output"), 1e-4)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
@pytest.mark.parametrize("networks", [1, 2])
def test_decay_by_layer_and_twice_the_rate_for_biases(recipe, decays, networks):
    """Against v <- 0.9 v + g + decay w, w <- w - rate v for each parameter by itself; the frozen layer stays."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(OrderedDict({name: nn.Linear(4, 4) for name in ("frozen", *decays)})) for _ in range(networks)
    ]
    network = nn.ModuleList(layers) if networks > 1 else layers[0]
    for one in layers:
        one.frozen.requires_grad_(False)
    optimizer = recipe.optimizer(network)
    found = dict(network.named_parameters())
    expected = {name: value.detach().clone().double() for name, value in found.items()}
    velocity = {name: torch.zeros_like(value) for name, value in expected.items()}
    for _ in range(3):
        for name, value in found.items():
            if "frozen" in name:
                continue
            value.grad = torch.randn_like(value)
            *_, layer, part = name.split(".")
            decay, rate = (decays[layer], 0.01) if part == "weight" else (0.0, 0.02)
            velocity[name] = 0.9 * velocity[name] + value.grad.double() + decay * expected[name]
            expected[name] -= rate * velocity[name]
        optimizer.step()
    for name, value in found.items():
        torch.testing.assert_close(value.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_steps_fall_where_the_paper_says():
    """CIFAR-10: by ten after every 3000 of 10 000 iterations; ILSVRC: once, after 50 000 of 100 000. Here hundreds."""
    for recipe, total, falls in ((Steps(), 100, [30, 60, 90]), (Steps(every=0.5), 1000, [500])):
        optimizer = recipe.optimizer(nn.Linear(1, 1))
        scheduler = recipe.scheduler(optimizer, total)
        found = []
        for step in range(1, total):
            before = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
            if optimizer.param_groups[0]["lr"] != before:
                found.append(step)
                assert optimizer.param_groups[0]["lr"] == pytest.approx(before / 10)
        assert found == falls


def rates(losses, epochs, patience=0.1, factors=(0.5, 0.1)):
    trainer = Trainer(Plateau(learning_rate=1.0, patience=patience, factors=factors), nn.Linear(1, 1), epochs)
    found = []
    for loss in losses:
        found.append(trainer.rate)
        trainer.end_epoch(loss)
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
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 1.0)
    scheduler = AlternatingPlateau(optimizer, (0.5, 0.9), patience)
    for rate, loss in zip(expected, losses):
        assert optimizer.param_groups[0]["lr"] == rate
        scheduler.step(loss)
        state = scheduler.state_dict()  # as after an interruption: another one goes on from there
        scheduler = AlternatingPlateau(optimizer, (0.5, 0.9), patience)
        scheduler.load_state_dict(state)


def test_patience_is_measured_in_the_run():
    def patience(epochs):
        found = rates([5.0] * 20, epochs, patience=0.1)
        return sum(rate == 1 for rate in found) - 1

    assert [patience(epochs) for epochs in (1, 10, 20, 24, 26, 100)] == [2, 2, 2, 2, 3, 10]


# What all have in common.


def test_a_state_does_not_grow_with_the_run():
    def size(recipe, epochs):
        return len(Trainer(recipe, nn.Linear(1, 1), epochs).state())

    for recipe in RECIPES:
        assert size(recipe, 3000) < 3000
        assert size(recipe, 3000) <= size(recipe, 30) + 64  # a number of the schedule may take more bytes


@every_recipe
def test_settings_are_what_torch_calls_them_and_reach_another_process(recipe):
    trainer = Trainer(recipe, fresh(MODELS[0]), 8)
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)
    assert trainer.scheduler is None or isinstance(trainer.scheduler, LRScheduler)
    settings = pickle.loads(pickle.dumps(recipe.settings()))
    assert settings["optimizer"].__self__ == recipe
    assert settings["batch_size"] == recipe.batch_size
    described = recipe.as_dict()
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize("recipe", RECIPES[:3], ids=lambda recipe: recipe.kind)
def test_schedules_start_from_the_rate_that_the_optimizer_has(recipe):
    """So that a candidate may have half of a study's rate."""
    optimizers = [recipe.optimizer(nn.Linear(1, 1)) for _ in range(2)]
    optimizers[1].param_groups[0]["lr"] *= 0.5
    schedulers = [recipe.scheduler(optimizer, 4) for optimizer in optimizers]
    for _ in range(4):
        one, half = (optimizer.param_groups[0]["lr"] for optimizer in optimizers)
        assert half == 0.5 * one
        for optimizer, scheduler in zip(optimizers, schedulers):
            optimizer.step()
            scheduler.step(*[1.0] * isinstance(scheduler, ReduceLROnPlateau))


# The ramp as an optimizer among others.


def ramp(parameters):
    return RampOptimizer(parameters, 0.5, 0.9, squared_length=0.1, bounded="incoming", rate_in_velocity=True)


def test_ramp_takes_a_closure_and_leaves_parameters_without_gradient_alone():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network[1].bias.requires_grad_(False)
    before = weights(network)
    optimizer = ramp(network.parameters())
    x = torch.ones(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = network(x).square().sum()
        loss.backward()
        return loss

    first = closure().item()
    assert optimizer.step(closure).item() == pytest.approx(first)
    after = weights(network)
    assert torch.equal(after[3], before[3])
    assert not any(torch.equal(a, b) for a, b in zip(after[:3], before[:3]))


def test_ramp_bounds_all_but_the_last_weight_of_all_groups():
    layers = [nn.Linear(3, 4, bias=False) for _ in range(3)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1.0)
    ramp([{"params": layer.parameters()} for layer in layers]).step()
    lengths = [layer.weight.detach().square().sum(1) for layer in layers]
    assert torch.cat(lengths[:2]).tolist() == pytest.approx([0.1] * 8, rel=1e-6)
    assert lengths[2].tolist() == [3.0] * 4


def test_ramp_can_be_copied():
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = ramp(network.parameters())
    copied_network, copied = copy.deepcopy((network, optimizer))
    for model, one in ((network, optimizer), (copied_network, copied)):
        model(torch.ones(5, 3)).square().sum().backward()
        one.step()
    assert equal(weights(network), weights(copied_network))


def test_a_table_holds_after_its_end():
    optimizer = ramp(nn.Linear(2, 2).parameters())
    scheduler = EpochTable(optimizer, factors=[1.0, 0.5], momenta=[0.6, 0.7])
    found = []
    for _ in range(4):
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        scheduler.step()
    assert found == [(0.5, 0.6), (0.25, 0.7), (0.25, 0.7), (0.25, 0.7)]
    assert scheduler.get_last_lr() == [0.25]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(batch_size=0), "Adam: expected batch_size >= 1; got 0"),
        (lambda: Authors(bounded="both"), "Authors: expected bounded to be one of 'incoming', 'outgoing'; got 'both'"),
        (lambda: averaging(0.0), "RampOptimizer: expected a momentum above 0 and below 1; got 0.0"),
        (lambda: averaging(1.0), "RampOptimizer: expected a momentum above 0 and below 1; got 1.0"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def averaging(momentum):
    return Hinton(learning_rate=1.0, momentum=(momentum, 0.99)).optimizer(nn.Linear(1, 1))
