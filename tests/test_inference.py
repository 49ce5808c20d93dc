"""Predictions with dropout on: by sampling and by propagated moments."""

import contextlib
import itertools
import math
import types
from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import contdrop as cd
from architectures import Tokens
from conformance import Gated, fixed, seeded
from contdrop import inference
from contdrop.surgery import dropout_layers
from contdrop.theory import propagation


def classifier(dropout=None, classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 30), nn.BatchNorm1d(30), nn.ReLU(), dropout or cd.GaussianDropout(0.3), nn.Linear(30, classes)
    )


def batch(count=5):
    return fixed(count, 4, seed=1).float()


def all_passes(model, x, samples, seed):
    """The outputs of every pass, the long way: [samples, N, classes]."""
    for module in model.modules():
        module.training = isinstance(module, nn.modules.dropout._DropoutNd)
    torch.manual_seed(seed)
    with torch.no_grad():
        return torch.stack([model(x) for _ in range(samples)]).double()


def close(got, expected, **tolerance):
    torch.testing.assert_close(got.double(), expected.double(), **{"rtol": 1e-5, "atol": 1e-7, **tolerance})


def same_entropies(got, expected):
    close(got.entropy, expected.entropy)  # and of the same shape
    close(got.mutual_information, expected.mutual_information, atol=1e-6)


# Monte Carlo.


@pytest.mark.parametrize("transform", [None, "softmax", "probabilities"])
def test_moments_and_entropies_are_those_of_the_passes(transform):
    model, x = classifier(), batch()
    outputs = all_passes(model, x, 20, seed=3)
    if transform == "probabilities":
        model.append(nn.Softmax(1))
    prediction = seeded(lambda: inference.mc_predict(model, x, 20, transform=transform), seed=3)
    assert prediction.mean.dtype == torch.float32
    outputs = outputs if transform is None else outputs.softmax(-1)
    mean = outputs.mean(0)
    close(prediction.mean, mean)
    close(prediction.variance, outputs.var(0))
    if transform is None:
        assert prediction.entropy is prediction.mutual_information is None
        return
    entropy, entropies = (torch.special.entr(p).sum(-1) for p in (mean, outputs))
    same_entropies(prediction, inference.Prediction(mean, mean, entropy, entropy - entropies.mean(0)))
    assert (prediction.mutual_information > 0).all()


def test_classes_are_along_axis_1():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Dropout(0.5))
    prediction = inference.mc_predict(model, torch.rand(2, 1, 4, 5), 5, transform="softmax")
    assert prediction.entropy.shape == prediction.mutual_information.shape == (2, 4, 5)
    close(prediction.mean.sum(1), torch.ones(2, 4, 5))


