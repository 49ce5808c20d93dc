"""Published weights by name, and networks that start from them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from ...errors import UserError, suggest
from ...lab.study.methods import Method, parse
from ...lab.study.study import Configuration
from ..datasets import dataset
from ..networks import Model
from ..networks.nin import published_nin
from ..networks.vgg import VGG
from . import nin_weights
from .caffe import Layers
from .loading import assign, lacking, read, refuse_lacking


@dataclasses.dataclass(frozen=True)
class Published:
    """Weights by name.

    Attributes:
        name: Also of the folder in the data directory.
        title: In a line.
        files: Its name there, or others by which it may be there; the first is the owner's.
        offered: Where its owner offers it, and what of it is known.
        network: Builds the network that they are of.
        data: The data set that its error is known on.
        error: Its published error there, in per cent.
        measure: Computes that error, of a file and with data from a directory.
    """

    name: str
    title: str
    files: tuple[str, ...]
    offered: str
    network: Callable[[], nn.Module]
    data: str = ""
    error: float | None = None
    measure: Callable[[pathlib.Path, pathlib.Path | None], float] | None = None

    @property
    def parameters(self) -> int:
        """Number of the network's parameters, without building it in memory."""
        return sum(parameter.numel() for parameter in self._outline().parameters())

    def lacking(self, found: Layers) -> tuple[str, ...]:
        """Return the layers of the network that a file does not have."""
        return lacking(self._outline(), found)

    def _outline(self) -> nn.Module:
        """Build the network on the meta device, without values."""
        with torch.device("meta"):
            return self.network()

    def path(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        """Return the path of the file that is there, or of the owner's file if none is."""
        paths = [dataset.data_directory(directory) / self.name / name for name in self.files]
        return next((path for path in paths if path.is_file()), paths[0])

    def here(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        """Return the file's path; raise UserError, with the place that offers it, if it is missing."""
        path = self.path(directory)
        if not path.is_file():
            raise UserError(f"{self.name}: the weights are missing; put {path.name} into {path.parent}: {self.offered}")
        return path


def _vgg16() -> nn.Module:
    return VGG()(parse("bernoulli"))


PUBLISHED = (
    Published(
        name="nin-cifar10",
        title="Network in Network, CIFAR-10, Caffe model zoo",
        files=("cifar10_nin.caffemodel",),
        offered="the Caffe model zoo lists it as Network in Network, CIFAR10 model",
        network=published_nin,
        data="cifar-10",
        error=10.4,
        measure=nin_weights.error_on_test_images,
    ),
    Published(
        name="vgg16",
        title="VGG-16, configuration D, ILSVRC-2012",
        # The second has the convolutions alone; tools/vgg16_convolutions.py makes it.
        files=("VGG_ILSVRC_16_layers.caffemodel", "vgg16-convolutions.pt"),
        offered="its authors offer it at https://www.robots.ox.ac.uk/~vgg/research/very_deep/",
        network=_vgg16,
    ),
)


def find(name: str) -> Published:
    for published in PUBLISHED:
        if published.name == name:
            return published
    names = [published.name for published in PUBLISHED]
    raise UserError(f"unknown weights {name!r}; {suggest(name.lower().replace('_', '-'), names)}")


@dataclasses.dataclass(frozen=True)
class Pretrained(Configuration):
    """A study's model that starts from published weights; layers that the published network does not have are random.

    Attributes:
        model: Builds the network.
        weights: Their name, see ``contdrop weights list``.
    """

    kind: ClassVar[str] = "pretrained"

    model: Model
    weights: str

    def __call__(self, method: Method) -> nn.Module:
        published = find(self.weights)
        path = published.here()
        network, found = self.model(method), read(path)
        left, expected = assign(network, found, str(path)).left, published.lacking(found)
        refuse_lacking([name for name in left if name in expected], str(path))
        return network
