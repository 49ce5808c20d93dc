"""Labels of methods and their names in reports, without torch.

A label is a name, or a name, a colon and a word or parameters, such as ``gaussian``, ``gaussian:sigma=0.3`` and
``gaussian:match``; ``own:mixup`` is a study's own method. :func:`read` checks the labels of methods and fills in
defaults; :func:`split` takes any text that a store may have. Reports show :func:`name_in_text` and
:func:`display_name`, not labels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from ..._text import parse_label
from ..._text import printable as printable
from ...errors import UserError, suggest

ORIGINAL, MATCH, OWN = "original", "match", "own"
SIGMA, ALPHA = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER ALPHA}"
_HALF, _NARROW, _GATE = {"keep": 0.5}, {"sigma": 0.3}, {"alpha": 1.0, "beta": 0.0}


class _Kind(NamedTuple):
    """A method's name within a sentence, without commas, and what may follow its name in a label."""

    called: str
    parameters: dict[str, float]  # with their defaults, in the order in which they are written
    instead: tuple[str, ...] = ()  # parameters that replace these
    words: tuple[str, ...] = ()  # words that replace them


_METHODS = {
    "none": _Kind("no dropout", {}, ("mean",)),
    "bernoulli": _Kind("Bernoulli", _HALF, ("r",), (MATCH,)),
    "uniform": _Kind("uniform", {}, ("r",), (MATCH,)),
    "gaussian": _Kind("Gaussian", _NARROW, ("variance", "r"), (MATCH,)),
    "normal": _Kind("normal", {"r": 1.0}),
    "adaptive": _Kind("adaptive", _GATE),
    "dropconnect": _Kind("DropConnect", _HALF),
    "fast": _Kind("fast dropout", _HALF),
    "bernoulli-matched": _Kind("matched Bernoulli", _NARROW, ("variance",), ("uniform",)),
    "adaptive-authors": _Kind("authors' adaptive", _GATE),
    "dropconnect-authors": _Kind("authors' DropConnect", _HALF),
    ORIGINAL: _Kind("original dropout", {}),
}
# Methods that need no model with dropout layers.
NAMES: tuple[str, ...] = tuple(name for name in _METHODS if name != ORIGINAL)
_KNOWN = {name: [*kind.parameters, *kind.instead] for name, kind in _METHODS.items()}
_WORDS = {name: kind.words for name, kind in _METHODS.items()}
# Largest noise strengths. Beyond its own, more than half of the values of a clipped Gaussian are at the bounds.
REACH = {"uniform": 1 / 3, "gaussian": 0.6567}
_CALLED_WORDS = {MATCH: "{} of equal strength", "uniform": "uniform-{}"}
_SYMBOLS = {"sigma": SIGMA, "variance": f"{SIGMA}²", "alpha": ALPHA, "beta": "β"}
_SYMBOLS |= {name: name for name in ("r", "keep", "mean")}


@dataclass(frozen=True)
class Label:
    """Parts of a label."""

    name: str
    word: str = ""  # what stands in place of parameters
    parameters: tuple[tuple[str, float], ...] = ()  # in the method's own order

    def __str__(self) -> str:
        written = self.word or ",".join(f"{name}={repr(value).removesuffix('.0')}" for name, value in self.parameters)
        return f"{self.name}:{written}" if written else self.name


def read(text: str) -> Label:
    """Parse the label of a method; parameters that are not given have their defaults.

    >>> str(read("gaussian")), str(read(" Adaptive : beta = 0.50"))
    ('gaussian:sigma=0.3', 'adaptive:alpha=1,beta=0.5')

    Raises:
        UserError: The text is malformed, or names an unknown method or parameter, or a value that is out of range.
    """
    is_own = text.partition(":")[0].strip().lower() == OWN
    name, word = (OWN, _own_name(text)) if is_own else _word(text)
    if word:
        return Label(name, word)
    try:
        name, found = parse_label(text, _KNOWN, "method")
    except ValueError as error:
        raise UserError(str(error)) from error
    given = {parameter: _checked(text, name, parameter, value) for parameter, value in found.items()}
    if "r" in given and len(given) > 1:
        raise UserError(f"give r or {next(iter(given.keys() - {'r'}))}, not both, in {text!r}")
    if name == "none" and given.get("mean") == 1:
        given = {}  # a mask of ones is no mask
    kind = _METHODS[name]
    return Label(name, "", tuple((kind.parameters | given if given.keys().isdisjoint(kind.instead) else given).items()))


