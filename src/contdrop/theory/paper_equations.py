"""Equations of the paper's section III, each tried by Monte Carlo.

A :class:`.Check` holds one comparison per case: the value of the formula, the mean over drawn masks with its standard
error, and where it is known the exact value. The verdict follows from these numbers. Equations are numbered in the
paper's order; a letter marks a second look at one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ..laws import Bernoulli, Gaussian, Law, Uniform
from . import dynamic, sigmoid_expectations, static
from .monte_carlo import INPUTS, Check, Comparison, MonteCarlo, computed

CLIPPED = Gaussian(sigma=0.3)
UNCLIPPED = Gaussian(sigma=0.3, low=-math.inf, high=math.inf)
LAWS: tuple[Law, ...] = (Bernoulli(keep=0.5), Uniform(), CLIPPED)
ALL_LAWS = (*LAWS, UNCLIPPED)
TARGET = 0.8

# Subject and statement, as the paper prints it.
_TEXTS = {
    "0": ("expected pre-activation", "E[S] = 1/2 sum w_j I_j for all three laws"),
    "1": (
        "variances and covariances of a linear layer",
        "Cov(S_i, S_l) = v sum w_ij w_lj I_j^2, v = 1/12, sigma^2, 1/4",
    ),
    "1a": (
        "the same for the clipped Gaussian, which is what the paper samples",
        "Cov(S_i, S_l) = sigma^2 sum w_ij w_lj I_j^2",
    ),
    "2": ("the sigmoid unit", "O = 1 / (1 + c exp(-lambda S))"),
    "3": ("S is normal", "S ~ N(mu_U, sigma_U^2) as n grows"),
    "4": ("expected output of a sigmoid unit", "E[O] = sigmoid(mu_S / sqrt(1 + pi sigma_S^2 / 8))"),
    "5": ("the recursion through layers", "E[O] = sigmoid(E[S] / (1 + pi Var(S) / 8))"),
    "6": ("Bernoulli dropout's recursion of means", "E[O] = sigmoid(E[S])"),
    "7": ("gradient of the ensemble's error, linear unit", "dE_ENS/dw_i = -(t - O_ENS) mu I_i"),
    "8": (
        "gradient of the error for a given mask, linear unit",
        "dE_D/dw_i = -t g_i I_i + w_i g_i^2 I_i^2 + sum w_j g_i g_j I_i I_j",
    ),
    "9": ("expected gradient, linear unit", "E[dE_D/dw_i] = dE_ENS/dw_i + w_i I_i^2 sigma^2"),
    "10": ("what the noise adds to the error, linear unit", "E_D = E_ENS + 1/2 sum w_i^2 I_i^2 sigma^2"),
    "11": ("what the noise adds to the error, linear unit", "E_D = E_ENS + 1/2 sum w_i^2 I_i^2 Var(p_i)"),
    "12": ("the sigmoid unit's error, cross entropy", "E_D = -(t log O + (1 - t) log(1 - O))"),
    "13": ("the ensemble's output, sigmoid unit", "O_ENS = sigmoid(mu_S / sqrt(1 + pi sigma_S^2 / 8))"),
    "14": ("gradient of the ensemble's error, sigmoid unit", "dE_ENS/dw_i = -lambda (t - O_ENS) mu I_i"),
    "15": ("gradient of the error for a given mask, sigmoid unit", "dE_D/dw_i = -lambda (t - O) g_i I_i"),
    "16": (
        "expected gradient, sigmoid unit: what is added to the ensemble's",
        "E[dE_D/dw_i] = E[-lambda (t - sigmoid(S given g_i = mu)) mu I_i]",
    ),
    "17": (
        "expected output with one mask value fixed at its mean",
        "E[O'] = sigmoid(mu_S / sqrt(1 + pi sigma_S'^2 / 8))",
    ),
    "17a": (
        "expected gradient, sigmoid unit: what the paper adds to the ensemble's",
        "lambda mu I_i sigmoid'(.) (pi/16) mu_S w_i^2 I_i^2 sigma^2 / (1 + pi sigma_S^2 / 8)",
    ),
    "17b": (
        "expected gradient, sigmoid unit: by Stein's lemma",
        "lambda^2 sigma^2 w_i I_i^2 E[sigmoid'(lambda S)]  (not in the paper)",
    ),
    "18": (
        "what the noise adds to the error, sigmoid unit",
        "E_D = E_ENS + lambda/2 sigmoid'(.) sum w_i w_j mu^2 I_i I_j (pi/8) w_i^2 I_i^2 sigma^2 / (1 + pi/8 sigma_S^2)",
    ),
    "19": (
        "the same for Bernoulli dropout, to second order",
        "E_D = E_ENS + (lambda/2) sigmoid'(U) sum w_i^2 I_i^2 Var(p_i)",
    ),
}

# Faults of an equation, and conditions to keep in mind.
_NOTES = {
    "0": "The paper says that I_j is kept with probability u; it is multiplied by u.",
    "1": "Variances and covariances are the same number v times a matrix in which no law occurs: there is one knob.",
    "1a": "Clipping to [0, 1] takes variance away; with the law's own variance it is exact (static.linear_moments).",
    "3": "Bounded summands are not enough; the sum of their variances must grow. Distances: static.normal_distance.",
    "4": "The probit approximation; its error is never above 0.018. Quadrature: method='quadrature'.",
    "5": "The root of equation 4 is missing; with it the recursion is as good as the probit.",
    "6": "Ignores the variance. Nothing in it is peculiar to Bernoulli dropout: equation 4 holds for that as well.",
    "9": "For every law, with sigma^2 the variance of what is sampled.",
    "10": "In expectation. A ridge penalty, scaled by the inputs: no products of different weights, so nothing in it "
    "penalises co-adaptation.",
    "11": "The same penalty.",
    "13": "As equation 4. The printed density lacks its normaliser and has (S - mu^2) for (S - mu)^2.",
    "14": "Not the gradient of the error of O_ENS = E[O], which depends on the variance too; it is the gradient for "
    "O_ENS = sigmoid(mu_S), the normalised geometric mean. Compared with numerical differentiation.",
    "16": "E[g_i f(S)] is not mu E[f(S) given g_i = mu]: that drops the covariance of g_i and S, the leading term.",
    "17": "With the 8 inside the root, where the paper has it outside, and Var(S'), where it writes Var(O').",
    "17a": "Follows from equation 16. Stein's lemma gives lambda^2 sigma^2 w_i I_i^2 E[sigmoid'(lambda S)].",
    "17b": "The right form, exact for the unclipped Gaussian. For any law: form='exact'.",
    "18": "The double sum factorises: sum_j w_j I_j is a number. No pair of units is penalised; it can be negative.",
    "19": "Good for every law, the continuous ones included: to second order only the variance of the mask matters.",
}


def _expected_sum(mc: MonteCarlo) -> Iterator[Comparison]:
    full = mc.weight @ mc.x
    for law in ALL_LAWS:
        yield mc.compare(law, 0.5 * full, mc.product, law.mean * full)


def _covariances(mc: MonteCarlo, laws: dict[Law, float]) -> Iterator[Comparison]:
    for law, variance in laws.items():
        mean, exact = static.linear_moments(mc.layer, mc.x, law)

        def products(masks: Tensor, mean: Tensor = mean) -> Tensor:
            s = (masks * mc.x) @ mc.layer.T - mean
            return s.unsqueeze(-1) * s.unsqueeze(-2)

        yield mc.compare(law, variance * (mc.layer * mc.x.square()) @ mc.layer.T, products, exact)


def _normality(mc: MonteCarlo) -> Iterator[Comparison]:
    """Compare the distribution function at its quantiles, for ten inputs, where it is hardest."""
    few = 10
    terms = mc.weight[:few] * mc.x[:few]
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    for law in LAWS:
        mean, deviation = law.mean * terms.sum(), (law.variance * terms.square().sum()).sqrt()
        places = mean + deviation * torch.special.ndtri(levels)

        def below(masks: Tensor, places: Tensor = places) -> Tensor:
            return ((masks @ terms).unsqueeze(-1) <= places).double()

        yield Comparison(f"{law}, n = {few}", levels, *mc.mean(law, below, few))


def _sigmoid(mc: MonteCarlo, method: str, laws: Iterable[Law], gain: float = 2.0) -> Iterator[Comparison]:
    for law in laws:
        mean, variance = law.mean * (mc.weight @ mc.x), law.variance * (mc.weight * mc.x).square().sum()
        formula = static.expected_sigmoid(mean, variance, gain=gain, method=method)
        exact, _ = sigmoid_expectations.expected_sigmoid(gain * mc.weight * mc.x, law)
        yield mc.compare(law, formula, lambda m: torch.sigmoid(gain * mc.product(m)), exact)


def _without_root(mc: MonteCarlo) -> Iterator[Comparison]:
    for mean, variance in ((1.553, 0.4285), (4.0, 16.0), (20.0, 100.0)):
        # A unit with one input has exactly this mean and variance under N(mean, variance) masks.
        law = Gaussian(mu=mean, sigma=math.sqrt(variance), low=-math.inf, high=math.inf)
        formula, exact = (static.expected_sigmoid(mean, variance, method=m) for m in ("paper", "quadrature"))
        sampled, error = mc.mean(law, lambda m: torch.sigmoid(m[:, 0]), 1)
        yield Comparison(f"mu_S = {mean:g}, sigma_S^2 = {variance:g}", formula, sampled, error, exact)


def _linear_ensemble(mc: MonteCarlo) -> Iterator[Comparison]:
    for law in LAWS:
        weight = mc.weight.clone().requires_grad_()
        error = (TARGET - law.mean * (weight @ mc.x)).square() / 2
        (exact,) = torch.autograd.grad(error, weight)
        yield computed(str(law), dynamic.ensemble_gradient(mc.weight, mc.x, TARGET, law), exact)


def _errors(s: Tensor, unit: str) -> Tensor:
    """Return E_D for given sums."""
    if unit == "linear":
        return (TARGET - s).square() / 2
    target = torch.full_like(s, TARGET)
    return torch.nn.functional.binary_cross_entropy_with_logits(s, target, reduction="none")


def _by_autograd(mc: MonteCarlo, unit: str) -> Iterator[Comparison]:
    """Compare the gradient for given masks with automatic differentiation of the error."""
    for law in LAWS:
        masks = law.sample((100, INPUTS), generator=mc.generator, dtype=torch.float64)
        weight = mc.weight.clone().requires_grad_()
        errors = _errors(masks @ (weight * mc.x), unit)
        exact = torch.stack([torch.autograd.grad(error, weight, retain_graph=True)[0] for error in errors])
        yield computed(str(law), dynamic.dropout_gradient(mc.weight, mc.x, TARGET, masks, unit=unit), exact)


def _linear_expected_gradient(mc: MonteCarlo) -> Iterator[Comparison]:
    for law in ALL_LAWS:
        formula = dynamic.expected_gradient(mc.weight, mc.x, TARGET, law)
        yield mc.compare(law, formula, lambda m: dynamic.dropout_gradient(mc.weight, mc.x, TARGET, m))


def _linear_regularizer(mc: MonteCarlo, laws: Iterable[Law]) -> Iterator[Comparison]:
    for law in laws:
        base = dynamic.ensemble_error(mc.weight, mc.x, TARGET, law)
        formula = dynamic.regularizer(mc.weight, mc.x, TARGET, law)
        yield mc.compare(law, formula, lambda m, base=base: _errors(mc.product(m), "linear") - base)  # type: ignore[misc]


def _sigmoid_ensemble_gradient(mc: MonteCarlo) -> Iterator[Comparison]:
    some = 8  # of the weights: every numerical derivative takes four expectations
    for law in (UNCLIPPED, CLIPPED):

        def error(weight: Tensor, law: Law = law) -> float:
            return dynamic.ensemble_error(weight, mc.x, TARGET, law, unit="sigmoid")

        formula = dynamic.ensemble_gradient(mc.weight, mc.x, TARGET, law, unit="sigmoid")[:some]
        yield computed(str(law), formula, _numerical_gradient(error, mc.weight, some))


def _noise_term(mc: MonteCarlo, law: Law, formula: Tensor) -> Comparison:
    """Compare the noise's effect on the expected gradient: that of a formula for the gradient, and that of draws."""
    base = dynamic.ensemble_gradient(mc.weight, mc.x, TARGET, law, unit="sigmoid")
    exact = dynamic.expected_gradient(mc.weight, mc.x, TARGET, law, unit="sigmoid") - base
    sampled, error = mc.mean(law, lambda m: dynamic.dropout_gradient(mc.weight, mc.x, TARGET, m, unit="sigmoid"))
    return Comparison(str(law), formula - base, sampled - base, error, exact)


