"""Covariance between units under dropout, against stored activations and against theory."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import contdrop as cd
from architectures import Tokens
from conformance import fixed, seeded
from contdrop.covariances import Coadaptation, coadaptation

LAW = cd.Gaussian(sigma=0.3)


def network(dropout=lambda: cd.Dropout(LAW), hidden=7):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, hidden), nn.ReLU(), dropout(), nn.Linear(hidden, 5), nn.ReLU(), dropout(), nn.Linear(5, 3)
    )


def inputs(count=3, features=6):
    return fixed(count, features, seed=1).float()


class Recorder:
    """Keeps what a module gives, in float64, one tensor per call."""

    def __init__(self, module):
        self.outputs = []
        module.register_forward_hook(lambda _m, _x, output: self.outputs.append(output.detach().double().clone()))

    def of_input(self, number, calls, repeats):
        # The first call is the trial pass.
        return torch.cat(self.outputs[1 + number * calls : 1 + (number + 1) * calls]).flatten(1)[:repeats]


def naive(activations):
    return torch.as_tensor(np.cov(activations.numpy(), rowvar=False))


def off_diagonal(matrix):
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


# The covariances.


@pytest.mark.parametrize(
    "dropout",
    [lambda: cd.Dropout(LAW), nn.Dropout, cd.UniformDropout, lambda: cd.Dropout(LAW, scale="paper")],
    ids=["gaussian", "torch", "uniform", "paper scale"],
)
@pytest.mark.parametrize("chunk", [50, 33, 1000], ids=["divides", "surplus", "one chunk"])
def test_equals_the_covariance_of_stored_activations(dropout, chunk):
    model, x, repeats = network(dropout), inputs(), 200
    layers = ["2", "3", "5", "6"]
    recorders = {layer: Recorder(model[int(layer)]) for layer in layers}
    result = coadaptation(model, x, layers, repeats, chunk=chunk)
    calls = math.ceil(repeats / min(chunk, repeats))
    assert result.layers == tuple(layers)
    for layer in layers:
        got = result.covariances[layer]
        assert got.dtype == torch.float32
        for number in range(len(x)):
            expected = naive(recorders[layer].of_input(number, calls, repeats))
            torch.testing.assert_close(got[number].double(), expected, rtol=1e-7, atol=1e-13)
    assert result.repeats == repeats


def test_all_batches_are_of_one_size():
    """Matrix products of another size are rounded otherwise, which would look like noise."""
    model, sizes = network(), []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    coadaptation(model, inputs(2), ["2"], 200, chunk=33)
    assert sizes == [2, *[33] * 14]  # a look at what the layers give, then seven batches for each input


def test_more_units_than_a_band():
    model, x = network(hidden=300), inputs(1)
    recorder = Recorder(model[2])
    (got,) = coadaptation(model, x, ["2"], 50).covariances["2"]
    torch.testing.assert_close(got.double(), naive(recorder.of_input(0, 1, 50)), rtol=1e-7, atol=1e-13)
    assert torch.equal(got, got.T)


def test_a_large_mean_costs_nothing():
    model = nn.Sequential(nn.Dropout(0.001), nn.Linear(6, 4)).double()
    nn.init.constant_(model[1].bias, 1e6)
    recorder = Recorder(model[1])
    (got,) = coadaptation(model, inputs(1).double(), ["1"], 3000).covariances["1"]
    values = recorder.of_input(0, 3, 3000)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, naive(values - values[0]), rtol=1e-12, atol=1e-18)
    # The test can tell: sums of squares without a shift are far off.
    raw = (values.T @ values - len(values) * torch.outer(values.mean(0), values.mean(0))) / (len(values) - 1)
    assert (raw - got).abs().max() > 1e-6 * got.abs().max()


def test_second_layer_has_the_covariance_that_theory_gives():
    model, x, repeats = network(), inputs(1), 20_000
    hidden = model[:2](x)[0].detach().double()
    _, expected = cd.theory.static.linear_moments(model[3].weight.detach().double(), hidden, LAW)
    expected = expected / LAW.mean**2  # the layers scale their masks to mean 1
    (got,) = coadaptation(model, x, ["3"], repeats, seed=5).covariances["3"]
    # Of a covariance of nearly Gaussian units.
    error = ((expected.diagonal().outer(expected.diagonal()) + expected.square()) / repeats).sqrt()
    assert ((got - expected).abs() < 5 * error).all()
    assert (off_diagonal(expected).abs() > 5 * off_diagonal(error)).any()


@pytest.mark.parametrize("repeats", [20, 37])
def test_without_noise_all_is_exactly_0(repeats):
    model = nn.Sequential(nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 30))
    result = coadaptation(model, inputs(2, 784), ["0", "2"], repeats, chunk=20)
    for layer, units in (("0", 50), ("2", 30)):
        assert torch.equal(result.covariances[layer], torch.zeros(2, units, units))
        counts, edges = result.histogram(layer, 3)
        assert counts.tolist() == [0, 2 * units * (units - 1), 0]
        assert edges[0] == -1
    summary = result.summary()["2"]
    assert summary.near_zero == 1
    assert summary.sampling_error == summary.mean_variance == summary.root_mean_square == 0
    assert math.isnan(summary.mean_absolute_correlation)


# One mask for a whole batch would be one draw, however many copies it has.


@pytest.mark.parametrize("axes", [(0,), (-2,), (0, 1)])
def test_masks_shared_along_the_batch(axes):
    x, repeats = torch.ones(1, 10), 3000
    model = nn.Sequential(cd.Dropout(cd.Uniform(), shared_axes=axes))
    (got,) = coadaptation(model, x, ["0"], repeats, seed=0).covariances["0"]
    # Five times the standard error of the variance of a uniform number.
    variances = torch.full((10,), cd.Uniform().relative_variance)
    torch.testing.assert_close(got.diagonal(), variances, rtol=5 * math.sqrt(0.8 / repeats), atol=0)
    if axes == (0, 1):
        torch.testing.assert_close(got, got[0, 0].expand(10, 10))


def test_dropconnect_with_one_mask_per_batch():
    layer = cd.DropConnectLinear(6, 3, masks="batch", scale="paper")
    x, repeats = inputs(1), 3000
    squares = layer.weight.detach().square() @ x[0].square() + layer.bias.detach().square()
    (got,) = coadaptation(nn.Sequential(layer), x, ["0"], repeats, seed=0).covariances["0"]
    torch.testing.assert_close(got.diagonal(), 0.25 * squares, rtol=5 * math.sqrt(2 / repeats), atol=0)


def test_masks_shared_within_an_example_run_in_batches():
    model = nn.Sequential(cd.GaussianDropout(shared_axes=(-2, -1)))
    recorder = Recorder(model[0])
    coadaptation(model, torch.ones(1, 3, 2, 2), ["0"], 50)
    assert [len(output) for output in recorder.outputs] == [2, 50]


# Layers.


def test_feature_maps_are_flattened():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(12, 2))
    result = coadaptation(model, torch.ones(2, 1, 4, 4), ["1"], 1000)
    covariances = result.covariances["1"]
    assert covariances.shape == (2, 12, 12)
    # One mask per map: its four equal positions vary as one.
    first = covariances[0, :4, :4]
    torch.testing.assert_close(first, first[0, 0].expand(4, 4))
    assert first[0, 0] > 0


def test_the_next_layer_may_work_in_place():
    x, weight = inputs(), network()[0].weight.detach().clone()

    def result(inplace):
        model = nn.Sequential(
            nn.ReLU(inplace), nn.Dropout(0.5), nn.Linear(6, 7, bias=False), nn.ReLU(inplace), nn.Linear(7, 2)
        )
        model[2].weight.data.copy_(weight)
        return coadaptation(model, x, ["2", "3"], 30, seed=0)

    before = x.clone()
    first, second = result(False), result(True)
    assert torch.equal(x, before)
    assert all(torch.equal(first.covariances[layer], second.covariances[layer]) for layer in ("2", "3"))


def test_half_precision_is_summed_in_full():
    x = torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16)
    (got,) = coadaptation(nn.Sequential(nn.Dropout(0.5)), x, ["0"], 10_000, seed=0).covariances["0"]
    assert got.dtype == torch.float32
    assert got.diagonal().tolist() == pytest.approx([1, 9], rel=0.02)


def test_the_model_itself_is_a_layer():
    model, x = network(), inputs()
    whole, last = (coadaptation(model, x, [name], 50, seed=0).covariances[name] for name in ("", "6"))
    assert torch.equal(whole, last)


def test_what_lies_behind_the_last_layer_is_not_run():
    model = network()
    recorder = Recorder(model[3])
    coadaptation(model, inputs(), ["0", "2"], 100, chunk=10)
    assert [len(output) for output in recorder.outputs] == [2]


# What is left behind.


def states(model):
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return [module.training for module in model.modules()], hooks


@pytest.mark.parametrize("fails", [False, True])
def test_modes_hooks_and_statistics_are_as_before(fails):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[2].eval()
    before, statistics = states(model), model[1].running_mean.clone()
    rng = torch.get_rng_state()
    if fails:
        passes = []
        model[3].register_forward_pre_hook(lambda _m, _x: passes.append(1) if len(passes) < 3 else 1 / 0)
        before = states(model)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        coadaptation(model, inputs(), ["3"], 100, chunk=10, seed=0)
    assert states(model) == before
    assert torch.equal(model[1].running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), rng)


def test_seeds():
    def run(model, seed=None):
        return coadaptation(model, inputs(), ["5"], 50, seed=seed).covariances["5"]

    generator = torch.Generator().manual_seed(3)
    for model in (network(), network(lambda: cd.Dropout(LAW, generator=generator))):
        own = generator.get_state()
        first, again, other = (run(model, seed) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(generator.get_state(), own)
    model = network()  # without a seed torch decides
    first = seeded(run, model)
    assert not torch.equal(run(model), first)
    assert torch.equal(seeded(run, model), first)


# Histogram, quantiles, summary.


def measured():
    result = coadaptation(network(hidden=9), inputs(), ["2", "5"], 100, seed=0)
    return result, result.covariances["2"].double().numpy()


def pairs_of(covariances, include_diagonal):
    keep = np.full((9, 9), True) if include_diagonal else ~np.eye(9, dtype=bool)
    return covariances[:, keep]


@pytest.mark.parametrize("include_diagonal", [False, True])
def test_histogram_and_quantiles_are_those_of_numpy(include_diagonal):
    result, covariances = measured()
    pairs = pairs_of(covariances, include_diagonal).ravel()
    got = result.pairs("2", include_diagonal=include_diagonal)
    assert np.array_equal(got.double().numpy(), pairs)

    edges = [-0.01, -1e-3, 0.0, 1e-3, 0.005]
    counts, returned = result.histogram("2", edges, include_diagonal=include_diagonal)
    assert counts.tolist() == np.histogram(pairs, edges)[0].tolist()
    assert counts.dtype == torch.int64
    assert returned.tolist() == edges

    counts, edges = result.histogram("2", include_diagonal=include_diagonal)
    assert len(counts) == 101
    assert counts.sum() == len(pairs) == 3 * (81 if include_diagonal else 72)
    assert edges[50] < 0 < edges[51]
    assert -edges[0] == edges[-1] == np.abs(pairs).max()
    assert len(result.histogram("2", np.int64(11), include_diagonal=include_diagonal)[0]) == 11

    got = result.quantiles("2", [0, 0.1, 0.5, 0.97, 1], include_diagonal=include_diagonal)
    assert got.tolist() == pytest.approx(np.quantile(pairs, [0, 0.1, 0.5, 0.97, 1]), rel=1e-12)


def test_summary_against_a_loop_over_pairs():
    result, covariances = measured()
    summary = result.summary(eps=2e-3)["2"]
    pairs = [(m, i, j) for m in covariances for i, j in itertools.permutations(range(9), 2)]
    absolute, products = [abs(m[i, j]) for m, i, j in pairs], [m[i, i] * m[j, j] for m, i, j in pairs]
    correlations = [size / math.sqrt(product) for size, product in zip(absolute, products) if product > 0]
    near = sum(size < 2e-3 for size in absolute)
    assert 0 < len(correlations) < len(absolute)  # some units are off for some inputs
    assert 0 < near < len(absolute)
    assert summary.units == 9
    assert summary.mean_absolute == pytest.approx(np.mean(absolute))
    assert summary.root_mean_square == pytest.approx(np.sqrt(np.mean(np.square(absolute))))
    assert summary.sampling_error == pytest.approx(np.sqrt(np.mean(products) / 99))
    assert summary.near_zero == pytest.approx(near / len(absolute))
    assert summary.mean_variance == pytest.approx(np.mean(np.diagonal(covariances, axis1=1, axis2=2)))
    assert summary.mean_absolute_correlation == pytest.approx(np.mean(correlations), rel=1e-5)
    quantiles = np.quantile(pairs_of(covariances, False), list(summary.quantiles))
    assert list(summary.quantiles.values()) == pytest.approx(quantiles)


# Usage errors.


class Odd(nn.Module):
    """Calls one layer twice and another never; a third gives a tuple."""

    def __init__(self):
        super().__init__()
        self.twice, self.never, self.tuple = nn.Linear(6, 6), nn.Linear(6, 6), nn.LSTM(6, 4, batch_first=True)
        self.single, self.drop = nn.Linear(6, 1), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.twice(self.twice(x)))
        self.tuple(x.unsqueeze(1))
        return self.single(x)


def test_token_ids_and_several_inputs():
    model = Tokens(cd.UniformDropout())
    ids, weights = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1.0, 2, 3], [3, 2, 1]])
    both = coadaptation(model, (ids, weights), ["head"], 4000, seed=0).covariances["head"]
    units = (model.embedding(ids) * weights[..., None]).mean(1).detach()
    mixing = model.head.weight.detach() * units[:, None, :]
    exact = mixing @ mixing.transpose(1, 2) / 3  # the relative variance of the uniform law
    assert (both - exact).abs().max() < 0.1 * exact.abs().max()
    assert not torch.allclose(exact[0], exact[1], rtol=0.2)


def measure(**changes):
    return coadaptation(**{"model": Odd(), "x": inputs(), "layers": ["drop"], "repeats": 10, **changes})


MEASURED = Coadaptation({"hidden": torch.eye(3).unsqueeze(0)}, 10)


def test_refusals(code_refusals):
    code_refusals("covariance_refusals", globals())
