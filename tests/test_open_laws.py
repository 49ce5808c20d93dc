"""Laws of the user's own: mean, variance and quantile are enough, on every layer and beyond."""

import copy
import dataclasses
import functools
import math
import pickle

import pytest
import torch

import contdrop as cd
import contdrop.functional as F
from conformance import OPEN, Triangular, bit_equal, fixed, seeded
from contdrop import inference, kernels
from contdrop.kernels import masks, reference
from contdrop.laws import KernelLaw
from contdrop.theory import dynamic, penalty, propagation, static


@dataclasses.dataclass(frozen=True)
class OwnUniform(cd.Law):
    """The built-in law once more, as a user would write it."""

    low: float = 0.0
    high: float = 1.0

    @property
    def mean(self):
        return (self.low + self.high) / 2

    @property
    def variance(self):
        return (self.high - self.low) ** 2 / 12

    def quantile(self, u):
        return self.low + (self.high - self.low) * u


LAYERS = {
    "dropout": cd.Dropout,
    "dropout-relu": functools.partial(cd.Dropout, activation="relu"),
    "dropout-shared": functools.partial(cd.Dropout, shared_axes=(0,)),
    "dropconnect-example": functools.partial(cd.DropConnectLinear, 12, 5, activation="relu"),
    "dropconnect-batch": functools.partial(cd.DropConnectLinear, 12, 5, masks="batch"),
    "dropconnect-kept-bias": functools.partial(cd.DropConnectLinear, 12, 5, mask_bias=False),
    "fast": functools.partial(cd.FastDropoutLinear, 12, 5),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_scale = pytest.mark.parametrize("scale", ["inverted", "paper"])
PAIRS = [(OwnUniform(), cd.Uniform()), (OwnUniform(0.25, 0.75), cd.Uniform(0.25, 0.75))]


def results(layer, x):
    """Output and gradients in training, and the output in evaluation mode."""
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(fixed(*parameter.shape, seed=number + 5))
    x = x.clone().requires_grad_()
    y = seeded(layer.train(), x)
    gradients = torch.autograd.grad((y * fixed(*y.shape, seed=4).to(y.dtype)).sum(), [x, *layer.parameters()])
    return [y.detach(), *gradients, layer.eval()(x).detach()]


# The masks of the built-in law.


@every_layer
@every_scale
@pytest.mark.parametrize(("own", "built_in"), PAIRS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_an_own_uniform_law_is_the_built_in_one(name, scale, own, built_in, dtype, backend):
    x = fixed(7, 12, seed=1).to(dtype)
    with cd.use_backend(backend):
        mine, theirs = (results(LAYERS[name](law=law, scale=scale).to(dtype), x) for law in (own, built_in))
    # Mask values are exact here; sums over a row are rounded in another order.
    unit = torch.finfo(dtype).eps
    for left, right in zip(mine, theirs, strict=True):
        assert torch.allclose(left, right, rtol=16 * unit, atol=64 * unit)
        assert "connect" in name or torch.equal(left, right)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axes", [(), (2, 3), (0,), (0, 1, 2, 3)])
def test_masks_are_bit_for_bit_those_of_the_built_in_law(backend, dtype, axes):
    x = fixed(3, 4, 5, 6).to(dtype)
    for layout in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 2).contiguous().transpose(0, 2)):
        with cd.use_backend(backend):
            drawn = [seeded(cd.Dropout(law, shared_axes=axes), layout) for law in (OwnUniform(), cd.Uniform())]
        assert torch.equal(*drawn)
        assert drawn[0].stride() == drawn[1].stride()
        assert drawn[0].dtype == dtype


@pytest.mark.parametrize("inputs", [1, 12, 32, 33, 100])
def test_per_example_masks_are_bit_for_bit_those_of_the_built_in_law(inputs):
    """An input of one example and one unit after the other shows the masks themselves."""
    x, weight = torch.eye(inputs).repeat(2, 1), torch.ones(3, inputs)
    assert torch.equal(*(seeded(F.dropconnect_linear, x, weight, None, law) for law in (OwnUniform(), cd.Uniform())))


def test_uniform_numbers_are_those_of_the_reference():
    seed = torch.tensor(123456789)
    got = masks.uniform(seed, [5, 77], torch.float32, torch.device("cpu"), kernels.STREAM_BIAS)
    bits = reference.NUMBER_BITS
    drawn = reference.elements(seed, 0, 5 * 77, bits, kernels.STREAM_BIAS)
    assert torch.equal(got, reference.uniforms(drawn, torch.float32).view(5, 77))
    assert 0 < got.min().item() < got.max().item() < 1


