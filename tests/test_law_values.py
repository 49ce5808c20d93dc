"""The laws as values: text, equality, immutability, and what they say to wrong parameters."""

import dataclasses
import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import LAWS
from contdrop.laws import Bernoulli, Gaussian, Law, Uniform, parse_law

INF = math.inf

relaxed = settings(deadline=None)
bernoullis = st.floats(0, 1).map(Bernoulli)

# Text, equality, immutability.

finite = st.floats(-1e9, 1e9)
bounds = st.tuples(finite | st.just(-INF), finite | st.just(INF)).filter(lambda pair: pair[0] < pair[1])
writable_law = st.one_of(
    bernoullis,
    bounds.filter(lambda pair: all(map(math.isfinite, pair))).map(lambda pair: Uniform(*pair)),
    st.builds(lambda mu, sigma, pair: Gaussian(mu, sigma, *pair), finite, st.floats(0, 1e9), bounds),
)


@relaxed
@given(writable_law)
def test_text_form_parses_back(law):
    assert parse_law(str(law)) == law


@relaxed
@given(writable_law)
def test_repr_evaluates_back(law):
    names = {"Bernoulli": Bernoulli, "Uniform": Uniform, "Gaussian": Gaussian, "float": float, "__builtins__": {}}
    assert eval(repr(law), names) == law


@pytest.mark.parametrize(
    ("law", "text", "representation"),
    [
        (Bernoulli(), "bernoulli:keep=0.5", "Bernoulli(keep=0.5)"),
        (Bernoulli(1), "bernoulli:keep=1", "Bernoulli(keep=1.0)"),
        (Uniform(), "uniform", "Uniform()"),
        (Uniform(-1, 1), "uniform:low=-1", "Uniform(low=-1.0)"),
        (Gaussian(), "gaussian:sigma=0.2", "Gaussian(sigma=0.2)"),
        (Gaussian(mu=1, sigma=1e-9, high=INF), "gaussian:mu=1,sigma=1e-09,high=inf", None),
        (Gaussian(low=-INF), "gaussian:sigma=0.2,low=-inf", "Gaussian(sigma=0.2, low=float('-inf'))"),
    ],
    ids=str,
)
def test_text_form_is_short(law, text, representation):
    assert str(law) == text
    assert representation is None or repr(law) == representation


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("gaussian", Gaussian()),
        ("gaussian:", Gaussian()),
        ("  Gaussian : sigma = 0.3 , mu = 1e0 ", Gaussian(mu=1, sigma=0.3)),
        ("gaussian:variance=0.25,low=-inf", Gaussian(sigma=0.5, low=-INF)),
        ("UNIFORM:high=2", Uniform(0, 2)),
        ("bernoulli:keep=.8", Bernoulli(0.8)),
    ],
)
def test_parse_law_is_lenient_about_spelling(text, law):
    assert parse_law(text) == law


@pytest.mark.parametrize(
    ("law", "params"),
    [(Bernoulli(1), (1,)), (Uniform(-1, 2), (-1, 2)), (Gaussian(low=-INF), (0.5, 0.2, -INF, 1))],
    ids=str,
)
def test_params_are_floats_in_declaration_order(law, params):
    assert law.params == params
    assert all(type(value) is float for value in law.params)


def test_equal_laws_hash_alike_and_others_differ():
    assert Gaussian(mu=1, sigma=2, low=0, high=3) == Gaussian(1.0, 2.0, 0.0, 3.0)
    assert hash(Gaussian(mu=1, sigma=2, low=0, high=3)) == hash(Gaussian(1.0, 2.0, 0.0, 3.0))
    assert len({*LAWS, *map(eval, map(repr, LAWS))}) == len(LAWS)
    for one, other in itertools.combinations(LAWS, 2):
        assert one != other


@pytest.mark.parametrize("name", ["sigma", "mean", "variance", "params", "other"])
def test_laws_are_frozen(name):
    law = Gaussian()
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(law, name, 1.0)


def test_law_itself_is_abstract():
    with pytest.raises(TypeError, match="abstract class Law"):
        Law()


