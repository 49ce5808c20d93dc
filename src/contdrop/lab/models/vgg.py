"""VGG-16, configuration D (Simonyan and Zisserman, 2015), and its dense evaluation."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..methods import Method, hidden_layer, output_layer
from .spec import Model

_D = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_MEANS = (103.939, 116.779, 123.68)  # blue, green, red


@dataclass(frozen=True)
class VGG(Model):
    """Stages of 3x3 convolutions, each with ReLU and 2x2 max-pooling; two hidden layers with the method; softmax.

    Layers are called as in the published Caffe model, whose weights expect blue, green and red from 0 to 255 without
    their means: the layer ``means`` makes that of the images.

    Attributes:
        stages: Of each, the maps of its convolutions.
        hidden: Units of each hidden layer.
        classes: Number of classes.
        side: Of the images in training.
    """

    kind: ClassVar[str] = "vgg"

    stages: tuple[tuple[int, ...], ...] = _D
    hidden: int = 4096
    classes: int = 1000
    side: int = 224
    divisor: float = 1.0

    @property
    def hidden_layers(self) -> tuple[str, ...]:
        return ("fc6", "fc7")

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        convolutions: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 3
        for number, stage in enumerate(self.stages, 1):
            for place, maps in enumerate(stage, 1):
                convolutions[f"conv{number}_{place}"] = nn.Conv2d(channels, maps, 3, padding=1)
                convolutions[f"relu{number}_{place}"] = nn.ReLU(inplace=True)
                channels = maps
            convolutions[f"pool{number}"] = nn.MaxPool2d(2)
        inputs = channels * (self.side // 2 ** len(self.stages)) ** 2
        first, second = (
            hidden_layer(method, size, self.hidden, activation="relu", scale=self.scale, reads_hidden=after)
            for size, after in ((inputs, False), (self.hidden, True))
        )
        return {
            "means": _Means(),
            "convolutions": nn.Sequential(convolutions),
            "flatten": nn.Flatten(),
            "fc6": first,
            "fc7": second,
            "fc8": output_layer(method, self.hidden, self.classes, scale=self.scale),
        }


class _Means(nn.Module):
    """Red, green and blue from 0 to 255 to blue, green and red without their means."""

    means: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor(_MEANS).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(1) - self.means


@torch.no_grad()
def dense_probabilities(network: nn.Module, images: Tensor) -> Tensor:
    """Class probabilities [N, classes] of whole images, of any size from that of training on, in evaluation mode.

    The hidden layers see every window of the last maps that is as large as those in training, as if they were
    convolutions; logits are averaged over the windows, and probabilities over the image and its mirror image.

    Args:
        network: Built by :class:`VGG`, with any method.
        images: [N, 3, H, W].
    """
    return (_probabilities(network, images) + _probabilities(network, images.flip(3))) / 2


def _probabilities(network: nn.Module, images: Tensor) -> Tensor:
    pixels, means, convolutions, *dense = (
        network.get_submodule(name) for name in ("pixels", "means", "convolutions", "fc6", "fc7", "fc8")
    )
    maps: Tensor = convolutions(means(pixels(images)))
    inputs = dense[0].get_submodule("linear").in_features
    assert isinstance(inputs, int)
    side = math.isqrt(inputs // maps.shape[1])
    windows = F.unfold(maps, side).transpose(1, 2)  # [N, windows, inputs]
    logits = windows.reshape(-1, inputs)
    for layer in dense:
        logits = layer(logits)
    return logits.view(len(images), windows.shape[1], -1).mean(1).softmax(1)
