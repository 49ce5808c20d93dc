"""Exact expectations of a sigmoid unit under dropout, for every law, through the transform of the mask's law.

A = sum of t_j m_j has independent terms, so E[exp(z A)] is the product of M(z t_j) with M(z) = E[exp(z m)]. The sigmoid
and its integral are mixtures of waves whose weights fall like exp(-pi w) (Gradshteyn and Ryzhik 3.981)::

    sigmoid(a)       = 1/2 + integral over w > 0 of sin(w a) / sinh(pi w)
    log(1 + exp(a))  = a / 2 + log 2 + integral over w > 0 of (1 - cos(w a)) / (w sinh(pi w))

so that their expectations are one-dimensional integrals over products of M, whatever the number of inputs: no normal
approximation, no sum over 2^n masks. The midpoint rule with step h replaces tanh(a / 2), the wave's odd part, by its
repetition with alternating sign every 2 pi / h, so its error is exp(-(2 pi / h - |a|)): h is chosen so that this is
below exp(-40) for every |a| that A takes with probability above 1e-18. What remains is rounding, about 1e-15.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..laws import Bernoulli, Gaussian, Law, Uniform
from .quadrature import legendre, normal_density

LARGEST_FREQUENCY = 12.0  # exp(-pi 12) = 4e-17
_MARGIN = 40.0
_NODES_PER_PANEL = 24
# What 24 Gauss-Legendre nodes integrate to rounding: a normal density this wide times a wave of this phase.
_DEVIATIONS_PER_PANEL = 5.0
_PHASE_PER_PANEL = 16.0
_CELLS = 2_000_000  # of the largest intermediate tensor: 32 MB of complex numbers


def support(law: Law) -> tuple[float, float]:
    """The smallest and the largest mask value."""
    if isinstance(law, Bernoulli):
        return min(0.0, law.value), max(0.0, law.value)
    if isinstance(law, (Uniform, Gaussian)):
        return law.low, law.high
    raise TypeError(
        f"theory: expected a Bernoulli, Uniform or Gaussian law where more than two moments enter, got {law!r}"
    )


def is_normal(law: Law) -> bool:
    """Whether a mask value is exactly normal: a Gaussian law that clips nothing."""
    return isinstance(law, Gaussian) and law.low == -math.inf and law.high == math.inf


def points(law: Law, frequency: float = 0.0, split: float | None = None) -> tuple[Tensor, Tensor]:
    """Values v and probabilities p with E[f(m)] = sum of p f(v), to rounding for smooth f.

    The atoms of the law, and Gauss-Legendre panels over its density.

    Args:
        law: The law of m.
        frequency: f may oscillate like exp(i frequency m).
        split: f may have a kink there.
    """
    low, high = support(law)
    if isinstance(law, Bernoulli):
        return torch.tensor([0.0, law.value], dtype=torch.float64), torch.tensor(
            [1 - law.keep, law.keep], dtype=torch.float64
        )
    atoms: list[tuple[float, float]] = []
    centre, unit, width = 0.0, 1.0, math.inf
    if isinstance(law, Gaussian):
        if law.sigma == 0:
            return torch.tensor([law.mean], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        for bound, sign in ((low, 1.0), (high, -1.0)):
            if math.isfinite(bound):
                atoms.append((bound, math.erfc(-sign * (bound - law.mu) / law.sigma / math.sqrt(2)) / 2))
        # In standard deviations from mu, so that a narrow law loses no digits. Beyond 9.5 lies a probability of 2e-21.
        centre, unit, width = law.mu, law.sigma, _DEVIATIONS_PER_PANEL
        low, high = max((low - centre) / unit, -9.5), min((high - centre) / unit, 9.5)
    if frequency:
        width = min(width, _PHASE_PER_PANEL / abs(frequency) / unit)
    kink = None if split is None else (split - centre) / unit
    values, probabilities = (
        torch.tensor(column, dtype=torch.float64) for column in (zip(*atoms) if atoms else ([], []))
    )
    breaks = [low, high] if kink is None or not low < kink < high else [low, kink, high]
    node, node_weight = legendre(_NODES_PER_PANEL)
    for start, stop in itertools.pairwise(breaks):
        if start >= stop:
            continue  # all of the normal's probability is at an atom
        count = math.ceil((stop - start) / width) if math.isfinite(width) else 1
        half = (stop - start) / count / 2
        centres = start + half * (2 * torch.arange(count, dtype=torch.float64) + 1)
        v = (centres.unsqueeze(-1) + half * node).flatten()
        density = torch.full_like(v, 1 / (high - low))
        if isinstance(law, Gaussian):
            density = normal_density(v)
        values = torch.cat([values, centre + unit * v])
        probabilities = torch.cat([probabilities, (half * node_weight).repeat(count) * density])
    return values, probabilities


def transform(law: Law, z: Tensor) -> tuple[Tensor, Tensor]:
    """M(z) = E[exp(z m)] and M'(z) = E[m exp(z m)] for complex z."""
    if isinstance(law, Bernoulli):
        kept = law.keep * torch.exp(law.value * z)
        return (1 - law.keep) + kept, law.value * kept
    if is_normal(law):
        m = torch.exp(law.mean * z + law.variance / 2 * z * z)
        return m, (law.mean + law.variance * z) * m
    v, p = points(law, frequency=z.abs().max().item() if z.numel() else 0.0)
    waves = torch.exp(z.unsqueeze(-1) * v)
    return waves @ p.to(z.dtype), waves @ (p * v).to(z.dtype)


