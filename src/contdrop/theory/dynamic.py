"""Errors and gradients of one unit in training with dropout, and the effect of the noise on both.

A unit has S = sum of w_i m_i x_i. The linear unit has O = S and E_D = (t - O)^2 / 2; the sigmoid unit has
O = sigmoid(lambda S) and E_D = -(t log O + (1 - t) log(1 - O)), which is log(1 + exp(lambda S)) - t lambda S. Masks are
not rescaled (``scale="paper"``). Throughout::

    w   weight, of shape [in]          t       target, a number (for the sigmoid unit in [0, 1])
    x   input, of shape [in]           lambda  gain
    m   mask values with law ``law``   mu_S    E[S] = E[m] sum of w_i x_i
                                       V_S     Var(S) = Var(m) sum of w_i^2 x_i^2

"Exact" expectations of the sigmoid unit are exact for every law, to about 1e-14: see ``sigmoid_expectations``.

The paper mixes two ensembles. Its output is the arithmetic mean, O_ENS = E[O]; Baldi and Sadowski's is the normalised
geometric mean, O_ENS = sigmoid(lambda mu_S). The gradient that the paper writes for both, -lambda (t - O_ENS) E[m] x_i,
is the gradient of E_ENS only for the geometric one. For the linear unit they agree.

Arguments that several functions share: ``weight`` w; ``x`` input; ``target`` t; ``law`` of m; ``unit`` "linear" or
"sigmoid"; ``gain`` lambda; ``form`` one of those of :func:`expected_gradient`; ``ensemble`` "arithmetic" or
"geometric".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._torch.checks import check_choice, check_finite
from ..laws import Gaussian, Law
from . import _numerics
from ._numerics import derivative_of_sigmoid, logistic_expectation
from .penalty import penalty as penalty
from .sigmoid_expectations import expected_masked_sigmoid, expected_softplus, log_expected_sigmoid

UNITS = ("linear", "sigmoid")
FORMS = ("exact", "stein", "paper", "bernoulli")
ENSEMBLES = ("arithmetic", "geometric")


def ensemble_gradient(
    weight: Tensor,
    x: Tensor,
    target: float,
    law: Law,
    *,
    unit: str = "linear",
    gain: float = 1.0,
    ensemble: str = "arithmetic",
) -> Tensor:
    """Return the gradient that the paper calls dE_ENS / dw_i, of shape [in].

    ::

        linear:  -(t - mu_S) E[m] x_i          sigmoid:  -lambda (t - O_ENS) E[m] x_i

    The paper approximates O_ENS = E[O] by the probit of a normal S; here it is exact. The sigmoid's expression is the
    gradient of E_ENS for the geometric ensemble only; for the arithmetic one it is the gradient without the share of
    the noise, with which expected gradients are compared.
    """
    weight, x, target, gain = _unit("ensemble_gradient", weight, x, target, law, unit, gain)
    check_choice("ensemble_gradient", "ensemble", ensemble, ENSEMBLES)
    if unit == "linear":
        return -(target - law.mean * (weight @ x)) * law.mean * x
    output, _ = _log_ensemble_output(gain * weight * x, law, ensemble)
    return -gain * (target - math.exp(output)) * law.mean * x


def dropout_gradient(
    weight: Tensor, x: Tensor, target: float, masks: Tensor, *, unit: str = "linear", gain: float = 1.0
) -> Tensor:
    """Return dE_D / dw_i for draws of ``masks`` [..., in]: -(t - O) m_i x_i, times lambda for the sigmoid unit.

    There is one gradient per draw, of shape [..., in].
    """
    weight, x, target, gain = _unit("dropout_gradient", weight, x, target, None, unit, gain)
    masks = _numerics.as_tensor("dropout_gradient", "masks", masks)
    if masks.dim() == 0 or masks.shape[-1] != weight.shape[0]:
        shape = f"[..., {weight.shape[0]}]"
        raise ValueError(f"dropout_gradient: expected masks of shape {shape}, got {tuple(masks.shape)}")
    s = masks @ (weight * x)
    if unit == "linear":
        return -(target - s).unsqueeze(-1) * masks * x
    return -gain * (target - torch.sigmoid(gain * s)).unsqueeze(-1) * masks * x


def expected_gradient(
    weight: Tensor, x: Tensor, target: float, law: Law, *, unit: str = "linear", gain: float = 1.0, form: str = "exact"
) -> Tensor:
    """Return E[dE_D / dw_i], of shape [in]: :func:`ensemble_gradient` plus a term from the noise.

    Linear unit, exact for every law and the same in every form: the term is Var(m) w_i x_i^2.

    Sigmoid unit, with sigma(a) = 1 / (1 + exp(-a)) and its derivative sigma'(a) = sigma(a) (1 - sigma(a)); the term is:

    - ``"exact"``: lambda (E[m_i O] - E[m] E[O]) x_i, exact for every law.
    - ``"stein"``: lambda^2 Var(m) w_i x_i^2 E[sigma'(lambda S)] with S ~ N(mu_S, V_S), by quadrature. Stein's lemma,
      E[m_i f(S)] = E[m] E[f(S)] + Var(m) w_i x_i E[f'(S)]: the same as "exact" for the unclipped Gaussian law; for
      others it treats S as normal.
    - ``"bernoulli"``: lambda^2 Var(m) w_i x_i^2 sigma'(lambda mu_S), Baldi and Sadowski's second-order term (their
      sigma' is a derivative by S and has one lambda inside).
    - ``"paper"``: the paper's last line, with k^2 = 1 + pi lambda^2 V_S / 8,
      lambda E[m] x_i sigma'(lambda mu_S / k) lambda mu_S (pi / 16) lambda^2 Var(m) w_i^2 x_i^2 / k^2.
      It replaces E[m_i f(S)] by E[m] E[f(S) given m_i = E[m]], which drops the covariance of m_i and S: the leading
      term. (The factors lambda^2 of Var(m) and V_S are added here: without them even the paper's own steps hold at gain
      1 only.)

    All forms are added to the same, exact, arithmetic ``ensemble_gradient``.
    """
    weight, x, target, gain = _unit("expected_gradient", weight, x, target, law, unit, gain)
    check_choice("expected_gradient", "form", form, FORMS)
    if unit == "sigmoid" and form == "exact":
        return -gain * (target * law.mean - expected_masked_sigmoid(gain * weight * x, law)) * x
    base = ensemble_gradient(weight, x, target, law, unit=unit, gain=gain)
    noise = law.variance * weight * x.square()
    if unit == "linear":
        return base + noise
    mean, variance = _logistic_moments(gain * weight * x, law)
    if form == "stein":
        return base + gain**2 * noise * logistic_expectation(mean, variance, 1)
    if form == "bernoulli":
        return base + gain**2 * noise * derivative_of_sigmoid(mean)
    shrink = 1 + math.pi / 8 * variance
    noise = gain**2 * weight * noise
    return (
        base
        + gain * law.mean * x * derivative_of_sigmoid(mean / shrink.sqrt()) * mean * (math.pi / 16) * noise / shrink
    )


def unexplained_share(
    weight: Tensor,
    x: Tensor,
    target: float,
    law: Law,
    *,
    gain: float = 1.0,
    form: str = "paper",
    gradient: Tensor | None = None,
) -> float:
    """Return the share of the noise's effect on a sigmoid unit's gradient that a form of it leaves unexplained.

    ::

        | g - expected_gradient(form) | / | g - ensemble_gradient |        (Euclidean norms)

    0 is a perfect form; 1 is as good as none. ``gradient`` is g, the true expected gradient, for example a mean of
    ``dropout_gradient`` over draws; the exact one if None. The law must have a variance above 0.
    """
    owner = "unexplained_share"
    weight, x, target, gain = _unit(owner, weight, x, target, law, "sigmoid", gain)
    if gradient is None:
        gradient = expected_gradient(weight, x, target, law, unit="sigmoid", gain=gain)
    gradient = _numerics.as_tensor(owner, "gradient", gradient, axes=1)
    if gradient.shape != weight.shape:
        raise ValueError(f"{owner}: expected gradient of shape {tuple(weight.shape)}, got {tuple(gradient.shape)}")
    gap = gradient - ensemble_gradient(weight, x, target, law, unit="sigmoid", gain=gain)
    left = gradient - expected_gradient(weight, x, target, law, unit="sigmoid", gain=gain, form=form)
    if gap.abs().max() <= 1e-13 * (1 + gradient.abs().max()):
        raise ValueError(f"{owner}: expected a law whose noise changes the gradient at this input, got {law!r}")
    return (left.square().sum() / gap.square().sum()).sqrt().item()


def expected_error(
    weight: Tensor, x: Tensor, target: float, law: Law, *, unit: str = "linear", gain: float = 1.0
) -> float:
    """Compute E[E_D], exact for every law.

    ::

        linear:  ((t - mu_S)^2 + V_S) / 2          sigmoid:  E[log(1 + exp(lambda S))] - t lambda mu_S

    (the latter as t E[log(1 + exp(-lambda S))] + (1 - t) E[log(1 + exp(lambda S))], which subtracts nothing).
    """
    weight, x, target, gain = _unit("expected_error", weight, x, target, law, unit, gain)
    terms = weight * x
    if unit == "linear":
        mean, variance = _logistic_moments(terms, law)
        return ((target - mean).square() / 2 + variance / 2).item()
    above, below = expected_softplus(gain * terms, law)
    return target * below + (1 - target) * above


def ensemble_error(
    weight: Tensor,
    x: Tensor,
    target: float,
    law: Law,
    *,
    unit: str = "linear",
    gain: float = 1.0,
    ensemble: str = "arithmetic",
) -> float:
    """Compute E_ENS, the error of the ensemble's output O_ENS, which is E[O], or sigmoid(lambda mu_S) if geometric."""
    weight, x, target, gain = _unit("ensemble_error", weight, x, target, law, unit, gain)
    check_choice("ensemble_error", "ensemble", ensemble, ENSEMBLES)
    terms = weight * x
    if unit == "linear":
        return (target - law.mean * terms.sum().item()) ** 2 / 2
    output, complement = _log_ensemble_output(gain * terms, law, ensemble)
    return -(target * output + (1 - target) * complement)


def regularizer(
    weight: Tensor,
    x: Tensor,
    target: float,
    law: Law,
    *,
    unit: str = "linear",
    gain: float = 1.0,
    form: str = "exact",
    ensemble: str = "arithmetic",
) -> float:
    """Compute E[E_D] - E_ENS, the error that the noise adds.

    Linear unit, exact for every law and the same in every form: V_S / 2.

    Sigmoid unit, sigma' as in :func:`expected_gradient`:

    - ``"exact"``: ``expected_error`` - ``ensemble_error``, never negative (Jensen). To second order in the noise it is
      lambda^2 V_S / 2 times sigma'(a) for the geometric ensemble and times t (1 - sigma(a))^2 + (1 - t) sigma(a)^2 for
      the arithmetic one, a = lambda mu_S: the two agree where t = sigma(a).
    - ``"stein"``: the same with S treated as normal; equal to "exact" for the unclipped Gaussian law.
    - ``"bernoulli"``: lambda^2 V_S sigma'(lambda mu_S) / 2, after Baldi and Sadowski: the second order of the geometric
      ensemble's regularizer, for either ``ensemble``.
    - ``"paper"``: with k^2 = 1 + pi lambda^2 V_S / 8, as printed last in section III,
      (lambda / 2) sigma'(lambda mu_S / k) lambda mu_S E[m] (pi / 8) lambda^2 Var(m) sum of w_i^3 x_i^3 / k^2.
      It is the sum of w_i times the paper's term of the gradient, which is not an integral of that term, and it is
      negative for one random unit in four: no penalty. The cross products w_i w_j x_i x_j in which the paper sees a
      penalty on co-adaptation are only the factor mu_S.
    """
    weight, x, target, gain = _unit("regularizer", weight, x, target, law, unit, gain)
    check_choice("regularizer", "form", form, FORMS)
    check_choice("regularizer", "ensemble", ensemble, ENSEMBLES)
    terms = weight * x
    mean, variance = _logistic_moments(gain * terms, law)
    if unit == "linear":
        return law.variance * terms.square().sum().item() / 2
    if form == "exact":
        return _sigmoid_regularizer(gain * terms, target, law, ensemble)
    if form == "stein":
        normal = Gaussian(mu=mean.item(), sigma=variance.sqrt().item(), low=-math.inf, high=math.inf)
        return _sigmoid_regularizer(torch.ones(1, dtype=torch.float64), target, normal, ensemble)
    if form == "bernoulli":
        return (variance / 2 * derivative_of_sigmoid(mean)).item()
    shrink = 1 + math.pi / 8 * variance
    cubes = law.variance * terms.pow(3).sum()
    return (
        gain**3 / 2 * derivative_of_sigmoid(mean / shrink.sqrt()) * mean * law.mean * (math.pi / 8) * cubes / shrink
    ).item()


def _unit(
    owner: str, weight: Tensor, x: Tensor, target: float, law: Law | None, unit: str, gain: float
) -> tuple[Tensor, Tensor, float, float]:
    weight = _numerics.as_tensor(owner, "weight", weight, axes=1).detach()
    x = _numerics.as_tensor(owner, "x", x, axes=1).detach()
    if weight.shape != x.shape or not weight.numel():
        lengths = f"{weight.shape[0]} and {x.shape[0]}"
        raise ValueError(f"{owner}: expected weight and x of one length, at least 1; got {lengths}")
    if law is not None:
        _numerics.as_law(owner, law)
    check_choice(owner, "unit", unit, UNITS)
    target, gain = check_finite(owner, "target", target), check_finite(owner, "gain", gain)
    if unit == "sigmoid" and not 0 <= target <= 1:
        raise ValueError(f"{owner}: expected target in [0, 1] for the sigmoid unit's cross entropy, got {target}")
    return weight, x, target, gain


def _logistic_moments(terms: Tensor, law: Law) -> tuple[Tensor, Tensor]:
    return law.mean * terms.sum(), law.variance * terms.square().sum()


def _sigmoid_regularizer(terms: Tensor, target: float, law: Law, ensemble: str) -> float:
    """Compute E[E_D] - E_ENS as one part for each target, neither of which is negative (Jensen) but for rounding."""
    (above, below), (output, complement) = expected_softplus(terms, law), _log_ensemble_output(terms, law, ensemble)
    return target * max(below + output, 0.0) + (1 - target) * max(above + complement, 0.0)


def _log_ensemble_output(terms: Tensor, law: Law, ensemble: str) -> tuple[float, float]:
    """Return log O_ENS and log(1 - O_ENS), also for O_ENS near 0 or 1."""
    if ensemble == "arithmetic":
        return log_expected_sigmoid(terms, law)
    mean, _ = _logistic_moments(terms, law)
    return torch.nn.functional.logsigmoid(mean).item(), torch.nn.functional.logsigmoid(-mean).item()
