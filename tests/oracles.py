"""Oracles that share no code with the package: quadrature for moments, and a slow scalar generator.

The generator is written from the docstring of ``contdrop.kernels.reference`` alone, one number at a time, in Python
integers and fractions.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch
from scipy.integrate import quad
from scipy.special import ndtr

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

# Two-sided probability of a normal variable beyond five standard errors, for tests that are not about a mean.
FIVE_SIGMA = 2 * float(ndtr(-5.0))


# Quadrature.


def integrate(f: Callable[[float], float], breaks: Iterable[float]) -> tuple[float, float]:
    """The integral of f between the outermost breaks, and QUADPACK's bound of its own error."""
    total = error = 0.0
    for start, stop in itertools.pairwise(sorted(set(breaks))):
        # full_output keeps QUADPACK from warning that it has reached its rounding floor: the bound says so as well.
        value, bound, *_ = quad(f, start, stop, epsabs=1e-17, epsrel=1e-13, limit=100, full_output=1)
        total, error = total + value, error + bound
    return total, error


def normal_expectation(f: Callable[[float], float], mean: float, variance: float, kinks: Iterable[float]) -> float:
    """E[f(z)] for z ~ N(mean, variance), integrated piecewise between the kinks of f and at the normal's own scale."""
    if variance == 0:
        return f(mean)
    deviation = math.sqrt(variance)
    breaks = [-38.0, -8.0, -3.0, 0.0, 3.0, 8.0, 38.0]
    breaks += [t for kink in kinks if abs(t := (kink - mean) / deviation) < 38]
    return integrate(lambda t: f(mean + deviation * t) * normal_density(t), breaks)[0]


def normal_density(t: float) -> float:
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


@dataclasses.dataclass(frozen=True)
class Moments:
    """Moments of a law by quadrature, with bounds of the quadrature's error."""

    mean: float
    variance: float
    fourth: float
    mean_error: float
    variance_error: float


def moments(kind: str, params: Sequence[float], value: float = 1.0) -> Moments:
    """Sums over the atoms of a law and integrates over its density, a Gaussian's in units of sigma around mu.

    The value is that of a Bernoulli law.
    """
    atoms: dict[float, float] = {}
    breaks: list[float] = []
    mu, sigma, density = 0.0, 1.0, normal_density
    if kind == "bernoulli":
        (keep,) = params
        atoms = {0.0: 1 - keep, value: keep}
    elif kind == "uniform":
        low, high = params
        breaks, density = [low, high], lambda x: 1 / (high - low)
    else:
        mu, sigma, low, high = params
        a, b = (low - mu) / sigma, (high - mu) / sigma
        atoms = {value: float(p) for value, p in ((low, ndtr(a)), (high, ndtr(-b))) if math.isfinite(value)}
        # Beyond 38 standard deviations the density is less than 1e-313.
        a, b = max(a, -38.0), min(b, 38.0)
        breaks = [a, *(t for t in (-8.0, -4.0, -2.0, 0.0, 2.0, 4.0, 8.0) if a < t < b), b] if a < b else []

    def expectation(f: Callable[[float], float]) -> tuple[float, float]:
        integral, error = integrate(lambda t: f(mu + sigma * t) * density(t), breaks)
        return sum(f(value) * p for value, p in atoms.items()) + integral, error

    total, total_error = expectation(lambda x: 1.0)
    assert abs(total - 1) <= total_error + 1e-15, "the oracle's law does not have mass one"
    mean, mean_error = expectation(lambda x: x)
    variance, variance_error = expectation(lambda x: (x - mean) ** 2)
    fourth, _ = expectation(lambda x: (x - mean) ** 4)
    return Moments(mean, variance, fourth, mean_error, variance_error)


# The generator, from the reference's docstring.


