"""The dropout methods by name, and the layers built with them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import contdrop as cd
from contdrop.lab.study import methods
from contdrop.lab.study.methods import NAMES, Method, hidden_layer, output_layer, parse
from contdrop.replication.networks import MLP
from contdrop.replication.networks.models import Glorot
from refusals import refusal

every_method = pytest.mark.parametrize("name", NAMES)
every_scale = pytest.mark.parametrize("scale", ["paper", "inverted"])
every_activation = pytest.mark.parametrize("activation", methods.ACTIVATIONS)


def preactivations(layer, x):
    return nn.functional.linear(x, layer.linear.weight, layer.linear.bias)


def build(text, n_in=6, units=5, *, activation="relu", scale="paper", reads_hidden=False):
    torch.manual_seed(0)
    return hidden_layer(parse(text), n_in, units, activation=activation, scale=scale, reads_hidden=reads_hidden)


# Text.


def test_names():
    names = "none bernoulli uniform gaussian normal adaptive dropconnect fast bernoulli-matched"
    assert (*names.split(), "adaptive-authors", "dropconnect-authors") == NAMES


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("none", "none"),
        ("bernoulli", "bernoulli:keep=0.5"),
        ("uniform", "uniform"),
        ("gaussian", "gaussian:sigma=0.3"),
        ("adaptive", "adaptive:alpha=1,beta=0"),
        ("dropconnect", "dropconnect:keep=0.5"),
        ("fast", "fast:keep=0.5"),
        ("bernoulli-matched", "bernoulli-matched:sigma=0.3"),
        ("gaussian:variance=0.2", "gaussian:variance=0.2"),
        ("bernoulli-matched:variance=0.2", "bernoulli-matched:variance=0.2"),
        ("adaptive:beta=-0.5", "adaptive:alpha=1,beta=-0.5"),
        ("adaptive:beta=0.5,alpha=-1", "adaptive:alpha=-1,beta=0.5"),
        ("adaptive:alpha=-0,beta=-0.0", "adaptive:alpha=0,beta=0"),
        (" Gaussian : sigma = 0.30 ", "gaussian:sigma=0.3"),
        ("gaussian:", "gaussian:sigma=0.3"),
        ("gaussian:sigma=1e-7", "gaussian:sigma=1e-07"),
        (" Bernoulli-Matched : Uniform", "bernoulli-matched:uniform"),
        ("none:mean=0.50", "none:mean=0.5"),
        ("bernoulli:r=0.30", "bernoulli:r=0.3"),
        ("uniform:r=0.3", "uniform:r=0.3"),
        (" Gaussian : r = 0.65", "gaussian:r=0.65"),
        ("normal", "normal:r=1"),
        ("normal:r=4", "normal:r=4"),
        ("none:mean=1", "none"),
        ("adaptive-authors:beta=0.5", "adaptive-authors:alpha=1,beta=0.5"),
        ("dropconnect-authors", "dropconnect-authors:keep=0.5"),
    ],
)
def test_text_form(text, written):
    method = parse(text)
    assert str(method) == written
    assert parse(written) == method
    assert isinstance(method, Method)


@given(st.floats(0, 1e300), st.sampled_from(["gaussian:sigma", "gaussian:variance", "bernoulli-matched:sigma"]))
def test_any_strength_is_read_back_exactly(value, parameter):
    method = parse(f"{parameter}={value!r}")
    assert parse(str(method)) == method
    assert method.parameters[0][1] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gausian", "unknown method 'gausian' in {}; did you mean 'gaussian'?"),
        ("bernouli-matched:sigma=0.3", "unknown method 'bernouli-matched' in {}; did you mean 'bernoulli-matched'?"),
        ("zzz", f"unknown method 'zzz' in {{}}; known: {', '.join(NAMES[:10])}, ..."),
        ("", f"unknown method '' in {{}}; known: {', '.join(NAMES[:10])}, ..."),
        ("gaussian:sigm=0.3", "gaussian has no parameter 'sigm' in {}; did you mean 'sigma'?"),
        ("gaussian:keep=0.3", "gaussian has no parameter 'keep' in {}; known: sigma, variance, r"),
        ("bernoulli-matched:unifrm", "bernoulli-matched has no parameter 'unifrm' in {}; did you mean 'uniform'?"),
        ("bernoulli-matched:uniform=1", "bernoulli-matched has no parameter 'uniform' in {}; known: sigma, variance"),
        ("none:mean=0", "method {}: expected a finite number above 0 for mean; got 0"),
        ("none:sigma=1", "none has no parameter 'sigma' in {}; known: mean"),
        ("uniform:low=0", "uniform has no parameter 'low' in {}; known: r"),
        ("gaussian:0.3", "gaussian has no parameter '0.3' in {}; known: sigma, variance, r, match"),
        ("gaussian:mach", "gaussian has no parameter 'mach' in {}; did you mean 'match'?"),
        ("adaptive:match", "adaptive has no parameter 'match' in {}; known: alpha, beta"),
        ("gaussian:sigma", "expected sigma=<number>, got 'sigma' in {}"),
        ("gaussian:sigma=big", "expected sigma=<number>, got 'sigma=big' in {}"),
        ("gaussian:sigma=-1", "method {}: expected a finite number of at least 0 for sigma; got -1"),
        ("gaussian:sigma=nan", "method {}: expected a finite number of at least 0 for sigma; got nan"),
        ("gaussian:sigma=inf", "method {}: expected a finite number of at least 0 for sigma; got inf"),
        ("bernoulli:keep=0", "method {}: expected a probability above 0 and at most 1 for keep; got 0"),
        ("fast:keep=1.5", "method {}: expected a probability above 0 and at most 1 for keep; got 1.5"),
        ("adaptive:alpha=inf", "method {}: expected a finite number for alpha; got inf"),
        ("gaussian:r=0.7", "method {}: expected a number above 0 and at most 0.6567 for r; got 0.7"),
        ("uniform:r=0.4", "method {}: expected a number above 0 and at most 0.3333 for r; got 0.4"),
        ("bernoulli:r=0", "method {}: expected a finite number above 0 for r; got 0"),
        ("normal:r=inf", "method {}: expected a finite number above 0 for r; got inf"),
        ("bernoulli:keep=0.5,r=1", "give r or keep, not both, in {}"),
        ("gaussian:sigma=0.3,sigma=0.2", "sigma is given twice in {}"),
        ("gaussian:sigma=0.3,variance=0.2", "give sigma or variance, not both, in {}"),
    ],
)
def test_usage_errors_get_one_line(text, message):
    assert refusal(parse, text) == message.format(repr(text))


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


WITH_A_MASK = [
    *["none:mean=0.5", "bernoulli", "bernoulli:keep=0.8", "uniform", "gaussian:sigma=0.2", "gaussian:variance=0.2"],
    *CONTROLLED,
    *STRENGTHS,
]


@pytest.mark.parametrize("text", WITH_A_MASK)
@every_scale
@every_activation
def test_masks_in_a_built_network_have_the_noise_that_is_recorded(text, scale, activation):
    """What units are multiplied by in both hidden layers, seen through the next layer's input."""
    if text == "none:mean=0.5" and scale == "inverted":
        pytest.skip("refused")
    draws, units = 400, 50
    network = MLP((20, units, units, 3), activation, scale=scale, initialisation=Glorot())(parse(text))
    inputs = torch.rand(1, 20, generator=torch.Generator().manual_seed(0)).expand(draws, -1)
    with torch.no_grad():
        for name in ("hidden1", "hidden2"):
            layer = network.get_submodule(name)
            layer.linear.weight.abs_()
            layer.linear.bias.fill_(0.1)  # every unit is active
        reads = []
        for reader in ("hidden2", "output"):
            network.get_submodule(reader).register_forward_pre_hook(lambda _, args: reads.append(args[0]))
        torch.manual_seed(1)
        network(inputs)
        first = network.get_submodule("hidden1").linear(inputs)
        second = network.get_submodule("hidden2").linear(reads[0])
    noise = parse(text).noise(scale)
    for before, after in zip((first, second), reads, strict=True):
        units = getattr(torch, activation)(before).double()
        masks = (after.double() / units)[units > 0]  # a law with negative values leaves units of the next layer at 0
        variance = noise["relative_variance"] * noise["mean"] ** 2
        standard = math.sqrt(variance / masks.numel())
        assert abs(masks.mean() - noise["mean"]) < 5 * standard + 1e-5
        fourth = float(((masks - masks.mean()) ** 4).mean())
        assert abs(masks.var() - variance) < 5 * math.sqrt(max(fourth - variance**2, 0) / masks.numel()) + 1e-5


