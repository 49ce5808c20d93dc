"""Propagated moments against sums over all masks, quadrature and Monte Carlo."""

import copy
import gzip
import importlib.util
import itertools
import math
import pathlib
import time

import pytest
import torch
from torch import nn

import contdrop as cd
import oracles
from conformance import LAWS, fixed
from contdrop.theory import propagation
from contdrop.theory.propagation import gaussian, layers

EXACT = {"rtol": 1e-10, "atol": 1e-12}
# The modes that know of correlations. Both are exact as long as nothing is non-linear.
CORRELATED = ["output", "full"]
correlated = pytest.mark.parametrize("covariance", CORRELATED)
every_mode = pytest.mark.parametrize("covariance", propagation.COVARIANCES)
each_scale = pytest.mark.parametrize("scale", ["inverted", "paper"])


def module(name, forward, **parts):
    """A model with this forward(self, x), whose class has this name."""
    model = type(name, (nn.Module,), {"forward": forward})()
    for key, part in parts.items():
        setattr(model, key, part)
    return model


def reshape(*shape):
    return module("Reshape", lambda self, x: x.view(x.size(0), *shape))


def bernoulli(keep, **options):
    return cd.Dropout(cd.Bernoulli(keep=keep), **options)


def assert_same(one, other, **tolerance):
    torch.testing.assert_close(one.mean, other.mean, **(tolerance or EXACT))
    torch.testing.assert_close(one.variance, other.variance, **(tolerance or EXACT))


def by_name(result, name):
    (layer,) = [layer for layer in result.layers if layer.name == name]
    return layer


def sum_over_masks(forward, shapes, keep, factor):
    """Mean and covariance of forward(*masks), [D], over all masks of these shapes, each value kept or not."""
    sizes = [math.prod(shape) for shape in shapes]
    outputs, weights = [], []
    for bits in itertools.product([0.0, 1.0], repeat=sum(sizes)):
        values = torch.tensor(bits, dtype=torch.float64)
        masks = [part.reshape(shape) * factor for part, shape in zip(values.split(sizes), shapes)]
        outputs.append(forward(*masks))
        weights.append(math.prod(keep if bit else 1 - keep for bit in bits))
    outputs, weights = torch.stack(outputs), torch.tensor(weights, dtype=torch.float64)
    mean = weights @ outputs
    centred = outputs - mean
    return mean, (centred * weights[:, None]).T @ centred


def assert_exact(result, mean, covariance):
    torch.testing.assert_close(result.mean[0].flatten(), mean, **EXACT)
    torch.testing.assert_close(result.covariance[0], covariance, **EXACT)
    torch.testing.assert_close(result.variance[0].flatten(), covariance.diagonal(), **EXACT)


def linear(inputs, outputs, seed):
    layer = nn.Linear(inputs, outputs, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(fixed(outputs, inputs, seed=seed))
        layer.bias.copy_(fixed(outputs, seed=seed + 100))
    return layer


def passes(model, x, count, names=()):
    """Outputs of many passes of the model as it is for one input, and of the layers of these names."""
    kept = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: kept.update({name: output}))
        for name in names
    ]
    with torch.no_grad():
        kept[""] = model(x.expand(count, *x.shape[1:]))
    for hook in hooks:
        hook.remove()
    return {name: output.double().flatten(1) for name, output in kept.items()}


def assert_within_errors(samples, mean, variance, *, bias=0.0, variance_bias=0.0):
    """Five standard errors of the samples' mean and variance, and what an approximation is allowed beside them."""
    count = len(samples)
    centred = samples - samples.mean(0)
    spread = centred.square().mean(0)
    mean_error = (spread / count).sqrt()
    variance_error = ((centred.square() - spread).square().mean(0) / count).sqrt()
    scale = spread.sqrt()
    assert (samples.mean(0) - mean).abs().le(5 * mean_error + bias * scale + 1e-12).all()
    assert (spread - variance).abs().le(5 * variance_error + variance_bias * spread + 1e-12).all()


# Linear networks: exact.


@correlated
@each_scale
@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_two_dropout_layers_equal_the_sum_over_all_masks(keep, scale, covariance):
    first, second, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    dropout = bernoulli(keep, scale=scale)
    model = nn.Sequential(dropout, first, nn.Sequential(dropout, second))
    factor = 1 / keep if scale == "inverted" else 1.0
    expected = sum_over_masks(lambda m, n: second(n * first(m * x[0])), [(3,), (4,)], keep, factor)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


