"""Base class of the networks."""

from __future__ import annotations

import abc
from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import nn

from ..._torch.checks import check_choice
from ...choices import SCALES, Scale
from ...lab.data.augmentation import Pixels
from ...lab.study.methods import Method, hidden_layer, output_layer
from ...lab.study.study import Configuration
from ...laws import Bernoulli
from ...nn import Dropout
from ..initialization import Initialization, Normal


@dataclass(frozen=True, kw_only=True)
class Model(Configuration, abc.ABC):
    """A network without its method: a frozen dataclass that, called with a method, gives the network with it.

    Networks take images [N, C, H, W], as whole numbers of which ``divisor`` is the largest or in floating point, and
    return logits [N, classes]. Names, shapes and order of their parameters do not depend on the method; the last weight
    is that of the output layer.

    Attributes:
        scale: "paper" or "inverted": how masks are scaled; see :mod:`contdrop.lab.study.methods`.
        input_keep: Probability of keeping a pixel. The paper says nothing of it; Hinton et al. report results with and
            without, and the authors' MNIST code has 0.8.
        whole_inputs: Names of the methods that see all pixels whatever ``input_keep`` is.
        initialisation: Weights at the start.
        divisor: What a pixel that is a whole number is divided by.
    """

    scale: Scale = "inverted"
    input_keep: float = 1.0
    whole_inputs: tuple[str, ...] = ()
    initialisation: Initialization = field(default_factory=Normal)
    divisor: float = 255.0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_choice(owner, "scale", self.scale, SCALES)
        if not 0 < self.input_keep <= 1 or not self.divisor > 0:
            raise ValueError(
                f"{owner}: expected 0 < input_keep <= 1 and divisor > 0; got {self.input_keep} and {self.divisor}"
            )

    def __call__(self, method: Method) -> nn.Module:
        """Build the network, with the method on its hidden layers.

        Its weights follow from the seed of torch's default generator, not from what was drawn since: building one
        method's layers may draw more than building another's.
        """
        layers: dict[str, nn.Module] = {"pixels": Pixels(self.divisor)}
        if self.input_keep < 1 and method.name not in self.whole_inputs:
            layers["input"] = Dropout(Bernoulli(keep=self.input_keep), scale=self.scale)
        network = nn.Sequential(OrderedDict(layers | self._layers(method)))
        self.initialisation.apply(network, torch.Generator().manual_seed(torch.initial_seed()))
        return network

    @abc.abstractmethod
    def _layers(self, method: Method) -> dict[str, nn.Module]:
        """Return the layers after the conversion to floating point, in order."""

    def _head(self, method: Method, inputs: int, hidden: int, classes: int) -> dict[str, nn.Module]:
        """Return the last layers of most networks: hidden ReLU units with the method, and the output layer."""
        return {
            "hidden1": hidden_layer(method, inputs, hidden, activation="relu", scale=self.scale, reads_hidden=False),
            "output": output_layer(method, hidden, classes, scale=self.scale),
        }
