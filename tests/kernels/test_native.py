"""The native back end against the reference: every law, type, layout, instruction set and number of threads."""

import contextlib
import ctypes
import functools
import gc
import math
import pathlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import contdrop as cd
import oracles
import sanitizer_fuzz
from conformance import INFINITY, LAWS, assert_pretended_numbers_are_read
from contdrop import kernels
from contdrop.kernels import native, ops, reference
from contdrop.kernels.native import binding, loader
from contdrop.laws import KernelLaw, training_factor

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


def usable_instructions() -> list[str]:
    """The instruction sets of this CPU; importing this file fails if the library was not built."""
    usable = []
    for name in loader.INSTRUCTIONS:
        with contextlib.suppress(ValueError), native.use_instructions(name):
            usable.append(name)
    return usable


each_set = pytest.mark.parametrize("instructions", usable_instructions())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_law = pytest.mark.parametrize("law", ALL_LAWS, ids=str)
fuzzed = settings(max_examples=60, deadline=None)


@contextlib.contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def numbers(*shape: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind)


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(bits_of(got), bits_of(expected))


def mask_error(law: cd.Law, factor: float, dtype: torch.dtype) -> float:
    """How far a mask value times its factor may be from the reference's.

    The package promises 1e-6 for the mask value. A law without bounds has values of size sigma, and an error to match.
    A uniform value in float64 is off by roundings only.
    """
    if law.kind == "bernoulli":
        return 0.0
    if law.kind == "uniform" and dtype == torch.float64:
        return 4 * oracles.mask_tolerance(law.kind, law.params, dtype) * abs(factor)
    unbounded = law.kind == "gaussian" and math.isinf(max(-law.low, law.high))
    return 1e-6 * abs(factor) * (max(1.0, law.sigma) if unbounded else 1.0)


