"""The reference back end against published Philox vectors and against a scalar oracle written from its docstring."""

import functools
import itertools
import math
import statistics
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from contdrop.kernels import reference
from oracles import UNIT_ROUNDOFF

INF = math.inf
BITS = (1, 2, 4, 8, 16, 32)
SEEDS = (0, 1, 2**31, 2**32 - 1, 2**32, 0x0123456789ABCDEF, 2**63 - 1, -1, -(2**63), -(2**40) + 3)
LAWS = [
    ("bernoulli", (0.5,)),
    ("bernoulli", (0.75,)),
    ("bernoulli", (0.3,)),
    ("uniform", (0.0, 1.0)),
    ("uniform", (-1.0, 2.5)),
    ("gaussian", (0.5, 0.2, 0.0, 1.0)),
    ("gaussian", (0.3, 1.0, -0.2, 0.9)),
    ("gaussian", (1.0, 0.5, -INF, INF)),
    ("gaussian", (0.4, 0.0, 0.0, 1.0)),
]
each_law = pytest.mark.parametrize(("kind", "params"), LAWS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)


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


def test_philox_has_seven_rounds_by_default():
    zero = torch.tensor(0)
    assert reference.philox([zero] * 4, [zero] * 2)[0].item() == 0x5F6FB709


# Words and elements.


@pytest.mark.parametrize("seed", SEEDS)
def test_words_match_the_oracle(seed):
    # The block's high half is used from group 2^28 = word 2^34 on.
    for first_group in (0, 7, 2**28 - 1, 2**40 + 3):
        got = reference.words(seed_tensor(seed), first_group, 2, stream=2)
        assert got.tolist() == [oracles.word(seed, 64 * first_group + k, stream=2) for k in range(128)]


def test_words_of_batched_seeds_are_those_of_each_seed():
    seeds = torch.tensor(SEEDS[:6]).view(2, 3)
    got = reference.words(seeds, 5, 3, stream=1)
    assert got.shape == (2, 3, 192)
    for row, column in itertools.product(range(2), range(3)):
        assert torch.equal(got[row, column], reference.words(seeds[row, column], 5, 3, stream=1))


def test_streams_number_the_third_word_of_the_counter():
    streams = [reference.STREAM_MASK, reference.STREAM_BIAS, reference.STREAM_NORMAL]
    assert streams == [0, 1, 2]
    for stream in streams:
        zero = torch.tensor(0)
        first = reference.philox([zero, zero, torch.tensor(stream), zero], [torch.tensor(9), zero])[0]
        assert reference.words(torch.tensor(9), 0, 1, stream)[0] == first


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 200), (1, 63), (17, 101), (511, 130), (4095, 3), (777, 0)])
def test_elements_match_the_oracle(bits, first, count):
    for seed, stream in [(0x0123456789ABCDEF, 0), (-5, 1)]:
        got = reference.elements(seed_tensor(seed), first, count, bits, stream)
        assert got.tolist() == oracle_elements(seed, first, count, bits, stream)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("first_word", [2**34 - 20, 2**34 + 69, 2**41 + 12345])
def test_elements_far_out_match_the_oracle(bits, first_word):
    first = first_word * reference.per_word(bits) + 7
    got = reference.elements(torch.tensor(11), first, 70, bits, stream=0)
    assert got.tolist() == oracle_elements(11, first, 70, bits, stream=0)


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


# The eight numbers of 32 bits that come from the four words of a block, as a linear map of bits.


