"""The laws as values: text, equality, immutability, and what they say to wrong parameters."""

import dataclasses
import inspect
import itertools
import math
import pathlib
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import contdrop as cd
from conformance import LAWS
from contdrop.kernels import reference
from contdrop.laws import KINDS, Bernoulli, Gaussian, Law, Uniform, parse_law
from contdrop.laws import LAWS as LAWS_BY_NAME

INF = math.inf

values = st.floats(-1e3, 1e3).filter(bool)
bernoullis = st.builds(Bernoulli, keep=st.floats(0, 1), value=st.just(1.0) | values)

# Text, equality, immutability.

finite = st.floats(-1e9, 1e9)
bounds = st.tuples(finite | st.just(-INF), finite | st.just(INF)).filter(lambda pair: pair[0] < pair[1])
writable_law = st.one_of(
    bernoullis,
    bounds.filter(lambda pair: all(map(math.isfinite, pair))).map(lambda pair: Uniform(*pair)),
    st.builds(
        lambda mu, sigma, pair: Gaussian(mu=mu, sigma=sigma, low=pair[0], high=pair[1]),
        finite,
        st.floats(0, 1e9),
        bounds,
    ),
)


@given(writable_law)
def test_text_form_parses_back(law):
    assert parse_law(str(law)) == law


@given(writable_law)
def test_repr_evaluates_back(law):
    names = {"Bernoulli": Bernoulli, "Uniform": Uniform, "Gaussian": Gaussian, "float": float, "__builtins__": {}}
    assert eval(repr(law), names) == law


@pytest.mark.parametrize(
    ("law", "text", "representation"),
    [
        (Bernoulli(), "bernoulli:keep=0.5", "Bernoulli(keep=0.5)"),
        (Bernoulli(keep=1), "bernoulli:keep=1", "Bernoulli(keep=1.0)"),
        (Uniform(), "uniform", "Uniform()"),
        (Uniform(-1, 1), "uniform:low=-1", "Uniform(low=-1.0)"),
        (Gaussian(), "gaussian:sigma=0.3", "Gaussian(sigma=0.3)"),
        (Gaussian(mu=1, sigma=1e-9, high=INF), "gaussian:sigma=1e-09,mu=1,high=inf", None),
        (Gaussian(low=-INF), "gaussian:sigma=0.3,low=-inf", "Gaussian(sigma=0.3, low=float('-inf'))"),
        (Bernoulli(keep=0.77, value=0.65), "bernoulli:keep=0.77,value=0.65", "Bernoulli(keep=0.77, value=0.65)"),
        (Bernoulli(keep=1, value=-2), "bernoulli:keep=1,value=-2", "Bernoulli(keep=1.0, value=-2.0)"),
    ],
    ids=str,
)
def test_text_form_is_short(law, text, representation):
    assert str(law) == text
    assert parse_law(text) == law
    assert representation is None or repr(law) == representation


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("gaussian", Gaussian()),
        ("gaussian:", Gaussian()),
        ("  Gaussian : sigma = 0.3 , mu = 1e0 ", Gaussian(mu=1, sigma=0.3)),
        ("gaussian:variance=0.25,low=-inf", Gaussian(sigma=0.5, low=-INF)),
        ("UNIFORM:high=2", Uniform(0, 2)),
        ("bernoulli:keep=.8", Bernoulli(keep=0.8)),
    ],
)
def test_parse_law_is_lenient_about_spelling(text, law):
    assert parse_law(text) == law


@pytest.mark.parametrize(
    ("law", "params"),
    [(Bernoulli(keep=1), (1,)), (Uniform(-1, 2), (-1, 2)), (Gaussian(low=-INF), (0.5, 0.3, -INF, 1))],
    ids=str,
)
def test_params_are_floats_in_the_order_of_the_kernels(law, params):
    assert law.params == params
    assert all(type(value) is float for value in law.params)


