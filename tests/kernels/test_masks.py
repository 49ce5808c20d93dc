"""Masks of windows: a window is a part of a whole, and has that part of its mask, in every back end and under vmap."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import fixed
from contdrop.kernels import native, ops, reference
from contdrop.laws import KernelLaw

SEED = torch.tensor(1234567890123456789)
LAWS = {
    "gaussian": KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0),
    "uniform": KernelLaw("uniform", (0.0, 1.0), 2.0),
    "coin": KernelLaw("bernoulli", (0.5,), 2.0),
    "field": KernelLaw("bernoulli", (3 / 16,), 1.0),
    "threshold": KernelLaw("bernoulli", (0.3,), 1.0),
}
each_backend = pytest.mark.parametrize("backend", [reference, native], ids=["reference", "native"])
each_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
fuzzed = settings(max_examples=60, deadline=None)


@st.composite
def windows(draw, most_axes: int = 4):
    """The shape of a whole, and slices of it."""
    whole = draw(st.lists(st.integers(1, 7) | st.sampled_from([33, 100, 500]), max_size=most_axes))
    while math.prod(whole) > 20_000:
        whole[whole.index(max(whole))] = 3
    starts = [draw(st.integers(0, size)) for size in whole]
    stops = [draw(st.integers(start, size)) for start, size in zip(starts, whole)]
    return whole, tuple(slice(start, stop) for start, stop in zip(starts, stops))


def window_of(whole, part):
    return [*whole, *(piece.start for piece in part)]


def placed(x: torch.Tensor, permuted: bool) -> torch.Tensor:
    """The same numbers, with the axes the other way round in memory."""
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order) if permuted else x


def assert_part(got, expected):
    assert got.shape == expected.shape
    assert torch.equal(got, expected)


@each_backend
@fuzzed
@given(data=st.data(), window=windows(), law=st.sampled_from(list(LAWS.values())), permuted=st.booleans())
def test_dropout_of_a_window_is_a_part_of_the_whole(backend, data, window, law, permuted):
    whole, part = window
    shared = data.draw(st.sets(st.integers(0, len(whole) - 1)) if whole else st.just(()))
    x = fixed(*whole).float()
    expected = backend.dropout(x, SEED, law, list(shared), 0)[part]
    got = backend.dropout(placed(x[part], permuted), SEED, law, list(shared), 0, window_of(whole, part))
    assert_part(got, expected)


@each_backend
@fuzzed
@given(data=st.data(), window=windows(), permuted=st.booleans())
def test_keep_where_of_a_window_is_a_part_of_the_whole(backend, data, window, permuted):
    whole, part = window
    shared = data.draw(st.sets(st.integers(0, len(whole) - 1)) if whole else st.just(()))
    x, keep = fixed(*whole).float(), fixed(*whole, seed=1).float().sigmoid()
    expected = backend.keep_where(x, SEED, keep, list(shared))[part]
    parts = placed(x[part], permuted), SEED, placed(keep[part], permuted), list(shared)
    assert_part(backend.keep_where(*parts, window_of(whole, part)), expected)


@each_backend
@each_law
def test_a_seed_per_entry_has_axes_of_its_own_before_the_windows(backend, law):
    x, seeds = fixed(3, 5, 70).float(), SEED + torch.arange(3)
    expected = backend.dropout(x, seeds, law, [], 0)[:, 1:4, 9:]
    assert_part(backend.dropout(x[:, 1:4, 9:], seeds, law, [], 0, [5, 70, 1, 9]), expected)


@each_backend
@each_law
@pytest.mark.parametrize("inputs", [5, 96, 130])
def test_examples_from_a_number_on_have_the_masks_of_that_number_on(backend, law, inputs):
    x, weight, g = fixed(7, inputs), fixed(3, inputs, seed=1), fixed(7, 3, seed=2)
    rest = slice(4, None)
    y = backend.dropconnect(x, weight, SEED, law)
    assert_part(backend.dropconnect(x[rest], weight, SEED, law, 4), y[rest])
    by_x = backend.dropconnect_input_gradient(g, weight, SEED, law)
    assert_part(backend.dropconnect_input_gradient(g[rest], weight, SEED, law, 4), by_x[rest])
    both = [
        backend.dropconnect_weight_gradient(g[part], x[part], SEED, law, part.start)
        for part in (slice(0, 4), slice(4, 7))
    ]
    # A sum of seven terms, taken in two parts.
    assert torch.allclose(sum(both), backend.dropconnect_weight_gradient(g, x, SEED, law), rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed_axis", [0, None])
@pytest.mark.parametrize("shared", [[], [1]])
def test_vmap_of_windows_equals_a_loop(shared, seed_axis):
    x, keep = fixed(2, 3, 4), fixed(2, 3, 4, seed=1).sigmoid()
    seeds = SEED + torch.arange(2)
    window = [5, 9, 2, 3]

    def dropped(x, seed, keep):
        return ops.dropout_operator(x, seed, LAWS["gaussian"].tensor(), shared, 0, window)

    def kept(x, seed, keep):
        return ops.keep_where(x, seed, keep, shared, window)

    for one in (dropped, kept):
        got = torch.vmap(one, in_dims=(0, seed_axis, 0))(x, seeds if seed_axis == 0 else SEED, keep)
        expected = [one(x[i], seeds[i] if seed_axis == 0 else SEED, keep[i]) for i in range(2)]
        assert torch.equal(got, torch.stack(expected))


@each_backend
@pytest.mark.parametrize(
    ("window", "message"),
    [
        ([4], "window: expected 4 numbers, a shape and an offset; got [4]"),
        ([4, 6, 1, 0], "window: expected a part of [4, 6], got [4, 6] from [1, 0] on"),
        ([4, 8, 0, -1], "window: expected a part of [4, 8], got [4, 6] from [0, -1] on"),
    ],
    ids=str,
)
def test_a_window_that_is_no_part_is_refused(backend, window, message):
    with pytest.raises(ValueError, match="window") as caught:
        backend.dropout(fixed(4, 6), SEED, LAWS["coin"], [], 0, window)
    assert str(caught.value) == message
