"""Statistical quality of the masks, as a user gets them: 10^8 of every law in the slow tests, 2 * 10^6 in the others.

Every statistic is held against its distribution under a perfect generator and refused at a probability below that of
five standard errors, two-sided: 5.7e-7. The seeds are fixed, so a test does not fail by chance on one day and pass on
another. ``pytest -m slow -s tests/kernels/test_quality.py`` prints the numbers. ``test_reference.py`` proves that the
numbers of one block of the generator are independent, and ``tools/randomness`` runs test batteries on the bits.
"""

import dataclasses
import functools
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
from oracles import FIVE_SIGMA

WIDTH = 4096
ROWS = 512
CHUNK = ROWS * WIDTH  # 2 * 10^6 elements are drawn at a time, 8 MB
# Numbers of bins that are no powers of two, so that most edges depend on all bits of a number and not on the first few.
FINE, COARSE = 16_000, 125
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
    return kernels.ops.dropout(ones(), torch.tensor(seed), law.for_kernels["paper"], [], 0)


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