def test_one_seed_is_drawn_per_call():
    states = []
    for law in (OPEN, cd.Uniform()):
        torch.manual_seed(3)
        F.dropconnect_linear(torch.ones(2, 4), torch.ones(3, 4), torch.ones(3), law)
        F.dropout(torch.ones(5), law)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# At home in PyTorch, beyond what every case of tests/conformance.py goes through.


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["dropout-shared", "dropout-relu", "dropconnect-example", "fast"])
def test_compiled_layers_draw_the_masks_of_eager_ones(name):
    layer = LAYERS[name](law=OPEN).double()
    fast = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for x in (fixed(3, 12), fixed(6, 12)):
        assert torch.allclose(seeded(fast, x), seeded(layer, x), rtol=1e-12)


class Flipped(cd.Law):
    """A law of the user's own that calls a built-in one."""

    def __init__(self, law):
        self.law = law
        self.mean, self.variance = 1 - law.mean, law.variance

    def quantile(self, u):
        return 1 - self.law.quantile(1 - u)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("law", [cd.Gaussian(sigma=0.3), cd.Uniform(0.1, 0.7), cd.Bernoulli(keep=0.7)], ids=str)
def test_quantiles_of_built_in_laws_work_in_every_mode(law):
    layer, x = cd.Dropout(Flipped(law)), torch.ones(4, 6)
    expected = seeded(layer, x)
    assert torch.equal(seeded(torch.compile(layer, fullgraph=True, backend="aot_eager"), x), expected)
    assert torch.equal(seeded(torch.export.export(torch.nn.Sequential(layer), (x,)).module(), x), expected)
    assert torch.vmap(layer, randomness="different")(x).shape == x.shape
    assert layer(x.to("meta")).shape == x.shape
    assert torch.func.jvp(layer, (x,), (x,))[1].shape == x.shape
    with pytest.raises(ValueError, match=r"quantile: expected probabilities in \[0, 1\]"):
        law.quantile(torch.tensor([0.5, 1.5]))


def test_a_schedule_may_change_to_an_own_law():
    layer = cd.GaussianDropout(0.3)
    layer.law = OPEN
    assert layer(torch.ones(4)).shape == (4,)


# As a value.


def test_laws_that_hold_a_tensor_are_compared_by_its_numbers():
    class Empirical(Triangular):
        def __init__(self, values):
            self.values = torch.tensor(values)

    assert Empirical([0.0, 1.0]) == Empirical([0.0, 1.0])
    assert Empirical([0.0, 1.0]) != Empirical([0.0, 2.0])
    assert Empirical([0.0, 1.0]) != Empirical([0.0])
    assert Empirical([0.0, 1.0]) != Triangular()


def test_default_distribution_function_inverts_the_quantile():
    x = torch.linspace(-0.5, 1.5, 401, dtype=torch.float64)
    own, built_in = OwnUniform(0.2, 0.9), cd.Uniform(0.2, 0.9)
    assert torch.allclose(own.cdf(x), built_in.cdf(x), rtol=0, atol=4 * 2.0**-53 / 0.7)
    triangle = torch.where(x < 0.5, 2 * x.square(), 1 - 2 * (1 - x).square())
    inside = (x > 0) & (x < 1)
    assert torch.allclose(OPEN.cdf(x)[inside], triangle[inside], rtol=0, atol=1e-14)
    assert OPEN.cdf(-1.0) == 0
    assert OPEN.cdf(1.0) == OPEN.cdf(math.inf) == 1
    assert isinstance(OPEN.cdf(0.3), float)


def test_default_distribution_function_knows_atoms():
    class Steps(cd.Law):
        mean, variance = 0.75, 0.1875

        def quantile(self, u):
            return (u > 0.25).to(u.dtype)

    law = Steps()
    got = [law.cdf(value) for value in (-1e-9, 0.0, 0.9, 1.0)]
    assert got == pytest.approx([0, 0.25, 0.25, 1], abs=2.0**-53)
    drawn = law.sample((1000,), generator=torch.Generator().manual_seed(0))
    assert drawn.mean().item() == pytest.approx(0.75, abs=5 * (0.1875 / 1000) ** 0.5)


