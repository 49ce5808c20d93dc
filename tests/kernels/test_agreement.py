"""The conformance suite of the back ends: each gives what the reference gives, by law, type, layout and window.

A process tests the native back end with every instruction set of this CPU; if TRITON_INTERPRET is set it tests the
Triton back end instead: with 1 in Triton's interpreter, with 0 on a GPU. ``test_triton.py`` starts such a process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import contdrop as cd
import oracles
from conformance import INFINITY, LAWS, MECHANISMS, assert_pretended_numbers_are_read, output_and_gradients
from contdrop.kernels import native, reference
from contdrop.kernels.native import loader
from contdrop.laws import KernelLaw

TESTS_TRITON = "TRITON_INTERPRET" in os.environ
DEVICE = torch.device("cuda" if os.environ.get("TRITON_INTERPRET") == "0" else "cpu")

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SEED = torch.tensor(0x0123456789ABCDEF)
ALL_LAWS = [
    *LAWS,
    # Certain coins, every number of bits, and a threshold that rounds up to 2^32.
    *(cd.Bernoulli(keep=keep) for keep in (0.0, 1.0, 0.25, 3 / 16, 3 / 256, 1 - 2.0**-16, 1 - 1e-12)),
    cd.Uniform(-1, 0.5),
    *(cd.Gaussian(sigma=sigma) for sigma in (0.0, 0.1, 1e6)),
    cd.Gaussian(sigma=1e6, low=-INFINITY, high=INFINITY),
    cd.Gaussian(mu=-0.5, sigma=0.3, low=-1.0, high=0.2),  # a negative mean, so a negative scale
    cd.Gaussian(mu=2.0, sigma=0.4),  # mu outside the interval
    cd.Gaussian(mu=1.0, sigma=0.5, low=0.0, high=INFINITY),
]
UNIFORM = KernelLaw("uniform", (0.0, 1.0), 1.0)
NORMAL = KernelLaw("gaussian", (0.0, 1.0, -INFINITY, INFINITY), 1.0)
ALL_ONES = KernelLaw("bernoulli", (1.0,), 1.0)
KERNEL_LAWS = {
    **{str(law): law.for_kernels["inverted"] for law in ALL_LAWS},
    "unscaled": cd.Gaussian(sigma=0.3).for_kernels["paper"],
    "rare": KernelLaw("bernoulli", (2.0**-40,), 1.0),
    "negative-bernoulli": KernelLaw("bernoulli", (0.5,), -2.0),
    "negative-uniform": KernelLaw("uniform", (-1.0, 1.0), -2.0),
    "negative-gaussian": KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), -1.0),
    "nothing-of-infinity": KernelLaw("gaussian", (0.5, 0.3, -INFINITY, INFINITY), 0.0),
    "normal": NORMAL,
}
# One for each way to draw: a quantile, a number, one bit of a word, a field, a threshold.
WAYS = {
    "gaussian": KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0),
    "uniform": KernelLaw("uniform", (0.0, 1.0), 2.0),
    "coin": KernelLaw("bernoulli", (0.5,), 2.0),
    "field": KernelLaw("bernoulli", (3 / 16,), 1.0),
    "threshold": KernelLaw("bernoulli", (0.3,), 1.0),
    "rare": KernelLaw("bernoulli", (0.99,), 1.0),
}

# Ways by type: each type meets three ways, and each way two types.
WAYS_IN = {
    torch.float32: ("gaussian", "coin", "threshold"),
    torch.float64: ("uniform", "threshold", "coin"),
    torch.float16: ("field", "gaussian", "rare"),
    torch.bfloat16: ("rare", "uniform", "field"),
}

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_law = pytest.mark.parametrize("law", KERNEL_LAWS.values(), ids=KERNEL_LAWS)
each_way = pytest.mark.parametrize("law", WAYS.values(), ids=WAYS)
# The interpreter takes a thousand times as long as the compiled kernels.
fuzzed = settings(max_examples=20 if TESTS_TRITON else 60, deadline=None)


# Back ends.


def usable_instructions() -> list[str]:
    """The instruction sets of this CPU; importing this file fails if the library was not built."""
    usable = []
    for name in loader.INSTRUCTIONS:
        with contextlib.suppress(ValueError), native.use_instructions(name):
            usable.append(name)
    return usable


each_set = pytest.mark.parametrize("instructions", usable_instructions())


@dataclasses.dataclass(frozen=True)
class BackEnd:
    """A back end under test, whose functions are attributes.

    Attributes:
        module: The functions.
        instructions: The instruction set to use, of the native one.
        quantile_error: Of a standard normal number.
        rounds: Whether results are rounded to nearest; to bfloat16 Triton's interpreter cuts off.
    """

    module: Any
    instructions: str | None = None
    quantile_error: float = 1e-6
    rounds: bool = True

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.module, name)

        def run(*arguments: Any) -> Any:
            with native.use_instructions(self.instructions) if self.instructions else contextlib.nullcontext():
                return function(*arguments)

        return run

    def __str__(self) -> str:
        return self.instructions or self.module.__name__.rpartition(".")[2]


if TESTS_TRITON:
    from contdrop.kernels import triton

    # Its quantile is off by 1.2e-6 at most.
    TESTED = [BackEnd(triton, quantile_error=1.2e-6, rounds=DEVICE.type == "cuda")]
else:
    TESTED = [BackEnd(native, name) for name in usable_instructions()]

each_back_end = pytest.mark.parametrize("back_end", list(TESTED), ids=str)
if not TESTS_TRITON:
    TESTED.insert(0, BackEnd(reference))
each_back_end_and_the_reference = pytest.mark.parametrize("back_end", TESTED, ids=str)


# Agreement.


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(DEVICE, dtype)


def assert_same_bits(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    assert torch.equal(got.contiguous().view(kind), expected.contiguous().view(kind))


def assert_close(got: Tensor, expected: Tensor, error: Tensor | float) -> None:
    """Equal up to an error before the last rounding, and one unit in the last place after it."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    info = torch.finfo(got.dtype)
    overflow = info.max * (1 + info.eps / 2)  # what infinity stands for where one of the two is still finite
    got, expected = (tensor.double().clamp(-overflow, overflow) for tensor in (got, expected))
    unit = info.eps * expected.abs() + info.smallest_normal * info.eps
    assert not got.isnan().any()
    assert ((got - expected).abs() <= error + unit).all()