def test_equal_laws_hash_alike_and_others_differ():
    assert Gaussian(mu=1, sigma=2, low=0, high=3) == Gaussian(mu=1.0, sigma=2.0, low=0.0, high=3.0)
    assert hash(Gaussian(mu=1, sigma=2, low=0, high=3)) == hash(Gaussian(mu=1.0, sigma=2.0, low=0.0, high=3.0))
    assert len({*LAWS, *map(eval, map(repr, LAWS))}) == len(LAWS)
    for one, other in itertools.combinations(LAWS, 2):
        assert one != other


@pytest.mark.parametrize("name", ["sigma", "mean", "variance", "params", "other"])
def test_laws_are_frozen(name):
    law = Gaussian()
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(law, name, 1.0)


# Errors.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Gaussian(sigma=-0.1),
            ValueError,
            r"^Gaussian: expected a number of at least 0 for sigma, a standard deviation, got -0\.1$",
        ),
        (
            lambda: Bernoulli(keep=1.5),
            ValueError,
            r"^Bernoulli: expected a number in \[0, 1\] for keep, the probability of .*, got 1\.5$",
        ),
        (
            lambda: Bernoulli(keep=-0.5),
            ValueError,
            r"^Bernoulli: expected a number in \[0, 1\] for keep, the .*, got -0\.5$",
        ),
        (lambda: Uniform(1, 0), ValueError, r"Uniform: expected low to be less than high, got low=1\.0, high=0\.0"),
        (lambda: Uniform(1, 1), ValueError, r"Uniform: expected low to be less than high, got low=1\.0, high=1\.0"),
        (lambda: Gaussian(low=2), ValueError, r"Gaussian: expected low to be less than high, got low=2\.0, high=1\.0"),
        (lambda: Gaussian(low=INF, high=INF), ValueError, r"Gaussian: expected low to be less than high, got low=inf"),
        (lambda: Bernoulli(keep=math.nan), ValueError, "Bernoulli: expected a finite number for keep, .*, got nan"),
        (lambda: Uniform(high=math.nan), ValueError, "Uniform: expected a finite number for high, got nan"),
        (lambda: Uniform(low=-INF), ValueError, "Uniform: expected a finite number for low, got -inf"),
        (lambda: Gaussian(mu=math.nan), ValueError, "Gaussian: expected a finite number for mu, got nan"),
        (lambda: Gaussian(mu=INF), ValueError, "Gaussian: expected a finite number for mu, got inf"),
        (lambda: Gaussian(sigma=INF), ValueError, "Gaussian: expected a finite number for sigma, .*, got inf"),
        (lambda: Gaussian(low=math.nan), ValueError, "Gaussian: expected a number for low, got nan"),
        (lambda: Gaussian(sigma="0.3"), TypeError, "Gaussian: expected a number for sigma, .*, got str"),
        (lambda: Gaussian(sigma=torch.tensor(0.3)), TypeError, "Gaussian: expected a number for sigma, .*, got Tensor"),
        (lambda: Bernoulli(keep=None), TypeError, "Bernoulli: expected a number for keep, .*, got NoneType"),
        (lambda: Bernoulli(keep=True), TypeError, "Bernoulli: expected a number for keep, .*, got bool"),
        (lambda: Uniform(low=False), TypeError, "Uniform: expected a number for low, got bool"),
        (
            lambda: Gaussian.from_variance(-1),
            ValueError,
            r"Gaussian\.from_variance: expected a number of at least 0 for variance, got -1\.0",
        ),
        (
            lambda: Gaussian.from_variance(INF),
            ValueError,
            r"Gaussian\.from_variance: expected a finite number for variance, got inf",
        ),
        (lambda: Gaussian.from_variance("1"), TypeError, "expected a number for variance, got str"),
        (lambda: Law(), TypeError, "abstract class Law"),
        (
            lambda: type("Other", (Gaussian,), {}),
            TypeError,
            r"^Other: expected a subclass of contdrop\.Law, got one of Gaussian, which the kernels draw",
        ),
        (lambda: Bernoulli(keep=np.bool_(True)), TypeError, "Bernoulli: expected a number for keep, .*, got bool"),
        (
            lambda: Bernoulli(value=0),
            ValueError,
            r"^Bernoulli: expected a number other than 0 for value, .*, got 0\.0$",
        ),
        (lambda: Bernoulli(value=-0.0), ValueError, "^Bernoulli: expected a number other than 0 for value"),
        (
            lambda: Gaussian(0.3),
            TypeError,
            r"^Gaussian: expected its parameters by keyword, got 0\.3; "
            r"write Gaussian\(sigma=0\.3\) if it is the standard deviation$",
        ),
        (lambda: Gaussian(0.5, 0.3, low=0.0), TypeError, r"got 0\.5, 0\.3; write Gaussian\(sigma=0\.5\) if"),
        (
            lambda: Bernoulli(0.2),
            TypeError,
            r"^Bernoulli: .*; write Bernoulli\(keep=0\.2\) if it is the probability of keeping a unit$",
        ),
        (lambda: parse_law(Gaussian()), TypeError, "expected text such as 'gaussian:sigma=0.3', got Gaussian"),
        (lambda: Bernoulli.matching(0.5), TypeError, r"Bernoulli\.matching: expected a law such as .*, got float"),
        (
            lambda: Uniform.matching("gaussian"),
            TypeError,
            r"^Uniform\.matching: expected a law such as Gaussian\(sigma=0\.3\), got str; contdrop\.parse_law reads",
        ),
        (
            lambda: Uniform.matching(Bernoulli(keep=0.5)),
            ValueError,
            r"^Uniform\.matching: expected a relative variance above 0 and at most 1/3, got 1 of Bernoulli\(keep=0\.5\)"
            r"; use Gaussian\.matching or Bernoulli\.matching for others$",
        ),
        (lambda: Uniform.matching(Gaussian(sigma=0)), ValueError, r"at most 1/3, got 0 of Gaussian\(sigma=0\.0\)"),
        (
            lambda: Gaussian.matching(Bernoulli(keep=0.2)),
            ValueError,
            r"^Gaussian\.matching: expected a relative variance of at most 0\.999, got 4 of Bernoulli\(keep=0\.2\); "
            r"use Bernoulli\.matching\(law\) or Gaussian\.matching\(law, clip=False\)$",
        ),
        (
            lambda: Gaussian.matching(Bernoulli(keep=0.5)),
            ValueError,
            r"at most 0\.999, got 1 of Bernoulli\(keep=0\.5\)",
        ),
        (
            lambda: Gaussian.matching(Uniform(-1, 1)),
            ValueError,
            r"^Gaussian\.matching: expected a law with a finite relative variance, got Uniform\(low=-1\.0\) of mean 0$",
        ),
        (
            lambda: Bernoulli.matching(Gaussian(sigma=1e200, low=-INF, high=INF)),
            ValueError,
            r"^Bernoulli\.matching: expected a law with a finite relative variance, got Gaussian\(sigma=1e\+200, low=",
        ),
        (
            lambda: Bernoulli.matching(Uniform(-1, 1)),
            ValueError,
            r"Bernoulli\.matching: expected a law with a finite relative variance, got Uniform\(low=-1\.0\) of mean 0$",
        ),
        (
            lambda: Bernoulli.matching(Bernoulli(keep=0)),
            ValueError,
            r"finite relative variance, got Bernoulli\(keep=0\.0\) of mean 0$",
        ),
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
        ("bernoulli:xyz=1", "bernoulli has no parameter 'xyz' in 'bernoulli:xyz=1'; known: keep, value"),
        ("bernoulli:variance=1", "bernoulli has no parameter 'variance' in 'bernoulli:variance=1'; known: keep, value"),
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
        ("gaussian:sigma=-1", "Gaussian: expected a number of at least 0 for sigma"),
        ("gaussian:variance=-1", r"Gaussian\.from_variance: expected a number of at least 0 for variance"),
        ("gaussian:sigma=nan", "Gaussian: expected a finite number for sigma, .*, got nan"),
        ("bernoulli:keep=2", r"Bernoulli: expected a number in \[0, 1\] for keep"),
        ("uniform:low=3", "Uniform: expected low to be less than high"),
    ],
)
def test_text_with_wrong_values_is_explained_by_the_law(text, message):
    with pytest.raises(ValueError, match=message):
        parse_law(text)