def assert_close(got: torch.Tensor, expected: torch.Tensor, error: torch.Tensor | float) -> None:
    """Equal up to an error before the last rounding, and one unit in the last place after it."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    info = torch.finfo(got.dtype)
    overflow = info.max * (1 + info.eps / 2)  # what infinity stands for where one of the two is still finite
    got, expected = (tensor.double().clamp(-overflow, overflow) for tensor in (got, expected))
    unit = info.eps * expected.abs() + info.smallest_normal * info.eps
    assert not got.isnan().any()
    assert ((got - expected).abs() <= error + unit).all()


# Elementwise dropout.

EDGES = sorted({size * k + d for size in (16, 64, 96, 512, 2048, 6144) for k in (1, 2, 3) for d in (-1, 0, 1)})
MOST = 26_000


@st.composite
def shapes(draw, most_axes: int = 5) -> list[int]:
    shape = draw(st.lists(st.integers(1, 6) | st.sampled_from([0, 1, 13, 31, 37]), max_size=most_axes))
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from(EDGES))
    while math.prod(shape) > MOST:
        shape[sorted(range(len(shape)), key=shape.__getitem__)[-2]] = 1  # all but the longest axis
    return shape


@st.composite
def layouts(draw, shape: list[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
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


def assert_dropout(x, seed, law, scale, shared_axes=(), stream=0, memory=None) -> None:
    factor = training_factor("test", law, scale)
    before = (x if memory is None else memory).clone()
    got = native.dropout(x, seed, KernelLaw(law.kind, law.params, factor), list(shared_axes), stream)
    assert_same_bits(x if memory is None else memory, before)
    assert got.stride() == torch.empty_like(x).stride()
    expected = reference.dropout(x, seed, KernelLaw(law.kind, law.params, factor), list(shared_axes), stream)
    if law.kind == "bernoulli":
        assert_same_bits(got, expected)
    else:
        assert_close(got, expected, x.double().abs() * mask_error(law, factor, x.dtype))


@each_set
@fuzzed
@given(
    data=st.data(),
    shape=shapes(),
    dtype=st.sampled_from(DTYPES),
    law=st.sampled_from(ALL_LAWS),
    scale=st.sampled_from(["inverted", "paper"]),
    seed=st.integers(-(2**63), 2**63 - 1),
    stream=st.integers(0, 2),
)
def test_dropout_agrees_for_any_shape_layout_and_sharing(instructions, data, shape, dtype, law, scale, seed, stream):
    memory, x = data.draw(layouts(shape, dtype))
    shared = data.draw(st.sets(st.integers(0, len(shape) - 1)) if shape and data.draw(st.booleans()) else st.just(()))
    with native.use_instructions(instructions):
        assert_dropout(x, torch.tensor(seed), law, scale, shared, stream, memory)


@each_set
@fuzzed
@given(data=st.data(), shape=shapes(most_axes=3), law=st.sampled_from(ALL_LAWS), dtype=st.sampled_from(DTYPES))
def test_dropout_takes_a_seed_per_entry_of_the_leading_axes(instructions, data, shape, law, dtype):
    batch = data.draw(st.sampled_from([[0], [1], [3], [2, 2]]))
    _, x = data.draw(layouts([*batch, *shape], dtype))
    seeds = SEED + torch.arange(math.prod(batch)).view(batch)
    inner = range(len(batch), x.dim())
    shared = data.draw(st.sets(st.sampled_from(inner)) if inner else st.just(()))
    with native.use_instructions(instructions):
        assert_dropout(x, seeds, law, "inverted", shared)


@each_set
@each_law
@each_dtype
def test_every_law_agrees_in_every_type(instructions, law, dtype):
    with native.use_instructions(instructions):
        for x in (numbers(20_011, dtype=dtype), numbers(41, 67, dtype=dtype).t()):
            for scale in ("inverted", "paper"):
                assert_dropout(x, SEED, law, scale)


@each_set
@each_dtype
@pytest.mark.parametrize(
    "make",
    [
        *(lambda dtype, n=n: numbers(n, 40, dtype=dtype).t() for n in (300, 512, 800, 1024, 1500)),
        lambda dtype: numbers(2, 30, 20, 31, dtype=dtype).contiguous(memory_format=torch.channels_last),
    ],
    ids=["300", "512", "800", "1024", "1500", "images"],
)
def test_tiles_of_every_shape(instructions, dtype, make):
    """Rows of the mask made together, or each in a piece of its own, a whole number of lines and not."""
    with native.use_instructions(instructions):
        for law in (cd.Bernoulli(keep=0.5), cd.Uniform(), cd.Gaussian(sigma=0.3)):
            assert_dropout(make(dtype), SEED, law, "inverted")


@each_set
@each_dtype
def test_rows_that_share_a_value_end_in_any_lane(instructions, dtype):
    with native.use_instructions(instructions):
        for length in (*range(14, 50), 250, 255, 256, 257):
            for rows in (1, 2, 37):
                for law in (cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.3)):
                    assert_dropout(numbers(rows, length, dtype=dtype), SEED, law, "inverted", (1,))


@each_set
@pytest.mark.parametrize("size", EDGES)
def test_uniform_masks_are_the_uniform_numbers(instructions, size):
    numbers = reference.elements(SEED, 0, size, 21, 1)
    with native.use_instructions(instructions):
        for dtype in (torch.float32, torch.float64):
            got = native.dropout(torch.ones(size, dtype=dtype), SEED, KernelLaw("uniform", (0.0, 1.0), 1.0), [], 1)
            assert_same_bits(got, reference.uniforms(numbers, dtype))


@functools.cache
def exact_quantiles() -> torch.Tensor:
    return reference.dropout(
        torch.ones(2_000_000), SEED, KernelLaw("gaussian", (0.0, 1.0, -INFINITY, INFINITY), 1.0), [], 0
    )


@each_set
@pytest.mark.parametrize("reach", [1.0, 1.7, 1.71, 2.55, 2.56, INFINITY])
def test_all_quantiles_agree_to_the_tails(instructions, reach):
    """The kernels have a formula of their own for laws that are clipped within 1.7 and 2.55 standard deviations."""
    with native.use_instructions(instructions):
        got = native.dropout(torch.ones(2_000_000), SEED, KernelLaw("gaussian", (0.0, 1.0, -reach, reach), 1.0), [], 0)
    assert exact_quantiles().abs().max() > 4.8
    assert (got - exact_quantiles().clamp(-reach, reach)).abs().max() <= 1e-6


@each_set
@pytest.mark.parametrize(
    ("law", "bits"),
    [(cd.Uniform(), 21), (cd.Bernoulli(keep=0.5), 1), (cd.Bernoulli(keep=3 / 256), 8), (cd.Bernoulli(keep=0.99), 32)],
    ids=str,
)
def test_elements_far_out_use_the_high_half_of_the_counter(instructions, law, bits):
    first = 2**42 + 5  # words from 2^34 on have a block number above 2^32
    x, out = torch.ones(2, 700), torch.empty(2, 700)
    call = binding.Dropout(x.data_ptr(), out.data_ptr(), 0, 2, seed=SEED.item(), stream=0, threads=1)
    call.size[:2], call.mask_stride[:2] = [2, 700], [first, 1]
    call.x_stride[:2] = call.out_stride[:2] = [700, 1]
    call.law = binding.prepare(law.kind, law.params, 1.0)
    with native.use_instructions(instructions):
        loader.library().contdrop_dropout(ctypes.byref(call))
    for row, start in zip(out, (0, first)):
        drawn = reference.elements(SEED, start, 700, bits, 0)
        assert_same_bits(row, reference.mask_values(drawn, KernelLaw(law.kind, law.params, 1.0), torch.float32))


def test_more_axes_than_the_kernels_take_fall_back_to_the_reference():
    x = numbers(2**17).view([2] * 17).permute(list(reversed(range(17))))
    assert_dropout(x, SEED, cd.Uniform(), "inverted")


@each_set
@each_dtype
@each_law
def test_nan_and_infinity_come_out_as_from_a_multiplication(instructions, dtype, law):
    info = torch.finfo(dtype)
    special = [math.nan, INFINITY, -INFINITY, 0.0, -0.0, info.max, -info.max, info.tiny, info.tiny * info.eps]
    x = torch.tensor(special, dtype=dtype).repeat(30)
    with native.use_instructions(instructions):
        wide = torch.ones(len(x), dtype=reference.compute_dtype(dtype))
        for scale in ("inverted", "paper"):
            arguments = (SEED, KernelLaw(law.kind, law.params, training_factor("test", law, scale)), [], 0)
            expected = (x.to(wide.dtype) * native.dropout(wide, *arguments)).to(dtype)
            got = native.dropout(x, *arguments)
            strided = native.dropout(torch.stack([x, x], 1)[:, 0], *arguments)
            for result in (got, strided):
                assert torch.equal(result.isnan(), expected.isnan())
                assert_same_bits(result.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0))


@each_set
@pytest.mark.parametrize(
    "law", [cd.Gaussian(sigma=0.3), cd.Gaussian(sigma=0.2), cd.Uniform(), cd.Bernoulli(keep=0.8)], ids=str
)
def test_bfloat16_products_are_rounded_to_nearest(instructions, law):
    x = numbers(20_000).bfloat16()
    arguments = (SEED, KernelLaw(law.kind, law.params, training_factor("test", law, "inverted")), [], 0)
    with native.use_instructions(instructions):
        mask, got = native.dropout(torch.ones(len(x)), *arguments), native.dropout(x, *arguments).double()
    exact = (x.float() * mask).double()
    half_a_step = torch.exp2(torch.frexp(exact).exponent.double() - 9)
    assert ((got - exact).abs() <= half_a_step).all()


@each_set
@pytest.mark.parametrize("law", [cd.Gaussian(sigma=0.5, low=0.25, high=0.75), cd.Bernoulli(keep=0.8)], ids=str)
def test_where_many_products_are_halfway_bfloat16_rounds_ties_to_even(instructions, law):
    x = numbers(20_000).bfloat16()
    scale = 1.0 if law.kind == "gaussian" else 1.25
    arguments = (SEED, KernelLaw(law.kind, law.params, scale), [], 0)
    with native.use_instructions(instructions):
        mask = native.dropout(torch.ones(len(x)), *arguments)
        got = native.dropout(x, *arguments)
        strided = native.dropout(torch.stack([x, x], 1)[:, 0], *arguments)
    short = (mask == 0.75) | (mask == 1.25)
    product = x.float() * mask
    ties = short & (product.view(torch.int32) & 0xFFFF == 0x8000)
    assert ties.sum() > 500
    for result in (got, strided):
        assert_same_bits(result[short], product.bfloat16()[short])


# What the operators are given must arrive: each of these once went wrong somewhere in a package of this kind.


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_numbers_that_torch_pretends_are_read(backend):
    assert_pretended_numbers_are_read(backend, torch.device("cpu"))


def test_a_gate_is_broadcast_as_by_the_reference():
    x = torch.ones(3, 40)
    for keep in (torch.full((40,), 0.5), torch.tensor(0.5), torch.full((3, 1), 0.5)):
        assert torch.equal(kernels.ops.keep_where(x, SEED, keep, []), reference.keep_where(x, SEED, keep, []))


def test_tensors_without_memory_do_not_crash():
    """torch's efficient zeros have a null pointer; forward-mode differentiation makes them."""
    code = (
        "import torch, contdrop as cd\n"
        "print(cd.functional.dropout(torch._efficientzerotensor(3), cd.Uniform()).tolist())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "[0.0, 0.0, 0.0]\n", f"exit code {result.returncode}: {result.stderr}"


# The other operators.


@each_set
@fuzzed
@given(data=st.data(), shape=shapes(), dtype=st.sampled_from(DTYPES), seeds=st.booleans())
def test_keep_where_agrees(instructions, data, shape, dtype, seeds):
    _, x = data.draw(layouts(shape, dtype))
    _, keep = data.draw(layouts(shape, dtype))
    keep = (keep * 0.4 + 0.5) if data.draw(st.booleans()) else keep  # probabilities, mostly; or any number
    seed = SEED + torch.arange(shape[0]) if seeds and shape and shape[0] <= 6 else SEED
    shared = data.draw(st.sets(st.integers(seed.dim(), len(shape) - 1)) if len(shape) > seed.dim() else st.just(()))
    before = x.clone()
    with native.use_instructions(instructions):
        got = native.keep_where(x, seed, keep, list(shared))
    assert_same_bits(got, reference.keep_where(x, seed, keep, list(shared)))
    assert_same_bits(x, before)
    assert got.stride() == torch.empty_like(x).stride()


@each_set
@each_dtype
@pytest.mark.parametrize("keep", [0.0, 1.0, math.nan])
def test_keep_where_is_certain_and_multiplies(instructions, dtype, keep):
    x = torch.tensor([1.0, -2.0, INFINITY, -INFINITY, math.nan] * 9, dtype=dtype)
    with native.use_instructions(instructions):
        got = native.keep_where(x, SEED, torch.full_like(x, keep), [])
    expected = x * 1.0 if keep == 1 else x * 0.0
    assert torch.equal(got.isnan(), expected.isnan())
    assert_same_bits(got.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0))


