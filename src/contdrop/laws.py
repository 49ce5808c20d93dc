"""What a mask value is: the laws from which dropout draws its multipliers.

A law is a frozen, hashable value. It knows the exact moments of what is sampled from it. For the clipped Gaussian
these are the moments *after* clipping, because that is what a network sees: with ``sigma=0.3`` the clipped law has
variance 0.0755, not 0.09.

Every law has a text form that parses back::

    >>> str(Gaussian(sigma=0.3))
    'gaussian:sigma=0.3'
    >>> parse_law("gaussian:sigma=0.3")
    Gaussian(sigma=0.3)
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from .errors import suggest

FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)


class Law(abc.ABC):
    """A distribution of mask values, with exact moments.

    Attributes:
        kind: The law's name in text form and in the kernels.
        mean: E[m] of what is sampled.
        variance: Var(m) of what is sampled.
        params: The parameters in declaration order, as the kernels take them.
    """

    kind: ClassVar[str]
    # The parameter that names the law's strength is always written in the text form and in repr; the others only where
    # they differ from their default.
    _leading: ClassVar[tuple[str, ...]]

    mean: float
    variance: float
    params: tuple[float, ...]

    @property
    def relative_variance(self) -> float:
        """Var(m) / E[m]^2: the noise strength that a network sees once the mask is scaled to mean one."""
        return self.variance / self.mean / self.mean if self.mean else math.inf

    @abc.abstractmethod
    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        """P(m <= x), right-continuous, for a number or elementwise for a tensor."""

    @abc.abstractmethod
    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        """The smallest mask value x with ``cdf(x) >= u``, for u in [0, 1]."""

    @abc.abstractmethod
    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor: ...

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draws independent mask values with torch's own generator.

        This is not how the layers draw (they use a counter-based generator), so it is an independent check on them.
        Values are drawn in float64 and cast, so half precision is not biased.

        Args:
            shape: Shape of the result.
            generator: Source of randomness; torch's default generator of the device if None.
            dtype: Type of the result; torch's default if None.
            device: Where the result lives; the generator's device if None, else torch's default.
        """
        if device is None:
            device = generator.device if generator is not None else torch.get_default_device()
        return self._draw(shape, generator, torch.device(device)).to(dtype or torch.get_default_dtype())

    def _written_params(self) -> list[tuple[str, float]]:
        return [
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (field.name in self._leading or getattr(self, field.name) != field.default)
        ]

    def __str__(self) -> str:
        written = ",".join(f"{name}={_short(value)}" for name, value in self._written_params())
        return f"{self.kind}:{written}" if written else self.kind

    def __repr__(self) -> str:
        written = ", ".join(
            f"{name}={value!r}" if math.isfinite(value) else f"{name}=float('{value}')"
            for name, value in self._written_params()
        )
        return f"{type(self).__name__}({written})"

    def _set(self, mean: float, variance: float, **params: float) -> None:
        """Stores normalised parameters and derived moments in a frozen instance."""
        for name, value in params.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "params", tuple(params.values()))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "variance", variance)


@dataclasses.dataclass(frozen=True, repr=False)
class Bernoulli(Law):
    """Ordinary dropout: m = 1 with probability ``keep``, else 0.

    The kernels resolve ``keep`` to a multiple of 2^-32.
    """

    kind: ClassVar[str] = "bernoulli"
    _leading: ClassVar[tuple[str, ...]] = ("keep",)

    keep: float = 0.5

    def __post_init__(self) -> None:
        keep = _number("Bernoulli", "keep", self.keep)
        if not 0 <= keep <= 1:
            raise ValueError(f"Bernoulli: keep is the probability of keeping a unit, in [0, 1]; got {keep}")
        self._set(keep, keep * (1 - keep), keep=keep)

    @classmethod
    def matching(cls, law: Law) -> Bernoulli:
        """The Bernoulli law with the relative variance r of ``law``: keep = 1 / (1 + r).

        The control for a comparison of distributions at equal noise strength.
        """
        if not isinstance(law, Law):
            raise TypeError(f"Bernoulli.matching: expected a law, got {type(law).__name__}")
        if law.mean == 0:
            raise ValueError(f"Bernoulli.matching: {law!r} has mean 0, so its relative variance is infinite")
        return cls(1 / (1 + law.relative_variance))

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        if isinstance(x, Tensor):
            return torch.where(x < 1, torch.full_like(x, 1 - self.keep), 1).masked_fill(x < 0, 0)
        return 0.0 if x < 0 else 1 - self.keep if x < 1 else 1.0

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Bernoulli", u)
        if isinstance(u, Tensor):
            return ((u > 1 - self.keep) | (self.keep == 1)).to(u.dtype)
        return float(u > 1 - self.keep or self.keep == 1)

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=device) < self.keep


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(Law):
    """Uniform dropout: m is uniform on (low, high)."""

    kind: ClassVar[str] = "uniform"
    _leading: ClassVar[tuple[str, ...]] = ()

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = (_number("Uniform", name, getattr(self, name)) for name in ("low", "high"))
        _check_interval("Uniform", low, high)
        self._set((low + high) / 2, (high - low) * (high - low) / 12, low=low, high=high)

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        if isinstance(x, Tensor):
            return ((x - self.low) / (self.high - self.low)).clamp(0, 1)
        return min(max((x - self.low) / (self.high - self.low), 0.0), 1.0)

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Uniform", u)
        return self.low + (self.high - self.low) * u

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        return self.low + (self.high - self.low) * u