def numbers_of_basis(monkeypatch, lane: int) -> torch.Tensor:
    """The elements [128, 128] of a group of words, for each of the 128 bits of one of its blocks set alone."""
    group = torch.zeros(128, 64, dtype=torch.int64)
    for bit in range(128):
        group[bit, 16 * (bit // 32) + lane] = 1 << bit % 32
    with monkeypatch.context() as patch:
        patch.setattr(reference, "words", lambda seed, first_group, groups, stream: group)
        return reference.elements(torch.zeros(128, dtype=torch.int64), 0, 128, 32, stream=0)


def rank(rows) -> int:
    """The rank over the field of two elements of rows that are the bits of integers."""
    reduced: list[int] = []
    for row in rows:
        for other in reduced:
            row = min(row, row ^ other)  # clears the other's highest bit
        if row:
            reduced.append(row)
    return len(reduced)


def joint_rank(images: torch.Tensor) -> int:
    """The rank of some numbers together: images [128, numbers] of the bits of a block, each number 32 bits or less."""
    return rank(sum(number << 32 * k for k, number in enumerate(row)) for row in images.tolist())


def test_ranks_are_those_of_known_matrices():
    assert rank([0, 0]) == 0
    assert rank([1 << k for k in range(128)]) == 128
    assert rank([0b110, 0b011, 0b101]) == 2
    assert rank([0b111, 0b011, 0b001, 0b100]) == 3


@pytest.mark.parametrize("lane", range(16))
def test_a_block_makes_eight_numbers_sixteen_apart_and_no_others(lane, monkeypatch):
    drawn = numbers_of_basis(monkeypatch, lane).view(128, 8, 16)
    others = [other for other in range(16) if other != lane]
    assert (drawn[..., others] == 0).all()
    assert torch.equal(drawn[..., lane], numbers_of_basis(monkeypatch, 0)[:, ::16])


def test_numbers_are_linear_in_the_bits_of_their_words(monkeypatch):
    """So that ranks are all there is to know about them."""
    images = numbers_of_basis(monkeypatch, 0)[:, ::16]
    for seed in SEEDS:
        block = reference.words(torch.tensor(seed), 5, 1, stream=0).view(4, 16)
        numbers = reference.elements(torch.tensor(seed), 128 * 5, 128, 32, stream=0).view(8, 16)
        for lane in range(16):
            expected = [0] * 8
            for bit in range(128):
                if block[bit // 32, lane].item() >> bit % 32 & 1:
                    expected = [a ^ b for a, b in zip(expected, images[bit].tolist())]
            assert numbers[:, lane].tolist() == expected


def test_every_number_is_uniform_and_every_two_are_independent(monkeypatch):
    # A linear map of full rank takes uniform bits to uniform bits.
    images = numbers_of_basis(monkeypatch, 0)[:, ::16]
    for number in range(8):
        assert joint_rank(images[:, [number]]) == 32
    for pair in itertools.combinations(range(8), 2):
        assert joint_rank(images[:, pair]) == 64, pair


def test_upper_halves_of_all_numbers_of_a_block_are_independent(monkeypatch):
    images = numbers_of_basis(monkeypatch, 0)[:, ::16]
    assert joint_rank(images >> 16) == 128


def test_lower_halves_are_made_of_two_upper_halves_of_other_numbers(monkeypatch):
    images = numbers_of_basis(monkeypatch, 0)[:, ::16]
    upper, lower = images >> 16, images & 0xFFFF
    for number in range(8):
        makers = [
            pair
            for pair in itertools.combinations(range(8), 2)
            if torch.equal(lower[:, number], upper[:, pair[0]] ^ upper[:, pair[1]])
        ]
        assert len(makers) == 1
        assert number not in makers[0]


def test_three_numbers_of_a_block_may_depend_on_each_other(monkeypatch):
    """The documented limit: what holds for every two numbers does not hold for every three."""
    images = numbers_of_basis(monkeypatch, 0)[:, ::16]
    ranks = {three: joint_rank(images[:, three]) for three in itertools.combinations(range(8), 3)}
    # Eight times a number and the two that make its lower half, such as 0, 1 and 2: both of word 0, and slot 0 of
    # word 1. Four times two of one word and slot 1 of the next, such as 0, 1 and 3, whose lower halves have words in
    # common.
    assert sorted(ranks.values()) == [80] * 12 + [96] * 44
    assert ranks[0, 1, 2] == ranks[0, 1, 3] == 80


# Values.

EXTREME_WORDS = [0, 1, 1023, 1024, 1025, 2**31 - 1, 2**31, 2**31 + 1023, 2**32 - 1025, 2**32 - 1024, 2**32 - 1]


@each_dtype
def test_uniforms_are_exact_and_inside_the_open_interval(dtype):
    u = reference.uniforms(torch.tensor(EXTREME_WORDS), dtype)
    assert u.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert [Fraction(value) for value in u.tolist()] == [oracles.uniform(w) for w in EXTREME_WORDS]
    assert u.min() > 0
    assert u.max() < 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_uniforms_are_symmetric_about_one_half(dtype):
    words = torch.cat([torch.tensor(EXTREME_WORDS), reference.words(torch.tensor(3), 0, 100, 0)])
    u, mirrored = reference.uniforms(words, dtype), reference.uniforms(2**32 - 1 - words, dtype)
    # 1 - u is exact: u is an odd multiple of 2^-23.
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
        (0.3, (32, 1288490189)),  # 0.3 * 2^32 = 1288490188.8
        (0.8, (32, 3435973837)),  # 0.8 * 2^32 = 3435973836.8
        (1e-20, (32, 0)),
    ],
)
def test_bernoulli_bits_are_the_fewest(keep, expected):
    assert reference.bernoulli_bits(keep) == expected == oracles.bernoulli_bits(keep)
    assert reference.bits_per_element("bernoulli", (keep,)) == expected[0]


@pytest.mark.parametrize(("keep", "value"), [(0.0, 0.0), (1.0, 1.0)])
def test_certain_coins_never_differ(keep, value):
    mask = reference.mask_values(torch.tensor([0, 1]), "bernoulli", (keep,), torch.float32)
    assert mask.tolist() == [value, value]


@pytest.mark.parametrize("kind", ["uniform", "gaussian"])
def test_continuous_laws_take_32_bits(kind):
    assert reference.bits_per_element(kind, (0.5, 1.0, 0.0, 1.0)) == 32


@each_law
@each_dtype
def test_mask_values_match_the_oracle(kind, params, dtype):
    bits = oracles.mask_bits(kind, params)
    drawn = oracle_elements(77, 0, 200, bits, stream=0) + [w % 2**bits for w in EXTREME_WORDS]
    got = reference.mask_values(torch.tensor(drawn), kind, params, dtype)
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
    got = reference.dropout(x, seed_tensor(*seeds), kind, params, scale, shared_axes, stream)
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
@pytest.mark.parametrize("shared_axes", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
def test_dropout_shares_values_along_axes(kind, params, shared_axes):
    assert_dropout(fixed(2, 3, 5, dtype=torch.float32), [42], kind, params, 2.0, shared_axes)


@each_law
@pytest.mark.parametrize("shared_axes", [[], [1], [2], [1, 2]], ids=str)
def test_dropout_takes_a_seed_per_example(kind, params, shared_axes):
    assert_dropout(fixed(3, 4, 5, dtype=torch.float64), [7, -8, 2**62], kind, params, 1.0, shared_axes)


@each_law
def test_dropout_numbers_elements_by_shape_and_not_by_memory(kind, params):
    assert_dropout(fixed(5, 4, dtype=torch.float32).t(), [9], kind, params, 1.0, [])
    channels_last = fixed(2, 3, 4, 5, dtype=torch.float32).to(memory_format=torch.channels_last)
    assert_dropout(channels_last, [9], kind, params, 1.0, [])


@each_law
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2)], ids=str)
def test_dropout_takes_scalars_and_empty_tensors(kind, params, shape):
    assert_dropout(fixed(*shape, dtype=torch.float32), [10], kind, params, 1.0, [])


