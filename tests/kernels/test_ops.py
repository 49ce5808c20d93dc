"""The operators as torch sees them: schemas, shapes, derivatives, batching."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import contdrop as cd
from conformance import fixed
from contdrop import kernels
from contdrop.functional import linear
from contdrop.kernels import native, ops
from contdrop.laws import KernelLaw

SEED = torch.tensor(1234567890123456789)
GAUSSIAN = KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0)
BERNOULLI = KernelLaw("bernoulli", (0.5,), 2.0)

ARGUMENTS = {
    "dropout": (ops.dropout_operator, (fixed(4, 6), SEED, GAUSSIAN.tensor(), [1], 0)),
    "dropout-window": (ops.dropout_operator, (fixed(4, 6), SEED, GAUSSIAN.tensor(), [], 0, [9, 8, 5, 1])),
    "dropout-batched-seed": (ops.dropout_operator, (fixed(2, 6), torch.tensor([5, 6]), BERNOULLI.tensor(), [], 1)),
    "keep_where": (ops.keep_where, (fixed(4, 6), SEED, fixed(4, 6, seed=1).sigmoid(), [])),
    "keep_where-window": (ops.keep_where, (fixed(4, 6), SEED, fixed(4, 6, seed=1).sigmoid(), [0], [9, 8, 5, 1])),
    "dropconnect": (ops.dropconnect_operator, (fixed(4, 6), fixed(3, 6, seed=1), SEED, GAUSSIAN.tensor())),
    "input-gradient": (ops._input_gradient, (fixed(4, 3), fixed(3, 6, seed=1), SEED, BERNOULLI.tensor())),
    "weight-gradient": (ops._weight_gradient, (fixed(4, 3), fixed(4, 6, seed=1), SEED, GAUSSIAN.tensor())),
    "dropconnect-later-examples": (
        ops.dropconnect_operator,
        (fixed(4, 6), fixed(3, 6, seed=1), SEED, GAUSSIAN.tensor(), 5),
    ),
}


def _with_gradients(arguments):
    return tuple(
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments
    )


@pytest.mark.parametrize(("op", "arguments"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_registration_is_complete(op, arguments):
    # The gate of keep_where gets no gradient by design, so it is not asked for one here.
    differentiable = arguments if op is ops.keep_where else _with_gradients(arguments)
    torch.library.opcheck(op, differentiable)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_derivatives_against_finite_differences(name):
    op, arguments = ARGUMENTS[name]
    places = [0, 1] if op in (ops.dropconnect_operator, ops._input_gradient, ops._weight_gradient) else [0]

    def run(*values):
        filled = list(arguments)
        for place, value in zip(places, values):
            filled[place] = value
        return op(*filled)

    values = [arguments[place].clone().requires_grad_() for place in places]
    assert torch.autograd.gradcheck(
        run, values, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(run, values, check_fwd_over_rev=True, check_rev_over_rev=True)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    batch=st.integers(1, 3),
    x_axis=st.none() | st.integers(0, 3),
    seeds=st.sampled_from(["one", "many"]),
    shared=st.booleans(),
)
def test_vmap_of_dropout_equals_a_loop(shape, batch, x_axis, seeds, shared):
    x_axis = None if x_axis is None else min(x_axis, len(shape))
    if x_axis is None and seeds == "one":
        return  # nothing is batched
    full = list(shape) if x_axis is None else [*shape[:x_axis], batch, *shape[x_axis:]]
    x = fixed(*full)
    seed = SEED if seeds == "one" else SEED + torch.arange(batch)
    axes = [len(shape) - 1] if shared and shape else []

    def one(x, seed):
        return ops.dropout(x, seed, GAUSSIAN, axes, 0)

    result = torch.vmap(one, in_dims=(x_axis, None if seeds == "one" else 0))(x, seed)
    loop = [
        one(x if x_axis is None else x.select(x_axis, i), seed if seeds == "one" else seed[i]) for i in range(batch)
    ]
    assert torch.equal(result, torch.stack(loop))


@pytest.mark.parametrize("outer_seed", [0, None])
@pytest.mark.parametrize("inner_seed", [0, None])
@pytest.mark.parametrize("name", ["dropout", "keep_where"])
def test_nested_vmap_equals_loops(name, inner_seed, outer_seed):
    x = fixed(2, 3, 4)
    shape = [size for size, batched in ((2, outer_seed), (3, inner_seed)) if batched == 0]
    seeds = SEED + torch.arange(torch.Size(shape).numel()).view(shape)
    keep = fixed(4, seed=1).sigmoid()

    def one(x, seed):
        if name == "dropout":
            return ops.dropout(x, seed, GAUSSIAN, [], 0)
        return ops.keep_where(x, seed, keep, [])

    result = torch.vmap(torch.vmap(one, in_dims=(0, inner_seed)), in_dims=(0, outer_seed))(x, seeds)
    every = seeds.view(len(seeds) if outer_seed == 0 else 1, -1).expand(2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(result[i, j], one(x[i, j], every[i, j]))


@pytest.mark.parametrize("seed_axis", [0, None])
@pytest.mark.parametrize("shared", [[], [1]])
def test_vmap_of_windows_equals_a_loop(shared, seed_axis):
    x, keep = fixed(2, 3, 4), fixed(2, 3, 4, seed=1).sigmoid()
    seeds = SEED + torch.arange(2) if seed_axis == 0 else SEED.expand(2)
    window = [5, 9, 2, 3]
    for one in (
        lambda x, seed, keep: ops.dropout_operator(x, seed, GAUSSIAN.tensor(), shared, 0, window),
        lambda x, seed, keep: ops.keep_where(x, seed, keep, shared, window),
    ):
        got = torch.vmap(one, in_dims=(0, seed_axis, 0))(x, seeds if seed_axis == 0 else SEED, keep)
        assert torch.equal(got, torch.stack([one(*values) for values in zip(x, seeds, keep)]))


def test_vmap_of_dropconnect_equals_a_loop():
    x, weight = fixed(2, 4, 6), fixed(2, 3, 6, seed=1)
    seeds = SEED + torch.arange(2)

    def one(x, weight, seed):
        return ops.dropconnect(x, weight, seed, BERNOULLI)

    result = torch.vmap(one)(x, weight, seeds)
    assert torch.equal(result, torch.stack([one(x[i], weight[i], seeds[i]) for i in range(2)]))
    shared = torch.vmap(one, in_dims=(None, 0, None))(x[0], weight, SEED)
    assert torch.equal(shared, torch.stack([one(x[0], weight[i], SEED) for i in range(2)]))


@pytest.mark.parametrize("activation", ["relu", "sigmoid", None])
def test_sampled_activation_has_derivatives(activation):
    """Reverse and forward mode against those that torch takes step by step."""
    mean, deviation, tangent = fixed(3, 4), fixed(3, 4, seed=1).abs(), fixed(3, 4, seed=2)
    ways = [torch.ops.contdrop.sampled_activation, linear._average]
    options = (torch.tensor(5), 50, activation)
    torch.library.opcheck(ways[0].default, (mean.clone().requires_grad_(), deviation, *options))
    reverse = [torch.func.vjp(lambda m, d, way=way: way(m, d, *options), mean, deviation)[1](tangent) for way in ways]
    forward = [
        torch.func.jvp(lambda m, d, way=way: way(m, d, *options), (mean, deviation), (tangent, mean))[1] for way in ways
    ]
    for mine, other in zip([*reverse[0], forward[0]], [*reverse[1], forward[1]], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("training", [True, False])
def test_vmap_of_an_empty_batch(randomness, training):
    layer = cd.DropConnectLinear(4, 3, activation="relu", samples=10).train(training)
    for shape in ((4,), (5, 4)):
        y = torch.vmap(layer, randomness=randomness)(torch.ones(0, *shape))
        assert y.shape == (0, *shape[:-1], 3)


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("dropconnect", lambda x: x[:, :2]),
        ("input-gradient", lambda gradient: gradient[:, :2]),
        ("weight-gradient", lambda gradient: gradient[:1]),
    ],
)
def test_native_dropconnect_refuses_what_it_would_read_or_write_beyond_the_end_of(name, shorter):
    op, (left, right, *rest) = ARGUMENTS[name]
    with kernels.use_backend("native"):
        with pytest.raises(RuntimeError, match=r"^dropconnect: expected matrices whose sizes fit together, got \("):
            op(shorter(left), right, *rest)
        with pytest.raises(RuntimeError, match=r"^dropconnect: expected matrices of one type, got torch.float"):
            op(left.float(), right, *rest)


def test_gradients_of_dropconnect_are_of_matrices_of_one_type():
    matrices = {"g": fixed(4, 3), "w": fixed(3, 6, seed=1), "x": fixed(4, 6, seed=2).float()}
    with (
        kernels.use_backend("native"),
        pytest.raises(RuntimeError, match=r"expected matrices of one type, got torch.float64 and torch.float64 and"),
    ):
        native.dropconnect("xw", matrices, SEED, GAUSSIAN)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: native.keep_where(fixed(4, 6), SEED, x, []),
        lambda x: native.dropconnect("g", {"w": fixed(3, 6), "x": x}, SEED, GAUSSIAN),
        lambda x: native.dropconnect("w", {"g": fixed(4, 3), "x": x}, SEED, GAUSSIAN),
    ],
)
def test_native_kernels_refuse_another_device(call):
    with pytest.raises(RuntimeError, match="every tensor on the cpu, got one on meta"):
        call(fixed(4, 6).to("meta"))