class Against0(nn.Module):
    """Logits (0, z) of a model of one logit z: their softmax has the sigmoid of z in it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        logits = self.model(x).reshape(len(x), 1)
        return torch.cat([torch.zeros_like(logits), logits], 1)


@pytest.mark.parametrize("tail", [(), (nn.Flatten(0),)], ids=["[N, 1]", "[N]"])
def test_one_logit_is_two_classes(tail):
    model, x = nn.Sequential(classifier(classes=1), *tail).eval(), batch()
    found = inference.mc_predict(model, x, 20, transform="sigmoid", seed=3)
    expected = inference.mc_predict(Against0(model), x, 20, transform="softmax", seed=3)
    assert found.mean.shape == found.variance.shape == model(x).shape
    close(found.mean.flatten(), expected.mean[:, 1])
    close(found.variance.flatten(), expected.variance[:, 1])
    same_entropies(found, expected)
    assert (found.mutual_information > 0).all()


def test_each_of_several_labels_has_an_entropy_of_its_own():
    model, x = classifier().eval(), batch()
    found = inference.mc_predict(model, x, 20, transform="sigmoid", seed=3)
    assert found.mean.shape == found.entropy.shape == found.mutual_information.shape == (5, 3)
    for label in range(3):
        alone = nn.Sequential(model, nn.Linear(3, 1, bias=False))
        with torch.no_grad():
            alone[1].weight.copy_(torch.eye(3)[label : label + 1])
        expected = inference.mc_predict(alone, x, 20, transform="sigmoid", seed=3)
        one = inference.Prediction(*(values[:, label] for values in vars(found).values()))
        close(one.mean, expected.mean[:, 0])
        same_entropies(one, expected)


@pytest.mark.parametrize(
    ("transform", "biases"), [("softmax", [[1e6, 0.0]]), ("sigmoid", [[1e6], [-1e6]])], ids=["softmax", "sigmoid"]
)
def test_certain_logits_have_entropy_0(transform, biases):
    for bias in biases:
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, len(bias)))
        with torch.no_grad():
            model[1].weight.zero_()
            model[1].bias.copy_(torch.tensor(bias))
        prediction = inference.mc_predict(model, batch(), 3, transform=transform)
        assert not prediction.entropy.any()
        assert not prediction.mutual_information.any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        cd.UniformDropout(),
        cd.DropConnectLinear(4, 4),
        cd.DropConnectLinear(4, 4, masks="batch"),
        cd.FastDropoutLinear(4, 4, law=cd.Bernoulli(keep=0.5)),
        nn.Sequential(nn.Linear(4, 4), Gated()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_dropout_layer_is_on(layer):
    model = nn.Sequential(nn.Linear(4, 4), layer).eval()
    assert (inference.mc_predict(model, batch(), 10, seed=0).variance > 0).any()


class Recorder(nn.Module):
    """Notes the modes that its neighbours have while it runs, and fails when told to."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails = fails
        self.seen = []

    def forward(self, x):
        self.seen.append(self.training)
        if self.fails:
            raise RuntimeError("stop")
        assert not torch.is_grad_enabled()
        return x


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_only_dropout_is_on_and_modes_come_back(training, fails):
    model = nn.Sequential(classifier(), Recorder(fails)).train(training)
    model[0][1].train(not training)  # modes need not be uniform
    modes = [module.training for module in model.modules()]
    statistics = model[0][1].running_mean.clone()
    with pytest.raises(RuntimeError, match="stop") if fails else contextlib.nullcontext():
        inference.mc_predict(model, batch(), 3, seed=1)
    assert model[1].seen == [False] * (1 if fails else 3)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[0][1].running_mean, statistics)
    assert not model[0][3]._forward_pre_hooks
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", inference.METHODS)
def test_a_seed_governs_the_result_and_nothing_else(method):
    model, x = classifier(), batch()

    def run(seed):
        return inference.predict(model.eval(), x, method=method, samples=5, transform="softmax", seed=seed).mean

    state = torch.get_rng_state()
    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    of_torch = seeded(run, None)
    assert not torch.equal(run(None), of_torch)
    assert torch.equal(seeded(run, None), of_torch)


def test_a_seed_governs_layers_with_their_own_generator():
    generator = torch.Generator().manual_seed(7)
    model = classifier(cd.GaussianDropout(0.3, generator=generator))
    state = generator.get_state()
    first, again = (inference.mc_predict(model, batch(), 5, seed=1).mean for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(generator.get_state(), state)
    inference.mc_predict(model, batch(), 5)
    assert not torch.equal(generator.get_state(), state)


class Beside(nn.ModuleList):
    """Several dropout layers of one law, on the same input."""

    def forward(self, x):
        return torch.stack([layer(x) for layer in self], 1)


def test_every_generator_gets_a_seed_of_its_own():
    """Else layers with generators of their own would drop the same units as each other, or as those without."""
    generators = [None, *(torch.Generator() for _ in range(3))]
    for each in (generators, generators[1:2] * 2):
        model = Beside(cd.GaussianDropout(0.3, generator=generator) for generator in each)
        drawn = inference.mc_predict(model, torch.ones(1, 50), 2, seed=1).mean[0]
        for one, other in itertools.combinations(drawn, 2):
            assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 5 / math.sqrt(50)


def test_generators_of_neighbouring_seeds_share_nothing():
    layers = {name: cd.UniformDropout(generator=torch.Generator()) for name in "abc"}
    drawn = []
    for seed in range(4):
        with dropout_layers.seeded(layers, seed):
            drawn += [layer(torch.ones(5)) for layer in (*layers.values(), cd.UniformDropout())]
    assert len(torch.stack(drawn).unique(dim=0)) == 16


def test_token_ids_and_several_inputs_by_place_and_by_name():
    model, ids, weights = Tokens().eval(), torch.randint(9, (4, 7)), torch.rand(4, 7)
    for x in (ids, (ids,), (ids, weights)):
        prediction = inference.predict(model, x, samples=4, transform="softmax", seed=0)
        assert prediction.mean.shape == (4, 3)
        assert (prediction.variance > 0).any()
    given = [(ids,), (ids, torch.ones_like(weights)), (ids, weights)]
    given += [kind(weights=weights, ids=ids) for kind in (dict, UserDict)]  # tokenizers give dictionaries of their own
    alone, ones, *same = (inference.predict(model, x, samples=4, seed=0).mean for x in given)
    assert torch.equal(alone, ones)
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])


