"""The theory of a forward pass under dropout, against brute force, quadrature and Monte Carlo."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit, ndtr

import contdrop as cd
from conformance import INFINITY, LAWS, assert_moments, fixed
from contdrop.theory import _numerics, normal_approximation, sigmoid_expectations, static
from oracles import FIVE_SIGMA, integrate, normal_density, normal_expectation

PROBABILITIES = st.floats(0.1, 0.9)
ANY_LAW = st.one_of(
    st.builds(cd.Bernoulli, keep=PROBABILITIES, value=st.sampled_from([1.0, 0.65, -2.0])),
    st.builds(lambda low, width: cd.Uniform(low, low + width), st.floats(-1, 1), st.floats(0.1, 2)),
    st.builds(cd.Gaussian, mu=PROBABILITIES, sigma=st.floats(0.05, 1)),
    st.builds(cd.Gaussian, mu=PROBABILITIES, sigma=st.floats(0.05, 1), low=st.just(-INFINITY), high=st.just(INFINITY)),
)
DRAWS = 4000
# Sigmoids are smooth, but seen from a wide normal they are steps; the oracle integrates between these arguments.
STEPS = (-40.0, -12.0, -4.0, 0.0, 4.0, 12.0, 40.0)


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def all_masks(n: int, keep: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Every mask of n inputs and its probability."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=torch.float64)
    kept = masks.sum(1)
    return masks, keep**kept * (1 - keep) ** (n - kept)


# The linear layer.


@given(law=ANY_LAW, inputs=st.integers(1, 5), seed=st.integers(0, 2**31))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_linear_moments_agree_with_monte_carlo(law, inputs, seed):
    weight, x, bias = fixed(2, inputs, seed=seed), fixed(inputs, seed=seed + 1), fixed(2, seed=seed + 2)
    masks = law.sample((DRAWS, inputs), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_moments((masks * x) @ weight.T + bias, *static.linear_moments(weight, x, law, bias))


@pytest.mark.parametrize("n", [1, 5, 12])
@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_linear_moments_equal_the_sum_over_all_masks(n, keep):
    weight, x, bias = fixed(3, n, seed=1), fixed(n, seed=2), fixed(3, seed=3)
    masks, probability = all_masks(n, keep)
    s = (masks * x) @ weight.T + bias
    mean = probability @ s
    covariance = (s - mean).T @ (probability.unsqueeze(-1) * (s - mean))
    got_mean, got_covariance = static.linear_moments(weight, x, cd.Bernoulli(keep=keep), bias)
    torch.testing.assert_close(got_mean, mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got_covariance, covariance, rtol=1e-12, atol=1e-14)


def test_linear_moments_of_a_batch_are_those_of_its_rows():
    weight, x, law = fixed(3, 4, seed=1), fixed(2, 5, 4, seed=2), cd.Uniform()
    mean, covariance = static.linear_moments(weight, x, law)
    assert mean.shape == (2, 5, 3)
    assert covariance.shape == (2, 5, 3, 3)
    row_mean, row_covariance = static.linear_moments(weight, x[1, 2], law)
    torch.testing.assert_close(mean[1, 2], row_mean)
    torch.testing.assert_close(covariance[1, 2], row_covariance)


def test_clipping_is_taken_into_account():
    weight, x = fixed(2, 4, seed=1), fixed(4, seed=2)
    clipped = static.linear_moments(weight, x, cd.Gaussian(sigma=0.5))[1]
    unclipped = static.linear_moments(weight, x, cd.Gaussian(sigma=0.5, low=-INFINITY, high=INFINITY))[1]
    # 0.516 is the relative variance of the clipped law with sigma 0.5; unclipped it is 1.
    torch.testing.assert_close(clipped / unclipped, torch.full_like(clipped, 0.516), rtol=1e-3, atol=0)


def test_variance_and_covariance_are_one_knob():
    weight, x = fixed(6, 20, seed=1), fixed(3, 20, seed=2)
    rows = static.trade_off(LAWS, weight, x)
    assert [row.law for row in rows] == LAWS
    for row in rows[1:]:
        factor = row.law.variance / LAWS[0].variance
        assert row.variance == pytest.approx(factor * rows[0].variance, rel=1e-12)
        assert row.covariance == pytest.approx(factor * rows[0].covariance, rel=1e-12)
        assert row.ratio == pytest.approx(rows[0].ratio, rel=1e-12)
        assert row.correlation == pytest.approx(rows[0].correlation, rel=1e-12)
    assert 0 < rows[0].ratio < 1


def test_trade_off_is_what_is_sampled():
    weight, x, law = fixed(4, 20, seed=1), fixed(20, seed=2), cd.Gaussian(sigma=0.3)
    (row,) = static.trade_off([law], weight, x)
    masks = law.sample((200_000, 20), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = ((masks * x) @ weight.T).T.cov()
    apart = ~torch.eye(4, dtype=torch.bool)
    # Every entry is good to sqrt(2 / draws) = 0.3 % of the variances, and so are the means of entries.
    assert row.variance == pytest.approx(covariance.diagonal().mean().item(), rel=5 * math.sqrt(2 / 200_000))
    error = 5 * math.sqrt(2 / 200_000) * covariance.diagonal().max().item()
    assert row.covariance == pytest.approx(covariance[apart].abs().mean().item(), abs=error)


def test_trade_off_of_a_law_without_noise():
    (row,) = static.trade_off([cd.Bernoulli(keep=1.0)], fixed(2, 3), fixed(3))
    assert row.variance == row.covariance == 0
    assert math.isnan(row.ratio)


# The sigmoid of a normal variable.

MEANS = (-300.0, -20.0, -3.0, -0.1, 0.0, 0.5, 1.553, 35.0, 1000.0)
VARIANCES = (0.0, 1e-12, 0.01, 0.4285, 0.9999, 1.0, 7.0, 100.0, 1e4, 1e8)


@pytest.mark.parametrize(("gain", "offset"), [(1.0, 1.0), (-2.5, 0.2)])
def test_sigmoid_quadrature_is_within_its_bound_whatever_the_variance(gain, offset):
    pairs = list(itertools.product(MEANS, VARIANCES))
    mean, variance = (float64(*column) for column in zip(*pairs))
    result = static.expected_sigmoid(mean, variance, gain=gain, offset=offset, method="quadrature").tolist()
    breaks = [(a + math.log(offset)) / gain for a in STEPS]
    for (m, v), value in zip(pairs, result):
        oracle = normal_expectation(lambda s: float(expit(gain * s - math.log(offset))), m, v, breaks)
        assert abs(value - oracle) < 1e-12, (m, v)  # 1e-13, and as much for the oracle


@pytest.mark.parametrize("derivative", [-1, 1])
def test_neighbours_of_the_sigmoid_by_quadrature(derivative):
    def g(a):
        return max(a, 0.0) + math.log1p(math.exp(-abs(a))) if derivative < 0 else float(expit(a) * expit(-a))

    pairs = list(itertools.product(MEANS, VARIANCES))
    mean, variance = (float64(*column) for column in zip(*pairs))
    for (m, v), value in zip(pairs, static.logistic_expectation(mean, variance, derivative).tolist()):
        oracle = normal_expectation(g, m, v, STEPS)
        assert abs(value - oracle) < 1e-12 * (1 + abs(oracle)), (m, v)


def test_the_root_is_right_and_the_papers_recursion_without_it_is_not():
    mean, variance = float64(1.553), float64(0.4285)
    # Integrated once by other means.
    assert static.expected_sigmoid(mean, variance, method="quadrature").item() == pytest.approx(0.8068, abs=5e-5)
    assert static.expected_sigmoid(mean, variance).item() == pytest.approx(0.8080, abs=5e-5)
    assert static.expected_sigmoid(mean, variance, method="paper").item() == pytest.approx(0.7908, abs=1e-4)
    assert static.expected_sigmoid(mean, variance, method="mean").item() == pytest.approx(expit(1.553), abs=1e-15)


def test_probit_error_over_the_plane():
    deviation = torch.logspace(-2, 5, 80, dtype=torch.float64)
    mean = torch.linspace(-4, 4, 401, dtype=torch.float64).unsqueeze(-1) * deviation
    worst = {
        m: static.sigmoid_error(mean, deviation**2, method=m).abs().max().item() for m in ("probit", "paper", "mean")
    }
    # The largest error is that of the logistic approximation of Phi, approached as the deviation grows.
    limit = max(abs(expit(math.sqrt(8 / math.pi) * z) - ndtr(z)) for z in torch.linspace(0, 4, 4001).tolist())
    assert worst["probit"] == pytest.approx(limit, rel=1e-4)
    assert 0.0176 < limit < 0.0177
    assert worst["paper"] > 0.49
    assert worst["mean"] > 0.49
    assert static.sigmoid_error(mean, 0 * deviation).abs().max().item() < 1e-15


def test_probit_error_is_antisymmetric_and_has_the_sign_of_approximation_minus_truth():
    error = static.sigmoid_error(float64(1.553, -1.553), float64(0.4285))
    assert error[0].item() == pytest.approx(0.0012, abs=1e-4)
    assert error.sum().abs().item() < 1e-15


# The ReLU of a normal variable.


def tail_moment(t: float, power: int) -> float:
    """E[max(0, Z - t)^power] / phi(t), without the density's underflow: the integral of u^power exp(-t u - u^2 / 2)."""
    scale = 1 / max(t, 1.0)
    end = 60 * scale if t > 8 else 40.0
    f = lambda u: u**power * math.exp(-t * u - u * u / 2)  # noqa: E731
    return sum(
        quad(f, a, b, epsabs=0, epsrel=1e-13)[0] for a, b in itertools.pairwise([0, scale, 4 * scale, 15 * scale, end])
    )


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.9, 1.999999, 2.0, 2.000001, 2.1, 3.0, 5.0, 12.0, 25.0, 36.0])
@pytest.mark.parametrize("deviation", [1.0, 3e-5])
def test_relu_moments_in_the_lower_tail(ratio, deviation):
    mean, variance = static.relu_moments(float64(-ratio * deviation), float64(deviation**2))
    density = normal_density(ratio)
    first, second = tail_moment(ratio, 1) * density, tail_moment(ratio, 2) * density
    # phi(t) itself is off by t^2 roundings of t, and the argument was squared and rooted again.
    tolerance = 2e-13 + 4 * ratio**2 * 2.0**-53
    assert mean.item() == pytest.approx(deviation * first, rel=tolerance, abs=0)
    assert variance.item() == pytest.approx(deviation**2 * (second - first**2), rel=tolerance, abs=0)


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0, 2.5, 6.0, 40.0])
@pytest.mark.parametrize("variance", [1e-6, 0.4, 9.0])
def test_relu_moments_above_zero(mean, variance):
    got_mean, got_variance = static.relu_moments(float64(mean), float64(variance))
    oracle = normal_expectation(lambda s: max(s, 0.0), mean, variance, [0.0])
    assert got_mean.item() == pytest.approx(oracle, rel=1e-12)
    spread = normal_expectation(lambda s: (max(s, 0.0) - oracle) ** 2, mean, variance, [0.0])
    assert got_variance.item() == pytest.approx(spread, rel=1e-11)


