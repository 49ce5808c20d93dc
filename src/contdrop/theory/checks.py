"""Every equation of the paper's section III against Monte Carlo: does it hold, how well, and if not, what does?

An equation becomes a :class:`Check` with one comparison per case. A comparison has what the formula gives, what drawing
masks gives with its standard error, and where the theory knows it the exact value. The verdict follows from the
numbers. Equations are numbered in the order in which the paper displays them; a letter marks a second look at one.
"""

from __future__ import annotations

from collections.abc import Callable

from . import dynamic
from .equations import EQUATIONS as EQUATIONS
from .equations import TARGET, UNCLIPPED
from .laboratory import Check as Check
from .laboratory import Comparison as Comparison
from .laboratory import Laboratory as Laboratory


def run(draws: int = 200_000, seed: int = 0, after_each: Callable[[], object] = lambda: None) -> list[Check]:
    """Goes through all equations.

    Args:
        draws: Masks per expectation.
        seed: Of everything that is random.
        after_each: Called after every equation.
    """
    laboratory = Laboratory(draws, seed)
    results = []
    for check in EQUATIONS:
        results.append(check(laboratory))
        after_each()
    return results


def unexplained_shares(draws: int = 200_000, seed: int = 0) -> dict[str, float]:
    """For each form of the expected gradient, the share of the noise's effect that it leaves unexplained.

    Against Monte Carlo with masks of N(0.5, 0.3^2), as the paper derives it; what "exact" leaves is the noise of that.
    """
    laboratory = Laboratory(draws, seed)
    w, x = laboratory.weight, laboratory.x
    gradient, _ = laboratory.mean(UNCLIPPED, lambda m: dynamic.dropout_gradient(w, x, TARGET, m, unit="sigmoid"))
    return {
        form: dynamic.unexplained_share(w, x, TARGET, UNCLIPPED, form=form, gradient=gradient) for form in dynamic.FORMS
    }
