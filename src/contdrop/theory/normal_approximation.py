"""Distance of the sum S = sum of w_j x_j m_j from a normal variable: a bound, and its value."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..laws import Bernoulli, Law, Uniform
from . import _numerics
from .sigmoid_expectations import Ceiling, characteristic, is_normal, points, reach

# Shevtsova (2010), for summands that need not be identically distributed.
BERRY_ESSEEN_CONSTANT = 0.5600

_ATOMS = 1 << 20  # values of S that are listed at most
_ADDITIONS = 1 << 29  # steps to list them on a lattice at most
_SLIP = 1e-5  # tolerated distance of S from the lattice
_LONGEST = 1 << 17  # nodes of the inversion, where the transform has a closed form
_LONGEST_BY_QUADRATURE = 1 << 11  # and where every value of it is itself an integral
_GRID = 1 << 16  # places at least where distribution functions are compared
_NEGLIGIBLE = 1e-10
_DENSITY = 1 / math.sqrt(2 * math.pi)  # the largest of N(0, 1)


class Distance(NamedTuple):
    """A distance, and the error of its computation."""

    value: float
    error: float


def third_absolute_moment(law: Law) -> float:
    """Compute E|m - E[m]|^3 exactly.

    Bernoulli with p = keep, q = 1 - p: p q (p^2 + q^2) |value|^3. Uniform: (high - low)^3 / 32. Unclipped Gaussian:
    2 sqrt(2 / pi) sigma^3. Clipped Gaussian: its atoms, and Gauss-Legendre panels on either side of the mean.
    """
    law = _numerics.as_law("third_absolute_moment", law)
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
    """Bound the Kolmogorov distance between S and the normal variable with its mean and variance.

    With t_j = w_j x_j, for independent summands (Berry-Esseen, constant after Shevtsova 2010)::

        sup |P(S <= s) - P(N <= s)| <= 0.5600 E|m - E[m]|^3 / Var(m)^(3/2) * sum |t_j|^3 / (sum t_j^2)^(3/2)

    The last factor is 1 / sqrt(n) if all t_j are alike, and does not fall with n if a few of them dominate: then S does
    not tend to a normal variable at all. (Bounded t_j, as the paper argues, are not enough; the sum of t_j^2 must grow
    without bound.)

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
    """Compute the Kolmogorov distance, sup over s of |P(S <= s) - P(N <= s)|, without sampling.

    - Unclipped Gaussian masks: 0, S is normal.
    - Bernoulli masks and at most 2^20 combinations of the numbers of kept inputs among those with equal t_j = w_j x_j:
      all values of S are listed, with their probabilities.
    - Bernoulli masks and t_j that are whole multiples of one number, at most 2^20 in sum: likewise, by adding one input
      after the other. (Quantised weights and inputs are of that kind.)
    - Otherwise the characteristic function psi of the standardised S is inverted (Gil-Pelaez 1951, discretised after
      Davies 1973 and evaluated by one fast Fourier transform)::

          P(S <= s) = 1/2 - sum over w = (k + 1/2) d of J(w / T) Im(exp(-i w s) psi(w)) d / (pi w)  +-  gap
          gap       = sum over the same w of (1 - w / T) Re(exp(-i w s) psi(w)) d / T

      with J(u) = pi u (1 - u) cot(pi u) + u. Beurling's functions (Vaaler 1985) make this hold for every S and every T,
      although nothing beyond the frequency T enters: the part of S there, such as jumps, is in the gap. For a law with
      a density |psi| has a falling bound, so that the sum may end long before T. For a law with atoms psi rises again,
      to 1 if S lies on a lattice: then T is as large as is affordable, and the error about 1.3 / T, which is 3e-5 for
      Bernoulli masks.

    Args:
        weight: w, of shape [in].
        x: Input, of shape [in].
        law: The law of m; its variance must be above 0.
    """
    weight = _numerics.as_tensor("normal_distance", "weight", weight, axes=1)
    x = _numerics.as_tensor("normal_distance", "x", x, axes=1)
    terms = _terms("normal_distance", weight, x, law)
    if is_normal(law):
        return Distance(0.0, 0.0)
    terms = terms / terms.abs().max()
    terms = terms / (law.variance * terms.square().sum()).sqrt()
    terms, counts = torch.unique(terms[terms != 0], return_counts=True)
    if isinstance(law, Bernoulli):
        if math.prod(count + 1 for count in counts.tolist()) <= _ATOMS:
            return _distance_of_atoms(*_all_values(terms, counts, law))
        step, multiples = _lattice(terms, counts)
        total = (multiples.abs() @ counts.to(terms)).item()
        # Distance of S from its lattice; it changes the result by at most as much times the normal density.
        slip = abs(law.value) * ((terms - step * multiples).abs() @ counts.to(terms)).item()
        if slip <= _SLIP and total <= _ATOMS and total * counts.sum().item() <= _ADDITIONS:
            value, error = _distance_of_atoms(*_values_on_lattice(step, multiples.repeat_interleave(counts), law))
            return Distance(value, error + _DENSITY * slip)
    return _distance_by_inversion(terms, counts, law)


