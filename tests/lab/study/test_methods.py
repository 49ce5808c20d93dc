"""The dropout methods by name, and the layers built with them."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import contdrop as cd
from contdrop.lab.study.methods import NAMES, Method, parse
from contdrop.replication.networks.models import ACTIVATIONS, hidden_layer, output_layer
from refusals import refusal

every_method = pytest.mark.parametrize("name", NAMES)
every_scale = pytest.mark.parametrize("scale", ["paper", "inverted"])
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def preactivations(layer, x):
    return nn.functional.linear(x, layer.linear.weight, layer.linear.bias)


def build(text, n_in=6, units=5, *, activation="relu", scale="paper", reads_hidden=False):
    torch.manual_seed(0)
    return hidden_layer(parse(text), n_in, units, activation=activation, scale=scale, reads_hidden=reads_hidden)


# Text.


def test_names():
    names = "none bernoulli uniform gaussian normal adaptive dropconnect fast bernoulli-matched"
    assert (*names.split(), "adaptive-authors", "dropconnect-authors") == NAMES


TEXTS = [
    *["none", "bernoulli", "uniform", "gaussian", "adaptive", "dropconnect", "fast", "bernoulli-matched", "normal"],
    *["gaussian:variance=0.2", "bernoulli-matched:variance=0.2", "adaptive:beta=-0.5", "adaptive:beta=0.5,alpha=-1"],
    *["adaptive:alpha=-0,beta=-0.0", " Gaussian : sigma = 0.30 ", "gaussian:", "gaussian:sigma=1e-7", "none:mean=0.50"],
    *[" Bernoulli-Matched : Uniform", "bernoulli:r=0.30", "uniform:r=0.3", " Gaussian : r = 0.65", "normal:r=4"],
    *["none:mean=1", "adaptive-authors:beta=0.5", "dropconnect-authors"],
]


def test_text_form(snapshot):
    found = {text: parse(text) for text in TEXTS}
    snapshot("written_methods", "".join(f"{text!r}: {method}\n" for text, method in found.items()))
    assert [parse(str(method)) for method in found.values()] == list(found.values())
    assert {type(method) for method in found.values()} == {Method}


@given(st.floats(0, 1e300), st.sampled_from(["gaussian:sigma", "gaussian:variance", "bernoulli-matched:sigma"]))
def test_any_strength_is_read_back_exactly(value, parameter):
    method = parse(f"{parameter}={value!r}")
    assert parse(str(method)) == method
    assert method.parameters[0][1] == value


REFUSED = [
    *["gausian", "bernouli-matched:sigma=0.3", "zzz", "", "gaussian:sigm=0.3", "gaussian:keep=0.3", "none:mean=0"],
    *["bernoulli-matched:unifrm", "bernoulli-matched:uniform=1", "none:sigma=1", "uniform:low=0", "gaussian:0.3"],
    *["gaussian:mach", "adaptive:match", "gaussian:sigma", "gaussian:sigma=big", "gaussian:sigma=-1", "uniform:r=0.4"],
    *["gaussian:sigma=nan", "gaussian:sigma=inf", "bernoulli:keep=0", "fast:keep=1.5", "adaptive:alpha=inf"],
    *["gaussian:r=0.7", "bernoulli:r=0", "normal:r=inf", "bernoulli:keep=0.5,r=1", "gaussian:sigma=0.3,sigma=0.2"],
    "gaussian:sigma=0.3,variance=0.2",
]


def test_usage_errors_get_one_line(refusals):
    refusals("refusals_of_methods", [partial(parse, text) for text in REFUSED])


def test_law():
    def relative_variance(text):
        return parse(text).law.relative_variance

    assert relative_variance("none") == 0
    assert relative_variance("bernoulli") == relative_variance("fast") == relative_variance("dropconnect") == 1
    assert relative_variance("uniform") == pytest.approx(1 / 3)
    assert relative_variance("gaussian:sigma=0.3") == pytest.approx(0.302, abs=5e-4)
    assert parse("gaussian:variance=0.09").law == cd.Gaussian(sigma=math.sqrt(0.09))
    assert parse("adaptive").law is None


STRENGTHS = [
    *["bernoulli:r=0.1", "bernoulli:r=4", "gaussian:r=0.1", "gaussian:r=0.65", "uniform:r=0.1"],
    *["uniform:r=0.3333333333333333", "normal:r=0.1", "normal:r=4"],
]


@pytest.mark.parametrize("text", STRENGTHS)
def test_a_law_of_a_given_strength(text):
    """Moments by quadrature of the quantile function, which knows nothing of the closed forms."""
    law, r = parse(text).law, float(text.partition("=")[2])
    u = (torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000
    values = law.quantile(u)
    mean, variance = values.mean().item(), values.var().item()
    assert variance / mean**2 == pytest.approx(r, rel=1e-4)
    assert mean == pytest.approx(1.0 if text.startswith("normal") else 1 / (1 + r), rel=1e-5)
    assert law.relative_variance == pytest.approx(r, rel=1e-12)
    assert (values.min() < 0) == text.startswith("normal")
    assert parse(text).noise("inverted") == pytest.approx({"mean": 1.0, "relative_variance": r})


def test_strength_one_is_bernoulli_dropout():
    assert parse("bernoulli:r=1").law == parse("bernoulli").law


CONTROLLED = {
    "bernoulli-matched:sigma=0.2": "gaussian:sigma=0.2",
    "bernoulli-matched:sigma=0.5": "gaussian:sigma=0.5",
    "bernoulli-matched:variance=0.2": "gaussian:variance=0.2",
    "bernoulli-matched:uniform": "uniform",
}


@pytest.mark.parametrize(("control", "controlled"), CONTROLLED.items())
@every_scale
def test_the_control_has_the_same_relative_variance_and_mean(control, controlled, scale):
    assert isinstance(parse(control).law, cd.Bernoulli)
    noise = parse(control).noise(scale)
    assert noise == pytest.approx(parse(controlled).noise(scale))
    assert noise["mean"] == pytest.approx(0.5 if scale == "paper" else 1.0)


def test_noise():
    assert parse("none:mean=0.5").noise("paper") == {"mean": 0.5, "relative_variance": 0.0}
    assert parse("none").noise("paper") == {"mean": 1.0, "relative_variance": 0.0}
    assert parse("uniform").noise("paper") == pytest.approx({"mean": 0.5, "relative_variance": 1 / 3})
    assert parse("bernoulli:keep=0.8").noise("paper") == pytest.approx({"mean": 0.8, "relative_variance": 0.25})
    assert parse("adaptive").noise("paper") == parse("adaptive-authors").noise("inverted") == {}


def test_a_constant_mask_is_refused_where_it_would_be_none():
    message = "none:mean=0.5: expected masks that are not rescaled; with scale inverted it is none: leave it out"
    assert refusal(build, "none:mean=0.5", scale="inverted") == message


# Layers.


@every_method
@every_activation
@every_scale
def test_parameters_do_not_depend_on_the_method(name, activation, scale):
    for reads_hidden in (True, False):
        layer = build(name, activation=activation, scale=scale, reads_hidden=reads_hidden)
        shapes = [(key, tuple(value.shape)) for key, value in layer.named_parameters()]
        assert shapes == [("linear.weight", (5, 6)), ("linear.bias", (5,))]
        output = output_layer(parse(name), 6, 5, scale=scale, reads_hidden=reads_hidden)
        assert [key for key, _ in output.named_parameters()] == ["weight", "bias"]


def by_functions(text, layer, x, activation, scale, training):
    """What a method's layer computes, by the functions of the core, whose own tests know the theory."""
    method, (weight, bias), function = parse(text), layer.linear.parameters(), getattr(torch, activation)
    a, law, common = nn.functional.linear(x, weight, bias), method.law, {"training": training, "scale": scale}
    if method.name == "fast":
        return function(cd.functional.fast_dropout_linear(x, weight, bias, law, **common))
    if method.name == "dropconnect":
        options = {"masks": "example", "mask_bias": True, "inference": "analytic", "activation": activation}
        return cd.functional.dropconnect_linear(x, weight, bias, law, **options, **common)
    if method.name == "dropconnect-authors":
        options = {"masks": "batch", "mask_bias": False, "inference": "mean", "activation": activation}
        return cd.functional.dropconnect_linear(x, weight, bias, law, **options, **common)
    if method.name == "adaptive-authors" and not training:
        return 0.5 * function(a)
    if method.name.startswith("adaptive"):
        return cd.functional.adaptive_dropout(function(a), a, *dict(method.parameters).values(), training=training)
    return function(a) if text == "none" else cd.functional.dropout(function(a), law, **common)


