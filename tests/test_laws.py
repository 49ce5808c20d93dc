"""The laws as distributions: moments against quadrature, distribution functions against scipy, draws against both."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from conformance import seeded
from contdrop import laws
from contdrop.laws import Bernoulli, BuiltIn, Gaussian, Law, Uniform
from oracles import FIVE_SIGMA, UNIT_ROUNDOFF, moments

INF = math.inf
DRAWS = 100_000

REPRESENTATIVE_LAWS = [
    Bernoulli(keep=0.5),
    Bernoulli(keep=0.3),
    Bernoulli(keep=0.77, value=0.65),
    Bernoulli(keep=0.3, value=-1.5),
    Uniform(),
    Uniform(-1.0, 2.5),
    Gaussian(),
    Gaussian(sigma=0.5),
    Gaussian(mu=0.3, sigma=1.0, low=-0.2, high=0.9),
    Gaussian(mu=1.0, sigma=0.5, low=-INF, high=INF),
    Gaussian(mu=0.2, sigma=0.5, low=0.0, high=INF),
    Gaussian(mu=0.2, sigma=0.5, low=-INF, high=1.0),
]
each_law = pytest.mark.parametrize("law", REPRESENTATIVE_LAWS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)


def log_floats(smallest: float, largest: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(smallest), math.log10(largest)).map(lambda exponent: 10.0**exponent)


@st.composite
def intervals(draw, infinite: bool = True):
    low = draw(st.floats(-3, 2))
    high = low + draw(log_floats(1e-2, 10))
    if infinite:
        low = draw(st.sampled_from([low, low, -INF]))
        high = draw(st.sampled_from([high, high, INF]))
    return low, high


@st.composite
def gaussians(draw, sigmas: st.SearchStrategy[float] = log_floats(1e-3, 1e3), infinite: bool = True):
    return Gaussian(
        mu=draw(st.floats(-2, 3)), sigma=draw(sigmas), **dict(zip(("low", "high"), draw(intervals(infinite))))
    )


values = st.just(1.0) | log_floats(1e-2, 1e2) | log_floats(1e-2, 1e2).map(lambda value: -value)
bernoullis = st.builds(lambda keep, value: Bernoulli(keep=keep, value=value), st.floats(0, 1), values)
uniforms = intervals(infinite=False).map(lambda interval: Uniform(*interval))
any_law = st.one_of(bernoullis, uniforms, gaussians(st.just(0.0) | log_floats(1e-3, 1e3)))


def ends(law: Law) -> tuple[float, float]:
    """The smallest and the largest mask value."""
    return tuple(sorted((0.0, law.value))) if law.kind == "bernoulli" else law.params[-2:]


# Moments.


def assert_moments_are_exact(law: Law) -> None:
    """Compares with quadrature; the law's own share of the tolerance is 16 roundings of its largest terms.

    A formula of the mean has about a dozen operations on numbers no larger than the bounds and mu. An infinite bound
    counts as one sigma beyond mu or the other bound, whichever is farther.
    """
    oracle = moments(law.kind, law.params, law.factor)
    if law.kind == "gaussian":
        mu, sigma, low, high = law.params
        if low == -INF:
            low = min(mu, high if high < INF else mu) - sigma
        if high == INF:
            high = max(mu, low) + sigma
    else:
        mu, low, high = law.mean, *ends(law)
    size, width = abs(mu) + abs(low) + abs(high), high - low
    rounding = 16 * UNIT_ROUNDOFF[torch.float64]
    assert abs(law.mean - oracle.mean) <= rounding * size + oracle.mean_error
    assert abs(law.variance - oracle.variance) <= rounding * width * (width + size) + oracle.variance_error


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (-1, 1), (0.2, 0.3), (-INF, INF), (0, INF), (-INF, 1)],
    ids=lambda bound: f"{bound:g}",
)
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.2, 0.3, 0.5, 1, 2, 10, 100])
def test_clipped_gaussian_moments_match_quadrature(sigma, low, high):
    for mu in (-1.0, 0.0, 0.3, 0.5, 0.9, 2.0):
        assert_moments_are_exact(Gaussian(mu=mu, sigma=sigma, low=low, high=high))


@settings(max_examples=300)
@given(any_law)
@example(Gaussian(mu=0.3, sigma=1e3))
def test_moments_match_quadrature_for_any_parameters(law):
    if law.kind != "gaussian" or law.sigma:  # the oracle has no constants
        assert_moments_are_exact(law)
    low, high = ends(law)
    assert low <= law.mean <= high
    assert law.variance >= 0


@pytest.mark.parametrize(
    ("law", "relative_variance", "tolerance"),
    [
        *[(Gaussian(sigma=sigma), r, 5e-4) for sigma, r in ((0.2, 0.156), (0.25, 0.230), (0.3, 0.302), (0.4, 0.424))],
        (Gaussian(sigma=0.5), 0.516, 5e-4),
        (Bernoulli(keep=0.5), 1, 0),
        (Uniform(), 1 / 3, 4 * 2.0**-53),
        (Bernoulli(keep=1e-200), 1e200, 8 * 2.0**-53 * 1e200),
        (Bernoulli(keep=0), INF, 0),
        (Uniform(-1, 1), INF, 0),
    ],
    ids=str,
)
def test_relative_variance(law, relative_variance, tolerance):
    assert law.relative_variance == pytest.approx(relative_variance, abs=tolerance, rel=0)


@given(st.floats(0, 1e15))
def test_mean_is_exactly_one_half_for_any_sigma(sigma):
    assert Gaussian(mu=0.5, sigma=sigma).mean == 0.5


@pytest.mark.parametrize(("mu", "value"), [(0.5, 0.5), (0.0, 0.0), (-1.0, 0.0), (1.5, 1.0)])
def test_sigma_zero_is_constant(mu, value):
    law = Gaussian(mu=mu, sigma=0)
    assert (law.mean, law.variance) == (value, 0)
    assert law.sample((1000,)).unique().tolist() == [value]
    assert law.quantile(torch.tensor([0.0, 0.5, 1.0])).tolist() == [value] * 3
    assert law.cdf(value) == 1
    assert law.cdf(math.nextafter(value, -INF)) == 0


@pytest.mark.parametrize("sigma", [1e6, 1e12])
@pytest.mark.parametrize("mu", [0.5, 0.3, -2.0, 3.0])
def test_huge_sigma_has_the_moments_of_a_fair_coin(mu, sigma):
    law = Gaussian(mu=mu, sigma=sigma)
    # The density is at most 1 / (sigma sqrt(2 pi)), so either atom is this close to one half.
    distance = (abs(mu) + 1) / (sigma * math.sqrt(2 * math.pi))
    assert law.mean == pytest.approx(0.5, abs=distance + 4 * 2.0**-53, rel=0)
    assert law.variance == pytest.approx(0.25, abs=distance + 4 * 2.0**-53, rel=0)


@pytest.mark.parametrize("sigma", [1e-320, 1e-200, 1e-150])
def test_tiny_sigma_has_the_moments_of_a_constant(sigma):
    inside, below = Gaussian(mu=0.5, sigma=sigma), Gaussian(mu=0, sigma=sigma, low=1, high=INF)
    assert (inside.mean, inside.variance) == (0.5, pytest.approx(0, abs=1e-299))
    assert (below.mean, below.variance) == (1, 0)


@given(st.floats(-1e3, 1e3), log_floats(1e-6, 1e6))
def test_unclipped_gaussian_has_the_moments_of_its_parameters(mu, sigma):
    law = Gaussian(mu=mu, sigma=sigma, low=-INF, high=INF)
    assert law.mean == mu
    assert law.variance == pytest.approx(sigma**2, rel=4 * 2.0**-53, abs=0)


def test_half_infinite_bounds_give_the_rectified_gaussian():
    # max(z, 0) for z ~ N(0, 1) has mean 1 / sqrt(2 pi) and second moment 1/2.
    mean = 1 / math.sqrt(2 * math.pi)
    variance = 0.5 - mean**2
    above, below = Gaussian(mu=0, sigma=1, low=0, high=INF), Gaussian(mu=0, sigma=1, low=-INF, high=0)
    rounding = 8 * 2.0**-53
    assert (above.mean, above.variance) == pytest.approx((mean, variance), rel=rounding)
    assert (below.mean, below.variance) == pytest.approx((-mean, variance), rel=rounding)


@given(log_floats(1e-6, 1e6))
def test_from_variance_takes_the_square_root(variance):
    law = Gaussian.from_variance(variance, mu=0.4, low=-1, high=2)
    assert law.sigma**2 == pytest.approx(variance, rel=4 * 2.0**-53)
    assert (law.mu, law.low, law.high) == (0.4, -1, 2)
    assert law == Gaussian(mu=0.4, sigma=math.sqrt(variance), low=-1, high=2)


# Distribution and quantile functions.


def scipy_cdf(law: Law, x: np.ndarray) -> np.ndarray:
    if law.kind == "bernoulli":
        return sum(p * (value <= x) for value, p in ((0.0, 1 - law.keep), (law.value, law.keep)))
    if law.kind == "uniform":
        low, high = law.params
        return stats.uniform(low, high - low).cdf(x)
    mu, sigma, low, high = law.params
    return np.select([x < low, x >= high], [0.0, 1.0], stats.norm(mu, sigma).cdf(x))


def scipy_quantile(law: Law, u: np.ndarray) -> np.ndarray:
    if law.kind == "bernoulli":
        # The quantile function of a negative multiple runs backwards.
        kept = stats.bernoulli(law.keep)
        return law.value * (kept.ppf(u) if law.value > 0 else kept.isf(u))
    if law.kind == "uniform":
        low, high = law.params
        return stats.uniform(low, high - low).ppf(u)
    mu, sigma, low, high = law.params
    return stats.norm(mu, sigma).ppf(u).clip(low, high)


def probability_rounding(law: Law, x: float, dtype: torch.dtype = torch.float64) -> float:
    """Rounding error of cdf near x, and of quantile near cdf(x), in terms of probability.

    Up to eight roundings of numbers of the size of x and the parameters; a step of one sigma (or of high - low) in x is
    worth at most one in probability. Bernoulli laws only compare.
    """
    if law.kind == "bernoulli" or (law.kind == "gaussian" and law.sigma == 0):
        return 0.0
    scale = law.sigma if law.kind == "gaussian" else law.high - law.low
    size = abs(law.mu) if law.kind == "gaussian" else abs(law.low) + abs(law.high)
    return 8 * UNIT_ROUNDOFF[dtype] * (1 + (size + abs(x)) / scale)


@each_law
def test_cdf_matches_scipy(law):
    x = np.concatenate([np.linspace(-2, 3, 501), [np.nextafter(0, -1), np.nextafter(1, 0), 1e9, -1e9]])
    bound = np.array([probability_rounding(law, value) for value in x])
    for found in (law.cdf(torch.from_numpy(x)).numpy(), np.array([law.cdf(value) for value in x.tolist()])):
        assert (np.abs(found - scipy_cdf(law, x)) <= bound).all()


@each_law
def test_quantile_matches_scipy(law):
    u = np.linspace(0, 1, 1002)[1:-1]
    # No multiple of 1 / 1001 is 1 - keep, where scipy's own rounding would decide. The normal quantile is at most 3.1
    # here and good to 7.2e-16 by the documentation of Cephes, in torch and in scipy; ten roundings of 1 come on top.
    bound = 2 * 3.1 * 7.2e-16 + 10 * 2.0**-53
    for found in (law.quantile(torch.from_numpy(u)).numpy(), np.array([law.quantile(value) for value in u.tolist()])):
        assert np.abs(found - scipy_quantile(law, u)).max() <= bound


@each_law
def test_quantile_of_zero_and_one_are_the_ends_of_the_support(law):
    low, high = ends(law)
    assert (law.quantile(0.0), law.quantile(1.0)) == (low, high)
    assert law.quantile(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [low, high]
    assert (law.cdf(-INF), law.cdf(INF)) == (0, 1)
    assert law.cdf(torch.tensor([-INF, INF])).tolist() == [0, 1]


class Square(Law):
    """A law of the user's own, whose distribution function is found by halving."""

    mean, variance = 1 / 3, 4 / 45

    def quantile(self, u):
        return u.square()