def _conditioned(mc: MonteCarlo) -> Iterator[Comparison]:
    law, terms = UNCLIPPED, mc.weight * mc.x
    others = law.variance * (terms.square().sum() - terms.square())
    conditional = static.expected_sigmoid(law.mean * terms.sum(), others, method="quadrature")
    yield _noise_term(mc, law, -(TARGET - conditional) * law.mean * mc.x)


def _conditional_output(mc: MonteCarlo) -> Iterator[Comparison]:
    law, terms = UNCLIPPED, mc.weight * mc.x
    rest = terms.clone()
    rest[0] = 0
    mean, variance = law.mean * terms.sum(), law.variance * rest.square().sum()
    formula, exact = (static.expected_sigmoid(mean, variance, method=m) for m in ("probit", "quadrature"))
    yield mc.compare(law, formula, lambda m: torch.sigmoid(m @ rest + law.mean * terms[0]), exact)


def _sigmoid_expected(mc: MonteCarlo, form: str, laws: Iterable[Law]) -> Iterator[Comparison]:
    for law in laws:
        formula = dynamic.expected_gradient(mc.weight, mc.x, TARGET, law, unit="sigmoid", form=form)
        yield _noise_term(mc, law, formula)


def _sigmoid_regularizer(mc: MonteCarlo, form: str, ensemble: str, laws: Iterable[Law]) -> Iterator[Comparison]:
    for law in laws:
        base = dynamic.ensemble_error(mc.weight, mc.x, TARGET, law, unit="sigmoid", ensemble=ensemble)
        formula, exact = (
            dynamic.regularizer(mc.weight, mc.x, TARGET, law, unit="sigmoid", ensemble=ensemble, form=each)
            for each in (form, "exact")
        )

        def added(masks: Tensor, base: float = base) -> Tensor:
            s = mc.product(masks)
            return torch.nn.functional.softplus(s) - TARGET * s - base

        yield mc.compare(law, formula, added, exact, case=f"{law}, {ensemble} ensemble")


