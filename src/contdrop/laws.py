"""Distributions of mask values.

A law is an immutable value with exact moments. For the clipped Gaussian these are the moments *after* clipping,
because these describe the sampled values: with ``sigma=0.3`` the clipped law has variance 0.0754, not 0.09.

``Bernoulli``, ``Uniform`` and ``Gaussian`` are built in: the kernels draw them, and their text form parses back::

    >>> str(Gaussian(sigma=0.3))
    'gaussian:sigma=0.3'
    >>> parse_law("gaussian:sigma=0.3")
    Gaussian(sigma=0.3)

Any other law is a subclass of ``Law`` with ``mean``, ``variance`` and ``quantile``.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import _clipped_normal
from ._text import parse_label
from ._torch.checks import by_keyword, check_choice, check_finite
from ._torch.private import unobserved, widest
from .choices import SCALES

_ROUNDING = 2.0**-50  # tolerance at the end of a range of relative variances
_NEARLY_BERNOULLI = 0.999  # the largest relative variance of a clipped Gaussian that matching gives

FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)


class Law(abc.ABC):
    """A distribution of mask values with exact moments; derive from it for a custom law.

    A subclass provides ``mean`` and ``variance``, as fields, properties or class attributes, and the method
    ``quantile``; it then works on every layer. The three must be consistent: the layers scale by the mean.

    Attributes:
        mean: E[m] of the sampled values.
        variance: Var(m) of the sampled values.
    """

    mean: float
    variance: float

    @abc.abstractmethod
    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        """Return the smallest mask value x with ``cdf(x) >= u``, for u in [0, 1].

        A custom law maps a tensor of numbers in (0, 1) to mask values, elementwise and in the tensor's type, with torch
        operations. The result must be non-decreasing in u. Built-in laws also accept floats.
        """

    @property
    def relative_variance(self) -> float:
        """Return Var(m) / E[m]^2, the noise strength after the mask is scaled to mean one."""
        return self.variance / self.mean / self.mean if self.mean else math.inf

    def cdf(self, x: FloatOrTensor) -> FloatOrTensor:
        """Return P(m <= x), right-continuous, for a number or elementwise for a tensor.

        The default finds the largest u with ``quantile(u) <= x`` by bisection, to 2^-53.
        """
        return _elementwise(self._cdf, x)

    def _cdf(self, x: Tensor) -> Tensor:
        wanted = x.double()
        low, high = torch.zeros_like(wanted), torch.ones_like(wanted)
        for _ in range(53):
            middle = (low + high) / 2
            reached = self.quantile(middle) <= wanted
            low, high = torch.where(reached, middle, low), torch.where(reached, high, middle)
        # Bisection never evaluates the ends, where the quantile may be infinite.
        return torch.where(high == 1, 1.0, torch.where(low == 0, 0.0, low)).to(x.dtype)

    def _draw(self, shape: Sequence[int], options: Mapping[str, Any]) -> Tensor:
        u = torch.rand(shape, **options)
        return self.quantile(u.clamp(min=torch.finfo(u.dtype).eps / 4))  # the quantile of 0 may be infinite

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw independent mask values with torch's own generator.

        The layers use a counter-based generator instead, so this is an independent check on them. Values are drawn in
        float64 (float32 on devices without it) and cast, so half precision is not biased.

        Args:
            shape: Shape of the result.
            generator: Source of randomness; torch's default generator of the device if None.
            dtype: Type of the result; torch's default if None.
            device: Device of the result; the generator's device if None, else torch's default.
        """
        if device is None:
            device = generator.device if generator is not None else torch.empty(0).device
        device = torch.device(device)
        drawn = self._draw(shape, {"generator": generator, "dtype": widest(device), "device": device})
        return drawn.to(dtype or torch.get_default_dtype())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        alike = type(other) is type(self) and vars(other).keys() == vars(self).keys()
        return alike and all(_same(value, vars(other)[name]) for name, value in vars(self).items())

    def __hash__(self) -> int:
        return hash((type(self), *vars(self)))