@pytest.mark.parametrize("law", [Bernoulli(), Uniform(), Gaussian()], ids=str)
@pytest.mark.parametrize("u", [-0.1, 1.1, math.nan])
def test_quantile_refuses_what_is_no_probability(law, u):
    name = type(law).__name__
    with pytest.raises(ValueError, match=rf"{name}\.quantile: expected probabilities in \[0, 1\], got {u}"):
        law.quantile(u)
    with pytest.raises(ValueError, match=rf"{name}\.quantile: .* \[0, 1\], got a tensor with other values"):
        law.quantile(torch.tensor([0.5, u]))


# Keywords, and NumPy's numbers.


def test_signatures_name_the_keywords():
    assert str(inspect.signature(Bernoulli)) == "(*, keep: 'float' = 0.5, value: 'float' = 1.0) -> None"
    assert list(inspect.signature(Gaussian).parameters) == ["sigma", "mu", "low", "high"]


@pytest.mark.usefixtures("lab_packages")
def test_there_is_one_default_sigma():
    from contdrop.lab.study import methods

    assert Gaussian() == parse_law("gaussian") == cd.GaussianDropout().law == methods.parse("gaussian").law
    assert Gaussian().sigma == 0.3


@pytest.mark.parametrize("number", [np.float64(0.25), np.float32(0.25), np.float16(0.25), np.int64(1), np.uint8(1)])
def test_scalars_of_numpy_are_numbers(number):
    value = float(number)
    laws = Gaussian(sigma=number), Bernoulli(keep=number, value=number), Uniform(0, number)
    assert laws == (Gaussian(sigma=value), Bernoulli(keep=value, value=value), Uniform(0, value))
    assert all(type(parameter) is float for law in laws for parameter in (*law.params, law.mean, law.variance))