def test_diagonal_is_exact_where_units_are_independent():
    first, second, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    mean, covariance = sum_over_masks(lambda m: second(m * first(x[0])), [(4,)], 0.4, 2.5)
    result = propagation.moments(nn.Sequential(first, nn.Dropout(0.6), second), x)
    torch.testing.assert_close(result.mean[0], mean, **EXACT)
    torch.testing.assert_close(result.variance[0], covariance.diagonal(), **EXACT)
    assert result.covariance is None


def test_diagonal_leaves_out_correlations():
    first, second, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    result = propagation.moments(nn.Sequential(nn.Dropout(0.5), first, second), x)
    variance = second.weight.square() @ first.weight.square() @ x[0].square()
    torch.testing.assert_close(result.variance[0], variance.detach(), **EXACT)


@correlated
@pytest.mark.parametrize("shared", [(2, 3), (3,), (1, 2, 3), (0, 1), (-1,)])
def test_shared_mask_values(shared, covariance):
    layer, x = linear(8, 3, 1), fixed(1, 2, 2, 2, seed=3)
    model = nn.Sequential(bernoulli(0.4, shared_axes=shared), nn.Flatten(), layer)
    mask_shape = [1 if axis in [s % 4 for s in shared] else size for axis, size in enumerate(x.shape)]
    expected = sum_over_masks(lambda m: layer((m * x).flatten()), [mask_shape], 0.4, 2.5)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)
    if shared == (2, 3):
        of_torch = propagation.moments(nn.Sequential(nn.Dropout2d(0.6), *model[1:]), x, covariance=covariance)
        assert_exact(of_torch, *expected)


@each_scale
def test_shared_mask_values_of_correlated_input(scale):
    first, second, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    drop, shared = (bernoulli(0.4, shared_axes=axes, scale=scale) for axes in ((), (2,)))
    model = nn.Sequential(drop, first, reshape(2, 2), shared, nn.Flatten(), second)

    def forward(m, n):
        return second((n * first(m * x[0]).reshape(2, 2)).flatten())

    expected = sum_over_masks(forward, [(3,), (2, 1)], 0.4, 2.5 if scale == "inverted" else 1.0)
    assert_exact(propagation.moments(model, x, covariance="full"), *expected)


@correlated
def test_shared_mask_values_of_uncorrelated_input(covariance):
    last, x = linear(4, 2, 2), fixed(1, 2, 2, seed=3)
    model = nn.Sequential(nn.Dropout(0.6), bernoulli(0.4, shared_axes=(2,)), nn.Flatten(), last)
    expected = sum_over_masks(lambda m, n: last((n * m * x[0]).flatten()), [(2, 2), (2, 1)], 0.4, 2.5)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


@correlated
@pytest.mark.parametrize("mask_bias", [True, False])
@each_scale
def test_dropconnect_equals_the_sum_over_all_masks(scale, mask_bias, covariance):
    keep, x = 0.4, fixed(1, 2, seed=3)
    factor = 1 / keep if scale == "inverted" else 1.0
    layer = cd.DropConnectLinear(2, 3, law=cd.Bernoulli(keep=keep), scale=scale, mask_bias=mask_bias).double()
    model = nn.Sequential(bernoulli(keep, scale=scale), layer)
    weight, bias = layer.weight.detach(), layer.bias.detach()

    def forward(m, w, b):
        return (w * weight) @ (m * x[0]) + (b * bias if mask_bias else bias)

    expected = sum_over_masks(forward, [(2,), (3, 2), (3,)], keep, factor)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


@pytest.mark.parametrize(("covariance", "first"), [("output", nn.Identity()), ("full", nn.Identity()), ("full", None)])
@pytest.mark.parametrize("mask_bias", [True, False])
def test_dropconnect_with_one_mask_for_a_sequence_equals_the_sum_over_all_masks(mask_bias, covariance, first):
    """With "full" also of an input whose positions are correlated."""
    keep, x = 0.4, fixed(1, 2, 2, seed=3)
    layer = cd.DropConnectLinear(2, 2, law=cd.Bernoulli(keep=keep), masks="batch", mask_bias=mask_bias).double()
    first = first or nn.Sequential(nn.Flatten(), linear(4, 4, seed=5), reshape(2, 2))
    last = linear(4, 3, seed=6)
    model = nn.Sequential(cd.BernoulliDropout(1 - keep), first, layer, nn.Flatten(), last)
    weight, bias = layer.weight.detach(), layer.bias.detach()

    def forward(m, w, b):
        hidden = first((m * x[0])[None])[0].detach() @ (w * weight).T + (b * bias if mask_bias else bias)
        return last(hidden.flatten()).detach()

    expected = sum_over_masks(forward, [(2, 2), (2, 2), (2,)], keep, 1 / keep)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