def mask_error(law: KernelLaw, dtype: torch.dtype, quantile_error: float = 1e-6) -> float:
    """How far a mask value may be from the reference's.

    The package promises 1e-6 for the mask value. A law without bounds has values of size sigma, and an error to match.
    A uniform value in float64 is off by roundings only.
    """
    if law.kind == "bernoulli":
        return 0.0
    if law.kind == "uniform" and dtype == torch.float64:
        return 4 * oracles.mask_tolerance(law.kind, law.params, dtype) * abs(law.factor)
    if law.kind == "gaussian" and math.isinf(max(-law.params[2], law.params[3])):
        return quantile_error * abs(law.factor) * max(1.0, law.params[1])
    return 1e-6 * abs(law.factor)


def largest(law: KernelLaw) -> float:
    """The largest size of a mask value, but for its factor, that is ever drawn."""
    if law.kind == "bernoulli":
        return 1.0
    low, high = law.params[-2:]
    bound = max(-low, high)
    return bound if math.isfinite(bound) else abs(law.params[0]) + 5.5 * law.params[1]


def assert_dropout(
    x: Tensor, law: KernelLaw, shared_axes=(), *, seed: Tensor = SEED, stream: int = 0, back_end: Any, memory=None
) -> None:
    """The reference's result, in the layout of x, with nothing else in the memory of x changed."""
    memory = x if memory is None else memory
    before = memory.clone()
    arguments = (x, seed, law, list(shared_axes), stream)
    got, expected = back_end.dropout(*arguments), reference.dropout(*arguments)
    assert_same_bits(memory, before)
    assert got.stride() == torch.empty_like(x).stride()
    if law.kind == "bernoulli" and law.factor > 0 and back_end.rounds:  # else zeros may differ in their sign
        assert_same_bits(got, expected)
    else:
        assert_close(got, expected, x.double().abs() * mask_error(law, x.dtype, back_end.quantile_error))


