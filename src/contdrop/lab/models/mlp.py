"""Fully connected networks, such as the paper's 784-800-800-10 (Table I)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...choices import Activation, Scale
from ..methods import ACTIVATIONS, Method, hidden_layer, output_layer
from .spec import Model, network


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
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(f"MLP: expected at least two widths, each at least 1; got {self.widths}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"MLP: expected activation to be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")

    @property
    def hidden_layers(self) -> tuple[str, ...]:
        return tuple(f"hidden{number}" for number in range(1, len(self.widths) - 1))

    def build(self, method: Method, *, scale: Scale, input_keep: float = 1.0) -> nn.Module:
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        reads_hidden = False
        for name, before, units in zip(self.hidden_layers, self.widths, self.widths[1:]):
            layers[name] = hidden_layer(
                method, before, units, activation=self.activation, scale=scale, reads_hidden=reads_hidden
            )
            reads_hidden = True
        layers["output"] = output_layer(method, *self.widths[-2:], scale=scale, reads_hidden=reads_hidden)
        return network(layers, scale=scale, input_keep=input_keep)