@correlated
def test_fast_dropout_by_total_covariance(covariance):
    law, x = cd.Gaussian(sigma=0.3), fixed(1, 4, seed=3)
    layer = cd.FastDropoutLinear(4, 3, law=law, dtype=torch.float64)
    weight, bias, ratio = layer.weight.detach(), layer.bias.detach(), law.relative_variance
    mean, between = sum_over_masks(lambda m: weight @ (m * x[0]) + bias, [(4,)], 0.5, 2.0)
    within, _ = sum_over_masks(lambda m: ratio * weight.square() @ (m * x[0]).square(), [(4,)], 0.5, 2.0)
    result = propagation.moments(nn.Sequential(nn.Dropout(0.5), layer), x, covariance=covariance)
    assert_exact(result, mean, between + torch.diag(within))


@correlated
def test_convolution_pooling_and_batch_norm_are_exact(covariance):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Dropout(0.6),
        nn.Conv2d(1, 2, 2, stride=1, padding=1, bias=True),
        nn.BatchNorm2d(2),
        nn.AvgPool2d(2, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
        nn.Conv2d(2, 2, 1, groups=2),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Flatten(),
        nn.BatchNorm1d(4),
    ).double()
    for norm in (model[2], model[7]):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
    model.eval()
    x = fixed(1, 1, 3, 3, seed=3)
    with torch.no_grad():
        expected = sum_over_masks(lambda m: model[1:]((m * x[0])[None]).flatten(), [(1, 3, 3)], 0.4, 2.5)
    result = propagation.moments(model, x, covariance=covariance)
    assert_exact(result, *expected)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(2, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.AdaptiveAvgPool2d((None, 2)),
    ],
    ids=str,
)
def test_diagonal_convolution_and_pooling_are_exact_on_independent_input(layer):
    model, x = nn.Sequential(nn.Dropout(0.3), layer), torch.rand(2, 2, 5, 7)
    assert_same(*(propagation.moments(model, x, covariance=c) for c in ("diagonal", "full")))


def block(body, shortcut=None, sign=1):
    """A residual block that carries its input past its body."""
    carry = lambda self, x: x if shortcut is None else self.shortcut(x)  # noqa: E731
    forwards = {1: lambda self, x: self.body(x) + carry(self, x), -1: lambda self, x: carry(self, x) - self.body(x) * 2}
    return module("Block", forwards[sign], body=body, shortcut=shortcut)


@correlated
@pytest.mark.parametrize("sign", [1, -1])
def test_branches_of_a_residual_addition_are_correlated(sign, covariance):
    body, shortcut, last, x = linear(3, 3, 1), linear(3, 3, 2), linear(3, 2, 3), fixed(1, 3, seed=3)
    inner = block(nn.Sequential(body, nn.Dropout(0.6)), shortcut, sign)
    model = nn.Sequential(nn.Dropout(0.6), block(inner), last)

    def forward(m, n):
        before = m * x[0]
        branch, carried = n * body(before), shortcut(before)
        return last((branch + carried if sign > 0 else carried - 2 * branch) + before)

    expected = sum_over_masks(forward, [(3,), (3,)], 0.4, 2.5)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


def test_diagonal_takes_branches_as_independent_and_a_value_twice_as_twice():
    x = fixed(1, 3, seed=3)
    noise = x[0].square()
    branches = propagation.moments(nn.Sequential(nn.Dropout(0.5), block(nn.Dropout(0.5))), x)
    torch.testing.assert_close(branches.variance[0], (1 + 3) * noise, **EXACT)
    same = propagation.moments(nn.Sequential(nn.Dropout(0.5), block(nn.Identity())), x)
    torch.testing.assert_close(same.variance[0], 4 * noise, **EXACT)