@each_dtype
@pytest.mark.parametrize("shared_axes", [[], [0], [0, 1]], ids=str)
def test_keep_where_matches_the_oracle(dtype, shared_axes):
    x = fixed(4, 9, dtype=dtype)
    keep = torch.linspace(0, 1, 36, dtype=torch.float64).view(4, 9).to(dtype)
    got = reference.keep_where(x, torch.tensor(5), keep, shared_axes)
    shape = [1 if axis in shared_axes else size for axis, size in enumerate(x.shape)]
    u = [oracles.uniform(w) for w in oracle_elements(5, 0, math.prod(shape), 32, stream=0)]
    u = torch.tensor([float(value) for value in u], dtype=torch.float64).view(shape).expand(x.shape)
    assert got.dtype == dtype
    assert torch.equal(got, torch.where(u < keep.double(), x, 0))
    assert 0 < (got == 0).double().mean() < 1


def test_keep_where_takes_a_seed_per_example():
    x, keep = fixed(2, 3, 4, dtype=torch.float32), torch.full((2, 3, 4), 0.5)
    got = reference.keep_where(x, seed_tensor(5, 6), keep, [1])
    for seed, row, result in zip((5, 6), x, got):
        u = [oracles.uniform(w) for w in oracle_elements(seed, 0, 4, 32, stream=0)]
        kept = torch.tensor([value < Fraction(1, 2) for value in u])
        assert torch.equal(result, torch.where(kept, row, 0))


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_keep_where_honours_certainty(keep):
    x = fixed(100, dtype=torch.float32)
    assert torch.equal(reference.keep_where(x, torch.tensor(1), torch.full_like(x, keep), []), x * keep)


