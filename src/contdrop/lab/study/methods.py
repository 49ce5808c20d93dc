"""Dropout methods by name, and the layers that they build.

===================  ==================  ==============================================================================
name                 parameters          effect on a hidden layer
===================  ==================  ==============================================================================
none                 (none), or mean     none; with a mean, activations times that constant
bernoulli            keep=0.5, or r      activations times 0 or 1
uniform              (none), or r        activations times U(0, 1)
gaussian             sigma=0.3, or r     activations times N(0.5, sigma^2) clipped to [0, 1]
normal               r=1                 activations times N(1, r), not clipped
adaptive             alpha=1, beta=0     unit j kept with probability sigmoid(alpha a_j + beta), a_j its pre-activation
dropconnect          keep=0.5            weights and biases times 0 or 1, drawn for every example
fast                 keep=0.5            bernoulli, drawn in the pre-activations of the layer that reads the units
bernoulli-matched    sigma=0.3, or the   activations times 0 or one value, with mean and relative variance of that
                     word uniform        Gaussian, or of U(0, 1): the control of a continuous law
adaptive-authors     alpha=1, beta=0     adaptive, evaluated with 0.5 in place of each unit's probability
dropconnect-authors  keep=0.5            one mask per mini-batch on the weights, none on the biases; evaluated with the
                                         mean weights
original             (none)              none: the model with its own dropout
own                  a name              up to the study, whose ``model(method)`` or ``run(job)`` knows the name
===================  ==================  ==============================================================================

Those of the authors are what their MNIST code does; see docs/deviations.md. ``gaussian``, ``uniform`` and ``bernoulli``
take the word ``match`` too: each dropout layer of a model gets a law of its own noise strength, so that only the shape
of the mask differs; see :mod:`contdrop.lab.study.apply_method`.

``r`` is the relative variance Var(m) / E[m]^2, the strength of the noise, of a law with mean 1 / (1 + r), that of the
Bernoulli law of this strength. The uniform law reaches 1/3, the clipped Gaussian 0.66. ``variance`` may stand for
``sigma``: the variance before clipping. The defaults are the values that the paper uses on ILSVRC.

With ``scale="paper"`` laws multiply by m in training and by E[m] in evaluation; with "inverted" by m / E[m] and by 1.
So do the weights' and biases' masks of dropconnect, which evaluates the expected activation of a Gaussian
pre-activation, and the weights' masks of dropconnect-authors. Standout and ``none`` are not rescaled. The mean of an
unscaled mask changes the steps of the next layer's weights, so ``none:mean=0.5`` is the control of masks of mean 0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...choices import Activation, Scale
from ...errors import UserError
from ...laws import LAWS, Bernoulli, Gaussian, Law, Uniform
from ...nn import AdaptiveDropout, DropConnectLinear, FastDropoutLinear
from . import labels
from .labels import MATCH, ORIGINAL, OWN, Label
from .labels import NAMES as NAMES


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
        given = dict(self.parameters)
        if self.follows_the_model or self.name.startswith("adaptive"):
            return None
        if self.name == "none":
            return Bernoulli(keep=1.0, value=given.get("mean", 1.0))
        if self.name == "normal":
            return Gaussian.from_variance(given["r"], mu=1.0, low=-math.inf, high=math.inf)
        if "keep" in given:
            return Bernoulli(keep=given["keep"])
        if "r" in given:
            family: Any = LAWS[self.name]
            matched: Law = family.matching(Bernoulli(keep=1 / (1 + given["r"])))
            return matched
        if "uniform" in (self.name, self.word):
            law: Law = Uniform()
        else:
            law = Gaussian.from_variance(**given) if "variance" in given else Gaussian(**given)
        return Bernoulli.matching(law) if self.name == "bernoulli-matched" else law

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


def masked_linear(method: Method, activation: Activation, scale: Scale, **sizes: Any) -> nn.Linear:
    """Return a linear layer with fast dropout of its inputs, or with DropConnect or Standout and the activation."""
    if method.name == "fast":
        return FastDropoutLinear(**sizes, law=law_of(method), scale=scale)
    if method.name.startswith("adaptive"):
        return _AdaptiveLinear(method, activation, **sizes)
    of_the_authors = method.name == "dropconnect-authors"
    return DropConnectLinear(
        **sizes,
        law=law_of(method),
        masks="batch" if of_the_authors else "example",
        mask_bias=not of_the_authors,
        scale=scale,
        inference="mean" if of_the_authors else "analytic",
        activation=activation,
    )


class _AdaptiveLinear(nn.Linear):
    """A linear layer, its activation and Standout."""

    def __init__(self, method: Method, activation: Activation, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.activation = activation
        gate, of_the_authors = dict(method.parameters), method.name == "adaptive-authors"
        layer = _AuthorsAdaptiveDropout if of_the_authors else AdaptiveDropout
        self.dropout = layer(gate["alpha"], gate["beta"])  # a layer, so that Monte-Carlo prediction finds it

    def forward(self, x: Tensor) -> Tensor:
        preactivation = super().forward(x)
        units = torch.relu(preactivation) if self.activation == "relu" else torch.sigmoid(preactivation)
        masked: Tensor = self.dropout(units, preactivation)
        return masked


class _AuthorsAdaptiveDropout(AdaptiveDropout):
    """Standout evaluated with 0.5 in place of each unit's probability."""

    def forward(self, input: Tensor, preactivation: Tensor) -> Tensor:
        return super().forward(input, preactivation) if self.training else input * 0.5


def law_of(method: Method) -> Law:
    """Return the law of a method that has one."""
    law = method.law
    assert law is not None, f"{method} has no law of its own"
    return law