def reach(terms: Tensor, law: Law) -> float:
    """A bound of |A - E[A]| that is exceeded with a probability below 1e-18.

    With c the width of the law's support or infinity, by Hoeffding's inequality 4.6 c |t|; and since a clipped normal
    is a 1-Lipschitz function of a normal one, by Gaussian concentration 9.2 sigma |t|.
    """
    low, high = support(law)
    width = 4.6 * (high - low)
    if isinstance(law, Gaussian):
        width = min(width, 9.2 * law.sigma)
    return width * terms.square().sum().sqrt().item()


def expected_sigmoid(terms: Tensor, law: Law) -> tuple[float, float]:
    """E[sigmoid(A)] and E[sigmoid(-A)], to 1e-15; the smaller one also relatively where A hardly changes sign.

    There A / 2 is taken out of the wave: sigmoid(a) = exp(a / 2) times the integral of cos(w a) / cosh(pi w), whose
    rounding error is 1e-16 E[exp(A / 2)] instead of 1e-16.
    """
    sign = -1.0 if terms.sum().item() * law.mean > 0 else 1.0
    tilted = _log_scale(sign * terms / 2, law) < 0
    small = 0.0 if tilted else 0.5
    for w, step in _frequencies(terms, law, tilted=tilted):
        z = torch.complex(torch.full_like(w, 0.5 if tilted else 0.0), w)
        m = _transforms(law, z, sign * terms)[0].prod(-1)
        waves = m.real / torch.cosh(math.pi * w) if tilted else m.imag / torch.sinh(math.pi * w)
        small += step * waves.sum().item()
    small = max(small, 0.0)
    return (small, 1 - small) if sign > 0 else (1 - small, small)


def expected_masked_sigmoid(terms: Tensor, law: Law) -> Tensor:
    """E[m_i sigmoid(A)] for every input i."""
    result = torch.full_like(terms, law.mean / 2)
    for w, step in _frequencies(terms, law):
        z = torch.complex(torch.zeros_like(w), w)
        m, masked = _transforms(law, z, terms)
        # The product over all other inputs from both ends: M may be zero, so it cannot be divided out.
        one = torch.ones_like(m[:, :1])
        before = torch.cat([one, m[:, :-1]], 1).cumprod(1)
        after = torch.cat([m[:, 1:], one], 1).flip(1).cumprod(1).flip(1)
        result += step * ((masked * before * after).imag / torch.sinh(math.pi * w).unsqueeze(-1)).sum(0)
    return result


def expected_softplus(terms: Tensor, law: Law) -> float:
    """E[log(1 + exp(A))]."""
    result = law.mean * terms.sum().item() / 2 + math.log(2)
    for w, step in _frequencies(terms, law):
        m = _transforms(law, torch.complex(torch.zeros_like(w), w), terms)[0].prod(-1)
        result += step * ((1 - m.real) / (w * torch.sinh(math.pi * w))).sum().item()
    return result


def characteristic(terms: Tensor, counts: Tensor, law: Law, w: Tensor) -> Tensor:
    """E[exp(i w (A - E[A]))] where A has ``counts[j]`` independent summands with factor ``terms[j]``."""
    result = [torch.ones(0, dtype=torch.complex128)]
    for part in w.tensor_split(_pieces(w, terms, law)):
        angle = part.unsqueeze(-1) * terms
        m = transform(law, torch.complex(torch.zeros_like(angle), angle))[0]
        shift = -law.mean * angle
        result.append((m * torch.complex(shift.cos(), shift.sin())).pow(counts).prod(-1))
    return torch.cat(result)


def _transforms(law: Law, z: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
    return transform(law, z.unsqueeze(-1) * terms)


def _log_scale(terms: Tensor, law: Law) -> float:
    """log E[exp(A)], up to a bound where it would overflow."""
    if is_normal(law):
        return law.mean * terms.sum().item() + law.variance / 2 * terms.square().sum().item()
    if terms.numel() and terms.abs().max().item() * max(abs(bound) for bound in support(law)) > 700:
        return math.inf
    m = transform(law, terms.to(torch.complex128))[0].real
    return m.log().sum().item()


def _frequencies(terms: Tensor, law: Law, *, tilted: bool = False) -> Iterator[tuple[Tensor, float]]:
    """The nodes of the midpoint rule, in pieces that fit in memory, and its step."""
    largest = abs(law.mean * terms.sum().item()) + reach(terms, law)
    low, high = support(law)
    if math.isfinite(low) and math.isfinite(high):
        largest = min(largest, terms.abs().sum().item() * max(abs(low), abs(high)))
    # A repetition of 1 / cosh(a / 2) falls off half as fast as one of tanh(a / 2).
    step = 2 * math.pi / (largest + _MARGIN) / (2 if tilted else 1)
    w = step * (torch.arange(math.ceil(LARGEST_FREQUENCY / step), dtype=torch.float64) + 0.5)
    for part in w.tensor_split(_pieces(w, terms, law)):
        yield part, step


def _pieces(w: Tensor, terms: Tensor, law: Law) -> int:
    """Into how many pieces the frequencies are to be cut."""
    nodes = 1
    if not isinstance(law, Bernoulli) and not is_normal(law):
        nodes = points(law, w.max().item() * terms.abs().max().item())[0].numel()
    return math.ceil(w.numel() * terms.numel() * nodes / _CELLS)
