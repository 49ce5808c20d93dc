"""What is known of an activation, and what the kinds of operations of a network make of it.

A :class:`Belief` is the mean and (co)variance of one activation. An operation makes a :class:`Step` of it: the belief
of its output, and how its output covaries with anything that its input covaries with. That last part is what lets two
branches of a network be added correctly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...laws import Law, training_factor
from .. import _numerics
from . import activations
from .activations import Activation

# A covariance above this size is refused rather than left to end in a crash; several are in memory at a time.
LARGEST_COVARIANCE = 2 << 30

Map: TypeAlias = Callable[[Tensor], Tensor]


class RefusedError(ValueError):
    """A layer that is known, but not with these settings or this input. The caller knows its name and adds it."""


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

    def spread(self) -> Tensor:
        return torch.zeros_like(self.mean) if self.variance is None else self.variance

    def matrix(self) -> Tensor:
        """The covariance, whatever it is stored as."""
        if self.covariance is not None:
            return self.covariance
        check_size(*self.mean.flatten(1).shape)
        return torch.diag_embed(self.spread().flatten(1))


@dataclasses.dataclass(frozen=True)
class PropagatedLayer:
    """What a layer does.

    Attributes:
        belief: Of its output.
        respond: Cov(input, Z), [N, D, K], to Cov(output, Z), [N, D', K], for any Z: multiplies by the expected
            derivative of the layer.
        fresh: The covariance of G y, [N, K, K], for a matrix G, [N, K, D'], and y the part of the output that the
            linear response to the input does not account for: noise of the layer's own, and curvature. None if there
            is none.
    """

    belief: GaussianMoments
    respond: Map
    fresh: Map | None = None


@dataclasses.dataclass(frozen=True)
class Response:
    """A response whose transpose is known, which saves finding it by differentiation."""

    forward: Map
    transposed: Map

    def __call__(self, covariance: Tensor) -> Tensor:
        return self.forward(covariance)


def adjoint(respond: Map, elements: int, rows: Tensor) -> Tensor:
    """The transposed response: G, [N, K, D'], to G J, [N, K, D], where J is the matrix of ``respond``."""
    if isinstance(respond, Response):
        return respond.transposed(rows)
    n, k, _ = rows.shape
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        start = torch.zeros(n, elements, k, dtype=rows.dtype, device=rows.device, requires_grad=True)
        (result,) = torch.autograd.grad(respond(start), start, rows.transpose(1, 2), create_graph=differentiable)
    return result.transpose(1, 2)


def composed(first: PropagatedLayer, second: PropagatedLayer) -> PropagatedLayer:
    """Two steps as one."""
    elements = first.belief.mean[0].numel()

    def fresh(rows: Tensor) -> Tensor:
        result = rows.new_zeros(rows.shape[0], rows.shape[1], rows.shape[1])
        if second.fresh is not None:
            result = result + second.fresh(rows)
        if first.fresh is not None:
            result = result + first.fresh(adjoint(second.respond, elements, rows))
        return result

    return PropagatedLayer(second.belief, lambda c: second.respond(first.respond(c)), fresh)


def check_size(examples: int, elements: int, others: int | None = None) -> None:
    """Refuses a covariance between so many elements, or between them and so many others."""
    others = elements if others is None else others
    size = 8 * examples * elements * others
    if size > LARGEST_COVARIANCE:
        raise RefusedError(
            f"expected a covariance of at most {LARGEST_COVARIANCE / 2**30:.0f} GiB, got [{examples}, {elements}, "
            f"{others}], which takes {size / 2**30:.1f} GiB; give fewer examples at a time or use "
            "covariance='diagonal'"
        )


# The kinds of operations.


def affine(
    belief: GaussianMoments, full: bool, weigh: Map, weigh_squares: Map, shift: Tensor | None = None
) -> PropagatedLayer:
    """A linear map of all elements, plus a constant: exact.

    Args:
        belief: Of the input.
        full: Whether to follow covariances.
        weigh: The map without the constant, of a batch of any size.
        weigh_squares: The map with its coefficients squared.
        shift: The constant.
    """
    shape = belief.mean.shape[1:]

    def respond(covariance: Tensor) -> Tensor:
        n, _, k = covariance.shape
        rows = covariance.transpose(1, 2).reshape(n * k, *shape)
        return weigh(rows).reshape(n, k, -1).transpose(1, 2)

    mean = weigh(belief.mean)
    mean = mean if shift is None else mean + shift
    if belief.variance is None:
        return PropagatedLayer(GaussianMoments(mean), respond)
    if not full:
        return PropagatedLayer(GaussianMoments(mean, weigh_squares(belief.variance)), respond)
    check_size(*mean.flatten(1).shape)
    covariance = respond(respond(belief.matrix()).transpose(1, 2))
    return PropagatedLayer(from_covariance(mean, covariance), respond)


def scaling(belief: GaussianMoments, gain: Tensor | float, shift: Tensor | float = 0.0) -> PropagatedLayer:
    """Every element times a constant of its own, plus a constant: exact."""
    factor = torch.as_tensor(gain, dtype=belief.mean.dtype, device=belief.mean.device).expand(belief.mean.shape)
    mean = belief.mean * factor + shift
    if mean.shape != belief.mean.shape:
        raise RefusedError(f"expected a constant that fits into shape {tuple(factor.shape)}, got {tuple(mean.shape)}")
    flat = factor.flatten(1)
    variance = None if belief.variance is None else belief.variance * factor.square()
    covariance = None if belief.covariance is None else belief.covariance * flat.unsqueeze(2) * flat.unsqueeze(1)
    return PropagatedLayer(GaussianMoments(mean, variance, covariance), lambda c: c * flat.unsqueeze(2))


def reshaping(belief: GaussianMoments, shape: Sequence[int]) -> PropagatedLayer:
    """Another shape of the elements of an example; their order stays."""
    mean = belief.mean.reshape(tuple(shape))
    if mean.dim() < 1 or len(mean) != len(belief.mean):
        raise RefusedError(
            f"expected the first axis to stay the batch, got {tuple(belief.mean.shape)} to {tuple(shape)}"
        )
    variance = None if belief.variance is None else belief.variance.reshape(mean.shape)
    return PropagatedLayer(GaussianMoments(mean, variance, belief.covariance), lambda c: c)


def activation(belief: GaussianMoments, function: Activation) -> PropagatedLayer:
    """An elementwise function of an input taken as Gaussian; exact if it is, see :mod:`.activations`."""
    if belief.variance is None:
        return PropagatedLayer(GaussianMoments(function.function(belief.mean)), lambda c: c)
    random = _numerics.is_random(belief.variance)
    mean, variance, slope = function.moments(belief.mean, torch.where(random, belief.variance, 1))
    mean = torch.where(random, mean, function.function(belief.mean))
    variance = variance * random
    # It multiplies covariances of zero there, but their derivatives need not be zero.
    slope = torch.where(random, slope, function.slope(belief.mean))
    covariance = None
    if belief.covariance is not None:
        covariance = activations.covariance(
            function, belief.mean.flatten(1), belief.variance.flatten(1), belief.covariance, slope.flatten(1)
        )
        covariance.diagonal(dim1=1, dim2=2).copy_(variance.flatten(1))
    flat = slope.flatten(1).unsqueeze(2)
    curvature = (variance - slope.square() * belief.variance).clamp(min=0)
    return PropagatedLayer(GaussianMoments(mean, variance, covariance), lambda c: c * flat, independent(curvature))


def masking(
    belief: GaussianMoments, full: bool, law: Law, scale: str, shared_axes: Sequence[int] = ()
) -> PropagatedLayer:
    """Every element x_i times a mask value m_i, independent of x: exact. With g = E[m] and v = Var(m), scaled alike::

        E[m_i x_i]               = g E[x_i]
        Cov(m_i x_i, m_j x_j)    = g^2 Cov(x_i, x_j) + [i and j share a mask value] v E[x_i x_j]

    Args:
        belief: Of the input.
        full: Whether to follow covariances. If not, elements that share a mask value are taken as uncorrelated, too.
        law: Of the mask values.
        scale: "inverted" or "paper".
        shared_axes: Axes along which one value is shared. Sharing along the batch does not change an example's moments.
    """
    factor = training_factor("moments", _numerics.as_law("moments", law), scale)
    gain, noise = law.mean * factor, law.variance * factor**2
    if noise == 0:
        return scaling(belief, gain)
    mean, spread = belief.mean * gain, belief.spread()
    variance = gain**2 * spread + noise * (belief.mean.square() + spread)
    covariance = None
    groups = _mask_groups(belief.mean.shape, shared_axes)
    fresh = independent(noise * (belief.mean.square() + spread))
    if groups is not None:
        groups, centre = groups.to(mean.device), belief.mean.flatten(1)
        fresh = _shared(noise, centre, independent(noise * spread), groups)
    if full and groups is not None:
        before = belief.matrix()
        together = groups.unsqueeze(0) == groups.unsqueeze(1)
        products = torch.baddbmm(before, centre.unsqueeze(2), centre.unsqueeze(1)).mul_(together)
        covariance = products.mul_(noise).add_(before, alpha=gain**2)
    elif belief.covariance is not None:
        covariance = gain**2 * belief.covariance
        covariance.diagonal(dim1=1, dim2=2).copy_(variance.flatten(1))
    return PropagatedLayer(GaussianMoments(mean, variance, covariance), lambda c: gain * c, fresh)


def noisy_linear(
    belief: GaussianMoments, full: bool, module: Any, bias: Tensor | None, masked_bias: bool, shared: bool = False
) -> PropagatedLayer:
    """A linear layer with one mask value per weight: exact. With g = E[m] and v = Var(m), scaled alike::

        mean       = g (W E[x] + b)
        covariance = g^2 W Cov(x) W^T + diag(v ((W * W) E[x * x] + b * b))

    Positions of an example [..., in] have masks of their own, or share them; then outputs o at positions s and t have
    the covariance v (sum over i of W_oi^2 E[x_si x_ti] + b_o^2) in common.

    Args:
        belief: Of the input x.
        full: Whether to follow covariances.
        module: Has weight, law and scale.
        bias: b.
        masked_bias: Whether the bias is masked; if not, it enters the mean as it is, and not the covariance.
        shared: Whether all positions of an example share their masks. If covariances are not followed, their inputs are
            taken as uncorrelated.
    """
    factor = training_factor("moments", _numerics.as_law("moments", module.law), module.scale)
    gain, noise = module.law.mean * factor, module.law.variance * factor**2
    weight = double(module.weight)
    squares = weight.square()
    shift = None if bias is None else gain * bias if masked_bias else bias
    step = affine(
        belief,
        full,
        lambda t: gain * torch.nn.functional.linear(t, weight),
        lambda t: gain**2 * torch.nn.functional.linear(t, squares),
        shift,
    )
    if noise == 0:
        return step
    second = belief.mean.square() + belief.spread()
    square_bias = bias.square() if bias is not None and masked_bias else None
    own = noise * torch.nn.functional.linear(second, squares, square_bias)
    variance = step.belief.spread() + own
    covariance, fresh = step.belief.covariance, independent(own)
    if shared and belief.mean.dim() > 2:
        alone = independent(noise * torch.nn.functional.linear(belief.spread(), squares))
        fresh = _shared_weights(noise, belief.mean, weight, bias if masked_bias else None, alone)
        if full:
            covariance = step.belief.matrix() + noise * _common_covariance(belief, squares, square_bias)
    elif covariance is not None:
        covariance.diagonal(dim1=1, dim2=2).copy_(variance.flatten(1))
    return PropagatedLayer(GaussianMoments(step.belief.mean, variance, covariance), step.respond, fresh)


def from_covariance(mean: Tensor, covariance: Tensor) -> GaussianMoments:
    diagonal = covariance.diagonal(dim1=1, dim2=2).clamp_(min=0)
    return GaussianMoments(mean, diagonal.reshape(mean.shape).clone(), covariance)


def independent(variance: Tensor) -> Map:
    """Fresh noise that is independent between elements."""
    flat = variance.flatten(1).unsqueeze(1)
    return lambda rows: (rows * flat) @ rows.transpose(1, 2)


def _shared(noise: float, mean: Tensor, independent: Map, groups: Tensor) -> Map:
    """Fresh noise of mask values that are shared within groups, of elements taken as uncorrelated."""

    def fresh(rows: Tensor) -> Tensor:
        sums = rows.new_zeros(*rows.shape[:2], int(groups.max()) + 1)
        sums.index_add_(2, groups, rows * mean.unsqueeze(1))
        return noise * sums @ sums.transpose(1, 2) + independent(rows)

    return fresh


def _shared_weights(noise: float, mean: Tensor, weight: Tensor, bias: Tensor | None, alone: Map) -> Map:
    """Fresh noise of weight masks that all positions share, of inputs taken as uncorrelated.

    Args:
        noise: Variance of a mask value.
        mean: Of the input, [N, ..., in].
        weight: [out, in].
        bias: [out], if it is masked.
        alone: What the variance of the input adds, at each position by itself.
    """
    positions = mean.flatten(1, -2)

    def fresh(rows: Tensor) -> Tensor:
        check_size(rows.shape[0], rows.shape[1], weight.numel())
        by_position = rows.reshape(*rows.shape[:2], positions.shape[1], -1)
        sums = (torch.einsum("nkto,nti->nkoi", by_position, positions) * weight).flatten(2)
        if bias is not None:
            sums = torch.cat([sums, by_position.sum(2) * bias], 2)
        return noise * sums @ sums.transpose(1, 2) + alone(rows)

    return fresh


def _common_covariance(belief: GaussianMoments, squares: Tensor, square_bias: Tensor | None) -> Tensor:
    """What weight masks of variance 1 that all positions share add to the covariance of the output, [N, D, D]."""
    mean = belief.mean.flatten(1, -2)
    n, positions, inputs = mean.shape
    between = belief.matrix().reshape(n, positions, inputs, positions, inputs).diagonal(dim1=2, dim2=4)
    second = between + mean.unsqueeze(2) * mean.unsqueeze(1)
    outputs = torch.nn.functional.linear(second, squares, square_bias)
    size = positions * len(squares)
    return torch.diag_embed(outputs).transpose(2, 3).reshape(n, size, size)


def _mask_groups(shape: Sequence[int], shared_axes: Sequence[int]) -> Tensor | None:
    """Which elements of an example share a mask value, as a number each; None if none do."""
    shared = {axis % len(shape) for axis in shared_axes if -len(shape) <= axis < len(shape)}
    if len(shared) < len(shared_axes):
        raise RefusedError(f"expected different shared_axes within {len(shape)} axes, got {tuple(shared_axes)}")
    sizes = [1 if axis in shared else size for axis, size in enumerate(shape)][1:]
    if math.prod(sizes) == math.prod(shape[1:]):
        return None
    return torch.arange(math.prod(sizes)).reshape(sizes).expand(tuple(shape[1:])).flatten()


def double(parameter: Tensor) -> Tensor:
    return parameter.to(torch.float64)