@pytest.mark.parametrize("law", [*REPRESENTATIVE_LAWS, Square()], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16], ids=str)
def test_whole_numbers_are_asked_about_as_numbers(law, dtype):
    whole = torch.tensor([0, 1]).to(dtype)
    for function in (law.cdf, law.quantile) if isinstance(law, BuiltIn) else (law.cdf,):
        assert function(whole).dtype == torch.get_default_dtype()
        assert torch.equal(function(whole), function(whole.float()))


def test_quantile_of_a_coin_at_the_jump():
    law, jump = Bernoulli(keep=0.75), 0.25
    after = math.nextafter(jump, 1)
    assert (law.quantile(jump), law.quantile(after)) == (0, 1)
    assert law.quantile(torch.tensor([jump, after], dtype=torch.float64)).tolist() == [0, 1]


@st.composite
def laws_with_points(draw):
    """A law, a point x and a probability u > 0, often at an atom, at its probability or at each other's image."""
    law = draw(any_law)
    finite = [end for end in ends(law) if math.isfinite(end)]
    u = draw(st.floats(0, 1, exclude_min=True) | st.sampled_from(finite).map(law.cdf) if finite else st.floats(0.01, 1))
    assume(u > 0)
    image = law.quantile(u)
    x = draw(st.floats(-4, 4) | st.sampled_from([*finite, image] if math.isfinite(image) else finite or [0.0]))
    return law, x, u