def philox(counter: Sequence[int], key: Sequence[int], rounds: int) -> tuple[int, int, int, int]:
    """Philox-4x32 as in Salmon et al. (2011): two multiplications a round, and a key that grows by a constant."""
    (r0, l0, r1, l1), (k0, k1) = counter, key
    for n in range(rounds):
        high0, low0 = divmod(r0 * 0xD2511F53, 2**32)
        high1, low1 = divmod(r1 * 0xCD9E8D57, 2**32)
        round_key0, round_key1 = (k0 + n * 0x9E3779B9) % 2**32, (k1 + n * 0xBB67AE85) % 2**32
        r0, l0, r1, l1 = high1 ^ l0 ^ round_key0, low1, high0 ^ l1 ^ round_key1, low0
    return r0, l0, r1, l1


def word(seed: int, k: int, stream: int) -> int:
    seed %= 2**64
    block = 16 * (k // 64) + k % 16
    counter = (block % 2**32, block // 2**32, stream, 0)
    return philox(counter, (seed % 2**32, seed // 2**32), 7)[(k // 16) % 4]


def element(seed: int, i: int, bits: int, stream: int) -> int:
    if bits == 21:
        return number(seed, i, stream)
    run, place = divmod(i, 16 * (32 // bits))
    chosen = word(seed, 16 * run + place % 16, stream)
    return (chosen >> bits * (place // 16)) % 2**bits


def number(seed: int, i: int, stream: int) -> int:
    """Element i where elements have 21 bits: the first ones of a word, or the last ones of two."""
    group, place = divmod(i, 96)
    s, lane = divmod(place, 16)
    block = [format(word(seed, 64 * group + 16 * output + lane, stream), "032b") for output in range(4)]
    digits = [word[:21] for word in block] + [block[0][-11:] + block[1][-10:], block[2][-11:] + block[3][-10:]]
    return int(digits[s], 2)


def uniform(number: int) -> Fraction:
    return Fraction(2 * number + 1, 2**22)


def bernoulli_bits(keep: float) -> tuple[int, int]:
    for bits in (1, 2, 4, 8, 16):
        threshold = Fraction(keep) * 2**bits
        if threshold.denominator == 1:
            return bits, int(threshold)
    bits = 21 if Fraction(1, 64) <= Fraction(keep) <= Fraction(63, 64) else 32
    return bits, round(Fraction(keep) * 2**bits)


def mask_bits(kind: str, params: Sequence[float]) -> int:
    return bernoulli_bits(params[0])[0] if kind == "bernoulli" else 21


def mask_value(element_bits: int, kind: str, params: Sequence[float], dtype: torch.dtype) -> float:
    """The value that the law defines, in float64 whatever the dtype; see ``mask_tolerance``."""
    if kind == "bernoulli":
        return float(element_bits < bernoulli_bits(params[0])[1])
    u = uniform(element_bits)
    if kind == "uniform":
        low, high = (Fraction(p) for p in params)
        return float(low + (high - low) * u)
    mu, sigma, low, high = params
    return min(max(mu + sigma * statistics.NormalDist().inv_cdf(float(u)), low), high)


def mask_tolerance(kind: str, params: Sequence[float], dtype: torch.dtype) -> float:
    """Bounds the rounding error of a mask value.

    Bernoulli values are exact. A uniform value takes the roundings of high - low, of low, of the product and of the
    sum. A Gaussian value is computed in float64, where the normal quantile (below 6.4 for a multiple of 2^-22) is
    good to 7.2e-16 = 6.5 roundings by the documentation of Cephes and to about one in Python, and is rounded once.
    """
    unit = UNIT_ROUNDOFF[torch.float64 if dtype == torch.float64 else torch.float32]
    if kind == "bernoulli":
        return 0.0
    if kind == "uniform":
        low, high = params
        return 4 * unit * (abs(low) + abs(high - low))
    mu, sigma, low, high = params
    largest = min(abs(mu) + 6.4 * sigma, max(abs(low), abs(high)))
    return unit * largest + 2.0**-53 * (10 * 6.4 * sigma + 2 * abs(mu))
