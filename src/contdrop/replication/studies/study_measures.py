"""Measures of trained networks: covariance of units, and error on unused training images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...covariances import LayerSummary, coadaptation
from ...lab.data.data import Part, Parts
from ...lab.study.methods import parse
from ...lab.study.study import Configuration
from ...lab.training import random_streams
from ..networks import MLP


@dataclass(frozen=True)
class Covariance(Configuration):
    """Measures the covariance of units under dropout noise, over some validation images; see
    :func:`contdrop.coadaptation`.

    The histogram is of all pairs of different units, from -largest to largest.
    """

    kind: ClassVar[str] = "covariance"

    layers: tuple[str, ...]
    inputs: int = 10
    repeats: int = 10_000
    bins: int = 101  # odd, so that one of them is around 0
    largest: float = 0.05

    def __call__(self, model: nn.Module, parts: Parts, seed: int) -> dict[str, np.ndarray]:
        pixels = _pixels(model, parts, seed, self.inputs)
        found = coadaptation(model, pixels, self.layers, self.repeats, seed=seed)
        edges = torch.linspace(-self.largest, self.largest, self.bins + 1, dtype=torch.float64)
        kept = {"covariance_edges": edges.numpy()}
        for number, layer in enumerate(self.layers, 1):
            counts, _ = found.histogram(layer, edges)
            kept[f"covariance_layer{number}"] = counts.numpy()
        return kept


@dataclass(frozen=True)
class CommonNoise(Configuration):
    """Measures how the units of a trained network vary together, under one noise that is the same for all methods.

    Under its own noise a network trained with less of it shows less covariance, whatever it has learnt: the covariance
    is proportional to the variance of the masks. Here the trained weights go into a network with the masks ``noise``
    and inputs that are dropped by 20 %, without which units of the first layer do not covary. The root mean square of
    the covariances and the mean absolute correlation of each layer are kept, and for the second layer both under the
    network's own noise too, as the paper's Figure 4 has it (none without dropout, whose units do not vary).

    Attributes:
        model: What the studied networks are built by.
        noise: The label of the common masks.
        input_keep: Of the common noise.
        inputs: Validation images.
        repeats: Passes for each.
    """

    kind: ClassVar[str] = "common-noise"

    model: MLP
    noise: str = "bernoulli:r=1"
    input_keep: float = 0.8
    inputs: int = 10
    repeats: int = 10_000

    def __call__(self, model: nn.Module, parts: Parts, seed: int) -> dict[str, np.ndarray]:
        pixels = _pixels(model, parts, seed, self.inputs)
        twin = dataclasses.replace(self.model, input_keep=self.input_keep)(parse(self.noise)).to(pixels.device)
        twin.load_state_dict(model.state_dict())
        first, last = self.model.hidden_layers
        found = coadaptation(twin, pixels, (first, last), self.repeats, seed=seed).summary()
        kept = _figures("common layer1", found[first]) | _figures("common layer2", found[last])
        own = coadaptation(model, pixels, (last,), self.repeats, seed=seed).summary()[last]
        return kept | (_figures("own layer2", own) if own.mean_variance else {})


def _pixels(model: nn.Module, parts: Parts, seed: int, number: int) -> Tensor:
    """Return some validation images; the seed is the run's, so they are the same for all its methods."""
    chosen = torch.from_numpy(random_streams.permutation(len(parts.validation), seed)[:number])
    images, _ = next(parts.validation.batches([chosen]))
    pixels: Tensor = model.get_submodule("pixels")(images.to(next(model.parameters()).device))
    return pixels


def _figures(name: str, found: LayerSummary) -> dict[str, np.ndarray]:
    return {
        f"{name} covariance": np.asarray(found.root_mean_square),
        f"{name} correlation": np.asarray(found.mean_absolute_correlation),
    }


UNUSED = "unused error"


@dataclasses.dataclass(frozen=True)
class UnusedError(Configuration):
    """Measures the error, in per cent, on training images that were neither trained nor validated on.

    All methods of a run leave the same images out, so they are compared on the same ones.
    """

    kind: ClassVar[str] = "unused-error"

    most: int = 40_000  # images, the first ones in the order of the data set
    batch_size: int = 1000

    def __call__(self, model: nn.Module, parts: Parts, seed: int) -> dict[str, np.ndarray]:
        part = unused(parts, self.most)
        device = next(model.parameters()).device
        wrong = 0
        model.eval()
        with torch.inference_mode():
            for images, labels in part.batches(part.order(None, self.batch_size)):
                wrong += int((model(images.to(device)).argmax(1).cpu() != labels).sum())
        return {UNUSED: np.asarray(100 * wrong / len(part))}


def unused(parts: Parts, most: int) -> Part:
    """Return the first ``most`` training images that a run neither trains nor validates on."""
    free = torch.ones(len(parts.train.source), dtype=torch.bool)
    free[parts.train.positions] = False
    free[parts.validation.positions] = False
    return dataclasses.replace(parts.train, name="unused", positions=free.nonzero()[:most, 0])