@every_activation
def test_dropconnect_of_the_authors(activation):
    """A mask of the weights for the whole batch, no mask of the bias, and mean weights in evaluation."""
    layer = build("dropconnect-authors", 3, 2, activation=activation)
    function = getattr(torch, activation)
    x = torch.rand(5, 3)
    with torch.no_grad():
        layer.linear.bias.fill_(2.0)  # every unit is active, so every mask shows
        weight, bias = layer.linear.weight, layer.linear.bias
        torch.testing.assert_close(layer.eval()(x), function(x @ (0.5 * weight).T + bias))
        layer.train()
        kept = [[float(b) for b in f"{number:06b}"] for number in range(64)]
        possible = [function(x @ (weight * torch.tensor(mask).reshape(2, 3)).T + bias) for mask in kept]
        drawn = set()
        for _ in range(40):
            out = layer(x)
            (found,) = [i for i, each in enumerate(possible) if torch.allclose(out, each, atol=1e-6)] or [None]
            drawn.add(found)
    assert None not in drawn
    assert len(drawn) > 20


@every_activation
def test_adaptive_of_the_authors_differs_in_evaluation_only(activation):
    theirs, right = (
        build(f"{name}:alpha=1,beta=0.5", activation=activation) for name in ("adaptive-authors", "adaptive")
    )
    right.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 6)
    torch.manual_seed(3)
    expected = right(x)
    torch.manual_seed(3)
    assert torch.equal(theirs(x), expected)
    units = getattr(torch, activation)(preactivations(theirs, x))
    assert torch.equal(theirs.eval()(x), 0.5 * units)
    torch.testing.assert_close(right.eval()(x), units * torch.sigmoid(preactivations(theirs, x) + 0.5))


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


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-authors")])  # whose evaluation is not
@every_activation
@every_scale
def test_evaluation_is_the_mean_of_training(name, activation, scale):
    # The next layer reads units linearly, so its mean over masks is what evaluation should give. Fast dropout and
    # DropConnect take the pre-activation for Gaussian, which with 300 inputs it is.
    draws = 20_000
    layer = build(name, 300, 4, activation=activation, scale=scale)
    output = output_layer(parse(name), 4, 3, scale=scale)
    x = torch.randn(300, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    with torch.no_grad():
        samples = output(layer(x.expand(draws, -1))).double()
        layer.eval(), output.eval()
        expected = output(layer(x.unsqueeze(0)))[0].double()
    errors = samples.std(0) / math.sqrt(draws)
    assert bool((errors > 0).all()) == (name != "none")
    assert ((samples.mean(0) - expected).abs() < 5 * errors + 1e-6).all()


@pytest.mark.parametrize("text", ["bernoulli", "uniform", "gaussian:sigma=0.3", "bernoulli-matched:variance=0.2"])
@every_activation
@every_scale
def test_a_law_masks_the_activations(text, activation, scale):
    layer = build(text, activation=activation, scale=scale)
    x = torch.randn(7, 6)
    h = getattr(torch, activation)(layer.linear(x))
    torch.manual_seed(3)
    expected = cd.functional.dropout(h, parse(text).law, scale=scale)
    torch.manual_seed(3)
    assert torch.equal(layer(x), expected)
    factor = parse(text).law.mean if scale == "paper" else 1
    torch.testing.assert_close(layer.eval()(x), h * factor)


@every_activation
def test_none_is_the_plain_layer(activation):
    layer = build("none", activation=activation)
    x = torch.randn(7, 6)
    assert torch.equal(layer(x), getattr(torch, activation)(layer.linear(x)))
    assert torch.equal(layer.eval()(x), layer.train()(x))


@every_activation
def test_adaptive_keeps_by_the_preactivation(activation):
    layer = build("adaptive:alpha=-1,beta=0.5", activation=activation)
    x = torch.randn(7, 6)
    a = preactivations(layer, x)
    h = getattr(torch, activation)(a)
    torch.testing.assert_close(layer.eval()(x), h * torch.sigmoid(0.5 - a))
    masked = layer.train()(x)
    assert ((masked == 0) | (masked == h)).all()


def test_dropconnect_draws_a_mask_for_every_example():
    layer = build("dropconnect:keep=0.5", activation="sigmoid")
    rows = layer(torch.ones(9, 6))
    assert len(rows.unique(dim=0)) > 1
    weights = torch.where(torch.rand(20_000, 5, 7, generator=torch.Generator().manual_seed(4)) < 0.5, 1.0, 0.0)
    z = (weights * torch.cat([layer.linear.weight, layer.linear.bias.unsqueeze(1)], 1)).sum(2)
    torch.manual_seed(5)
    samples = layer(torch.ones(20_000, 6))
    difference = samples.mean(0) - z.sigmoid().mean(0)
    assert (difference.abs() < 5 * samples.std(0) * math.sqrt(2 / 20_000)).all()
    assert isinstance(output_layer(parse("dropconnect"), 6, 5, scale="paper"), nn.Linear)


@every_scale
def test_fast_dropout_is_in_the_layer_that_reads(scale):
    x = torch.randn(6).relu().expand(50_000, -1)
    first = build("fast", scale=scale)
    assert torch.equal(first(x), first.linear(x).relu())  # its input is data, not hidden units
    torch.manual_seed(6)
    output = output_layer(parse("fast"), 6, 5, scale=scale)
    fast = output(x)
    masked = nn.functional.linear(
        cd.functional.dropout(x, cd.Bernoulli(keep=0.5), scale=scale), output.weight, output.bias
    )
    errors = masked.std(0) * math.sqrt(2 / len(x))
    assert ((fast.mean(0) - masked.mean(0)).abs() < 5 * errors).all()
    torch.testing.assert_close(fast.std(0), masked.std(0), rtol=0.05, atol=0)
    second = build("fast", reads_hidden=True, scale=scale)
    assert second(x).std(0).max() > 0
    assert type(output_layer(parse("fast"), 6, 5, scale=scale, reads_hidden=False)) is nn.Linear


def test_unknown_activation_or_scale():
    said = refusal(build, "none", activation="tanh", kind=ValueError)
    assert "expected activation to be one of 'relu', 'sigmoid'; got 'tanh'" in said
    assert "expected scale to be one of" in refusal(build, "bernoulli", scale="half", kind=ValueError)