FUNCTIONS = [
    *["none", "bernoulli", "bernoulli:keep=0.8", "uniform", "gaussian:sigma=0.2", "gaussian:variance=0.2", "fast"],
    *[
        "adaptive:alpha=-1,beta=0.5",
        "adaptive-authors:alpha=1,beta=0.5",
        "dropconnect",
        "dropconnect-authors",
        *CONTROLLED,
        *STRENGTHS,
    ],
]


@pytest.mark.parametrize(
    ("text", "scale"), [*itertools.product(FUNCTIONS, ["paper", "inverted"]), ("none:mean=0.5", "paper")]
)
@every_activation
def test_layers_are_those_of_the_functions(text, activation, scale):
    layer, x = build(text, activation=activation, scale=scale, reads_hidden=True), torch.randn(7, 6)
    layer.linear.bias.data.fill_(0.5)
    for training in (True, False):
        torch.manual_seed(3)
        expected = by_functions(text, layer, x, activation, scale, training)
        torch.manual_seed(3)
        torch.testing.assert_close(layer.train(training)(x), expected)
        assert torch.equal(layer(x), layer(x)) == (text.startswith("none") or not training)


@every_scale
def test_layers_that_read_data_and_logits_are_plain(scale):
    """Only fast dropout is drawn in the layer that reads hidden units."""
    first = build("fast", scale=scale)
    assert torch.equal(first(torch.ones(3, 6)), first.linear(torch.ones(3, 6)).relu())
    for text, reads_hidden, kind in (
        ("fast", True, cd.FastDropoutLinear),
        ("fast", False, nn.Linear),
        ("dropconnect", True, nn.Linear),
    ):
        output = output_layer(parse(text), 6, 5, scale=scale, reads_hidden=reads_hidden)
        assert type(output) is kind
        if kind is cd.FastDropoutLinear:
            assert (output.law, output.scale) == (parse(text).law, scale)


def test_unknown_activation_or_scale():
    said = refusal(build, "none", activation="tanh", kind=ValueError)
    assert "expected activation to be one of 'relu', 'sigmoid'; got 'tanh'" in said
    assert "expected scale to be one of" in refusal(build, "bernoulli", scale="half", kind=ValueError)