CONTRACTIONS = ["dropconnect", "dropconnect_input_gradient", "dropconnect_weight_gradient"]


def operands(name: str, examples: int, outputs: int, inputs: int, make) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The two operands of a contraction, and over how many terms it sums."""
    shapes = {"x": (examples, inputs), "weight": (outputs, inputs), "gradient": (examples, outputs)}
    first, second, terms = {
        "dropconnect": ("x", "weight", inputs),
        "dropconnect_input_gradient": ("gradient", "weight", outputs),
        "dropconnect_weight_gradient": ("gradient", "x", examples),
    }[name]
    return make(*shapes[first]), make(*shapes[second]), terms


@each_set
@fuzzed
@given(
    name=st.sampled_from(CONTRACTIONS),
    examples=st.sampled_from([0, 1, 2, 3, 7, 33]),
    outputs=st.sampled_from([0, 1, 5, 8, 9, 17]),
    inputs=st.sampled_from([0, 1, 15, 16, 17, 31, 63, 64, 65, 127, 129, 511, 512, 513]),
    law=st.sampled_from(ALL_LAWS),
    scale=st.sampled_from(["inverted", "paper"]),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
)
def test_dropconnect_agrees(instructions, name, examples, outputs, inputs, law, scale, dtype, transposed):
    def make(rows, columns):
        return numbers(columns, rows, dtype=dtype, seed=rows).t() if transposed else numbers(rows, columns, dtype=dtype)

    left, right, terms = operands(name, examples, outputs, inputs, make)
    factor = training_factor("test", law, scale)
    run = getattr(reference, name)
    exact = run(left.double(), right.double(), SEED, KernelLaw(law.kind, law.params, factor))
    # The sizes of the terms, added up: with their masks, and without.
    low, high = (law.low, law.high) if law.kind != "bernoulli" else (0.0, 1.0)
    largest = max(-low, high) if math.isfinite(max(-low, high)) else abs(law.mu) + 5.5 * law.sigma
    sizes = run(left.double().abs(), right.double().abs(), SEED, KernelLaw("bernoulli", (1.0,), 1.0))
    # A term takes three roundings (the mask value, two products) and a sum as many as it has terms.
    unit = oracles.UNIT_ROUNDOFF[reference.compute_dtype(dtype)]
    error = sizes * (mask_error(law, factor, dtype) + (terms + 4) * unit * largest * abs(factor))
    with native.use_instructions(instructions):
        got = getattr(native, name)(left, right, SEED, KernelLaw(law.kind, law.params, factor))
    assert_close(got, exact.to(dtype), error)


@each_set
@fuzzed
@given(
    examples=st.sampled_from([0, 1, 3, 33]),
    outputs=st.sampled_from([0, 1, 5, 64, 81]),
    inputs=st.sampled_from([0, 1, 16, 17, 95, 96, 97, 513]),
    law=st.sampled_from(ALL_LAWS),
    dtype=st.sampled_from(DTYPES),
    first_example=st.sampled_from([0, 7]),
)
def test_both_gradients_from_one_draw_agree_with_one_by_one(
    instructions, examples, outputs, inputs, law, dtype, first_example
):
    g, w, x = numbers(examples, outputs, dtype=dtype), numbers(outputs, inputs, dtype=dtype), numbers(examples, inputs)
    x = x.to(dtype)
    arguments = (SEED, KernelLaw(law.kind, law.params, 1.0), first_example)
    with native.use_instructions(instructions):
        by_x, by_weight = native.dropconnect_gradients(g, w, x, *arguments)
        assert_same_bits(by_weight, native.dropconnect_weight_gradient(g, x, *arguments))
        expected = native.dropconnect_input_gradient(g, w, *arguments)
        ones = (SEED, KernelLaw("bernoulli", (1.0,), 1.0))
        sizes = native.dropconnect_input_gradient(g.double().abs(), w.double().abs(), *ones)
    # The same terms, added up in another order.
    unit = oracles.UNIT_ROUNDOFF[reference.compute_dtype(dtype)]
    low, high = (law.low, law.high) if law.kind != "bernoulli" else (0.0, 1.0)
    largest = max(-low, high) if math.isfinite(max(-low, high)) else abs(law.mu) + 5.5 * law.sigma
    assert_close(by_x, expected, 2 * (outputs + 4) * unit * sizes * largest)


@each_set
@pytest.mark.parametrize("team_size", [1, 2, 3, 7, 16])
def test_both_gradients_do_not_depend_on_how_the_work_is_split(instructions, team_size):
    # More examples than are done at a time.
    g, w, x = numbers(700, 70), numbers(70, 97, seed=1), numbers(700, 97, seed=2)
    arguments = (g, w, x, SEED, KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0))
    with native.use_instructions(instructions):
        with threads(1):
            alone = native.dropconnect_gradients(*arguments)
        with team(team_size) as calls, threads(2):
            split = native.dropconnect_gradients(*arguments)
    assert len(calls) > 2  # a round takes two at most
    for one, other in zip(alone, split):
        assert_same_bits(one, other)


@each_set
@each_dtype
@pytest.mark.parametrize("keep", [0.5, 0.75, 0.3])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_dropconnect_of_small_whole_numbers_is_exact(instructions, name, keep, dtype):
    def make(rows, columns):
        return (numbers(rows, columns, seed=rows).round().clamp(-1, 1)).to(dtype)

    left, right, _ = operands(name, 11, 19, 200, make)
    arguments = (left, right, SEED, KernelLaw("bernoulli", (keep,), 1.0))
    with native.use_instructions(instructions):
        assert torch.equal(getattr(native, name)(*arguments), getattr(reference, name)(*arguments))


# Threads.


def large_calls(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every operator on more elements than are worth a second thread."""
    results = {}
    for law in (cd.Bernoulli(keep=0.5), cd.Bernoulli(keep=0.3), cd.Uniform(), cd.Gaussian(sigma=0.3), LAWS[-1]):
        arguments = (SEED, KernelLaw(law.kind, law.params, 2.0))
        x = numbers(70_001, dtype=dtype)
        results[f"flat {law}"] = native.dropout(x, *arguments, [], 0)
        results[f"strided {law}"] = native.dropout(torch.stack([x, x], 1)[:, 1], *arguments, [], 0)
        results[f"transposed {law}"] = native.dropout(x[:70_000].view(350, 200).t(), *arguments, [], 0)
        results[f"shared {law}"] = native.dropout(x[:70_000].view(7, 100, 100), *arguments, [1], 0)
        for name in CONTRACTIONS:
            left, right, _ = operands(name, 37, 29, 131, lambda *shape: numbers(*shape, dtype=dtype, seed=shape[0]))
            results[f"{name} {law}"] = getattr(native, name)(left, right, *arguments)
    results["keep_where"] = native.keep_where(x, SEED, numbers(70_001, dtype=dtype, seed=1).sigmoid(), [])
    return results


