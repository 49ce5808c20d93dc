"""VGG-16, configuration D (Simonyan and Zisserman, 2015), and its dense evaluation."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...choices import Scale
from ...lab.study.methods import Method, hidden_layer, output_layer
from ...lab.study.study import described_as
from .models import Model

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
        before: dict[str, nn.Module] = {"means": _Means(), "convolutions": nn.Sequential(convolutions)}
        return before | _dense(method, inputs, self.hidden, self.classes, self.scale)


@dataclass(frozen=True)
class VGGHead(Model):
    """The fully connected layers of :class:`VGG` alone, on what its convolutions make of images.

    Attributes:
        maps: Of the last convolution.
        side: Of these maps in training.
        hidden: Units of each hidden layer.
        classes: Number of classes.
    """

    kind: ClassVar[str] = "vgg-head"

    maps: int = 512
    side: int = 7
    hidden: int = 4096
    classes: int = 1000

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        return _dense(method, self.maps * self.side**2, self.hidden, self.classes, self.scale)


def _dense(method: Method, inputs: int, hidden: int, classes: int, scale: Scale) -> dict[str, nn.Module]:
    first, second = (
        hidden_layer(method, size, hidden, activation="relu", scale=scale, reads_hidden=after)
        for size, after in ((inputs, False), (hidden, True))
    )
    last = output_layer(method, hidden, classes, scale=scale)
    return {"flatten": nn.Flatten(), "fc6": first, "fc7": second, "fc8": last}


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
    """Return class probabilities [N, classes] of uncropped images, at least as large as in training.

    The hidden layers see every window of the last maps that is as large as those in training, as if they were
    convolutions; logits are averaged over the windows, and probabilities over the image and its mirror image.

    Args:
        network: Built by :class:`VGG`, with any method, or by :class:`VGGHead`.
        images: [N, 3, H, W]; or maps of images and of their mirror images, [N, 2, C, H, W].
    """
    both = images.unbind(1) if images.dim() == 5 else (last_maps(network, images), last_maps(network, images.flip(3)))
    return (_probabilities(network, both[0]) + _probabilities(network, both[1])) / 2


def last_maps(network: nn.Module, images: Tensor) -> Tensor:
    """Return the last maps of a :class:`VGG`'s convolutions for images [N, 3, H, W]."""
    for name in ("pixels", "means", "convolutions"):
        images = network.get_submodule(name)(images)
    return images


@described_as("dense_forward")
def dense_forward(model: nn.Module, batch: Any) -> Tensor:
    """Return the logits of crops in training, else the logarithm of :func:`dense_probabilities`.

    Images of one batch may differ in size; they are a list then.
    """
    images = batch[0]
    if model.training:
        logits: Tensor = model(images)
        return logits
    several = [images] if isinstance(images, Tensor) else [image[None] for image in images]
    found = torch.cat([dense_probabilities(model, each) for each in several])
    return found.clamp(min=torch.finfo(found.dtype).tiny).log()


def _probabilities(network: nn.Module, maps: Tensor) -> Tensor:
    dense = [network.get_submodule(name) for name in ("fc6", "fc7", "fc8")]
    inputs = dense[0].get_submodule("linear").in_features
    assert isinstance(inputs, int)
    side = math.isqrt(inputs // maps.shape[1])
    windows = F.unfold(maps, side).transpose(1, 2)  # [N, windows, inputs]
    logits = windows.reshape(-1, inputs)
    for layer in dense:
        logits = layer(logits)
    return logits.view(len(maps), windows.shape[1], -1).mean(1).softmax(1)