@settings(max_examples=200)
@given(laws_with_points(), st.sampled_from(list(UNIT_ROUNDOFF)))
def test_cdf_and_quantile_are_generalised_inverses(case, dtype):
    law, x, u = case
    x, u = torch.tensor([[x]], dtype=dtype), torch.tensor([[u]], dtype=dtype)
    assume(u > 0)
    below, probability = law.quantile(u), law.cdf(x)
    assert below.dtype == probability.dtype == dtype
    assert below.shape == probability.shape == (1, 1)
    rounding = probability_rounding(law, x.item(), dtype)
    if below <= x:
        assert u.item() <= probability.item() + rounding
    else:
        assert u.item() > probability.item() - rounding


# Samples.


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each_law
def test_sample_has_the_moments_of_the_law(law):
    oracle = moments(law.kind, law.params, law.factor)
    draws = law.sample((DRAWS,), generator=generator(1), dtype=torch.float64)
    mean_error = math.sqrt(oracle.variance / DRAWS)
    variance_error = math.sqrt((oracle.fourth - oracle.variance**2) / DRAWS)
    assert abs(draws.mean().item() - oracle.mean) <= 5 * mean_error
    # The sample variance is low by variance / DRAWS on average, and its standard error is 0 for a fair coin.
    assert abs(draws.var().item() - oracle.variance) <= 5 * variance_error + 25 * oracle.variance / DRAWS


