"""At home in PyTorch: torch.compile, torch.export, torch.func and activation checkpointing."""

import gc

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import contdrop as cd
import contdrop.functional as F
from conformance import MECHANISMS, bit_equal, fixed, output_and_gradients
from contdrop._torch.private import GENERATORS_IN_GRAPHS

every_mechanism = pytest.mark.parametrize("case", MECHANISMS, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager", fullgraph=True, **options):
    return torch.compile(function, fullgraph=fullgraph, backend=backend, **options)


def since_2_13(what):
    return pytest.mark.skipif(torch.__version__ < (2, 13), reason=f"torch {torch.__version__}: {what}")


# torch.compile. The aot_eager back end does all of the graph work, common-subexpression elimination included, and skips
# only the generation of machine code.


def _assert_compiled_equals_eager(case, backend):
    layer = case.layer()
    compiled_layer = compiled(layer, backend)
    x = case.rows(6)
    results = []
    for module in (layer, compiled_layer):
        torch.manual_seed(1)
        first = output_and_gradients(case, module, x)
        second = output_and_gradients(case, module, x)
        assert not torch.equal(first[0], second[0])
        results.append([*first, *second])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(*results))


@every_mechanism
def test_compiled_layers_draw_the_masks_of_eager_ones(case):
    _assert_compiled_equals_eager(case, "aot_eager")


def test_inductor_draws_the_masks_of_eager():
    _assert_compiled_equals_eager(MECHANISMS[1], "inductor")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_layers_in_one_graph_have_two_masks(backend):
    layer = cd.GaussianDropout(0.3)

    def twice(x):
        return layer(x), layer(x), F.dropout(x, cd.Uniform()), F.dropout(x, cd.Uniform())

    x = torch.ones(7, 9)
    torch.manual_seed(2)
    eager = twice(x)
    torch.manual_seed(2)
    fast = compiled(twice, backend)(x)
    assert bit_equal(list(eager), list(fast))
    assert not torch.equal(fast[0], fast[1])
    assert not torch.equal(fast[2], fast[3])


def test_compiled_gradient_is_the_mask():
    layer = compiled(cd.GaussianDropout(0.3))
    x = torch.ones(7, 9, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_compiled_with_dynamic_shapes():
    layer = cd.GaussianDropout(0.3)
    fast = compiled(layer, dynamic=True)
    for rows in (3, 5, 8):
        torch.manual_seed(rows)
        expected = layer(torch.ones(rows, 4))
        torch.manual_seed(rows)
        assert torch.equal(fast(torch.ones(rows, 4)), expected)


def test_compiled_layers_with_generators_use_their_own():
    def make():
        return torch.nn.Sequential(
            cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(1)),
            cd.UniformDropout(generator=torch.Generator().manual_seed(2)),
        )

    x = torch.ones(5, 6)
    # An older compiler breaks the graph at the draw, and the numbers are the same.
    eager, fast = make(), compiled(make(), fullgraph=GENERATORS_IN_GRAPHS)
    state = torch.get_rng_state()
    for _ in range(3):
        assert torch.equal(eager(x), fast(x))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_function_follows_the_generator_it_is_given():
    fast = compiled(
        lambda x, generator: F.dropout(x, cd.Uniform(), generator=generator), fullgraph=GENERATORS_IN_GRAPHS
    )
    x = torch.ones(20)
    for seed in (1, 2, 3):
        result = fast(x, torch.Generator().manual_seed(seed))
        assert torch.equal(result, F.dropout(x, cd.Uniform(), generator=torch.Generator().manual_seed(seed)))
        gc.collect()


def test_laws_can_be_made_inside_a_compiled_function():
    fast = compiled(lambda x: F.dropout(x, cd.Bernoulli(keep=0.5)) + F.dropout(x, cd.Gaussian(sigma=0.3)))
    torch.manual_seed(3)
    expected = F.dropout(torch.ones(9), cd.Bernoulli(keep=0.5)) + F.dropout(torch.ones(9), cd.Gaussian(sigma=0.3))
    torch.manual_seed(3)
    assert torch.equal(fast(torch.ones(9)), expected)


@since_2_13("its compiler fails at any random operator of a library under vmap, and says so")
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_compiled_vmap_draws_as_eager(randomness):
    layer = cd.GaussianDropout(0.3)

    def inner(x):
        return torch.vmap(layer, randomness=randomness)(x)

    def nested(x):
        return torch.vmap(torch.vmap(layer, randomness="different"), randomness=randomness)(x)

    for function, x in ((inner, torch.ones(3, 5)), (nested, torch.ones(2, 3, 5))):
        torch.manual_seed(4)
        expected = function(x)
        torch.manual_seed(4)
        assert torch.equal(compiled(function)(x), expected)


def test_compiled_forward_mode_and_grad():
    layer = cd.GaussianDropout(0.3)

    def jvp(x):
        return torch.func.jvp(layer, (x,), (torch.ones_like(x),))

    def grad(x):
        return torch.func.grad(lambda x: layer(x).sum())(x)

    x = torch.ones(9)
    y, tangent = compiled(jvp)(x)
    assert torch.equal(y, tangent)
    assert len(tangent.unique()) > 1
    torch.manual_seed(5)
    expected = grad(x)
    torch.manual_seed(5)
    assert torch.equal(compiled(grad)(x), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "own",
    [False, pytest.param(True, marks=since_2_13("runs such a block uncompiled, where the layer asks for a context"))],
)
def test_compiled_checkpointing_keeps_the_mask(own, backend):
    layer = cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(6) if own else None)

    def block(x):
        return checkpoint(lambda x: layer(x.sin()).square(), x, use_reentrant=False)

    x = fixed(8).requires_grad_()
    torch.manual_seed(6)
    y = compiled(block, backend)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    # y = (m sin x)^2, so dy/dx = 2 y cos x / sin x, whatever the mask: this holds only if both passes share it.
    assert torch.allclose(gradient, (2 * y * x.cos() / x.sin()).detach())


