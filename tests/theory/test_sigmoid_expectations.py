"""Exact expectations of sigmoid units, also saturated ones, against closed forms and quadrature."""

import math

import pytest
import torch
from scipy.special import expit
from test_static import STEPS, UNCLIPPED, WIDE, all_masks, float64
from torch.nn.functional import softplus

import contdrop as cd
from conformance import INFINITY, fixed
from contdrop.theory import dynamic, sigmoid_expectations
from oracles import integrate, normal_expectation


@pytest.mark.parametrize(
    "law", [cd.Uniform(-0.3, 1.2), cd.Gaussian(sigma=0.4), cd.Gaussian(mu=-1.0, sigma=0.2)], ids=str
)
@pytest.mark.parametrize("term", [0.3, -4.0, 60.0])
def test_one_input_is_one_integral(law, term):
    """With one input every expectation is an integral over one mask value."""

    def expectation(f):
        kinks = [a / term for a in STEPS]
        if isinstance(law, cd.Uniform):
            inside = [k for k in kinks if law.low < k < law.high]
            return integrate(lambda v: f(v) / (law.high - law.low), [law.low, *inside, law.high])[0]
        clip = lambda v: min(max(v, law.low), law.high)  # noqa: E731
        return normal_expectation(lambda v: f(clip(v)), law.mu, law.sigma**2, [law.low, law.high, *kinks])

    terms = float64(term)
    below, above = sigmoid_expectations.expected_sigmoid(terms, law)
    masked = sigmoid_expectations.expected_masked_sigmoid(terms, law).item()
    for got, f in (
        (below, lambda v: float(expit(term * v))),
        (above, lambda v: float(expit(-term * v))),
        (masked, lambda v: v * float(expit(term * v))),
    ):
        assert got == pytest.approx(expectation(f), rel=1e-11, abs=1e-14)
    integral = expectation(lambda v: max(term * v, 0.0) + math.log1p(math.exp(-abs(term * v))))
    assert sigmoid_expectations.expected_softplus(terms, law)[0] == pytest.approx(integral, rel=1e-11)


def test_transforms_of_fast_waves():
    z = 1j * float64(0.1, 7.0, 40.0, 300.0)
    wide = cd.Gaussian(sigma=0.3, low=-2.5, high=3.5)  # clips once in 10^23
    pairs = [(sigmoid_expectations.transform(cd.Uniform(), z)[0], (torch.exp(z) - 1) / z)]
    pairs += zip(*(sigmoid_expectations.transform(law, z / 5) for law in (wide, UNCLIPPED)))
    for got, oracle in pairs:
        torch.testing.assert_close(got, oracle, rtol=0, atol=1e-14)


def test_saturated_units_keep_their_digits():
    # 1 - E[O] has lost E[O] = 2e-18, the logarithm needs it. In the tail O = exp(S), so that E[O] = exp(-41 + V / 2).
    law = cd.Gaussian(mu=0.5, sigma=0.01, **WIDE)
    weight, x = torch.full((10,), -8.2, dtype=torch.float64), torch.ones(10)
    variance = 10 * 8.2**2 * 0.01**2
    for target, w in ((1.0, weight), (0.0, -weight)):
        assert dynamic.ensemble_error(w, x, target, law, unit="sigmoid") == pytest.approx(41 - variance / 2, abs=1e-6)
        assert dynamic.regularizer(w, x, target, law, unit="sigmoid") == pytest.approx(variance / 2, abs=1e-6)


# Units that are saturated: what is left of the sigmoid is far below rounding.


SATURATED = [(-3.0, 0.5), (-20.0, 0.1), (-36.0, 1.0), (-60.0, 0.04), (-60.0, 400.0), (-500.0, 4000.0), (-800.0, 25.0)]


def log_expected_sigmoid_of_normal(mean, variance):
    """sigmoid(a) = exp(a) sigmoid(-a), and exp(a) moves the mean of a normal density by its variance."""
    if mean + variance > 0:  # all but below zero; then the quadrature of oracles.py has digits enough for exp(a / r)
        share = -mean / variance
        scale = share * mean + share**2 * variance / 2
        kinks = [*STEPS, -200.0, 200.0]
        g = lambda a: math.exp(-share * a) * float(expit(a)) if a > -600 else 0.0  # noqa: E731
        return scale + math.log(normal_expectation(g, 0.0, variance, kinks))
    left = normal_expectation(lambda a: float(expit(-a)), mean + variance, variance, STEPS)
    return mean + variance / 2 + math.log(left)


