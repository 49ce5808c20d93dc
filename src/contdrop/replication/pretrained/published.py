"""Published weights by name, networks that start from them, and features by their convolutions."""

from __future__ import annotations

import dataclasses
import pathlib
from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...errors import UserError, suggest
from ...lab.study.methods import Method, parse
from ...lab.study.study import Configuration
from .. import datasets
from ..datasets import dataset
from ..datasets.dataset import Dataset, Images, fingerprint
from ..networks import Model
from ..networks.models import MAPS, SIDE, VGG, convolutions, last_maps, published_nin
from ..preprocessing import Whitening, cached, fitted_whitening, global_contrast
from .weight_files import Layers, assign, lacking, read, refuse_lacking

CONTRAST, EPS = 55.0, 0.1  # of global contrast and whitening; with others the network errs far more often
NIN_FEATURES = MAPS * SIDE * SIDE
# Versions of the computation, for the cache; of the convolutions that have no published weights, the seed.
_NIN_VERSION, _VGG_VERSION, _VGG_SEED = 1, 1, 0

Array = npt.NDArray[np.float32]


def nin_whitening(found: Dataset) -> Whitening:
    """Fit the whitening on the training images, as for the published network."""
    return fitted_whitening(global_contrast(found.train_images, CONTRAST), EPS)


def nin_whitened(images: Images, fitted: Whitening) -> Array:
    """Prepare images as the network expects them."""
    return fitted(global_contrast(images, CONTRAST))


def nin_features(found: Dataset, weights: pathlib.Path, part: str) -> Array:
    """Return the published network's last maps [N, 640] of ``part``, "train" or "test"; computed once and cached."""
    layers = read(weights)
    with torch.device("meta"):  # without its numbers: what is kept already is looked at too
        refuse_lacking(lacking(nn.Sequential(OrderedDict(convolutions())), layers), str(weights))

    def compute(images: Images) -> Array:
        network = nn.Sequential(OrderedDict(convolutions()))
        assign(network, layers, str(weights))
        fitted = nin_whitening(found)
        return _in_batches(250, images, lambda part: network(torch.from_numpy(nin_whitened(part, fitted))).flatten(1))

    return _kept("nin", part, found, compute, _NIN_VERSION, layers, CONTRAST, EPS)


def is_vgg_here() -> bool:
    """Return True if the published weights are here; otherwise the convolutions are random."""
    return find("vgg16").path().is_file()


def vgg_maps(found: Dataset, part: str) -> Array:
    """Return maps [N, 2, 512, H / 32, W / 32] of ``part``, "train" or "test": of images and their mirror images."""
    path = find("vgg16").path()
    layers = read(path) if path.is_file() else {}
    if layers:
        with torch.device("meta"):  # without its numbers: what is kept already is looked at too
            network = VGG(hidden=1, classes=2)(parse("none"))
        refuse_lacking(lacking(network.get_submodule("convolutions"), layers), str(path))
    layers = {name: arrays for name, arrays in layers.items() if name.startswith("conv")}

    def compute(images: Images) -> Array:
        network = VGG(hidden=1, classes=2)(parse("none"))
        generator = torch.Generator().manual_seed(_VGG_SEED)
        for layer in network.get_submodule("convolutions").children():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, generator=generator)
        if layers:
            assign(network, layers, str(path))

        def maps(part: Images) -> Tensor:
            pixels = torch.from_numpy(part)
            return torch.stack([last_maps(network, each) for each in (pixels, pixels.flip(3))], 1)

        return _in_batches(10, images, maps)

    return _kept("vgg", part, found, compute, _VGG_VERSION, layers)


@torch.inference_mode()
def _in_batches(size: int, images: Images, forward: Callable[[Images], Tensor]) -> Array:
    return np.concatenate([forward(images[start : start + size]).numpy() for start in range(0, len(images), size)])


def _kept(
    name: str,
    part: str,
    found: Dataset,
    compute: Callable[[Images], Array],
    version: int,
    layers: Layers,
    *settings: float,
) -> Array:
    """Return what is computed of the images of a part, from the cache if it is there."""
    images = found.train_images if part == "train" else found.test_images
    of_weights = [fingerprint(*layers[layer]) for layer in sorted(layers)]
    key = (version, found.fingerprint, of_weights, *settings)
    (outputs,) = cached(f"{name}-{part}", key, lambda: {"outputs": compute(images)}).values()
    return outputs


def error_on_test_images(weights: pathlib.Path, directory: pathlib.Path | None = None) -> float:
    """Return the published network's error on the test images of CIFAR-10, in per cent."""
    found = datasets.load("cifar-10", directory)
    maps = nin_features(found, weights, "test").reshape(-1, MAPS, SIDE * SIDE)
    return float(100 * (maps.mean(2).argmax(1) != found.test_labels).mean())


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


PUBLISHED = (
    Published(
        name="nin-cifar10",
        title="Network in Network, CIFAR-10, Caffe model zoo",
        files=("cifar10_nin.caffemodel",),
        offered="the Caffe model zoo lists it as Network in Network, CIFAR10 model",
        network=published_nin,
        data="cifar-10",
        error=10.4,
        measure=error_on_test_images,
    ),
    Published(
        name="vgg16",
        title="VGG-16, configuration D, ILSVRC-2012",
        # The second has the convolutions alone; tools/vgg16_convolutions.py makes it.
        files=("VGG_ILSVRC_16_layers.caffemodel", "vgg16-convolutions.pt"),
        offered="its authors offer it at https://www.robots.ox.ac.uk/~vgg/research/very_deep/",
        network=lambda: VGG()(parse("bernoulli")),
    ),
)


def find(name: str) -> Published:
    known = {published.name: published for published in PUBLISHED}
    if name not in known:
        raise UserError(f"unknown weights {name!r}; {suggest(name.lower().replace('_', '-'), known)}")
    return known[name]


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