def assert_keep_where(x: Tensor, keep: Tensor, shared_axes=(), *, seed: Tensor = SEED, back_end: Any) -> None:
    before = x.clone()
    got = back_end.keep_where(x, seed, keep, list(shared_axes))
    assert_same_bits(got, reference.keep_where(x, seed, keep, list(shared_axes)))
    assert_same_bits(x, before)
    assert got.stride() == torch.empty_like(x).stride()


# Shapes and layouts.

# The ends of what the kernels do at once.
EDGES = sorted({size * k + d for size in (16, 64, 96, 512, 2048, 6144) for k in (1, 2, 3) for d in (-1, 0, 1)})
MOST, FLAT, TRANSPOSED = 26_000, 20_011, (41, 67)
if TESTS_TRITON:
    EDGES, MOST, FLAT, TRANSPOSED = [size for size in EDGES if size < 1600], 2000, 1100, (11, 23)


def layouts(dtype: torch.dtype = torch.float32) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Tensors in every kind of layout, with axes to share."""
    base = numbers(3, 4, 5, 6, dtype=dtype)
    return {
        "contiguous": (numbers(37, 41, dtype=dtype), ()),
        "one": (numbers(1, 1, dtype=dtype), (0, 1)),
        "scalar": (numbers(dtype=dtype), ()),
        "empty": (numbers(3, 0, dtype=dtype), (0,)),
        "long": (numbers(1500, dtype=dtype), ()),
        "transposed": (numbers(37, 41, dtype=dtype).T, ()),
        "offset": (numbers(501, dtype=dtype)[1:], ()),
        "step": (numbers(40, 30, dtype=dtype)[3::2, 1::3], ()),
        "step-shared": (numbers(70, 30, dtype=dtype)[:, ::3], (0,)),
        "expanded": (numbers(1, 7, dtype=dtype).expand(5, 7), ()),
        "channels-last": (base.to(memory_format=torch.channels_last), ()),
        "channels-last-maps": (base.to(memory_format=torch.channels_last), (2, 3)),
        "maps": (base, (2, 3)),
        "rows": (base, (3,)),
        "samples": (base, (1, 2, 3)),
        "batch": (base, (0, 1, 2, 3)),
        "first": (base, (0,)),
        "every-other": (base, (0, 2)),
        "permuted-shared": (base.permute(2, 0, 3, 1), (1, 3)),
        "five-axes": (numbers(2, 3, 2, 3, 2, dtype=dtype), (1, 3)),
        "seven-axes": (numbers(2, 2, 3, 2, 2, 2, 2, dtype=dtype), (1, 3, 5)),
    }


each_layout = pytest.mark.parametrize("layout", layouts())


@st.composite
def shapes(draw, most_axes: int = 5) -> list[int]:
    shape = draw(st.lists(st.integers(1, 6) | st.sampled_from([0, 1, 13, 31, 37]), max_size=most_axes))
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from(EDGES))
    while math.prod(shape) > MOST:
        shape[sorted(range(len(shape)), key=shape.__getitem__)[-2]] = 1  # all but the longest axis
    return shape


@st.composite
def placed(draw, shape: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory, and a tensor of a shape in it: shifted, permuted, strided, expanded or channels-last."""
    axes = len(shape)
    offset = draw(st.sampled_from([0, 0, 1, 5, 16, 17]))
    order = draw(st.permutations(range(axes)) if draw(st.booleans()) else st.just(range(axes)))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    full = [shape[axis] * steps[axis] for axis in order]
    memory = numbers(offset + math.prod(full), dtype=dtype, seed=draw(st.integers(0, 99)))
    inverse = sorted(range(axes), key=list(order).__getitem__)
    x = memory[offset:].view(full).permute(inverse)[tuple(slice(None, None, step) for step in steps)]
    special = draw(st.sampled_from(["no", "no", "expanded", "channels-last"]))
    if special == "expanded" and axes and x.numel():
        x = x.narrow(draw(st.integers(0, axes - 1)), 0, 1).expand(shape)
    elif special == "channels-last" and axes in (4, 5):
        x = memory = x.contiguous(memory_format=torch.channels_last if axes == 4 else torch.channels_last_3d)
    return memory, x


