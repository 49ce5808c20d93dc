"""Methods in any model."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import contdrop as cd
from contdrop.lab.study import labels
from contdrop.lab.study.apply_method import apply
from contdrop.lab.study.methods import NAMES, parse
from contdrop.replication.networks import MLP
from refusals import refusal

EVERY = [*(name for name in NAMES if name != "none"), "none", "original", "bernoulli:match", "gaussian:match"]


def mlp(p=0.2, activation=nn.ReLU, widths=(6, 8, 7, 3)):
    layers = []
    for before, units in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(before, units), activation(), nn.Dropout(p)]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


class Written(nn.Module):
    """As many write it: functions for activations, one dropout layer for all."""

    def __init__(self, activation=F.relu):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)
        self.drop = nn.Dropout(0.2)
        self.activation = activation

    def forward(self, x):
        x = self.drop(self.activation(self.first(x)))
        return self.out(self.drop(self.activation(self.second(x))))


class Untraceable(Written):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Residual(nn.Module):
    """Reads a layer twice."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(6, 6), nn.Dropout(0.1)

    def forward(self, x):
        z = self.linear(x)
        return z + self.drop(torch.relu(z))


@pytest.mark.parametrize("label", EVERY)
@pytest.mark.parametrize("build", [mlp, lambda: mlp(activation=nn.Sigmoid), Written])
def test_parameters_do_not_depend_on_the_method(label, build):
    model = build()
    before = [(name, id(value)) for name, value in model.state_dict(keep_vars=True).items()]
    state = torch.get_rng_state()
    apply(label, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [(name, id(value)) for name, value in model.state_dict(keep_vars=True).items()] == before
    assert [id(value) for value in model.parameters()] == [number for _, number in before]
    model(torch.randn(5, 6)).sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    assert torch.equal(model.eval()(torch.ones(2, 6)), model(torch.ones(2, 6)))


@pytest.mark.parametrize("label", [*NAMES, "bernoulli:r=0.3", "gaussian:r=0.3", "uniform:r=0.3", "normal:r=2"])
@pytest.mark.parametrize("scale", ["paper", "inverted"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_the_numbers_are_those_of_the_catalogues_networks(label, scale, activation):
    built = MLP(widths=(6, 8, 7, 3), activation=activation, scale=scale)(parse(label))
    model = mlp(activation=nn.ReLU if activation == "relu" else nn.Sigmoid)
    apply(label, model, scale=scale)
    for own, theirs in zip(model.parameters(), built.parameters()):
        own.data.copy_(theirs.data)
    x = torch.randn(9, 6)
    for _ in range(2):
        results = []
        for each in (model, built):
            torch.manual_seed(3)
            y = each(x)
            results.append([y, *torch.autograd.grad(y.square().sum(), list(each.parameters()))])
        assert all(torch.allclose(own, theirs, atol=1e-6) for own, theirs in zip(*results))
        model.eval(), built.eval()


@pytest.mark.parametrize("method", ["adaptive", "dropconnect", "fast"])
@pytest.mark.parametrize("build", [lambda: mlp(activation=lambda: nn.ReLU(inplace=True)), Written])
def test_whole_layers_are_found_around_dropout(method, build):
    model = build()
    applied = apply(method, model)
    places = 1 if isinstance(model, Written) else 2
    assert (applied.changed, applied.sites) == (places, places)
    kinds = [type(module).__name__ for module in model.modules() if isinstance(module, nn.Linear)]
    new = {"adaptive": "_AdaptiveLinear", "dropconnect": "DropConnectLinear", "fast": "FastDropoutLinear"}[method]
    assert kinds == (["Linear", new, new] if method == "fast" else [new, new, "Linear"])
    assert applied.notes == ()
    assert applied.unreachable == ()


def test_what_does_not_fit_stays_and_is_noted():
    model = nn.Sequential(nn.Dropout(0.1), *mlp())
    first = model[0]
    applied = apply("dropconnect", model)
    assert model[0] is first
    assert (applied.changed, applied.sites) == (2, 3)
    assert applied.notes == ("left as they were, as dropconnect does not fit: 0",)


def test_order_in_a_sequential_serves_where_tracing_fails():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            return self.body(x) if x.sum() > 0 else self.body(-x)

    model = Model()
    apply("dropconnect", model)
    assert [type(layer).__name__ for layer in model.body][::3] == ["DropConnectLinear", "DropConnectLinear", "Linear"]


MISFITS = [
    *[Untraceable, lambda: Written(torch.tanh), Residual, lambda: Written(torch.sigmoid)],
    *[lambda: nn.Sequential(nn.Conv1d(6, 6, 1), nn.ReLU(), nn.Dropout(0.1)), lambda: nn.Sequential(nn.Linear(6, 6))],
]


def test_refused_by_name_and_reason(refusals):
    refusals(
        "refusals_of_chains",
        [partial(apply, method, build()) for method in ("adaptive", "dropconnect") for build in MISFITS],
    )


def test_matching_in_reach():
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.25), nn.Dropout(0.0))
    for family in ("bernoulli", "uniform", "gaussian"):
        applied = apply(f"{family}:match", model)
        assert {name: noise["mean"] for name, noise in applied.noise.items()} == {"0": 1, "1": 1}
        strengths = [noise["relative_variance"] for noise in applied.noise.values()]
        assert strengths == pytest.approx([1 / 9, 1 / 3])
        assert applied.notes == ()
        assert (applied.changed, applied.sites) == (2, 2)


def test_matching_out_of_reach_is_refused(refusals):
    refused = {"uniform:match": 0.3, "gaussian:match": 0.4}
    refusals("refusals_of_matching", [partial(apply, label, mlp(p)) for label, p in refused.items()])


def test_matching_out_of_reach_falls_back(snapshot):
    strong = cd.Gaussian.matching(cd.Bernoulli(keep=0.4), clip=False)
    notes = []
    for label, p, law, strength in (
        ("uniform:match", 0.4, cd.Uniform(), 1 / 3),
        ("gaussian:match", 0.6, strong, 1.5),
    ):
        model = mlp(p)
        applied = apply(label, model, fallback=True)
        assert model[2].law == law
        assert applied.noise["2"]["relative_variance"] == pytest.approx(strength)
        notes += applied.notes
    snapshot("notes_of_matching", "\n".join(notes))


def test_the_reach_of_a_clipped_gaussian_is_half_its_mass():
    limit = labels.REACH["gaussian"]
    law = cd.Gaussian.matching(cd.Bernoulli(keep=1 / (1 + limit)))
    assert 2 * law.cdf(0.0) == pytest.approx(0.5, abs=1e-3)


def test_scales():
    model = mlp()
    applied = apply("none:mean=0.5", model, scale="paper")
    assert applied.noise["2"] == {"mean": 0.5, "relative_variance": 0.0}
    assert "expected masks that are not rescaled" in refusal(apply, "none:mean=0.5", mlp())
    assert apply("gaussian", mlp(), scale="paper").noise["2"]["mean"] == 0.5


def test_notes_name_what_is_special():
    model = nn.Sequential(nn.Linear(6, 6), nn.LSTM(6, 6, 2, dropout=0.1))
    applied = apply("gaussian", model)
    assert applied.notes == ("no dropout layer was found to put it into", "1 place with dropout out of reach: 1")
    assert (applied.changed, applied.sites) == (0, 1)
    off = apply("gaussian", nn.Sequential(nn.Dropout(0.0)))
    assert off.notes == ("put into dropout layers whose own rate is 0: 0",)
    said = refusal(apply, "gaussian", nn.Sequential(nn.AlphaDropout(0.1)))
    assert said.startswith("gaussian:sigma=0.3: swap_dropout: 0 is AlphaDropout")


@pytest.mark.parametrize("method", ["adaptive", "adaptive-authors", "dropconnect", "fast", "gaussian"])
def test_monte_carlo_samples_what_a_method_put_there(method):
    model = mlp()
    apply(method, model)
    assert cd.mc_predict(model.eval(), torch.ones(2, 6), samples=5).variance.max() > 0


def test_original_changes_nothing():
    model = mlp()
    modules = list(model.modules())
    applied = apply("original", model)
    assert all(now is then for now, then in zip(model.modules(), modules))
    assert (applied.changed, applied.sites, applied.notes) == (0, 2, ())
    assert [each["relative_variance"] for each in applied.noise.values()] == pytest.approx([0.25, 0.25])


def test_original_has_the_noise_of_the_models_own_layers():
    found = apply("original", nn.Sequential(nn.Dropout(0.2), nn.Linear(2, 2), nn.Dropout(0.5), nn.Dropout(1.0))).noise
    assert {name: each["relative_variance"] for name, each in found.items()} == pytest.approx({"0": 0.25, "2": 1.0})
    assert {each["mean"] for each in found.values()} == {1.0}


@pytest.mark.parametrize("text", ["original", "bernoulli:match"])
def test_layers_that_are_off_are_no_part_of_the_noise(text):
    model = nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 6), nn.Dropout(0.2))
    applied = apply(text, model)
    assert {name: noise["relative_variance"] for name, noise in applied.noise.items()} == {"2": pytest.approx(0.25)}


@pytest.mark.parametrize("text", ["original", "gaussian:match", "uniform:match", "bernoulli:match"])
def test_labels(text):
    assert str(labels.read(f" {text.title()} ")) == text
    assert str(labels.split(text)) == text
    method = parse(text)
    assert method.follows_the_model
    assert method.law is None
    assert method.noise("paper") == {}
    assert f"{text}: expected a model with dropout layers of its own" in refusal(MLP(scale="paper"), method)