def functions(alpha=1.0, shape=None):
    """A model that does what a forward may do beside calling layers."""

    def forward(self, x):
        x = self.drop(x) * self.gain + 1
        mean = -x.mean((2, 3), keepdim=True)
        y = torch.add(nn.functional.avg_pool2d(x, 2), mean.view(*shape) / 4 if shape else mean / 4, alpha=alpha)
        return torch.flatten(y, 1).reshape(y.shape[0], -1)

    gain = nn.Parameter(torch.tensor([[[2.0]], [[-1.0]]]))
    return module("Functions", forward, drop=nn.Dropout(0.5), gain=gain)


@correlated
def test_functions_and_methods_of_a_forward(covariance):
    model, x = functions(alpha=0.5), fixed(1, 2, 2, 2, seed=3)
    quiet = copy.deepcopy(model)
    quiet.drop = nn.Identity()
    with torch.no_grad():
        expected = sum_over_masks(lambda m: quiet(m * x)[0].double(), [(2, 2, 2)], 0.5, 2.0)
    assert_exact(propagation.moments(model, x, covariance=covariance), *expected)


def test_an_activation_without_variance_stays_certain():
    model = nn.Sequential(linear(3, 4, 1), nn.ReLU(), nn.Sigmoid(), nn.Tanh(), linear(4, 2, 2))
    x = fixed(2, 3)
    for covariance in propagation.COVARIANCES:
        result = propagation.moments(model, x, covariance=covariance)
        torch.testing.assert_close(result.mean, model(x).detach())
        assert not result.variance.any()
    partly = torch.tensor([[0.0, 1.0, -2.0]])
    result = propagation.moments(nn.Sequential(nn.Dropout(0.5), nn.Sigmoid()), partly, covariance="full")
    assert (result.mean[0, 0], result.variance[0, 0]) == (0.5, 0)
    assert torch.isfinite(result.covariance).all()


@pytest.mark.parametrize(("mixing", "allowed"), [(0.0, 0.11), (0.2, 0.2)])
def test_max_pooling_of_correlated_gaussians(mixing, allowed):
    root = mixing * fixed(16, 16) + torch.eye(16, dtype=torch.float64)
    covariance = root @ root.T
    mean = 0.5 * fixed(1, 1, 4, 4, seed=1)
    x = gaussian.GaussianMoments(mean, covariance.diagonal().reshape(1, 1, 4, 4), covariance[None])
    layer = nn.MaxPool2d(2, 1)
    step = layers.handler(layer)(layer, x, True)
    draws = mean.flatten() + fixed(200_000, 16, seed=2) @ root.T
    pooled = layer(draws.reshape(-1, 1, 4, 4)).flatten(1)
    # The maximum of the first three of four is not Gaussian, which is worth up to a tenth of the variance.
    assert_within_errors(
        pooled, step.output.mean.flatten(), step.output.variance.flatten(), bias=0.03, variance_bias=0.12
    )
    # The covariance of overlapping windows is an estimate; without it, this would be off by 0.25 and 0.38.
    scale = pooled.var(0).mean()
    expected = torch.cov(pooled.T)
    assert (expected - step.output.covariance[0]).abs().max() < allowed * scale
    rows = torch.ones(1, 1, 9, dtype=torch.float64)
    pulled = gaussian.adjoint(step.respond, 16, rows)
    total = (pulled @ covariance @ pulled.transpose(1, 2) + step.added_noise(rows)).item()
    assert abs(total / expected.sum().item() - 1) < 0.25
    with_input = (pooled - pooled.mean(0)).T @ (draws - draws.mean(0)) / len(draws)
    assert (with_input - step.respond(covariance[None])[0]).abs().max() < allowed * scale


# Networks.


@pytest.mark.parametrize(
    "last",
    [
        [linear(5, 4, 2), nn.ReLU()],
        [linear(5, 4, 2), nn.Sigmoid()],
        [linear(5, 4, 2), nn.Tanh(), nn.Dropout(0.3)],
        [linear(5, 4, 2), cd.UniformDropout(activation="relu")],
        [cd.DropConnectLinear(5, 4, activation="relu", dtype=torch.float64)],
        [cd.DropConnectLinear(5, 4, activation="sigmoid", dtype=torch.float64)],
    ],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers),
)
def test_output_covariance_has_the_exact_variances_of_one_non_linear_layer(last):
    """The covariances are those of the series' first term, so the rest is below rho^2 (Cauchy and Schwarz)."""
    model, x = nn.Sequential(nn.Dropout(0.4), *last), fixed(2, 5, seed=3)
    output, full = (propagation.moments(model, x, covariance=covariance) for covariance in CORRELATED)
    assert_same(output, full)
    before = copy.deepcopy(model[:2])
    before[1].activation = None
    preactivation = propagation.moments(before, x, covariance="full")

    def outer(variance):
        return variance.sqrt().unsqueeze(1) * variance.sqrt().unsqueeze(2)

    correlation = preactivation.covariance / outer(preactivation.variance)
    bound = correlation.square() * outer(full.variance)
    assert ((output.covariance - full.covariance).abs() < bound).all()


