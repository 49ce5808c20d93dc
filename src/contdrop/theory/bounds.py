"""Confidence bounds on errors, and the gain of a mixture of networks over its members.

Everything is computed in float64 and broadcasts over its arguments. Each docstring states the conditions on the data; a
bound whose conditions do not hold is worth nothing. docs/certificates.md derives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch.checks import check_finite
from ..laws import Law
from . import _numerics

# Halvings of an interval of length one until its ends are neighbours in float64, unless the root is below 1e-3.
_HALVINGS = 64
_DEVIATIONS = 40.0  # terms of a binomial tail further away than this are below 1e-300 of the nearest
_TINY = 1e-300
_MEMBERS, _EXAMPLES, _CLASSES = range(3)


def clopper_pearson(errors: Any, n: Any, delta: Any) -> Tensor:
    """Return the exact upper confidence bound on an error probability, from errors counted in n independent trials.

    It is the p with P(Bin(n, p) <= errors) = delta. With probability at least 1 - delta over the trials, the error
    probability is not above it, for every n (Clopper and Pearson, 1934).

    Conditions: the trials are independent with one error probability, and neither the network nor which of several
    bounds is quoted was chosen by looking at them.

    Args:
        errors: Number of errors; whole numbers from 0 to n.
        n: Number of trials, at least 1.
        delta: Probability that the bound fails, above 0 and at most 1/2.

    Examples:
        >>> round(clopper_pearson(0, 100, 0.05).item(), 6)
        0.029513
    """
    owner = "clopper_pearson"
    given = _whole(owner, "errors", errors, 0), _whole(owner, "n", n, 1), _risk(owner, delta)
    wrong, trials, risk = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    too_many = wrong > trials
    if too_many.any():
        raise ValueError(
            f"{owner}: expected at most n errors, got {_first(wrong, too_many)} of {_first(trials, too_many)}"
        )
    _check(owner, "delta to be at most 0.5", risk, risk > 0.5)  # the bound would be below errors / n
    # While the lower tail is large enough, p can be larger still.
    _, high = _bisect(wrong / trials, torch.ones_like(risk), lambda p: _lower_tail(wrong, trials, p) >= risk.log())
    return torch.where(wrong == trials, 1.0, high)


def _bisect(low: Tensor, high: Tensor, is_below: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return neighbours in float64 between which a root lies."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return low, high


def _lower_tail(errors: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Compute log P(Bin(n, p) <= errors), for p of at least errors / n."""
    first = (
        torch.lgamma(n + 1) - torch.lgamma(errors + 1) - torch.lgamma(n - errors + 1)
        + torch.xlogy(errors, p) + torch.special.xlog1py(n - errors, -p)
    )  # fmt: skip
    # From the largest term downwards: each is k (1 - p) / ((n - k + 1) p) of the one above it.
    most = errors.max().item()
    k = errors[..., None] - torch.arange(int(min(most, 64 + _DEVIATIONS * math.sqrt(most))), dtype=torch.float64)
    odds = ((1 - p) / p)[..., None]
    shares = (k.clamp(min=0) / (n[..., None] - k + 1) * odds).cumprod(-1)
    tail: Tensor = first + torch.log1p(shares.sum(-1))
    return tail


def binary_kl(q: Any, p: Any) -> Tensor:
    """Compute the divergence between coins with probabilities q and p of heads: q ln(q/p) + (1-q) ln((1-q)/(1-p)).

    Args:
        q: Probabilities from 0 to 1.
        p: Probabilities from 0 to 1.

    Examples:
        >>> binary_kl(0.0, 0.5).item() == math.log(2)
        True
    """
    owner = "binary_kl"
    first = _probability(owner, "q", q)
    return _divergence(first, _probability(owner, "p", p) - first)


def _divergence(q: Tensor, gap: Tensor) -> Tensor:
    """Compute the divergence of q from q + gap; in terms of the gap, so that small gaps lose no digits."""
    heads = torch.where(q > 0, -q * torch.log1p(gap / torch.where(q > 0, q, 1)), 0)
    tails = torch.where(q < 1, (q - 1) * torch.log1p(-gap / torch.where(q < 1, 1 - q, 1)), 0)
    return heads + tails


def kl_inverse(q: Any, c: Any) -> Tensor:
    """Return the largest p with ``binary_kl(q, p) <= c``, an upper bound on a probability estimated by q.

    Args:
        q: Probabilities from 0 to 1.
        c: Divergences of at least 0.

    Examples:
        >>> kl_inverse(0.0, math.log(2)).item()  # 1 - exp(-c)
        0.5
    """
    owner = "kl_inverse"
    estimate, allowed = _probability(owner, "q", q), _numerics.as_variance(owner, "c", c)
    high = 1 - estimate + torch.zeros_like(allowed)
    gap, _ = _bisect(torch.zeros_like(high), high, lambda gap: _divergence(estimate, gap) <= allowed)
    return estimate + gap


