"""The reference back end against published Philox vectors and against a scalar oracle written from its docstring."""

import itertools
import math
import statistics
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_agreement import NORMAL, UNIFORM, WAYS, each_dtype
from torch.overrides import TorchFunctionMode

import oracles
from contdrop.kernels import reference
from contdrop.laws import KernelLaw
from oracles import UNIT_ROUNDOFF

INF = math.inf
BITS = (1, 2, 4, 8, 16, 21, 32)
SEEDS = (0, 1, 2**31, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**63 - 1, -1, -(2**63), -(2**40) + 3)
LAWS = [
    ("bernoulli", (0.5,)),
    ("bernoulli", (0.75,)),
    ("bernoulli", (0.3,)),
    ("bernoulli", (0.99,)),
    ("uniform", (0.0, 1.0)),
    ("uniform", (-1.0, 2.5)),
    ("gaussian", (0.5, 0.2, 0.0, 1.0)),
    ("gaussian", (0.3, 1.0, -0.2, 0.9)),
    ("gaussian", (1.0, 0.5, -INF, INF)),
    ("gaussian", (0.4, 0.0, 0.0, 1.0)),
]
each_law = pytest.mark.parametrize(("kind", "params"), LAWS, ids=str)


def seed_tensor(*seeds: int) -> torch.Tensor:
    return torch.tensor(seeds[0] if len(seeds) == 1 else seeds, dtype=torch.int64)


