"""The maximum of Gaussian variables, two at a time (Clark, 1961), and the windows of max pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import quadrature, roots


def clark(
    mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor, covariance: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of max(A, B) for jointly Gaussian A and B, exactly, and P(A > B), elementwise.

    With t^2 = Var(A - B), a = (E[A] - E[B]) / t, phi and Phi the normal density and distribution function::

        P(A > B)      = Phi(a)
        E[max(A, B)]  = E[A] Phi(a) + E[B] Phi(-a) + t phi(a)
        E[max^2]      = E[A^2] Phi(a) + E[B^2] Phi(-a) + (E[A] + E[B]) t phi(a)

    and for any Z that is jointly Gaussian with them, Cov(max(A, B), Z) = Cov(A, Z) Phi(a) + Cov(B, Z) Phi(-a).
    """
    gap = mean_a - mean_b
    difference = variance_a + variance_b - 2 * covariance
    # Rounding may leave a little of the variance of A - B where A and B are one variable.
    random = roots.is_random(difference) & (difference > 1e-14 * (variance_a + variance_b))
    # Nor can means be told apart to less than their rounding, which a smaller spread would magnify in the gradient.
    random = random & (difference > (1e-12 * (mean_a.abs() + mean_b.abs())).square())
    spread = torch.where(random, difference, 1).sqrt()
    alpha = gap / spread
    first = torch.where(random, quadrature.normal_distribution(alpha), (gap >= 0).to(gap.dtype))
    second = torch.where(random, quadrature.normal_distribution(-alpha), (gap < 0).to(gap.dtype))
    bump = torch.where(random, spread * quadrature.normal_density(alpha), 0)
    # Around the larger mean, so that the variance is not a difference of large numbers.
    low_a, low_b = gap.clamp(max=0), (-gap).clamp(max=0)
    above = low_a * first + low_b * second + bump
    square = (low_a.square() + variance_a) * first + (low_b.square() + variance_b) * second + (low_a + low_b) * bump
    return torch.maximum(mean_a, mean_b) + above, (square - above.square()).clamp(min=0), first


