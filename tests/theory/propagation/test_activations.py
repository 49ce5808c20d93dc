"""Moments of activations and maxima, against quadrature and Monte Carlo."""

import math

import pytest
import torch
from torch import nn

import contdrop as cd
import oracles
from conformance import fixed
from contdrop.theory import propagation
from contdrop.theory.propagation import activations, gaussian

ACTIVATIONS = {"relu": activations.RELU, "sigmoid": activations.SIGMOID, "tanh": activations.TANH}


FUNCTIONS = {
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "tanh": math.tanh,
}


# Non-linear units of Gaussian input.


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("deviation", [1e-3, 0.3, 1.0, 1.9, 2.1, 4.9, 5.1, 30.0])
def test_moments_of_an_activation_by_quadrature(name, deviation):
    f, means = FUNCTIONS[name], [-20.0, -3.0, -0.4, 0.0, 1.0, 6.0]
    mean = torch.tensor(means, dtype=torch.float64)
    expected, variance, slope = ACTIVATIONS[name].moments(mean, torch.full_like(mean, deviation**2))
    for i, m in enumerate(means):
        kinks = [0.0, -1.0, 1.0]
        first = oracles.normal_expectation(f, m, deviation**2, kinks)
        second = oracles.normal_expectation(lambda x, c=first: (f(x) - c) ** 2, m, deviation**2, kinks)
        # Stein: E[f'(X)] = Cov(f(X), X) / Var(X).
        product = oracles.normal_expectation(lambda x, c=first, m=m: (f(x) - c) * (x - m), m, deviation**2, kinks)
        assert expected[i].item() == pytest.approx(first, rel=1e-7, abs=1e-8)
        assert variance[i].item() == pytest.approx(second, rel=1e-6, abs=1e-8 * deviation**2)
        assert slope[i].item() == pytest.approx(product / deviation**2, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("rho", [0.0, 0.1, -0.5, 0.8, -0.95])
def test_covariance_of_activations_by_double_quadrature(name, rho):
    f = FUNCTIONS[name]
    for mean, deviation in (((0.3, -0.5), (1.0, 0.7)), ((-1.5, 0.2), (1.2, 2.0)), ((2.0, 1.0), (0.5, 0.9))):
        (mx, my), (sx, sy) = mean, deviation

        def given(x, mx=mx, my=my, sx=sx, sy=sy):
            """E[f(Y) given X = x], by the trapezoidal rule of the smooth ones, exactly for ReLU."""
            m, s = my + rho * sy / sx * (x - mx), sy * math.sqrt(1 - rho**2)
            if name == "relu":
                z = m / s
                return m * 0.5 * math.erfc(-z / math.sqrt(2)) + s * oracles.normal_density(z)
            return sum(f(m + s * t / 5) * oracles.normal_density(t / 5) / 5 for t in range(-45, 46))

        first = oracles.normal_expectation(f, mx, sx**2, [0.0])
        centred = oracles.normal_expectation(lambda x, c=first, g=given: (f(x) - c) * g(x), mx, sx**2, [0.0])
        variance = torch.tensor([[sx**2, sy**2]], dtype=torch.float64)
        matrix = torch.tensor([[[sx**2, rho * sx * sy], [rho * sx * sy, sy**2]]], dtype=torch.float64)
        means = torch.tensor([mean], dtype=torch.float64)
        slope = ACTIVATIONS[name].moments(means, variance)[2]
        got = activations.covariance(ACTIVATIONS[name], means, variance, matrix, slope)
        allowed = 1e-3 if abs(rho) > 0.9 else 2e-6
        assert got[0, 0, 1].item() == pytest.approx(centred, abs=allowed * sx * sy)
        assert got[0, 1, 0] == got[0, 0, 1]


def test_perfectly_correlated_units():
    """All units follow one mask value, so correlations are 1 and -1: the hardest case of the series."""
    x = gaussian.GaussianMoments(
        torch.tensor([[0.2, 0.2, -0.2]], dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.float64),
        torch.tensor([[[1.0, 1, -1], [1, 1, -1], [-1, -1, 1]]], dtype=torch.float64),
    )
    result = gaussian.activation(x, activations.RELU).output
    mean, negative = result.mean[0, 0].item(), result.mean[0, 2].item()
    assert result.covariance[0, 0, 1].item() == pytest.approx(result.variance[0, 0].item(), rel=1e-3)
    # relu(X) relu(-X) = 0.
    assert result.covariance[0, 0, 2].item() == pytest.approx(-mean * negative, rel=1e-2)


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.6, 1.0])
def test_maximum_of_two(rho):
    """max(A, B) = B + relu(A - B); Stein's lemma for its covariance with B; the moments of relu by quadrature."""
    for ma, mb, sa, sb in (
        (0.0, 0.0, 1.0, 1.0),
        (1.0, -0.5, 0.5, 2.0),
        (100.0, 101.0, 1.0, 1e-3),
        (2.0, 1.0, 0.0, 0.0),
    ):
        cov = rho * sa * sb
        gap, spread = ma - mb, max(sa**2 + sb**2 - 2 * cov, 0.0)
        first = oracles.normal_expectation(lambda d: max(d, 0.0), gap, spread, [0.0])
        second = oracles.normal_expectation(lambda d, c=first: (max(d, 0.0) - c) ** 2, gap, spread, [0.0])
        above = 0.5 * math.erfc(-gap / math.sqrt(2 * spread)) if spread else float(gap >= 0)
        variance = sb**2 + second + 2 * (cov - sb**2) * above
        arguments = [torch.tensor(value, dtype=torch.float64) for value in (ma, sa**2, mb, sb**2, cov)]
        mean, got, probability = activations.clark(*arguments)
        assert mean.item() == pytest.approx(mb + first, rel=1e-12, abs=1e-12)
        assert got.item() == pytest.approx(variance, rel=1e-9, abs=1e-12)
        assert probability.item() == pytest.approx(above, abs=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((2, 3), (1, 2), (1, 1), dilation=(2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("covariance", propagation.COVARIANCES)
def test_max_pooling_takes_the_windows_of_torch(layer, covariance):
    x = fixed(2, 2, 5, 7)
    model = nn.Sequential(cd.GaussianDropout(1e-9), layer)
    result = propagation.moments(model, x, covariance=covariance)
    torch.testing.assert_close(result.mean, layer(x), rtol=1e-6, atol=1e-6)
    winners = 1e-18 / 0.25 * layer(x).square()
    torch.testing.assert_close(result.variance, winners, rtol=1e-3, atol=1e-30)


def test_maximum_of_many_is_as_good_as_its_docstring_says():
    draws = fixed(400_000, 9)
    for count, allowed in ((3, 0.02), (4, 0.05), (9, 0.12)):
        zeros, ones = torch.zeros(1, 9, dtype=torch.float64), torch.ones(1, 9, dtype=torch.float64)
        result = activations.Maxima(zeros, ones, None, torch.arange(count)[None])
        largest = draws[:, :count].amax(1)
        error = 5 / math.sqrt(len(draws))
        assert abs(result.mean.item() - largest.mean().item()) < (0.01 + error) * largest.std().item()
        assert 1 - allowed - 2 * error < result.variance.item() / largest.var().item() < 1