@each_law
def test_sample_has_the_distribution_of_the_law(law):
    draws = np.sort(law.sample((DRAWS,), generator=generator(2), dtype=torch.float64).numpy())
    points = np.unique(draws)
    empirical = np.searchsorted(draws, points, side="right") / DRAWS
    # The Dvoretzky-Kiefer-Wolfowitz inequality, which allows atoms.
    distance = math.sqrt(math.log(2 / FIVE_SIGMA) / (2 * DRAWS))
    assert np.abs(empirical - scipy_cdf(law, points)).max() <= distance


def test_sample_of_a_certain_coin_is_constant():
    assert [Bernoulli(keep=keep).sample((1000,)).unique().tolist() for keep in (0.0, 1.0)] == [[0.0], [1.0]]


@each_law
def test_sample_depends_on_the_seed_alone(law):
    before = torch.get_rng_state()
    first, again, other = (law.sample((3, 50), generator=generator(seed)) for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(seeded(law.sample, (3, 50)), seeded(law.sample, (3, 50)))
    assert not torch.equal(law.sample((3, 50)), law.sample((3, 50)))


@each_law
@each_dtype
def test_sample_is_drawn_in_float64_and_rounded_once(law, dtype):
    draws = law.sample((2, 0, 3), dtype=dtype)
    assert (draws.dtype, draws.shape) == (dtype, (2, 0, 3))
    draws = law.sample((1000,), generator=generator(8), dtype=dtype)
    assert torch.equal(draws, law.sample((1000,), generator=generator(8), dtype=torch.float64).to(dtype))


@each_law
def test_a_device_without_float64_draws_in_float32(law, monkeypatch):
    monkeypatch.setattr(laws, "widest", lambda device: torch.float32)
    options = {"generator": generator(8), "dtype": torch.float32, "device": torch.device("cpu")}
    assert torch.equal(law.sample((3,), generator=generator(8)), law._draw((3,), options))
    draws = law.sample((20_000,), generator=generator(8))
    assert draws.isfinite().all()
    assert abs(draws.mean().item() - law.mean) <= 5 * math.sqrt(law.variance / 20_000) + 1e-6


def test_sample_defaults_to_the_default_dtype():
    try:
        torch.set_default_dtype(torch.float64)
        assert Uniform().sample(()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert Uniform().sample(()).dtype == torch.float32


@pytest.mark.parametrize("law", [Bernoulli(), Uniform(), Gaussian()], ids=str)
def test_sample_lives_on_the_requested_device(law):
    assert law.sample((2,), generator=generator(10)).device.type == "cpu"
    assert law.sample((2,), device="cpu").device.type == "cpu"
    assert law.sample((2,), device=torch.device("meta")).device.type == "meta"
    with torch.device("meta"):
        assert law.sample((2,)).device.type == "meta"
        assert law.sample((2,), generator=generator(10)).device.type == "cpu"


# Laws of the same noise strength and the same mean, in another shape.

means = st.floats(-3, 3).filter(lambda mean: abs(mean) > 1e-3)


class Moments(Law):
    """A law of which only two moments are known, for what needs no more."""

    def __init__(self, mean: float, relative_variance: float) -> None:
        self.mean, self.variance = mean, relative_variance * mean * mean

    def quantile(self, u):
        raise AssertionError("matching looks at moments only")


def laws_up_to(largest: float) -> st.SearchStrategy[Law]:
    """Laws of every family, and laws of the user's own, with a relative variance up to some number."""
    families = st.one_of(
        st.builds(Moments, means, st.floats(-12, math.log10(largest)).map(lambda exponent: 10.0**exponent)),
        st.builds(lambda keep, value: Bernoulli(keep=keep, value=value), st.floats(1e-6, 1), means),
        st.builds(lambda low, width: Uniform(low, low + width), st.floats(-2, 2), st.floats(0.01, 3)),
        st.builds(
            lambda sigma, mu, low, width: Gaussian(sigma=sigma, mu=mu, low=low, high=low + width),
            *(st.floats(0, 10), st.floats(-1, 2), st.floats(-2, 1), st.floats(0.1, 3) | st.just(INF)),
        ),
    )
    return families.filter(lambda law: abs(law.mean) > 1e-3 and 1e-20 < law.relative_variance <= largest)


def assert_same_moments(match: Law, law: Law) -> None:
    """Equal to 1e-9, but for the rounding of keep, or of bounds that lie close together."""
    r = law.relative_variance
    assert match.mean == pytest.approx(law.mean, rel=1e-9, abs=0)
    assert match.relative_variance == pytest.approx(r, rel=1e-9, abs=8 * 2.0**-53 * (1 + r))


@given(laws_up_to(1e6))
@example(Uniform())
@example(Gaussian(sigma=0.3))
@example(Uniform(-2, 0))
def test_bernoulli_matches_every_law(law):
    match = Bernoulli.matching(law)
    assert_same_moments(match, law)
    assert match.keep == pytest.approx(1 / (1 + law.relative_variance), rel=4 * 2.0**-53)
    assert match.value * match.keep == pytest.approx(law.mean, rel=4 * 2.0**-53)


@given(laws_up_to(1 / 3))
@example(Uniform())
@example(Uniform(-2, 0))
@example(Bernoulli(keep=0.75))
def test_uniform_matches_up_to_one_third(law):
    match = Uniform.matching(law)
    # The bounds are rounded in units of the mean, so their distance by that over itself.
    r = law.relative_variance
    assert match.mean == pytest.approx(law.mean, rel=1e-9, abs=0)
    assert match.relative_variance == pytest.approx(r, rel=1e-9 + 8 * 2.0**-53 / math.sqrt(r))
    assert match.low * match.high >= 0  # zero is not crossed


@given(laws_up_to(0.999))
@example(Bernoulli(keep=1 / 1.999))
@example(Bernoulli(keep=1 / 1.999, value=-3))
@example(Uniform())
@example(Moments(0.5, 1e-12))
@example(Moments(0.5, 0.999))
def test_clipped_gaussian_matches_as_long_as_it_is_no_bernoulli_law(law):
    match = Gaussian.matching(law)
    assert match.sigma < 533 * abs(law.mean)
    assert_same_moments(match, law)
    assert match.mu == law.mean
    assert sorted((0.0, 2 * law.mean)) == [match.low, match.high]


@given(laws_up_to(1e6))
def test_unclipped_gaussian_matches_every_law(law):
    match = Gaussian.matching(law, clip=False)
    assert_same_moments(match, law)
    assert (match.low, match.high) == (-INF, INF)


@given(st.floats(0.01, 20))
def test_the_clipped_gaussian_matches_itself(sigma):
    law = Gaussian(sigma=sigma)
    match = Gaussian.matching(law)
    # The variance is flat where sigma is large: a rounding of it is worth so much in sigma.
    slope = (Gaussian(sigma=sigma * 1.001).variance - law.variance) / (0.001 * sigma)
    assert match.sigma == pytest.approx(sigma, abs=16 * 2.0**-53 * (sigma + law.variance / slope))


def test_without_noise_there_is_none():
    constant = Gaussian(sigma=0, mu=0.7)
    assert Gaussian.matching(constant) == Gaussian(sigma=0, mu=0.7, high=1.4)
    assert Bernoulli.matching(constant) == Bernoulli(keep=1, value=0.7)
