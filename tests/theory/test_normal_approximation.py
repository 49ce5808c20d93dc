"""The distance of a sum from a normal variable, against closed forms, enumeration and Monte Carlo."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from scipy import stats
from scipy.special import ndtr
from test_static import float64

import contdrop as cd
from conformance import INFINITY, LAWS, fixed
from contdrop.theory import normal_approximation, sigmoid_expectations, static
from oracles import FIVE_SIGMA, integrate, normal_density, normal_expectation

# How normal S is.


@pytest.mark.parametrize(
    "law", [*LAWS, cd.Gaussian(mu=2.0, sigma=0.2), cd.Gaussian(sigma=0.4, low=0.1, high=INFINITY)], ids=str
)
def test_third_absolute_moment(law):
    if isinstance(law, cd.Bernoulli):
        oracle = sum(p * abs(v - law.mean) ** 3 for v, p in ((0, 1 - law.keep), (law.value, law.keep)))
    elif isinstance(law, cd.Uniform):
        density = 1 / (law.high - law.low)
        oracle = integrate(lambda v: abs(v - law.mean) ** 3 * density, [law.low, law.mean, law.high])[0]
    else:
        # The clipped variable is a function of the normal one, so no atoms are needed.
        bounds = [bound for bound in (law.low, law.high, law.mean) if math.isfinite(bound)]
        clip = lambda v: min(max(v, law.low), law.high)  # noqa: E731
        oracle = normal_expectation(lambda v: abs(clip(v) - law.mean) ** 3, law.mu, law.sigma**2, bounds)
    assert static.third_absolute_moment(law) == pytest.approx(oracle, rel=1e-10)


def test_distance_of_bernoulli_sums_is_that_of_the_binomial():
    n, keep = 800, 0.3
    kept = torch.arange(n + 1).numpy()
    normal = ndtr((kept - n * keep) / math.sqrt(n * keep * (1 - keep)))
    binomial = stats.binom(n, keep)
    oracle = max(abs(binomial.cdf(kept) - normal).max(), abs(binomial.cdf(kept - 1) - normal).max())
    value, error = static.normal_distance(torch.ones(n), torch.full((n,), -0.7), cd.Bernoulli(keep=keep))
    assert value == pytest.approx(oracle, abs=1e-11)
    assert error <= 1e-11


def test_distance_of_uniform_sums_is_that_of_irwin_and_hall():
    n = 4

    def distribution(x: Fraction) -> float:
        terms = ((-1) ** k * math.comb(n, k) * (x - k) ** n for k in range(math.floor(x) + 1))
        return float(sum(terms) / math.factorial(n))

    points = [Fraction(k, 2000) for k in range(n * 2000)]
    oracle = max(abs(distribution(x) - ndtr((float(x) - n / 2) / math.sqrt(n / 12))) for x in points)
    value, error = static.normal_distance(torch.ones(n), torch.ones(n), cd.Uniform())
    assert value == pytest.approx(oracle, abs=1e-6)
    assert error < 1e-6


@pytest.mark.parametrize(
    ("law", "n"),
    [
        (cd.Gaussian(sigma=0.5), 2),
        (cd.Gaussian(mu=0.8, sigma=0.3), 5),
        (cd.Uniform(), 2),
        (cd.Bernoulli(keep=0.9), 25),
        (cd.Bernoulli(keep=0.9, value=-0.4), 12),
    ],
    ids=str,
)
def test_distance_is_what_is_sampled(law, n):
    count = 100_000
    weight, x = fixed(n, seed=4), fixed(n, seed=5)
    masks = law.sample((count, n), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = static.linear_moments(weight.unsqueeze(0), x, law)
    s = ((masks @ (weight * x) - mean) / covariance.sqrt()).flatten().numpy()
    sampled = stats.kstest(s, ndtr).statistic
    # Dvoretzky, Kiefer and Wolfowitz: the empirical distribution function is that close but for one case in 2 million.
    noise = math.sqrt(math.log(2 / FIVE_SIGMA) / (2 * count))
    value, error = static.normal_distance(weight, x, law)
    assert abs(value - sampled) <= noise + error
    assert error < 0.03


def test_inversion_agrees_with_listing_all_values():
    law = cd.Bernoulli(keep=0.4)
    for n in (6, 18):
        terms = fixed(n, seed=6).abs().sort().values
        terms = terms / (law.variance * terms.square().sum()).sqrt()
        listed = static.normal_distance(terms, torch.ones(n), law).value
        inverted = normal_approximation._distance_by_inversion(terms, torch.ones(n, dtype=torch.int64), law)
        assert abs(inverted.value - listed) <= inverted.error
        assert inverted.error < 2e-3


def lattice_distance(terms, tenths):
    """The distance for whole t_j and masks that keep ``tenths`` / 10, by counting in whole numbers.

    The probability of a sum s, times 10^n, is the coefficient of X^s in the product of (10 - tenths) + tenths X^t_j:
    polynomials are multiplied as one large integer, X being a power of two above all coefficients.
    """
    bits = 4 * len(terms)
    polynomial, lowest = 1, sum(min(t, 0) for t in terms)
    for t in terms:
        kept, dropped = (tenths, 10 - tenths) if t > 0 else (10 - tenths, tenths)
        polynomial = dropped * polynomial + ((kept * polynomial) << (bits * abs(t)))
    mean, variance = sum(terms) * tenths / 10, sum(t * t for t in terms) * tenths * (10 - tenths) / 100
    digits = bin(polynomial)[2:].zfill(bits * (sum(map(abs, terms)) + 1))
    coefficients = [int(digits[i : i + bits], 2) / 10 ** len(terms) for i in range(0, len(digits), bits)][::-1]
    levels = list(itertools.accumulate(coefficients, initial=0.0))
    normal = [ndtr((lowest + s - mean) / math.sqrt(variance)) for s in range(len(coefficients))]
    return max(max(abs(a - n), abs(b - n)) for a, b, n in zip(levels, levels[1:], normal))


def pixels(count=45):
    """Grey values with random signs, as of an image times weights of -1 and 1."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(1, 256, (count,), generator=generator)
    return (values * (2 * torch.randint(0, 2, (count,), generator=generator) - 1)).tolist()