@dataclasses.dataclass(frozen=True, repr=False)
class Gaussian(Law):
    """Gaussian dropout: g ~ N(mu, sigma^2), and m = g clipped to [low, high].

    ``sigma`` is always a standard deviation; ``Gaussian.from_variance`` takes a variance. ``low=-inf, high=inf`` gives
    the unclipped law. With ``sigma=0`` the mask is constant; as sigma grows the law tends to a Bernoulli law on
    {low, high}.

    With a = (low - mu) / sigma, b = (high - mu) / sigma, phi and Phi the normal density and distribution function, the
    clipped law has atoms Phi(a) at low and 1 - Phi(b) at high, and (direct integration)::

        mean     = mu + sigma [(phi(a) + a Phi(a)) - (phi(b) - b (1 - Phi(b)))]
        variance = (low - mean)^2 Phi(a) + (high - mean)^2 (1 - Phi(b)) + integral of (x - mean)^2 between the atoms
    """

    kind: ClassVar[str] = "gaussian"
    _leading: ClassVar[tuple[str, ...]] = ("sigma",)

    mu: float = 0.5
    sigma: float = 0.2
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        mu, sigma = (_number("Gaussian", name, getattr(self, name)) for name in ("mu", "sigma"))
        low, high = (_number("Gaussian", name, getattr(self, name), finite=False) for name in ("low", "high"))
        if sigma < 0:
            raise ValueError(f"Gaussian: sigma is a standard deviation, at least 0; got {sigma}")
        _check_interval("Gaussian", low, high)
        mean, variance = _clipped_normal_moments(mu, sigma, low, high)
        self._set(mean, variance, mu=mu, sigma=sigma, low=low, high=high)

    @classmethod
    def from_variance(cls, variance: float, mu: float = 0.5, low: float = 0.0, high: float = 1.0) -> Gaussian:
        """The law whose *unclipped* normal has this variance: the other reading of the paper's N(0.5, 0.2)."""
        variance = _number("Gaussian.from_variance", "variance", variance)
        if variance < 0:
            raise ValueError(f"Gaussian.from_variance: variance is at least 0; got {variance}")
        return cls(mu, math.sqrt(variance), low, high)

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        if isinstance(x, Tensor):
            z = (x.double() - self.mu) / self.sigma if self.sigma else torch.where(x >= self.mu, math.inf, -math.inf)
            inside = torch.special.ndtr(z)
            return torch.where(x < self.low, 0.0, torch.where(x >= self.high, 1.0, inside)).to(x.dtype)
        return float(self.cdf(torch.tensor(x, dtype=torch.float64)))

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Gaussian", u)
        if isinstance(u, Tensor):
            # sigma 0 times an infinite quantile would be NaN.
            spread = self.sigma * torch.special.ndtri(u.double()) if self.sigma else torch.zeros_like(u.double())
            return (self.mu + spread).clamp(self.low, self.high).to(u.dtype)
        return float(self.quantile(torch.tensor(u, dtype=torch.float64)))

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        g = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
        return (self.mu + self.sigma * g).clamp(self.low, self.high)


LAWS: Mapping[str, type[Law]] = {law.kind: law for law in (Bernoulli, Uniform, Gaussian)}


