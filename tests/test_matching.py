"""Laws of the same noise strength and the same mean, in another shape."""

import math

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from contdrop.laws import Bernoulli, Gaussian, Law, Uniform

INF = math.inf
ROUNDING = 2.0**-53

relaxed = settings(deadline=None)
means = st.floats(-3, 3).filter(lambda mean: abs(mean) > 1e-3)


class Moments(Law):
    """A law of which only two moments are known, for what needs no more."""

    def __init__(self, mean: float, relative_variance: float) -> None:
        self.mean, self.variance = mean, relative_variance * mean * mean

    def quantile(self, u):
        raise AssertionError("matching looks at moments only")


def laws(largest: float) -> st.SearchStrategy[Law]:
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
    assert match.relative_variance == pytest.approx(r, rel=1e-9, abs=8 * ROUNDING * (1 + r))


@relaxed
@given(laws(1e6))
@example(Uniform())
@example(Gaussian(sigma=0.3))
@example(Uniform(-2, 0))
def test_bernoulli_matches_every_law(law):
    match = Bernoulli.matching(law)
    assert_same_moments(match, law)
    assert match.keep == pytest.approx(1 / (1 + law.relative_variance), rel=4 * ROUNDING)
    assert match.value * match.keep == pytest.approx(law.mean, rel=4 * ROUNDING)


@relaxed
@given(laws(1 / 3))
@example(Uniform())
@example(Uniform(-2, 0))
@example(Bernoulli(keep=0.75))
def test_uniform_matches_up_to_one_third(law):
    match = Uniform.matching(law)
    # The bounds are rounded in units of the mean, so their distance by that over itself.
    r = law.relative_variance
    assert match.mean == pytest.approx(law.mean, rel=1e-9, abs=0)
    assert match.relative_variance == pytest.approx(r, rel=1e-9 + 8 * ROUNDING / math.sqrt(r))
    assert match.low * match.high >= 0  # zero is not crossed


@relaxed
@given(laws(0.999))
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


@relaxed
@given(laws(1e6))
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
    assert match.sigma == pytest.approx(sigma, abs=16 * ROUNDING * (sigma + law.variance / slope))


@pytest.mark.parametrize("law", [Uniform(), Gaussian(sigma=0.2), Uniform(0.2, 0.7), Bernoulli(keep=0.9)], ids=str)
def test_matching_against_moments_of_samples(law):
    """By draws, so that no formula for moments is trusted: five standard errors of both samples."""
    n = 200_000
    expected = law.sample((n,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for match in (Bernoulli.matching(law), Uniform.matching(law), Gaussian.matching(law)):
        drawn = match.sample((n,), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        error = (2 * law.variance / n) ** 0.5
        assert abs((drawn.mean() - expected.mean()).item()) < 5 * error
        squares = [(sample - law.mean).square() for sample in (drawn, expected)]
        error = sum(square.var().item() / n for square in squares) ** 0.5
        assert abs((squares[0].mean() - squares[1].mean()).item()) < 5 * error


def test_without_noise_there_is_none():
    constant = Gaussian(sigma=0, mu=0.7)
    assert Gaussian.matching(constant) == Gaussian(sigma=0, mu=0.7, high=1.4)
    assert Bernoulli.matching(constant) == Bernoulli(keep=1, value=0.7)


@given(means, st.floats(1e-3, 1.0))
def test_the_shape_is_scaled_with_the_mean(mean, r):
    assume(r < 0.99)
    one, scaled = Gaussian.matching(Moments(1.0, r)), Gaussian.matching(Moments(mean, r))
    assert scaled.sigma == pytest.approx(one.sigma * abs(mean), rel=1e-9)


@pytest.mark.parametrize(
    ("match", "error", "message"),
    [
        (
            lambda: Uniform.matching(Bernoulli(keep=0.5)),
            ValueError,
            r"^Uniform\.matching: expected a relative variance above 0 and at most 1/3, got 1 of Bernoulli\(keep=0\.5\)"
            r"; use Gaussian\.matching or Bernoulli\.matching for others$",
        ),
        (
            lambda: Uniform.matching(Gaussian(sigma=0)),
            ValueError,
            r"expected a relative variance above 0 and at most 1/3, got 0 of Gaussian\(sigma=0\.0\)",
        ),
        (
            lambda: Gaussian.matching(Bernoulli(keep=0.2)),
            ValueError,
            r"^Gaussian\.matching: expected a relative variance of at most 0\.999, got 4 of Bernoulli\(keep=0\.2\); "
            r"use Bernoulli\.matching\(law\) or Gaussian\.matching\(law, clip=False\)$",
        ),
        (
            lambda: Gaussian.matching(Bernoulli(keep=0.5)),
            ValueError,
            r"^Gaussian\.matching: expected a relative variance of at most 0\.999, got 1 of Bernoulli\(keep=0\.5\); ",
        ),
        (
            lambda: Gaussian.matching(Uniform(-1, 1)),
            ValueError,
            r"^Gaussian\.matching: expected a law whose mean is not 0, got Uniform\(low=-1\.0\); its relative variance",
        ),
        (
            lambda: Bernoulli.matching(Moments(1.0, INF)),
            TypeError,
            r"^Bernoulli\.matching: expected Moments to have a variance, a finite number, got inf; a law has",
        ),
        (
            lambda: Bernoulli.matching(Gaussian(sigma=1e200, low=-INF, high=INF)),
            ValueError,
            r"^Bernoulli\.matching: expected a law with a finite relative variance, got Gaussian\(sigma=1e\+200, low=",
        ),
        (
            lambda: Uniform.matching("gaussian"),
            TypeError,
            r"^Uniform\.matching: expected a law such as Gaussian\(sigma=0\.3\), got str; contdrop\.parse_law reads",
        ),
    ],
)
def test_what_is_out_of_reach_is_explained(match, error, message):
    with pytest.raises(error, match=message):
        match()