@each_set
@each_dtype
def test_the_number_of_threads_changes_no_bit(instructions, dtype):
    with native.use_instructions(instructions):
        with threads(1):
            alone = large_calls(dtype)
        with threads(2):
            together = large_calls(dtype)
    for name, result in alone.items():
        assert_same_bits(together[name], result)


@contextlib.contextmanager
def team(size: int):
    """Replaces OpenMP by a team of any size whose members work one after the other, last first; yields its calls."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    member, calls = [0], []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def start(work, job, wanted, _flags):
        calls.append(wanted)
        for member[0] in reversed(range(size)):
            function(work)(job)

    number, count = (ctypes.CFUNCTYPE(ctypes.c_int)(f) for f in (lambda: member[0], lambda: size))
    openmp = loader._openmp()
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    use_threads = loader.library().contdrop_use_threads
    use_threads(*(ctypes.cast(f, ctypes.c_void_p) for f in (start, number, count)))
    try:
        yield calls
    finally:
        use_threads(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in names))


@each_set
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_how_the_work_is_split_changes_no_bit(instructions, size):
    with native.use_instructions(instructions), threads(1):
        alone = large_calls(torch.float32)
    with native.use_instructions(instructions), team(size) as calls, threads(2):
        split = large_calls(torch.float32)
    assert len(calls) == len(alone)
    assert set(calls) == {2}
    for name, result in alone.items():
        assert_same_bits(split[name], result)


def test_small_calls_start_no_threads():
    with team(2) as calls, threads(2):
        native.dropout(numbers(16_000), SEED, KernelLaw("uniform", (0.0, 1.0), 1.0), [], 0)
        native.keep_where(numbers(16_000), SEED, numbers(16_000, seed=1).sigmoid(), [])
    assert calls == []


def test_the_openmp_library_is_the_one_torch_uses():
    loaded = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    assert loader._openmp() is not None
    # Other packages, which other tests of this process may have imported, bring copies of their own.
    ours = {path for path in loaded if ("libgomp" in path or "libiomp" in path) and "scikit_learn" not in path}
    assert len(ours) == 1


def test_the_openmp_library_may_be_beside_torch(monkeypatch, tmp_path):
    """As in torch's wheels for aarch64."""
    library = tmp_path / "torch.libs" / "libgomp-1234.so.1.0.0"
    library.parent.mkdir()
    library.symlink_to(loader._openmp()._name)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert loader._openmp()._name == str(library)