@pytest.mark.parametrize(("mean", "variance"), SATURATED)
@pytest.mark.parametrize("sign", [1, -1])
def test_saturated_unit_with_gaussian_masks(mean, variance, sign):
    """log E[O] by quadrature; S is normal, so that "stein" is the same."""
    terms = torch.full((10,), sign * mean / 5, dtype=torch.float64)
    law = cd.Gaussian(sigma=math.sqrt(variance / 10) * 5 / -mean, **WIDE)
    log_output = log_expected_sigmoid_of_normal(mean, variance)
    goal = 1.0 if sign > 0 else 0.0

    def of(function, target=goal, **options):
        return function(terms, torch.ones(10), target, law, unit="sigmoid", **options)

    assert of(dynamic.ensemble_error) == pytest.approx(-log_output, rel=1e-11)
    above = normal_expectation(lambda a: max(a, 0.0) + math.log1p(math.exp(-abs(a))), mean, variance, STEPS)
    assert of(dynamic.expected_error) == pytest.approx(above - mean, rel=1e-11)
    for form in ("exact", "stein"):
        got = of(dynamic.regularizer, form=form)
        assert got == pytest.approx(above - mean + log_output, rel=1e-9, abs=1e-12)
        other = of(dynamic.regularizer, 1 - goal, form=form)
        assert of(dynamic.regularizer, 0.5, form=form) == pytest.approx((got + other) / 2, rel=1e-12)
        assert 0 <= other <= above
        geometric = of(dynamic.regularizer, form=form, ensemble="geometric")
        assert geometric == pytest.approx(above - softplus(float64(mean), threshold=50).item(), abs=1e-12)


@pytest.mark.parametrize("keep", [0.5, 0.9])
@pytest.mark.parametrize("scale", [1.0, 12.0, 90.0, 800.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_saturated_unit_equals_the_sum_over_all_masks(keep, scale, mixed):
    law, n = cd.Bernoulli(keep=keep), 8
    terms = -scale * (1 + fixed(n, seed=3).abs())
    if mixed:
        terms[:2] *= -1.5
    masks, probability = all_masks(n, keep)
    s = masks @ terms
    for sign in (1, -1):
        logs = sigmoid_expectations.log_expected_sigmoid(sign * terms, law)
        for log, argument in zip(logs, (sign * s, -sign * s)):
            oracle = (probability.log() + torch.nn.functional.logsigmoid(argument)).logsumexp(0).item()
            assert log == pytest.approx(oracle, rel=1e-12, abs=1e-13)
        for got, argument in zip(sigmoid_expectations.expected_softplus(sign * terms, law), (sign * s, -sign * s)):
            assert got == pytest.approx((probability @ torch.logaddexp(argument, 0 * argument)).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "term"), [(0.5, 1.0, -300.0), (0.5, 1.0, 20.0), (0.2, 0.9, -90.0), (0, 1, 0.1)]
)
def test_saturated_unit_with_uniform_masks_in_closed_form(low, high, term):
    """E[sigmoid(t m)] is the difference of log(1 + exp(t m)) at the ends, over t times their distance."""
    logs = sigmoid_expectations.log_expected_sigmoid(float64(term), cd.Uniform(low, high))
    for log, t in zip(logs, (term, -term)):
        if t < 0:
            ends = [math.log1p(math.exp(t * end)) for end in (low, high)]
            assert log == pytest.approx(math.log((ends[1] - ends[0]) / (t * (high - low))), rel=1e-12, abs=1e-13)
        else:
            assert log == pytest.approx(math.log1p(-math.exp(logs[0 if term < 0 else 1])), rel=1e-12)


@pytest.mark.parametrize(
    "law",
    [
        cd.Gaussian(mu=0.9, sigma=0.05),
        cd.Gaussian(sigma=0.3, low=0.2),
        cd.Gaussian(sigma=0.05, low=-1.0, high=2.0),
        cd.Gaussian(sigma=0.1, low=0.3, high=INFINITY),
    ],
    ids=str,
)
@pytest.mark.parametrize("term", [-100.0, -20.0, 60.0])
def test_saturated_unit_with_clipped_masks(law, term):
    terms = float64(term)
    log = min(sigmoid_expectations.log_expected_sigmoid(terms, law))
    mirrored = cd.Gaussian(mu=-law.mu, sigma=law.sigma, low=-law.high, high=-law.low)
    assert min(sigmoid_expectations.log_expected_sigmoid(-terms, mirrored)) == pytest.approx(log, rel=1e-12)
    kinks = [bound for bound in (law.low, law.high) if math.isfinite(bound)]
    clip = lambda v: min(max(v, law.low), law.high)  # noqa: E731
    # Multiplied by exp(-log), which the oracle does not believe but checks: the expectation must then be 1.
    f = lambda v: math.exp(-abs(term) * clip(v) - math.log1p(math.exp(-abs(term) * clip(v))) - log)  # noqa: E731
    low = max(law.low, law.mu - abs(term) * law.sigma**2)
    breaks = [*kinks, low, low + 4 * law.sigma, *(low + k / abs(term) for k in (1, 3, 9, 27))]
    assert normal_expectation(f, law.mu, law.sigma**2, breaks) == pytest.approx(1, rel=1e-10)


def test_sigmoid_of_a_sum_that_spans_thousands():
    """Where E[exp(A / 2)] overflows: A = 3000 U(0, 1), whose sigmoid has a mean in closed form."""
    for sign in (1, -1):
        found = sigmoid_expectations.expected_sigmoid(float64(sign * 3000.0), cd.Uniform())
        larger, smaller = found if sign > 0 else reversed(found)
        assert smaller == pytest.approx(math.log(2) / 3000, abs=1e-12)
        assert larger == pytest.approx(1 - math.log(2) / 3000, abs=1e-12)