def parse_law(text: str) -> Law:
    """Reads a law from its text form, ``name`` or ``name:parameter=number,parameter=number``.

    >>> parse_law("bernoulli:keep=0.8")
    Bernoulli(keep=0.8)
    >>> parse_law("gaussian:variance=0.04")
    Gaussian(sigma=0.2)
    """
    if not isinstance(text, str):
        raise TypeError(f"parse_law: expected text such as 'gaussian:sigma=0.3', got {type(text).__name__}")
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in LAWS:
        raise ValueError(f"parse_law: unknown law {name!r} in {text!r}; {suggest(name, LAWS)}")
    law = LAWS[name]
    known = [field.name for field in dataclasses.fields(law)]  # type: ignore[arg-type]
    if law is Gaussian:
        known.append("variance")
    given: dict[str, float] = {}
    for item in rest.split(",") if rest.strip() else []:
        key, _, number = (part.strip() for part in item.partition("="))
        if key not in known:
            raise ValueError(f"parse_law: {name} has no parameter {key!r} in {text!r}; {suggest(key, known)}")
        if key in given:
            raise ValueError(f"parse_law: {key} is given twice in {text!r}")
        try:
            given[key] = float(number)
        except ValueError:
            raise ValueError(f"parse_law: expected {key}=<number>, got {item.strip()!r} in {text!r}") from None
    if "variance" in given:
        if "sigma" in given:
            raise ValueError(f"parse_law: give sigma or variance, not both, in {text!r}")
        return Gaussian.from_variance(**given)
    return law(**given)


def _clipped_normal_moments(mu: float, sigma: float, low: float, high: float) -> tuple[float, float]:
    constant = min(max(mu, low), high)
    if sigma == 0:
        return constant, 0.0
    a, b = (low - mu) / sigma, (high - mu) / sigma
    if math.isinf(a) > math.isinf(low) or math.isinf(b) > math.isinf(high):
        return constant, 0.0  # sigma is so small that a finite bound is infinitely many standard deviations away
    atom_low, atom_high = _normal_cdf(a), _normal_cdf(-b)
    middle = (low + high) / 2
    if b - a < 1:
        # A wide normal cut to a narrow interval: the closed forms would subtract nearly equal numbers and multiply the
        # difference by sigma. The integrands are smooth there, so Gauss-Legendre is exact to rounding.
        half = (high - low) / 2
        points = [(middle + half * node, weight * half / sigma) for node, weight in _gauss_legendre()]
        density = [(x, weight * _normal_density((x - mu) / sigma)) for x, weight in points]
        mean = middle + half * (atom_high - atom_low) + sum((x - middle) * weight for x, weight in density)
        mean = mu if mu == middle else mean
        between = sum((x - mean) * (x - mean) * weight for x, weight in density)
    else:
        # Written around mu so that a symmetric interval gives mu exactly. Products with infinite bounds tend to 0.
        pull_up = _normal_density(a) + (a * atom_low if math.isfinite(a) else 0.0)
        pull_down = _normal_density(b) - (b * atom_high if math.isfinite(b) else 0.0)
        mean = min(max(mu + sigma * (pull_up - pull_down), low), high)
        at_a = a * _normal_density(a) if math.isfinite(a) else 0.0
        at_b = b * _normal_density(b) if math.isfinite(b) else 0.0
        shift = (mu - mean) / sigma
        first = _normal_density(a) - _normal_density(b)
        inside = 1 - atom_low - atom_high
        moment = inside * (1 + shift * shift) + 2 * shift * first + at_a - at_b if inside > 0 else 0.0
        between = sigma * sigma * moment if moment else 0.0
    atoms = (low - mean) * (low - mean) * atom_low if atom_low else 0.0
    atoms += (high - mean) * (high - mean) * atom_high if atom_high else 0.0
    return mean, max(atoms + between, 0.0)


def _normal_density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


@functools.cache
def _gauss_legendre() -> list[tuple[float, float]]:
    """24 nodes and weights on [-1, 1]: eigenvalues of the Jacobi matrix of the Legendre polynomials (Golub-Welsch)."""
    k = torch.arange(1, 24, dtype=torch.float64)
    off_diagonal = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return list(zip(nodes.tolist(), (2 * vectors[0] ** 2).tolist()))


def _number(owner: str, name: str, value: object, *, finite: bool = True) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{owner}: expected a number for {name}, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number) or (finite and math.isinf(number)):
        raise ValueError(f"{owner}: expected a {'finite ' if finite else ''}number for {name}, got {number}")
    return number


def _check_interval(owner: str, low: float, high: float) -> None:
    if low >= high:
        raise ValueError(f"{owner}: low must be less than high; got low={low}, high={high}")


def _check_probability(owner: str, u: float | Tensor) -> None:
    inside = bool(((u >= 0) & (u <= 1)).all()) if isinstance(u, Tensor) else 0 <= u <= 1
    if not inside:
        got = "a tensor with other values" if isinstance(u, Tensor) else str(u)
        raise ValueError(f"{owner}.quantile: expected probabilities in [0, 1], got {got}")


def _short(value: float) -> str:
    """The shortest text that reads back as the same number: '1' rather than '1.0'."""
    return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
