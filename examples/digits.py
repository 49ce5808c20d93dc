"""Every dropout of contdrop on scikit-learn's handwritten digits: an honest, paired comparison.

In run i all methods share the images, the initial weights and the data order; only the masks differ. Methods are then
compared run by run, which removes the luck of a split or a start from their difference.

    python examples/digits.py            one to two minutes; needs pip install "contdrop[lab]"
    python examples/digits.py --help
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import NoReturn

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

import contdrop as cd

# One setting for all methods, chosen on development images that the comparison never sees (--development shows the
# validation errors). The strength of each method's noise is the paper's and was not tuned.
DEVELOPMENT_IMAGES = 500
TRAINING_IMAGES = 100  # so few that a network without dropout fits them perfectly, yet errs on one new image in seven
HIDDEN_UNITS = 64  # in each of two hidden layers; 128 are a little better, but slow
BATCH_SIZE = 50
EPOCHS = 80  # 120 move no method's validation error by more than 0.6 points, which is noise
LEARNING_RATE = 0.01  # Adam's; 0.02 is worse for every method, 0.005 leaves Bernoulli(0.5) unfinished
CONFIDENCE = 0.95

BASELINE = "Bernoulli"
ALWAYS_ON, HALF, GAUSSIAN = cd.Bernoulli(keep=1.0), cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.3)
MATCHED = cd.Bernoulli.matching(GAUSSIAN)  # a switch with the noise strength of the dimmer: is it strength or shape?

Images = tuple[Tensor, Tensor]  # pixels and digits
MakeLinear = Callable[[int, int], nn.Linear]


@dataclass(frozen=True)
class Method:
    """A way to build the network: its mask law (None: differs from unit to unit) and its layers."""

    name: str
    code: str
    law: cd.Law | None
    after_hidden: Callable[[], nn.Module] = nn.Identity
    linears: tuple[MakeLinear, MakeLinear, MakeLinear] = (nn.Linear, nn.Linear, nn.Linear)


# DropConnect masks the weights of the hidden layers; "analytic" is the limit of its default inference, which averages
# 1000 samples per image, and far faster. Fast dropout is dropout on the hidden activations, integrated into the linear
# layers that read them.
DROP_CONNECT = partial(cd.DropConnectLinear, activation="relu", inference="analytic")
DROP_CONNECT_CODE = 'DropConnectLinear(..., activation="relu", inference="analytic")'
FAST = partial(cd.FastDropoutLinear, law=HALF)
FAST_CODE = "FastDropoutLinear(..., law=Bernoulli(0.5))"
MATCHED_CODE = "Dropout(Bernoulli.matching(Gaussian(sigma=0.3)))"
METHODS = (
    Method("no dropout", "", ALWAYS_ON),
    Method(BASELINE, "BernoulliDropout(0.5)", HALF, lambda: cd.BernoulliDropout(0.5)),
    Method("uniform", "UniformDropout()", cd.Uniform(), cd.UniformDropout),
    Method("Gaussian", "GaussianDropout(0.3)", GAUSSIAN, lambda: cd.GaussianDropout(0.3)),
    Method("Bernoulli matched", MATCHED_CODE, MATCHED, lambda: cd.Dropout(MATCHED)),
    Method("adaptive", "AdaptiveDropout()", None, cd.AdaptiveDropout),
    Method("DropConnect", DROP_CONNECT_CODE, HALF, linears=(DROP_CONNECT, DROP_CONNECT, nn.Linear)),
    Method("fast dropout", FAST_CODE, HALF, linears=(nn.Linear, FAST, FAST)),
)


class Network(nn.Module):
    """Three linear layers with ReLU between them. Parameter names do not depend on the method."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        sizes = (64, HIDDEN_UNITS, HIDDEN_UNITS, 10)
        self.linears = nn.ModuleList(make(i, o) for make, i, o in zip(method.linears, sizes, sizes[1:]))
        self.dropouts = nn.ModuleList(method.after_hidden() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for linear, dropout in zip(self.linears, self.dropouts):
            preactivation = linear(x)
            h = preactivation.relu()  # DropConnect has done so already; a second time changes nothing
            x = dropout(h, preactivation) if isinstance(dropout, cd.AdaptiveDropout) else dropout(h)
        return self.linears[-1](x)


@dataclass(frozen=True)
class Run:
    """What all methods of a run share."""

    training: Images
    test: Images
    initial_weights: dict[str, Tensor]
    order_seed: int
    mask_seeds: dict[str, int]


def load_images(development: bool) -> Images:
    """The images to compare on, or those set apart for choosing the setting; which is which depends on no option."""
    pixels, digits = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(digits))
    chosen = shuffled[:DEVELOPMENT_IMAGES] if development else shuffled[DEVELOPMENT_IMAGES:]
    return torch.tensor(pixels[chosen] / 16, dtype=torch.float32), torch.tensor(digits[chosen])


def make_run(number: int, seed: int, images: Images) -> Run:
    # Each use of chance has a seed of its own: a method that draws more numbers must not shift anybody's data order.
    seeds = np.random.SeedSequence([seed, number]).generate_state(3 + len(METHODS)).tolist()
    split_seed, weight_seed, order_seed, *mask_seeds = seeds
    shuffled = torch.randperm(len(images[0]), generator=torch.Generator().manual_seed(split_seed))
    training, test = ((images[0][i], images[1][i]) for i in (shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]))
    torch.manual_seed(weight_seed)
    weights = Network(METHODS[0]).state_dict()
    return Run(training, test, weights, order_seed, {m.name: s for m, s in zip(METHODS, mask_seeds)})


def train(network: Network, images: Images, epochs: int, order: torch.Generator) -> None:
    pixels, digits = images
    optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.randperm(len(digits), generator=order).split(BATCH_SIZE):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(pixels[batch]), digits[batch]).backward()
            optimiser.step()


def error_after_training(method: Method, run: Run, epochs: int) -> float:
    """Test error in per cent. This is the only place where test images are used, once per network."""
    network = Network(method)
    network.load_state_dict(run.initial_weights)
    torch.manual_seed(run.mask_seeds[method.name])
    train(network, run.training, epochs, torch.Generator().manual_seed(run.order_seed))
    network.eval()
    pixels, digits = run.test
    with torch.no_grad():
        return 100 * (network(pixels).argmax(1) != digits).double().mean().item()
