"""What the functions promise beyond the checks that all layers share, and what they say to bad input."""

import functools
import math

import pytest
import torch

import contdrop as cd
import contdrop.functional as F
from conformance import fixed, seeded
from contdrop import kernels

# Shared axes.


@pytest.mark.parametrize(
    ("axes", "distinct"),
    [
        ((), 2 * 3 * 4 * 5),
        ((3,), 2 * 3 * 4),  # per row
        ((2, 3), 2 * 3),  # per feature map
        ((-1, -2), 2 * 3),
        ((1, 2, 3), 2),  # per sample
        ((0, 1, 2, 3), 1),  # per batch
        ((0,), 3 * 4 * 5),
        ((0, 2), 3 * 5),
    ],
)
def test_shared_axes_share_one_value(axes, distinct):
    mask = F.dropout(torch.ones(2, 3, 4, 5, dtype=torch.float64), cd.Uniform(), shared_axes=axes)
    assert len(mask.unique()) == distinct
    for axis in axes:
        assert torch.equal(mask, mask.narrow(axis, 0, 1).expand_as(mask))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("mapped", [False, True])
def test_shared_axes_may_be_any_iterable_on_every_route(backend, mapped):
    results = []
    for axes in ((1,), [1], iter((1,))):
        draw = functools.partial(F.dropout, law=cd.Uniform(), shared_axes=axes)
        with cd.use_backend(backend):
            results.append(seeded(torch.vmap(draw, randomness="same") if mapped else draw, torch.ones(2, 3, 4)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


# Adaptive dropout.


def test_adaptive_dropout_keeps_the_type_of_the_activations_in_evaluation_too():
    layer = cd.AdaptiveDropout()
    h, preactivation = torch.ones(3, 4, dtype=torch.bfloat16), torch.zeros(3, 4)
    assert layer(h, preactivation).dtype == layer.eval()(h, preactivation).dtype == torch.bfloat16


# DropConnect.


@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.5), cd.Bernoulli(keep=0.3), cd.Gaussian(sigma=0.3)], ids=str)
def test_dropconnect_masks_every_example_by_itself(law):
    x, weight = (torch.ones(rows, 16, dtype=torch.float64) for rows in (32, 64))
    for masks, distinct in (("example", 32), ("batch", 1)):
        rows = F.dropconnect_linear(x, weight, law=law, scale="paper", masks=masks)
        assert len({tuple(row.tolist()) for row in rows}) == distinct


@pytest.mark.parametrize("activation", [None, "relu", "sigmoid"])
@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.4)], ids=str)
@pytest.mark.parametrize("scale", ["inverted", "paper"])
def test_sampled_inference_converges_to_analytic(activation, law, scale):
    torch.manual_seed(1)
    x, weight, bias = fixed(6, 9), fixed(5, 9, seed=1), fixed(5, seed=2)
    options = {"training": False, "activation": activation, "scale": scale}
    analytic = F.dropconnect_linear(x, weight, bias, law, inference="analytic", **options)
    factor = 1 / law.mean if scale == "inverted" else 1.0
    # The variance of an activation is at most that of its argument: relu and sigmoid are contractions.
    deviation = ((x.square() @ weight.square().T + bias.square()) * law.variance * factor**2).sqrt()
    for samples in (100, 20_000):
        sampled = F.dropconnect_linear(x, weight, bias, law, inference="sampled", samples=samples, **options)
        assert ((sampled - analytic).abs() < 5 * deviation / math.sqrt(samples)).all()


def test_analytic_inference_is_the_expectation_over_normal_preactivations():
    # By brute force: a fine grid over the normal distribution.
    x, weight, bias = fixed(3, 4), fixed(2, 4, seed=1), fixed(2, seed=2)
    mean = 0.5 * (x @ weight.T + bias)
    deviation = (0.25 * (x.square() @ weight.square().T + bias.square())).sqrt()
    z = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    for name, function in (("relu", torch.relu), ("sigmoid", torch.sigmoid)):
        expected = torch.trapezoid(function(mean[..., None] + deviation[..., None] * z) * density, z)
        got = F.dropconnect_linear(
            x, weight, bias, training=False, scale="paper", inference="analytic", activation=name
        )
        assert torch.allclose(got, expected, atol=1e-7)


