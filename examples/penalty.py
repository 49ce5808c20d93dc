"""Training with the explicit dropout penalty instead of sampled noise.

In run i all ways share the images, the initial weights and the data order, and are compared run by run. The test images
are not used for any choice: the setting was chosen on separate images, and the penalty has no parameter of its own.
Needs contdrop[lab].
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

import contdrop as cd
from contdrop.theory.penalty import penalty

INTRODUCTION = """\
Dropout adds noise to a network while it learns. On average that noise adds a penalty to the \
loss, which can be computed instead of sampled. Here one small network learns handwritten digits without dropout, with \
sampled {law!s} dropout, and without noise but with the penalty, {runs} times from the same starts.
"""

DEVELOPMENT_IMAGES = 500  # used to choose the setting; not used here
TRAINING_IMAGES = 100
HIDDEN_UNITS = 128  # in each of two hidden layers
BATCH_SIZE = 25
EPOCHS = 80
LEARNING_RATE = 0.005
CONFIDENCE = 0.95
LAW = cd.Gaussian(sigma=0.3)

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def loss_without_noise(network: nn.Module, pixels: Tensor, digits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network.eval()(pixels), digits)


def loss_with_noise(network: nn.Module, pixels: Tensor, digits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network.train()(pixels), digits)


def loss_with_penalty(network: nn.Module, pixels: Tensor, digits: Tensor) -> Tensor:
    added = penalty(network, pixels, digits, nn.functional.cross_entropy)
    return loss_without_noise(network, pixels, digits) + added


@dataclass
class Way:
    """A way to train the network, with the results of its runs: test errors in per cent, milliseconds per epoch."""

    name: str
    loss: Loss
    errors: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def make_network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(64, HIDDEN_UNITS), nn.ReLU(), cd.Dropout(LAW)),
        *(nn.Linear(HIDDEN_UNITS, HIDDEN_UNITS), nn.ReLU(), cd.Dropout(LAW)),
        nn.Linear(HIDDEN_UNITS, 10),
    )


def load_images() -> tuple[Tensor, Tensor]:
    pixels, digits = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(digits))[DEVELOPMENT_IMAGES:]
    return torch.tensor(pixels[chosen] / 16, dtype=torch.float32), torch.tensor(digits[chosen])


def run(way: Way, number: int, images: tuple[Tensor, Tensor], epochs: int) -> None:
    """Train, then evaluate once on the test images."""
    pixels, digits = images
    # A separate seed for each use of randomness, so that the ways differ only in the loss.
    split, weights, order, masks = np.random.SeedSequence(number).generate_state(4).tolist()
    shuffled = torch.randperm(len(digits), generator=torch.Generator().manual_seed(split))
    training, test = shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]
    torch.manual_seed(weights)
    network = make_network()
    torch.manual_seed(masks)
    generator = torch.Generator().manual_seed(order)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    start = time.perf_counter()
    for _ in range(epochs):
        for chosen in torch.randperm(TRAINING_IMAGES, generator=generator).split(BATCH_SIZE):
            batch = training[chosen]
            optimizer.zero_grad()
            way.loss(network, pixels[batch], digits[batch]).backward()
            optimizer.step()
    way.milliseconds.append(1000 * (time.perf_counter() - start) / epochs)
    with torch.no_grad():
        way.errors.append(100 * (network.eval()(pixels[test]).argmax(1) != digits[test]).double().mean().item())


def difference(way: Way, other: Way) -> str:
    """Return the mean paired difference of the errors and its t interval."""
    if way is other:
        return ""
    values = np.subtract(way.errors, other.errors)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.2f} [{values.mean() - half:+.2f}, {values.mean() + half:+.2f}]"


def table(ways: list[Way]) -> Table:
    plain, sampled, _ = ways
    result = Table("training", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("test error, %", "minus no dropout\n[95 % interval]", "minus sampled\n[95 % interval]"):
        result.add_column(heading, justify="right")
    result.add_column("ms per\nepoch", justify="right")
    for way in ways:
        error = f"{np.mean(way.errors):.2f} ± {np.std(way.errors, ddof=1):.2f}"
        # The median, because the first run includes lazy loading by torch.
        milliseconds = f"{np.median(way.milliseconds):.1f}"
        result.add_row(way.name, error, difference(way, plain), difference(way, sampled), milliseconds)
    return result


def parse_options() -> argparse.Namespace:
    # Without a usage text, argparse reports an error in one line.
    what = "Train a network with sampled dropout and with the penalty it amounts to, and compare them run by run."
    parser = argparse.ArgumentParser(description=what, usage=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=15, help="runs of each, at least 2 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="training epochs, at least 1 (default: %(default)s)")
    options = parser.parse_args()
    for name, least in (("runs", 2), ("epochs", 1)):
        if (value := getattr(options, name)) < least:
            parser.error(f"expected --{name} to be a whole number of at least {least}, got {value}")
    return options


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # a second thread is slower in such a small network
    screen = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    screen.print(INTRODUCTION.format(law=LAW, runs=options.runs))
    ways = [
        Way("no dropout", loss_without_noise),
        Way("sampled dropout", loss_with_noise),
        Way("explicit penalty", loss_with_penalty),
    ]
    images = load_images()
    for number in range(options.runs):
        for way in ways:
            run(way, number, images, options.epochs)
        print(f"run {number + 1} of {options.runs} done", file=sys.stderr, flush=True)
    screen.print(table(ways))
    screen.print(
        "Negative is fewer errors. The noise is not weak, so the penalty is only near to what the noise does. "
        f"All this is one small network on {TRAINING_IMAGES} training images at a time: yours may "
        "differ."
    )


if __name__ == "__main__":
    main()