# Memory.


def test_dropconnect_needs_less_than_10_megabytes():
    """Forward and backward of 800 x 800 weights for 100 examples, whose masks would take 256 MB.

    In a process of its own, because the largest size of a process never goes down. A small layer runs first, so that
    the threads and the code are there; then the kernel is asked to forget the largest size so far (Linux only).
    """
    code = """
import pathlib, resource, torch, contdrop as cd
assert cd.backend().name == "native"
layer, small = cd.DropConnectLinear(800, 800, law=cd.Gaussian(sigma=0.3)), cd.DropConnectLinear(200, 200)
x = torch.randn(100, 800, requires_grad=True)
small(x[:, :200]).sum().backward()
pathlib.Path("/proc/self/clear_refs").write_text("5")
status = lambda name: int(pathlib.Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])
before = status("VmRSS")
layer(x).sum().backward()
print(status("VmHWM") - before)
"""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the largest size of a process cannot be reset here: {error}")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # 3.2 MB of it are the output and the gradients.
    assert int(result.stdout) < 10_000, f"{result.stdout} kB"


@pytest.mark.parametrize("way", ["short", "operator"])
def test_elementwise_dropout_saves_less_than_100_bytes_for_backward(way):
    law = KernelLaw("gaussian", (0.5, 0.3, 0.0, 1.0), 2.0)
    law = law if way == "short" else law.tensor()
    x = torch.ones(1000, 1000, requires_grad=True)
    saved = []
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is torch.Tensor}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        y = ops.dropout(x, torch.tensor(5), law, [], 0)
    alive = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and id(thing) not in before]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in (*saved, *alive)}
    storages.pop(y.untyped_storage().data_ptr())
    assert 8 <= sum(storages.values()) < 100  # the seed is among them
    y.sum().backward()
    assert_same_bits(x.grad, y.detach())


