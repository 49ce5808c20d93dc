"""Exact expectations of a sigmoid unit under dropout, for every law, through the transform of the mask's law.

A = sum of t_j m_j has independent terms, so E[exp(z A)] is the product of M(z t_j) with M(z) = E[exp(z m)]. The sigmoid
and its integral are mixtures of waves whose weights fall like exp(-pi w) (Gradshteyn and Ryzhik 3.981)::

    sigmoid(a)       = 1/2 + integral over w > 0 of sin(w a) / sinh(pi w)
    log(1 + exp(a))  = a / 2 + log 2 + integral over w > 0 of (1 - cos(w a)) / (w sinh(pi w))

so that their expectations are one-dimensional integrals over products of M, whatever the number of inputs: no normal
approximation, no sum over 2^n masks. The midpoint rule with step h replaces tanh(a / 2), the wave's odd part, by its
repetition with alternating sign every 2 pi / h, so its error is exp(-(2 pi / h - |a|)): h is chosen so that this is
below exp(-40) for every |a| that A takes with probability above 1e-18. What remains is rounding, about 1e-15.

Where A is far below zero, 1e-15 may be more than the expectation itself. There exp(r A) is taken out of the wave, with
0 < r <= 1 where E[exp(r A)] is smallest (the same formulas along the line of real part r, z = r + i w)::

    sigmoid(a)       = [r = 1] exp(a) / 2 + integral over w > 0 of Re(exp(z a) / sin(pi z))
    log(1 + exp(a))  = [r = 1] exp(a) / 2 + integral over w > 0 of Re(exp(z a) / (z sin(pi z)))

Rounding is then 1e-16 E[exp(r A)]: about 1e-15 of the expectation, because that is nearly as small. For 0 < r < 1 the
exponent of the midpoint rule's error has a factor min(r, 1 - r), so h is smaller. Logarithms are returned where the
expectation itself may underflow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .._clipped_normal import gauss_legendre
from ..laws import Bernoulli, Gaussian, Law, Uniform
from ._numerics import normal_pdf

LARGEST_FREQUENCY = 12.0  # exp(-pi 12) = 4e-17
_MARGIN = 40.0
# What 24 Gauss-Legendre nodes integrate to rounding: a normal density this wide times a wave of this phase.
_DEVIATIONS_PER_PANEL = 5.0
_PHASE_PER_PANEL = 16.0
_TERMS_AT_ONCE = 64
_NEGLIGIBLE = 1e-20
_CELLS = 2_000_000  # of the largest intermediate tensor: 32 MB of complex numbers


def support(law: Law) -> tuple[float, float]:
    """Return the smallest and the largest mask value."""
    if isinstance(law, Bernoulli):
        return min(0.0, law.value), max(0.0, law.value)
    if isinstance(law, (Uniform, Gaussian)):
        return law.low, law.high
    raise TypeError(
        f"theory: expected a Bernoulli, Uniform or Gaussian law where more than two moments enter, got {law!r}"
    )


def is_normal(law: Law) -> bool:
    """Tell whether a mask value is exactly normal: a Gaussian law that clips nothing."""
    return isinstance(law, Gaussian) and law.low == -math.inf and law.high == math.inf


def points(
    law: Law, frequency: float = 0.0, split: float | None = None, growth: tuple[float, float] = (0.0, 0.0)
) -> tuple[Tensor, Tensor]:
    """Return values v and probabilities p with E[f(m)] = sum of p f(v), to rounding for smooth f.

    They are the atoms of the law, and Gauss-Legendre panels over its density. f may oscillate like
    exp(i ``frequency`` m), have a kink at ``split``, and grow like exp(-growth[0] m) for small m and like
    exp(growth[1] m) for large m.
    """
    low, high = support(law)
    if isinstance(law, Bernoulli):
        return _columns([(0.0, 1 - law.keep), (law.value, law.keep)])
    if law.variance == 0 and isinstance(law, Gaussian):
        return _columns([(law.mean, 1.0)])
    atoms: list[tuple[float, float]] = []
    centre, unit, width = 0.0, 1.0, math.inf
    if isinstance(law, Gaussian):
        atoms = _atoms(law)
        # In standard deviations from mu, so that a narrow law loses no digits. Beyond 9.5 lies a probability of 2e-21;
        # exp(growth m) moves a normal density by growth sigma of them.
        centre, unit, width = law.mu, law.sigma, _DEVIATIONS_PER_PANEL
        low = max((low - centre) / unit, -9.5 - growth[0] * unit)
        high = min((high - centre) / unit, 9.5 + growth[1] * unit)
    if frequency:
        width = min(width, _PHASE_PER_PANEL / abs(frequency) / unit)
    kinks = [] if split is None else [(split - centre) / unit]
    v, weights = _panels([low, *(kink for kink in kinks if low < kink < high), high], width)
    density = normal_pdf(v) if isinstance(law, Gaussian) else torch.full_like(v, 1 / (high - low))
    values, probabilities = _columns(atoms)
    return torch.cat([values, centre + unit * v]), torch.cat([probabilities, weights * density])


def _columns(pairs: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    values, probabilities = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).unbind(1)
    return values, probabilities


def _atoms(law: Gaussian) -> list[tuple[float, float]]:
    """Return the bounds of a clipped law, and their probabilities."""
    root = law.sigma * math.sqrt(2)
    sides = ((law.low, law.mu - law.low), (law.high, law.high - law.mu))
    return [(bound, math.erfc(distance / root) / 2) for bound, distance in sides if math.isfinite(bound)]


def _panels(breaks: Sequence[float], width: float) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights between breaks, in panels of at most this width."""
    node, weight = _columns(gauss_legendre())
    nodes, weights = [node[:0]], [weight[:0]]
    for start, stop in itertools.pairwise(breaks):
        if start >= stop:
            continue  # all of the normal's probability is at an atom
        count = max(math.ceil((stop - start) / width), 1)
        half = (stop - start) / count / 2
        centres = start + half * (2 * torch.arange(count, dtype=torch.float64) + 1)
        nodes.append((centres.unsqueeze(-1) + half * node).flatten())
        weights.append((half * weight).repeat(count))
    return torch.cat(nodes), torch.cat(weights)


