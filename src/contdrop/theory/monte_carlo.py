"""Comparison of a formula with draws of masks, and the verdict on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..laws import Law

INPUTS = 50
TRUSTED = 5.0  # standard errors
CLOSE = 0.3  # the largest relative error that is still called an approximation
_ROUNDING = 1e-9
_CHUNK = 20_000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Value of a formula in one case.

    Attributes:
        case: Description of the case.
        formula: Value of the equation; a number, or several.
        sampled: Mean over draws of the masks, and its ``standard_error``.
        exact: Exact value, where it is known; else None.
    """

    case: str
    formula: Tensor
    sampled: Tensor
    standard_error: Tensor
    exact: Tensor | None = None

    @property
    def drawn(self) -> bool:
        """True if masks were drawn; gradients for given masks are compared with automatic differentiation."""
        return bool(self.standard_error.any())

    @property
    def standard_errors(self) -> float:
        """The largest distance of formula and draws, in standard errors."""
        tiny = _ROUNDING * (1 + self.sampled.abs())
        return ((self.formula - self.sampled).abs() / self.standard_error.clamp(min=0).add(tiny)).max().item()

    @property
    def relative_error(self) -> float:
        """The relative error of the formula, against the exact value if known, else the draws (Euclidean norms)."""
        truth = self.sampled if self.exact is None else self.exact
        size = torch.linalg.vector_norm(truth).item()
        distance = torch.linalg.vector_norm(self.formula - truth).item()
        return distance / size if size else math.inf if distance else 0.0

    @property
    def holds(self) -> bool:
        exactly = self.exact is None or self.relative_error < _ROUNDING
        return exactly and self.standard_errors < TRUSTED

    def as_dict(self) -> dict[str, object]:
        return {
            "case": self.case,
            **{name: getattr(self, name).tolist() for name in ("formula", "sampled", "standard_error")},
            "exact": None if self.exact is None else self.exact.tolist(),
            "standard_errors": self.standard_errors if self.drawn else None,
            "relative_error": self.relative_error,
        }


def computed(case: str, formula: Tensor, exact: Tensor) -> Comparison:
    """Compare a formula with an exact value alone."""
    return Comparison(case, formula, exact, torch.zeros_like(exact), exact)


@dataclasses.dataclass(frozen=True)
class Check:
    """An equation, and the comparisons that decide about it.

    Attributes:
        number: Number of the equation in the paper's order.
        what: Subject.
        statement: The equation as the paper prints it.
        comparisons: One for every case.
        note: What is wrong with it, or what to keep in mind.
        limit: True if it holds in a limit only, so that it cannot be exact, whatever few draws show.
    """

    number: str
    what: str
    statement: str
    comparisons: tuple[Comparison, ...]
    note: str = ""
    limit: bool = False

    @property
    def relative_error(self) -> float:
        return max((comparison.relative_error for comparison in self.comparisons), default=0.0)

    @property
    def standard_errors(self) -> float | None:
        """The largest of all comparisons; None if nothing was drawn."""
        return max((comparison.standard_errors for comparison in self.comparisons if comparison.drawn), default=None)

    @property
    def verdict(self) -> str:
        """One of "definition", "exact", "approximation" and "does not hold"."""
        if not self.comparisons:
            return "definition"
        if not self.limit and all(comparison.holds for comparison in self.comparisons):
            return "exact"
        return "approximation" if self.relative_error <= CLOSE else "does not hold"

    @property
    def verdict_text(self) -> str:
        return self.verdict + (f" good to {100 * self.relative_error:.2g} %" if self.verdict == "approximation" else "")

    def as_dict(self) -> dict[str, object]:
        names = ("number", "what", "statement", "verdict", "relative_error", "standard_errors", "note")
        comparisons = [comparison.as_dict() for comparison in self.comparisons]
        return {**{name: getattr(self, name) for name in names}, "comparisons": comparisons}


class MonteCarlo:
    """The unit and the layer that all equations are tried on, and the draws of masks.

    Args:
        draws: Masks per expectation.
        seed: Seed of the unit, the layer and the masks. Torch's own generator is neither read nor advanced.
    """

    def __init__(self, draws: int = 200_000, seed: int = 0) -> None:
        if draws < 1000:
            raise ValueError(f"theory: expected at least 1000 draws, got {draws}")
        self.draws = draws
        self.generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(INPUTS, generator=self.generator, dtype=torch.float64)
        # Shifted so that E[S] is 0.5 with masks of mean 1/2, while Var(S) is about 0.4 at sigma = 0.3: a unit that is
        # neither saturated nor nearly linear.
        weight = 0.53 * torch.randn(INPUTS, generator=self.generator, dtype=torch.float64)
        self.weight = weight + (1.0 - weight @ self.x) / self.x.sum()
        layer = torch.randn(4, INPUTS, generator=self.generator, dtype=torch.float64)
        self.layer = layer / math.sqrt(INPUTS)

    def mean(self, law: Law, statistic: Callable[[Tensor], Tensor], inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
        """Return the mean over masks [draws, inputs] of a statistic [draws, ...], and its standard error."""
        total = squares = torch.zeros((), dtype=torch.float64)
        for start in range(0, self.draws, _CHUNK):
            shape = (min(_CHUNK, self.draws - start), inputs)
            values = statistic(law.sample(shape, generator=self.generator, dtype=torch.float64))
            total = total + values.sum(0)
            squares = squares + values.square().sum(0)
        mean = total / self.draws
        variance = (squares / self.draws - mean.square()).clamp(min=0)
        return mean, (variance / self.draws).sqrt()

    def compare(
        self,
        law: Law,
        formula: Tensor | float,
        statistic: Callable[[Tensor], Tensor],
        exact: Tensor | float | None = None,
        *,
        case: str | None = None,
    ) -> Comparison:
        """Compare a formula with the mean of a statistic over masks."""
        sampled, error = self.mean(law, statistic)
        wanted = None if exact is None else torch.as_tensor(exact, dtype=torch.float64)
        return Comparison(case or str(law), torch.as_tensor(formula, dtype=torch.float64), sampled, error, wanted)

    def product(self, masks: Tensor) -> Tensor:
        """Return S = sum of w_i m_i x_i."""
        return masks @ (self.weight * self.x)