def some_axes(shape: list[int], first: int = 0) -> st.SearchStrategy[set[int]]:
    """Axes to share, from a first one on."""
    return st.sets(st.integers(first, len(shape) - 1)) if len(shape) > first else st.just(set())


SEEDS = [0, 1, 2**31, 3_000_000_000, 2**32, 2**62 + 12345, 2**63 - 1, -1]
any_law = st.sampled_from(list(KERNEL_LAWS.values()))
any_dtype = st.sampled_from(DTYPES)


# Elementwise dropout.


@each_back_end
@fuzzed
@given(
    data=st.data(),
    shape=shapes(),
    dtype=any_dtype,
    law=any_law,
    seed=st.integers(-(2**63), 2**63 - 1),
    stream=st.integers(0, 2),
)
def test_dropout_of_any_shape_layout_and_sharing(back_end, data, shape, dtype, law, seed, stream):
    memory, x = data.draw(placed(shape, dtype))
    shared = data.draw(some_axes(shape)) if data.draw(st.booleans()) else ()
    seed = torch.tensor(seed)
    assert_dropout(x, law, shared, seed=seed, stream=stream, back_end=back_end, memory=memory)


@each_back_end
@fuzzed
@given(data=st.data(), shape=shapes(most_axes=3), law=any_law, dtype=any_dtype)
def test_dropout_takes_a_seed_per_entry_of_the_leading_axes(back_end, data, shape, law, dtype):
    batch = data.draw(st.sampled_from([[0], [1], [3], [2, 2], [2, 0]]))
    _, x = data.draw(placed([*batch, *shape], dtype))
    seeds = SEED + torch.arange(math.prod(batch)).view(batch)
    shared = data.draw(some_axes(x.shape, len(batch)))
    assert_dropout(x, law, shared, seed=seeds, back_end=back_end)


@each_back_end
@each_law
@each_dtype
def test_every_law_in_every_type(back_end, law, dtype):
    for x in (numbers(FLAT, dtype=dtype), numbers(*TRANSPOSED, dtype=dtype).t()):
        assert_dropout(x, law, back_end=back_end)


@each_back_end
@each_dtype
@each_layout
def test_every_layout(back_end, layout, dtype):
    x, shared_axes = layouts(dtype)[layout]
    for name in WAYS_IN[dtype]:
        assert_dropout(x, WAYS[name], shared_axes, stream=1, back_end=back_end)
    assert_keep_where(x, numbers(*x.shape, dtype=dtype, seed=1).sigmoid(), shared_axes, back_end=back_end)


@each_back_end
@pytest.mark.parametrize(("seed", "stream"), [*((seed, 0) for seed in SEEDS), (7, 1), (2**63 - 1, 2)])
def test_uniform_masks_are_the_uniform_numbers(back_end, seed, stream):
    seed = torch.tensor(seed)
    drawn = reference.elements(seed, 0, EDGES[-1], 21, stream).to(DEVICE)
    for dtype in (torch.float32, torch.float64):
        expected = reference.uniforms(drawn, dtype)
        for size in EDGES if stream == 1 else EDGES[-1:]:
            ones = torch.ones(size, dtype=dtype, device=DEVICE)
            assert_same_bits(back_end.dropout(ones, seed, UNIFORM, [], stream), expected[:size])
        strided = torch.ones(800, dtype=dtype, device=DEVICE)[::2]
        assert_same_bits(back_end.dropout(strided, seed, UNIFORM, [], stream), expected[:400])