def fixed(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def oracle_elements(seed: int, first: int, count: int, bits: int, stream: int) -> list[int]:
    return [oracles.element(seed, i, bits, stream) for i in range(first, first + count)]


# Philox.


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "output"),
    [
        (7, [0] * 4, [0] * 2, "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (7, [0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
        (
            7,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "4dfccaba 190a87f0 c47362ba b6b5242a",
        ),
        (10, [0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(rounds, counter, key, output):
    expected = [int(number, 16) for number in output.split()]
    got = reference.philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key], rounds)
    assert [number.item() for number in got] == expected
    assert list(oracles.philox(counter, key, rounds)) == expected


# Words and elements.


@pytest.mark.parametrize("seed", SEEDS)
def test_words_match_the_oracle(seed):
    # The block's high half is used from group 2^28 = word 2^34 on.
    for first_group, stream in ((0, 0), (7, 1), (2**28 - 1, 2), (2**40 + 3, 2)):
        got = reference.words(seed_tensor(seed), first_group, 2, stream)
        assert got.tolist() == [oracles.word(seed, 64 * first_group + k, stream) for k in range(128)]


def test_streams_are_pinned():
    assert [reference.STREAM_MASK, reference.STREAM_BIAS, reference.STREAM_NORMAL] == [0, 1, 2]


@pytest.mark.parametrize("bits", BITS)
def test_elements_match_the_oracle(bits):
    near = [(0, 1), (0, 200), (1, 63), (17, 101), (511, 130), (4095, 3), (777, 0)]
    far_words = (2**34 - 20, 2**34 + 69, 2**41 + 12345)
    far = [(word // 64 * reference.per_group(bits) + word % 64 + 7, 70) for word in far_words]
    for first, count in near + far:
        for seed, stream in [(0x0123456789ABCDEF, 0), (-5, 1)]:
            got = reference.elements(seed_tensor(seed), first, count, bits, stream)
            assert got.tolist() == oracle_elements(seed, first, count, bits, stream)


@settings(deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    first=st.integers(0, 2**45),
    count=st.integers(0, 90),
    bits=st.sampled_from(BITS),
    stream=st.integers(0, 2),
)
def test_any_elements_match_the_oracle(seed, first, count, bits, stream):
    got = reference.elements(seed_tensor(seed), first, count, bits, stream)
    assert got.tolist() == oracle_elements(seed, first, count, bits, stream)


@pytest.mark.parametrize("bits", BITS)
def test_elements_of_batched_seeds_are_those_of_each_seed(bits):
    got = reference.elements(torch.tensor(SEEDS[:6]).view(3, 2), 33, 40, bits, stream=0)
    assert got.shape == (3, 2, 40)
    assert got.flatten(0, 1).tolist() == [oracle_elements(seed, 33, 40, bits, stream=0) for seed in SEEDS[:6]]


# The bits of a block and its elements. Ranks over the field of two elements say which are independent.


def elements_of_basis(monkeypatch, bits: int, lane: int = 0) -> torch.Tensor:
    """The elements [128, elements / 16, 16] of a group, for each of the 128 bits of one of its blocks set alone."""
    group = torch.zeros(128, 64, dtype=torch.int64)
    for bit in range(128):
        group[bit, 16 * (bit // 32) + lane] = 1 << bit % 32
    with monkeypatch.context() as patch:
        patch.setattr(reference, "words", lambda seed, first_group, groups, stream: group)
        count = reference.per_group(bits)
        return reference.elements(torch.zeros(128, dtype=torch.int64), 0, count, bits, stream=0).view(128, -1, 16)


def rank(rows) -> int:
    """The rank over the field of two elements; a row is the bits of an integer."""
    by_highest: dict[int, int] = {}
    for row in rows:
        while row and row.bit_length() in by_highest:
            row ^= by_highest[row.bit_length()]
        if row:
            by_highest[row.bit_length()] = row
    return len(by_highest)


def joint_rank(images: torch.Tensor) -> int:
    """The rank of some numbers together: images [128, numbers] of the bits of a block, each number 32 bits or less."""
    return rank(sum(number << 32 * k for k, number in enumerate(row)) for row in images.tolist())


def test_ranks_are_those_of_known_matrices():
    assert rank([0, 0]) == 0
    assert rank([1 << k for k in range(128)]) == 128
    assert rank([0b110, 0b011, 0b101]) == 2
    assert rank([0b111, 0b011, 0b001, 0b100]) == 3


@pytest.mark.parametrize("bits", BITS)
def test_a_block_makes_elements_sixteen_apart_and_no_others(bits, monkeypatch):
    images = elements_of_basis(monkeypatch, bits)[..., 0]
    assert images.shape[1] == (6 if bits == 21 else 128 // bits)
    for lane in range(16):
        drawn = elements_of_basis(monkeypatch, bits, lane)
        assert torch.equal(drawn[..., lane], images)
        drawn[..., lane] = 0
        assert (drawn == 0).all()


@pytest.mark.parametrize("bits", BITS)
def test_elements_are_linear_in_the_bits_of_their_block(bits, monkeypatch):
    """So that ranks are all there is to know about them."""
    images = elements_of_basis(monkeypatch, bits)[..., 0]
    for seed in SEEDS:
        block = reference.words(torch.tensor(seed), 5, 1, stream=0).view(4, 16)
        count = reference.per_group(bits)
        drawn = reference.elements(torch.tensor(seed), 5 * count, count, bits, stream=0).view(-1, 16)
        for lane in (0, 7, 15):
            expected = [0] * len(drawn)
            for bit in range(128):
                if block[bit // 32, lane].item() >> bit % 32 & 1:
                    expected = [a ^ b for a, b in zip(expected, images[bit].tolist())]
            assert drawn[:, lane].tolist() == expected


@pytest.mark.parametrize("bits", BITS)
def test_no_bit_of_a_block_serves_two_elements(bits, monkeypatch):
    """Every bit of every element is a bit of the block, each another one; for numbers of 21 bits two are left over."""
    images = elements_of_basis(monkeypatch, bits)[..., 0]
    uses = torch.stack([images >> place & 1 for place in range(bits)], dim=-1).flatten(1)  # [128, elements * bits]
    assert (uses.sum(0) == 1).all()
    used = uses.sum(1)
    assert used.max() == 1
    assert (used == 0).nonzero().flatten().tolist() == ([32 + 10, 96 + 10] if bits == 21 else [])


@pytest.mark.parametrize("bits", BITS)
def test_any_elements_of_a_block_are_independent(bits, monkeypatch):
    # A linear map of full rank takes uniform bits to uniform bits. What holds for all together holds for any of them.
    images = elements_of_basis(monkeypatch, bits)[..., 0]
    assert joint_rank(images) == bits * images.shape[1]
    if bits == 21:
        for size in range(1, 7):
            for some in itertools.combinations(range(6), size):
                assert joint_rank(images[:, some]) == 21 * size, some


def test_dependence_is_noticed():
    """The numbers of masks of version 2: any two were independent, but their lower halves were borrowed."""
    words = [[(1 << bit) >> 32 * j & 0xFFFFFFFF for j in range(4)] for bit in range(128)]
    images = torch.tensor(
        [
            [w[j] ^ w[(j + 1) % 4] >> 16 if s == 0 else (w[j] << 16 & 0xFFFFFFFF | w[j] >> 16) ^ w[(j + 3) % 4] >> 16
             for j in range(4) for s in range(2)]
            for w in words
        ]
    )  # fmt: skip
    assert all(joint_rank(images[:, two]) == 64 for two in itertools.combinations(range(8), 2))
    assert joint_rank(images[:, [0, 1, 2]]) == 80
    assert joint_rank(images >> 10) < 8 * 22


# Values.

EXTREME_NUMBERS = [0, 1, 1023, 2**20 - 1, 2**20, 2**20 + 1, 2**21 - 2, 2**21 - 1]


@each_dtype
def test_uniforms_are_exact_and_inside_the_open_interval(dtype):
    u = reference.uniforms(torch.tensor(EXTREME_NUMBERS), dtype)
    assert u.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert [Fraction(value) for value in u.tolist()] == [oracles.uniform(e) for e in EXTREME_NUMBERS]
    assert u.min() > 0
    assert u.max() < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_uniforms_are_symmetric_about_one_half(dtype):
    numbers = torch.cat([torch.tensor(EXTREME_NUMBERS), reference.elements(torch.tensor(3), 0, 6400, 21, 0)])
    u, mirrored = reference.uniforms(numbers, dtype), reference.uniforms(2**21 - 1 - numbers, dtype)
    # 1 - u is exact: u is an odd multiple of 2^-22.
    assert torch.equal(1 - u, mirrored)
    assert not (u == 0.5).any()


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (0.0, (1, 0)),
        (1.0, (1, 2)),
        (0.5, (1, 1)),
        (0.25, (2, 1)),
        (0.75, (2, 3)),
        (0.125, (4, 2)),
        (0.8125, (4, 13)),
        (1 / 256, (8, 1)),
        (2.0**-16, (16, 1)),
        (2.0**-17, (32, 2**15)),
        (1 - 2.0**-32, (32, 2**32 - 1)),
        (0.3, (21, 629146)),  # 0.3 * 2^21 = 629145.6
        (0.9, (21, 1887437)),  # 0.9 * 2^21 = 1887436.8
        (0.5 + 2.0**-20, (21, 2**20 + 2)),
        (0.99, (32, 4252017623)),  # 0.99 * 2^32 = 4252017623.04
        (0.01, (32, 42949673)),  # 0.01 * 2^32 = 42949672.96
        (math.nextafter(1 / 64, 1), (21, 2**15)),
        (math.nextafter(1 / 64, 0), (32, 2**26)),
        (math.nextafter(63 / 64, 0), (21, 63 * 2**15)),
        (math.nextafter(63 / 64, 1), (32, 63 * 2**26)),
        (1e-20, (32, 0)),
    ],
)
def test_bernoulli_bits_are_the_fewest(keep, expected):
    assert reference.bernoulli_bits(keep) == expected == oracles.bernoulli_bits(keep)
    assert reference.bits_per_element(KernelLaw("bernoulli", (keep,), 1.0)) == expected[0]


@pytest.mark.parametrize(("keep", "value"), [(0.0, 0.0), (1.0, 1.0)])
def test_certain_coins_never_differ(keep, value):
    mask = reference.mask_values(torch.tensor([0, 1]), KernelLaw("bernoulli", (keep,), 1.0), torch.float32)
    assert mask.tolist() == [value, value]


@each_law
@each_dtype
def test_mask_values_match_the_oracle(kind, params, dtype):
    bits = oracles.mask_bits(kind, params)
    drawn = oracle_elements(77, 0, 200, bits, stream=0) + [e % 2**bits for e in EXTREME_NUMBERS]
    got = reference.mask_values(torch.tensor(drawn), KernelLaw(kind, params, 1.0), dtype)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = torch.tensor([oracles.mask_value(b, kind, params, dtype) for b in drawn], dtype=torch.float64)
    assert ((got.double() - expected).abs() <= oracles.mask_tolerance(kind, params, dtype)).all()


# Operators.


def oracle_mask(shape, seed: int, kind: str, params, dtype: torch.dtype, stream: int) -> torch.Tensor:
    """The mask of a shape in float64, element by element in row-major order."""
    bits = oracles.mask_bits(kind, params)
    drawn = oracle_elements(seed, 0, math.prod(shape), bits, stream)
    values = [oracles.mask_value(b, kind, params, dtype) for b in drawn]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def assert_close(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor, dtype: torch.dtype) -> None:
    """Compares within a bound of the error before the result is rounded to its own type."""
    assert got.dtype == dtype
    assert got.shape == expected.shape
    subnormal = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    last_rounding = UNIT_ROUNDOFF[dtype] * (expected.abs() + bound) + subnormal
    assert ((got.double() - expected).abs() <= bound + last_rounding).all()


def wide_unit(dtype: torch.dtype) -> float:
    return UNIT_ROUNDOFF[torch.float64 if dtype == torch.float64 else torch.float32]


def assert_dropout(x, seeds, kind, params, scale, shared_axes, stream=0) -> None:
    """Checks dropout for one seed, or for a seed per entry of the first axis."""
    got = reference.dropout(x, seed_tensor(*seeds), KernelLaw(kind, params, scale), shared_axes, stream)
    shape = [1 if axis in shared_axes else size for axis, size in enumerate(x.shape)]
    if len(seeds) == 1:
        mask = oracle_mask(shape, seeds[0], kind, params, x.dtype, stream)
    else:
        mask = torch.stack([oracle_mask(shape[1:], seed, kind, params, x.dtype, stream) for seed in seeds])
    factor = x.double() * scale
    # The scale, its product with the mask and the product with x are rounded once each.
    bound = factor.abs() * (
        oracles.mask_tolerance(kind, params, x.dtype) * (1 + 4 * wide_unit(x.dtype))
        + 3 * wide_unit(x.dtype) * mask.abs()
    )
    assert_close(got, factor * mask, bound, x.dtype)
    assert got.stride() == x.stride()


@each_law
@each_dtype
def test_dropout_matches_the_oracle(kind, params, dtype):
    assert_dropout(fixed(3, 4, 7, dtype=dtype), [123456789012345], kind, params, 1.7, [], stream=1)


@each_law
def test_dropout_shares_values_along_axes_and_takes_a_seed_per_example(kind, params):
    for shared_axes in ([0], [1], [2], [0, 2], [0, 1, 2]):
        assert_dropout(fixed(2, 3, 5, dtype=torch.float32), [42], kind, params, 2.0, shared_axes)
    for shared_axes in ([], [1], [2], [1, 2]):
        assert_dropout(fixed(3, 4, 5, dtype=torch.float64), [7, -8, 2**62], kind, params, 1.0, shared_axes)


@each_law
def test_dropout_numbers_elements_by_shape_and_not_by_memory(kind, params):
    assert_dropout(fixed(5, 4, dtype=torch.float32).t(), [9], kind, params, 1.0, [])
    channels_last = fixed(2, 3, 4, 5, dtype=torch.float32).to(memory_format=torch.channels_last)
    assert_dropout(channels_last, [9], kind, params, 1.0, [])


@each_law
def test_dropout_takes_scalars_and_empty_tensors(kind, params):
    for shape in ((), (1,), (0,), (3, 0, 2)):
        assert_dropout(fixed(*shape, dtype=torch.float32), [10], kind, params, 1.0, [])


@each_dtype
@pytest.mark.parametrize("shared_axes", [[], [0], [0, 1]], ids=str)
def test_keep_where_matches_the_oracle(dtype, shared_axes):
    x = fixed(4, 9, dtype=dtype)
    keep = torch.linspace(0, 1, 36, dtype=torch.float64).view(4, 9).to(dtype)
    got = reference.keep_where(x, torch.tensor(5), keep, shared_axes)
    shape = [1 if axis in shared_axes else size for axis, size in enumerate(x.shape)]
    u = [oracles.uniform(w) for w in oracle_elements(5, 0, math.prod(shape), 21, stream=0)]
    u = torch.tensor([float(value) for value in u], dtype=torch.float64).view(shape).expand(x.shape)
    assert got.dtype == dtype
    assert torch.equal(got, torch.where(u < keep.double(), x, 0))
    assert 0 < (got == 0).double().mean() < 1


def test_keep_where_takes_a_seed_per_example():
    x, keep = fixed(2, 3, 4, dtype=torch.float32), torch.full((2, 3, 4), 0.5)
    got = reference.keep_where(x, seed_tensor(5, 6), keep, [1])
    for seed, row, result in zip((5, 6), x, got):
        u = [oracles.uniform(w) for w in oracle_elements(seed, 0, 4, 21, stream=0)]
        kept = torch.tensor([value < Fraction(1, 2) for value in u])
        assert torch.equal(result, torch.where(kept, row, 0))


def test_gaussian_masks_of_a_device_without_float64_are_made_on_the_cpu(monkeypatch):
    class WithoutFloat64(TorchFunctionMode):
        on_the_cpu = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.double and not any(args[0] is tensor for tensor in self.on_the_cpu):
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it")
            result = function(*args, **(kwargs or {}))
            if function is torch.Tensor.cpu:
                self.on_the_cpu = (*self.on_the_cpu, result)
            return result

    arguments = (torch.ones(50), torch.tensor(3), WAYS["gaussian"], [], reference.STREAM_MASK)
    expected = reference.dropout(*arguments)
    monkeypatch.setattr(reference, "widest", lambda device: torch.float32)
    with WithoutFloat64():
        assert torch.equal(reference.dropout(*arguments), expected)


@each_dtype
@pytest.mark.parametrize("seeds", [(3,), (3, -4)], ids=str)
def test_standard_normal_numbers_match_the_oracle(dtype, seeds):
    ones = torch.ones(*seed_tensor(*seeds).shape, 5, 8, dtype=dtype)
    got = reference.dropout(ones, seed_tensor(*seeds), NORMAL, [], reference.STREAM_NORMAL)
    rows = []
    for seed in seeds:
        words = oracle_elements(seed, 0, 40, 21, reference.STREAM_NORMAL)
        rows.append([statistics.NormalDist().inv_cdf(float(oracles.uniform(w))) for w in words])
    expected = torch.tensor(rows, dtype=torch.float64).view(*seed_tensor(*seeds).shape, 5, 8)
    # The two quantile functions are good to about eight roundings in float64 together: see oracles.mask_tolerance.
    rounding = UNIT_ROUNDOFF[reference.compute_dtype(dtype)]  # of the mask
    assert_close(got, expected, (8 * 2.0**-53 + rounding) * expected.abs(), dtype)


# Per-example DropConnect.


def oracle_example_masks(examples, outputs, inputs, seed, kind, params, dtype) -> torch.Tensor:
    bits = oracles.mask_bits(kind, params)
    whole = 96 if bits == 21 else 16 * (32 // bits)
    pitch = math.ceil(inputs / whole) * whole
    values = [
        oracles.mask_value(oracles.element(seed, (n * outputs + o) * pitch + i, bits, 0), kind, params, dtype)
        for n in range(examples)
        for o in range(outputs)
        for i in range(inputs)
    ]
    return torch.tensor(values, dtype=torch.float64).view(examples, outputs, inputs)


def assert_dropconnect(kind, params, dtype, examples=3, outputs=2, inputs=17, seed=2**40 + 1, scale=1.5) -> None:
    """Checks the forward pass and both gradients against einsums over the oracle's masks."""
    shapes = {"x": (examples, inputs), "w": (outputs, inputs), "g": (examples, outputs)}
    matrices = {name: fixed(*shape, dtype=dtype, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), 1)}
    mask = oracle_example_masks(examples, outputs, inputs, seed, kind, params, dtype) * scale
    error = oracles.mask_tolerance(kind, params, dtype) * scale
    for wanted, left, right, formula in (
        ("g", "w", "x", "oi,ni->no"),
        ("x", "g", "w", "no,oi->ni"),
        ("w", "g", "x", "no,ni->oi"),
    ):
        taken = {left: matrices[left], right: matrices[right]}
        (got,) = reference.dropconnect(wanted, taken, torch.tensor(seed), KernelLaw(kind, params, scale))
        wide = [matrix.double() for matrix in taken.values()]
        expected = torch.einsum(f"noi,{formula}", mask, *wide)
        # A sum of k products of four numbers takes up to k + 4 roundings of the sum of their sizes.
        terms = max(examples, outputs, inputs) + 4
        sizes, errors = (
            torch.einsum(f"noi,{formula}", each, *map(torch.abs, wide))
            for each in (mask.abs() + error, torch.full_like(mask, error))
        )
        assert_close(got, expected, errors + terms * wide_unit(dtype) * sizes, dtype)


@each_law
@each_dtype
def test_dropconnect_and_its_gradients_match_the_oracle(kind, params, dtype):
    assert_dropconnect(kind, params, dtype)


@pytest.mark.parametrize(
    ("kind", "params", "shapes"),
    [
        ("uniform", (0.0, 1.0), [(3, 2, 96), (3, 2, 97), (3, 2, 1), (3, 2, 0)]),
        ("bernoulli", (0.99,), [(3, 2, 16), (3, 2, 17)]),
        ("bernoulli", (0.75,), [(3, 2, 300)]),
        ("bernoulli", (0.5,), [(3, 2, 512), (3, 2, 513), (3, 2, 0), (0, 2, 17), (1, 1, 17), (2, 0, 17)]),
    ],
)
def test_dropconnect_matches_the_oracle_at_the_ends_of_runs_and_of_nothing(kind, params, shapes):
    for examples, outputs, inputs in shapes:
        assert_dropconnect(kind, params, torch.float32, examples, outputs, inputs)


@each_law
@pytest.mark.parametrize("chunk", [1, 70, 1100])
def test_dropconnect_does_not_depend_on_the_chunk(kind, params, chunk, monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK", chunk)
    assert_dropconnect(kind, params, torch.float64, examples=5)


def test_dropconnect_materialises_no_more_than_a_chunk(monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK", 2 * 3 * 96)  # two examples of 3 x 17 masks at a pitch of 96
    sizes, like = {"n": 5, "o": 3, "i": 17}, torch.empty(0, dtype=torch.float32)
    parts = list(reference._example_masks(sizes, torch.tensor(1), UNIFORM, 0, like))
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 2), (2, 4), (4, 5)]
    assert [mask.shape for _, mask in parts] == [(2, 3, 17), (2, 3, 17), (1, 3, 17)]