def _numerical_gradient(f: Callable[[Tensor], float], at: Tensor, count: int, step: float = 1e-4) -> Tensor:
    """Differentiate by the first ``count`` arguments: central differences, with one step of Richardson's method."""

    def central(h: float) -> Tensor:
        shifts = h * torch.eye(len(at), dtype=at.dtype)[:count]
        return torch.tensor([(f(at + shift) - f(at - shift)) / (2 * h) for shift in shifts], dtype=at.dtype)

    return (4 * central(step / 2) - central(step)) / 3


# Comparisons of each equation; a definition has none.
EQUATIONS: dict[str, Callable[[MonteCarlo], Iterable[Comparison]]] = {
    "0": _expected_sum,
    "1": lambda mc: _covariances(mc, {Uniform(): 1 / 12, UNCLIPPED: 0.3**2, Bernoulli(keep=0.5): 1 / 4}),
    "1a": lambda mc: _covariances(mc, {Gaussian(sigma=sigma): sigma**2 for sigma in (0.2, 0.3, 0.4, 0.5)}),
    "2": lambda mc: (),
    "3": _normality,
    "4": lambda mc: _sigmoid(mc, "probit", ALL_LAWS),
    "5": _without_root,
    "6": lambda mc: _sigmoid(mc, "mean", [Bernoulli(keep=0.5)]),
    "7": _linear_ensemble,
    "8": lambda mc: _by_autograd(mc, "linear"),
    "9": _linear_expected_gradient,
    "10": lambda mc: _linear_regularizer(mc, [Uniform(), CLIPPED, UNCLIPPED]),
    "11": lambda mc: _linear_regularizer(mc, [Bernoulli(keep=0.5), Bernoulli(keep=0.8)]),
    "12": lambda mc: (),
    "13": lambda mc: _sigmoid(mc, "probit", ALL_LAWS, gain=1.0),
    "14": _sigmoid_ensemble_gradient,
    "15": lambda mc: _by_autograd(mc, "sigmoid"),
    "16": _conditioned,
    "17": _conditional_output,
    "17a": lambda mc: _sigmoid_expected(mc, "paper", [UNCLIPPED, CLIPPED]),
    "17b": lambda mc: _sigmoid_expected(mc, "stein", [UNCLIPPED]),
    "18": lambda mc: _sigmoid_regularizer(mc, "paper", "arithmetic", [UNCLIPPED, CLIPPED]),
    "19": lambda mc: _sigmoid_regularizer(mc, "bernoulli", "geometric", [Bernoulli(keep=0.5), CLIPPED]),
}
_LIMITS = {"3"}  # equations that hold in a limit only


