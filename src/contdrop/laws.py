"""What a mask value is: the laws from which dropout draws its multipliers.

A law is an immutable value. It knows the exact moments of what is sampled from it. For the clipped Gaussian these are
the moments *after* clipping, because that is what a network sees: with ``sigma=0.3`` the clipped law has variance
0.0754, not 0.09.

``Bernoulli``, ``Uniform`` and ``Gaussian`` are built in: the kernels draw them, and they have a text form that parses
back::

    >>> str(Gaussian(sigma=0.3))
    'gaussian:sigma=0.3'
    >>> parse_law("gaussian:sigma=0.3")
    Gaussian(sigma=0.3)

Any other law is a subclass of ``Law`` that gives ``mean``, ``variance`` and ``quantile``.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from . import _clipped_normal
from ._text import parse_label
from ._torch.checks import check_number
from ._torch.private import unobserved, widest
from .choices import SCALES

# How far the relative variance of a law at the end of a range may be beyond it by rounding.
_ROUNDING = 2.0**-50
_NEARLY_BERNOULLI = 0.999  # the largest relative variance of a clipped Gaussian that matching gives

FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)
_Class = TypeVar("_Class", bound=type)


class Law(abc.ABC):
    """A distribution of mask values, with exact moments. Open: derive from it for a law of your own.

    A subclass gives three things, and works on every layer: ``mean`` and ``variance``, as fields, properties or class
    attributes, and the method ``quantile``. They must belong together, for the layers scale by the mean.

    Attributes:
        mean: E[m] of what is sampled.
        variance: Var(m) of what is sampled.
    """

    mean: float
    variance: float

    @abc.abstractmethod
    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        """The smallest mask value x with ``cdf(x) >= u``, for u in [0, 1].

        For a law of your own: turns a tensor of numbers in (0, 1) into mask values, elementwise and in its type, with
        operations of torch. It does not fall as u grows. The built-in laws take single numbers too.
        """

    @property
    def relative_variance(self) -> float:
        """Var(m) / E[m]^2: the noise strength that a network sees once the mask is scaled to mean one."""
        return self.variance / self.mean / self.mean if self.mean else math.inf

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        """P(m <= x), right-continuous, for a number or elementwise for a tensor.

        By default the largest u with ``quantile(u) <= x``, found by halving, to 2^-53.
        """
        if not isinstance(x, Tensor):
            return float(self.cdf(torch.tensor(x, dtype=torch.float64, device="cpu")))
        x = _floating(x)
        wanted = x.double()
        low, high = torch.zeros_like(wanted), torch.ones_like(wanted)
        for _ in range(53):
            middle = (low + high) / 2
            reached = self.quantile(middle) <= wanted
            low, high = torch.where(reached, middle, low), torch.where(reached, high, middle)
        # Halving never tries the ends, where the quantile may be infinite.
        return torch.where(high == 1, 1.0, torch.where(low == 0, 0.0, low)).to(x.dtype)

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=widest(device), device=device)
        return self.quantile(u.clamp(min=torch.finfo(u.dtype).eps / 4))  # the quantile of 0 may be infinite

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
        Values are drawn in float64 (float32 on devices without it) and cast, so half precision is not biased.

        Args:
            shape: Shape of the result.
            generator: Source of randomness; torch's default generator of the device if None.
            dtype: Type of the result; torch's default if None.
            device: Where the result lives; the generator's device if None, else torch's default.
        """
        if device is None:
            device = generator.device if generator is not None else torch.empty(0).device
        return self._draw(shape, generator, torch.device(device)).to(dtype or torch.get_default_dtype())

    # A plain class is a value as well: two laws of a class are the same if what they were made of is.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or vars(other).keys() != vars(self).keys():
            return False
        return all(_same(value, vars(other)[name]) for name, value in vars(self).items())

    def __hash__(self) -> int:
        return hash((type(self), *vars(self)))


