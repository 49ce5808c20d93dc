"""Expected activations against quadrature, and their gradients."""

import itertools
import math

import pytest
import torch
from scipy.special import expit

from contdrop.functional.linear import expected_relu, expected_sigmoid, standard_deviation
from oracles import UNIT_ROUNDOFF, normal_density, normal_expectation

MEANS = (-300.0, -20.0, -3.0, -1.0, -0.1, 0.0, 0.01, 0.5, 1.553, 4.0, 35.0, 1000.0)
VARIANCES = (0.0, 1e-12, 1e-4, 0.01, 0.4285, 1.0, 7.0, 100.0, 1e4)
GRID = list(itertools.product(MEANS, VARIANCES))
SIGMOID_ERROR = 4e-9
# The sigmoid is smooth, but seen from a wide normal it is a step at 0.
SIGMOID_BREAKS = (-40.0, -12.0, -4.0, 0.0, 4.0, 12.0, 40.0)


def columns(pairs: list[tuple[float, float]], **options) -> tuple[torch.Tensor, torch.Tensor]:
    options = {"dtype": torch.float64} | options
    mean, variance = zip(*pairs)
    return torch.tensor(mean, **options), torch.tensor(variance, **options)


def test_expected_relu_matches_quadrature():
    for (mean, variance), value in zip(GRID, expected_relu(*columns(GRID)).tolist()):
        oracle = normal_expectation(lambda z: max(z, 0.0), mean, variance, kinks=[0.0])
        # Two terms of up to |mean| and a standard deviation, of a few roundings each, and 1e-13 for the quadrature.
        size = abs(mean) + math.sqrt(variance)
        assert abs(value - oracle) <= (16 * 2.0**-53 + 1e-13) * size, (mean, variance)


def test_expected_sigmoid_matches_quadrature():
    for (mean, variance), value in zip(GRID, expected_sigmoid(*columns(GRID)).tolist()):
        oracle = normal_expectation(lambda z: float(expit(z)), mean, variance, SIGMOID_BREAKS)
        assert abs(value - oracle) < SIGMOID_ERROR, (mean, variance)


def test_mixture_is_within_its_bound_of_the_sigmoid_everywhere():
    # From 25 on both are within 2e-11 of their common limit, so a few points suffice there.
    step = 1e-4
    far = torch.tensor([30.0, 45.0, 100.0, 1e3, 1e9, math.inf], dtype=torch.float64)
    z = torch.cat([torch.arange(0, 25, step, dtype=torch.float64), far])
    for signed in (z, -z):
        error = expected_sigmoid(signed, torch.zeros_like(z)) - torch.from_numpy(expit(signed.numpy()))
        # The second derivatives of the sigmoid and of the mixture are below 0.1 each, so that between two points the
        # error exceeds its value at the points by at most step^2 / 8 * 0.2.
        assert error.abs().max().item() + step**2 / 8 * 0.2 < SIGMOID_ERROR


def test_expected_sigmoid_beats_the_probit_approximation():
    # Quadrature gives 0.8068, the probit approximation 0.8080.
    mean, variance = columns([(1.553, 0.4285)])
    assert round(expected_sigmoid(mean, variance).item(), 4) == 0.8068


def test_no_variance_means_no_expectation():
    mean = torch.tensor([-2.0, -0.0, 0.0, 3.5], dtype=torch.float64)
    assert torch.equal(expected_relu(mean, torch.zeros_like(mean)), mean.relu())
    assert torch.equal(standard_deviation(torch.zeros(3)), torch.zeros(3))


def test_standard_deviation_is_the_square_root():
    variance = torch.tensor([0.0, 5e-324, 1e-300, 0.25, 2.0, 1e300], dtype=torch.float64)
    expected = [math.sqrt(v) for v in variance.tolist()]
    # torch's vectorised square root is good to one unit in the last place, two roundings.
    assert standard_deviation(variance).tolist() == pytest.approx(expected, rel=2 * 2.0**-53, abs=0)