def transform(law: Law, z: Tensor) -> tuple[Tensor, Tensor]:
    """Compute M(z) = E[exp(z m)] and M'(z) = E[m exp(z m)] for complex z."""
    if isinstance(law, Bernoulli):
        kept = law.keep * torch.exp(law.value * z)
        return (1 - law.keep) + kept, law.value * kept
    if is_normal(law):
        m = torch.exp(law.mean * z + law.variance / 2 * z * z)
        return m, (law.mean + law.variance * z) * m
    v, p = points(law, frequency=z.abs().max().item() if z.numel() else 0.0)
    waves = torch.exp(z.unsqueeze(-1) * v)
    return waves @ p.to(z.dtype), waves @ (p * v).to(z.dtype)


def reach(terms: Tensor, law: Law, tilt: float = 0.0) -> float:
    """Bound |A - E[A]|, up to a probability of 1e-18, also if A is weighted by exp(tilt A).

    With c the width of the law's support or infinity, by Hoeffding's inequality 4.6 c |t|; and since a clipped normal
    is a 1-Lipschitz function of a normal one, by Gaussian concentration 9.2 sigma |t|. Weighted, a clipped normal is an
    atom and a normal one cut off, whose mean moves by tilt |t| sigma^2 towards an open end: Hoeffding's again.
    """
    low, high = support(law)
    width = torch.full_like(terms, 4.6 * (high - low))
    if isinstance(law, Gaussian):
        concentrated = torch.full_like(terms, 9.2 * law.sigma)
        if tilt and not is_normal(law):
            open_end = torch.where(terms > 0, high, -low) == math.inf
            concentrated = 1.5 * concentrated + 4.6 * tilt * law.sigma**2 * terms.abs() * open_end
        width = torch.minimum(width, concentrated)
    return (width * terms).square().sum().sqrt().item()


def expected_sigmoid(terms: Tensor, law: Law) -> tuple[float, float]:
    """Compute E[sigmoid(A)] and E[sigmoid(-A)], to 1e-15; the smaller one also relatively, down to 1e-308."""
    above, below = log_expected_sigmoid(terms, law)
    return math.exp(above), math.exp(below)


def log_expected_sigmoid(terms: Tensor, law: Law) -> tuple[float, float]:
    """Compute log E[sigmoid(A)] and log E[sigmoid(-A)], for A at any distance from zero."""
    sign = _sign(terms, law)
    small = min(_log_expectation(sign * terms, law, 0), math.log1p(-(2.0**-53)))
    large = math.log1p(-math.exp(small))
    return (small, large) if sign > 0 else (large, small)


def expected_softplus(terms: Tensor, law: Law) -> tuple[float, float]:
    """Compute E[log(1 + exp(A))] and E[log(1 + exp(-A))]; they differ by E[A]."""
    sign = _sign(terms, law)
    small = math.exp(_log_expectation(sign * terms, law, 1))
    large = small + abs(law.mean * terms.sum().item())
    return (small, large) if sign > 0 else (large, small)


