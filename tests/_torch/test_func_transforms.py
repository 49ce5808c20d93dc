"""At home in PyTorch: torch.compile, torch.export, torch.func and activation checkpointing."""

import gc

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import contdrop as cd
import contdrop.functional as F
from conformance import MECHANISMS, OPEN, bit_equal, fixed, output_and_gradients, seeded
from contdrop._torch.private import GENERATORS_IN_GRAPHS

every_mechanism = pytest.mark.parametrize("case", MECHANISMS, ids=lambda case: case.name)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(function, backend="aot_eager", fullgraph=True, **options):
    return torch.compile(function, fullgraph=fullgraph, backend=backend, **options)


def assert_compiled_as_eager(function, *inputs, backend="aot_eager", **options):
    """A compiled function gives the bits of the function; returns them."""
    eager, fast = (seeded(each, *inputs) for each in (function, compiled(function, backend, **options)))
    torch.testing.assert_close(fast, eager, rtol=0, atol=0)
    return fast


def since_2_13(what):
    return pytest.mark.skipif(torch.__version__ < (2, 13), reason=f"torch {torch.__version__}: {what}")


# torch.compile. The aot_eager back end does all of the graph work, common-subexpression elimination included, and skips
# only the generation of machine code.


@pytest.mark.parametrize(
    ("case", "backend"),
    [*((case, "aot_eager") for case in MECHANISMS), (MECHANISMS[1], "inductor")],
    ids=lambda value: getattr(value, "name", value),
)
def test_compiled_layers_draw_the_masks_of_eager_ones(case, backend):
    layer, x = case.layer(), case.rows(6)

    def twice(module):
        return [output_and_gradients(case, module, x) for _ in range(2)]

    eager, fast = (seeded(twice, module) for module in (layer, compiled(layer, backend)))
    assert not torch.equal(eager[0][0], eager[1][0])
    torch.testing.assert_close(fast, eager, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_layers_in_one_graph_have_two_masks(backend):
    layer = cd.GaussianDropout(0.3)

    def twice(x):
        return layer(x), layer(x), F.dropout(x, cd.Uniform()), F.dropout(x, cd.Uniform())

    fast = assert_compiled_as_eager(twice, torch.ones(7, 9), backend=backend)
    assert not torch.equal(fast[0], fast[1])
    assert not torch.equal(fast[2], fast[3])


def test_compiled_with_dynamic_shapes():
    layer = cd.GaussianDropout(0.3)
    fast = compiled(layer, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.ones(rows, 4)
        assert torch.equal(seeded(fast, x, seed=rows), seeded(layer, x, seed=rows))


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
    def draw(x, generator):
        return F.dropout(x, cd.Uniform(), generator=generator)

    x, fast = torch.ones(20), compiled(draw, fullgraph=GENERATORS_IN_GRAPHS)
    for seed in (1, 2, 3):
        result = fast(x, torch.Generator().manual_seed(seed))
        assert torch.equal(result, draw(x, torch.Generator().manual_seed(seed)))
        gc.collect()


def test_laws_can_be_made_inside_a_compiled_function():
    assert_compiled_as_eager(
        lambda x: F.dropout(x, cd.Bernoulli(keep=0.5)) + F.dropout(x, cd.Gaussian(sigma=0.3)), torch.ones(9)
    )


@since_2_13("its compiler fails at any random operator of a library under vmap, and says so")
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_compiled_vmap_draws_as_eager(randomness):
    layer = cd.GaussianDropout(0.3)
    inner = torch.vmap(layer, randomness="different")
    assert_compiled_as_eager(torch.vmap(layer, randomness=randomness), torch.ones(3, 5))
    assert_compiled_as_eager(torch.vmap(inner, randomness=randomness), torch.ones(2, 3, 5))
    sampled = cd.DropConnectLinear(6, 4, activation="relu", samples=100).eval().requires_grad_(False)
    assert_compiled_as_eager(torch.vmap(sampled, randomness=randomness), torch.randn(3, 5, 6))


def test_compiled_forward_mode_and_grad():
    layer, x = cd.GaussianDropout(0.3), torch.ones(9)
    y, tangent = compiled(lambda x: torch.func.jvp(layer, (x,), (torch.ones_like(x),)))(x)
    assert torch.equal(y, tangent)
    assert len(tangent.unique()) > 1
    assert_compiled_as_eager(lambda x: torch.func.grad(lambda x: layer(x).sum())(x), x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "own",
    [False, pytest.param(True, marks=since_2_13("runs such a block uncompiled, where the layer asks for a context"))],
)
def test_compiled_checkpointing_keeps_the_mask(own, backend):
    layer = cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(6) if own else None)
    assert_mask_is_kept(compiled(lambda x: checkpointed(layer, x, use_reentrant=False), backend), fixed(8))


# torch.export.


@every_mechanism
def test_export_in_evaluation_mode(case):
    layer = case.layer().eval()
    x = case.rows(4)
    arguments = (x, 2 * x - 0.3) if case.second_input else (x,)
    program = torch.export.export(layer, arguments)
    assert torch.equal(program.module()(*arguments), layer(*arguments))
    assert "contdrop" not in str(program.graph)


# torch.func.


@every_mechanism
def test_vmap_in_both_randomness_modes(case):
    layer = case.layer()
    x = case.rows(1).expand(4, -1)

    def call(row):
        return case.call(layer, row)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(call)(x)
    same = seeded(torch.vmap(call, randomness="same"), x)
    assert torch.allclose(same, seeded(call, x[0]).expand_as(same), rtol=1e-12)
    different = torch.vmap(call, randomness="different")(x)
    assert len({tuple(row.tolist()) for row in different}) == 4


def test_vmap_over_something_else_draws_a_mask_per_call():
    masks = torch.vmap(lambda i: F.dropout(torch.ones(30), cd.Uniform()) + 0 * i, randomness="different")
    assert len({tuple(row.tolist()) for row in masks(torch.zeros(5))}) == 5


@every_mechanism
def test_derivatives_by_func_agree_with_autograd(case):
    layer, x = case.layer(), case.rows(1)[0]

    def total(x):
        return seeded(case.call, layer, x).square().sum()

    def forward(function):
        return torch.func.jacfwd(function, randomness="same")(x)

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(leaf), leaf, create_graph=True)
    second = torch.stack([torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in slope])
    assert second.any()
    assert torch.allclose(torch.func.grad(total)(x), slope)
    assert torch.allclose(torch.func.jacrev(torch.func.grad(total))(x), second)
    outside = torch.autograd.grad(torch.func.grad(total)(leaf).sum(), leaf)[0]
    assert torch.allclose(outside, second.sum(0))
    if not case.second_input:  # the gate moves with x there
        assert torch.allclose(forward(total), slope)
        assert torch.allclose(forward(torch.func.grad(total)), second)
        assert torch.allclose(forward(torch.func.jacfwd(total, randomness="same")), second)


