"""Statistical quality of the masks, as a user gets them: 10^8 of every law in the slow tests, 2 * 10^6 in the others.

Every statistic is held against its distribution under a perfect generator and refused at a probability below that of
five standard errors, two-sided: 5.7e-7. The seeds are fixed, so a test does not fail by chance on one day and pass on
another. ``pytest -m slow -s tests/kernels/test_quality.py`` prints the numbers.
"""

import dataclasses
import functools
import itertools
import math
import statistics
import zlib

import pytest
import torch
from scipy.special import kolmogi
from scipy.stats import chi2

import contdrop as cd
from conformance import LAWS
from contdrop import kernels
from contdrop.laws import KernelLaw
from oracles import FIVE_SIGMA

WIDTH = 4096
ROWS = 512
CHUNK = ROWS * WIDTH  # 2 * 10^6 elements are drawn at a time, 8 MB
# Numbers of bins that are no powers of two, so that most edges depend on all bits of a number and not on the first few.
FINE, COARSE = 16_000, 125
SQUARE = 200  # bins along each axis of a pair: 6.5 pairs to a bin in the smaller tests
# How far apart elements are that should not be correlated. Sixteen apart in a row are neighbouring bits of one word if
# a law takes up to 16 bits per element. If it takes 21, a block of the generator makes six elements, sixteen apart.
LAGS = {
    "row": 1,
    "row by 2": 2,
    **{f"row by {16 * k}": 16 * k for k in range(1, 7)},
    "row by 512": 512,
    "column": WIDTH,
}

each_law = pytest.mark.parametrize("law", LAWS, ids=str)
each_size = pytest.mark.parametrize("chunks", [1, pytest.param(48, marks=pytest.mark.slow)], ids=["2e6", "1e8"])


@functools.cache
def ones() -> torch.Tensor:
    return torch.ones(ROWS, WIDTH)


def mask(law: cd.Law, seed: int) -> torch.Tensor:
    """The mask that a tensor [512, 4096] gets for a seed."""
    return kernels.ops.dropout(ones(), torch.tensor(seed), KernelLaw(law.kind, law.params, law.factor), [], 0)


def probabilities(law: cd.Law) -> torch.Tensor:
    """Of the atom at the lower end of a law, of fine bins of equal probability between, and of the atom above."""
    if law.kind == "bernoulli":
        return torch.tensor([1 - law.keep, law.keep], dtype=torch.float64)
    low, high = atoms(law)
    return torch.tensor([low, *[(1 - low - high) / FINE] * FINE, high], dtype=torch.float64)


def atoms(law: cd.Law) -> tuple[float, float]:
    """Probabilities of the lowest and the highest value of a continuous law."""
    if law.kind == "uniform":
        return 0.0, 0.0
    low, high = law.quantile(0.0), law.quantile(1.0)
    return law.cdf(low), 1 - law.cdf(math.nextafter(high, -math.inf))


def count(values: torch.Tensor, law: cd.Law) -> torch.Tensor:
    """How many of the values there are in each of those."""
    values = values.flatten().double()
    if law.kind == "bernoulli":
        return torch.bincount(values.div(law.value).round().long(), minlength=2)
    low, high = atoms(law)
    place = (law.cdf(values) - low).mul_(FINE / (1 - low - high)).clamp_(0, FINE - 1).long().add_(1)
    place.masked_fill_(values <= law.quantile(0.0), 0).masked_fill_(values >= law.quantile(1.0), FINE + 1)
    return torch.bincount(place, minlength=FINE + 2)


