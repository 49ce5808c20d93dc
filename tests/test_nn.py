"""Every layer goes through the same checks; see conformance.py."""

import copy
import math
import operator
import pickle

import pytest
import torch

import conformance
import contdrop as cd
from conformance import LAWS, assert_moments, bit_equal, fixed, output_and_gradients, seeded

DRAWS = 100_000


by_name = operator.attrgetter("name")
every_case = pytest.mark.parametrize("case", conformance.CASES, ids=by_name)
every_mechanism = pytest.mark.parametrize("case", conformance.MECHANISMS, ids=by_name)


# What is drawn.


@every_case
def test_output_has_the_moments_of_theory(case):
    torch.manual_seed(0)
    layer = case.layer()
    row = case.rows(1)
    with torch.no_grad():
        if "batch" in case.name:
            samples = torch.cat([case.call(layer, row) for _ in range(DRAWS // 50)])
        else:
            samples = case.call(layer, row.expand(DRAWS, -1))
        mean, covariance = case.moments(layer, row[0])
    assert_moments(samples, mean, covariance)


def test_keep_0_gives_zeros_and_keep_1_the_input():
    x = fixed(50)
    assert torch.equal(cd.BernoulliDropout(1.0)(x), torch.zeros_like(x))
    assert torch.equal(cd.BernoulliDropout(0.0)(x), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_mask_is_unbiased_in_every_type(law, dtype):
    count = 400_000
    torch.manual_seed(4)
    mask = cd.Dropout(law)(torch.ones(count, dtype=dtype))
    assert mask.dtype == dtype
    # The only error besides sampling is the rounding of the product, which is symmetric; allow a tenth of its size.
    rounding = torch.finfo(dtype).eps / 10
    assert abs(mask.double().mean() - 1) < 5 * math.sqrt(law.relative_variance / count) + rounding


@every_mechanism
def test_half_precision_uses_the_mask_of_float32(case):
    # float32 is exact enough to be the reference; what differs is the rounding of inputs, weights and result.
    wide, half = (
        seeded(case.call, case.layer(dtype=torch.bfloat16).to(dtype), case.rows(64).to(torch.bfloat16).to(dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert half.dtype == torch.bfloat16
    eps = torch.finfo(torch.bfloat16).eps
    # A gate or threshold that lies within rounding of its random number may flip; nothing else may.
    off = (wide - half.float()).abs() > 8 * eps * (1 + wide.abs())
    assert off.float().mean() < 2 * eps


# Evaluation mode.


@every_case
def test_evaluation_is_the_expectation(case):
    layer = case.layer().eval()
    x = case.rows(7)
    y = case.call(layer, x)
    assert torch.allclose(y, case.evaluation(layer, x), rtol=1e-14, atol=1e-14)
    state = torch.get_rng_state()
    assert torch.equal(case.call(layer, x), y)
    assert torch.equal(torch.get_rng_state(), state)


@every_case
def test_the_argument_has_the_name_it_has_in_torch(case):
    layer, x = case.layer(), case.rows(3)
    second = {"preactivation": 2 * x - 0.3} if case.second_input else {}
    assert torch.equal(seeded(lambda: layer(input=x, **second)), seeded(case.call, layer, x))


def test_inverted_evaluation_returns_the_input_itself():
    x = fixed(3)
    assert cd.UniformDropout().eval()(x) is x


def test_found_by_code_that_looks_for_torch_dropout():
    model = torch.nn.Sequential(cd.GaussianDropout(0.3), cd.BernoulliDropout(0.1), cd.Dropout(cd.Gaussian(mu=0.9)))
    found = [module for module in model.modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)]
    assert len(found) == 3
    # The drop rate of the Bernoulli law of the same strength; exactly 1 - keep if it is a Bernoulli law.
    assert found[1].p == 0.1
    for layer in found:
        assert layer.p == pytest.approx(1 - cd.Bernoulli.matching(layer.law).keep, rel=1e-15)


# Gradients.


@pytest.mark.parametrize("case", conformance.DROPOUT_CASES, ids=by_name)
def test_gradient_is_the_mask(case):
    x = torch.ones(40, 30, dtype=torch.float64, requires_grad=True)
    y = case.layer()(x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y)


@pytest.mark.parametrize("case", conformance.DROPOUT_CASES, ids=by_name)
def test_nothing_of_the_size_of_the_input_is_saved(case):
    saved = []
    x = torch.ones(1000, 30, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.nbytes), lambda _: None):
        case.layer(dtype=torch.float32)(x)
    assert sum(saved) <= 8


def test_adaptive_gate_passes_no_gradient():
    x = fixed(5, 4).requires_grad_()
    a = fixed(5, 4, seed=2).requires_grad_()
    for layer in (cd.AdaptiveDropout(), cd.AdaptiveDropout().eval()):
        y = layer(x, a)
        assert torch.autograd.grad(y.sum(), a, allow_unused=True) == (None,)


@every_mechanism
def test_derivatives_of_every_kind(case):
    """Backward, forward mode, double backward, forward over backward: all against finite differences."""
    layer = case.layer()
    parameters = dict(layer.named_parameters())

    def run(x, *values):
        return seeded(torch.func.functional_call, layer, dict(zip(parameters, values)), (x,))

    arguments = [case.rows(3).requires_grad_(), *(p.detach().clone().requires_grad_() for p in parameters.values())]
    if case.second_input:
        # The gate passes no gradient, and a step of a finite difference would move it: hold it fixed.
        gate = 2 * case.rows(3) - 0.3

        def run(x):
            return seeded(layer, x, gate)

    assert torch.autograd.gradcheck(run, arguments, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda *a: run(*a).square(), arguments, check_fwd_over_rev=True)


def test_fast_dropout_and_dropconnect_have_finite_gradients_for_an_input_of_zeros():
    fast = cd.FastDropoutLinear(4, 3, law=cd.Bernoulli(keep=0.5))
    connect = cd.DropConnectLinear(4, 3, bias=False, activation="relu", inference="analytic").eval()
    sampled = cd.DropConnectLinear(4, 3, bias=False, activation="sigmoid", samples=3).eval()
    for layer in (fast, connect, sampled):
        x = torch.zeros(2, 4, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.isfinite().all()
        assert layer.weight.grad.isfinite().all()


# Seeds.


@every_case
def test_a_seed_gives_bit_equal_outputs_and_gradients(case):
    layer, x = case.layer(), case.rows(9)
    first, again, other = (seeded(output_and_gradients, case, layer, x, seed=seed) for seed in (11, 11, 12))
    assert bit_equal(first, again)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(case.call(layer, x), case.call(layer, x))


@every_case
def test_own_generator_neither_reads_nor_moves_the_global_one(case):
    x = case.rows(9)
    results = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        layer = case.layer(torch.Generator().manual_seed(5))
        results.append([case.call(layer, x), case.call(layer, x), case.call(layer.eval(), x)])
    assert bit_equal(results[0], results[1])
    assert not torch.equal(results[0][0], results[0][1])
    before = torch.get_rng_state()
    case.call(layer.train(), x)
    assert torch.equal(torch.get_rng_state(), before)


# Shapes and layouts.


def _variants(x):
    """The same numbers in different layouts."""
    yield "transposed", x.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    yield "strided", wide[..., ::2]
    offset = torch.zeros(x.numel() + 3, dtype=x.dtype)
    offset[3:] = x.flatten()
    yield "offset", offset[3:].view_as(x)


@every_case
def test_mask_does_not_depend_on_the_memory_layout(case):
    layer, x = case.layer(), case.rows(9)
    expected = seeded(output_and_gradients, case, layer, x)
    for name, variant in _variants(x):
        result = seeded(output_and_gradients, case, layer, variant.detach())
        assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(result, expected)), name


@every_mechanism
def test_empty_batches(case):
    layer = case.layer()
    y = case.call(layer, case.rows(1)[:0].requires_grad_())
    assert y.shape == (0, case.call(layer, case.rows(1)).shape[1])
    y.sum().backward()


def test_linear_layers_take_any_number_of_batch_axes():
    torch.manual_seed(0)
    for layer in (cd.DropConnectLinear(4, 3), cd.FastDropoutLinear(4, 3, law=cd.Uniform())):
        for shape in ((4,), (2, 4), (2, 5, 4), (2, 0, 4)):
            assert layer(torch.ones(shape)).shape == (*shape[:-1], 3)


# Copies, files, text.


@every_case
def test_deepcopy_and_pickle(case):
    for generator in (None, torch.Generator().manual_seed(5)):
        layer = case.layer(generator)
        case.call(layer, case.rows(2))  # so that the generator has moved
        for make in (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
            clone = make(layer)
            assert torch.equal(*(seeded(case.call, module, case.rows(4)) for module in (layer, clone)))
            if generator is not None:
                # Both have moved on by one call, each by itself.
                assert torch.equal(layer.generator.get_state(), clone.generator.get_state())
                assert layer.generator is not clone.generator


@every_case
def test_state_dict_is_that_of_the_torch_layer(case):
    keys = set(case.layer().state_dict())
    assert keys == ({"weight", "bias"} if "Linear" in case.name else set())
    if keys:
        linear = torch.nn.Linear(12, conformance.OUTPUTS)
        case.layer(dtype=torch.float32).load_state_dict(linear.state_dict())


@every_case
@pytest.mark.parametrize("own", [False, True])
def test_repr_can_be_pasted_back(case, own):
    layer = case.build(torch.Generator().manual_seed(5) if own else None)
    clone = eval(repr(layer), {**vars(cd), "torch": torch, "Triangular": conformance.Triangular})
    assert type(clone) is type(layer)
    assert repr(clone) == repr(layer)
    clone.load_state_dict(layer.state_dict())
    assert torch.equal(*(seeded(case.call, module.double(), case.rows(4)) for module in (layer, clone)))


@pytest.mark.parametrize(
    "text",
    [
        "BernoulliDropout(p=0.1)",
        "UniformDropout()",
        "UniformDropout(low=0.2, high=0.7)",
        "GaussianDropout(sigma=0.3)",
        "GaussianDropout(sigma=0.3, mu=0.4, shared_axes=(2, 3), scale='paper')",
        "Dropout(Gaussian(sigma=0.3, low=float('-inf'), high=float('inf')))",
    ],
)
def test_repr_is_short(text):
    assert repr(eval(text, vars(cd))) == text


def test_repr_tells_a_law_of_another_family():
    layers = cd.BernoulliDropout(), cd.UniformDropout(), cd.GaussianDropout()
    for layer, law in zip(layers, (cd.Gaussian(), cd.Gaussian(), cd.Uniform())):
        layer.law = law
        assert repr(layer) == f"{type(layer).__name__}({law!r})"
    layers[0].law = cd.Bernoulli(keep=0.5, value=2.0)
    assert repr(layers[0]) == "BernoulliDropout(Bernoulli(keep=0.5, value=2.0))"


def test_drop_rate_and_law_can_be_scheduled():
    layer = cd.BernoulliDropout(0.5)
    layer.p = 0.1
    assert layer.law == cd.Bernoulli(keep=0.9)
    layer = cd.BernoulliDropout(0.5, scale="paper")
    layer.law = cd.Bernoulli(keep=0.5, value=2.0)
    layer.p = 0.25
    assert layer.law == cd.Bernoulli(keep=0.75, value=2.0)  # the value of kept units stays
    layer = cd.GaussianDropout(0.2)
    layer.law = cd.Gaussian(sigma=0.4)
    assert repr(layer) == "GaussianDropout(sigma=0.4)"


@pytest.mark.parametrize("name", ["gaussian", "dropconnect", "fast"])
def test_assigned_law_is_checked_like_a_given_one(name):
    """One of mean 0 cannot be divided by its mean: it is refused at once, not by infinities in training."""
    made = conformance.LAYERS[name]()
    before = made.law
    with pytest.raises(ValueError, match=f"^{type(made).__name__}: .*mean"):
        made.law = cd.Gaussian(sigma=0.3, mu=0.0, low=-math.inf, high=math.inf)
    with pytest.raises(TypeError, match=f"^{type(made).__name__}: "):
        made.law = 0.3
    assert made.law is before