def test_a_dropout_layer_that_rectifies_is_a_relu_and_dropout():
    first, last, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    drop = [cd.Dropout(cd.Gaussian(sigma=0.3), activation=activation) for activation in ("relu", None)]
    models = (
        nn.Sequential(nn.Dropout(0.5), first, drop[0], last),
        nn.Sequential(nn.Dropout(0.5), first, nn.ReLU(), drop[1], last),
    )
    for covariance in propagation.COVARIANCES:
        assert_same(*(propagation.moments(model, x, covariance=covariance) for model in models))


@pytest.mark.parametrize("order", ["relu first", "dropout first"])
@every_mode
def test_relu_right_behind_dropout_is_as_good_as_before_it(order, covariance):
    first, second, x = linear(3, 4, 1), linear(4, 2, 2), fixed(1, 3, seed=3)
    pair = [nn.ReLU(), nn.Dropout(0.6)]
    model = nn.Sequential(first, *(pair if order == "relu first" else pair[::-1]), second)
    mean, expected = sum_over_masks(lambda m: second(m * first(x[0]).relu()), [(4,)], 0.4, 2.5)
    result = propagation.moments(model, x, covariance=covariance)
    torch.testing.assert_close(result.mean[0], mean, **EXACT)
    torch.testing.assert_close(result.variance[0], expected.diagonal(), **EXACT)


def test_relu_behind_a_law_with_negative_values_does_not_commute():
    unclipped = cd.Dropout(cd.Gaussian(sigma=0.3, low=-math.inf, high=math.inf))
    result = propagation.moments(nn.Sequential(unclipped, nn.ReLU()), torch.ones(1, 1))
    expected = oracles.normal_expectation(lambda x: max(x, 0.0), 1.0, 0.36, [0.0])
    assert result.mean.item() == pytest.approx(expected, rel=1e-12)