class KernelLaw(NamedTuple):
    """Encoding of a scaled built-in law for the kernels and the fast path.

    A mask value is ``factor`` times a value drawn from the law ``kind`` with ``params``. The operators take the same
    numbers as a float64 tensor: ``[number of the kind, factor, mean, variance, *params]``, with the moments of the
    scaled law. A schedule therefore changes an input of a compiled graph, not the graph itself.
    """

    kind: str
    params: tuple[float, ...]
    factor: float
    mean: float = math.nan
    variance: float = math.nan

    def tensor(self) -> Tensor:
        """Return the law as a float64 tensor."""
        check_kind(self.kind)
        encoded = [float(KINDS.index(self.kind)), self.factor, self.mean, self.variance, *self.params]
        return torch.tensor(encoded, dtype=torch.float64, device="cpu")

    @classmethod
    def of_tensor(cls, law: Tensor) -> KernelLaw:
        """Create a law from its tensor form."""
        kind, factor, mean, variance, *params = law.tolist()
        return cls(KINDS[int(kind)], tuple(params), factor, mean, variance)


def check_kind(kind: str) -> None:
    """Raise an error if the kernels do not draw such laws."""
    if kind not in KINDS:
        raise ValueError(
            f"kernels: expected a law of {', '.join(KINDS)}, got {kind!r}; pass custom laws to contdrop.functional or "
            "to a layer, which draw them by their quantile"
        )