def _sign(terms: Tensor, law: Law) -> float:
    """Return the sign that makes the mean of A negative."""
    return -1.0 if terms.sum().item() * law.mean > 0 else 1.0


def _log_expectation(terms: Tensor, law: Law, order: int) -> float:
    """Compute log E[sigmoid(A)] for order 0 and log E[log(1 + exp(A))] for order 1, for A of mean at most 0."""
    tilt, scale = _tilt(terms, law)
    result = 0.0 if 0 < tilt < 1 else 0.5
    if order == 1 and tilt == 0:
        result = law.mean * terms.sum().item() / 2 + math.log(2)
    sine, cosine = math.sin(math.pi * min(tilt, 1 - tilt)), math.cos(math.pi * tilt)
    for w, step in _frequencies(terms, law, tilt):
        m = _tilted(terms, law, tilt, w)
        wave = torch.complex(sine * torch.cosh(math.pi * w), cosine * torch.sinh(math.pi * w))
        if order == 1 and tilt == 0:
            waves = (1 - m.real) / (w * torch.sinh(math.pi * w))
        else:
            waves = (m / wave / torch.complex(torch.full_like(w, tilt), w) ** order).real
        result += step * waves.sum().item()
    return scale + math.log(result)


def _tilt(terms: Tensor, law: Law) -> tuple[float, float]:
    """Return r, and log E[exp(r A)]; r is 0 or 1 where these are good enough, as they leave no pole nearby."""
    if _cumulant(terms, law, 1.0)[1] <= 0:
        best = 1.0
    else:
        below, above = 0.0, 1.0
        for _ in range(30):
            best = (below + above) / 2
            below, above = (best, above) if _cumulant(terms, law, best)[1] < 0 else (below, best)
    least = _cumulant(terms, law, best)[0]
    if least > -2:
        return 0.0, 0.0
    at_one = _cumulant(terms, law, 1.0)[0]
    return (1.0, at_one) if at_one < least + 2 else (best, least)


def _cumulant(terms: Tensor, law: Law, tilt: float) -> tuple[float, float]:
    """Compute log E[exp(tilt A)] and its derivative by tilt, which is the mean of A weighted by exp(tilt A)."""
    if is_normal(law):
        mean, variance = law.mean * terms.sum().item(), law.variance * terms.square().sum().item()
        return tilt * mean + tilt**2 * variance / 2, mean + tilt * variance
    v, log_p = _tilted_points(terms, law, tilt)
    return log_p.logsumexp(-1).sum().item(), (terms * (log_p.softmax(-1) @ v)).sum().item()


def _tilted(terms: Tensor, law: Law, tilt: float, w: Tensor) -> Tensor:
    """Compute E[exp((tilt + i w) A)] / E[exp(tilt A)]."""
    if is_normal(law):
        mean, variance = _cumulant(terms, law, tilt)[1], law.variance * terms.square().sum().item()
        return torch.exp(torch.complex(-variance / 2 * w.square(), mean * w))
    v, log_p = _tilted_points(terms, law, tilt, w.max().item())
    angle = (w.unsqueeze(-1) * terms).unsqueeze(-1) * v
    p = log_p.softmax(-1)
    sums = [torch.einsum("wtv,tv->wt", part, p) for part in (angle.cos(), angle.sin())]
    return torch.complex(*sums).prod(-1)


