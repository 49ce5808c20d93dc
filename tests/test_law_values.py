"""The laws as values: text, equality, immutability, and what they say to wrong parameters."""

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
from contdrop.laws import KINDS, Bernoulli, Gaussian, Uniform, parse_law
from contdrop.laws import LAWS as LAWS_BY_NAME

INF = math.inf

# Text, equality, immutability.

values = st.floats(-1e3, 1e3).filter(bool)
finite = st.floats(-1e9, 1e9)
bounds = st.tuples(finite | st.just(-INF), finite | st.just(INF)).filter(lambda pair: pair[0] < pair[1])
writable_law = st.one_of(
    st.builds(Bernoulli, keep=st.floats(0, 1), value=st.just(1.0) | values),
    bounds.filter(lambda pair: all(map(math.isfinite, pair))).map(lambda pair: Uniform(*pair)),
    st.builds(
        lambda low_high, **others: Gaussian(low=low_high[0], high=low_high[1], **others),
        bounds,
        mu=finite,
        sigma=st.floats(0, 1e9),
    ),
)


@given(writable_law)
def test_text_form_and_repr_parse_back(law):
    names = {"Bernoulli": Bernoulli, "Uniform": Uniform, "Gaussian": Gaussian, "float": float, "__builtins__": {}}
    assert parse_law(str(law)) == law
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


def test_params_are_in_the_order_of_the_kernels():
    laws = Bernoulli(keep=1), Uniform(-1, 2), Gaussian(low=-INF)
    assert [law.params for law in laws] == [(1,), (-1, 2), (0.5, 0.3, -INF, 1)]
    assert {type(value) for law in laws for value in law.params} == {float}


def test_equal_laws_hash_alike_and_others_differ():
    one, other = Gaussian(mu=1, sigma=2, low=0, high=3), Gaussian(mu=1.0, sigma=2.0, low=0.0, high=3.0)
    assert one == other
    assert hash(one) == hash(other)
    assert len({*LAWS, *map(eval, map(repr, LAWS))}) == len(LAWS)
    for one, other in itertools.combinations(LAWS, 2):
        assert one != other


# Errors.


def test_refusals(code_refusals):
    code_refusals("law_refusals", globals() | {"torch": torch})


# Keywords, and NumPy's numbers.


def test_a_boolean_of_numpy_is_not_a_number():
    with pytest.raises(TypeError, match=r"^Bernoulli: expected a number for keep, .*, got bool"):
        Bernoulli(keep=np.bool_(True))


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
    for row in re.findall(r"^\| (`(?:src|tests)/.*?) \|", (root / "CONTRIBUTING.md").read_text(), re.MULTILINE):
        places = re.findall(r"`(.*?)`", row)
        folder = places[0].rpartition("/")[0]
        assert all((root / place).exists() or (root / folder / place).exists() for place in places), row