def pac_bayes_kl(empirical: Any, kl: Any, n: Any, delta: Any) -> Tensor:
    """Return the PAC-Bayes bound on the error of a randomised network, in the form of Seeger, Langford and Maurer.

    With probability at least 1 - delta over n independent examples, for all posteriors at once, the true error R and
    that on the examples, both averaged over the posterior, satisfy binary_kl(empirical, R) <= (KL + ln(2 sqrt(n) /
    delta)) / n. The bound is the largest such R.

    Conditions: losses lie in [0, 1]; the n examples are independent and of one distribution; the prior was fixed
    without them. The posterior may depend on them in any way.

    Args:
        empirical: Average loss of the posterior on the n examples, from 0 to 1. Bound an estimate from sampled networks
            first, as :func:`certificates.pac_bayes_certificate` does.
        kl: Divergence of the posterior from the prior, at least 0.
        n: Number of examples, at least 8 (Maurer's condition).
        delta: Probability that the bound fails, between 0 and 1 exclusively.

    Examples:
        >>> round(pac_bayes_kl(0.02, 500.0, 30_000, 0.05).item(), 4)
        0.0573
    """
    owner = "pac_bayes_kl"
    loss, size, risk = _probability(owner, "empirical", empirical), _whole(owner, "n", n, 8), _risk(owner, delta)
    price = _numerics.as_variance(owner, "kl", kl)
    return kl_inverse(loss, (price + torch.log(2 * size.sqrt() / risk)) / size)


def weight_kl(w: Any, w0: Any, scale: Any, law: Law | None = None) -> Tensor:
    """Compute the divergence of weights N(w, scale^2) from weights N(w0, scale^2), possibly masked.

    Without masks it is sum (w - w0)^2 / (2 scale^2). A mask costs nothing, because its law does not depend on the data
    and is the same in prior and posterior. If only the product of mask and weight is ever used, with one mask for each
    weight, the divergence is at most P(m != 0) times as much, and exactly that for a Bernoulli law.

    Args:
        w: Means of the posterior.
        w0: Means of the prior, of the same shape.
        scale: Standard deviation of both, positive.
        law: Law of masks on single weights of which only the product is used; None for unmasked weights.
    """
    owner = "weight_kl"
    means, centres = _numerics.as_tensor(owner, "w", w), _numerics.as_tensor(owner, "w0", w0)
    noise = _numerics.as_tensor(owner, "scale", scale)
    if means.shape != centres.shape:
        raise ValueError(f"{owner}: expected w0 in the shape of w, {tuple(means.shape)}; got {tuple(centres.shape)}")
    _check(owner, "a positive scale", noise, noise <= 0)
    nonzero = 1.0
    if law is not None:
        given = _numerics.as_law(owner, law)
        nonzero = 1 - float(given.cdf(0.0) - given.cdf(-_TINY))  # P(m != 0)
    return nonzero * ((means - centres) / noise).square().sum() / 2


class Brier(NamedTuple):
    """Brier score of a mixture and of its members.

    Attributes:
        mixture: Mean over examples of sum_c (p_c - 1{c = y})^2 of the averaged probabilities p.
        members: The same of a single member, averaged over members.
        diversity: Mean over examples of the members' variance around their average, summed over classes. It needs no
            labels, and ``mixture = members - diversity`` exactly.
    """

    mixture: Tensor
    members: Tensor
    diversity: Tensor


def brier_decomposition(probabilities: Any, labels: Any) -> Brier:
    """Split the Brier score of a mixture into that of its members minus their diversity.

    Args:
        probabilities: Of T members for N examples and C classes, [T, N, C]; non-negative, summing to 1 over classes.
        labels: True classes [N], whole numbers below C.

    Examples:
        >>> found = brier_decomposition([[[0.9, 0.1]], [[0.5, 0.5]]], [0])
        >>> [round(part.item(), 4) for part in found]
        [0.18, 0.26, 0.08]
    """
    owner = "brier_decomposition"
    members = _numerics.as_tensor(owner, "probabilities", probabilities, axes=3)
    if not members.numel():
        raise ValueError(f"{owner}: expected at least one member, example and class, got {tuple(members.shape)}")
    if (members < 0).any() or ((members.sum(_CLASSES) - 1).abs() > 1e-6).any():
        raise ValueError(f"{owner}: expected probabilities, from 0 to 1 and summing to 1 over the last axis")
    classes = _whole(owner, "labels", labels, 0)
    if classes.shape != members.shape[_EXAMPLES:_CLASSES] or (classes >= members.shape[_CLASSES]).any():
        expected = f"{members.shape[_EXAMPLES]} labels below {members.shape[_CLASSES]}"
        raise ValueError(f"{owner}: expected {expected}, got shape {tuple(classes.shape)}, at most {classes.max():g}")
    truth = torch.nn.functional.one_hot(classes.long(), members.shape[_CLASSES]).to(torch.float64)
    average = members.mean(_MEMBERS)
    return Brier(
        (average - truth).square().sum(-1).mean(),
        (members - truth).square().sum(_CLASSES).mean(),
        (members - average).square().sum(_CLASSES).mean(),
    )