def coarse(counts: torch.Tensor) -> torch.Tensor:
    """Adds up fine bins to coarse ones and leaves the atoms alone."""
    return torch.cat([counts[:1], counts[1:-1].view(-1, FINE // COARSE).sum(1), counts[-1:]])


def scores(values: torch.Tensor, law: cd.Law) -> torch.Tensor:
    """Mask values in row-major order, scaled to mean 0 and variance 1."""
    return values.flatten().double().sub_(law.mean).div_(math.sqrt(law.variance))


@dataclasses.dataclass
class Report:
    """What a number of draws says: the p-value of chi-square, the distance of Kolmogorov and Smirnov and the largest
    that is not refused, and correlations in standard errors.
    """

    draws: int
    chi_square: float
    distance: float
    distance_limit: float
    correlations: dict[str, float]


@functools.cache
def examine(law: cd.Law, chunks: int) -> Report:
    """Draws chunk by chunk, with successive seeds, and keeps counts and sums only."""
    counts = torch.zeros(len(probabilities(law)), dtype=torch.int64)
    sums: dict[str, float] = {}
    pairs: dict[str, int] = {}

    def add(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        # A product of two scores has mean 0 and variance 1.
        sums[name] = sums.get(name, 0.0) + torch.dot(a, b).item()
        pairs[name] = pairs.get(name, 0) + len(a)

    first = zlib.crc32(str(law).encode())  # another one for every law, so that their results are independent
    previous = scores(mask(law, first - 1), law)
    for seed in range(first, first + chunks):
        values = mask(law, seed)
        counts += count(values, law)
        current = scores(values, law)
        for name, lag in LAGS.items():
            add(name, current[lag:], current[:-lag])
        add("seed", current, previous)
        previous = current
    torch.manual_seed(first)
    for _ in range(chunks):
        add("call", *(scores(cd.functional.dropout(ones(), law, scale="paper"), law) for _ in range(2)))

    draws = chunks * CHUNK
    expected = probabilities(law) * draws
    # The largest distance of the cumulative distributions at the edges of the fine bins, atoms included. Between edges
    # it is larger by at most the probability of a fine bin; within an atom there is nothing between. For a law with
    # atoms the distance is smaller than for a continuous one, so the limit holds all the more.
    distance = ((counts.double() - expected).cumsum(0).abs().max() / draws).item()
    distance += 0.0 if law.kind == "bernoulli" else 1 / FINE
    limit = float(kolmogi(FIVE_SIGMA)) / math.sqrt(draws)
    counts, expected = coarse(counts.double()), coarse(expected)
    assert counts[expected == 0].sum() == 0, "values of probability 0 were drawn"
    possible = expected > 0
    statistic = ((counts - expected) ** 2 / expected)[possible].sum().item()
    return Report(
        draws,
        float(chi2.sf(statistic, possible.sum().item() - 1)),
        distance,
        limit,
        {name: total / math.sqrt(pairs[name]) for name, total in sums.items()},
    )


@each_size
@each_law
def test_masks_follow_their_law(law, chunks):
    report = examine(law, chunks)
    print(f"\n{law}: n = {report.draws:.3g}, chi-square p = {report.chi_square:.3g}", end=", ")
    print(f"distance {report.distance:.2e} (limit {report.distance_limit:.2e})")
    assert FIVE_SIGMA < report.chi_square < 1 - FIVE_SIGMA
    assert report.distance < report.distance_limit


@each_size
@each_law
def test_masks_are_not_correlated(law, chunks):
    report = examine(law, chunks)
    print(f"\n{law}:", ", ".join(f"{name} {value:+.2f}" for name, value in report.correlations.items()))
    assert set(report.correlations) == {*LAGS, "seed", "call"}
    for name, value in report.correlations.items():
        assert abs(value) < 5, f"{name}: {value:.1f} standard errors"


# The six numbers of 21 bits that a block makes. They share no bit: see test_reference.py.


def blocks(seed: int) -> torch.Tensor:
    """Uniform numbers [6, blocks] of a mask: in every column the six of one block."""
    whole = CHUNK // 96 * 96
    return mask(cd.Uniform(), seed).flatten()[:whole].double().view(-1, 6, 16).transpose(0, 1).flatten(1)


@functools.cache
def bin_probabilities() -> torch.Tensor:
    """Of SQUARE equal bins, exactly: there are 2^21 uniform numbers, which do not spread over them evenly."""
    numbers = (2 * torch.arange(1 << 21, dtype=torch.float64) + 1) * 2.0**-22
    return torch.bincount((numbers * SQUARE).long()).double() / len(numbers)


@functools.cache
def examine_blocks(chunks: int) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
    """P-values of a two-dimensional chi-square for every pair of the six, and the means of products of centred
    numbers for every three and every four, in standard errors.
    """
    counts = {pair: torch.zeros(SQUARE**2, dtype=torch.int64) for pair in itertools.combinations(range(6), 2)}
    sums = {few: 0.0 for size in (3, 4) for few in itertools.combinations(range(6), size)}
    first = zlib.crc32(b"blocks")
    for seed in range(first, first + chunks):
        numbers = blocks(seed)
        place = (numbers * SQUARE).long()
        for (one, other), total in counts.items():
            total += torch.bincount(place[one] * SQUARE + place[other], minlength=SQUARE**2)
        centred = (numbers - 0.5) * math.sqrt(12)  # mean 0, variance 1
        pairs = {pair: centred[pair[0]] * centred[pair[1]] for pair in counts}
        for few in sums:
            rest = pairs[few[2:]] if len(few) == 4 else centred[few[2]]
            sums[few] += torch.dot(pairs[few[:2]], rest).item()
    draws = chunks * (CHUNK // 96 * 16)
    expected = torch.outer(bin_probabilities(), bin_probabilities()).flatten() * draws
    return (
        {
            pair: float(chi2.sf(((total - expected) ** 2 / expected).sum().item(), SQUARE**2 - 1))
            for pair, total in counts.items()
        },
        {few: total / math.sqrt(draws) for few, total in sums.items()},
    )


@each_size
def test_pairs_of_a_block_fill_the_square_evenly(chunks):
    p_values, _ = examine_blocks(chunks)
    print(f"\n{len(p_values)} pairs: p from {min(p_values.values()):.3g} to {max(p_values.values()):.3g}")
    assert len(p_values) == 15
    for pair, p in p_values.items():
        assert FIVE_SIGMA < p < 1 - FIVE_SIGMA, f"{pair}: p = {p:.1e}"


@each_size
def test_three_and_four_numbers_of_a_block_have_no_product_moment(chunks):
    _, products = examine_blocks(chunks)
    print(f"\n{len(products)} products: {min(products.values()):+.2f} to {max(products.values()):+.2f} standard errors")
    assert len(products) == 20 + 15
    for few, value in products.items():
        assert abs(value) < 5, f"{few}: {value:.1f} standard errors"


# The tests can fail.


@each_law
def test_bins_hold_the_whole_probability(law):
    assert probabilities(law).sum().item() == pytest.approx(1, abs=1e-12)
    low, high = probabilities(law)[[0, -1]].tolist()
    if law.kind == "gaussian":
        normal = statistics.NormalDist(law.mu, law.sigma)
        assert (low, high) == pytest.approx((normal.cdf(law.low), 1 - normal.cdf(law.high)), abs=1e-12)
    else:
        assert (low, high) == ((1 - law.keep, law.keep) if law.kind == "bernoulli" else (0, 0))


@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.3)], ids=str)
def test_a_slightly_wrong_law_is_noticed(law, monkeypatch):
    """Off by one per cent in keep or in sigma."""
    wrong = cd.Bernoulli(keep=0.505) if law.kind == "bernoulli" else cd.Gaussian(sigma=0.303)
    real = mask
    monkeypatch.setitem(globals(), "mask", lambda law, seed: real(wrong, seed))
    report = examine.__wrapped__(law, 1)
    assert report.chi_square < FIVE_SIGMA
    assert report.distance > report.distance_limit


def test_a_seed_used_twice_is_noticed(monkeypatch):
    real = mask
    monkeypatch.setitem(globals(), "mask", lambda law, seed: real(law, seed // 2))
    report = examine.__wrapped__(cd.Uniform(), 2)
    assert abs(report.correlations["seed"]) > 5


def test_a_block_that_repeats_a_number_now_and_then_is_noticed(monkeypatch):
    """In one block of fifty number 5 is number 2."""
    real = blocks

    def repeated(seed: int) -> torch.Tensor:
        numbers = real(seed)
        numbers[5, ::50] = numbers[2, ::50]
        return numbers

    monkeypatch.setitem(globals(), "blocks", repeated)
    p_values, _ = examine_blocks.__wrapped__(1)
    assert {pair for pair, p in p_values.items() if p < FIVE_SIGMA} == {(2, 5)}


def test_three_numbers_of_which_only_two_are_independent_are_noticed(monkeypatch):
    """In one block of fifty number 5 is mirrored so that an even number of numbers 1, 4 and 5 are below one half."""
    real = blocks

    def tied(seed: int) -> torch.Tensor:
        numbers = real(seed)
        some = numbers[:, ::50]  # a view
        odd = ((some[[1, 4, 5]] < 0.5).sum(0) % 2).bool()
        some[5] = torch.where(odd, 1 - some[5], some[5])
        return numbers

    monkeypatch.setitem(globals(), "blocks", tied)
    p_values, products = examine_blocks.__wrapped__(1)
    assert min(p_values.values()) > FIVE_SIGMA
    assert {few for few, value in products.items() if abs(value) > 5} == {(1, 4, 5)}


# Masks read down the columns of a narrow tensor, where the numbers of one block of the generator follow each other.
#
# A reduced version of what a battery of tests does: ranks over the field of two elements of matrices of random bits. If
# some bits of a block were made of others, as in masks of version 2, such rows would not fill the space.

BITS = 21  # of every number, from the top
MATRICES = 40
# Of a large square matrix of random bits: that its rank is full, one less, two less, less still.
PROBABILITIES = (0.2888, 0.5776, 0.1284, 0.0052)


def down_the_columns(width: int, count: int, seed: int) -> list[int]:
    """The numbers behind a uniform mask of shape [count / width, width], column after column."""
    mask = kernels.ops.dropout(
        torch.ones(count // width, width), torch.tensor(seed), KernelLaw("uniform", (0.0, 1.0), 1.0), [], 0
    )
    return (mask.double().T.flatten() * 2**BITS).long().tolist()


def rank(rows) -> int:
    """Over the field of two elements; a row is the bits of an integer."""
    by_highest: dict[int, int] = {}
    for row in rows:
        while row and row.bit_length() in by_highest:
            row ^= by_highest[row.bit_length()]
        if row:
            by_highest[row.bit_length()] = row
    return len(by_highest)


def deficits(numbers: list[int], in_a_row: int) -> list[int]:
    """By how much the ranks of square matrices fall short, whose rows are numbers that follow each other."""
    rows = [
        sum(number << BITS * k for k, number in enumerate(numbers[i : i + in_a_row]))
        for i in range(0, len(numbers) - in_a_row + 1, in_a_row)
    ]
    size = BITS * in_a_row
    return [size - rank(rows[i : i + size]) for i in range(0, len(rows) - size + 1, size)]


def chi_square(found: list[int]) -> float:
    counts = [found.count(0), found.count(1), found.count(2), sum(deficit > 2 for deficit in found)]
    return sum((n - p * len(found)) ** 2 / (p * len(found)) for n, p in zip(counts, PROBABILITIES))


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("in_a_row", [6, 8])
def test_matrices_of_bits_down_the_columns_have_the_ranks_of_random_ones(width, in_a_row):
    count = MATRICES * BITS * in_a_row * in_a_row
    found = deficits(down_the_columns(width, -(-count // width) * width, seed=5), in_a_row)
    assert len(found) == MATRICES
    # Three degrees of freedom: 33.4 has a probability of 2.6e-7.
    assert chi_square(found) < 33.4, f"ranks fall short by {sorted(found)}"


def test_borrowed_bits_are_noticed():
    """Every sixth number takes five of its bits from two before it."""
    numbers = down_the_columns(16, MATRICES * BITS * 36 // 16 * 16 + 16, seed=5)
    for i in range(5, len(numbers), 6):
        numbers[i] = numbers[i] & ~0x1F | (numbers[i - 1] ^ numbers[i - 2]) & 0x1F
    assert min(deficits(numbers, 6)) >= 5
    assert chi_square(deficits(numbers, 6)) > 33.4


def test_probabilities_are_those_of_random_matrices():
    full = math.prod(1 - 2.0**-k for k in range(1, 60))
    assert pytest.approx(full, abs=1e-4) == PROBABILITIES[0]
    assert sum(PROBABILITIES) == pytest.approx(1)
