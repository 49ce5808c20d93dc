"""Moments of activation functions, and of maxima, of Gaussian variables.

Covariances of activations are a power series in the correlation (:func:`covariance`). Each of its coefficients belongs
to one unit, so that a layer of D units takes D quadratures and one pass over its D x D correlations per term. Maxima
are taken two at a time (:func:`clark`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _numerics

# Terms of Mehler's series, and the share of a variance that the terms left out may amount to.
_TERMS = 64
_TOLERANCE = 1e-6

# The trapezoidal rule with step h is good to about exp(-2 pi^2 / (h s)) for a sigmoid of deviation s, whose poles are
# at distance pi / s: to 1e-11 for these steps and the deviations up to which they are used.
_COARSE, _COARSE_UP_TO = 1 / 2, 1.5
_FINE, _FINE_UP_TO = 1 / 6, 4.5
_REACH = 8.5  # the normal density beyond is below 1e-16

# Hermite polynomials of degree 64 grow as fast as the root of the density falls, so theirs is a wider rule.
_HERMITE_STEP, _HERMITE_REACH = 1 / 8, 12.5

# Quadrature looks at this many units at a time.
_UNITS_AT_ONCE = 1 << 14


@dataclasses.dataclass(frozen=True)
class Activation:
    """Elementwise function of a Gaussian variable.

    Attributes:
        function: f itself, for an input that is not random.
        slope: f', for an input that is not random; the mean of both sides at a kink.
        moments: (mean, variance) of X to (E[f(X)], Var f(X), E[f'(X)]), elementwise, for positive variances.
        coefficients: (mean, variance) of X, each [N, D], to c_1 ... c_64 of f(X) = sum of c_k h_k(Z), where h_k are the
            Hermite polynomials of variance one and Z is X standardised; [N, D, 64].
    """

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    moments: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    coefficients: Callable[[Tensor, Tensor], Tensor]


def covariance(activation: Activation, mean: Tensor, variance: Tensor, covariance: Tensor, slope: Tensor) -> Tensor:
    """Compute Cov(f(X_i), f(X_j)) for jointly Gaussian X, by Mehler's formula (Mehler, 1866)::

        Cov(f(X_i), f(X_j)) = sum over k >= 1 of c_ik c_jk rho_ij^k

    Its first term is E[f'(X_i)] E[f'(X_j)] Cov(X_i, X_j), whose derivatives are right where a variance is zero, too.

    With K terms the error is at most sqrt(t_i t_j) |rho|^(K+1), t_i being the part of Var f(X_i) beyond c_iK (Cauchy
    and Schwarz), so K is chosen from the largest correlation, for an error of 1e-6 of sqrt(Var f(X_i) Var f(X_j)). At
    most 64 terms are taken: for |rho| -> 1 the error of a ReLU is below 1e-3 of the variances, that of a sigmoid or
    tanh too unless the deviation of X is so large (above 10) that it acts as a step.

    X has mean and variance [N, D] and covariance [N, D, D], and ``slope`` is E[f'(X)], [N, D]. The diagonal that is
    returned is that of the series; set it where the exact variances are known.
    """
    coefficients = activation.coefficients(mean, variance)
    random = _numerics.is_random(variance)
    inverse = torch.where(random, variance, 1).rsqrt() * random
    correlation = (covariance * inverse.unsqueeze(-1)).mul_(inverse.unsqueeze(-2)).clamp_(-1, 1)
    correlation.diagonal(dim1=-2, dim2=-1).zero_()
    terms = _terms_needed(coefficients, activation.moments(mean, torch.where(random, variance, 1))[1], correlation)
    result = torch.zeros_like(correlation)
    for k in reversed(range(1, terms)):  # Horner
        c = coefficients[..., k]
        result.addcmul_(c.unsqueeze(-1), c.unsqueeze(-2)).mul_(correlation)
    return result.mul_(correlation).addcmul_(slope.unsqueeze(-1) * slope.unsqueeze(-2), covariance)


def _terms_needed(coefficients: Tensor, variance: Tensor, correlation: Tensor) -> int:
    largest = max(correlation.max().item(), -correlation.min().item()) if correlation.numel() else 0.0
    beyond = (variance.unsqueeze(-1) - coefficients.square().cumsum(-1)).clamp(min=0)
    share = (beyond / variance.clamp(min=torch.finfo(variance.dtype).tiny).unsqueeze(-1)).flatten(0, -2).amax(0)
    powers = largest ** torch.arange(2, _TERMS + 2, dtype=share.dtype, device=share.device)
    enough = (share * powers <= _TOLERANCE).nonzero()
    return int(enough[0].item()) + 1 if len(enough) else _TERMS


# ReLU.


def _relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the moments of a ReLU exactly, with s^2 = variance, z = mean / s, normal density phi and cdf Phi::

        E[relu(X)]   = s (z Phi(z) + phi(z))
        Var relu(X)  = s^2 ((z^2 + 1) Phi(z) + z phi(z)) - E[relu(X)]^2
        E[relu'(X)]  = Phi(z)

    The variance is computed on the side of zero where little is left, because relu(X) = X + relu(-X): so it keeps its
    digits for z >> 0 too.
    """
    deviation = variance.sqrt()
    z = mean / deviation
    density, slope = _numerics.normal_pdf(z), _numerics.normal_cdf(z)
    distance = z.abs()
    rest = _numerics.normal_cdf(-distance)
    rest_mean = density - distance * rest
    rest_variance = ((distance.square() + 1) * rest - distance * density - rest_mean.square()).clamp(min=0)
    share = torch.where(z < 0, rest_variance, 1 - 2 * rest + rest_variance)
    # rest_mean loses its digits far below zero, where it is too small to matter.
    expected = torch.where(z < 0, deviation * rest_mean.clamp(min=0), mean + deviation * rest_mean)
    return expected, variance * share, slope


def _relu_coefficients(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute c_1 = s Phi(z) and c_k = s phi(z) (-1)^k h_{k-2}(z) / sqrt(k (k - 1)), from the derivatives of ReLU."""
    deviation, random = _numerics.standard_deviation(variance), _numerics.is_random(variance)
    # Beyond 39 the density is zero in float64, and so are all coefficients but the first; powers of z would overflow.
    z = torch.where(random, mean / torch.where(random, deviation, 1), 0).clamp(-39, 39)
    result = torch.empty(*mean.shape, _TERMS, dtype=mean.dtype, device=mean.device)
    result[..., 0] = deviation * _numerics.normal_cdf(z)
    before, current = torch.zeros_like(z), deviation * _numerics.normal_pdf(z)
    for k in range(2, _TERMS + 1):
        result[..., k - 1] = current / math.sqrt(k * (k - 1))
        # h_{n+1} = (z h_n - sqrt(n) h_{n-1}) / sqrt(n + 1), at n = k - 2; the sign of odd terms is in -z.
        n = k - 2
        before, current = current, (-z * current - math.sqrt(n) * before) / math.sqrt(n + 1)
    return result


# Sigmoid and tanh.


def _by_unit(function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Apply a function from [units, 1] to [units, K] to as many units at a time as memory allows."""
    parts = zip(*(torch.split(moment.reshape(-1, 1), _UNITS_AT_ONCE) for moment in (mean, variance)))
    return torch.cat([function(*part) for part in parts]).reshape(*mean.shape, -1)


def _sigmoid_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the moments of a sigmoid by quadrature; for very wide X by :func:`.logistic_expectation`, a slower rule.

    The second moment then needs no integral of its own: sigmoid^2 = sigmoid - sigmoid'.
    """
    if not mean.numel():
        return mean, variance, mean
    expected, spread, slope = _by_unit(_narrow_sigmoid_moments, mean, variance).unbind(-1)
    wide = variance > _FINE_UP_TO**2
    if not wide.any():
        return expected, spread, slope
    wide_mean, wide_slope = (_numerics.logistic_expectation(mean, variance, derivative) for derivative in (0, 1))
    wide_spread = (wide_mean - wide_slope - wide_mean.square()).clamp(min=0)
    return (
        torch.where(wide, wide_mean, expected),
        torch.where(wide, wide_spread, spread),
        torch.where(wide, wide_slope, slope),
    )


def _narrow_sigmoid_moments(mean: Tensor, variance: Tensor) -> Tensor:
    z, weights = _nodes(_COARSE if variance.max() <= _COARSE_UP_TO**2 else _FINE, _REACH, mean.device)
    values = torch.sigmoid(mean + variance.sqrt() * z)
    expected = values @ weights
    spread = (values - expected.unsqueeze(-1)).square() @ weights
    return torch.stack((expected, spread, (values * (1 - values)) @ weights), dim=-1)


def _sigmoid_coefficients(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute c_k = E[sigmoid(X) h_k(Z)] by quadrature."""
    z, weighted = _hermite(mean.device)

    def coefficients(mean: Tensor, variance: Tensor) -> Tensor:
        return torch.sigmoid(mean + _numerics.standard_deviation(variance) * z) @ weighted

    return _by_unit(coefficients, mean, variance)


def _tanh_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the moments of tanh(x) = 2 sigmoid(2 x) - 1."""
    expected, spread, slope = _sigmoid_moments(2 * mean, 4 * variance)
    return 2 * expected - 1, 4 * spread, 4 * slope


@functools.cache
def _nodes(step: float, reach: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the trapezoidal rule for E[f(Z)], Z ~ N(0, 1)."""
    count = round(reach / step)
    with torch.inference_mode(False):  # they are kept, and later calls may need gradients
        z = step * torch.arange(-count, count + 1, dtype=torch.float64, device=device)
        return z, step * _numerics.normal_pdf(z)


@functools.cache
def _hermite(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the nodes z_j, and w_j h_k(z_j) for k = 1 ... 64, [nodes, 64]."""
    z, weights = _nodes(_HERMITE_STEP, _HERMITE_REACH, device)
    with torch.inference_mode(False):
        columns = [torch.ones_like(z), z]
        for n in range(1, _TERMS):
            columns.append((z * columns[n] - math.sqrt(n) * columns[n - 1]) / math.sqrt(n + 1))
        return z, torch.stack(columns[1:], dim=1) * weights.unsqueeze(-1)


RELU = Activation(
    torch.relu, lambda x: torch.heaviside(x.detach(), x.new_tensor(0.5)), _relu_moments, _relu_coefficients
)
SIGMOID = Activation(torch.sigmoid, _numerics.derivative_of_sigmoid, _sigmoid_moments, _sigmoid_coefficients)
TANH = Activation(
    torch.tanh,
    lambda x: 1 - torch.tanh(x).square(),
    _tanh_moments,
    lambda mean, variance: 2 * _sigmoid_coefficients(2 * mean, 4 * variance),
)


def clark(
    mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor, covariance: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean and variance of max(A, B) for jointly Gaussian A and B, and P(A > B), exactly (Clark, 1961).

    With t^2 = Var(A - B), a = (E[A] - E[B]) / t, phi and Phi the normal density and distribution function::

        P(A > B)      = Phi(a)
        E[max(A, B)]  = E[A] Phi(a) + E[B] Phi(-a) + t phi(a)
        E[max^2]      = E[A^2] Phi(a) + E[B^2] Phi(-a) + (E[A] + E[B]) t phi(a)

    and for any Z that is jointly Gaussian with them, Cov(max(A, B), Z) = Cov(A, Z) Phi(a) + Cov(B, Z) Phi(-a).
    """
    gap = mean_a - mean_b
    difference = variance_a + variance_b - 2 * covariance
    # Rounding may leave a little of the variance of A - B where A and B are one variable.
    random = _numerics.is_random(difference) & (difference > 1e-14 * (variance_a + variance_b))
    # Means differ by their rounding, too, which a smaller spread would magnify in the gradient.
    random = random & (difference > (1e-12 * (mean_a.abs() + mean_b.abs())).square())
    spread = torch.where(random, difference, 1).sqrt()
    alpha = gap / spread
    first = torch.where(random, _numerics.normal_cdf(alpha), (gap >= 0).to(gap.dtype))
    second = torch.where(random, _numerics.normal_cdf(-alpha), (gap < 0).to(gap.dtype))
    bump = torch.where(random, spread * _numerics.normal_pdf(alpha), 0)
    # Around the larger mean, so that the variance is not a difference of large numbers.
    low_a, low_b = gap.clamp(max=0), (-gap).clamp(max=0)
    above = low_a * first + low_b * second + bump
    square = (low_a.square() + variance_a) * first + (low_b.square() + variance_b) * second + (low_a + low_b) * bump
    return torch.maximum(mean_a, mean_b) + above, (square - above.square()).clamp(min=0), first


def pooling_windows(layer: torch.nn.MaxPool2d, shape: Sequence[int], output: Sequence[int]) -> Tensor:
    """Return the elements of [C, H, W] (flattened) under each window of max pooling, [C * H_out * W_out, slots].

    Padding is -1.
    """
    kernel, padding, dilation = _pair(layer.kernel_size), _pair(layer.padding), _pair(layer.dilation)
    stride = _pair(layer.stride if layer.stride is not None else layer.kernel_size)
    margins: list[int] = []
    for size, out, k, s, p, d in zip(shape[1:], output, kernel, stride, padding, dilation):
        margins = [p, (out - 1) * s + d * (k - 1) + 1 - size - p, *margins]
    elements = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).reshape(shape[0], 1, *shape[1:])
    windows = F.unfold(F.pad(elements, margins), kernel, dilation, stride=stride)
    return windows.transpose(1, 2).reshape(-1, windows.shape[1]).long() - 1


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def overlap(windows: Tensor) -> bool:
    """Tell whether an element is in more than one window."""
    return bool(windows[windows >= 0].bincount().max() > 1)


class Maxima:
    """Maxima of many windows, element by element, each intermediate maximum being taken as Gaussian.

    For equal and independent elements the mean is good to 0.01 deviations of the maximum, and the variance is too small
    by 2 % for windows of 3, 5 % for 4 and 11 % for 9. It is worse where elements differ much in deviation.

    Maxima covary by their response to the elements (:meth:`respond`). The rest of their variances is shared by windows
    that overlap, as far as they are likely to have the same element for their maximum: its correlation is taken as
    sum of w_i w_j / sqrt(sum of w_i^2 sum of w_j^2), w being the probabilities of each element. This is good to a tenth
    of the variance for independent elements, and to a fifth for correlated ones.

    Args:
        mean: [N, D].
        variance: [N, D].
        covariance: [N, D, D], or None for independent elements.
        windows: [M, slots] of elements, -1 for an empty slot; every window has an element.
    """

    def __init__(self, mean: Tensor, variance: Tensor, covariance: Tensor | None, windows: Tensor) -> None:
        windows = windows.to(mean.device)
        # An empty slot repeats an element of the window, and is given no weight.
        self._windows = torch.where(windows >= 0, windows, windows.amax(1, keepdim=True))
        self._elements = mean.shape[1]
        self._take_maxima(mean, variance, covariance, windows >= 0)
        # Measured for independent elements: the response accounts for correlations between them.
        rest = (self.variance - self._weighted_squares(variance)).clamp(min=0)
        self._rest = _numerics.standard_deviation(rest / self._weighted_squares(torch.ones_like(variance)))
        self.covariance = None
        if covariance is not None:
            self.covariance = self._between_maxima(covariance)
            if overlap(windows):
                elements = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device).expand_as(covariance)
                self.covariance += self._between_maxima(elements) * self._rest.unsqueeze(2) * self._rest.unsqueeze(1)
            self.covariance.diagonal(dim1=1, dim2=2).copy_(self.variance)

    def _take_maxima(self, mean: Tensor, variance: Tensor, covariance: Tensor | None, filled: Tensor) -> None:
        """Take the maximum with one slot of all windows after the other, and find the weights of the slots."""
        slots = self._windows.unbind(1)
        self.mean, self.variance = mean[:, slots[0]], variance[:, slots[0]]
        weights = [torch.ones_like(self.mean)]
        for number, slot in enumerate(slots[1:], start=1):
            shared = torch.zeros_like(self.mean)
            if covariance is not None:
                for weight, other in zip(weights, slots):
                    shared = shared + weight * covariance[:, other, slot]
            largest = clark(self.mean, self.variance, mean[:, slot], variance[:, slot], shared)
            use = filled[:, number]
            # A window may begin with empty slots; its first element then replaces the placeholder.
            first = use & ~filled[:, :number].any(1)
            self.mean = torch.where(first, mean[:, slot], torch.where(use, largest[0], self.mean))
            self.variance = torch.where(first, variance[:, slot], torch.where(use, largest[1], self.variance))
            probability = torch.where(first, 0, torch.where(use, largest[2], 1))
            weights = [weight * probability for weight in weights] + [1 - probability]
        self._weights = torch.stack(weights)

    def respond(self, covariance: Tensor) -> Tensor:
        """Map the covariance of the elements with anything else, [N, D, K], to that of the maxima, [N, M, K].

        Clark's formula, repeated: a weighted mean over the window, with the probability of being the maximum as weight.
        """
        result = self._weights[0].unsqueeze(2) * covariance[:, self._windows[:, 0]]
        for weight, slot in zip(self._weights[1:], self._windows.T[1:]):
            result = result + weight.unsqueeze(2) * covariance[:, slot]
        return result

    def _between_maxima(self, covariance: Tensor) -> Tensor:
        return self.respond(self.respond(covariance).transpose(1, 2))

    def residual_times(self, rows: Tensor) -> Tensor:
        """Map G, [N, K, M], to G R, [N, K, D], with R R^T the covariance of the maxima beyond their response."""
        result = rows.new_zeros(*rows.shape[:2], self._elements)
        for weight, slot in zip(self._weights, self._windows.T):
            result.index_add_(2, slot, rows * (weight * self._rest).unsqueeze(1))
        return result

    def _weighted_squares(self, variance: Tensor) -> Tensor:
        """Return the variance of the linear response to independent elements of these variances, [N, D] to [N, M]."""
        total = torch.zeros_like(self.mean)
        for weight, slot in zip(self._weights, self._windows.T):
            total = total + weight.square() * variance[:, slot]
        return total