def pooling_windows(
    shape: tuple[int, int, int],
    output: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """The elements of [C, H, W] (flattened) under each window of max pooling, [C * H_out * W_out, slots].

    Padding is -1.
    """
    channels, *sizes = shape
    places = []
    for size, out, k, s, p, d in zip(sizes, output, kernel, stride, padding, dilation):
        place = torch.arange(out).unsqueeze(1) * s - p + torch.arange(k) * d
        places.append(torch.where((place >= 0) & (place < size), place, -1))
    rows, columns = places[0][:, None, :, None], places[1][None, :, None, :]
    inside = torch.where((rows >= 0) & (columns >= 0), rows * sizes[1] + columns, -1)
    inside = inside.reshape(1, output[0] * output[1], -1)
    offset = torch.arange(channels)[:, None, None] * (sizes[0] * sizes[1])
    return torch.where(inside >= 0, inside + offset, -1).reshape(channels * output[0] * output[1], -1)


class Maxima:
    """The maxima of many windows: element by element, the maximum so far being taken as Gaussian.

    For equal and independent elements the mean is good to 0.01 deviations of the maximum, and the variance is too small
    by 2 % for windows of 3, 5 % for 4 and 11 % for 9. It is worse where elements differ much in deviation.

    Maxima covary by their response to the elements (:meth:`respond`). What this leaves of their variances is shared by
    windows that overlap, as far as they are likely to have the same element for their maximum: the correlation of that
    rest is taken as sum of w_i w_j / sqrt(sum of w_i^2 sum of w_j^2), w being the probabilities of each element. This
    is good to a tenth of the variance for independent elements, and to a fifth for correlated ones.

    Args:
        mean: [N, D].
        variance: [N, D].
        covariance: [N, D, D], or None for independent elements.
        windows: [M, slots] of elements, -1 for an empty slot; every window has an element.

    Attributes:
        mean: Of the maxima, [N, M].
        variance: [N, M].
        covariance: [N, M, M] or None.
    """

    def __init__(self, mean: Tensor, variance: Tensor, covariance: Tensor | None, windows: Tensor) -> None:
        windows = windows.to(mean.device)
        # An empty slot repeats an element of the window, and is given no weight.
        filled = windows >= 0
        self._windows = torch.where(filled, windows, windows.amax(1, keepdim=True))
        slots = [self._windows[:, slot] for slot in range(windows.shape[1])]
        self.mean, self.variance = mean[:, slots[0]], variance[:, slots[0]]
        weights = [torch.ones_like(self.mean)]
        for number, slot in enumerate(slots[1:], start=1):
            shared = torch.zeros_like(self.mean)
            if covariance is not None:
                for weight, other in zip(weights, slots):
                    shared = shared + weight * covariance[:, other, slot]
            new_mean, new_variance, probability = clark(
                self.mean, self.variance, mean[:, slot], variance[:, slot], shared
            )
            use = filled[:, number]
            # A window may begin with empty slots; its first element then replaces what stood for it.
            first = use & ~filled[:, :number].any(1)
            self.mean = torch.where(first, mean[:, slot], torch.where(use, new_mean, self.mean))
            self.variance = torch.where(first, variance[:, slot], torch.where(use, new_variance, self.variance))
            probability = torch.where(first, 0, torch.where(use, probability, 1))
            weights = [weight * probability for weight in weights] + [1 - probability]
        self._weights = torch.stack(weights)
        self._elements = mean.shape[1]
        self.covariance = None
        # Measured with the elements as independent: what correlations between them add is in the response.
        rest = (self.variance - self._weighted_squares(variance)).clamp(min=0)
        self._rest = roots.deviation(rest / self._weighted_squares(torch.ones_like(variance)))
        if covariance is not None:
            self.covariance = self.respond(self.respond(covariance).transpose(1, 2))
            if self._overlap():
                elements = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device).expand_as(covariance)
                same = self.respond(self.respond(elements).transpose(1, 2))
                self.covariance += same * self._rest.unsqueeze(2) * self._rest.unsqueeze(1)
            self.covariance.diagonal(dim1=1, dim2=2).copy_(self.variance)

    def _overlap(self) -> bool:
        owner = torch.arange(len(self._windows), device=self._windows.device).unsqueeze(1).expand_as(self._windows)
        last = torch.full((self._elements,), -1, device=owner.device)
        last.scatter_reduce_(0, self._windows.flatten(), owner.flatten(), "amax")
        return bool((last[self._windows] != owner).any())

    def respond(self, covariance: Tensor) -> Tensor:
        """Covariance of the elements with anything else, [N, D, K], to that of the maxima, [N, M, K].

        Clark's formula, repeated: a weighted mean over the window, with the probability of being the maximum as weight.
        """
        result = self._weights[0].unsqueeze(2) * covariance[:, self._windows[:, 0]]
        for weight, slot in zip(self._weights[1:], self._windows.T[1:]):
            result = result + weight.unsqueeze(2) * covariance[:, slot]
        return result

    def residual_times(self, rows: Tensor) -> Tensor:
        """G, [N, K, M], to G R with R R^T the covariance of what the response leaves of the maxima: [N, K, D]."""
        result = rows.new_zeros(*rows.shape[:2], self._elements)
        for weight, slot in zip(self._weights, self._windows.T):
            result.index_add_(2, slot, rows * (weight * self._rest).unsqueeze(1))
        return result

    def _weighted_squares(self, variance: Tensor) -> Tensor:
        """The variance of the linear response to independent elements of these variances, [N, D] to [N, M]."""
        total = torch.zeros_like(self.mean)
        for weight, slot in zip(self._weights, self._windows.T):
            total = total + weight.square() * variance[:, slot]
        return total
