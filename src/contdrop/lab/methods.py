"""The dropout methods by name, and the one place that builds a layer with each.

A method has a text form that parses back, and missing parameters take their default::

    >>> str(parse("gaussian:sigma=0.3"))
    'gaussian:sigma=0.3'
    >>> str(parse("adaptive"))
    'adaptive:alpha=1,beta=0'

=================  ==================  ===============================================================================
name               parameters          what it does to a hidden layer
=================  ==================  ===============================================================================
none               (none)              nothing
bernoulli          keep=0.5            multiplies activations by 0 or 1
uniform            (none)              multiplies activations by U(0, 1)
gaussian           sigma=0.3           multiplies activations by N(0.5, sigma^2) clipped to [0, 1]
adaptive           alpha=1, beta=0     keeps unit j with probability sigmoid(alpha a_j + beta), a_j its pre-activation
dropconnect        keep=0.5            multiplies the layer's weights and biases by 0 or 1, anew for every example
fast               keep=0.5            as bernoulli, but drawn in the pre-activations of the layer that reads the units
bernoulli-matched  sigma=0.3           0 or one value, with that Gaussian's mean and relative variance: the control
=================  ==================  ===============================================================================

``variance`` may stand for ``sigma``: it is the variance before clipping, the other reading of the paper. The defaults
are the values the paper uses on ILSVRC, the one place where it states them.

What ``scale`` means:

- bernoulli, uniform, gaussian, bernoulli-matched, fast: "paper" multiplies by m in training and by E[m] in evaluation,
  "inverted" by m / E[m] and by 1. Fast dropout draws from the moments of just that.
- dropconnect: the same for the weights' and biases' masks; evaluation takes the expected activation of a Gaussian
  pre-activation whose moments are those of training ("analytic" inference).
- none, adaptive: no effect. Standout is not rescaled; evaluation multiplies by each unit's own probability.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from ..choices import Activation, Scale
from ..functional import check_choice
from ..laws import Bernoulli, Gaussian, Law, Uniform
from ..nn import AdaptiveDropout, DropConnectLinear, Dropout, FastDropoutLinear
from . import labels
from .labels import NAMES as NAMES
from .labels import Label

ACTIVATIONS = ("relu", "sigmoid")


@dataclass(frozen=True)
class Method(Label):
    """A dropout method with all its parameters, in the method's own order. Made by :func:`parse`."""

    @property
    def law(self) -> Law | None:
        """The law of a mask value: of a weight's for dropconnect, the one integrated out for fast, the constant 1 for
        none. None for adaptive, whose law differs from unit to unit.
        """
        match self.name, dict(self.parameters):
            case "none", _:
                return Bernoulli(keep=1.0)
            case "uniform", _:
                return Uniform()
            case _, {"keep": keep}:
                return Bernoulli(keep=keep)
            case "gaussian", strength:
                return _gaussian(strength)
            case "bernoulli-matched", strength:
                return Bernoulli.matching(_gaussian(strength))
        return None


def parse(text: str) -> Method:
    """Reads a method from its text form; raises UserError as :func:`contdrop.lab.labels.read` does."""
    label = labels.read(text)
    return Method(label.name, label.word, label.parameters)


def hidden_layer(
    method: Method, in_features: int, out_features: int, *, activation: Activation, scale: Scale, reads_hidden: bool
) -> nn.Module:
    """A linear layer with its activation and the method. Parameters are ``linear.weight`` and ``linear.bias`` always.

    Args:
        method: What to do to the layer.
        in_features: Number of inputs.
        out_features: Number of hidden units.
        activation: "relu" or "sigmoid".
        scale: "paper" or "inverted"; see the module.
        reads_hidden: Whether the inputs are units of a hidden layer that has the method too. Fast dropout on those
            units is drawn here, so what a hidden layer with fast dropout puts out is not masked itself.
    """
    check_choice("hidden_layer", "activation", activation, ACTIVATIONS)
    if method.name == "dropconnect":
        return _sequence(
            linear=DropConnectLinear(
                in_features, out_features, law=_law(method), scale=scale, inference="analytic", activation=activation
            )
        )
    linear = output_layer(method, in_features, out_features, scale=scale, reads_hidden=reads_hidden)
    if method.name == "adaptive":
        gate = dict(method.parameters)
        dropout = AdaptiveDropout(alpha=gate["alpha"], beta=gate["beta"])
        return _AdaptiveLayer(linear, _activation(activation), dropout)
    if method.name in ("none", "fast"):
        return _sequence(linear=linear, activation=_activation(activation))
    if activation == "relu":  # one pass for both
        return _sequence(linear=linear, dropout=Dropout(_law(method), scale=scale, activation="relu"))
    return _sequence(linear=linear, activation=_activation(activation), dropout=Dropout(_law(method), scale=scale))


def output_layer(
    method: Method, in_features: int, out_features: int, *, scale: Scale, reads_hidden: bool = True
) -> nn.Linear:
    """The linear layer that makes the logits: an ordinary one, unless the method acts on what it reads (fast)."""
    if method.name == "fast" and reads_hidden:
        return FastDropoutLinear(in_features, out_features, law=_law(method), scale=scale)
    return nn.Linear(in_features, out_features)


class _AdaptiveLayer(nn.Module):
    def __init__(self, linear: nn.Linear, activation: nn.Module, dropout: AdaptiveDropout) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        preactivation = self.linear(x)
        masked: Tensor = self.dropout(self.activation(preactivation), preactivation)
        return masked


def _sequence(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _activation(name: Activation) -> nn.Module:
    return nn.ReLU() if name == "relu" else nn.Sigmoid()


def _law(method: Method) -> Law:
    law = method.law
    assert law is not None, f"{method} has no law of its own"
    return law


def _gaussian(strength: dict[str, float]) -> Gaussian:
    return Gaussian.from_variance(**strength) if "variance" in strength else Gaussian(**strength)
