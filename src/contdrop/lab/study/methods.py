"""Dropout methods by name, and the layers that they build.

A method has a text form that parses back, and missing parameters take their default::

    >>> str(parse("gaussian:sigma=0.3"))
    'gaussian:sigma=0.3'
    >>> str(parse("adaptive"))
    'adaptive:alpha=1,beta=0'

===================  ==================  ==============================================================================
name                 parameters          what it does to a hidden layer
===================  ==================  ==============================================================================
none                 (none), or mean     nothing; with a mean, multiplies activations by that constant
bernoulli            keep=0.5, or r      multiplies activations by 0 or 1
uniform              (none), or r        multiplies activations by U(0, 1)
gaussian             sigma=0.3, or r     multiplies activations by N(0.5, sigma^2) clipped to [0, 1]
normal               r=1                 multiplies activations by N(1, r), not clipped
adaptive             alpha=1, beta=0     keeps unit j with probability sigmoid(alpha a_j + beta), a_j its
                                         pre-activation
dropconnect          keep=0.5            multiplies the layer's weights and biases by 0 or 1, anew for every example
fast                 keep=0.5            as bernoulli, but drawn in the pre-activations of the layer that reads the
                                         units
bernoulli-matched    sigma=0.3, or the   0 or one value, with the mean and the relative variance of that Gaussian, or
                     word uniform        of U(0, 1): the control of a continuous law
adaptive-authors     alpha=1, beta=0     as adaptive, but evaluated with 0.5 in place of each unit's probability
dropconnect-authors  keep=0.5            one mask per mini-batch on the weights, none on the biases; evaluated with the
                                         mean weights
original             (none)              nothing: the model with its own dropout, for models that have some
own                  a name              whatever the study does: its ``model(method)`` or ``run(job)`` knows the name
===================  ==================  ==============================================================================

Those of the authors are what their MNIST code does; see docs/deviations.md.

``gaussian``, ``uniform`` and ``bernoulli`` take the word ``match`` too: each dropout layer of a model gets a law of its
own noise strength, so that the shape of the mask is all that differs.
:mod:`contdrop.lab.study.apply_method` puts methods into
such models.

With unscaled masks the mean of a mask matters as much as its variance: it multiplies what the next layer reads, and so
the steps of that layer's weights. A control therefore has both of what it controls, and ``none:mean=0.5`` is the
network without noise whose units are as large as under a mask of mean 0.5. With masks scaled to mean one it would be
``none``, and is refused.

``r`` is the relative variance Var(m) / E[m]^2, the strength of the noise. A law of that strength has the mean of the
Bernoulli law that has it, 1 / (1 + r), so ``bernoulli:r=0.3``, ``gaussian:r=0.3`` and ``uniform:r=0.3`` differ in the
shape of the mask alone; with masks scaled to mean one ``normal:r=0.3`` does too. The uniform law reaches 1/3, the
clipped Gaussian 0.65.

``variance`` may stand for ``sigma``: it is the variance before clipping, the other reading of the paper. The defaults
are the values the paper uses on ILSVRC, the one place where it states them.

What ``scale`` means:

- bernoulli, uniform, gaussian, normal, bernoulli-matched, fast: "paper" multiplies by m in training and by E[m] in
  evaluation, "inverted" by m / E[m] and by 1. Fast dropout draws from the moments of just that.
- dropconnect: the same for the weights' and biases' masks; evaluation takes the expected activation of a Gaussian
  pre-activation whose moments are those of training ("analytic" inference).
- dropconnect-authors: the same for the weights' masks.
- none, adaptive, adaptive-authors: no effect. Standout is not rescaled; evaluation multiplies by each unit's own
  probability.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..._torch.checks import check_choice
from ...choices import Activation, Scale
from ...errors import UserError
from ...laws import Bernoulli, Gaussian, Law, Uniform
from ...nn import AdaptiveDropout, DropConnectLinear, Dropout, FastDropoutLinear
from . import labels
from .labels import MATCH, ORIGINAL, OWN, Label
from .labels import NAMES as NAMES

ACTIVATIONS = ("relu", "sigmoid")


@dataclass(frozen=True)
class Method(Label):
    """A dropout method with all its parameters in order, from :func:`parse`."""

    fingerprinted_as: ClassVar[str] = "contdrop.lab.methods.Method"

    @property
    def law(self) -> Law | None:
        """The law of a mask value; None for adaptive, whose law differs between units, and methods that follow the
        model.

        For dropconnect it is the law of a weight, for fast the one integrated out, for none a constant.
        """
        if self.follows_the_model:
            return None
        match self.name, dict(self.parameters):
            case "none", parameters:
                return Bernoulli(keep=1.0, value=parameters.get("mean", 1.0))
            case "normal", {"r": r}:
                return Gaussian.from_variance(r, mu=1.0, low=-math.inf, high=math.inf)
            case name, {"r": r}:
                return _SHAPES[name](Bernoulli(keep=1 / (1 + r)))
            case "uniform", _:
                return Uniform()
            case _, {"keep": keep}:
                return Bernoulli(keep=keep)
            case "gaussian", strength:
                return _gaussian(strength)
            case "bernoulli-matched", strength:
                return Bernoulli.matching(Uniform() if self.word else _gaussian(strength))
        return None

    @property
    def follows_the_model(self) -> bool:
        """True if the noise is that of the model's layers, of their strength, or the study's own."""
        return self.name in (ORIGINAL, OWN) or self.word == MATCH

    def noise(self, scale: Scale) -> dict[str, float]:
        """Return mean and relative variance of the factors in training; empty if there is no law."""
        return {} if self.law is None else noise_of(self.law, scale)


def noise_of(law: Law, scale: Scale) -> dict[str, float]:
    """Return mean and relative variance of masks; two methods of equal noise share both."""
    return {"mean": law.mean if scale == "paper" else 1.0, "relative_variance": law.relative_variance}


def parse(text: str) -> Method:
    """Parse a method; raises UserError as :func:`contdrop.lab.study.labels.read` does."""
    label = labels.read(text)
    return Method(label.name, label.word, label.parameters)


def check_scale(method: Method, scale: Scale) -> None:
    """Raise an error for a method that is another one with masks scaled like that."""
    if method.name == "none" and method.parameters and scale == "inverted":
        raise UserError(f"{method}: expected masks that are not rescaled; with scale inverted it is none: leave it out")


def hidden_layer(
    method: Method, in_features: int, out_features: int, *, activation: Activation, scale: Scale, reads_hidden: bool
) -> nn.Module:
    """Return a linear layer with activation and method; parameters are ``linear.weight`` and ``linear.bias``.

    It ``reads_hidden`` if its inputs are units of a hidden layer that has the method too. Fast dropout on those units
    is drawn here, so what a hidden layer with fast dropout puts out is not masked itself.
    """
    check_choice("hidden_layer", "activation", activation, ACTIVATIONS)
    if method.follows_the_model:
        raise UserError(
            f"{method}: expected a model with dropout layers of its own, got one that has none; leave it out"
        )
    check_scale(method, scale)
    if method.name in ("dropconnect", "dropconnect-authors"):
        options = dropconnect_options(method, activation, scale)
        return _sequence(linear=DropConnectLinear(in_features, out_features, **options))
    linear = output_layer(method, in_features, out_features, scale=scale, reads_hidden=reads_hidden)
    if method.name in ("adaptive", "adaptive-authors"):
        return _AdaptiveLayer(linear, _activation(activation), method)
    if method.name == "fast" or method == Method("none"):
        return _sequence(linear=linear, activation=_activation(activation))
    if activation == "relu":  # one pass for both
        return _sequence(linear=linear, dropout=Dropout(law_of(method), scale=scale, activation="relu"))
    return _sequence(linear=linear, activation=_activation(activation), dropout=Dropout(law_of(method), scale=scale))


def output_layer(
    method: Method, in_features: int, out_features: int, *, scale: Scale, reads_hidden: bool = True
) -> nn.Linear:
    """Return the layer that makes the logits: linear, unless the method acts on its inputs (fast)."""
    if method.name == "fast" and reads_hidden:
        return FastDropoutLinear(in_features, out_features, law=law_of(method), scale=scale)
    return nn.Linear(in_features, out_features)


class _AdaptiveLayer(nn.Module):
    """A linear layer, its activation and Standout."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, method: Method) -> None:
        super().__init__()
        self.linear, self.activation, self.dropout = linear, activation, adaptive_dropout(method)

    def forward(self, x: Tensor) -> Tensor:
        preactivation = self.linear(x)
        masked: Tensor = self.dropout(self.activation(preactivation), preactivation)
        return masked


