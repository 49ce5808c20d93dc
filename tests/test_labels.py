"""The text form of methods and how they are shown, without torch."""

import pathlib
import subprocess
import sys

import pytest

import contdrop as cd
from contdrop.lab import labels, methods


def test_labels_need_no_torch_of_their_own():
    """Of the package only what the module imports, which is errors and text."""
    code = """
import importlib.util, pathlib, sys, types
root = pathlib.Path(sys.argv[1])
for name, path in (("contdrop", root), ("contdrop.lab", root / "lab")):
    package = types.ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package
from contdrop.lab import labels
print(labels.shown("gaussian:sigma=0.3"), labels.read("adaptive"), "torch" in sys.modules)
"""
    root = str(pathlib.Path(labels.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code, root], capture_output=True, encoding="utf-8", check=False
    )
    assert result.stdout == f"Gaussian {labels.SIGMA}=0.3 adaptive:alpha=1,beta=0 False\n", result.stderr


def test_default_width_is_the_law_s():
    assert dict(labels.read("gaussian").parameters) == {"sigma": cd.Gaussian().sigma}


@pytest.mark.parametrize("name", labels.NAMES)
def test_every_method_is_read_split_and_shown(name):
    read = labels.read(name)
    assert labels.split(str(read)) == read
    assert labels.base(str(read)) == name
    assert labels.shown(name) != name  # it has a usual name
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
    assert (label.name, dict(label.parameters)) == (name, parameters)


def test_words_are_shown_and_written():
    assert labels.shown("bernoulli-matched:uniform") == "Bernoulli, matched uniform"
    assert labels.shown("none:mean=0.5") == "No dropout mean=0.5"
    assert str(labels.split("bernoulli-matched:uniform")) == "bernoulli-matched:uniform"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("gaussian:sigma=0.3", 0.3),
        ("gaussian:variance=0.09", 0.3),
        ("gaussian", None),
        ("bernoulli-matched:sigma=0.3", None),
        ("gaussian:variance=-1", None),
    ],
)
def test_width_of_a_gaussian(text, width):
    assert labels.gaussian_width(text) == (None if width is None else pytest.approx(width))
