"""The text form of methods and how they are shown, without torch."""

import pytest

import contdrop as cd
from contdrop.lab.study import labels, methods
from refusals import refusal


def test_default_width_is_the_law_s():
    assert dict(labels.read("gaussian").parameters) == {"sigma": cd.Gaussian().sigma}


@pytest.mark.parametrize("name", labels.NAMES)
def test_every_method_is_read_split_and_shown(name):
    read = labels.read(name)
    assert labels.split(str(read)) == read
    assert labels.base(str(read)) == name
    assert labels.display_name(name) != name  # it has a usual name
    assert str(methods.parse(name)) == str(read)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("gaussian:variance=0.2", "gaussian", {"variance": 0.2}),
        ("mine:a=1,b=-2", "mine", {"a": 1.0, "b": -2.0}),
        ("bernoulli-matched:uniform", "bernoulli-matched", {}),
        ("none:mean=0.5", "none", {"mean": 0.5}),
        ("gaussian:oops", "gaussian:oops", {}),
        ("a:b:c", "a:b:c", {}),
        ("", "", {}),
    ],
)
def test_any_text_is_split(text, name, parameters):
    label = labels.split(text)
    assert (str(label), label.name, dict(label.parameters)) == (text, name, parameters)


WIDTHS = {"gaussian:sigma=0.3": 0.3, "gaussian:variance=0.09": 0.3, "gaussian": None, "gaussian:r=0.3": None}
WIDTHS |= {"bernoulli-matched:sigma=0.3": None, "gaussian:variance=-1": None}


@pytest.mark.parametrize(("text", "width"), WIDTHS.items())
def test_width_of_a_gaussian(text, width):
    assert labels.gaussian_width(text) == (None if width is None else pytest.approx(width))


NAMED = [
    *["none", "none:mean=0.5", "bernoulli:keep=0.5", "uniform", "gaussian:match", "uniform:match", "gaussian:r=0.3"],
    *["bernoulli-matched:sigma=0.3", "normal:r=4", "original", "bernoulli-matched:uniform", "dropconnect-authors"],
    *["my own", "uniform:oops", "gaussian:a=1", "a\x1b[2Jb"],
]


def test_names_in_a_sentence_and_on_their_own(snapshot):
    lines = [f"{text!r}: {labels.name_in_text(text)}, {labels.display_name(text)}\n" for text in NAMED]
    snapshot("names_of_methods", "".join(lines))


def test_no_two_methods_have_one_name_and_none_has_a_comma():
    """Names stand in lists, and all that is said of a method is said of its name."""
    texts = [*labels.NAMES, "original", "bernoulli-matched:uniform", "none:mean=0.5", "adaptive:alpha=1,beta=0.5"]
    texts += [f"{name}:match" for name in ("bernoulli", "uniform", "gaussian")]
    names = [labels.name_in_text(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert not any("," in name for name in names)


def test_a_study_s_own_method_is_called_as_it_is_written():
    read = labels.read(" Own : Mixup 0.2 ")
    assert str(read) == "own:Mixup 0.2"
    assert labels.split(str(read)) == read
    assert labels.name_in_text(str(read)) == labels.display_name(str(read)) == "Mixup 0.2"
    assert labels.base(str(read)) == "own:Mixup 0.2"


@pytest.mark.parametrize(
    "text", ["own", "own:", "own: ", "own:a,b", "own:a@2", "own:a:b", "own:uniform", "own:" + "x" * 41]
)
def test_a_study_s_own_method_needs_a_name(text):
    assert refusal(labels.read, text).startswith("expected ")


def test_long_names_of_others_are_cut():
    assert labels.name_in_text("x" * 80) == labels.display_name("x" * 80, longest=60) == "x" * 59 + "…"
    assert labels.name_in_text("bernoulli-matched:uniform", longest=5) == "uniform-matched Bernoulli"