def _all_values(terms: Tensor, counts: Tensor, law: Bernoulli) -> tuple[Tensor, Tensor]:
    values, probabilities = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for term, count in zip(terms.tolist(), counts.tolist()):
        kept = torch.arange(count + 1, dtype=torch.float64)
        log_choices = math.lgamma(count + 1) - torch.lgamma(kept + 1) - torch.lgamma(count - kept + 1)
        log_keep, log_drop = math.log(law.keep), math.log1p(-law.keep)
        binomial = torch.exp(log_choices + kept * log_keep + (count - kept) * log_drop)
        values = (values.unsqueeze(-1) + term * law.value * (kept - count * law.keep)).flatten()
        probabilities = (probabilities.unsqueeze(-1) * binomial).flatten()
    return values, probabilities


def _distance_of_atoms(values: Tensor, probabilities: Tensor) -> Distance:
    values, order = values.sort()
    top = probabilities[order].cumsum(0)
    bottom = top - probabilities[order]
    normal = torch.special.ndtr(values)
    # If rounding has split a jump in two, the level between the two lies between bottom and top and changes nothing.
    distance = torch.maximum((top - normal).abs(), (normal - bottom).abs()).max().item()
    return Distance(distance, 1e-12 + 2**-53 * len(values))


def _lattice(terms: Tensor, counts: Tensor) -> tuple[float, Tensor]:
    """Find g, as large as possible, and whole k_j with t_j near g k_j, by Euclid's algorithm.

    What is smaller than a g whose lattice could be listed counts as rounding.
    """
    finest = (terms.abs() @ counts.to(terms)).item() / _ATOMS
    step = 0.0
    for place, size in enumerate(terms.tolist(), 1):
        larger, smaller = abs(size), step
        while smaller > finest / 2:
            larger, smaller = smaller, abs(math.remainder(larger, smaller))
        # Fitted to all terms so far, so that rounding does not add up.
        multiples = (terms[:place] / larger).round()
        step = (terms[:place] @ multiples / multiples.square().sum()).item()
    return step, multiples


def _values_on_lattice(step: float, multiples: Tensor, law: Bernoulli) -> tuple[Tensor, Tensor]:
    """Return all values of S and their probabilities, adding one input after the other."""
    whole = multiples.long()
    lowest = int(whole.clamp(max=0).sum())
    probabilities = torch.zeros(int(whole.abs().sum()) + 1, dtype=torch.float64)
    probabilities[-lowest] = 1.0
    for k in whole.tolist():
        # Nothing is carried around the ends, whose probability is zero.
        probabilities = (1 - law.keep) * probabilities + law.keep * probabilities.roll(k)
    places = torch.arange(len(probabilities), dtype=torch.float64) + lowest
    return law.value * step * (places - law.keep * int(whole.sum())), probabilities


def _distance_by_inversion(terms: Tensor, counts: Tensor, law: Law) -> Distance:
    # Values of |s| up to here matter, and images of S at a distance of 2 pi / d do not reach them.
    edge = max(reach(terms.repeat_interleave(counts), law), 9.0) + 1
    d = math.pi / edge
    longest = _LONGEST if isinstance(law, Bernoulli) else _LONGEST_BY_QUADRATURE
    ceiling = Ceiling(law)
    psi = torch.zeros(0, dtype=torch.complex128)
    error = 1.0
    while error > _NEGLIGIBLE and len(psi) < longest:
        w = _frequencies(d, max(64, 2 * len(psi)))[len(psi) :]
        psi = torch.cat([psi, characteristic(terms, counts, law, w)])
        band, error = _best_band(psi, d, ceiling.product(d * len(psi) * terms, counts))
    smooth = _smooth_distance(psi, d, band, error)
    # Half of each jump of S is in the gap at its place; elsewhere the gap is small, and P(S <= s) is monotone.
    bracketed = _bracketed_distance(psi, d)
    return bracketed if bracketed.error < smooth.error / 2 else smooth


