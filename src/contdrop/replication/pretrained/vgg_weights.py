"""Features of images by the convolutions of VGG-16, computed once and cached."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...lab.study.methods import parse
from ..cache import cached
from ..datasets.dataset import Dataset, fingerprint
from ..networks.vgg import VGG, last_maps
from .loading import assign, lacking, read, refuse_lacking
from .published import find

_BATCH = 10
_SEED = 0  # of convolutions that have no published weights
_VERSION = 1  # of what follows, for the cache


def here() -> bool:
    """Return True if the published weights are here; otherwise the convolutions are random."""
    return find("vgg16").path().is_file()


def maps(found: Dataset, part: str) -> npt.NDArray[np.float32]:
    """Return maps [N, 2, 512, H / 32, W / 32] of ``part``, "train" or "test": of images and their mirror images."""
    path = find("vgg16").path()
    layers = read(path) if path.is_file() else {}
    if layers:
        with torch.device("meta"):  # without its numbers: what is kept already is looked at too
            convolutions = VGG(hidden=1, classes=2)(parse("none")).get_submodule("convolutions")
        refuse_lacking(lacking(convolutions, layers), str(path))
    images = found.train_images if part == "train" else found.test_images

    def compute() -> dict[str, np.ndarray]:
        network = VGG(hidden=1, classes=2)(parse("none"))
        generator = torch.Generator().manual_seed(_SEED)
        for layer in network.get_submodule("convolutions").children():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, generator=generator)
        if layers:
            assign(network, {name: layers[name] for name in layers if name.startswith("conv")}, str(path))
        return {"maps": _maps(network, images)}

    of_weights = [fingerprint(*layers[name]) for name in sorted(layers) if name.startswith("conv")]
    return cached(f"vgg-{part}", (_VERSION, found.fingerprint, of_weights), compute)["maps"]


@torch.inference_mode()
def _maps(network: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    made = []
    for start in range(0, len(images), _BATCH):
        batch = torch.from_numpy(images[start : start + _BATCH])
        made.append(torch.stack([last_maps(network, each) for each in (batch, batch.flip(3))], 1).numpy())
    return np.concatenate(made)