def test_relu_moments_without_variance():
    mean, variance = static.relu_moments(float64(-2.0, 0.0, 3.5), 0.0)
    assert mean.tolist() == [0.0, 0.0, 3.5]
    assert variance.tolist() == [0.0, 0.0, 0.0]


@given(mean=st.floats(-1e8, 1e8), variance=st.floats(0, 1e16))
@settings(derandomize=True, deadline=None)
def test_relu_moments_are_possible_ones(mean, variance):
    got_mean, got_variance = (value.item() for value in static.relu_moments(float64(mean), float64(variance)))
    assert max(mean, 0.0) <= got_mean <= abs(mean) + math.sqrt(variance)
    assert 0 <= got_variance <= variance


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


# Mistakes.

X, W, LAW = fixed(3), fixed(2, 3), cd.Uniform()


def test_numpys_scalars_are_numbers():
    expected = static.expected_sigmoid(X, 1.0, gain=2.0)
    for gain in (np.float32(2.0), np.int64(2)):
        assert torch.equal(static.expected_sigmoid(X, 1.0, gain=gain), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: static.linear_moments(fixed(3), X, LAW), ValueError, r"weight to have 2 axes, got shape \(3,\)"),
        (lambda: static.linear_moments(W, fixed(4), LAW), ValueError, r"x of shape \[..., 3\].* got \(4,\)"),
        (lambda: static.linear_moments(W, X, LAW, fixed(3)), ValueError, r"bias of shape \(2,\).* got \(3,\)"),
        (lambda: static.linear_moments(W, X * math.nan, LAW), ValueError, "x to be finite"),
        (lambda: static.linear_moments(W, X, 0.5), TypeError, "expected a law such as .* got float"),
        (
            lambda: static.linear_moments(W, X, cd.Gaussian(sigma=1e200, low=-INFINITY, high=INFINITY)),
            ValueError,
            "law with finite moments",
        ),
        (
            lambda: static.expected_sigmoid(X, -X.abs()),
            ValueError,
            "expected_sigmoid: expected variance to be at least 0",
        ),
        (lambda: static.expected_sigmoid(X, 1.0, gain=math.inf), ValueError, "gain to be a finite number"),
        (lambda: static.expected_sigmoid(X, 1.0, offset=0.0), ValueError, "offset to be above 0, got 0.0"),
        (
            lambda: static.expected_sigmoid(X, 1.0, method="hermite"),
            ValueError,
            "method to be one of 'probit', .*'hermite'",
        ),
        (lambda: static.expected_sigmoid(X, torch.ones(2)), ValueError, r"broadcast, got \(3,\) and \(2,\)"),
        (lambda: static.relu_moments(X, -1.0), ValueError, "relu_moments: expected variance to be at least 0, got -1"),
        (lambda: static.trade_off([LAW], W[:1], X), ValueError, r"at least 2 outputs to compare, got .*\(1, 3\)"),
        (lambda: static.berry_esseen(W, fixed(4), LAW), ValueError, "one last axis"),
        (lambda: static.berry_esseen(0 * W, X, LAW), ValueError, "only zeros in weight"),
        (lambda: static.normal_distance(W, X, LAW), ValueError, "weight to have 1 axes"),
        (
            lambda: static.normal_distance(X, X, cd.Bernoulli(keep=1.0)),
            ValueError,
            r"variance above 0, got Bernoulli\(keep=1.0\)$",
        ),
    ],
)
def test_mistakes_get_one_clear_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "received"), [(1j, "1j"), (torch.tensor([1j]), "torch.complex64"), ([1j], "list"), ("x", "str")]
)
def test_what_is_not_real_is_told_by_what_it_is(value, received):
    with pytest.raises(TypeError, match=f"^owner: expected x to be .*, got {received}$"):
        _numerics.as_tensor("owner", "x", value)


def test_distance_is_of_one_sum():
    with pytest.raises(ValueError, match="normal_distance: expected x"):
        static.normal_distance(torch.ones(3), torch.rand(5, 3), cd.Uniform())