@each_dtype
@pytest.mark.parametrize("seeds", [(3,), (3, -4)], ids=str)
def test_normal_matches_the_oracle(dtype, seeds):
    got = reference.normal(seed_tensor(*seeds), [5, 8], dtype, torch.device("cpu"))
    rows = []
    for seed in seeds:
        words = oracle_elements(seed, 0, 40, 32, reference.STREAM_NORMAL)
        rows.append([statistics.NormalDist().inv_cdf(float(oracles.uniform(w))) for w in words])
    expected = torch.tensor(rows, dtype=torch.float64).view(*seed_tensor(*seeds).shape, 5, 8)
    # The two quantile functions are good to about eight roundings in float64 together: see oracles.mask_tolerance.
    assert_close(got, expected, 8 * 2.0**-53 * expected.abs(), dtype)


def test_normal_takes_an_empty_size_and_no_size():
    assert reference.normal(torch.tensor(1), [0, 3], torch.float32, torch.device("cpu")).shape == (0, 3)
    scalar = reference.normal(torch.tensor(1), [], torch.float64, torch.device("cpu"))
    u = oracles.uniform(oracles.number(1, 0, stream=2))
    assert scalar.item() == pytest.approx(statistics.NormalDist().inv_cdf(float(u)), rel=8 * 2.0**-53)


# Per-example DropConnect.