def check(number: str, mc: MonteCarlo) -> Check:
    """Check one equation."""
    what, statement = _TEXTS[number]
    comparisons = tuple(EQUATIONS[number](mc))
    return Check(number, what, statement, comparisons, _NOTES.get(number, ""), number in _LIMITS)


def check_equations(
    draws: int = 200_000, seed: int = 0, after_each: Callable[[], object] = lambda: None
) -> list[Check]:
    """Check all equations.

    Args:
        draws: Masks per expectation.
        seed: Seed of everything random.
        after_each: Called after every equation.
    """
    mc = MonteCarlo(draws, seed)
    found = []
    for number in EQUATIONS:
        found.append(check(number, mc))
        after_each()
    return found


def unexplained_shares(draws: int = 200_000, seed: int = 0) -> dict[str, float]:
    """Return the share of the noise's effect that each form of the expected gradient leaves unexplained.

    The reference is Monte Carlo with masks of N(0.5, 0.3^2), as in the paper; the share of "exact" is its sampling
    noise.
    """
    mc = MonteCarlo(draws, seed)
    w, x = mc.weight, mc.x
    gradient, _ = mc.mean(UNCLIPPED, lambda m: dynamic.dropout_gradient(w, x, TARGET, m, unit="sigmoid"))
    return {
        form: dynamic.unexplained_share(w, x, TARGET, UNCLIPPED, form=form, gradient=gradient) for form in dynamic.FORMS
    }


