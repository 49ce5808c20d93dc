"""Every dropout of contdrop on scikit-learn's handwritten digits: an honest, paired comparison.

In run i all methods share the images, the initial weights and the data order; only the masks differ. Methods are then
compared run by run, which removes the luck of a split or a start from their difference.

    python examples/digits.py            one to two minutes; needs pip install "contdrop[lab]"
    python examples/digits.py --help
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

import contdrop as cd

# One setting for all methods, chosen on development images that the comparison never sees (--development repeats it on
# them). The strength of each method's noise is the paper's and was not tuned.
DEVELOPMENT_IMAGES = 500
TRAINING_IMAGES = 100  # so few that a network without dropout fits them perfectly, yet errs on one new image in seven
HIDDEN_UNITS = 64  # in each of the two hidden layers; more is a little better and much slower
BATCH_SIZE = 50
EPOCHS = 80  # by then the validation error has levelled off, except that of DropConnect, which learns slowest
LEARNING_RATE = 0.01  # of Adam; with 0.005 Bernoulli(0.5) is not done after 80 epochs, 0.02 is worse for most methods
RUNS = 10

CONFIDENCE = 0.95
BASELINE = "Bernoulli"
HALF = cd.Bernoulli(0.5)
GAUSSIAN = cd.Gaussian(sigma=0.3)
MATCHED = cd.Bernoulli.matching(GAUSSIAN)

MakeLinear = Callable[[int, int], nn.Linear]


@dataclasses.dataclass(frozen=True)
class Method:
    """How a network is built with one method, and how one writes that.

    Attributes:
        name: As shown.
        code: The layer as one would write it.
        noise: Relative variance Var(m) / E[m]^2 of a mask value m; None if it differs from unit to unit.
        dropout: Makes the layer on the outputs of a hidden layer.
        linears: Make the first hidden, the second hidden and the output layer.
    """

    name: str
    code: str
    noise: float | None
    dropout: Callable[[], nn.Module] = nn.Identity
    linears: tuple[MakeLinear, MakeLinear, MakeLinear] = (nn.Linear, nn.Linear, nn.Linear)


def drop_connect(inputs: int, outputs: int) -> nn.Linear:
    # "analytic" is the limit of the default, which averages 1000 samples per image, and far faster.
    return cd.DropConnectLinear(inputs, outputs, activation="relu", inference="analytic")


def fast_dropout(inputs: int, outputs: int) -> nn.Linear:
    return cd.FastDropoutLinear(inputs, outputs, law=HALF)


# DropConnect masks the weights of the hidden layers. Fast dropout is dropout on the hidden activations, integrated into
# the linear layers that read them.
CONNECTIONS_DROPPED = (drop_connect, drop_connect, nn.Linear)
INPUTS_DROPPED = (nn.Linear, fast_dropout, fast_dropout)

METHODS = (
    Method("no dropout", "", 0.0),
    Method(BASELINE, "BernoulliDropout(0.5)", HALF.relative_variance, lambda: cd.BernoulliDropout(0.5)),
    Method("uniform", "UniformDropout()", cd.Uniform().relative_variance, cd.UniformDropout),
    Method("Gaussian", "GaussianDropout(0.3)", GAUSSIAN.relative_variance, lambda: cd.GaussianDropout(0.3)),
    Method(
        "Bernoulli matched",
        "Dropout(Bernoulli.matching(Gaussian(sigma=0.3)))",
        MATCHED.relative_variance,
        lambda: cd.Dropout(MATCHED),
    ),
    Method("adaptive", "AdaptiveDropout()", None, cd.AdaptiveDropout),
    Method(
        "DropConnect",
        'DropConnectLinear(..., activation="relu", inference="analytic")',
        HALF.relative_variance,
        linears=CONNECTIONS_DROPPED,
    ),
    Method(
        "fast dropout",
        "FastDropoutLinear(..., law=Bernoulli(0.5))",
        HALF.relative_variance,
        linears=INPUTS_DROPPED,
    ),
)


class Network(nn.Module):
    """64-64-64-10 with ReLU. Every method has the same parameter names, so one state dict fits all."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        sizes = (64, HIDDEN_UNITS, HIDDEN_UNITS, 10)
        self.linears = nn.ModuleList(make(i, o) for make, i, o in zip(method.linears, sizes, sizes[1:]))
        self.dropouts = nn.ModuleList(method.dropout() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for linear, dropout in zip(self.linears, self.dropouts):
            preactivation = linear(x)
            h = preactivation.relu()  # DropConnect has applied it already, and a second time changes nothing
            x = dropout(h, preactivation) if isinstance(dropout, cd.AdaptiveDropout) else dropout(h)
        return self.linears[-1](x)


@dataclasses.dataclass(frozen=True)
class Run:
    """What all methods of a run share."""

    seeds: list[int]
    training: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load_images(development: bool) -> tuple[Tensor, Tensor]:
    """The images of the comparison, or those kept apart for choosing the setting: the same whatever the seed."""
    pixels, digits = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(digits))
    chosen = shuffled[:DEVELOPMENT_IMAGES] if development else shuffled[DEVELOPMENT_IMAGES:]
    return torch.tensor(pixels[chosen] / 16, dtype=torch.float32), torch.tensor(digits[chosen])