@each_back_end
@pytest.mark.parametrize("law", [UNIFORM, *(WAYS[name] for name in ("coin", "field", "rare"))], ids=str)
def test_elements_far_out_use_the_high_half_of_the_counter(back_end, law):
    bits = reference.bits_per_element(law)
    # Block numbers exceed 32 bits from group 2^28 on, element numbers sooner.
    for second in (2**42 + 5, 2**28 * reference.per_group(bits) - 350, 2**31 - 350, 2**32 - 350):
        ones = torch.ones(2, 700, device=DEVICE)
        got = back_end.dropout(ones, SEED, law, [], 0, [2, second, 0, 0])
        for row, start in zip(got, (0, second)):
            drawn = reference.elements(SEED, start, 700, bits, 0).to(DEVICE)
            assert_same_bits(row, reference.mask_values(drawn, law, torch.float32))


# Adaptive dropout.


@each_back_end
@fuzzed
@given(data=st.data(), shape=shapes(), dtype=any_dtype, keep_dtype=any_dtype, seeds=st.booleans())
def test_keep_where(back_end, data, shape, dtype, keep_dtype, seeds):
    _, x = data.draw(placed(shape, dtype))
    _, keep = data.draw(placed(shape, keep_dtype if data.draw(st.booleans()) else dtype))
    keep = (keep * 0.4 + 0.5) if data.draw(st.booleans()) else keep  # probabilities, mostly; or any number
    seed = SEED + torch.arange(shape[0]) if seeds and shape and shape[0] <= 6 else SEED
    assert_keep_where(x, keep, data.draw(some_axes(shape, seed.dim())), seed=seed, back_end=back_end)


@each_back_end
def test_a_gate_is_broadcast(back_end):
    x = numbers(3, 10, 20)
    for keep in (numbers(20), numbers(3, 10, 1), numbers(3, 20, 10).mT, numbers()):
        for seed in (SEED, SEED + torch.arange(3)):
            assert_keep_where(x, keep.sigmoid(), seed=seed, back_end=back_end)


@each_back_end_and_the_reference
@each_dtype
@pytest.mark.parametrize("keep", [0.0, 1.0, math.nan])
def test_keep_where_is_certain_and_multiplies(back_end, dtype, keep):
    x = torch.tensor([1.0, -2.0, math.inf, -math.inf, math.nan] * 9, dtype=dtype, device=DEVICE)
    got = back_end.keep_where(x, SEED, torch.full_like(x, keep), [])
    expected = x * 1.0 if keep == 1 else x * 0.0
    assert torch.equal(got.isnan(), expected.isnan())
    assert_same_bits(got.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0))


# Windows: a window is a part of a whole, and has that part of its mask.


@st.composite
def windows(draw, most_axes: int = 4):
    """The shape of a whole, and slices of it."""
    whole = draw(st.lists(st.integers(1, 7) | st.sampled_from([33, 100, 500]), max_size=most_axes))
    while math.prod(whole) > MOST:
        whole[whole.index(max(whole))] = 3
    starts = [draw(st.integers(0, size)) for size in whole]
    stops = [draw(st.integers(start, size)) for start, size in zip(starts, whole)]
    return whole, tuple(slice(start, stop) for start, stop in zip(starts, stops))