@pytest.mark.parametrize("expectation", [expected_relu, expected_sigmoid])
def test_float32_is_the_float64_result_rounded(expectation):
    pairs = [(mean, variance) for mean, variance in GRID if abs(mean) <= 40 and (variance == 0 or variance > 1e-6)]
    narrow = expectation(*columns(pairs, dtype=torch.float32))
    assert narrow.dtype == torch.float32
    wide = expectation(*(column.float().double() for column in columns(pairs)))
    # z = mean / s is off by two roundings, and Phi(z) and phi(z) by at most z phi(z) < 0.25 and z^2 phi(z) < 0.3 times
    # that; then a few roundings of each of up to eight terms.
    mean, variance = columns(pairs)
    size = mean.abs() + variance.sqrt() + 1
    assert ((narrow.double() - wide).abs() <= 16 * UNIT_ROUNDOFF[torch.float32] * size).all()


@pytest.mark.parametrize("expectation", [expected_relu, expected_sigmoid])
def test_arguments_broadcast(expectation):
    mean = torch.linspace(-2, 2, 3, dtype=torch.float64)[:, None]
    variance = torch.tensor([0.0, 0.5, 1.0, 4.0], dtype=torch.float64)
    result = expectation(mean, variance)
    assert torch.equal(result, expectation(mean.expand(3, 4).contiguous(), variance.expand(3, 4).contiguous()))


@pytest.mark.parametrize("expectation", [expected_relu, expected_sigmoid])
def test_gradients_match_finite_differences(expectation):
    pairs = list(itertools.product((-3.0, -0.7, 0.0, 0.2, 1.0, 5.0), (0.1, 1.0, 9.0)))
    mean, variance = columns(pairs, requires_grad=True)
    assert torch.autograd.gradcheck(expectation, (mean, variance))
    assert torch.autograd.gradgradcheck(expectation, (mean, variance))


def test_gradient_of_the_standard_deviation_is_zero_at_zero():
    variance = torch.tensor([0.01, 0.3, 1.0, 25.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(standard_deviation, (variance,))
    variance = torch.tensor([0.0, 4.0], requires_grad=True)
    standard_deviation(variance).sum().backward()
    assert variance.grad.tolist() == [0.0, 0.25]


def test_gradient_of_expected_relu_without_variance_is_that_of_relu():
    mean, variance = columns([(-2.0, 0.0), (0.0, 0.0), (3.0, 0.0)], requires_grad=True)
    expected_relu(mean, variance).sum().backward()
    assert mean.grad[[0, 2]].tolist() == [0.0, 1.0]
    assert 0 <= mean.grad[1] <= 1
    # By the variance it is phi(mean / s) / (2 s), which tends to 0 unless the mean is 0; there it is only to be finite.
    assert variance.grad[[0, 2]].tolist() == [0.0, 0.0]
    assert variance.grad[1].isfinite()


def test_gradient_of_expected_sigmoid_without_variance_matches_finite_differences():
    # The mixture goes on smoothly to small negative variances, so the difference quotient exists at 0.
    mean, variance = columns([(-2.0, 0.0), (0.0, 0.0), (0.5, 0.0), (3.0, 0.0)], requires_grad=True)
    assert torch.autograd.gradcheck(expected_sigmoid, (mean, variance))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("expectation", [expected_relu, expected_sigmoid])
def test_gradients_are_finite_down_to_the_smallest_variance(expectation, dtype):
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    variances = (0.0, subnormal, info.smallest_normal, 1e3 * info.smallest_normal, 1e-30, 1e-10)
    pairs = list(itertools.product((-1e3, -1.0, 0.0, 1.0, 1e3), variances))
    mean, variance = columns(pairs, dtype=dtype, requires_grad=True)
    expectation(mean, variance).sum().backward()
    assert mean.grad.isfinite().all()
    bad = [pair for pair, finite in zip(pairs, variance.grad.isfinite()) if not finite]
    assert not bad, f"gradient by the variance is not finite at (mean, variance) = {bad}"


def test_gradient_of_expected_relu_is_the_closed_form():
    mean, variance = columns([(-1.0, 4.0), (0.3, 0.25), (0.0, 1e-8)], requires_grad=True)
    expected_relu(mean, variance).sum().backward()
    for m, v, got in zip(mean.tolist(), variance.tolist(), variance.grad.tolist()):
        deviation = math.sqrt(v)
        assert got == pytest.approx(normal_density(m / deviation) / (2 * deviation), rel=16 * 2.0**-53)