def test_without_gradients_inside_func_no_level_has_any():
    layer = cd.UniformDropout()

    def product(x):
        with torch.no_grad():
            y = seeded(layer, x)
        return (y * x.square()).sum()

    x = torch.ones(3, dtype=torch.float64)
    second = torch.func.grad(lambda x: torch.func.grad(product)(x).sum())(x)
    assert torch.allclose(second, 2 * seeded(layer, x))


def test_per_example_gradients():
    layer = cd.GaussianDropout(0.3)
    x = torch.ones(3, 7)
    gradients = torch.vmap(torch.func.grad(lambda row: layer(row).sum()), randomness="different")(x)
    assert len({tuple(row.tolist()) for row in gradients}) == 3


# Activation checkpointing.


def checkpointed(layer, x, **options):
    return checkpoint(lambda x: layer(x.sin()).square(), x, **options)


def assert_mask_is_kept(block, x):
    """For y = (m sin x)^2, dy/dx = 2 y cos x / sin x, whatever the mask: this holds only if both passes share it."""
    x.requires_grad_()
    y = block(x)
    y.sum().backward()
    assert torch.allclose(x.grad, (2 * y * x.cos() / x.sin()).detach().nan_to_num())


@pytest.mark.parametrize("law", [cd.Gaussian(sigma=0.3), OPEN], ids=str)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_the_mask(reentrant, law):
    layer = cd.Dropout(law)
    assert_mask_is_kept(lambda x: checkpointed(layer, x, use_reentrant=reentrant), fixed(50))


CONTEXT = {"use_reentrant": False, "context_fn": cd.checkpoint_context}


def test_checkpointing_with_an_own_generator():
    layer = cd.GaussianDropout(0.3, generator=torch.Generator().manual_seed(1))
    assert_mask_is_kept(lambda x: checkpointed(layer, x, **CONTEXT), fixed(50))
    with pytest.raises(RuntimeError, match=r"context_fn=contdrop\.checkpoint_context"):
        assert_mask_is_kept(lambda x: checkpointed(layer, x, use_reentrant=False), fixed(50))


def test_nested_checkpointing_with_an_own_generator():
    x = fixed(50).requires_grad_()
    layer = cd.UniformDropout(generator=torch.Generator())

    def inner(x):
        return layer(x.sin()).exp()

    def outer(x):
        return layer(checkpoint(inner, layer(x), **CONTEXT)).square()

    def run(function):
        layer.generator.manual_seed(1)
        y = function(x)
        return [y, torch.autograd.grad(y.sum(), x)[0]]

    plain = run(lambda x: layer(inner(layer(x))).square())
    nested = run(lambda x: checkpoint(outer, x, **CONTEXT))
    assert bit_equal(plain, nested)