def adaptive_dropout(method: Method) -> AdaptiveDropout:
    """Return the method's Standout layer."""
    gate = dict(method.parameters)
    layer = _AuthorsAdaptiveDropout if method.name == "adaptive-authors" else AdaptiveDropout
    return layer(gate["alpha"], gate["beta"])


class _AuthorsAdaptiveDropout(AdaptiveDropout):
    """Standout evaluated with 0.5 in place of each unit's probability."""

    def forward(self, input: Tensor, preactivation: Tensor) -> Tensor:
        return super().forward(input, preactivation) if self.training else input * 0.5


def _sequence(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _activation(name: Activation) -> nn.Module:
    return nn.ReLU() if name == "relu" else nn.Sigmoid()


def dropconnect_options(method: Method, activation: Activation, scale: Scale) -> dict[str, Any]:
    of_the_authors = method.name == "dropconnect-authors"
    return {
        "law": law_of(method),
        "masks": "batch" if of_the_authors else "example",
        "mask_bias": not of_the_authors,
        "scale": scale,
        "inference": "mean" if of_the_authors else "analytic",
        "activation": activation,
    }


def law_of(method: Method) -> Law:
    law = method.law
    assert law is not None, f"{method} has no law of its own"
    return law


_SHAPES: dict[str, Callable[[Law], Law]] = {
    "bernoulli": Bernoulli.matching,
    "uniform": Uniform.matching,
    "gaussian": Gaussian.matching,
}


def _gaussian(strength: dict[str, float]) -> Gaussian:
    return Gaussian.from_variance(**strength) if "variance" in strength else Gaussian(**strength)
