"""The theory of training under dropout, against brute force, automatic and finite differences, and Monte Carlo."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from test_static import ANY_LAW, UNCLIPPED, all_masks
from torch.nn.functional import softplus

import contdrop as cd
from conformance import INFINITY, LAWS, fixed
from contdrop.theory import dynamic, sigmoid_expectations

SOME_LAWS = [
    *(cd.Bernoulli(keep=0.5), cd.Bernoulli(keep=0.8), cd.Bernoulli(keep=0.77, value=0.65)),
    *(cd.Bernoulli(keep=0.6, value=-0.8), cd.Uniform()),
    *(cd.Gaussian(sigma=0.3), cd.Gaussian(mu=0.9, sigma=0.5), UNCLIPPED),
]


def errors_of(s: torch.Tensor, target: float, unit: str, gain: float) -> torch.Tensor:
    """E_D by its definition."""
    if unit == "linear":
        return (target - s).square() / 2
    return softplus(gain * s, threshold=50) - target * gain * s


def differences(f, weight: torch.Tensor, step: float = 1e-4) -> torch.Tensor:
    """The gradient by central differences of fourth order."""
    rows = step * torch.eye(len(weight), dtype=torch.float64)
    near = torch.tensor([f(weight + row) - f(weight - row) for row in rows], dtype=torch.float64)
    far = torch.tensor([f(weight + 2 * row) - f(weight - 2 * row) for row in rows], dtype=torch.float64)
    return (8 * near - far) / (12 * step)


# Both units.


@pytest.mark.parametrize("n", [1, 6, 12])
@pytest.mark.parametrize("keep", [0.5, 0.3])
@pytest.mark.parametrize(("unit", "gain"), [("linear", 1.0), ("sigmoid", 1.0), ("sigmoid", -7.0)])
def test_everything_equals_the_sum_over_all_masks(n, keep, unit, gain):
    weight, x, target, law = fixed(n, seed=1), fixed(n, seed=2), 0.7, cd.Bernoulli(keep=keep)
    options = {"unit": unit, "gain": gain}
    masks, probability = all_masks(n, keep)
    s = masks @ (weight * x)
    output = s if unit == "linear" else torch.sigmoid(gain * s)
    factor = 1.0 if unit == "linear" else gain

    def equal(got, oracle):
        torch.testing.assert_close(torch.as_tensor(got, dtype=torch.float64), oracle, rtol=1e-12, atol=2e-14)

    gradient = -factor * (probability * (target - output)) @ masks * x
    equal(dynamic.expected_gradient(weight, x, target, law, **options), gradient)
    mean = probability @ output
    equal(dynamic.ensemble_gradient(weight, x, target, law, **options), -factor * (target - mean) * keep * x)
    error = probability @ errors_of(s, target, unit, gain)
    equal(dynamic.expected_error(weight, x, target, law, **options), error)
    if unit == "linear":
        ensemble = (target - mean).square() / 2
    else:
        ensemble = -(target * mean.log() + (1 - target) * (1 - mean).log())
    equal(dynamic.ensemble_error(weight, x, target, law, **options), ensemble)
    equal(dynamic.regularizer(weight, x, target, law, **options), error - ensemble)


@pytest.mark.parametrize(("unit", "gain"), [("linear", 1.0), ("sigmoid", 2.5)])
def test_dropout_gradient_is_that_of_autograd(unit, gain):
    weight, x, masks = fixed(5, seed=1).requires_grad_(), fixed(5, seed=2), cd.Uniform().sample((3, 2, 5)).double()
    got = dynamic.dropout_gradient(weight, x, 0.3, masks, unit=unit, gain=gain)
    assert got.shape == masks.shape
    for place in ((0, 1), (2, 0)):
        error = errors_of((masks[place] * x) @ weight, 0.3, unit, gain)
        torch.testing.assert_close(got[place], torch.autograd.grad(error, weight)[0], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_linear_unit_is_the_same_in_every_form(law):
    weight, x = fixed(5, seed=1), fixed(5, seed=2)
    added = dynamic.expected_gradient(weight, x, 0.4, law) - dynamic.ensemble_gradient(weight, x, 0.4, law)
    torch.testing.assert_close(added, law.variance * weight * x**2)
    exact = dynamic.expected_gradient(weight, x, 0.4, law)
    for form in dynamic.FORMS:
        torch.testing.assert_close(dynamic.expected_gradient(weight, x, 0.4, law, form=form), exact)
        assert dynamic.regularizer(weight, x, 0.4, law, form=form) == dynamic.regularizer(weight, x, 0.4, law)


# The sigmoid unit: what "exact" claims.


@pytest.mark.parametrize("law", SOME_LAWS, ids=str)
def test_exact_gradient_and_regularizer_agree_with_monte_carlo(law):
    weight, x, target, gain, rounds, draws = 0.4 * fixed(50, seed=1), fixed(50, seed=2), 0.8, 1.5, 4, 50_000
    generator = torch.Generator().manual_seed(0)
    total = square = torch.zeros(50, dtype=torch.float64)
    losses = []
    for _ in range(rounds):
        masks = law.sample((draws, 50), generator=generator, dtype=torch.float64)
        gradients = dynamic.dropout_gradient(weight, x, target, masks, unit="sigmoid", gain=gain)
        total, square = total + gradients.sum(0), square + gradients.square().sum(0)
        losses.append(errors_of(masks @ (weight * x), target, "sigmoid", gain))
    mean = total / (rounds * draws)
    error = ((square / (rounds * draws) - mean.square()) / (rounds * draws)).sqrt()
    exact = dynamic.expected_gradient(weight, x, target, law, unit="sigmoid", gain=gain)
    assert ((exact - mean).abs() <= 5 * error).all()
    loss = torch.cat(losses)
    error = 5 * loss.std().item() / math.sqrt(rounds * draws)
    expected = dynamic.expected_error(weight, x, target, law, unit="sigmoid", gain=gain)
    assert expected == pytest.approx(loss.mean().item(), abs=error)


@pytest.mark.parametrize("scale", [0.01, 0.4, 10.0])
def test_steins_lemma_is_exact_for_normal_masks(scale):
    weight, x = scale * fixed(50, seed=1), fixed(50, seed=2)
    options = {"unit": "sigmoid", "gain": 1.3}
    forms = ("exact", "stein")
    exact, stein = (dynamic.expected_gradient(weight, x, 0.6, UNCLIPPED, form=f, **options) for f in forms)
    torch.testing.assert_close(exact, stein, rtol=1e-12, atol=1e-13)
    for ensemble in dynamic.ENSEMBLES:
        options["ensemble"] = ensemble
        exact, stein = (dynamic.regularizer(weight, x, 0.6, UNCLIPPED, form=f, **options) for f in forms)
        assert exact == pytest.approx(stein, rel=1e-12, abs=1e-13)


def test_many_and_large_inputs():
    law, weight, x = cd.Gaussian(sigma=0.3), 0.2 * fixed(800, seed=1), fixed(800, seed=2)
    wide = cd.Gaussian(sigma=0.3, low=-2.0, high=3.0)  # clips once in 10^16
    exact = dynamic.expected_gradient(weight, x, 1.0, wide, unit="sigmoid")
    stein = dynamic.expected_gradient(weight, x, 1.0, UNCLIPPED, unit="sigmoid", form="stein")
    torch.testing.assert_close(exact, stein, rtol=1e-12, atol=1e-13)
    # 800 clipped masks are nearly normal in sum.
    assert dynamic.unexplained_share(weight, x, 1.0, law, form="stein") < 0.01


@pytest.mark.parametrize("law", SOME_LAWS, ids=str)
def test_expected_gradient_is_the_gradient_of_the_expected_error(law):
    weight, x, options = fixed(4, seed=1), fixed(4, seed=2), {"unit": "sigmoid", "gain": 1.7}
    slope = differences(lambda w: dynamic.expected_error(w, x, 0.3, law, **options), weight)
    got = dynamic.expected_gradient(weight, x, 0.3, law, **options)
    torch.testing.assert_close(got, slope, rtol=1e-8, atol=1e-9)


@given(law=ANY_LAW, inputs=st.integers(1, 6), seed=st.integers(0, 2**31), target=st.floats(0, 1), gain=st.floats(-5, 5))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_exact_regularizer_is_never_negative(law, inputs, seed, target, gain):
    weight, x = fixed(inputs, seed=seed), fixed(inputs, seed=seed + 1)
    for ensemble in dynamic.ENSEMBLES:
        value = dynamic.regularizer(weight, x, target, law, unit="sigmoid", gain=gain, ensemble=ensemble)
        assert value >= -1e-12


@pytest.mark.parametrize("form", dynamic.FORMS)
@pytest.mark.parametrize("law", [cd.Bernoulli(keep=0.7), UNCLIPPED], ids=str)
def test_gain_is_a_factor_of_the_weight(form, law):
    weight, x, gain = 0.5 * fixed(6, seed=1), fixed(6, seed=2), 2.5
    scaled = {"weight": gain * weight, "x": x, "target": 0.2, "law": law, "unit": "sigmoid", "form": form}
    plain = scaled | {"weight": weight, "gain": gain}
    torch.testing.assert_close(dynamic.expected_gradient(**plain), gain * dynamic.expected_gradient(**scaled))
    assert dynamic.regularizer(**plain) == pytest.approx(dynamic.regularizer(**scaled), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("sigma", [1e-300, 1e-16, 1e-12, 1e-9])
@pytest.mark.parametrize("mu", [0.5, 1000.0])
def test_narrow_laws_keep_their_probability(mu, sigma):
    law = cd.Gaussian(mu=mu, sigma=sigma, low=0, high=2 * mu)
    values, probabilities = sigmoid_expectations.points(law)
    assert abs(probabilities.sum().item() - 1) < 1e-14
    assert abs((probabilities @ values).item() - mu) < 1e-14 * mu


def test_a_constant_mask_adds_nothing():
    weight, x = fixed(5, seed=1), fixed(5, seed=2)
    for law in (cd.Bernoulli(keep=1.0), cd.Gaussian(mu=0.4, sigma=0.0)):
        for unit in dynamic.UNITS:
            base = dynamic.ensemble_gradient(weight, x, 0.3, law, unit=unit)
            for form in dynamic.FORMS:
                torch.testing.assert_close(dynamic.expected_gradient(weight, x, 0.3, law, unit=unit, form=form), base)
                assert dynamic.regularizer(weight, x, 0.3, law, unit=unit, form=form) == pytest.approx(0, abs=1e-14)


# The sigmoid unit: what the paper and its predecessors claim.


def random_unit(seed: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(50, generator=generator, dtype=torch.float64)
    return weight, torch.randn(50, generator=generator, dtype=torch.float64)


def test_shares_over_many_units():
    """The shares differ from unit to unit; the order does not."""
    units = [random_unit(seed, 0.4) for seed in range(100)]
    forms = ("paper", "bernoulli")
    shares = [[dynamic.unexplained_share(*unit, 1.0, UNCLIPPED, form=form) for form in forms] for unit in units]
    shares = torch.tensor(shares)
    paper, bernoulli = shares.median(0).values.tolist()
    assert paper > 0.9
    assert bernoulli < 0.2
    assert (shares[:, 0] > shares[:, 1]).float().mean() > 0.95


def test_papers_ensemble_gradient_is_one_of_the_geometric_ensemble_only():
    weight, x, options = fixed(5, seed=1), fixed(5, seed=2), {"unit": "sigmoid", "gain": 1.5}
    for ensemble, right in (("geometric", True), ("arithmetic", False)):
        options["ensemble"] = ensemble
        slope = differences(lambda w: dynamic.ensemble_error(w, x, 0.9, UNCLIPPED, **options), weight)
        written = dynamic.ensemble_gradient(weight, x, 0.9, UNCLIPPED, **options)
        assert torch.allclose(slope, written, rtol=1e-7, atol=1e-9) == right
        if not right:
            assert (slope - written).norm() > 0.02 * slope.norm()


@pytest.mark.parametrize("law", SOME_LAWS, ids=str)
def test_regularizer_of_the_geometric_ensemble_is_what_the_noise_adds_to_the_gradient(law):
    weight, x, options = fixed(4, seed=1), fixed(4, seed=2), {"unit": "sigmoid", "gain": 1.5}
    slope = differences(lambda w: dynamic.regularizer(w, x, 0.9, law, ensemble="geometric", **options), weight)
    added = dynamic.expected_gradient(weight, x, 0.9, law, **options)
    added -= dynamic.ensemble_gradient(weight, x, 0.9, law, ensemble="geometric", **options)
    torch.testing.assert_close(slope, added, rtol=1e-7, atol=1e-9)


def test_papers_regularizer_is_no_penalty_and_no_integral_of_its_gradient():
    weight, x, options = fixed(5, seed=1).abs(), fixed(5, seed=2).abs(), {"unit": "sigmoid", "form": "paper"}
    # Three small inputs one way, one large one the other way: E[S] > 0, and the sum of cubes is negative.
    mixed = torch.tensor([0.8, 0.8, 0.8, -1.5], dtype=torch.float64)
    assert dynamic.regularizer(mixed, torch.ones(4), 1.0, UNCLIPPED, **options) < 0
    assert dynamic.regularizer(mixed, torch.ones(4), 1.0, UNCLIPPED, unit="sigmoid") > 0
    slope = differences(lambda w: dynamic.regularizer(w, x, 1.0, UNCLIPPED, **options), weight)
    added = dynamic.expected_gradient(weight, x, 1.0, UNCLIPPED, **options)
    added = added - dynamic.ensemble_gradient(weight, x, 1.0, UNCLIPPED, unit="sigmoid")
    total = (weight @ added).item()
    assert dynamic.regularizer(weight, x, 1.0, UNCLIPPED, **options) == pytest.approx(total, rel=1e-12)
    assert (slope - added).norm() > 0.5 * added.norm()


def test_papers_last_line_has_lost_a_root_on_its_way():
    """Its first line, the probit with and without input i, expands to the last divided by k = sqrt(1 + pi V / 8)."""
    weight, x = random_unit(0, 0.8)
    mean, parts = 0.5 * (weight @ x), 0.09 * (weight * x).square()
    k, k_without = (1 + math.pi / 8 * parts.sum()).sqrt(), (1 + math.pi / 8 * (parts.sum() - parts)).sqrt()
    first_line = 0.5 * x * (torch.sigmoid(mean / k_without) - torch.sigmoid(mean / k))
    last_line = dynamic.expected_gradient(weight, x, 1.0, UNCLIPPED, unit="sigmoid", form="paper")
    last_line = last_line - dynamic.ensemble_gradient(weight, x, 1.0, UNCLIPPED, unit="sigmoid")
    small = parts < 0.01 * parts.sum()  # where the expansion is good
    assert k > 1.3
    torch.testing.assert_close(last_line[small] / k, first_line[small], rtol=0.02, atol=1e-9)


@pytest.mark.parametrize("target", [0.0, 0.4, 1.0])
def test_second_order_of_the_regularizer(target):
    weight, x, gain = fixed(6, seed=1), fixed(6, seed=2), 1.4
    law = cd.Gaussian(sigma=0.01, low=-INFINITY, high=INFINITY)
    options = {"unit": "sigmoid", "gain": gain}
    output = expit(gain * 0.5 * (weight @ x).item())
    half = gain**2 * law.variance * (weight * x).square().sum().item() / 2
    arithmetic = dynamic.regularizer(weight, x, target, law, **options)
    assert arithmetic == pytest.approx(half * (target * (1 - output) ** 2 + (1 - target) * output**2), rel=2e-3)
    geometric = dynamic.regularizer(weight, x, target, law, ensemble="geometric", **options)
    assert geometric == pytest.approx(half * output * (1 - output), rel=2e-3)
    bernoulli = dynamic.regularizer(weight, x, target, law, form="bernoulli", **options)
    assert geometric == pytest.approx(bernoulli, rel=2e-3)


# Mistakes.


X, LAW = fixed(3), cd.Uniform()


class OtherLaw(cd.Law):
    kind, mean, variance, params, _leading = "other", 0.5, 0.1, (), ()

    def cdf(self, x): ...
    def quantile(self, u): ...
    def _draw(self, shape, generator, device): ...
    def __repr__(self):
        return "OtherLaw()"


def refuse(name, **changes):
    arguments = {"weight": X, "x": X, "target": 1.0, **({} if name == "dropout_gradient" else {"law": LAW}), **changes}
    return getattr(dynamic, name)(**arguments)


def test_refusals(code_refusals):
    code_refusals("dynamic_refusals", globals())