def test_default_samples_have_the_moments_of_the_law():
    n = 200_000
    drawn = OPEN.sample((n,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(drawn.mean().item() - OPEN.mean) < 5 * (OPEN.variance / n) ** 0.5
    # The fourth central moment of the triangular law on (0, 1) is 1 / 240.
    assert abs(drawn.var().item() - OPEN.variance) < 5 * ((1 / 240 - OPEN.variance**2) / n) ** 0.5
    assert OPEN.sample((2, 3), dtype=torch.float16).dtype == torch.float16


class Constant(cd.Law):
    variance = 0.0

    def __init__(self, mean):
        self.mean = mean

    def quantile(self, u):
        return torch.full_like(u, self.mean)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OwnUniform(0.1, 0.5), "OwnUniform(low=0.1, high=0.5)"),
        (OwnUniform, "OwnUniform(low=0.0, high=1.0)"),
        (Triangular, "Triangular()"),
        (lambda: Constant(0.5), "Constant(mean=0.5)"),
        (lambda: Constant(0.25), "Constant(mean=0.25)"),
    ],
)
def test_equality_hash_text_and_copies(make, text):
    law = make()
    others = [OwnUniform(0.1, 0.6), Constant(0.75)]
    assert law == make() == copy.deepcopy(law) == pickle.loads(pickle.dumps(law))
    assert law not in others
    assert len({law, make(), *others}) == 3
    assert repr(law) == str(law) == text


# Theory and inference.

ROWS, TARGET = fixed(5, 6, seed=2), torch.tensor([0, 1, 2, 0, 1])


def network(law):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 10), torch.nn.ReLU(), cd.Dropout(law), torch.nn.Linear(10, 3)]
    return torch.nn.Sequential(*layers).double()


def test_a_relu_behind_its_dropout_is_one_before_it():
    before = network(OPEN)
    linear, relu, dropout, last = before
    behind = torch.nn.Sequential(linear, dropout, relu, last)
    first, second = (inference.predict(model, ROWS, method="moments") for model in (before, behind))
    torch.testing.assert_close(first.mean, second.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(first.variance, second.variance, rtol=1e-12, atol=1e-12)
    with torch.device("meta"):  # whatever the default is
        assert torch.equal(inference.predict(behind, ROWS, method="moments").mean, second.mean)
    one, two = (penalty.penalty(model, ROWS, TARGET, torch.nn.functional.cross_entropy) for model in (before, behind))
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_theory_that_needs_moments_alone_is_that_of_the_built_in_law():
    weight, x = fixed(3, 6), fixed(6, seed=1)

    def found(law):
        model = network(law)
        yield from static.linear_moments(weight, x, law)
        yield dynamic.expected_gradient(weight[0], x, 0.3, law)
        yield torch.tensor(dynamic.regularizer(weight[0], x, 0.3, law))
        beliefs = propagation.moments(model, ROWS)
        yield from (beliefs.mean, beliefs.variance)
        yield penalty.penalty(model, ROWS, TARGET, torch.nn.functional.cross_entropy)

    assert bit_equal(list(found(OwnUniform())), list(found(cd.Uniform())))


def test_measures_are_those_of_the_built_in_law():
    def found(law):
        model = network(law)
        predicted = cd.mc_predict(model, ROWS, samples=20)
        return predicted.mean, predicted.variance, cd.coadaptation(model, ROWS[:2], ["3"], repeats=50).covariances["3"]

    assert bit_equal(seeded(found, OwnUniform()), seeded(found, cd.Uniform()))


# Mistakes.


def incomplete(name, quantile=lambda u: u, **moments):
    return type(name, (cd.Law,), {"quantile": lambda self, u: quantile(u), **moments})()


NOTHING = incomplete("Nothing")
HALF = incomplete("Half", mean=0.5)
ENDLESS = incomplete("Endless", mean=math.nan, variance=1.0)
WIDE = incomplete("Wide", mean=1.0, variance=math.inf)
ONE_NUMBER = incomplete("OneNumber", lambda u: 0.5, mean=0.5, variance=1 / 12)
OTHER_SHAPE = incomplete("OtherShape", lambda u: u[:1], mean=0.5, variance=1 / 12)
TWO = torch.ones(2)


def test_a_law_that_lacks_something_is_told_what(code_refusals):
    code_refusals("open_law_refusals", globals())


def test_a_law_without_quantile_is_abstract():
    with pytest.raises(TypeError, match="quantile"):
        type("Incomplete", (cd.Law,), {"mean": 0.5, "variance": 1.0})()


@pytest.mark.parametrize("backend", ["native", "reference", "triton"])
def test_kernels_refuse_a_kind_they_do_not_know(backend):
    if backend == "triton":
        pytest.importorskip("triton", minversion="3.3")
    message = r"^kernels: expected a law of bernoulli, uniform, gaussian, got 'triangular'; pass custom laws to "
    seed, x, law = torch.tensor(1), torch.ones(3, 4), KernelLaw("triangular", (0.5, 0.3, 0.0, 1.0), 1.0)
    with cd.use_backend(backend):
        with pytest.raises(ValueError, match=message):
            kernels.ops.dropout(x, seed, law, [], 0)
        with pytest.raises(ValueError, match=message):
            kernels.ops.dropconnect(x, torch.ones(2, 4), seed, law)