class BuiltIn(Law):
    """A law that the kernels draw by themselves, and that has a text form. Its subclasses are final.

    A mask value is ``factor`` times what the kernels draw for ``kind`` and ``params``.

    Attributes:
        kind: The law's name in text form and in the kernels.
        params: The parameters in the kernels' order.
        factor: What the kernels' scale is multiplied by.
    """

    kind: ClassVar[str]
    # The parameter that names the law's strength, and what it is. It is always written in the text form and in repr;
    # the others only where they differ from their default.
    _leading: ClassVar[Mapping[str, str]]

    params: tuple[float, ...]
    factor: float
    # For compiled graphs; see prepare_for_graphs. A row for each of choices.SCALES.
    _numbers: Tensor | None = None

    def prepare_for_graphs(self) -> None:
        """Makes the tensor by which a compiled graph knows this law: so another law in its place compiles nothing.

        A layer does this when it gets the law. A law that did not go through this is a constant of the graph.
        """
        rows = []
        for scale in SCALES:
            inverse = 1 / divisor(self, scale)
            by = self.factor / divisor(self, scale)
            rows.append([by, self.mean * inverse, self.variance * inverse**2, *self.params])
        with torch.inference_mode(False):
            numbers = torch.tensor(rows, dtype=torch.float64, device="cpu")
        if type(numbers) is Tensor:  # and nothing that belongs to a mode of torch, such as a fake tensor
            self._set(_numbers=numbers)

    # The tensor is of this process: torch.load would move it to the device that it maps to.

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_numbers"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._set(**state)
        self.prepare_for_graphs()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for base in cls.__bases__:
            if "kind" in vars(base):
                raise TypeError(
                    f"{cls.__name__}: expected to derive from contdrop.Law, got {base.__name__}, which the kernels "
                    "draw themselves; derive from Law and give mean, variance and quantile"
                )

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

    def _set(self, **values: Any) -> None:
        """Stores normalised parameters and what is derived from them in a frozen instance."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _by_keyword(law: _Class) -> _Class:
    """Makes a clear line of an argument by position: which of the numbers it is cannot be seen there."""
    initialise: Any = law.__init__  # type: ignore[misc]

    @functools.wraps(initialise)
    def by_keyword(self: Any, *positional: Any, **named: Any) -> None:
        if positional:
            ((keyword, meaning),) = law._leading.items()  # type: ignore[attr-defined]
            raise TypeError(
                f"{law.__name__}: expected its parameters by keyword, got {', '.join(map(repr, positional))}; "
                f"write {law.__name__}({keyword}={positional[0]!r}) if it is the {meaning}"
            )
        initialise(self, **named)

    law.__init__ = by_keyword  # type: ignore[misc]
    return law


@_by_keyword
@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Bernoulli(BuiltIn):
    """Ordinary dropout: m = ``value`` with probability ``keep``, else 0.

    With unscaled masks the kept value matters: see ``matching``. The kernels take ``keep`` exactly if it is a multiple
    of 2^-16. Otherwise they round it, to a multiple of 2^-21, or of 2^-32 where ``keep`` or 1 - ``keep`` is below 1/64.
    """

    kind: ClassVar[str] = "bernoulli"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Bernoulli"
    _leading: ClassVar[Mapping[str, str]] = {"keep": "probability of keeping a unit"}

    keep: float = 0.5
    value: float = 1.0

    def __post_init__(self) -> None:
        keep, value = (_number("Bernoulli", name, getattr(self, name)) for name in ("keep", "value"))
        if not 0 <= keep <= 1:
            raise ValueError(f"Bernoulli: keep is the probability of keeping a unit, in [0, 1]; got {keep}")
        if value == 0:
            raise ValueError("Bernoulli: value is what a kept unit is multiplied by, not 0; got 0.0")
        mean, variance = keep * value, keep * (1 - keep) * value * value
        self._set(keep=keep, value=value, mean=mean, variance=variance, params=(keep,), factor=value)

    @classmethod
    def matching(cls, law: Law) -> Bernoulli:
        """The Bernoulli law of the relative variance r and the mean m of ``law``: keep = 1 / (1 + r), value = m / keep.

        The control for a comparison of distributions: equal noise strength, and with unscaled masks equal means too, so
        that the layers which read the units learn at the same rate.
        """
        keep = 1 / (1 + _strength("Bernoulli.matching", law))
        return cls(keep=keep, value=law.mean / keep)

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        below, first, last = self._atoms()
        if isinstance(x, Tensor):
            x = _floating(x)
            return torch.where(x < last, torch.full_like(x, below), 1).masked_fill(x < first, 0)
        return 0.0 if x < first else below if x < last else 1.0

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Bernoulli", u)
        below, first, last = self._atoms()
        if isinstance(u, Tensor):
            u = _floating(u)
            return torch.where((u > below) | (below == 0), torch.full_like(u, last), first)
        return last if u > below or below == 0 else first

    def _atoms(self) -> tuple[float, float, float]:
        """The probability of the lower value, and the two values."""
        return (1 - self.keep, 0.0, self.value) if self.value > 0 else (self.keep, self.value, 0.0)

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=widest(device), device=device)
        return (u < self.keep).to(u.dtype) * self.value


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(BuiltIn):
    """Uniform dropout: m is uniform on (low, high)."""

    kind: ClassVar[str] = "uniform"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Uniform"
    _leading: ClassVar[Mapping[str, str]] = {}

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = (_number("Uniform", name, getattr(self, name)) for name in ("low", "high"))
        _check_interval("Uniform", low, high)
        mean, variance = (low + high) / 2, (high - low) * (high - low) / 12
        self._set(low=low, high=high, mean=mean, variance=variance, params=(low, high), factor=1.0)

    @classmethod
    def matching(cls, law: Law) -> Uniform:
        """The uniform law of the relative variance r and the mean m of ``law``: m (1 - a) to m (1 + a), a = sqrt(3 r).

        It reaches r up to 1/3, where it begins at 0.
        """
        r = _strength("Uniform.matching", law)
        a = math.sqrt(3 * r)
        low, high = sorted((law.mean * (1 - a), law.mean * (1 + a)))
        if a > 1 + _ROUNDING or low == high:
            raise ValueError(
                f"Uniform.matching: expected a relative variance above 0 and at most 1/3, got {r:.6g} of {law!r}; "
                "Gaussian.matching and Bernoulli.matching reach others"
            )
        return cls(low, high) if a <= 1 else cls(*sorted((0.0, 2 * law.mean)))

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        if isinstance(x, Tensor):
            return ((x - self.low) / (self.high - self.low)).clamp(0, 1)
        return min(max((x - self.low) / (self.high - self.low), 0.0), 1.0)

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Uniform", u)
        return self.low + (self.high - self.low) * u

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        u = torch.rand(shape, generator=generator, dtype=widest(device), device=device)
        return self.low + (self.high - self.low) * u


@_by_keyword
@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Gaussian(BuiltIn):
    """Gaussian dropout: g ~ N(mu, sigma^2), and m = g clipped to [low, high].

    ``sigma`` is always a standard deviation; ``Gaussian.from_variance`` takes a variance. ``low=-inf, high=inf`` gives
    the unclipped law. With ``sigma=0`` the mask is constant; as sigma grows the law tends to a Bernoulli law on
    {low, high}. The moments: see :mod:`contdrop._clipped_normal`.
    """

    kind: ClassVar[str] = "gaussian"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Gaussian"
    _leading: ClassVar[Mapping[str, str]] = {"sigma": "standard deviation"}

    sigma: float = 0.3
    mu: float = 0.5
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        mu, sigma = (_number("Gaussian", name, getattr(self, name)) for name in ("mu", "sigma"))
        low, high = (_number("Gaussian", name, getattr(self, name), finite=False) for name in ("low", "high"))
        if sigma < 0:
            raise ValueError(f"Gaussian: sigma is a standard deviation, at least 0; got {sigma}")
        _check_interval("Gaussian", low, high)
        mean, variance = _clipped_normal.moments(mu, sigma, low, high)
        self._set(sigma=sigma, mu=mu, low=low, high=high, mean=mean, variance=variance)
        self._set(params=(mu, sigma, low, high), factor=1.0)

    @classmethod
    def from_variance(cls, variance: float, *, mu: float = 0.5, low: float = 0.0, high: float = 1.0) -> Gaussian:
        """The law whose *unclipped* normal has this variance: the other reading of the paper's N(0.5, 0.2)."""
        variance = _number("Gaussian.from_variance", "variance", variance)
        if variance < 0:
            raise ValueError(f"Gaussian.from_variance: variance is at least 0; got {variance}")
        return cls(sigma=math.sqrt(variance), mu=mu, low=low, high=high)

    @classmethod
    def matching(cls, law: Law, *, clip: bool = True) -> Gaussian:
        """The Gaussian law of the relative variance r and the mean m of ``law``: mu = m, clipped to [0, 2 m].

        Sigma is found by search, to the last bit of the clipped variance. It reaches r up to 0.999: there sigma is
        532 m, and one value in 667 is not at a bound; at r = 1 it would be infinite, and the law Bernoulli with
        keep 0.5. With ``clip=False`` the law is not clipped, and reaches every r with sigma = m sqrt(r).
        """
        r = _strength("Gaussian.matching", law)
        m = law.mean
        if not clip:
            return cls(sigma=abs(m) * math.sqrt(r), mu=m, low=-math.inf, high=math.inf)
        if r > _NEARLY_BERNOULLI * (1 + _ROUNDING):
            raise ValueError(
                f"Gaussian.matching: expected a relative variance of at most {_NEARLY_BERNOULLI}, got {r:.6g} of "
                f"{law!r}; beyond, a clipped Gaussian is a Bernoulli law; Gaussian.matching(law, clip=False) reaches "
                "every one"
            )
        low, high = sorted((0.0, 2 * m))
        return cls(sigma=abs(m) * _clipped_normal.sigma_of(r), mu=m, low=low, high=high)

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        if isinstance(x, Tensor):
            x = _floating(x)
            z = (x.double() - self.mu) / self.sigma if self.sigma else torch.where(x >= self.mu, math.inf, -math.inf)
            inside = torch.special.ndtr(z)
            return torch.where(x < self.low, 0.0, torch.where(x >= self.high, 1.0, inside)).to(x.dtype)
        return float(self.cdf(torch.tensor(x, dtype=torch.float64, device="cpu")))

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        _check_probability("Gaussian", u)
        if isinstance(u, Tensor):
            u = _floating(u)
            # sigma 0 times an infinite quantile would be NaN.
            spread = self.sigma * torch.special.ndtri(u.double()) if self.sigma else torch.zeros_like(u.double())
            return (self.mu + spread).clamp(self.low, self.high).to(u.dtype)
        return float(self.quantile(torch.tensor(u, dtype=torch.float64, device="cpu")))

    def _draw(self, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
        g = torch.randn(shape, generator=generator, dtype=widest(device), device=device)
        return (self.mu + self.sigma * g).clamp(self.low, self.high)


LAWS: Mapping[str, type[BuiltIn]] = {law.kind: law for law in (Bernoulli, Uniform, Gaussian)}


def parse_law(text: str) -> Law:
    """Reads a law from its text form, ``name`` or ``name:parameter=number,parameter=number``.

    Examples:
        >>> parse_law("bernoulli:keep=0.8")
        Bernoulli(keep=0.8)
        >>> parse_law("gaussian:variance=0.04")
        Gaussian(sigma=0.2)
    """
    if not isinstance(text, str):
        raise TypeError(f"parse_law: expected text such as 'gaussian:sigma=0.3', got {type(text).__name__}")
    known = {name: [field.name for field in dataclasses.fields(law)] for name, law in LAWS.items()}  # type: ignore[arg-type]
    known[Gaussian.kind].append("variance")
    try:
        name, given = parse_label(text, known, "law")
    except ValueError as error:
        raise ValueError(f"parse_law: {error}") from error
    return Gaussian.from_variance(**given) if "variance" in given else LAWS[name](**given)


def _number(owner: str, name: str, value: object, *, finite: bool = True) -> float:
    number = check_number(owner, name, value)
    if math.isnan(number) or (finite and math.isinf(number)):
        raise ValueError(f"{owner}: expected a {'finite ' if finite else ''}number for {name}, got {number}")
    return number


def equal_rate(strength: float) -> float:
    """The drop rate of Bernoulli masks of that noise strength r: r / (1 + r)."""
    return strength / (1 + strength) if math.isfinite(strength) else 1.0


def divisor(law: Law, scale: str) -> float:
    """What a mask value is divided by in training: its mean, or one if the mask is not scaled or always zero.

    What the kernels multiply by is ``law.factor / divisor(law, scale)``, in every mode of torch to the bit.
    """
    return law.mean if scale == SCALES[0] and law.mean else 1.0


def check_law(owner: str, law: object) -> None:
    """Refuses what is no law, and a law of the user's own that lacks something."""
    if isinstance(law, BuiltIn):
        return
    if not isinstance(law, Law):
        raise TypeError(
            f"{owner}: expected a law such as Gaussian(sigma=0.3), got {type(law).__name__}; "
            "contdrop.parse_law reads one from text"
        )
    for name in ("mean", "variance"):
        value: Any = getattr(law, name, None)
        is_number = isinstance(value, (int, float, numbers.Real))  # also while torch.compile looks on
        if not is_number or not -math.inf < value < math.inf:
            raise TypeError(
                f"{owner}: expected {type(law).__name__} to have a {name}, a finite number, "
                f"got {'none' if value is None else value}; a law gives mean, variance and quantile"
            )


def _strength(owner: str, law: Law) -> float:
    """The relative variance that is to be matched."""
    check_law(owner, law)
    if law.mean == 0:
        raise ValueError(f"{owner}: expected a law whose mean is not 0, got {law!r}; its relative variance is infinite")
    if not math.isfinite(law.relative_variance):
        raise ValueError(f"{owner}: expected a law with a finite relative variance, got {law!r}")
    return law.relative_variance


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)


def _check_interval(owner: str, low: float, high: float) -> None:
    if low >= high:
        raise ValueError(f"{owner}: low must be less than high; got low={low}, high={high}")


def _floating(x: Tensor) -> Tensor:
    """Probabilities and mask values are no whole numbers, even where whole numbers are asked about."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _check_probability(owner: str, u: float | Tensor) -> None:
    if isinstance(u, Tensor) and not _has_values(u):
        return  # a law of the user's own may call a built-in one in every mode of torch
    inside = bool(((u >= 0) & (u <= 1)).all()) if isinstance(u, Tensor) else 0 <= u <= 1
    if not inside:
        got = "a tensor with other values" if isinstance(u, Tensor) else str(u)
        raise ValueError(f"{owner}.quantile: expected probabilities in [0, 1], got {got}")


def _has_values(u: Tensor) -> bool:
    """Whether the numbers in a tensor may be looked at, which ends a trace, and which a batch of vmap refuses."""
    return not (torch.compiler.is_compiling() or u.is_meta) and unobserved(u)


def _short(value: float) -> str:
    """The shortest text that reads back as the same number: '1' rather than '1.0'."""
    return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
