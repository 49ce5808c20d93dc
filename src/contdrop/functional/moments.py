"""Expected activations of a Gaussian pre-activation: what DropConnect's sampled inference converges to."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def standard_deviation(variance: Tensor) -> Tensor:
    """The square root, with derivative 0 instead of infinity where the variance is 0 (an input of zeros)."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1).sqrt(), 0)


def expected_relu(mean: Tensor, variance: Tensor) -> Tensor:
    """E[max(z, 0)] for z ~ N(mean, variance), exactly: mean Phi(mean / s) + s phi(mean / s), with s^2 = variance."""
    deviation = standard_deviation(variance)
    # With hardly any spread the result is relu(mean), and the derivatives of the quotient would overflow.
    spread = deviation > 1e-6 * mean.abs()
    z = mean / torch.where(spread, deviation, 1)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.where(spread, mean * torch.special.ndtr(z) + deviation * density, mean.relu())


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E[sigmoid(z)] for z ~ N(mean, variance), to 4e-9 in float64.

    Each term p Phi(s z) of the mixture has expectation p Phi(s mean / sqrt(1 + s^2 variance)). With a single term
    (s^2 = pi / 8) this is the well-known probit approximation, which is off by up to 0.02.
    """
    # sigmoid(z) as a mixture of normal distribution functions, sum of p Phi(s z), after Monahan and Stefanski (1992).
    # The weights and scales are a minimax fit of our own on z in [0, 45]; the error is below 4e-9 everywhere, and the
    # error of an expectation cannot be larger than that, whatever its mean and variance. They are written here because
    # torch.jit.script reads no tuples of a module.
    weights = [
        0.001312482686,
        0.025114678113,
        0.122020115046,
        0.267039098987,
        0.320271743247,
        0.204978693952,
        0.05567923525,
        0.003583952719,
    ]
    scales = [
        0.236992816461,
        0.305787934797,
        0.390878628432,
        0.500588828435,
        0.641833033639,
        0.82143811417,
        1.050509577118,
        1.357301917021,
    ]
    result = torch.zeros_like(mean)
    for weight, scale in zip(weights, scales):
        result = result + weight * torch.special.ndtr(scale * mean * torch.rsqrt(1 + scale**2 * variance))
    return result