class Wrapped(nn.Module):
    """Returns what a function makes of a model's output."""

    def __init__(self, model, wrap):
        super().__init__()
        self.model, self.wrap = model, wrap

    def forward(self, x):
        return self.wrap(self.model(x))


@pytest.mark.parametrize(
    "wrap",
    [lambda y: {"loss": y.sum(), "logits": y}, lambda y: UserDict(logits=y), lambda y: types.SimpleNamespace(logits=y)],
    ids=["dict", "mapping", "object"],
)
def test_outputs_with_logits(wrap):
    model = classifier()
    for transform in (None, "softmax", "sigmoid"):
        found, expected = (mc(each, samples=4, transform=transform, seed=0) for each in (Wrapped(model, wrap), model))
        assert torch.equal(found.mean, expected.mean)


def test_classes_of_an_object_are_not_guessed():
    """Models of text have logits [N, positions, classes], so that axis 1 would be the wrong one."""
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), fixed(2, 5, 4, seed=1).float()
    as_object = Wrapped(model, lambda y: types.SimpleNamespace(logits=y))
    assert inference.mc_predict(as_object, x, 4).mean.shape == (2, 5, 3)
    assert inference.mc_predict(as_object, x, 4, transform="sigmoid").entropy.shape == (2, 5, 3)


def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=9, num_labels=3, **sizes))
    ids = torch.randint(9, (4, 7))
    x = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    prediction = cd.mc_predict(model, x, 4, transform="softmax", seed=0)
    assert prediction.mean.shape == (4, 3)
    assert (prediction.variance > 0).all()


def test_a_first_layer_that_works_in_place_leaves_the_input_alone():
    x = torch.ones(4, 200)
    model = nn.Sequential(nn.Dropout(0.5, inplace=True))
    prediction = cd.mc_predict(model, x, 400, seed=0)
    cd.mc_predict(model, {"input": x}, 2)
    assert torch.equal(x, torch.ones(4, 200))
    assert abs(prediction.mean.mean() - 1) < 5 / math.sqrt(4 * 200 * 400)  # a mask has variance 1


def test_half_precision_is_averaged_in_more():
    model, x = classifier().bfloat16(), batch().bfloat16()
    prediction = inference.mc_predict(model, x, 50, seed=0)
    assert prediction.mean.dtype == prediction.variance.dtype == torch.float32
    close(prediction.mean, all_passes(model, x, 50, seed=0).mean(0))


def test_transformer_layers_do_not_take_the_path_without_dropout():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).eval()
    assert (inference.mc_predict(model, torch.rand(2, 3, 8), 5, seed=0).variance > 0).any()
    layers = dropout_layers.dropout_layers(model)
    with torch.no_grad(), dropout_layers.dropout_on(model, layers) as shapes:  # by itself
        assert not torch.equal(model(torch.ones(2, 3, 8)), model(torch.ones(2, 3, 8)))
    assert shapes == {name: [(2, 3, 16 if name == "dropout" else 8)] * 2 for name in layers}
    assert not any(layer._forward_pre_hooks for layer in layers.values())


# Moments.


