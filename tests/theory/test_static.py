"""The theory of a forward pass under dropout, against brute force, quadrature and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit, ndtr

import contdrop as cd
from conformance import INFINITY, LAWS, assert_moments, fixed
from contdrop.theory import static
from oracles import normal_density, normal_expectation

PROBABILITIES = st.floats(0.1, 0.9)
WIDE = {"low": -INFINITY, "high": INFINITY}
UNCLIPPED = cd.Gaussian(sigma=0.3, **WIDE)
CLIPPED_LAWS = st.builds(cd.Gaussian, mu=PROBABILITIES, sigma=st.floats(0.05, 1))
ANY_LAW = st.one_of(
    st.builds(cd.Bernoulli, keep=PROBABILITIES, value=st.sampled_from([1.0, 0.65, -2.0])),
    st.builds(lambda low, width: cd.Uniform(low, low + width), st.floats(-1, 1), st.floats(0.1, 2)),
    CLIPPED_LAWS,
    CLIPPED_LAWS.map(lambda law: cd.Gaussian(mu=law.mu, sigma=law.sigma, **WIDE)),
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


def test_variance_and_covariance_are_one_knob():
    weight, x = fixed(6, 20, seed=1), fixed(3, 20, seed=2)
    rows = static.trade_off(LAWS, weight, x)
    assert [row.law for row in rows] == LAWS
    for row in rows[1:]:
        factor = row.law.variance / LAWS[0].variance
        expected = (factor * rows[0].variance, factor * rows[0].covariance, rows[0].ratio, rows[0].correlation)
        assert (row.variance, row.covariance, row.ratio, row.correlation) == pytest.approx(expected, rel=1e-12)
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
PAIRS = list(itertools.product(MEANS, VARIANCES))
MEAN, VARIANCE = torch.tensor(PAIRS, dtype=torch.float64).unbind(1)


@pytest.mark.parametrize(("gain", "offset"), [(1.0, 1.0), (-2.5, 0.2)])
def test_sigmoid_quadrature_is_within_its_bound_whatever_the_variance(gain, offset):
    result = static.expected_sigmoid(MEAN, VARIANCE, gain=gain, offset=offset, method="quadrature").tolist()
    breaks = [(a + math.log(offset)) / gain for a in STEPS]
    for (m, v), value in zip(PAIRS, result):
        oracle = normal_expectation(lambda s: float(expit(gain * s - math.log(offset))), m, v, breaks)
        assert abs(value - oracle) < 1e-12, (m, v)  # 1e-13, and as much for the oracle


@pytest.mark.parametrize("derivative", [-1, 1])
def test_neighbours_of_the_sigmoid_by_quadrature(derivative):
    def g(a):
        return max(a, 0.0) + math.log1p(math.exp(-abs(a))) if derivative < 0 else float(expit(a) * expit(-a))

    for (m, v), value in zip(PAIRS, static.logistic_expectation(MEAN, VARIANCE, derivative).tolist()):
        oracle = normal_expectation(g, m, v, STEPS)
        assert abs(value - oracle) < 1e-12 * (1 + abs(oracle)), (m, v)


def test_the_root_is_right_and_the_papers_recursion_without_it_is_not():
    mean, variance = float64(1.553), float64(0.4285)
    # Integrated once by other means.
    expected = {"quadrature": (0.8068, 5e-5), "probit": (0.8080, 5e-5), "paper": (0.7908, 1e-4)}
    for method, (value, error) in (expected | {"mean": (expit(1.553), 1e-15)}).items():
        assert static.expected_sigmoid(mean, variance, method=method).item() == pytest.approx(value, abs=error)


def test_probit_error_over_the_plane():
    deviation = torch.logspace(-2, 5, 80, dtype=torch.float64)
    mean = torch.linspace(-4, 4, 401, dtype=torch.float64).unsqueeze(-1) * deviation
    errors = {method: static.sigmoid_error(mean, deviation**2, method=method) for method in ("probit", "paper", "mean")}
    worst = {method: error.abs().max().item() for method, error in errors.items()}
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
    breaks = [0, scale, 4 * scale, 15 * scale, end]
    return sum(quad(f, a, b, epsabs=0, epsrel=1e-13)[0] for a, b in itertools.pairwise(breaks))


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


# Mistakes.


X, W, LAW = fixed(3), fixed(2, 3), cd.Uniform()


def test_numpys_scalars_are_numbers():
    expected = static.expected_sigmoid(X, 1.0, gain=2.0)
    for gain in (np.float32(2.0), np.int64(2)):
        assert torch.equal(static.expected_sigmoid(X, 1.0, gain=gain), expected)


def test_refusals(code_refusals):
    code_refusals("static_refusals", globals())