# The kept value.


def test_the_kept_value_is_folded_into_the_scale():
    law = Bernoulli(keep=0.75, value=0.5)
    assert (law.kind, law.params, law.factor) == ("bernoulli", (0.75,), 0.5)
    assert (law.mean, law.variance) == (0.375, 0.75 * 0.25 * 0.25)


# What the kernels draw, only they know.


def test_one_table_of_kinds():
    """The names of laws, of the reference back end and of the native one; CONTRIBUTING.md lists where they stand."""
    native = pathlib.Path(reference.__file__).parent / "native" / "api.h"
    (enumeration,) = re.findall(r"enum Kind : int32_t \{(.*?)\}", native.read_text())
    numbers = re.findall(r"k(\w+) = (\d+)", enumeration)
    assert tuple(LAWS_BY_NAME) == KINDS
    assert [(name.lower(), int(number)) for name, number in numbers] == [(n, i) for i, n in enumerate(KINDS)]


def test_the_places_that_contributors_are_told_of_exist():
    root = pathlib.Path(__file__).parents[1]
    text = (root / "CONTRIBUTING.md").read_text()
    for row in re.findall(r"^\| (`(?:src|tests)/.*?) \|", text, re.MULTILINE):
        places = re.findall(r"`(.*?)`", row)
        folder = places[0].rpartition("/")[0]
        assert all((root / place).exists() or (root / folder / place).exists() for place in places), row
