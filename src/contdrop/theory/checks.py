"""Every equation of the paper's section III against Monte Carlo: does it hold, how well, and if not, what does?

An equation becomes a :class:`Check` with one comparison per case. A comparison has what the formula gives, what drawing
masks gives with its standard error, and where the theory knows it the exact value. The verdict follows from the
numbers. Equations are numbered in the order in which the paper displays them; a letter marks a second look at one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from ..laws import Gaussian, Law
from . import dynamic, static
from .monte_carlo import Check as Check
from .monte_carlo import Comparison as Comparison
from .monte_carlo import MonteCarlo as MonteCarlo
from .paper_equations import EQUATIONS as EQUATIONS
from .paper_equations import LAWS as LAWS
from .paper_equations import TARGET, UNCLIPPED


def run(draws: int = 200_000, seed: int = 0, after_each: Callable[[], object] = lambda: None) -> list[Check]:
    """Goes through all equations.

    Args:
        draws: Masks per expectation.
        seed: Of everything that is random.
        after_each: Called after every equation.
    """
    mc = MonteCarlo(draws, seed)
    results = []
    for check in EQUATIONS:
        results.append(check(mc))
        after_each()
    return results


def unexplained_shares(draws: int = 200_000, seed: int = 0) -> dict[str, float]:
    """For each form of the expected gradient, the share of the noise's effect that it leaves unexplained.

    Against Monte Carlo with masks of N(0.5, 0.3^2), as the paper derives it; what "exact" leaves is the noise of that.
    """
    mc = MonteCarlo(draws, seed)
    w, x = mc.weight, mc.x
    gradient, _ = mc.mean(UNCLIPPED, lambda m: dynamic.dropout_gradient(w, x, TARGET, m, unit="sigmoid"))
    return {
        form: dynamic.unexplained_share(w, x, TARGET, UNCLIPPED, form=form, gradient=gradient) for form in dynamic.FORMS
    }


def trade_offs(seed: int = 0) -> list[static.TradeOff]:
    """Diversity and independence of a linear layer's outputs, for the three laws and the clipped Gaussian's sigmas."""
    mc = MonteCarlo(seed=seed)
    gaussians = [Gaussian(sigma=sigma) for sigma in (0.1, 0.2, 0.4, 0.5, 1.0)]
    return static.trade_off([*LAWS, *gaussians], mc.layer, mc.x)


@dataclasses.dataclass(frozen=True)
class Normality:
    """How normal the sum of a unit with that many inputs is.

    Attributes:
        law: Of the masks.
        inputs: Of the unit, with weights from N(0, 1) and inputs from U(0, 1).
        distance: Largest difference of the distribution functions.
        bound: The Berry-Esseen bound of that.
    """

    law: Law
    inputs: int
    distance: float
    bound: float


def normality(sizes: Sequence[int] = (10, 100, 800), seed: int = 0) -> list[Normality]:
    """Kolmogorov distances of S from a normal variable, for the three laws."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(max(sizes), generator=generator, dtype=torch.float64)
    x = torch.rand(max(sizes), generator=generator, dtype=torch.float64)
    return [
        Normality(
            law,
            n,
            static.normal_distance(weight[:n], x[:n], law).value,
            static.berry_esseen(weight[:n], x[:n], law).item(),
        )
        for law in LAWS
        for n in sizes
    ]