def make_run(number: int, seed: int, images: tuple[Tensor, Tensor]) -> Run:
    # A stream of its own for each use (split, weights, order, masks of each method): if one draws more, no other shifts.
    seeds = np.random.SeedSequence([seed, number]).generate_state(3 + len(METHODS)).tolist()
    shuffled = torch.randperm(len(images[0]), generator=torch.Generator().manual_seed(seeds[0]))
    training, test = shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]
    return Run(seeds[1:], (images[0][training], images[1][training]), (images[0][test], images[1][test]))


def test_error_after_training(method: Method, run: Run, epochs: int) -> float:
    """Trains a network and returns its test error in per cent: the one time that the test images are used."""
    weight_seed, order_seed, *mask_seeds = run.seeds
    torch.manual_seed(weight_seed)
    initial_weights = Network(METHODS[0]).state_dict()
    network = Network(method)
    network.load_state_dict(initial_weights)
    torch.manual_seed(mask_seeds[METHODS.index(method)])
    train(network, *run.training, epochs, order=torch.Generator().manual_seed(order_seed))
    network.eval()
    images, digits = run.test
    with torch.no_grad():
        return 100 * (network(images).argmax(1) != digits).double().mean().item()


def train(network: Network, images: Tensor, digits: Tensor, epochs: int, order: torch.Generator) -> None:
    optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(BATCH_SIZE):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), digits[batch]).backward()
            optimiser.step()


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean paired difference of two methods' errors, its confidence interval and the p-value of 'no difference'."""

    mean: float
    low: float
    high: float
    p: float

    @classmethod
    def between(cls, errors: list[float], others: list[float]) -> Difference:
        differences = np.subtract(errors, others)
        mean, n = float(differences.mean()), len(differences)
        standard_error = float(differences.std(ddof=1)) / math.sqrt(n)
        if standard_error == 0:  # errors are counts of images, so equal differences are chance, not certainty
            return cls(mean, -math.inf, math.inf, 1.0)
        margin = standard_error * float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
        p = 2 * float(stats.t.sf(abs(mean) / standard_error, n - 1))
        return cls(mean, mean - margin, mean + margin, p)

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


@dataclasses.dataclass
class Result:
    """Error in per cent and seconds of each run of a method."""

    errors: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)


def compare(runs: list[Run], epochs: int) -> dict[str, Result]:
    results = {method.name: Result() for method in METHODS}
    screen = Console(stderr=True)  # so that standard output holds the results alone
    columns = (TextColumn("{task.description:17}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=len(METHODS) * len(runs))
        for method in METHODS:
            progress.update(task, description=method.name)
            result = results[method.name]
            for run in runs:
                start = time.perf_counter()
                result.errors.append(test_error_after_training(method, run, epochs))
                result.seconds.append(time.perf_counter() - start)
                progress.advance(task)
            if not screen.is_terminal:
                print(f"{method.name}: {len(runs)} runs in {sum(result.seconds):.1f} s", file=sys.stderr, flush=True)
    return results


def differences_to_baseline(results: dict[str, Result]) -> dict[str, Difference]:
    baseline = results[BASELINE].errors
    return {n: Difference.between(r.errors, baseline) for n, r in results.items() if n != BASELINE}


def result_table(results: dict[str, Result], images: str) -> Table:
    differences = differences_to_baseline(results)
    table = Table("method", "layer", title=f"Error on {images} images", title_justify="left")
    table.columns[1].overflow = "fold"
    for heading in ("error, %", f"minus {BASELINE}\n[95 % interval]", "noise\nstrength", "seconds\nper run"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method in METHODS:
        result = results[method.name]
        table.add_row(
            method.name,
            method.code.replace("[", r"\["),
            f"{np.mean(result.errors):.2f} ± {np.std(result.errors, ddof=1):.2f}",
            str(differences.get(method.name, "")).replace("[", r"\["),
            "by unit" if method.noise is None else f"{method.noise:.3f}",
            f"{np.mean(result.seconds):.2f}",
        )
    return table


def reading(results: dict[str, Result]) -> str:
    """What the numbers do and do not say."""
    differences = differences_to_baseline(results)
    runs = len(results[BASELINE].errors)
    apart = [name for name, d in differences.items() if d.p < 1 - CONFIDENCE]
    # Bonferroni: among several comparisons the smallest p-value is small by chance.
    surely = [name for name in apart if differences[name].p < (1 - CONFIDENCE) / len(differences)]
    control = Difference.between(results["Gaussian"].errors, results["Bernoulli matched"].errors)
    verdict = "cannot be told apart" if control.p >= 1 - CONFIDENCE else "differ"
    return "\n".join(lines)