def dense_network(kind, law, width, inputs=784, seed=0):
    torch.manual_seed(seed)
    act = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}[kind]
    hidden = nn.Linear(inputs, width), act(), cd.Dropout(law), nn.Linear(width, width), act(), cd.Dropout(law)
    model = nn.Sequential(*hidden, nn.Linear(width, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
            nn.init.zeros_(layer.bias)
    return model


BARS_LAWS = [cd.Gaussian(sigma=0.2), cd.Gaussian(sigma=0.3), cd.Bernoulli(keep=0.5)]
each_law = pytest.mark.parametrize("law", BARS_LAWS, ids=str)
each_kind = pytest.mark.parametrize("kind", ["relu", "sigmoid"])


@each_law
@each_kind
@every_mode
def test_dense_network_against_passes(kind, law, covariance):
    model = dense_network(kind, law, 200, inputs=100)
    x = torch.rand(1, 100)
    samples = passes(model, x, 2000, ["3", "6"])
    result = propagation.moments(model, x, covariance=covariance)
    for name in ("3", "6"):
        layer = by_name(result, name)
        # The second pre-activation is exact. Behind a non-linear layer of 200 units, allow 2 % and, where
        # correlations are left out, the 2 sqrt(2 / 200) of random weights.
        allowed = {"bias": 0.02, "variance_bias": 0.2 if covariance == "diagonal" else 0.02} if name == "6" else {}
        assert_within_errors(samples[name], layer.mean.flatten(), layer.variance.flatten(), **allowed)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_every_law_through_a_layer(law):
    model = nn.Sequential(cd.Dropout(law), linear(12, 5, 1))
    x = fixed(1, 12, seed=3)
    result = propagation.moments(model, x, covariance="full")
    torch.testing.assert_close(result.mean, model[1](x).detach(), **EXACT)
    weight = model[1].weight.detach() * x
    torch.testing.assert_close(result.covariance[0], law.relative_variance * weight @ weight.T, **EXACT)


class ResidualNetwork(nn.Module):
    """A small convolutional network as users write it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.drop = cd.GaussianDropout(0.3)
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.head = nn.Linear(12 * 9, 5)

    def forward(self, x):
        x = self.drop(self.stem(x))
        x = nn.functional.relu(x + self.norm(self.conv(x)))
        x = nn.functional.max_pool2d(x, 2)
        return self.head(torch.flatten(x, 1))


@every_mode
def test_convolutional_residual_network_against_passes(covariance):
    torch.manual_seed(3)
    model = ResidualNetwork()
    model.norm.running_var.fill_(0.5)
    model.eval()
    x = torch.rand(1, 1, 6, 6)
    result = propagation.moments(model, x, covariance=covariance)
    assert not any(module.training for module in model.modules())
    model.drop.train()
    samples = passes(model, x, 10_000)[""]
    # What correlations are worth here: the branches share their input, and neighbouring windows their pixels.
    allowed = {"diagonal": 0.3, "output": 0.12, "full": 0.12}[covariance]
    assert_within_errors(samples, result.mean.flatten(), result.variance.flatten(), bias=0.1, variance_bias=allowed)


def test_layers_are_reported_by_path():
    model = nn.Sequential(linear(3, 4, 1), nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), linear(4, 2, 2))
    result = propagation.moments(model, fixed(2, 3))
    assert [layer.name for layer in result.layers] == ["0", "1.0", "1.1", "2"]
    assert [tuple(layer.mean.shape) for layer in result.layers] == [(2, 4), (2, 4), (2, 4), (2, 2)]
    torch.testing.assert_close(result.layers[-1].variance, result.variance)
    single = propagation.moments(nn.Dropout(0.5), fixed(2, 3))
    torch.testing.assert_close(single.variance, fixed(2, 3).square())


@every_mode
def test_what_is_computed_beside_the_output_does_not_matter(covariance):
    def forward(self, x):
        y = self.drop(x)
        self.kept = y * 0.0
        return y

    x = fixed(2, 3)
    model = module("Afterthought", forward, drop=nn.Dropout(0.5))
    result = propagation.moments(model, x, covariance=covariance)
    torch.testing.assert_close(result.variance, x.square())
    torch.testing.assert_close(by_name(result, "drop").variance, x.square())
    nothing = propagation.moments(nn.Sequential(), x, covariance=covariance)
    assert torch.equal(nothing.mean, x)
    assert not nothing.variance.any()


@every_mode
def test_examples_do_not_depend_on_their_batch(covariance):
    model = dense_network("relu", cd.Bernoulli(keep=0.5), 20, inputs=6)
    x = torch.rand(3, 6)
    together = propagation.moments(model, x, covariance=covariance)
    alone = propagation.moments(model, x[1:2], covariance=covariance)
    torch.testing.assert_close(together.variance[1:2], alone.variance, **EXACT)
    torch.testing.assert_close(together.mean[1:2], alone.mean, **EXACT)


@every_mode
def test_types_modes_and_gradients(covariance):
    model = dense_network("sigmoid", cd.Uniform(), 20, inputs=6)
    expected = propagation.moments(copy.deepcopy(model).bfloat16().double(), fixed(2, 6), covariance=covariance)
    model = model.bfloat16()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    with torch.inference_mode():
        x = fixed(2, 6) + 0
        result = propagation.moments(model, x, covariance=covariance)
    assert result.mean.dtype == result.variance.dtype == torch.float64
    assert not result.mean.requires_grad
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(result.variance, expected.variance, **EXACT)
    torch.testing.assert_close(result.mean, expected.mean, **EXACT)


# Mistakes.


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def in_place(self, x):
    y = x * 2
    return self.relu(y) + y


def in_place_method(self, x):
    z = self.dropout(x)
    z.relu_()
    return z


def branching(self, x):
    return x if x.sum() > 0 else -x


def refuse(model, *shape, x=None, **options):
    """Propagate in every mode, which all refuse alike."""
    errors = []
    for covariance in propagation.COVARIANCES:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            propagation.moments(model, torch.ones(shape) if x is None else x, **{"covariance": covariance, **options})
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    raise errors[0]


def hooked(layer):
    layer.register_forward_hook(lambda module, args, output: 5 * output)
    return layer


def replaced(layer):
    layer.forward = lambda x: 2 * x
    return layer


GATE = module("Gate", lambda self, x: self.drop(x.relu(), x), drop=cd.AdaptiveDropout())
WIDER = module("Wider", lambda self, x: x + self.shift, shift=nn.Parameter(torch.ones(5)))
IN_PLACE = module("InPlace", in_place, relu=nn.ReLU(inplace=True))
METHOD = module("Method", in_place_method, dropout=cd.UniformDropout())


def test_refusals(code_refusals):
    code_refusals("propagation_refusals", globals())


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Sequential(Doubled(3, 3)), NotImplementedError, r"function 'torch._C._nn.linear'|Doubled"),
        (
            module("Branching", branching),
            NotImplementedError,
            "Branching cannot be followed, because torch.fx does not",
        ),
        (nn.Sequential(nn.Linear(4, 2)), ValueError, r"layer '0' \(Linear\) failed on an input of shape \[\(1, 3\)"),
    ],
)
def test_refusals_that_quote_torch(model, error, message):
    with pytest.raises(error, match=f"^moments: .*{message}.*$"):
        refuse(model, 1, 3)


def test_a_covariance_that_does_not_fit_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.Dropout(0.5), nn.Conv2d(32, 32, 3))
    message = r"layer '2' \(Conv2d\): expected a covariance of at most 2 GiB, got \[2, 18432"
    with pytest.raises(ValueError, match=message):
        propagation.moments(model, torch.ones(2, 1, 28, 28), covariance="full")
    # What is certain needs none.
    assert propagation.moments(model[:1], torch.ones(2, 1, 28, 28)).mean.shape == (2, 32, 26, 26)


def test_weight_masks_of_a_sequence_that_do_not_fit_are_refused(monkeypatch):
    model = nn.Sequential(cd.DropConnectLinear(30, 20, masks="batch"), nn.Linear(20, 1), nn.Flatten())
    monkeypatch.setattr(gaussian, "LARGEST_COVARIANCE", 8 * 2 * 4 * 600 - 1)
    with pytest.raises(ValueError, match=r"^moments: expected a covariance of at most .* got \[2, 4, 600\]"):
        propagation.moments(model, torch.ones(2, 4, 30), covariance="output")
    assert propagation.moments(model, torch.ones(2, 4, 30)).mean.shape == (2, 4)


def test_dropconnect_with_a_batch_mask_is_that_of_each_example():
    layer = cd.DropConnectLinear(3, 2, masks="batch")
    # Of one example each, a mask for the batch and a mask for every example are the same.
    x = torch.randn(4, 3)
    shared = propagation.moments(layer, x, covariance="full").covariance
    layer.masks = "example"
    assert torch.equal(propagation.moments(layer, x, covariance="full").covariance, shared)


# The goals, at full size: `pytest -m slow -s tests/theory/propagation/test_propagation.py` prints the figures.


def digits():
    """The handwritten digits that ship with scikit-learn, 28 x 28, without importing it."""
    package = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    images = nn.functional.interpolate(rows[:, :64].reshape(-1, 1, 8, 8) / 16, size=(28, 28), mode="bilinear")
    return images.flatten(1), rows[:, 64].long()


def trained(model, epochs=20):
    images, targets = digits()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(100):
            loss = nn.functional.cross_entropy(model(images[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def seconds(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def relative_error(got, expected):
    return ((got - expected).square().mean().sqrt() / expected.abs().mean()).item()


@pytest.mark.slow
@each_law
@each_kind
@pytest.mark.parametrize("weights", ["random", "trained"])
def test_the_bars_on_the_paper_network(kind, law, weights):
    model = dense_network(kind, law, 800)
    x = torch.rand(1, 784)
    if weights == "trained":
        model, x = trained(model), digits()[0][:1]
    samples = passes(model, x, 10_000, ["3", "6"])
    with torch.no_grad():
        one_by_one = 10 * seconds(lambda: [model(x) for _ in range(1000)])
    for covariance in propagation.COVARIANCES:
        times_as_fast = one_by_one / min(
            seconds(lambda mode=covariance: propagation.moments(model, x, covariance=mode)) for _ in range(5)
        )
        result = propagation.moments(model, x, covariance=covariance)
        print(f"\n{kind} {weights} {law} {covariance}: {times_as_fast:.0f} times as fast as 10 000 passes", end="")
        for name in ("3", "6"):
            layer, sample = by_name(result, name), samples[name]
            mean = relative_error(layer.mean[0], sample.mean(0))
            deviation = relative_error(layer.variance[0].sqrt(), sample.std(0))
            print(f"; layer {name} mean {mean:.2%} deviation {deviation:.2%}", end="")
            assert mean < 0.02
            # Trained units are correlated: what diagonal propagation leaves out is told in the docstring.
            assert deviation < (0.35 if covariance == "diagonal" and weights == "trained" else 0.1)
        assert times_as_fast > 100 or covariance == "full"


def in_training(always):
    """A model that calls some of its dropout layers in training mode only, and one never."""

    def forward(self, x):
        if always:
            x = self.first(x)
        if self.training:
            x = self.second(x)
        return self.linear(x)

    dropouts = {"first": cd.GaussianDropout(0.3), "second": nn.Dropout(0.5), "never": nn.Dropout(0.5)}
    return module("InTraining", forward, linear=linear(3, 2, seed=1), **dropouts)


@every_mode
@pytest.mark.parametrize(("always", "missing"), [(True, "second, never"), (False, "first, second, never")])
def test_dropout_that_is_called_in_training_mode_only_is_refused(always, missing, covariance):
    model = in_training(always)
    assert propagation.moments(model, torch.ones(1, 3), covariance=covariance).variance.min() > 0
    model.eval()
    message = f"^moments: expected InTraining to call its dropout layers in either mode, .* does not call {missing};"
    with pytest.raises(ValueError, match=message) as caught:
        propagation.moments(model, torch.ones(1, 3), covariance=covariance)
    assert "\n" not in str(caught.value)
    assert not any(module.training for module in model.modules())


def test_a_layer_that_is_never_called_does_no_harm_beside_others():
    parts = {"drop": nn.Dropout(0.5), "never": nn.Dropout(0.5), "linear": linear(3, 2, seed=1)}
    model = module("Model", lambda self, x: self.linear(self.drop(x)), **parts).eval()
    plain = nn.Sequential(nn.Dropout(0.5), linear(3, 2, seed=1))
    variance = propagation.moments(model, torch.ones(1, 3)).variance
    assert torch.equal(variance, propagation.moments(plain, torch.ones(1, 3)).variance)


@pytest.mark.parametrize("path", ["", "2", "2.1"])
def test_hooks_of_a_relu_behind_dropout_and_of_containers_are_not_passed_by(path):
    model = nn.Sequential(nn.Linear(3, 4), cd.GaussianDropout(0.3))
    model.append(nn.Sequential(cd.UniformDropout(), nn.ReLU()))
    x = torch.ones(2, 3)
    plain = propagation.moments(model, x).mean
    hooked(model.get_submodule(path))
    try:
        assert torch.allclose(propagation.moments(model, x).mean, 5 * plain)
    except NotImplementedError as error:
        assert "has forward hooks" in str(error)  # noqa: PT017


@every_mode
def test_a_layer_that_is_in_several_places_is_called_in_each(covariance):
    relu, linear = nn.ReLU(), [nn.Linear(4, 4).double() for _ in range(3)]
    model = nn.Sequential(linear[0], relu, linear[1], relu, linear[2])
    x = fixed(5, 4)
    assert torch.allclose(propagation.moments(model, x, covariance=covariance).mean, model(x))


def test_an_output_without_an_axis_of_units():
    model = nn.Sequential(nn.Linear(3, 4), cd.GaussianDropout(0.3), nn.Linear(4, 1), nn.Flatten(0))
    x = fixed(5, 3)
    for covariance in propagation.COVARIANCES:
        result = propagation.moments(model, x, covariance=covariance)
        assert result.mean.shape == result.variance.shape == (5,)


def sized(**options):
    def forward(self, x):
        x = nn.functional.relu(x).reshape(x.size(dim=0), -1)
        return self.layer(x) if not options else self.layer(x).reshape(x.size(0), 2, 1).mean(dim=2, **options)

    return module("Sized", forward, layer=nn.Linear(6, 2))


def test_arguments_by_name():
    x = torch.randn(3, 2, 3)
    assert propagation.moments(sized(), x).mean.shape == (3, 2)
    with pytest.raises(NotImplementedError, match=r"moments: .*mean.* is not supported; supported are "):
        propagation.moments(sized(dtype=torch.float32), x)