@pytest.mark.parametrize("tenths", [5, 3])
@pytest.mark.parametrize("terms", [list(range(1, 41)), [*range(1, 31), *range(-10, 0)], pixels()], ids=["1", "2", "3"])
def test_distance_on_a_lattice(terms, tenths):
    """psi of a sum that lies on a lattice comes back to 1, long after it was negligible."""
    oracle, law = lattice_distance(terms, tenths), cd.Bernoulli(keep=tenths / 10, value=-0.8)
    weight = -float64(*terms) / 255
    value, error = static.normal_distance(weight, torch.ones(len(terms)), law)
    assert abs(value - oracle) <= error <= 1e-9
    # Without seeing the lattice, as where it is too fine to be listed.
    weight, counts = torch.unique(weight / (law.variance * weight.square().sum()).sqrt(), return_counts=True)
    value, error = normal_approximation._distance_by_inversion(weight, counts, law)
    assert abs(value - oracle) <= error <= 2e-4
    # Rounded to float32, S lies beside the lattice.
    value, error = static.normal_distance(-float64(*terms).float() / 255, torch.ones(len(terms)), law)
    assert abs(value - oracle) <= error <= 1e-5


def test_a_lattice_that_is_too_fine_is_inverted():
    terms = float64(*[1000 * k + k % 7 for k in range(1, 60)])
    law = cd.Bernoulli(keep=0.5)
    value, error = static.normal_distance(terms, torch.ones(len(terms)), law)
    near = lattice_distance(list(range(1, 60)), 5)
    # S lies within 59 * 6 / 1000 of the sum of 1, 2, ... 59, and its mean and deviation change by no more than that.
    slip = 59 * 6 / 1000 / math.sqrt(0.25 * sum(k * k for k in range(1, 60))) * normal_density(0.0)
    assert abs(value - near) <= 3 * slip + error
    assert error <= 1e-4


@pytest.mark.parametrize(
    "law",
    [cd.Uniform(), cd.Gaussian(sigma=0.3), cd.Gaussian(sigma=2.0), cd.Gaussian(sigma=0.4, low=0.1, high=INFINITY)],
)
def test_a_transform_stays_below_its_ceiling(law):
    ceiling, one = sigmoid_expectations.Ceiling(law), torch.ones(1, dtype=torch.float64)
    v = torch.linspace(0, 100 / math.sqrt(law.variance), 7001, dtype=torch.float64)
    sizes = sigmoid_expectations.characteristic(one, one.long(), law, v).abs()
    largest_from = sizes.flip(0).cummax(0).values.flip(0)
    bounds = [ceiling.product(u, one.long()) for u in v[:, None]]
    assert (torch.tensor(bounds) >= largest_from - 1e-12).all()
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[300] < largest_from[300].item() + 0.02
    assert sigmoid_expectations.Ceiling(cd.Bernoulli(keep=0.3)).product(v[:, None][5000], one.long()) == 1


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_bound_holds_and_both_fall(law):
    distances, bounds = [], []
    for n in (10, 100, 800):
        weight, x = fixed(n, seed=7), fixed(n, seed=8)
        distances.append(static.normal_distance(weight, x, law).value)
        bounds.append(static.berry_esseen(weight, x, law).item())
        assert distances[-1] <= bounds[-1]
    assert bounds[0] > bounds[1] > bounds[2]
    if math.isfinite(getattr(law, "high", 1.0)):
        assert distances[0] > 2 * distances[1] > 3 * distances[2]
        assert distances[2] < 4e-3
    else:
        assert distances == [0, 0, 0]


def test_bound_of_equal_terms_is_lyapunovs_ratio():
    law = cd.Bernoulli(keep=0.5)  # E|m - 1/2|^3 = Var(m)^(3/2)
    weight = float64(1.0, 1e-200).unsqueeze(-1) * torch.ones(400)
    assert static.berry_esseen(weight, torch.ones(400), law).tolist() == pytest.approx([0.56 / 20] * 2, rel=1e-12)


def test_bounded_terms_need_not_tend_to_a_normal_variable():
    # With w_j x_j = 2^-j and Bernoulli(1/2) masks S tends to a uniform variable: it stays this far from normal.
    uniform = max(abs(u - ndtr((u - 0.5) * math.sqrt(12))) for u in torch.linspace(0, 1, 10_001).tolist())
    for n in (16, 100):
        weight = 0.5 ** torch.arange(n, dtype=torch.float64)
        value, error = static.normal_distance(weight, torch.ones(n), cd.Bernoulli(keep=0.5))
        assert abs(value - uniform) < 1e-4 + error
        assert static.berry_esseen(weight, torch.ones(n), cd.Bernoulli(keep=0.5)).item() > uniform
