"""Initial weights of networks."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..lab.study.study import Configuration


class Initialization(Configuration, abc.ABC):
    """Distribution of initial weights; biases start at zero."""

    @torch.no_grad()
    def apply(self, network: nn.Module, generator: torch.Generator) -> None:
        """Set all parameters, in the network's order: the same numbers for networks that differ in method only."""
        for name, parameter in network.named_parameters():
            if parameter.dim() < 2:
                parameter.zero_()
            else:
                self._draw(parameter, generator, name.partition(".")[0])

    @abc.abstractmethod
    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None: ...


@dataclass(frozen=True)
class Normal(Initialization):
    """Weights from N(0, std^2)."""

    kind: ClassVar[str] = "normal"

    std: float = 0.01

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        weight.normal_(0, self.std, generator=generator)


@dataclass(frozen=True)
class Glorot(Initialization):
    """Weights uniform within +- gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010, equation 16).

    Caffe's filler called "xavier" is another one: uniform within +- sqrt(3 / fan_in).

    Attributes:
        gain: 4 for sigmoid units in the authors' MNIST code, as their derivative at 0 is a quarter of tanh's.
        zero_output: Whether the weights of the output layer are zero at first.
    """

    kind: ClassVar[str] = "glorot"

    gain: float = 1.0
    zero_output: bool = False

    def apply(self, network: nn.Module, generator: torch.Generator) -> None:
        super().apply(network, generator)
        if self.zero_output:
            nn.init.zeros_([parameter for parameter in network.parameters() if parameter.dim() > 1][-1])

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        nn.init.xavier_uniform_(weight, gain=self.gain, generator=generator)


@dataclass(frozen=True)
class Layered(Initialization):
    """Weights from N(0, std^2), with a std for each layer by its name."""

    kind: ClassVar[str] = "layered"

    stds: tuple[tuple[str, float], ...]

    def _draw(self, weight: Tensor, generator: torch.Generator, layer: str) -> None:
        weight.normal_(0, dict(self.stds)[layer], generator=generator)