@pytest.mark.parametrize(
    ("transform", "classes", "covariance"),
    [("softmax", 3, "output"), ("softmax", 3, "full"), ("sigmoid", 1, "output"), ("sigmoid", 3, "output")],
)
def test_probabilities_of_moments_agree_with_passes(transform, classes, covariance):
    model, x = classifier(classes=classes).eval(), batch()
    options = {"samples": 4000, "transform": transform, "seed": 0, "covariance": covariance}
    sampled, moments = (inference.predict(model, x, method=method, **options) for method in inference.METHODS)
    # Five standard errors of either, and 1 % of a probability for logits of 30 units not being Gaussian.
    error = 5 * (sampled.variance.sqrt() + moments.variance.sqrt()).max() / math.sqrt(4000)
    close(moments.mean, sampled.mean, atol=error.item() + 0.01, rtol=0)
    close(moments.variance.sqrt(), sampled.variance.sqrt(), atol=0.01, rtol=5 / math.sqrt(2 * 4000))
    close(moments.entropy, sampled.entropy, atol=0.02, rtol=0)
    close(moments.mutual_information, sampled.mutual_information, atol=0.01, rtol=0.1)
    assert moments.entropy.shape == ((5, 3) if (transform, classes) == ("sigmoid", 3) else (5,))


@pytest.mark.parametrize("covariance", ["diagonal", "output"])
def test_parts_of_many_draws_have_noise_of_their_own(covariance, monkeypatch):
    monkeypatch.setattr(inference, "_LOGITS_AT_ONCE", 6 * 40)  # 40 draws of two times three logits
    parts = []
    add = inference._Running.add
    monkeypatch.setattr(inference._Running, "add", lambda self, values: (parts.append(values), add(self, values)))
    model, x = classifier().eval(), batch(2)
    options = {"method": "moments", "samples": 100, "transform": "softmax", "covariance": covariance}
    inference.predict(model, x, seed=0, **options)
    assert [len(part) for part in parts] == [40, 40, 20]
    draws = torch.cat(parts).flatten(1)
    assert len(draws.unique(dim=0)) == 100


def test_diagonal_logits_are_independent():
    model, x = classifier().eval(), batch(2)
    diagonal, output = (
        inference.predict(model, x, method="moments", samples=4000, transform="softmax", seed=0, covariance=covariance)
        for covariance in ("diagonal", "output")
    )
    assert diagonal.mean.shape == output.mean.shape == (2, 3)
    assert not torch.allclose(diagonal.variance, output.variance, rtol=0.05)


def test_raw_moments_are_those_of_propagation():
    model, x = classifier().eval(), batch()
    prediction = inference.predict(model, x, method="moments", covariance="full")
    moments = propagation.moments(model, x, covariance="full")
    assert torch.equal(prediction.mean, moments.mean)
    assert torch.equal(prediction.variance, moments.variance)
    assert prediction.entropy is None


def test_perfectly_correlated_logits():
    model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5), nn.Linear(1, 3))
    prediction = inference.predict(model, batch(), method="moments", transform="softmax", seed=0)
    assert torch.isfinite(prediction.mutual_information).all()


# Mistakes.


class Unused(nn.Sequential):
    def forward(self, x):
        return x


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.3, self.training)


def mc(model=None, x=None, **options):
    return inference.mc_predict(nn.Dropout() if model is None else model, batch() if x is None else x, **options)


def moments(model=None, x=None, **options):
    model = nn.Dropout() if model is None else model
    return inference.predict(model, batch() if x is None else x, **{"method": "moments", **options})


ONE_LOGIT = classifier(classes=1).eval()
PAIR = Wrapped(nn.Dropout(0.5), lambda y: (y, y))
OBJECT = Wrapped(nn.Dropout(0.5), lambda y: types.SimpleNamespace(logits=y))


def test_refusals(code_refusals):
    code_refusals("inference_refusals", globals())


@pytest.mark.parametrize("method", inference.METHODS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_are_refused(method):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.Dropout()))
    with pytest.raises(TypeError, match=r"predict: expected a model in Python, got a scripted one; predict before"):
        inference.predict(scripted, batch(), method=method)
