"""Bounds on errors that hold with a stated confidence, and what a mixture of networks gains over its members.

Everything is computed in float64 and broadcasts over its arguments. What each bound asks of the data stands in its
docstring: a bound whose conditions do not hold is worth nothing. docs/certificates.md derives them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..laws import Law
from . import _numerics

# Halvings of an interval of length one until its ends are neighbours in float64, unless the root is below 1e-3.
_HALVINGS = 64
_DEVIATIONS = 40.0  # terms of a binomial tail further away than this are below 1e-300 of the nearest
_TINY = 1e-300
_MEMBERS, _EXAMPLES, _CLASSES = range(3)


def clopper_pearson(errors: Any, n: Any, delta: Any) -> Tensor:
    """The exact upper confidence bound on an error probability, from errors counted in n independent trials.

    The largest p for which as few errors as these have a probability of at least delta: P(Bin(n, p) <= errors) = delta.
    With probability at least 1 - delta over the trials, the error probability is not above it. It holds for every n,
    and is never wider than discreteness asks (Clopper and Pearson, 1934).

    Conditions: the trials are independent with one error probability, and neither the network nor which of several
    bounds is quoted was chosen by looking at them.

    Args:
        errors: How many of the n trials went wrong; whole numbers from 0 to n.
        n: Number of trials, at least 1.
        delta: How often the bound may fail, above 0 and at most 1/2.

    Examples:
        >>> round(clopper_pearson(0, 100, 0.05).item(), 6)
        0.029513
    """
    owner = "clopper_pearson"
    wrong, trials, risk = _together(_whole(owner, "errors", errors, 0), _whole(owner, "n", n, 1), _risk(owner, delta))
    if (wrong > trials).any():
        raise ValueError(
            f"{owner}: expected at most n errors, got {_at(wrong, wrong > trials)} of {_at(trials, wrong > trials)}"
        )
    if (risk > 0.5).any():  # the bound would be below errors / n, which is no bound to quote
        raise ValueError(f"{owner}: expected delta to be at most 0.5, got {_at(risk, risk > 0.5)}")
    low, high = wrong / trials, torch.ones_like(risk)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _lower_tail(wrong, trials, middle) >= risk.log()  # p can be larger still
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return torch.where(wrong == trials, torch.ones_like(high), high)


def _lower_tail(errors: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """The logarithm of P(Bin(n, p) <= errors), for p of at least errors / n."""
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
    """The divergence of a coin that shows heads with probability q from one with p: q ln(q/p) + (1-q) ln((1-q)/(1-p)).

    Args:
        q: Probabilities from 0 to 1.
        p: Probabilities from 0 to 1.

    Examples:
        >>> binary_kl(0.0, 0.5).item() == math.log(2)
        True
    """
    owner = "binary_kl"
    first, second = _together(_probability(owner, "q", q), _probability(owner, "p", p))
    return _divergence(first, second - first)


def _divergence(q: Tensor, gap: Tensor) -> Tensor:
    """Of q from q + gap; by the gap, so that small ones lose no digits."""
    heads = torch.where(q > 0, -q * torch.log1p(gap / torch.where(q > 0, q, 1)), 0)
    tails = torch.where(q < 1, (q - 1) * torch.log1p(-gap / torch.where(q < 1, 1 - q, 1)), 0)
    return heads + tails


def kl_inverse(q: Any, c: Any) -> Tensor:
    """The largest p with ``binary_kl(q, p) <= c``: what a probability may be if its estimate is q.

    Args:
        q: Probabilities from 0 to 1.
        c: Divergences of at least 0.

    Examples:
        >>> kl_inverse(0.0, math.log(2)).item()  # 1 - exp(-c)
        0.5
    """
    owner = "kl_inverse"
    estimate, allowed = _together(_probability(owner, "q", q), _numerics.as_variance(owner, "c", c))
    low, high = torch.zeros_like(estimate), 1 - estimate
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = _divergence(estimate, middle) <= allowed
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    found: Tensor = estimate + low
    return found


def pac_bayes_kl(empirical: Any, kl: Any, n: Any, delta: Any) -> Tensor:
    """The PAC-Bayes bound on the error of a randomised network, in the form of Seeger, Langford and Maurer.

    With probability at least 1 - delta over n independent examples, for all posteriors at once, the true error R and
    that on the examples, both averaged over the posterior, satisfy binary_kl(empirical, R) <= (KL + ln(2 sqrt(n) /
    delta)) / n. The bound returned is the largest such R.

    Conditions: losses lie in [0, 1]; the n examples are independent and of one distribution; the prior was fixed
    without them (data of which none is among the n may have made it). The posterior may depend on them in any way.

    Args:
        empirical: Average loss of the posterior on the n examples, from 0 to 1; not an estimate of it by sampled
            networks: bound that first, as :func:`certificates.pac_bayes_certificate` does.
        kl: Divergence of the posterior from the prior, at least 0.
        n: Number of examples, at least 8 (Maurer's condition).
        delta: How often the bound may fail, between 0 and 1 exclusively.

    Examples:
        >>> round(pac_bayes_kl(0.02, 500.0, 30_000, 0.05).item(), 4)
        0.0573
    """
    owner = "pac_bayes_kl"
    loss, size, risk = _probability(owner, "empirical", empirical), _whole(owner, "n", n, 8), _risk(owner, delta)
    price = _numerics.as_variance(owner, "kl", kl)
    return kl_inverse(loss, (price + torch.log(2 * size.sqrt() / risk)) / size)


def weight_kl(w: Any, w0: Any, scale: Any, law: Law | None = None) -> Tensor:
    """The divergence of weights N(w, scale^2) from weights N(w0, scale^2), or of what a mask leaves of them to be seen.

    The first is sum (w - w0)^2 / (2 scale^2). A mask costs nothing, because its law does not depend on the data and so
    stands in prior and posterior alike. If nothing but the product of mask and weight is ever seen, one mask for each
    weight, the price is at most P(m != 0) times as much, and exactly that for a Bernoulli law.

    Args:
        w: Means of the posterior.
        w0: Means of the prior, of the same shape.
        scale: Standard deviation of both, positive.
        law: Of masks on single weights of which only the product is used; None for weights that are used as they are.
    """
    owner = "weight_kl"
    means, centres = _numerics.as_tensor(owner, "w", w), _numerics.as_tensor(owner, "w0", w0)
    noise = _numerics.as_tensor(owner, "scale", scale)
    if means.shape != centres.shape:
        raise ValueError(f"{owner}: expected w0 in the shape of w, {tuple(means.shape)}; got {tuple(centres.shape)}")
    if (noise <= 0).any():
        raise ValueError(f"{owner}: expected a positive scale, got {_at(noise, noise <= 0)}")
    shown = 1.0 if law is None else _nonzero(_numerics.as_law(owner, law))
    return shown * ((means - centres) / noise).square().sum() / 2


def _nonzero(law: Law) -> float:
    """P(m != 0)."""
    return 1 - float(law.cdf(0.0) - law.cdf(-_TINY))


class Brier(NamedTuple):
    """The Brier score of a mixture, and what it owes to the disagreement of its members.

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
    """Mixture = average member - diversity, for the Brier score.

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
    """The empirical Rademacher complexity of linear units of bounded dropout penalty.

    Attributes:
        bound: sqrt(c d / (r n)).
        value: E sqrt(c / r sum_j g_j^2 / a_j) over random signs, which is exact: all signs if there are few enough
            examples, else an average over draws of them.
        error: Standard error of the value; 0 if all signs were gone through.
    """

    bound: Tensor
    value: Tensor
    error: Tensor


_ALL_SIGNS = 14  # examples for which 2^n signs are gone through


def linear_rademacher(x: Any, c: float, law: Law, *, draws: int = 2000, seed: int = 0) -> Rademacher:
    """How well linear units can follow random signs if dropout with that law costs them at most c.

    Under noise of relative variance r, a linear unit with squared loss pays the penalty r sum_j a_j w_j^2, with a_j the
    mean of x_j^2 over the examples (theory.dynamic). The units that pay at most c have the empirical Rademacher
    complexity E sup_w mean_i s_i w x_i = E sqrt(c / r sum_j g_j^2 / a_j), where s are random signs and g_j the mean of
    s_i x_ij. It falls with the strength r, which is all that a law contributes.

    Args:
        x: Inputs of n examples, [n, d]. Inputs that are always 0 are left out of d.
        c: The penalty allowed, positive.
        law: Of the masks; its relative variance has to be positive.
        draws: Of the signs, where 2^n of them are too many.
        seed: Of the draws.
    """
    owner = "linear_rademacher"
    inputs = _numerics.as_tensor(owner, "x", x, axes=2)
    allowed, strength = _numerics.as_number(owner, "c", c), _numerics.as_law(owner, law).relative_variance
    if not (allowed > 0 and strength > 0):
        raise ValueError(
            f"{owner}: expected a positive c and a law with noise, got c = {allowed:g} and r = {strength:g}"
        )
    second = inputs.square().mean(0)
    inputs, second = inputs[:, second > 0], second[second > 0]
    n, d = inputs.shape
    if not d:
        raise ValueError(f"{owner}: expected an example with an input that is not 0, got shape {tuple(inputs.shape)}")
    averages = _signs(n, draws, seed) @ inputs / n
    lengths = (allowed / strength * (averages.square() / second).sum(1)).sqrt()
    error = lengths.std() / math.sqrt(len(lengths)) if n > _ALL_SIGNS else torch.zeros((), dtype=torch.float64)
    return Rademacher(torch.tensor(allowed * d / (strength * n), dtype=torch.float64).sqrt(), lengths.mean(), error)


def _signs(n: int, draws: int, seed: int) -> Tensor:
    if n <= _ALL_SIGNS:
        bits = torch.arange(1 << n)[:, None] >> torch.arange(n) & 1
    else:
        bits = torch.randint(2, (draws, n), generator=torch.Generator().manual_seed(seed))
    return 2.0 * bits.to(torch.float64) - 1


# ---- what they are given


def _probability(owner: str, name: str, value: Any) -> Tensor:
    result = _numerics.as_tensor(owner, name, value)
    if ((result < 0) | (result > 1)).any():
        outside = _at(result, (result < 0) | (result > 1))
        raise ValueError(f"{owner}: expected {name} to lie between 0 and 1, got {outside}")
    return result


def _risk(owner: str, value: Any) -> Tensor:
    result = _numerics.as_tensor(owner, "delta", value)
    if ((result <= 0) | (result >= 1)).any():
        outside = _at(result, (result <= 0) | (result >= 1))
        raise ValueError(f"{owner}: expected delta, how often a bound may fail, between 0 and 1, got {outside}")
    return result


def _whole(owner: str, name: str, value: Any, least: int) -> Tensor:
    result = _numerics.as_tensor(owner, name, value)
    wrong = (result < least) | (result != result.round())
    if wrong.any():
        raise ValueError(f"{owner}: expected {name} to be whole and at least {least}, got {_at(result, wrong)}")
    return result


def _together(*values: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.broadcast_tensors(*values))  # type: ignore[no-untyped-call]


def _at(values: Tensor, where: Tensor) -> str:
    return f"{values[where].flatten()[0].item():g}"