# Errors.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Gaussian(sigma=-0.1), ValueError, r"Gaussian: sigma is a standard deviation, at least 0; got -0\.1"),
        (lambda: Bernoulli(1.5), ValueError, r"Bernoulli: keep is the probability .* in \[0, 1\]; got 1\.5"),
        (lambda: Bernoulli(-0.5), ValueError, r"Bernoulli: keep is the probability .* in \[0, 1\]; got -0\.5"),
        (lambda: Uniform(1, 0), ValueError, r"Uniform: low must be less than high; got low=1\.0, high=0\.0"),
        (lambda: Uniform(1, 1), ValueError, r"Uniform: low must be less than high; got low=1\.0, high=1\.0"),
        (lambda: Gaussian(low=2), ValueError, r"Gaussian: low must be less than high; got low=2\.0, high=1\.0"),
        (lambda: Gaussian(low=INF, high=INF), ValueError, r"Gaussian: low must be less than high; got low=inf"),
        (lambda: Bernoulli(math.nan), ValueError, "Bernoulli: expected a finite number for keep, got nan"),
        (lambda: Uniform(high=math.nan), ValueError, "Uniform: expected a finite number for high, got nan"),
        (lambda: Uniform(low=-INF), ValueError, "Uniform: expected a finite number for low, got -inf"),
        (lambda: Gaussian(mu=math.nan), ValueError, "Gaussian: expected a finite number for mu, got nan"),
        (lambda: Gaussian(mu=INF), ValueError, "Gaussian: expected a finite number for mu, got inf"),
        (lambda: Gaussian(sigma=INF), ValueError, "Gaussian: expected a finite number for sigma, got inf"),
        (lambda: Gaussian(low=math.nan), ValueError, "Gaussian: expected a number for low, got nan"),
        (lambda: Gaussian(sigma="0.3"), TypeError, "Gaussian: expected a number for sigma, got str"),
        (lambda: Gaussian(sigma=torch.tensor(0.3)), TypeError, "Gaussian: expected a number for sigma, got Tensor"),
        (lambda: Bernoulli(None), TypeError, "Bernoulli: expected a number for keep, got NoneType"),
        (lambda: Bernoulli(True), TypeError, "Bernoulli: expected a number for keep, got bool"),
        (lambda: Uniform(low=False), TypeError, "Uniform: expected a number for low, got bool"),
        (lambda: Gaussian.from_variance(-1), ValueError, r"Gaussian\.from_variance: variance is at least 0; got -1\.0"),
        (
            lambda: Gaussian.from_variance(INF),
            ValueError,
            r"Gaussian\.from_variance: expected a finite number for variance, got inf",
        ),
        (lambda: Gaussian.from_variance("1"), TypeError, "expected a number for variance, got str"),
        (lambda: Bernoulli.matching(0.5), TypeError, r"Bernoulli\.matching: expected a law, got float"),
        (
            lambda: Bernoulli.matching(Uniform(-1, 1)),
            ValueError,
            r"Bernoulli\.matching: Uniform\(low=-1\.0\) has mean 0, so its relative variance is infinite",
        ),
        (lambda: Bernoulli.matching(Bernoulli(0)), ValueError, r"Bernoulli\(keep=0\.0\) has mean 0"),
    ],
)
def test_wrong_parameters_are_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gausian", "unknown law 'gausian' in 'gausian'; did you mean 'gaussian'?"),
        ("Bernouli:keep=1", "unknown law 'bernouli' in 'Bernouli:keep=1'; did you mean 'bernoulli'?"),
        ("xyz", "unknown law 'xyz' in 'xyz'; known: bernoulli, uniform, gaussian"),
        ("", "unknown law '' in ''; known: bernoulli, uniform, gaussian"),
        ("gaussian:sgima=1", "gaussian has no parameter 'sgima' in 'gaussian:sgima=1'; did you mean 'sigma'?"),
        ("bernoulli:xyz=1", "bernoulli has no parameter 'xyz' in 'bernoulli:xyz=1'; known: keep"),
        ("bernoulli:variance=1", "bernoulli has no parameter 'variance' in 'bernoulli:variance=1'; known: keep"),
        ("uniform:low=a", "expected low=<number>, got 'low=a' in 'uniform:low=a'"),
        ("uniform:low", "expected low=<number>, got 'low' in 'uniform:low'"),
        ("gaussian:sigma=1=2", "expected sigma=<number>, got 'sigma=1=2' in 'gaussian:sigma=1=2'"),
        (
            "gaussian:sigma=1,variance=1",
            "give sigma or variance, not both, in 'gaussian:sigma=1,variance=1'",
        ),
        ("gaussian:sigma=1,sigma=1", "sigma is given twice in 'gaussian:sigma=1,sigma=1'"),
    ],
)
def test_wrong_text_is_explained(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(f'parse_law: {message}')}$"):
        parse_law(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian:sigma=-1", "Gaussian: sigma is a standard deviation"),
        ("gaussian:variance=-1", r"Gaussian\.from_variance: variance is at least 0"),
        ("gaussian:sigma=nan", "Gaussian: expected a finite number for sigma, got nan"),
        ("bernoulli:keep=2", "Bernoulli: keep is the probability"),
        ("uniform:low=3", "Uniform: low must be less than high"),
    ],
)
def test_text_with_wrong_values_is_explained_by_the_law(text, message):
    with pytest.raises(ValueError, match=message):
        parse_law(text)


def test_parse_law_takes_only_text():
    with pytest.raises(TypeError, match=r"parse_law: expected text such as 'gaussian:sigma=0\.3', got Gaussian"):
        parse_law(Gaussian())


@pytest.mark.parametrize("law", [Bernoulli(), Uniform(), Gaussian()], ids=str)
@pytest.mark.parametrize("u", [-0.1, 1.1, math.nan])
def test_quantile_refuses_what_is_no_probability(law, u):
    name = type(law).__name__
    with pytest.raises(ValueError, match=rf"{name}\.quantile: expected probabilities in \[0, 1\], got {u}"):
        law.quantile(u)
    with pytest.raises(ValueError, match=rf"{name}\.quantile: .* \[0, 1\], got a tensor with other values"):
        law.quantile(torch.tensor([0.5, u]))
