"""Bounds on errors: against many digits, against other libraries, and in simulated data sets with known errors."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch

import contdrop as cd
from contdrop.theory import bounds

COUNTS = [(0, 1), (0, 100), (1, 10), (7, 7), (99, 100), (1000, 30_000), (29_000, 30_000), (50_000, 1_000_000)]


@pytest.mark.parametrize("delta", [0.05, 1e-6, 0.5])
def test_clopper_pearson_is_the_quantile_of_a_beta_law(delta):
    errors, n = torch.tensor(COUNTS, dtype=torch.float64).unbind(1)
    found = bounds.clopper_pearson(errors, n, delta)
    expected = [1.0 if e == m else scipy.stats.beta.ppf(1 - delta, e + 1, m - e) for e, m in COUNTS]
    assert found.tolist() == pytest.approx(expected, abs=1e-12, rel=0)


@pytest.mark.parametrize("q", [0.0, 1e-9, 0.01, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("c", [0.0, 1e-12, 1e-4, 0.05, 3.0, 400.0])
def test_kl_inverse_against_bisection_in_fifty_digits(q, c):
    with mpmath.workdps(50):
        exact, allowed = mpmath.mpf(q), mpmath.mpf(c)

        def kl(p):
            heads = exact * mpmath.log(exact / p) if exact else mpmath.mpf(0)
            return heads + ((1 - exact) * mpmath.log((1 - exact) / (1 - p)) if exact < 1 else mpmath.mpf(0))

        low, high = exact, mpmath.mpf(1)
        for _ in range(170):
            middle = (low + high) / 2
            inside = middle < 1 and kl(middle) <= allowed
            low, high = (middle, high) if inside else (low, middle)
    assert bounds.kl_inverse(q, c).item() == pytest.approx(float(low), abs=1e-12, rel=0)


def test_kl_inverse_undoes_the_divergence_and_broadcasts():
    q, c = torch.rand(5, 1, dtype=torch.float64) * 0.8, torch.tensor([[1e-3, 0.01, 0.1]], dtype=torch.float64)
    p = bounds.kl_inverse(q, c)
    assert p.shape == (5, 3)
    torch.testing.assert_close(bounds.binary_kl(q, p), c.expand(5, 3), rtol=1e-9, atol=0)


def test_pac_bayes_kl_is_its_formula():
    found = bounds.pac_bayes_kl(0.1, 20.0, 1000, 0.05).item()
    right = (20.0 + math.log(2 * math.sqrt(1000) / 0.05)) / 1000
    assert 0.1 * math.log(0.1 / found) + 0.9 * math.log(0.9 / (1 - found)) == pytest.approx(right, rel=1e-9)


# ---- coverage: 20 000 data sets whose error is known

SETS = 20_000


def below(share, wanted):
    """Whether a share of the sets is below what is wanted by more than chance explains (four standard errors)."""
    return share < wanted - 4 * math.sqrt(wanted * (1 - wanted) / SETS)


@pytest.mark.parametrize(("n", "p"), [(50, 0.04), (200, 0.3), (1000, 0.01)])
def test_clopper_pearson_holds_as_often_as_it_says_and_hardly_more(n, p):
    errors = torch.from_numpy(np.random.default_rng(n).binomial(n, p, SETS)).double()
    values, which = errors.unique(return_inverse=True)

    def coverage(trials, delta):
        return (bounds.clopper_pearson(values, trials, delta)[which] >= p).double().mean().item()

    assert not below(coverage(n, 0.05), 0.95)
    fails = [k for k in range(n + 1) if 1 - scipy.stats.binom.cdf(k, n, p) > 0.95]  # the exact bound is below p here
    expected = 1 - scipy.stats.binom.cdf(max(fails, default=-1), n, p)
    assert coverage(n, 0.05) == pytest.approx(expected, abs=4 * math.sqrt(0.05 / SETS))
    assert below(coverage(2 * n, 0.05), 0.95)
    assert below(coverage(n, 0.5), 0.95)


def gibbs(seed, n=60, coins=200):
    """Posteriors chosen by the data among coins of known error: their error, that on the data, and the divergence."""
    rng = np.random.default_rng(seed)
    truth = np.full(coins, 0.25)
    found = rng.binomial(n, truth, (SETS, coins)) / n
    weights = np.exp(-6.0 * n * (found - found.min(1, keepdims=True)))
    weights /= weights.sum(1, keepdims=True)
    divergence = np.sum(weights * np.log(np.maximum(weights * coins, 1e-300)), 1)
    return torch.from_numpy(weights @ truth), torch.from_numpy((weights * found).sum(1)), torch.from_numpy(divergence)


def test_pac_bayes_kl_holds_for_posteriors_that_the_data_choose():
    truth, empirical, divergence = gibbs(0)
    delta = 0.1

    def coverage(kl, n):
        return (bounds.pac_bayes_kl(empirical.clamp(0, 1), kl, n, delta) >= truth).double().mean().item()

    assert not below(coverage(divergence, 60), 1 - delta)
    assert below(coverage(0 * divergence, 120), 1 - delta)  # no price for the choice, and n doubled


# ---- the divergence of weights


def product_kl(law, w, w0, s):
    """Of mask times weight, by integration over the mask and then over the product."""
    atoms = [
        (value, p)
        for value, p in ((v, float(law.cdf(v) - law.cdf(v - 1e-9))) for v in (0.0, 0.5, 1.0, 2.0))
        if p > 1e-6
    ]
    grid = (np.arange(4000) + 0.5) / 4000
    masks = law.quantile(torch.from_numpy(grid)).numpy()
    inner = masks[~np.isin(masks, [value for value, _ in atoms])]

    def density(z, mean):
        total = np.zeros_like(z)
        for m, p in [(value, p) for value, p in atoms if value] + [(m, 1 / 4000) for m in inner]:
            total += p / abs(m) * scipy.stats.norm.pdf(z / m, mean, s)
        return total

    z = np.linspace(-9, 9, 40_001)
    first, second = density(z, w), density(z, w0)
    safe = (first > 1e-280) & (second > 1e-280)
    return scipy.integrate.trapezoid(
        np.where(safe, first * np.log(np.where(safe, first / np.where(safe, second, 1), 1)), 0), z
    )


@pytest.mark.parametrize(
    "law",
    [cd.Bernoulli(keep=0.5), cd.Bernoulli(keep=0.8, value=0.5), cd.Uniform(0.2, 1.8), cd.Gaussian(sigma=0.3)],
    ids=str,
)
def test_divergence_of_what_a_mask_shows_of_a_weight(law):
    w, w0, s = 0.9, 0.4, 0.5
    bound = bounds.weight_kl([w], [w0], s, law).item()
    seen = product_kl(law, w, w0, s)
    assert seen <= bound * (1 + 1e-3)
    assert bound <= bounds.weight_kl([w], [w0], s).item() == pytest.approx((w - w0) ** 2 / (2 * s * s))
    if isinstance(law, cd.Bernoulli):
        assert seen == pytest.approx(bound, rel=1e-6)


def test_only_the_chance_of_zero_is_a_discount():
    assert bounds.weight_kl([1.0], [0.0], 1.0, cd.Bernoulli(keep=0.25)).item() == pytest.approx(0.125)
    assert bounds.weight_kl([1.0], [0.0], 1.0, cd.Uniform()).item() == 0.5
    clipped = cd.Gaussian(sigma=0.3)
    expected = 0.5 * (1 - scipy.stats.norm.cdf(-0.5 / 0.3))
    assert bounds.weight_kl([1.0], [0.0], 1.0, clipped).item() == pytest.approx(expected, rel=1e-12)


# ---- mixtures


def test_brier_score_of_a_mixture_is_that_of_its_members_less_their_diversity():
    logits = torch.randn(7, 50, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.arange(50) % 10
    found = bounds.brier_decomposition(logits.softmax(-1), labels)
    assert found.mixture.item() == pytest.approx((found.members - found.diversity).item(), abs=1e-12)
    one = [
        sum((logits[t, i].softmax(-1)[c].item() - (c == labels[i].item())) ** 2 for c in range(10))
        for t, i in itertools.product(range(7), range(50))
    ]
    assert found.members.item() == pytest.approx(sum(one) / len(one), abs=1e-12)
    assert found.diversity.item() > 0.1


# ---- linear units


def test_rademacher_value_against_maximisation_and_monte_carlo():
    rng = np.random.default_rng(1)
    x, law, c = rng.normal(size=(9, 3)) * [1, 2, 0.5], cd.Uniform(), 0.7
    found = bounds.linear_rademacher(x, c, law)
    assert found.error.item() == 0
    r, a = law.relative_variance, (x**2).mean(0)
    best = []
    for _ in range(60):
        g = rng.choice([-1, 1], 9) @ x / 9
        inside = {"type": "ineq", "fun": lambda w: c - r * np.sum(a * w**2)}
        best.append(-scipy.optimize.minimize(lambda w: -(w @ g), np.full(3, 0.1), constraints=[inside]).fun)  # noqa: B023
    assert found.value.item() == pytest.approx(np.mean(best), abs=4 * np.std(best) / math.sqrt(60))
    assert found.value < found.bound == pytest.approx(math.sqrt(c * 3 / (r * 9)))
    many = bounds.linear_rademacher(np.tile(x, (2, 1)), c, law, draws=20_000)
    assert 0 < many.error < 0.01
    assert many.value < found.value


def test_more_noise_leaves_less_freedom_and_nothing_but_its_strength_counts():
    x = np.random.default_rng(2).normal(size=(10, 4))
    weak, strong = (bounds.linear_rademacher(x, 1.0, cd.Bernoulli(keep=keep)).value for keep in (0.8, 0.5))
    assert strong / weak == pytest.approx(math.sqrt(0.25 / 1.0))
    matched = bounds.linear_rademacher(x, 1.0, cd.Gaussian.matching(cd.Uniform())).value
    assert matched.item() == pytest.approx(bounds.linear_rademacher(x, 1.0, cd.Uniform()).value.item(), rel=1e-9)


# ---- bad input


def test_refusals(code_refusals):
    code_refusals("bounds_refusals", globals())
