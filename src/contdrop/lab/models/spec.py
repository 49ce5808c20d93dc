"""What every description of a network can do."""

from __future__ import annotations

import abc
from collections import OrderedDict

from torch import nn

from ...choices import Scale
from ...laws import Bernoulli
from ...nn import Dropout
from ..configuration import Configuration
from ..methods import Method


class Model(Configuration, abc.ABC):
    """A network without its method: a frozen dataclass that builds it with any.

    Networks take images [N, C, H, W] in float32 and return logits [N, classes]. Names, shapes and order of their
    parameters do not depend on the method; the last weight is that of the output layer.
    """

    @property
    @abc.abstractmethod
    def hidden_layers(self) -> tuple[str, ...]:
        """Names of the modules that put out the activations, after dropout, of each hidden layer with the method."""

    @abc.abstractmethod
    def build(self, method: Method, *, scale: Scale, input_keep: float = 1.0) -> nn.Module:
        """The network, with the method on its hidden layers.

        Args:
            method: What to do to the hidden layers.
            scale: "paper" or "inverted"; see :mod:`contdrop.lab.methods`.
            input_keep: Probability of keeping a pixel, the same for every method; 1 leaves the images alone.
        """


def network(layers: dict[str, nn.Module], *, scale: Scale, input_keep: float) -> nn.Sequential:
    """The layers one after another, behind a dropout of the pixels if there is to be one."""
    if input_keep < 1:
        layers = {"input": Dropout(Bernoulli(keep=input_keep), scale=scale), **layers}
    return nn.Sequential(OrderedDict(layers))