def test_dropconnect_can_keep_the_bias():
    bias = torch.full((3,), 7.0)
    for training in (True, False):
        y = F.dropconnect_linear(torch.zeros(8, 4), torch.ones(3, 4), bias, mask_bias=False, training=training)
        assert torch.equal(y, bias.expand(8, 3))
    masked = F.dropconnect_linear(torch.zeros(500, 4), torch.ones(3, 4), bias, scale="paper")
    assert set(masked.unique().tolist()) == {0.0, 7.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_autocast_reaches_the_linear_layers_and_leaves_float64_alone_as_in_torch(dtype):
    x = torch.ones(4, 6, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.nn.Linear(6, 3, dtype=dtype)(x).dtype
        assert expected == (torch.bfloat16 if dtype == torch.float32 else dtype)
        for layer in (cd.DropConnectLinear(6, 3), cd.FastDropoutLinear(6, 3, law=cd.Uniform())):
            assert layer.to(dtype)(x).dtype == expected
        assert cd.UniformDropout()(x).dtype == dtype


@pytest.mark.parametrize("masks", ["example", "batch"])
@pytest.mark.parametrize("training", [True, False])
def test_a_linear_layer_refuses_another_type_or_device_as_torch_does(masks, training):
    x, weight, bias = torch.ones(2, 4), torch.ones(3, 4), torch.ones(3)
    message = "expected x and (weight|bias) of one type and on one device.*to"
    for change in (torch.Tensor.double, lambda tensor: tensor.to("meta")):
        for given in ((x, change(weight), bias), (change(x), weight, bias), (x, weight, change(bias))):
            with pytest.raises(RuntimeError, match=message):
                F.dropconnect_linear(*given, training=training, masks=masks)
            with pytest.raises(RuntimeError, match=message):
                F.fast_dropout_linear(*given, cd.Uniform(), training=training)
    with pytest.raises(RuntimeError, match="on one device, got cpu and meta"):
        F.adaptive_dropout(x, x.to("meta"), training=training)


@pytest.mark.parametrize(("size", "weight"), [(300.0, 0.25), (1.0, 1.5e-4)], ids=["large", "small"])
def test_variances_of_half_precision_are_those_of_float32(size, weight):
    """Squares of numbers above 256 overflow in float16, and those below 2e-4 are rounded to nothing."""
    x = torch.full((5, 4), size)
    for layer in (
        cd.FastDropoutLinear(4, 300, law=cd.Uniform()),
        cd.DropConnectLinear(4, 3, activation="relu", inference="analytic").eval(),
        cd.DropConnectLinear(4, 3, activation="relu", inference="sampled").eval(),
    ):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(weight)
            expected = seeded(layer.half().float(), x)  # weights that both types have
            with torch.autocast("cpu", dtype=torch.float16):
                cast = seeded(layer, x)
            for got in (cast, seeded(layer.half(), x.half())):
                assert got.dtype == torch.float16
                assert torch.allclose(got.float(), expected, rtol=4e-3, atol=1e-7)


def test_sampled_inference_without_an_activation_is_the_mean_and_draws_nothing():
    layer, x = cd.DropConnectLinear(6, 3, inference="sampled", scale="paper").eval(), fixed(5, 6).float()
    state = torch.get_rng_state()
    assert torch.equal(layer(x), 0.5 * torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.993, value=1.3), cd.Bernoulli.matching(cd.Gaussian(sigma=0.3))])
def test_the_same_bits_in_every_mode_for_a_law_with_a_kept_value(law):
    x, layer = torch.ones(64, dtype=torch.float64), cd.Dropout(law)
    for function in (
        lambda x: torch.func.vmap(layer, randomness="same")(x[None])[0],
        # What a compiled graph calls.
        lambda x: kernels.ops.dropout(x, kernels.draw_seed(None), layer.law.for_graphs["inverted"], [], 0),
    ):
        assert torch.equal(seeded(function, x), seeded(layer, x))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_inputs_gives_its_bias_as_torch_does():
    layer, bias = cd.DropConnectLinear(0, 3, mask_bias=False), torch.ones(3)
    with torch.no_grad():
        layer.bias.copy_(bias)
        for shape in ((2, 0), (0,), (5, 2, 0)):
            for training in (True, False):
                assert torch.equal(layer.train(training)(torch.randn(shape)), bias.expand(*shape[:-1], 3))


# Bad input: one clear line each.


THREE, UNIFORM = torch.ones(3), cd.Uniform()


def test_bad_input_gets_one_clear_line(code_refusals):
    code_refusals("layer_refusals", globals())


def test_a_generator_on_another_device_is_refused():
    class Elsewhere(torch.Generator):
        device = torch.device("cuda")

    with pytest.raises(ValueError, match=r"expected a generator on the cpu.*got one on cuda"):
        F.dropout(torch.ones(3), cd.Uniform(), generator=Elsewhere())