@each_back_end_and_the_reference
@fuzzed
@given(data=st.data(), window=windows(), law=st.sampled_from(list(WAYS.values())), backwards=st.booleans())
def test_the_mask_of_a_window_is_a_part_of_the_whole(back_end, data, window, law, backwards):
    whole, part = window
    place = [*whole, *(piece.start for piece in part)]
    shared = list(data.draw(some_axes(whole)))
    order = list(reversed(range(len(whole)))) if backwards else list(range(len(whole)))  # of the axes in memory
    x, keep = numbers(*whole), numbers(*whole, seed=1).sigmoid()
    x_part, keep_part = (tensor[part].permute(order).contiguous().permute(order) for tensor in (x, keep))
    dropped = back_end.dropout(x_part, SEED, law, shared, 0, place)
    assert torch.equal(dropped, back_end.dropout(x, SEED, law, shared, 0)[part])
    kept = back_end.keep_where(x_part, SEED, keep_part, shared, place)
    assert torch.equal(kept, back_end.keep_where(x, SEED, keep, shared)[part])


@each_back_end_and_the_reference
@each_way
def test_a_seed_per_entry_has_axes_of_its_own_before_the_windows(back_end, law):
    x, seeds = numbers(3, 5, 70), SEED + torch.arange(3)
    expected = back_end.dropout(x, seeds, law, [], 0)[:, 1:4, 9:]
    assert torch.equal(back_end.dropout(x[:, 1:4, 9:], seeds, law, [], 0, [5, 70, 1, 9]), expected)


@each_back_end_and_the_reference
@pytest.mark.parametrize(
    ("window", "message"),
    [
        ([4], "window: expected 4 numbers, a shape and an offset; got [4]"),
        ([4, 6, 1, 0], "window: expected a part of [4, 6], got [4, 6] from [1, 0] on"),
        ([4, 8, 0, -1], "window: expected a part of [4, 8], got [4, 6] from [0, -1] on"),
    ],
    ids=str,
)
def test_a_window_that_is_no_part_is_refused(back_end, window, message):
    with pytest.raises(ValueError, match="window") as caught:
        back_end.dropout(numbers(4, 6), SEED, WAYS["coin"], [], 0, window)
    assert str(caught.value) == message


@each_back_end_and_the_reference
@each_way
@pytest.mark.parametrize("inputs", [5, 96, 130])
def test_examples_from_a_number_on_have_the_masks_of_that_number_on(back_end, law, inputs):
    g, w, x = (numbers(*shape, dtype=torch.float64) for shape in ((7, 3), (3, inputs), (7, inputs)))

    def contract(wanted, part, *first_example):
        matrices = {"g": g[part], "w": w, "x": x[part]}
        del matrices[wanted]
        return back_end.dropconnect(wanted, matrices, SEED, law, *first_example)[0]

    rest, every = slice(4, None), slice(None)
    for wanted in "gx":
        assert torch.equal(contract(wanted, rest, 4), contract(wanted, every)[rest])
    # A sum of seven terms, taken in two parts.
    both = contract("w", slice(4)) + contract("w", rest, 4)
    assert torch.allclose(both, contract("w", every), rtol=0, atol=1e-13)


# As layers see it.


@each_back_end_and_the_reference
def test_numbers_that_torch_pretends_are_read(back_end):
    assert_pretended_numbers_are_read(back_end.module.__name__.rpartition(".")[2], DEVICE)


@each_back_end
@pytest.mark.parametrize("case", MECHANISMS, ids=lambda case: case.name)
def test_layers_equal_those_on_the_reference(back_end, case):
    results = []
    for name in (back_end.module.__name__.rpartition(".")[2], "reference"):
        layer = case.layer(torch.Generator().manual_seed(7)).to(DEVICE)
        with cd.use_backend(name):
            assert cd.backend(DEVICE).name == name
            results.append(output_and_gradients(case, layer, case.rows(9).to(DEVICE)))
    for got, expected in zip(*results):
        # Sums of a dozen terms of size one or so, each off by 2e-6 at most.
        torch.testing.assert_close(got, expected, rtol=0, atol=3e-5)