def _frequencies(d: float, count: int) -> Tensor:
    return d * (torch.arange(count, dtype=torch.float64) + 0.5)


def _sizes(psi: Tensor, d: float) -> tuple[float, float]:
    """Integrate |psi| and w |psi|."""
    size = psi.abs()
    return d * size.sum().item(), d * (_frequencies(d, len(psi)) * size).sum().item()


def _best_band(psi: Tensor, d: float, ceiling: float) -> tuple[float, float]:
    """Return T, and the error of P(S <= s) with it, if |psi| stays below the ceiling beyond the W that was reached.

    The gap is at most the sum of (1 - w / T) |psi| d / T, the images' share 16 / T^2; between W and T the sums have at
    most ceiling times log(T / W) / pi and (1 - W / T)^2 / 2.
    """
    end = d * len(psi)
    size, moment = _sizes(psi, d)
    choices = []
    for band in (end * 2.0**doublings for doublings in range(48)):
        beyond = ceiling * (math.log(band / end) / math.pi + (1 - end / band) ** 2 / 2)
        choices.append((size / band - moment / band**2 + 16 / band**2 + beyond, band))
    error, band = min(choices)
    return band, error


def _smooth_distance(psi: Tensor, d: float, band: float, error: float) -> Distance:
    s, middle, _ = _distribution(psi, d, band)
    # The grid misses the peak by at most the curvature of both distribution functions times the squared spacing / 8.
    curvature = _sizes(psi, d)[1] / math.pi + _DENSITY
    spacing = 2 * math.pi / d / len(s)
    value = (middle - torch.special.ndtr(s)).abs().max().item()
    return Distance(value, error + curvature * spacing**2 / 8 + 1e-12)


def _bracketed_distance(psi: Tensor, d: float) -> Distance:
    """Return the middle and half the range of the distances that the gap leaves possible for monotone functions."""
    s, middle, gap = _distribution(psi, d, d * len(psi))
    normal = torch.special.ndtr(s)
    lower = (middle - gap).cummax(0).values
    upper = (middle + gap).flip(0).cummin(0).values.flip(0)
    least = max((lower - normal).max().item(), (normal - upper).max().item(), 0.0)
    most = max((upper[1:] - normal[:-1]).max().item(), (normal[1:] - lower[:-1]).max().item())
    return Distance((least + most) / 2, (most - least) / 2 + 1e-12)


def _distribution(psi: Tensor, d: float, band: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return places s in order, the middle of the bounds on P(S <= s), and the gap to either side."""
    w = _frequencies(d, len(psi))
    u = w / band
    window = math.pi * u * (1 - u) / torch.tan(math.pi * u) + u
    size = max(4 * len(psi), _GRID)
    s = 2 * math.pi / d * (torch.arange(size, dtype=torch.float64) / size - 0.5)
    half = -s * d / 2
    turn = torch.complex(half.cos(), half.sin())

    def waves(weight: Tensor) -> Tensor:
        result: Tensor = torch.fft.fftshift(torch.fft.fft(psi * weight, n=size)) * turn
        return result

    middle = 0.5 - waves(window * d / (math.pi * w)).imag
    return s, middle, waves((1 - u) * d / band).real + 16 / band**2


def _terms(owner: str, weight: Tensor, x: Tensor, law: Law) -> Tensor:
    law = _numerics.as_law(owner, law)
    weight, x = _numerics.as_tensor(owner, "weight", weight), _numerics.as_tensor(owner, "x", x)
    if weight.dim() == 0 or x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
        shapes = f"{tuple(weight.shape)} and {tuple(x.shape)}"
        raise ValueError(f"{owner}: expected weight and x with one last axis, got shapes {shapes}")
    terms = weight * x
    if law.variance == 0 or not terms.any(-1).all():
        zeros = "" if law.variance == 0 else " and only zeros in weight * x"
        raise ValueError(f"{owner}: expected a sum with a variance above 0, got {law!r}{zeros}")
    return terms
