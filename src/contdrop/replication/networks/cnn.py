"""The convolutional network of the paper's Tables II and III."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...lab.study.methods import Method
from .base import Model


@dataclass(frozen=True)
class CNN(Model):
    """Convolutions, each with ReLU and 2x2 max-pooling, then a hidden layer of ReLU units with the method, and softmax.

    The paper gives maps and hidden units; kernel size and pooling are those of Caffe's LeNet, without padding.

    Attributes:
        maps: Number of feature maps of each convolution.
        kernel: Side of the kernels.
        hidden: Units in the fully connected hidden layer.
        classes: Number of classes.
        image: Channels, height and width of the images.
    """

    kind: ClassVar[str] = "cnn"

    maps: tuple[int, ...] = (32, 64)
    kernel: int = 5
    hidden: int = 150
    classes: int = 10
    image: tuple[int, int, int] = (1, 28, 28)

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self._size_after_convolutions()
        if height < 1 or width < 1:
            raise ValueError(
                f"CNN: nothing is left of images {self.image} after {len(self.maps)} convolutions with kernels of side "
                f"{self.kernel} and 2x2 pooling; use larger images, a smaller kernel or fewer maps"
            )

    def _layers(self, method: Method) -> dict[str, nn.Module]:
        layers: dict[str, nn.Module] = {"layout": ChannelsLast()}
        channels = self.image[0]
        for number, maps in enumerate(self.maps, 1):
            layers[f"convolution{number}"] = nn.Conv2d(channels, maps, self.kernel)
            # The maximum of rectified values is the rectified maximum, with the same gradient: rectify a quarter.
            layers[f"pooling{number}"] = nn.MaxPool2d(2)
            layers[f"activation{number}"] = nn.ReLU()
            channels = maps
        height, width = self._size_after_convolutions()
        layers["flatten"] = nn.Flatten()
        return layers | self._head(method, channels * height * width, self.hidden, self.classes)

    def _size_after_convolutions(self) -> tuple[int, int]:
        _, height, width = self.image
        for _ in self.maps:
            height, width = ((side - self.kernel + 1) // 2 for side in (height, width))
        return height, width


class ChannelsLast(nn.Module):
    """Lays images out in memory as [N, H, W, C], with which the CPU's convolutions take two thirds of the time."""

    def forward(self, x: Tensor) -> Tensor:
        _, channels, _, width = x.shape
        if channels > 1:
            return x.contiguous(memory_format=torch.channels_last)
        # With one channel the two layouts are the same numbers in memory, and only the strides tell which is meant.
        return x.contiguous().as_strided(x.shape, (x.shape[1:].numel(), 1, width, 1))
