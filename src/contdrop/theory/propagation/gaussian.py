"""Gaussian moments of activations, and the kinds of operations that transform them.

An operation turns :class:`GaussianMoments` into a :class:`PropagatedLayer`: the moments of its output, and how its
output covaries with anything that its input covaries with. The latter is what lets two branches of a network be added
correctly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...laws import Law, training_factor
from .. import _numerics
from . import activations
from .activations import Activation

# A covariance above this size is refused rather than left to end in a crash; several are in memory at a time.
LARGEST_COVARIANCE = 2 << 30

Map: TypeAlias = Callable[[Tensor], Tensor]


class RefusedError(ValueError):
    """Known layer with unsupported settings or input. The caller adds the name of the layer."""


@dataclasses.dataclass(frozen=True)
class GaussianMoments:
    """Mean and (co)variance of an activation.

    Attributes:
        mean: [N, ...].
        variance: Of the same shape; None if the activation is not random.
        covariance: [N, D, D] over the D elements of an example, in row-major order. None if they are uncorrelated, or
            taken to be.
    """

    mean: Tensor
    variance: Tensor | None = None
    covariance: Tensor | None = None

    def full_variance(self) -> Tensor:
        """Return the variance, zeros if the activation is not random."""
        return torch.zeros_like(self.mean) if self.variance is None else self.variance

    def full_covariance(self) -> Tensor:
        """Return the covariance matrix, diagonal if none is stored."""
        if self.covariance is not None:
            return self.covariance
        check_size(*self.mean.flatten(1).shape)
        return torch.diag_embed(self.full_variance().flatten(1))


@dataclasses.dataclass(frozen=True)
class PropagatedLayer:
    """Output moments of a layer, and its effect on covariances.

    Attributes:
        output: Moments of the output.
        respond: Map from Cov(input, Z), [N, D, K], to Cov(output, Z), [N, D', K], for any Z: the expected derivative.
        added_noise: Map from G, [N, K, D'], to the covariance of G y, [N, K, K], with y the part of the output beyond
            the linear response to the input: noise of the layer, and curvature. None if there is none.
    """

    output: GaussianMoments
    respond: Map
    added_noise: Map | None = None


@dataclasses.dataclass(frozen=True)
class Response:
    """A response whose transpose is known, which saves differentiating it."""

    forward: Map
    transposed: Map

    def __call__(self, covariance: Tensor) -> Tensor:
        return self.forward(covariance)


def adjoint(respond: Map, elements: int, rows: Tensor) -> Tensor:
    """Apply the transposed response: G, [N, K, D'], to G J, [N, K, D], where J is the matrix of ``respond``."""
    if isinstance(respond, Response):
        return respond.transposed(rows)
    n, k, _ = rows.shape
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        start = torch.zeros(n, elements, k, dtype=rows.dtype, device=rows.device, requires_grad=True)
        (result,) = torch.autograd.grad(respond(start), start, rows.transpose(1, 2), create_graph=differentiable)
    return result.transpose(1, 2)


def composed(first: PropagatedLayer, second: PropagatedLayer) -> PropagatedLayer:
    """Combine two layers into one."""
    elements = first.output.mean[0].numel()

    def added_noise(rows: Tensor) -> Tensor:
        result = rows.new_zeros(rows.shape[0], rows.shape[1], rows.shape[1])
        if second.added_noise is not None:
            result = result + second.added_noise(rows)
        if first.added_noise is not None:
            result = result + first.added_noise(adjoint(second.respond, elements, rows))
        return result

    return PropagatedLayer(second.output, lambda c: second.respond(first.respond(c)), added_noise)


def check_size(examples: int, elements: int, others: int | None = None) -> None:
    """Refuse a covariance that is too large, between ``elements`` and themselves or ``others``."""
    shape = [examples, elements, elements if others is None else others]
    size = 8 * math.prod(shape)
    if size > LARGEST_COVARIANCE:
        raise RefusedError(
            f"expected a covariance of at most {LARGEST_COVARIANCE / 2**30:.0f} GiB, got {shape}, which takes "
            f"{size / 2**30:.1f} GiB; give fewer examples at a time or use covariance='diagonal'"
        )


# The kinds of operations.


def affine(
    x: GaussianMoments, full: bool, weigh: Map, weigh_squares: Map, shift: Tensor | float = 0.0
) -> PropagatedLayer:
    """Apply a linear map of all elements of an example, and add a constant: exact.

    ``weigh`` is the map of a batch of any size, and ``weigh_squares`` the map with its coefficients squared.
    """
    shape = x.mean.shape[1:]

    def respond(covariance: Tensor) -> Tensor:
        n, _, k = covariance.shape
        rows = covariance.transpose(1, 2).reshape(n * k, *shape)
        return weigh(rows).reshape(n, k, -1).transpose(1, 2)

    mean = weigh(x.mean) + shift
    if x.variance is None:
        return PropagatedLayer(GaussianMoments(mean), respond)
    if not full:
        return PropagatedLayer(GaussianMoments(mean, weigh_squares(x.variance)), respond)
    check_size(*mean.flatten(1).shape)
    return PropagatedLayer(from_covariance(mean, respond(respond(x.full_covariance()).transpose(1, 2))), respond)


def scaling(x: GaussianMoments, gain: Tensor | float, shift: Tensor | float = 0.0) -> PropagatedLayer:
    """Multiply every element by a constant of its own, and add a constant: exact."""
    factor = torch.as_tensor(gain, dtype=x.mean.dtype, device=x.mean.device).expand(x.mean.shape)
    mean = x.mean * factor + shift
    if mean.shape != x.mean.shape:
        raise RefusedError(f"expected a constant that fits into shape {tuple(factor.shape)}, got {tuple(mean.shape)}")
    flat = factor.flatten(1)
    variance = None if x.variance is None else x.variance * factor.square()
    covariance = None if x.covariance is None else x.covariance * flat.unsqueeze(2) * flat.unsqueeze(1)
    return PropagatedLayer(GaussianMoments(mean, variance, covariance), lambda c: c * flat.unsqueeze(2))


def weighted_sum(
    a: GaussianMoments, b: GaussianMoments, weights: tuple[float, float], between: Tensor | None
) -> GaussianMoments:
    """Add two activations: Cov(a + b) = Cov(a) + Cov(b) + Cov(a, b) + Cov(b, a), with Cov(a, b) = 0 if None."""
    first, second = weights
    mean = first * a.mean + second * b.mean
    if a.variance is None and b.variance is None:
        return GaussianMoments(mean)
    if between is None and a.covariance is None and b.covariance is None:
        return GaussianMoments(mean, a.full_variance() * first**2 + b.full_variance() * second**2)
    matrix = first**2 * a.full_covariance() + second**2 * b.full_covariance()
    if between is not None:
        matrix += first * second * (between + between.transpose(1, 2))
    return from_covariance(mean, matrix)


def reshaping(x: GaussianMoments, shape: Sequence[int]) -> PropagatedLayer:
    """Change the shape of the elements of an example; their order stays."""
    mean = x.mean.reshape(tuple(shape))
    if mean.dim() < 1 or len(mean) != len(x.mean):
        raise RefusedError(f"expected the first axis to stay the batch, got {tuple(x.mean.shape)} to {tuple(shape)}")
    variance = None if x.variance is None else x.variance.reshape(mean.shape)
    return PropagatedLayer(GaussianMoments(mean, variance, x.covariance), lambda c: c)


def activation(x: GaussianMoments, function: Activation) -> PropagatedLayer:
    """Apply an elementwise function to an input taken as Gaussian; exact if it is, see :mod:`.activations`."""
    if x.variance is None:
        return PropagatedLayer(GaussianMoments(function.function(x.mean)), lambda c: c)
    random = _numerics.is_random(x.variance)
    mean, variance, slope = function.moments(x.mean, torch.where(random, x.variance, 1))
    mean = torch.where(random, mean, function.function(x.mean))
    variance = variance * random
    # It multiplies covariances of zero there, but their derivatives need not be zero.
    slope = torch.where(random, slope, function.slope(x.mean))
    covariance = None
    if x.covariance is not None:
        mean_of_x, variance_of_x = x.mean.flatten(1), x.variance.flatten(1)
        covariance = activations.covariance(function, mean_of_x, variance_of_x, x.covariance, slope.flatten(1))
        covariance = with_diagonal(covariance, variance)
    flat = slope.flatten(1).unsqueeze(2)
    curvature = (variance - slope.square() * x.variance).clamp(min=0)
    return PropagatedLayer(GaussianMoments(mean, variance, covariance), lambda c: c * flat, independent(curvature))


def masking(x: GaussianMoments, full: bool, law: Law, scale: str, shared_axes: Sequence[int] = ()) -> PropagatedLayer:
    """Multiply every element x_i by a mask value m_i, independent of x: exact. With g = E[m], v = Var(m), scaled::

        E[m_i x_i]               = g E[x_i]
        Cov(m_i x_i, m_j x_j)    = g^2 Cov(x_i, x_j) + [i and j share a mask value] v E[x_i x_j]

    Unless covariances are followed (``full``), elements that share a mask value are taken as uncorrelated, too. Sharing
    along the batch does not change an example's moments.
    """
    gain, noise = scaled_moments(law, scale)
    if noise == 0:
        return scaling(x, gain)
    spread, centre = x.full_variance(), x.mean.flatten(1)
    own = noise * (x.mean.square() + spread)
    variance = gain**2 * spread + own
    covariance, added_noise = None, independent(own)
    groups = _mask_groups(x.mean.shape, shared_axes)
    if groups is not None:
        groups = groups.to(centre.device)
        added_noise = _shared(noise, centre, independent(noise * spread), groups)
    if full and groups is not None:
        before = x.full_covariance()
        products = torch.baddbmm(before, centre.unsqueeze(2), centre.unsqueeze(1))
        covariance = products.mul_(groups.unsqueeze(0) == groups.unsqueeze(1)).mul_(noise).add_(before, alpha=gain**2)
    elif x.covariance is not None:
        covariance = with_diagonal(gain**2 * x.covariance, variance)
    output = GaussianMoments(x.mean * gain, variance, covariance)
    return PropagatedLayer(output, lambda c: gain * c, added_noise)


def noisy_linear(
    x: GaussianMoments, full: bool, module: Any, *, masked_bias: bool = False, shared: bool = False
) -> PropagatedLayer:
    """Apply a linear layer with one mask value per weight: exact. With g = E[m] and v = Var(m), scaled alike::

        mean       = g (W E[x] + b)
        covariance = g^2 W Cov(x) W^T + diag(v ((W * W) E[x * x] + b * b))

    A bias that is not masked enters the mean as it is, and not the covariance. Positions of an example [..., in] have
    masks of their own, or share them; then outputs o at positions s and t have the covariance v (sum over i of
    W_oi^2 E[x_si x_ti] + b_o^2) in common (but their inputs are taken as uncorrelated unless ``full``).
    """
    gain, noise = scaled_moments(module.law, module.scale)
    weight = double(module.weight)
    bias = None if module.bias is None else double(module.bias)
    masked, squares = bias if masked_bias else None, weight.square()
    step = affine(
        x,
        full,
        lambda t: gain * linear(t, weight),
        lambda t: gain**2 * linear(t, squares),
        0.0 if bias is None else gain * bias if masked_bias else bias,
    )
    if noise == 0:
        return step
    square_bias = None if masked is None else masked.square()
    own = noise * linear(x.mean.square() + x.full_variance(), squares, square_bias)
    variance = step.output.full_variance() + own
    covariance, added_noise = step.output.covariance, independent(own)
    if shared and x.mean.dim() > 2:
        alone = independent(noise * linear(x.full_variance(), squares))
        added_noise = _shared_weights(noise, x.mean, weight, masked, alone)
        if full:
            covariance = step.output.full_covariance() + noise * _common_covariance(x, squares, square_bias)
    elif covariance is not None:
        covariance = with_diagonal(covariance, variance)
    return PropagatedLayer(GaussianMoments(step.output.mean, variance, covariance), step.respond, added_noise)


def scaled_moments(law: Law, scale: str) -> tuple[float, float]:
    """Return mean and variance of a mask value as a layer scales it in training."""
    factor = training_factor("moments", _numerics.as_law("moments", law), scale)
    return law.mean * factor, law.variance * factor**2


def with_diagonal(covariance: Tensor, variance: Tensor) -> Tensor:
    """Write variances into the diagonal of a covariance, in place."""
    covariance.diagonal(dim1=1, dim2=2).copy_(variance.flatten(1))
    return covariance


def from_covariance(mean: Tensor, covariance: Tensor) -> GaussianMoments:
    """Return the moments with this covariance matrix, whose diagonal is clamped to at least 0 in place."""
    diagonal = covariance.diagonal(dim1=1, dim2=2).clamp_(min=0)
    return GaussianMoments(mean, diagonal.reshape(mean.shape).clone(), covariance)


def independent(variance: Tensor) -> Map:
    """Return added noise that is independent between elements."""
    flat = variance.flatten(1).unsqueeze(1)
    return lambda rows: (rows * flat) @ rows.transpose(1, 2)


def _shared(noise: float, mean: Tensor, independent: Map, groups: Tensor) -> Map:
    """Return added noise of mask values shared within groups, of elements taken as uncorrelated."""

    def added_noise(rows: Tensor) -> Tensor:
        sums = rows.new_zeros(*rows.shape[:2], int(groups.max()) + 1)
        sums.index_add_(2, groups, rows * mean.unsqueeze(1))
        return noise * sums @ sums.transpose(1, 2) + independent(rows)

    return added_noise


def _shared_weights(noise: float, mean: Tensor, weight: Tensor, bias: Tensor | None, alone: Map) -> Map:
    """Return added noise of weight masks that all positions share, of inputs taken as uncorrelated.

    The mean of the input is [N, ..., in]; ``alone`` is the added noise from its variance, at each position by itself.
    """
    positions = mean.flatten(1, -2)

    def added_noise(rows: Tensor) -> Tensor:
        check_size(rows.shape[0], rows.shape[1], weight.numel())
        by_position = rows.reshape(*rows.shape[:2], positions.shape[1], -1)
        sums = (torch.einsum("nkto,nti->nkoi", by_position, positions) * weight).flatten(2)
        if bias is not None:
            sums = torch.cat([sums, by_position.sum(2) * bias], 2)
        return noise * sums @ sums.transpose(1, 2) + alone(rows)

    return added_noise


def _common_covariance(x: GaussianMoments, squares: Tensor, square_bias: Tensor | None) -> Tensor:
    """Return the covariance [N, D, D] that weight masks of variance 1 add to the output if all positions share them."""
    mean = x.mean.flatten(1, -2)
    n, positions, inputs = mean.shape
    between = x.full_covariance().reshape(n, positions, inputs, positions, inputs).diagonal(dim1=2, dim2=4)
    second = between + mean.unsqueeze(2) * mean.unsqueeze(1)
    outputs = linear(second, squares, square_bias)
    size = positions * len(squares)
    return torch.diag_embed(outputs).transpose(2, 3).reshape(n, size, size)


def _mask_groups(shape: Sequence[int], shared_axes: Sequence[int]) -> Tensor | None:
    """Return the number of the mask value of each element of an example; None if none is shared."""
    shared = {axis % len(shape) for axis in shared_axes if -len(shape) <= axis < len(shape)}
    if len(shared) < len(shared_axes):
        raise RefusedError(f"expected different shared_axes within {len(shape)} axes, got {tuple(shared_axes)}")
    sizes = [1 if axis in shared else size for axis, size in enumerate(shape)][1:]
    if math.prod(sizes) == math.prod(shape[1:]):
        return None
    return torch.arange(math.prod(sizes)).reshape(sizes).expand(tuple(shape[1:])).flatten()


def double(parameter: Tensor) -> Tensor:
    return parameter.to(torch.float64)
