"""The network for SVHN and NORB: cuda-convnet's layers-conv-local-11pct with a fully connected layer on top."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from ...lab.study.methods import Method
from ..initialization import Initialisation, Layered
from .base import Model
from .local_layer import CrossMapNorm, LocalContrast, LocallyConnected2d

# The convolutions' and the hidden layer's are the paper's, the local layers' cuda-convnet's. The output layer's is our
# choice: the paper has 0.1 for every fully connected layer (docs/deviations.md).
_STDS = (
    ("convolution1", 0.01),
    ("convolution2", 0.01),
    ("local3", 0.04),
    ("local4", 0.04),
    ("hidden1", 0.1),
    ("output", 0.01),
)


@dataclass(frozen=True)
class ConvLocal(Model):
    """Two convolutions, two locally connected layers, and a hidden layer of ReLU units with the method.

    Attributes:
        image: Channels, height and width of the images.
        classes: Number of classes.
        maps: Of the two convolutions and the two local layers.
        hidden: Units with the method.
        local_contrast: Whether images are normalised over neighbourhoods first.
    """

    kind: ClassVar[str] = "conv-local"

    image: tuple[int, int, int] = (3, 28, 28)
    classes: int = 10
    maps: tuple[int, int, int, int] = (64, 64, 64, 32)
    hidden: int = 512
    local_contrast: bool = True
    initialisation: Initialisation = field(default_factory=lambda: Layered(_STDS))

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        channels, height, width = self.image
        first, second, third, fourth = self.maps
        # Each pooling rounds up: 28 becomes 14 and 7, 48 becomes 24 and 12.
        size = _pooled(_pooled(height)), _pooled(_pooled(width))
        layers: dict[str, nn.Module] = {"contrast": LocalContrast()} if self.local_contrast else {}
        layers |= {
            "convolution1": nn.Conv2d(channels, first, 5, padding=2),
            "activation1": nn.ReLU(),
            "pooling1": nn.MaxPool2d(3, 2, ceil_mode=True),
            "normalisation1": CrossMapNorm(),
            "convolution2": nn.Conv2d(first, second, 5, padding=2),
            "activation2": nn.ReLU(),
            "normalisation2": CrossMapNorm(),
            "pooling2": nn.MaxPool2d(3, 2, ceil_mode=True),
            "local3": LocallyConnected2d(second, third, size),
            "activation3": nn.ReLU(),
            "local4": LocallyConnected2d(third, fourth, size),
            "activation4": nn.ReLU(),
            "flatten": nn.Flatten(),
        }
        return layers | self._head(method, fourth * size[0] * size[1], self.hidden, self.classes)


def _pooled(side: int) -> int:
    """The side of a map after max-pooling by 3 with stride 2, rounded up."""
    return -(-(side - 3) // 2) + 1