def oracle_example_masks(examples, outputs, inputs, seed, kind, params, dtype) -> torch.Tensor:
    bits = oracles.mask_bits(kind, params)
    run = 16 * (2 if bits == 32 else 32 // bits)
    pitch = math.ceil(inputs / run) * run
    values = [
        oracles.mask_value(oracles.element(seed, (n * outputs + o) * pitch + i, bits, 0), kind, params, dtype)
        for n in range(examples)
        for o in range(outputs)
        for i in range(inputs)
    ]
    return torch.tensor(values, dtype=torch.float64).view(examples, outputs, inputs)


def assert_dropconnect(kind, params, dtype, examples=3, outputs=2, inputs=17, seed=2**40 + 1, scale=1.5) -> None:
    """Checks the forward pass and both gradients against einsums over the oracle's masks."""
    x = fixed(examples, inputs, dtype=dtype, seed=1)
    weight = fixed(outputs, inputs, dtype=dtype, seed=2)
    gradient = fixed(examples, outputs, dtype=dtype, seed=3)
    mask = oracle_example_masks(examples, outputs, inputs, seed, kind, params, dtype) * scale
    error = oracles.mask_tolerance(kind, params, dtype) * scale
    law = (torch.tensor(seed), kind, params, scale)
    for got, formula, left, right in [
        (reference.dropconnect(x, weight, *law), "noi,ni,oi->no", x, weight),
        (reference.dropconnect_input_gradient(gradient, weight, *law), "noi,no,oi->ni", gradient, weight),
        (reference.dropconnect_weight_gradient(gradient, x, *law), "noi,no,ni->oi", gradient, x),
    ]:
        expected = torch.einsum(formula, mask, left.double(), right.double())
        # A sum of k products of four numbers takes up to k + 4 roundings of the sum of their sizes.
        terms = max(examples, outputs, inputs) + 4
        sizes = torch.einsum(formula, mask.abs() + error, left.double().abs(), right.double().abs())
        errors = torch.einsum(formula, torch.full_like(mask, error), left.double().abs(), right.double().abs())
        assert_close(got, expected, errors + terms * wide_unit(dtype) * sizes, dtype)


@each_law
@each_dtype
def test_dropconnect_and_its_gradients_match_the_oracle(kind, params, dtype):
    assert_dropconnect(kind, params, dtype)


@pytest.mark.parametrize(
    ("kind", "params", "inputs"),
    [
        ("uniform", (0.0, 1.0), 32),
        ("uniform", (0.0, 1.0), 33),
        ("uniform", (0.0, 1.0), 1),
        ("bernoulli", (0.5,), 512),
        ("bernoulli", (0.5,), 513),
        ("bernoulli", (0.75,), 300),
        ("bernoulli", (0.5,), 0),
        ("uniform", (0.0, 1.0), 0),
    ],
)
def test_dropconnect_matches_the_oracle_at_the_ends_of_runs(kind, params, inputs):
    assert_dropconnect(kind, params, torch.float32, inputs=inputs)


@pytest.mark.parametrize(("examples", "outputs"), [(0, 2), (1, 1), (2, 0)])
def test_dropconnect_takes_few_or_no_examples_and_outputs(examples, outputs):
    assert_dropconnect("bernoulli", (0.5,), torch.float32, examples=examples, outputs=outputs)


@each_law
@pytest.mark.parametrize("chunk", [1, 70, 1100])
def test_dropconnect_does_not_depend_on_the_chunk(kind, params, chunk, monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK", chunk)
    assert_dropconnect(kind, params, torch.float64, examples=5)


def test_dropconnect_materialises_no_more_than_a_chunk(monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK", 2 * 3 * 32)  # two examples of 3 x 17 masks at a pitch of 32
    parts = list(
        reference._example_masks(
            5, torch.Size((3, 17)), torch.tensor(1), "uniform", (0.0, 1.0), 1.0, torch.empty(0, dtype=torch.float32)
        )
    )
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 2), (2, 4), (4, 5)]
    assert [mask.shape for _, mask in parts] == [(2, 3, 17), (2, 3, 17), (1, 3, 17)]


# Quality of the random numbers. The seeds are fixed, so these cannot fail by chance.


@functools.cache
def two_million_words(seed: int = 1, stream: int = 0) -> torch.Tensor:
    return reference.words(torch.tensor(seed), 0, 31_250, stream)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Correlation of uniform numbers in standard errors."""
    x, y = (reference.uniforms(word, torch.float64) - 0.5 for word in (a, b))
    return (x * y).sum().item() * 12 / math.sqrt(len(x))


def imbalance(word: torch.Tensor, bit: int) -> float:
    """How far a bit is from being set in half the words, in standard errors."""
    return ((word >> bit & 1).sum().item() / len(word) - 0.5) * 2 * math.sqrt(len(word))


def test_every_byte_is_uniform():
    words = two_million_words()
    expected = len(words) / 256
    for shift in (0, 8, 16, 24):
        counts = torch.bincount(words >> shift & 0xFF, minlength=256).double()
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert abs(chi_square - 255) <= 5 * math.sqrt(2 * 255)


def test_every_bit_is_fair():
    words = two_million_words()
    assert max(abs(imbalance(words, bit)) for bit in range(32)) <= 5


def test_neighbouring_bits_are_independent():
    # One-bit elements 16 apart are neighbouring bits of one word.
    words = two_million_words()
    flips = words ^ (words >> 1)
    assert max(abs(imbalance(flips, bit)) for bit in range(31)) <= 5


@pytest.mark.parametrize("lag", [1, 16, 32, 48, 64])
def test_words_are_not_correlated_with_their_neighbours(lag):
    # Words 16, 32 and 48 apart mostly come from the same block, words 1 or 64 apart from other blocks.
    words = two_million_words()
    assert abs(correlation(words[lag:], words[:-lag])) <= 5


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 0), (2, 0)), ((1, 0), (1 + 2**32, 0)), ((1, 0), (1, 1)), ((1, 1), (1, 2))],
    ids=["seeds", "seeds-high-half", "streams-0-1", "streams-1-2"],
)
def test_neighbouring_seeds_and_streams_are_not_correlated(one, other):
    first, second = two_million_words(*one), two_million_words(*other)
    assert abs(correlation(first, second)) <= 5
    differing = first ^ second
    assert max(abs(imbalance(differing, bit)) for bit in (0, 1, 15, 30, 31)) <= 5