class BuiltIn(Law):
    """A law implemented in the kernels, with a text form. Subclasses are final.

    A mask value is ``factor`` times a value drawn from the law ``kind`` with ``params``.

    Attributes:
        kind: Name of the law in the text form and in the kernels.
        params: Parameters in the kernels' order.
        factor: Factor of the drawn values.
        for_kernels: Encodings of the scaled law, by scale.
        for_graphs: Their tensors, as inputs of compiled graphs; None until ``prepare_for_graphs``.
    """

    kind: ClassVar[str]
    # The parameter that gives the law's strength, and its meaning. The text form and repr always contain it; the others
    # only if they differ from their defaults.
    _leading: ClassVar[Mapping[str, str]]

    params: tuple[float, ...]
    factor: float
    for_kernels: dict[str, KernelLaw]
    for_graphs: dict[str, Tensor] | None = None

    def quantile(self, u: FloatOrTensor) -> FloatOrTensor:
        # Reading values ends a trace and is refused under vmap, where custom laws may call built-in ones.
        if not isinstance(u, Tensor) or not (torch.compiler.is_compiling() or u.is_meta or not unobserved(u)):
            inside = (u >= 0) & (u <= 1)
            if not (inside.all() if isinstance(inside, Tensor) else inside):
                got = "a tensor with other values" if isinstance(u, Tensor) else str(u)
                raise ValueError(f"{type(self).__name__}.quantile: expected probabilities in [0, 1], got {got}")
        return _elementwise(self._quantile, u)

    @abc.abstractmethod
    def _quantile(self, u: Tensor) -> Tensor: ...

    def prepare_for_graphs(self) -> None:
        """Create the tensors that compiled graphs take as inputs, so that assigning a new law does not recompile.

        A layer calls this when it gets the law. A law without these tensors is a constant of the graph.
        """
        with torch.inference_mode(False):
            tensors = {scale: law.tensor() for scale, law in self.for_kernels.items()}
        if all(type(tensor) is Tensor for tensor in tensors.values()):  # not fake tensors of a mode of torch
            self._set(for_graphs=tensors)

    def __getstate__(self) -> dict[str, Any]:
        # Without the tensors: torch.load would move them to the device it maps to.
        return {name: value for name, value in vars(self).items() if name != "for_graphs"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._set(**state)
        self.prepare_for_graphs()

    def _finish(self, params: tuple[float, ...], factor: float = 1.0, **values: float) -> None:
        """Store normalized parameters and everything derived from them in a frozen instance."""
        self._set(params=params, factor=factor, **values)
        encoded = {}
        for scale, divisor in (("inverted", self.mean or 1.0), ("paper", 1.0)):  # a law of zeros is not scaled
            encoded[scale] = KernelLaw(self.kind, params, factor / divisor, *scaled_moments(self, 1 / divisor))
        self._set(for_kernels=encoded)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for base in cls.__bases__:
            if "kind" in vars(base):
                raise TypeError(
                    f"{cls.__name__}: expected a subclass of contdrop.Law, got one of {base.__name__}, which the "
                    "kernels draw themselves; derive from Law and provide mean, variance and quantile"
                )

    def _written_params(self) -> list[tuple[str, float]]:
        return [
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (field.name in self._leading or getattr(self, field.name) != field.default)
        ]

    def __str__(self) -> str:
        # The shortest text that parses back to the same number: 1, not 1.0.
        written = ",".join(f"{name}={repr(value + 0.0).removesuffix('.0')}" for name, value in self._written_params())
        return f"{self.kind}:{written}" if written else self.kind

    def __repr__(self) -> str:
        written = ", ".join(
            f"{name}={value!r}" if math.isfinite(value) else f"{name}=float('{value}')"
            for name, value in self._written_params()
        )
        return f"{type(self).__name__}({written})"

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@by_keyword
@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Bernoulli(BuiltIn):
    """Law of ordinary dropout: m = ``value`` with probability ``keep``, else 0.

    With unscaled masks the kept value matters: see ``matching``. The kernels use ``keep`` exactly if it is a multiple
    of 2^-16. Otherwise they round it to a multiple of 2^-21, or of 2^-32 if ``keep`` or 1 - ``keep`` is below 1/64.
    """

    kind: ClassVar[str] = "bernoulli"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Bernoulli"
    _leading: ClassVar[Mapping[str, str]] = {"keep": "probability of keeping a unit"}

    keep: float = 0.5
    value: float = 1.0

    def __post_init__(self) -> None:
        keep = check_finite("Bernoulli", "keep, the probability of keeping a unit", self.keep, 0, 1)
        value = check_finite("Bernoulli", "value", self.value)
        if value == 0:
            raise ValueError("Bernoulli: expected a number other than 0 for value, the factor of kept units, got 0.0")
        mean, variance = keep * value, keep * (1 - keep) * value * value
        self._finish((keep,), value, keep=keep, value=value, mean=mean, variance=variance)

    @classmethod
    def matching(cls, law: Law) -> Bernoulli:
        """Return the Bernoulli law with the relative variance r and mean m of ``law``.

        keep = 1 / (1 + r) and value = m / keep. It is the control for a comparison of distributions: equal noise
        strength, and with unscaled masks equal means too, so that the next layers learn at the same rate.
        """
        keep = 1 / (1 + _strength("Bernoulli.matching", law))
        return cls(keep=keep, value=law.mean / keep)

    def _cdf(self, x: Tensor) -> Tensor:
        below, first, last = self._atoms()
        return torch.where(x < last, torch.full_like(x, below), 1).masked_fill(x < first, 0)

    def _quantile(self, u: Tensor) -> Tensor:
        below, first, last = self._atoms()
        return torch.where((u > below) | (below == 0), torch.full_like(u, last), first)

    def _atoms(self) -> tuple[float, float, float]:
        """Return the probability of the lower value, and the two values."""
        return (1 - self.keep, 0.0, self.value) if self.value > 0 else (self.keep, self.value, 0.0)

    def _draw(self, shape: Sequence[int], options: Mapping[str, Any]) -> Tensor:
        u = torch.rand(shape, **options)
        return (u < self.keep).to(u.dtype) * self.value


@dataclasses.dataclass(frozen=True, repr=False)
class Uniform(BuiltIn):
    """Law of uniform dropout: m is uniform on (low, high)."""

    kind: ClassVar[str] = "uniform"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Uniform"
    _leading: ClassVar[Mapping[str, str]] = {}

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = (check_finite("Uniform", name, getattr(self, name)) for name in ("low", "high"))
        _check_interval("Uniform", low, high)
        mean, variance = (low + high) / 2, (high - low) * (high - low) / 12
        self._finish((low, high), low=low, high=high, mean=mean, variance=variance)

    @classmethod
    def matching(cls, law: Law) -> Uniform:
        """Return the uniform law with the relative variance r and mean m of ``law``.

        It is uniform from m (1 - a) to m (1 + a), a = sqrt(3 r), and needs r of at most 1/3, where it starts at 0.
        """
        r = _strength("Uniform.matching", law)
        a = math.sqrt(3 * r)
        low, high = sorted((law.mean * (1 - a), law.mean * (1 + a)))
        if a > 1 + _ROUNDING or low == high:
            raise ValueError(
                f"Uniform.matching: expected a relative variance above 0 and at most 1/3, got {r:.6g} of {law!r}; "
                "use Gaussian.matching or Bernoulli.matching for other strengths"
            )
        return cls(low, high) if a <= 1 else cls(*sorted((0.0, 2 * law.mean)))

    def _cdf(self, x: Tensor) -> Tensor:
        return ((x - self.low) / (self.high - self.low)).clamp(0, 1)

    def _quantile(self, u: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * u


@by_keyword
@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Gaussian(BuiltIn):
    """Law of Gaussian dropout: m = g clipped to [low, high], with g ~ N(mu, sigma^2).

    ``sigma`` is always a standard deviation; ``Gaussian.from_variance`` takes a variance. ``low=-inf, high=inf`` gives
    the unclipped law. With ``sigma=0`` the mask is constant; as sigma grows the law tends to a Bernoulli law on
    {low, high}. For the moments see :mod:`contdrop._clipped_normal`.
    """

    kind: ClassVar[str] = "gaussian"
    fingerprinted_as: ClassVar[str] = "contdrop.laws.Gaussian"
    _leading: ClassVar[Mapping[str, str]] = {"sigma": "standard deviation"}

    sigma: float = 0.3
    mu: float = 0.5
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        mu = check_finite("Gaussian", "mu", self.mu)
        sigma = check_finite("Gaussian", "sigma, a standard deviation", self.sigma, 0)
        low, high = (check_finite("Gaussian", name, getattr(self, name), finite=False) for name in ("low", "high"))
        _check_interval("Gaussian", low, high)
        mean, variance = _clipped_normal.moments(mu, sigma, low, high)
        self._finish((mu, sigma, low, high), sigma=sigma, mu=mu, low=low, high=high, mean=mean, variance=variance)

    @classmethod
    def from_variance(cls, variance: float, *, mu: float = 0.5, low: float = 0.0, high: float = 1.0) -> Gaussian:
        """Return the law with this variance before clipping, the other reading of the paper's N(0.5, 0.2)."""
        sigma = math.sqrt(check_finite("Gaussian.from_variance", "variance", variance, 0))
        return cls(sigma=sigma, mu=mu, low=low, high=high)

    @classmethod
    def matching(cls, law: Law, *, clip: bool = True) -> Gaussian:
        """Return the Gaussian law with the relative variance r and mean m of ``law``: mu = m, clipped to [0, 2 m].

        Sigma is found by bisection, to the last bit of the clipped variance, for r of at most 0.999: there sigma is
        532 m, and one value in 667 is not at a bound; at r = 1 it would be infinite, and the law Bernoulli with
        keep 0.5. With ``clip=False`` the law is not clipped, and sigma = m sqrt(r) for every r.
        """
        r = _strength("Gaussian.matching", law)
        m = law.mean
        if not clip:
            return cls(sigma=abs(m) * math.sqrt(r), mu=m, low=-math.inf, high=math.inf)
        if r > _NEARLY_BERNOULLI * (1 + _ROUNDING):
            raise ValueError(
                f"Gaussian.matching: expected a relative variance of at most {_NEARLY_BERNOULLI}, got {r:.6g} of "
                f"{law!r}; use Bernoulli.matching(law) or Gaussian.matching(law, clip=False)"
            )
        low, high = sorted((0.0, 2 * m))
        return cls(sigma=abs(m) * _clipped_normal.sigma_of(r), mu=m, low=low, high=high)

    def _cdf(self, x: Tensor) -> Tensor:
        z = (x.double() - self.mu) / self.sigma if self.sigma else torch.where(x >= self.mu, math.inf, -math.inf)
        return torch.where(x < self.low, 0.0, torch.where(x >= self.high, 1.0, torch.special.ndtr(z))).to(x.dtype)

    def _quantile(self, u: Tensor) -> Tensor:
        # sigma 0 times an infinite quantile would be NaN.
        spread = self.sigma * torch.special.ndtri(u.double()) if self.sigma else torch.zeros_like(u.double())
        return (self.mu + spread).clamp(self.low, self.high).to(u.dtype)

    def _draw(self, shape: Sequence[int], options: Mapping[str, Any]) -> Tensor:
        return (self.mu + self.sigma * torch.randn(shape, **options)).clamp(self.low, self.high)


LAWS: Mapping[str, type[BuiltIn]] = {law.kind: law for law in (Bernoulli, Uniform, Gaussian)}
KINDS = tuple(LAWS)  # in the order of the numbers in ``kernels/native/api.h``


def parse_law(text: str) -> Law:
    """Read a law from its text form, ``name`` or ``name:parameter=number,parameter=number``.

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


def scaled_moments(law: Law, factor: float) -> tuple[float, float]:
    """Return the mean and variance of ``factor`` times a mask value."""
    try:
        return law.mean * factor, law.variance * factor**2
    except OverflowError:  # the mean of the law is nearly 0
        return law.mean * factor, math.inf


def training_factor(owner: str, law: Law, scale: str) -> float:
    """Return the factor of mask values in training, after checking the law and the scale."""
    check_law(owner, law)
    check_choice(owner, "scale", scale, SCALES)
    # A Bernoulli law that keeps nothing gives zeros, as torch.nn.Dropout(p=1) does.
    if scale == "inverted" and law.mean == 0 and not isinstance(law, Bernoulli):
        raise ValueError(f"{owner}: {law!r} has mean 0, so it cannot be scaled to mean one; use scale='paper'")
    return 1 / law.mean if scale == "inverted" and law.mean else 1.0


def check_law(owner: str, law: object) -> None:
    """Raise an error unless ``law`` is a law with a finite mean and variance."""
    if isinstance(law, BuiltIn):
        return
    if not isinstance(law, Law):
        raise TypeError(
            f"{owner}: expected a law such as Gaussian(sigma=0.3), got {type(law).__name__}; "
            "contdrop.parse_law reads one from text"
        )
    for name in ("mean", "variance"):
        value: Any = getattr(law, name, None)
        is_number = isinstance(value, (int, float, numbers.Real))  # torch.compile knows the first two only
        if not is_number or not -math.inf < value < math.inf:
            raise TypeError(
                f"{owner}: expected {type(law).__name__} to have a {name}, a finite number, "
                f"got {'none' if value is None else value}; a law has mean, variance and quantile"
            )


def _strength(owner: str, law: Law) -> float:
    """Return the relative variance to match."""
    check_law(owner, law)
    if not math.isfinite(law.relative_variance):
        raise ValueError(f"{owner}: expected a law with a finite relative variance, got {law!r} of mean {law.mean:g}")
    return law.relative_variance


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)


def _check_interval(owner: str, low: float, high: float) -> None:
    if low >= high:
        raise ValueError(f"{owner}: expected low to be less than high, got low={low}, high={high}")


def _elementwise(function: Callable[[Tensor], Tensor], x: FloatOrTensor) -> FloatOrTensor:
    """Apply a function of floating-point tensors to a number, or to a tensor of any type."""
    if isinstance(x, Tensor):
        return function(x if x.is_floating_point() else x.to(torch.get_default_dtype()))
    return float(function(torch.tensor(x, dtype=torch.float64, device="cpu")))