class Rademacher(NamedTuple):
    """Empirical Rademacher complexity of linear units of bounded dropout penalty.

    Attributes:
        bound: sqrt(c d / (r n)).
        value: E sqrt(c / r sum_j g_j^2 / a_j) over random signs: over all of them for few examples, else over draws.
        error: Standard error of the value; 0 if all signs were enumerated.
    """

    bound: Tensor
    value: Tensor
    error: Tensor


_ALL_SIGNS = 14  # examples up to which all 2^n signs are enumerated


def linear_rademacher(x: Any, c: float, law: Law, *, draws: int = 2000, seed: int = 0) -> Rademacher:
    """Compute the Rademacher complexity of linear units that pay a dropout penalty of at most c.

    Under noise of relative variance r, a linear unit with squared loss pays the penalty r sum_j a_j w_j^2, with a_j the
    mean of x_j^2 over the examples (theory.dynamic). The units that pay at most c have the empirical Rademacher
    complexity E sup_w mean_i s_i w x_i = E sqrt(c / r sum_j g_j^2 / a_j), where s are random signs and g_j the mean of
    s_i x_ij. It falls with the strength r, the only property of the law that enters.

    Args:
        x: Inputs of n examples, [n, d]. Inputs that are always 0 are left out of d.
        c: Largest penalty, positive.
        law: Law of the masks; its relative variance must be positive.
        draws: Draws of the signs, where 2^n of them are too many.
        seed: Seed of the draws.
    """
    owner = "linear_rademacher"
    inputs = _numerics.as_tensor(owner, "x", x, axes=2)
    allowed, strength = check_finite(owner, "c", c), _numerics.as_law(owner, law).relative_variance
    if not (allowed > 0 and strength > 0):
        found = f"c = {allowed:g} and r = {strength:g}"
        raise ValueError(f"{owner}: expected a positive c and a law with noise, got {found}")
    second = inputs.square().mean(0)
    inputs, second = inputs[:, second > 0], second[second > 0]
    n, d = inputs.shape
    if not d:
        raise ValueError(f"{owner}: expected an example with an input that is not 0, got shape {tuple(inputs.shape)}")
    if n <= _ALL_SIGNS:
        bits = torch.arange(1 << n)[:, None] >> torch.arange(n) & 1
    else:
        bits = torch.randint(2, (draws, n), generator=torch.Generator().manual_seed(seed))
    averages = (2.0 * bits.to(torch.float64) - 1) @ inputs / n
    lengths = (allowed / strength * (averages.square() / second).sum(1)).sqrt()
    error = lengths.std() / math.sqrt(len(lengths)) if n > _ALL_SIGNS else torch.zeros((), dtype=torch.float64)
    return Rademacher(torch.tensor(allowed * d / (strength * n), dtype=torch.float64).sqrt(), lengths.mean(), error)


# Arguments.


def _probability(owner: str, name: str, value: Any) -> Tensor:
    result = _numerics.as_tensor(owner, name, value)
    return _check(owner, f"{name} to lie between 0 and 1", result, (result < 0) | (result > 1))


def _risk(owner: str, value: Any) -> Tensor:
    result = _numerics.as_tensor(owner, "delta", value)
    wrong = (result <= 0) | (result >= 1)
    return _check(owner, "delta, how often a bound may fail, between 0 and 1", result, wrong)


def _whole(owner: str, name: str, value: Any, least: int) -> Tensor:
    result = _numerics.as_tensor(owner, name, value)
    wrong = (result < least) | (result != result.round())
    return _check(owner, f"{name} to be whole and at least {least}", result, wrong)


def _check(owner: str, expected: str, values: Tensor, wrong: Tensor) -> Tensor:
    """Raise ValueError with the first wrong value, if any."""
    if wrong.any():
        raise ValueError(f"{owner}: expected {expected}, got {_first(values, wrong)}")
    return values


def _first(values: Tensor, where: Tensor) -> str:
    return f"{values[where].flatten()[0].item():g}"