def trade_offs(seed: int = 0) -> list[static.TradeOff]:
    """Return diversity and independence of a linear layer's outputs, for all laws and several sigmas."""
    mc = MonteCarlo(seed=seed)
    gaussians = [Gaussian(sigma=sigma) for sigma in (0.1, 0.2, 0.4, 0.5, 1.0)]
    return static.trade_off([*LAWS, *gaussians], mc.layer, mc.x)


@dataclasses.dataclass(frozen=True)
class Normality:
    """Distance of the sum of a unit from a normal variable.

    Attributes:
        law: Law of the masks.
        inputs: Number of inputs, with weights from N(0, 1) and inputs from U(0, 1).
        distance: Largest difference of the distribution functions.
        bound: The Berry-Esseen bound on it.
    """

    law: Law
    inputs: int
    distance: float
    bound: float


def normality(sizes: Sequence[int] = (10, 100, 800), seed: int = 0) -> list[Normality]:
    """Compute Kolmogorov distances of S from a normal variable, for the three laws."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(max(sizes), generator=generator, dtype=torch.float64)
    x = torch.rand(max(sizes), generator=generator, dtype=torch.float64)
    found = []
    for law in LAWS:
        for n in sizes:
            distance = static.normal_distance(weight[:n], x[:n], law).value
            found.append(Normality(law, n, distance, static.berry_esseen(weight[:n], x[:n], law).item()))
    return found
