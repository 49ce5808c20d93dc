"""The published network in network on CIFAR-10: its images, its features and its errors."""

from __future__ import annotations

import pathlib
from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from .. import datasets
from ..cache import cached
from ..datasets.dataset import Dataset, fingerprint
from ..networks.nin import MAPS, SIDE, convolutions
from ..preprocessing import Whitening, fitted_whitening, global_contrast
from .loading import assign, lacking, read, refuse_lacking

CONTRAST, EPS = 55.0, 0.1  # of global contrast and whitening; with others the network errs far more often
FEATURES = MAPS * SIDE * SIDE
_BATCH = 250
_VERSION = 1  # of what follows, for the cache

Features = npt.NDArray[np.float32]  # [N, 640]: the ten maps of 8x8 after the last ReLU


def whitening(found: Dataset) -> Whitening:
    """Fit the whitening on the training images, as for the published network."""
    return fitted_whitening(global_contrast(found.train_images, CONTRAST), EPS)


def whitened(images: npt.NDArray[np.uint8], fitted: Whitening) -> npt.NDArray[np.float32]:
    """Prepare images as the network expects them."""
    return fitted(global_contrast(images, CONTRAST))


def features(found: Dataset, weights: pathlib.Path, part: str) -> Features:
    """Return the published network's features of ``part``, "train" or "test"; computed once and cached."""
    layers = read(weights)
    with torch.device("meta"):  # without its numbers: what is kept already is looked at too
        refuse_lacking(lacking(nn.Sequential(OrderedDict(convolutions())), layers), str(weights))
    images = found.train_images if part == "train" else found.test_images

    def compute() -> dict[str, np.ndarray]:
        network = nn.Sequential(OrderedDict(convolutions()))
        assign(network, layers, str(weights))
        return {"features": _features(network, images, whitening(found))}

    of_weights = [fingerprint(*layers[name]) for name in sorted(layers)]
    kept = cached(f"nin-{part}", (_VERSION, found.fingerprint, of_weights, CONTRAST, EPS), compute)
    return kept["features"]


@torch.inference_mode()
def _features(network: nn.Module, images: npt.NDArray[np.uint8], fitted: Whitening) -> Features:
    made = np.empty((len(images), FEATURES), np.float32)
    network.eval()
    for start in range(0, len(images), _BATCH):
        batch = torch.from_numpy(whitened(images[start : start + _BATCH], fitted))
        made[start : start + _BATCH] = network(batch).flatten(1).numpy()
    return made


def error_on_test_images(weights: pathlib.Path, directory: pathlib.Path | None = None) -> float:
    """Return the published network's error on the test images of CIFAR-10, in per cent.

    Raises:
        UserError: CIFAR-10 is not here, or damaged, or the weights are no such network's.
    """
    found = datasets.load("cifar-10", directory)
    maps = features(found, weights, "test").reshape(-1, MAPS, SIDE * SIDE)
    return float(100 * (maps.mean(2).argmax(1) != found.test_labels).mean())
