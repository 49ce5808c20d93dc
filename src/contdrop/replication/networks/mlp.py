"""Fully connected networks, such as the paper's 784-800-800-10 (Table I)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...choices import Activation
from ...lab.study.methods import ACTIVATIONS, Method, hidden_layer, output_layer
from .base import Model


@dataclass(frozen=True)
class MLP(Model):
    """A fully connected network.

    Attributes:
        widths: Numbers of inputs, of units in each hidden layer, and of classes.
        activation: "relu" or "sigmoid", of the hidden layers.
    """

    kind: ClassVar[str] = "mlp"

    widths: tuple[int, ...] = (784, 800, 800, 10)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(f"MLP: expected at least two widths, each at least 1; got {self.widths}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"MLP: expected activation to be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")

    @property
    def hidden_layers(self) -> tuple[str, ...]:
        """Names of the modules that put out the activations, after dropout, of each hidden layer."""
        return tuple(f"hidden{number}" for number in range(1, len(self.widths) - 1))

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        reads_hidden = False
        for name, before, units in zip(self.hidden_layers, self.widths, self.widths[1:]):
            layers[name] = hidden_layer(
                method, before, units, activation=self.activation, scale=self.scale, reads_hidden=reads_hidden
            )
            reads_hidden = True
        layers["output"] = output_layer(method, *self.widths[-2:], scale=self.scale, reads_hidden=reads_hidden)
        return layers
