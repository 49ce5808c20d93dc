"""Data, methods, settings and measures that the paper's comparisons share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...covariances import LayerSummary, coadaptation
from ...lab.data.data import Data, Part, Parts
from ...lab.study.methods import parse
from ...lab.study.study import Configuration, Study, group_settings
from ...lab.training import random_streams
from .. import datasets
from ..augmentation import Affine
from ..datasets import first_here
from ..networks import MLP

Features = npt.NDArray[np.float32]

# The paper's six methods; fast dropout, which it names but does not run; and the controls of the continuous laws,
# Bernoulli masks of the same mean and relative variance, without which a gain may come from their strength alone.
METHODS = (
    *("none", "bernoulli", "adaptive", "dropconnect", "uniform", "gaussian"),
    *("fast", "bernoulli-matched", "bernoulli-matched:uniform"),
)

# With unscaled masks the mean of a mask changes the rate at which layers learn, so no dropout has a halved twin.
UNSCALED_METHODS = (*METHODS, "none:mean=0.5")

# "sigma^2 is selected from {0.2, 0.3, 0.4}", read as standard deviations; see the deviations page. Adaptive dropout
# with alpha = 0 and beta = 0 is Bernoulli dropout.
CANDIDATES = {
    "gaussian": tuple(f"gaussian:sigma={sigma}" for sigma in ("0.2", "0.3", "0.4")),
    "adaptive": tuple(
        f"adaptive:alpha={alpha},beta={beta}" for alpha in ("-1", "0", "1") for beta in ("-0.5", "0", "0.5")
    ),
}

FOLLOWS = {"bernoulli-matched": "gaussian"}

TENTHS = tuple(f"{tenths / 10:g}" for tenths in range(1, 11))  # widths of the Gaussian in the paper's Figure 3

# One run of a few epochs would choose by luck; the report says how far apart the candidates were.
SELECTION_RUNS = 3

COMMON: dict[str, Any] = {
    "reference": "gaussian",
    "candidates": CANDIDATES,
    "follows": FOLLOWS,
    "evaluation_batch_size": 1000,
}


def scaled(train: Features, test: Features) -> tuple[Features, Features]:
    """Divide features by their root mean square over the training images."""
    scale = np.float32(np.sqrt(np.mean(np.square(train), dtype=np.float64)))
    return train / scale, test / scale


def study(**settings: Any) -> Study:
    """Return a study from settings given by their own names, those of groups too."""
    return Study(**group_settings(settings))


@dataclass(frozen=True)
class InOrder(Configuration):
    """Mini-batches in the order of the data, the same in every epoch."""

    kind: ClassVar[str] = "in-order"

    batch_size: int

    def __call__(self, examples: Sized, generator: Any) -> Iterable[Sequence[int]]:
        count, size = len(examples), self.batch_size
        return [range(start, min(start + size, count)) for start in range(0, count, size)]


@dataclass(frozen=True)
class Images(Configuration):
    """A data set that ``contdrop data`` knows, from where it is kept, with a split of its own in each run.

    Attributes:
        name: Of the data set.
        train: How many images are trained on.
        validation: How many others are validated on.
        batches: The mini-batches of an epoch; in a new random order each time if None.
    """

    kind: ClassVar[str] = "images"

    name: str
    train: int
    validation: int
    batches: InOrder | None = None

    def __call__(self) -> Data:
        found = datasets.load(self.name)
        return Data(
            train=(found.train_images, found.train_labels),
            test=(found.test_images, found.test_labels),
            validation=self.validation,
            subset=self.train,
            stratify=False,
            batches=self.batches,
        )


@dataclass(frozen=True)
class Changed(Configuration):
    """A data set whose training images are changed at random, with a split of its own in each run.

    Attributes:
        name: Of the data set.
        changes: What is done to an image; the study's ``forward`` does it.
        validation: How many training images are validated on.
        train: How many of the others are trained on; all if None.
        test: How many test images, the first ones, are tested on; all if None.
        instead: Data sets that stand in for it where it is not here, the first of them that is; results say so.
    """

    kind: ClassVar[str] = "changed"

    name: str
    changes: Affine
    validation: int
    train: int | None = None
    test: int | None = None
    instead: tuple[str, ...] = ()

    def __call__(self) -> Data:
        found = datasets.load(first_here((self.name, *self.instead)))
        return Data(
            train=(found.train_images, found.train_labels),
            test=(found.test_images[: self.test], found.test_labels[: self.test]),
            validation=self.validation,
            subset=self.train,
            transform=self.changes.draw,
            name=found.name,
            mark="" if found.name == self.name else found.title,
        )


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


@dataclass(frozen=True)
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
