"""What a network's weights are before training."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .configuration import Configuration


class Initialisation(Configuration, abc.ABC):
    """How weights are drawn; biases start at zero."""

    @torch.no_grad()
    def apply(self, network: nn.Module, generator: torch.Generator) -> None:
        """Sets all parameters, in the network's order: the same numbers for networks that differ in method only."""
        for parameter in network.parameters():
            if parameter.dim() < 2:
                parameter.zero_()
            else:
                self._draw(parameter, generator)

    @abc.abstractmethod
    def _draw(self, weight: Tensor, generator: torch.Generator) -> None: ...


@dataclass(frozen=True)
class Normal(Initialisation):
    """Weights from N(0, std^2)."""

    kind: ClassVar[str] = "normal"

    std: float = 0.01

    def _draw(self, weight: Tensor, generator: torch.Generator) -> None:
        weight.normal_(0, self.std, generator=generator)


@dataclass(frozen=True)
class Glorot(Initialisation):
    """Weights uniform within +- sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010, equation 16)."""

    kind: ClassVar[str] = "glorot"

    def _draw(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.xavier_uniform_(weight, generator=generator)
