"""How normal the sum S = sum of w_j x_j m_j is: a bound, and the distance itself."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..laws import Bernoulli, Law, Uniform
from . import arguments
from .transforms import characteristic, is_normal, points, reach

# Shevtsova (2010), for summands that need not be identically distributed.
BERRY_ESSEEN_CONSTANT = 0.5600

_ATOMS = 1 << 20  # as many values of S are listed at most
_LONGEST = 1 << 17  # nodes of the inversion, where the transform has a closed form
_LONGEST_BY_QUADRATURE = 1 << 11  # and where every value of it is itself an integral
_NEGLIGIBLE = 1e-10
_SMALL = 1e-4


class Distance(NamedTuple):
    """A distance, and how far its computation may be off."""

    value: float
    error: float


def third_absolute_moment(law: Law) -> float:
    """E|m - E[m]|^3, exactly.

    Bernoulli with p = keep, q = 1 - p: p q (p^2 + q^2) |value|^3. Uniform: (high - low)^3 / 32. Unclipped Gaussian:
    2 sqrt(2 / pi) sigma^3. Clipped Gaussian: its atoms, and Gauss-Legendre panels on either side of the mean.
    """
    law = arguments.law("third_absolute_moment", law)
    if isinstance(law, Bernoulli):
        p, q = law.keep, 1 - law.keep
        return p * q * (p * p + q * q) * abs(law.value) ** 3
    if isinstance(law, Uniform):
        return (law.high - law.low) ** 3 / 32
    if is_normal(law):
        return 2 * math.sqrt(2 / math.pi) * math.pow(law.variance, 1.5)
    v, p_v = points(law, split=law.mean)
    return ((v - law.mean).abs() ** 3 @ p_v).item()


def berry_esseen(weight: Tensor, x: Tensor, law: Law) -> Tensor:
    """A bound of the Kolmogorov distance between S and the normal variable with its mean and variance.

    With t_j = w_j x_j, for independent summands (Berry-Esseen, constant after Shevtsova 2010)::

        sup |P(S <= s) - P(N <= s)| <= 0.5600 E|m - E[m]|^3 / Var(m)^(3/2) * sum |t_j|^3 / (sum t_j^2)^(3/2)

    The last factor is 1 / sqrt(n) if all t_j are alike, and does not fall with n if a few of them dominate: then S does
    not tend to a normal variable at all. That the t_j are bounded, as the paper argues, is not enough; the sum of t_j^2
    must grow without bound.

    Args:
        weight: w, of shape [..., in].
        x: Input, of shape [in] or one that broadcasts with the weight.
        law: The law of m; its variance must be above 0.

    Returns:
        The bound for every row, of shape [...], at most 1.
    """
    terms = _terms("berry_esseen", weight, x, law)
    ratio = third_absolute_moment(law) / math.pow(law.variance, 1.5)
    size = terms.abs().amax(-1, keepdim=True)
    terms = terms.abs() / size
    return (BERRY_ESSEEN_CONSTANT * ratio * terms.pow(3).sum(-1) / terms.square().sum(-1).pow(1.5)).clamp(max=1)


def normal_distance(weight: Tensor, x: Tensor, law: Law) -> Distance:
    """The Kolmogorov distance itself, sup over s of |P(S <= s) - P(N <= s)|, by computation and not by sampling.

    - Unclipped Gaussian masks: 0, S is normal.
    - Bernoulli masks and at most 2^20 combinations of the numbers of kept inputs among those with equal t_j = w_j x_j:
      all values of S are listed, with their probabilities.
    - Otherwise the characteristic function psi of the standardised S is inverted (Gil-Pelaez 1951, discretised after
      Davies 1973 and evaluated by one fast Fourier transform)::

          P(S <= s) = 1/2 - sum over w = (k + 1/2) d of Im(exp(-i w s) psi(w)) d / (pi w)

      up to the frequency from which on |psi| < 1e-10, or as far as is affordable. If |psi| is still above 1e-4 there
      (few inputs and a law with atoms: S has jumps), S is blurred by a normal variable with standard deviation e,
      which changes the distance by at most 4.5 e / sqrt(2 pi) + 1e-5; if it is between the two, the sum is cut off, and
      the jumps that it misses are smaller than what is left of |psi|, which is reported ten times as the error.

    Args:
        weight: w, of shape [in].
        x: Input, of shape [in].
        law: The law of m; its variance must be above 0.

    Returns:
        The distance, and how far this computation of it may be off.
    """
    weight = arguments.tensor("normal_distance", "weight", weight, axes=1)
    terms = _terms("normal_distance", weight, x, law)
    if is_normal(law):
        return Distance(0.0, 0.0)
    terms = terms / terms.abs().max()
    terms = terms / (law.variance * terms.square().sum()).sqrt()
    terms, counts = torch.unique(terms[terms != 0], return_counts=True)
    if isinstance(law, Bernoulli) and math.prod(count + 1 for count in counts.tolist()) <= _ATOMS:
        return Distance(_distance_of_atoms(terms, counts, law), 1e-12)
    return _distance_by_inversion(terms, counts, law)


def _distance_of_atoms(terms: Tensor, counts: Tensor, law: Bernoulli) -> float:
    values, probabilities = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for term, count in zip(terms.tolist(), counts.tolist()):
        kept = torch.arange(count + 1, dtype=torch.float64)
        log_choices = math.lgamma(count + 1) - torch.lgamma(kept + 1) - torch.lgamma(count - kept + 1)
        log_keep, log_drop = math.log(law.keep), math.log1p(-law.keep)
        binomial = torch.exp(log_choices + kept * log_keep + (count - kept) * log_drop)
        values = (values.unsqueeze(-1) + term * law.value * (kept - count * law.keep)).flatten()
        probabilities = (probabilities.unsqueeze(-1) * binomial).flatten()
    values, order = values.sort()
    top = probabilities[order].cumsum(0)
    bottom = top - probabilities[order]
    normal = torch.special.ndtr(values)
    # If rounding has split a jump in two, the level between the two lies between bottom and top and changes nothing.
    return torch.maximum((top - normal).abs(), (normal - bottom).abs()).max().item()


def _distance_by_inversion(terms: Tensor, counts: Tensor, law: Law) -> Distance:
    # Values of |s| up to here matter, and images of S at a distance of 2 pi / d do not reach them.
    edge = max(reach(terms.repeat_interleave(counts), law), 9.0) + 1
    d = math.pi / edge
    longest = _LONGEST if isinstance(law, Bernoulli) else _LONGEST_BY_QUADRATURE
    length, psi = 0, torch.zeros(0, dtype=torch.complex128)
    residue = 1.0
    while residue > _NEGLIGIBLE and length < longest:
        following = max(64, 2 * length)
        w = d * (torch.arange(length, following, dtype=torch.float64) + 0.5)
        more = characteristic(terms, counts, law, w)
        psi, residue, length = torch.cat([psi, more]), more.abs().max().item(), following
    w = d * (torch.arange(length, dtype=torch.float64) + 0.5)
    error = 10 * residue
    if residue > _SMALL:
        blur = 6 / w[-1].item()  # exp(-6^2 / 2) = 2e-8 of psi remains at the end
        psi = psi * torch.exp(-0.5 * (blur * w).square())
        error = 4.5 * blur / math.sqrt(2 * math.pi) + 1e-5
    size = max(4 * length, 1 << 16)
    s = 2 * edge * torch.arange(size, dtype=torch.float64) / size
    s = torch.where(s < edge, s, s - 2 * edge)
    waves = torch.fft.fft(psi * d / (math.pi * w), n=size)
    half = -s * d / 2
    distribution = 0.5 - (waves * torch.complex(half.cos(), half.sin())).imag
    # The grid misses the peak by less than its curvature, which is below 1, times the squared spacing.
    return Distance(
        (distribution - torch.special.ndtr(s)).abs().max().item(), error + (2 * edge / size) ** 2 / 8 + 1e-12
    )


def _terms(owner: str, weight: Tensor, x: Tensor, law: Law) -> Tensor:
    law = arguments.law(owner, law)
    weight, x = arguments.tensor(owner, "weight", weight), arguments.tensor(owner, "x", x)
    if weight.dim() == 0 or x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"{owner}: expected weight and x with one last axis, got shapes {tuple(weight.shape)} and {tuple(x.shape)}"
        )
    terms = weight * x
    if law.variance == 0 or not terms.any(-1).all():
        raise ValueError(
            f"{owner}: expected a sum with a variance above 0, got {law!r}"
            + ("" if law.variance == 0 else " and only zeros in weight * x")
        )
    return terms