def _tilted_points(terms: Tensor, law: Law, tilt: float, frequency: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return values of m, and for each term the logarithms of their probabilities times exp(tilt t m)."""
    down, up = tilt * max(-terms.min().item(), 0.0), tilt * max(terms.max().item(), 0.0)
    v, p = points(law, max(down, up, frequency * terms.abs().max().item()), growth=(down, up))
    return v, p.log() + tilt * terms.unsqueeze(-1) * v


def expected_masked_sigmoid(terms: Tensor, law: Law) -> Tensor:
    """Compute E[m_i sigmoid(A)] for every input i."""
    result = torch.full_like(terms, law.mean / 2)
    for w, step in _frequencies(terms, law):
        z = torch.complex(torch.zeros_like(w), w)
        m, masked = transform(law, z.unsqueeze(-1) * terms)
        # The product over all other inputs from both ends: M may be zero, so it cannot be divided out.
        one = torch.ones_like(m[:, :1])
        before = torch.cat([one, m[:, :-1]], 1).cumprod(1)
        after = torch.cat([m[:, 1:], one], 1).flip(1).cumprod(1).flip(1)
        result += step * ((masked * before * after).imag / torch.sinh(math.pi * w).unsqueeze(-1)).sum(0)
    return result


def characteristic(terms: Tensor, counts: Tensor, law: Law, w: Tensor) -> Tensor:
    """Compute E[exp(i w (A - E[A]))] where A has ``counts[j]`` independent summands with factor ``terms[j]``."""
    shift = -law.mean * (terms @ counts.to(terms)) * w
    result = torch.complex(shift.cos(), shift.sin())
    left = torch.arange(len(w))
    for start in range(0, len(terms), _TERMS_AT_ONCE):
        some = slice(start, start + _TERMS_AT_ONCE)
        result[left] *= _product(terms[some], counts[some], law, w[left])
        # No factor is above 1, so what is negligible stays so.
        left = left[result[left].abs() > _NEGLIGIBLE]
    return result


def _product(terms: Tensor, counts: Tensor, law: Law, w: Tensor) -> Tensor:
    """Compute E[exp(i w A)] of some of the terms."""
    result = [torch.ones(0, dtype=torch.complex128)]
    for part in w.tensor_split(_pieces(w, terms, law)) if len(w) else ():
        angle = part.unsqueeze(-1) * terms
        m = transform(law, torch.complex(torch.zeros_like(angle), angle))[0]
        # A complex power takes five times as long as all the rest.
        result.append((m if (counts == 1).all() else m.pow(counts)).prod(-1))
    return torch.cat(result)


class Ceiling:
    """Non-increasing function c(u) with |E[exp(i v m)]| <= c(u) for all v >= u.

    With P the probability of the law's atoms and f its density, unimodal: |E[exp(i v m)]| <= P + 2 max f / v (partial
    integration). That is the end of a table of the largest |E[exp(i v m)]| from u on; between two places of it the
    square, E[cos(v (m - m'))] for independent m and m', is larger by at most Var(m) / 4 times the squared spacing.
    Bernoulli masks have only atoms, so c = 1.
    """

    def __init__(self, law: Law) -> None:
        self._spacing = 0.01 / math.sqrt(law.variance)
        self._atoms, self._slope = _atoms_and_slope(law)
        self._end = 4000 * self._spacing
        v = self._spacing * torch.arange(1 if self._atoms == 1 else 4001, dtype=torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        squares = characteristic(one, one.long(), law, v).abs().square() + law.variance / 4 * self._spacing**2
        squares[-1] = max(squares[-1].item(), (self._atoms + self._slope / self._end) ** 2)
        self._table = squares.flip(0).cummax(0).values.flip(0).sqrt().clamp(max=1)

    def product(self, u: Tensor, counts: Tensor) -> float:
        """Return the product of c(|u_j|) to the power of ``counts[j]``."""
        if self._atoms == 1:
            return 1.0
        u = u.abs()
        near = self._table[(u / self._spacing).long().clamp(max=4000)]
        far = self._atoms + self._slope / u.clamp(min=self._end)
        return (torch.where(u < self._end, near, far).log() @ counts.to(u)).exp().item()


def _atoms_and_slope(law: Law) -> tuple[float, float]:
    """Return the probability of all atoms, and twice the largest density."""
    if isinstance(law, Bernoulli):
        return 1.0, 0.0
    low, high = support(law)
    if not isinstance(law, Gaussian):
        return 0.0, 2 / (high - low)
    mode = (min(max(law.mu, low), high) - law.mu) / law.sigma
    atoms = sum(probability for _, probability in _atoms(law))
    return atoms, 2 * math.exp(-mode * mode / 2) / (law.sigma * math.sqrt(2 * math.pi))


def _frequencies(terms: Tensor, law: Law, tilt: float = 0.0) -> Iterator[tuple[Tensor, float]]:
    """Yield the nodes of the midpoint rule, in pieces that fit in memory, and its step."""
    largest = abs(_cumulant(terms, law, tilt)[1]) + reach(terms, law, tilt)
    low, high = support(law)
    if math.isfinite(low) and math.isfinite(high):
        largest = min(largest, terms.abs().sum().item() * max(abs(low), abs(high)))
    step = 2 * math.pi / (largest + _MARGIN / (min(tilt, 1 - tilt) or 1.0))
    w = step * (torch.arange(math.ceil(LARGEST_FREQUENCY / step), dtype=torch.float64) + 0.5)
    for part in w.tensor_split(_pieces(w, terms, law)):
        yield part, step


def _pieces(w: Tensor, terms: Tensor, law: Law) -> int:
    """Return the number of pieces to cut the frequencies into."""
    nodes = 1
    if not isinstance(law, Bernoulli) and not is_normal(law):
        nodes = points(law, w.max().item() * terms.abs().max().item())[0].numel()
    return math.ceil(w.numel() * terms.numel() * nodes / _CELLS)