# torch.export.


@every_mechanism
def test_export_in_evaluation_mode(case):
    layer = case.layer().eval()
    x = case.rows(4)
    arguments = (x, 2 * x - 0.3) if case.second_input else (x,)
    program = torch.export.export(layer, arguments)
    assert torch.equal(program.module()(*arguments), layer(*arguments))
    assert "contdrop" not in str(program.graph)


def test_export_of_sampled_inference():
    layer = cd.DropConnectLinear(6, 3, activation="relu", samples=20).eval()
    x = torch.ones(2, 6)
    program = torch.export.export(layer, (x,))
    torch.manual_seed(0)
    expected = layer(x)
    torch.manual_seed(0)
    assert torch.allclose(program.module()(x), expected)


# torch.func.


@every_mechanism
def test_vmap_in_both_randomness_modes(case):
    layer = case.layer()
    x = case.rows(1).expand(4, -1)

    def call(row):
        return case.call(layer, row)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(call)(x)
    torch.manual_seed(7)
    same = torch.vmap(call, randomness="same")(x)
    torch.manual_seed(7)
    alone = call(x[0])
    assert torch.allclose(same, alone.expand_as(same), rtol=1e-12)
    different = torch.vmap(call, randomness="different")(x)
    assert len({tuple(row.tolist()) for row in different}) == 4


def test_vmap_over_something_else_draws_a_mask_per_call():
    masks = torch.vmap(lambda i: F.dropout(torch.ones(30), cd.Uniform()) + 0 * i, randomness="different")
    assert len({tuple(row.tolist()) for row in masks(torch.zeros(5))}) == 5


@every_mechanism
def test_func_grad_and_jacobians_agree_with_autograd(case):
    layer = case.layer()
    x = case.rows(1)[0]

    def total(x):
        torch.manual_seed(8)
        return case.call(layer, x).square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(leaf), leaf)
    assert torch.allclose(torch.func.grad(total)(x), expected)
    if not case.second_input:  # the gate moves with x there
        assert torch.allclose(torch.func.jacfwd(total, randomness="same")(x), expected)


@every_mechanism
def test_second_derivatives_by_func_agree_with_autograd(case):
    layer = case.layer()
    x = case.rows(1)[0]

    def total(x):
        torch.manual_seed(8)
        return case.call(layer, x).square().sum()

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(leaf), leaf, create_graph=True)
    expected = torch.stack([torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in slope])
    assert expected.any()
    assert torch.allclose(torch.func.jacrev(torch.func.grad(total))(x), expected)
    outside = torch.autograd.grad(torch.func.grad(total)(leaf).sum(), leaf)[0]
    assert torch.allclose(outside, expected.sum(0))
    if not case.second_input:  # the gate moves with x there
        assert torch.allclose(torch.func.jacfwd(torch.func.grad(total), randomness="same")(x), expected)
        inner = torch.func.jacfwd(total, randomness="same")
        assert torch.allclose(torch.func.jacfwd(inner, randomness="same")(x), expected)


def test_without_gradients_inside_func_no_level_has_any():
    layer = cd.UniformDropout()

    def product(x):
        torch.manual_seed(8)
        with torch.no_grad():
            y = layer(x)
        return (y * x.square()).sum()

    x = torch.ones(3, dtype=torch.float64)
    second = torch.func.grad(lambda x: torch.func.grad(product)(x).sum())(x)
    torch.manual_seed(8)
    assert torch.allclose(second, 2 * layer(x))


def test_per_example_gradients():
    layer = cd.GaussianDropout(0.3)
    x = torch.ones(3, 7)
    gradients = torch.vmap(torch.func.grad(lambda row: layer(row).sum()), randomness="different")(x)
    assert len({tuple(row.tolist()) for row in gradients}) == 3


# Activation checkpointing.


def _block_gradient(layer, x, **options):
    y = checkpoint(lambda x: layer(x.sin()).square(), x, **options)
    return y, torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_the_mask(reentrant):
    x = fixed(50).requires_grad_()
    layer = cd.GaussianDropout(0.3)
    y = checkpoint(lambda x: layer(x.sin()).square(), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.allclose(x.grad, (2 * y * x.cos() / x.sin()).detach().nan_to_num())


def test_checkpointing_with_an_own_generator():
    x = fixed(50).requires_grad_()
    layer = cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(1))
    y, gradient = _block_gradient(layer, x, use_reentrant=False, context_fn=cd.checkpoint_context)
    assert torch.allclose(gradient, (2 * y * x.cos() / x.sin()).detach().nan_to_num())
    with pytest.raises(RuntimeError, match=r"context_fn=contdrop\.checkpoint_context"):
        _block_gradient(layer, x, use_reentrant=False)


def test_nested_checkpointing_with_an_own_generator():
    x = fixed(50).requires_grad_()
    layer = cd.UniformDropout(generator=torch.Generator().manual_seed(1))
    options = {"use_reentrant": False, "context_fn": cd.checkpoint_context}

    def inner(x):
        return layer(x.sin()).exp()

    def outer(x):
        return layer(checkpoint(inner, layer(x), **options)).square()

    def run(function):
        layer.generator.manual_seed(1)
        y = function(x)
        return [y, torch.autograd.grad(y.sum(), x)[0]]

    plain = run(lambda x: layer(inner(layer(x))).square())
    nested = run(lambda x: checkpoint(outer, x, **options))
    assert bit_equal(plain, nested)