# Instruction sets.


def test_the_best_instruction_set_is_in_use():
    assert native.detail() == usable_instructions()[0]


def test_use_instructions_nests_and_restores():
    best = native.detail()
    with native.use_instructions("portable"):
        for name in usable_instructions():
            with native.use_instructions(name):
                assert native.detail() == name
                assert str(cd.backend()) in (f"native ({name})", "reference")
            assert native.detail() == "portable"
        with pytest.raises(KeyError), native.use_instructions(best):
            raise KeyError
        assert native.detail() == "portable"
    assert native.detail() == best


def test_unknown_instructions_are_refused():
    message = "expected one of avx512, avx2, neon, portable that this CPU has, got 'sse'"
    with pytest.raises(ValueError, match=message), native.use_instructions("sse"):
        pass


# Sanitizers.


def run_sanitizers(*options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, sanitizer_fuzz.__file__, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    if reason := sanitizer_fuzz.missing():
        pytest.skip(reason)
    return sanitizer_fuzz.build(tmp_path_factory.mktemp("sanitized"), portable=True)


def test_sanitizers_find_nothing(sanitized):
    result = run_sanitizers("--library", str(sanitized), "--cases", "84")
    assert result.returncode == 0, result.stdout + result.stderr


def test_sanitizers_would_find_an_overrun(sanitized):
    result = run_sanitizers("--library", str(sanitized), "--cases", "1", "--overrun")
    assert result.returncode == 1
    assert "heap-buffer-overflow" in result.stdout


@pytest.mark.slow
def test_sanitizers_find_nothing_in_a_thousand_calls_of_every_instruction_set():
    if reason := sanitizer_fuzz.missing():
        pytest.skip(reason)
    result = run_sanitizers("--cases", "1000", "--seed", "1")
    assert result.returncode == 0, result.stdout + result.stderr
