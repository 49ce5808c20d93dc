"""Network in Network for CIFAR-10, as in the Caffe model zoo; its layers keep their names there."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from ...lab.study.methods import Method
from ..initialization import Glorot, Initialization
from .base import Model
from .cnn import ChannelsLast

# Of each stage, its convolutions: name, maps and side of the kernel. All are padded to keep the size of a map.
_STAGES = (
    (("conv1", 192, 5), ("cccp1", 160, 1), ("cccp2", 96, 1)),
    (("conv2", 192, 5), ("cccp3", 192, 1), ("cccp4", 192, 1)),
    (("conv3", 192, 3), ("cccp5", 192, 1), ("cccp6", 10, 1)),
)
MAPS, SIDE = 10, 8  # what the last convolution puts out


def convolutions() -> dict[str, nn.Module]:
    """Return the layers from images [N, 3, 32, 32] to rectified maps [N, 10, 8, 8]."""
    layers: dict[str, nn.Module] = {"layout": ChannelsLast()}
    channels = 3
    for number, stage in enumerate(_STAGES, 1):
        for name, maps, kernel in stage:
            layers[name] = nn.Conv2d(channels, maps, kernel, padding=kernel // 2)
            layers[f"relu_{name}"] = nn.ReLU(inplace=True)
            channels = maps
        if number == 1:
            layers["pool1"] = nn.MaxPool2d(3, 2, ceil_mode=True)
        elif number == 2:
            layers["pool2"] = nn.AvgPool2d(3, 2, ceil_mode=True)
    return layers


def published_nin() -> nn.Sequential:
    """Return the network as it was published, without its dropout: a class's logit is the mean of its map."""
    return nn.Sequential(OrderedDict(convolutions() | {"pool3": nn.AvgPool2d(SIDE), "flatten": nn.Flatten()}))


@dataclass(frozen=True)
class NIN(Model):
    """The convolutions of the published network, and in the place of its last pooling a hidden layer with the method.

    Attributes:
        hidden: Units with the method.
        divided: What the last maps are divided by: about their root mean square over the training images, with the
            published weights. As they come, training at the paper's rate does not get anywhere.
    """

    kind: ClassVar[str] = "nin"

    hidden: int = 128
    divided: float = 33.0
    initialisation: Initialization = field(default_factory=Glorot)

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers = convolutions() | {"flatten": nn.Flatten(), "divided": _Divided(self.divided)}
        return layers | self._head(method, MAPS * SIDE * SIDE, self.hidden, MAPS)


class _Divided(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return x / self.divisor