def _own_name(text: str) -> str:
    """Return the name of a study's own method, in its own letters."""
    word = text.partition(":")[2].strip()
    if not re.fullmatch(r"\w[\w .+-]{0,39}", word):
        raise UserError(
            f"expected own: and a name of at most 40 letters, digits, dots and dashes, such as own:mixup; got {text!r}"
        )
    if word.lower() in _METHODS:
        raise UserError(
            f"expected another name behind own: than that of a method, got {text!r}; leave own: out, or rename it"
        )
    return word


def _word(text: str) -> tuple[str, str]:
    """Return name and word of a label; the word is empty if there is none."""
    name, _, rest = (part.strip().lower() for part in text.partition(":"))
    words = _WORDS.get(name, ())
    if rest in words:
        return name, rest
    if words and rest and "=" not in rest and rest not in _KNOWN[name]:
        hint = suggest(rest, [*_KNOWN[name], *words])
        raise UserError(f"{name} has no parameter {rest!r} in {text!r}; {hint}")
    return name, ""


def _checked(text: str, name: str, parameter: str, value: float) -> float:
    if parameter == "keep":
        inside, expected = 0 < value <= 1, "a probability above 0 and at most 1"
    elif parameter in ("sigma", "variance"):
        inside, expected = 0 <= value < math.inf, "a finite number of at least 0"
    elif parameter == "r" and name in REACH:
        inside, expected = 0 < value <= REACH[name] * (1 + 1e-9), f"a number above 0 and at most {REACH[name]:.4g}"
    elif parameter in ("mean", "r"):
        inside, expected = 0 < value < math.inf, "a finite number above 0"
    else:
        inside, expected = math.isfinite(value), "a finite number"
    if not inside:
        raise UserError(f"method {text!r}: expected {expected} for {parameter}; got {value:g}")
    return value + 0.0  # no negative zero: equal methods are written alike


def split(text: str) -> Label:
    """Split any text into the parts of a label; text of another form is all name.

    >>> split("adaptive:alpha=1,beta=0").parameters
    (('alpha', 1.0), ('beta', 0.0))
    """
    name, _, rest = text.partition(":")
    if rest and (name == OWN or rest in _WORDS.get(name, ())):
        return Label(name, rest)
    try:
        name, given = parse_label(text)
    except ValueError:
        return Label(text)
    return Label(name, "", tuple(given.items()))


def base(text: str) -> str:
    """Return the name in a label; a study's own method is all name."""
    label = split(text)
    return text if label.name == OWN else label.name


def without_factor(text: str) -> tuple[str, str]:
    """Split a candidate's label from the factor of its learning rate, if any.

    Example:
        >>> without_factor("gaussian:sigma=0.2@0.5"), without_factor("none")
        (('gaussian:sigma=0.2', '0.5'), ('none', ''))
    """
    label, _, factor = text.partition("@")
    return label, factor


def gaussian_width(text: str) -> float | None:
    """Return the standard deviation, before clipping, in a label such as "gaussian:variance=0.09"; else None."""
    label = split(text)
    if label.name != "gaussian":
        return None
    given = dict(label.parameters)
    return given["variance"] ** 0.5 if given.get("variance", -1.0) >= 0 else given.get("sigma")


def name_in_text(text: str, *, longest: int = 60) -> str:
    """Return a method's name within a sentence, with parameters; unknown labels are printed safely.

    Example:
        >>> name_in_text("none"), name_in_text("bernoulli-matched:uniform")
        ('no dropout', 'uniform-matched Bernoulli')
    """
    label = split(text)
    if not _is_known(label):
        return shorten(printable(label.word or text), longest)
    name = _CALLED_WORDS.get(label.word, "{}").format(_METHODS[label.name].called)
    return " ".join([name, *(f"{_SYMBOLS[parameter]}={value:g}" for parameter, value in label.parameters)])


def display_name(text: str, *, longest: int = 28) -> str:
    """Return a method's name at the beginning of a sentence or on its own.

    Example:
        >>> display_name("none"), display_name("bernoulli-matched:sigma=0.3"), display_name("my own")
        ('No dropout', 'Matched Bernoulli σ=0.3', 'my own')
    """
    name = name_in_text(text, longest=longest)
    return name[:1].upper() + name[1:] if _is_known(split(text)) else name


def _is_known(label: Label) -> bool:
    return label.name in _METHODS and all(parameter in _SYMBOLS for parameter, _ in label.parameters)


def shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
