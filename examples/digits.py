"""Every dropout of contdrop on scikit-learn's handwritten digits: an honest, paired comparison.

In run i all methods share the images, the initial weights and the data order; only the masks differ. Methods are then
compared run by run, which removes the luck of a split or a start from their difference. Needs contdrop[lab].
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

import contdrop as cd

INTRODUCTION = """\
Bernoulli dropout is a light switch: while a network learns, it turns each hidden unit on or off at random; continuous \
dropout is a dimmer that sets it to any level between. Here one small network learns handwritten digits with each \
method, {runs} times from the same starts, to see whether the kind of noise matters or only its strength.
"""

# One setting for all methods, chosen on development images that the comparison never sees (--development shows the
# validation errors). The strength of each method's noise is the paper's and was not tuned.
DEVELOPMENT_IMAGES = 500
TRAINING_IMAGES = 100  # so few that a network without dropout fits them perfectly, yet errs on one new image in eight
HIDDEN_UNITS = 128  # in each of two hidden layers; with 64 the validation error is about one point higher
BATCH_SIZE = 25
EPOCHS = 80  # after 40, 60, 80 the validation error, averaged over the methods, is 12.4, 12.2, 12.0 %
LEARNING_RATE = 0.005  # Adam's; 0.002 does as well, and with 64 units 0.01 and 0.02 did worse
CONFIDENCE = 0.95
BASELINE = "Bernoulli"

ALWAYS_ON, HALF, GAUSSIAN = cd.Bernoulli(keep=1.0), cd.Bernoulli(keep=0.5), cd.Gaussian(sigma=0.3)
MATCHED = cd.Bernoulli.matching(GAUSSIAN)  # the control: a switch as noisy as the dimmer

Images = tuple[Tensor, Tensor]  # pixels and digits


@dataclass(frozen=True)
class Method:
    """A way to build the network: its mask law (None: differs from unit to unit) and its layers."""

    name: str
    code: str
    law: cd.Law | None
    after_hidden: Callable[[], nn.Module] = nn.Identity
    linears: tuple[Callable[[int, int], nn.Linear], ...] = (nn.Linear, nn.Linear, nn.Linear)


# DropConnect masks the weights of the hidden layers; "analytic" is the limit of its default, the mean of 1000 samples.
# Fast dropout is dropout on the hidden activations, integrated into the linear layers that read them.
DROP_CONNECT = partial(cd.DropConnectLinear, activation="relu", inference="analytic")
DROP_CONNECT_CODE = 'DropConnectLinear(..., activation="relu", inference="analytic")'
FAST, FAST_CODE = partial(cd.FastDropoutLinear, law=HALF), "FastDropoutLinear(..., law=Bernoulli(0.5))"
METHODS = (
    Method("no dropout", "", ALWAYS_ON),
    Method(BASELINE, "BernoulliDropout(0.5)", HALF, lambda: cd.BernoulliDropout(0.5)),
    Method("uniform", "UniformDropout()", cd.Uniform(), cd.UniformDropout),
    Method("Gaussian", "GaussianDropout(0.3)", GAUSSIAN, lambda: cd.GaussianDropout(0.3)),
    Method("Bernoulli matched", f"Dropout(Bernoulli(keep={MATCHED.keep:.3f}))", MATCHED, lambda: cd.Dropout(MATCHED)),
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


def load_images(development: bool) -> Images:
    """The images to compare on, or those set apart for choosing the setting; which is which depends on no option."""
    pixels, digits = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(digits))
    chosen = shuffled[:DEVELOPMENT_IMAGES] if development else shuffled[DEVELOPMENT_IMAGES:]
    return torch.tensor(pixels[chosen] / 16, dtype=torch.float32), torch.tensor(digits[chosen])


def seeds_of_run(number: int, seed: int) -> dict[str, int]:
    """A seed for each use of chance, lest a method that draws more numbers shift another one's data order."""
    uses = ("split", "weights", "order", *(method.name for method in METHODS))
    return dict(zip(uses, np.random.SeedSequence([seed, number]).generate_state(len(uses)).tolist()))


def train(network: Network, pixels: Tensor, digits: Tensor, epochs: int, order: torch.Generator) -> None:
    optimiser = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.randperm(len(digits), generator=order).split(BATCH_SIZE):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(pixels[batch]), digits[batch]).backward()
            optimiser.step()


def error_of_run(method: Method, seeds: dict[str, int], images: Images, epochs: int) -> float:
    """Trains, then looks at the test images, for the only time, and returns the error on them in per cent."""
    pixels, digits = images
    shuffled = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seeds["split"]))
    training, test = shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]
    network = Network(method)
    torch.manual_seed(seeds["weights"])
    network.load_state_dict(Network(METHODS[0]).state_dict())
    torch.manual_seed(seeds[method.name])  # from here on, torch's default generator is drawn from by masks only
    train(network, pixels[training], digits[training], epochs, torch.Generator().manual_seed(seeds["order"]))
    with torch.no_grad():
        return 100 * (network.eval()(pixels[test]).argmax(1) != digits[test]).double().mean().item()


@dataclass(frozen=True)
class Difference:
    """Mean paired difference of two methods' errors, its t interval, and the p-value of there being none."""

    mean: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired_difference(errors: list[float], others: list[float]) -> Difference:
    differences = np.subtract(errors, others)
    if np.ptp(differences) < 1e-9:  # runs that agree exactly do so by chance, for errors are counts: assume one image
        differences[:2] += (0.1, -0.1)
    test = stats.ttest_1samp(differences, 0)
    interval = test.confidence_interval(CONFIDENCE)
    return Difference(*(float(x) for x in (differences.mean(), interval.low, interval.high, test.pvalue)))


@dataclass
class Result:
    """What the runs of one method gave; errors in per cent."""

    method: str
    layer: str
    relative_variance: float | None
    errors: list[float]
    seconds: list[float]
    minus_bernoulli: Difference | None = None


def compare(options: argparse.Namespace) -> dict[str, Result]:
    images, runs = load_images(options.development), [seeds_of_run(i, options.seed) for i in range(options.runs)]
    results = {m.name: Result(m.name, m.code, m.law.relative_variance if m.law else None, [], []) for m in METHODS}
    screen = Console(stderr=True)  # standard output is for results
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=len(METHODS) * len(runs))
        for method in METHODS:
            progress.update(task, description=f"{method.name:17}")
            result = results[method.name]
            for seeds in runs:
                start = time.perf_counter()
                result.errors.append(error_of_run(method, seeds, images, options.epochs))
                result.seconds.append(time.perf_counter() - start)
                progress.advance(task)
            if not screen.is_terminal:
                print(f"{method.name}: {len(runs)} runs in {sum(result.seconds):.1f} s", file=sys.stderr, flush=True)
    for name in results.keys() - {BASELINE}:
        results[name].minus_bernoulli = paired_difference(results[name].errors, results[BASELINE].errors)
    return results


def result_table(results: dict[str, Result], measure: str) -> Table:
    table = Table("method", Column("layer", overflow="fold"), box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (f"{measure}\nerror, %", "minus Bernoulli\n[95 % interval]", "noise\nstrength", "seconds\nper run"):
        table.add_column(heading, justify="right")
    for r in results.values():
        error = f"{np.mean(r.errors):.2f} ± {np.std(r.errors, ddof=1):.2f}"
        noise = "by unit" if r.relative_variance is None else f"{r.relative_variance:.3f}"
        # The median, because the first run also pays for what torch loads late.
        table.add_row(r.method, r.layer, error, str(r.minus_bernoulli or ""), noise, f"{np.median(r.seconds):.2f}")
    return table


def reading(results: dict[str, Result]) -> str:
    """What the table says, worked out from the results."""
    differences = {name: r.minus_bernoulli for name, r in results.items() if r.minus_bernoulli}
    runs, risk = len(results[BASELINE].errors), 1 - CONFIDENCE
    apart = [f"{name} ({'better' if d.mean < 0 else 'worse'})" for name, d in differences.items() if d.p < risk]
    # Bonferroni: the more one compares, the likelier something stands out by chance.
    beyond_chance = [name for name, d in differences.items() if d.p < risk / len(differences)]
    control = paired_difference(results["Gaussian"].errors, results["Bernoulli matched"].errors)
    return f"""\
Negative is fewer errors than Bernoulli. Noise strength is the variance of a mask value over its squared mean.
Distinguishable from Bernoulli with {runs} runs: {", ".join(apart) or "none"}; \
after correction for {len(differences)} comparisons: {", ".join(beyond_chance) or "none"}.
Dimmer minus switch of equal noise strength (Gaussian minus Bernoulli matched): {control}, \
{"distinguishable" if control.p < risk else "not distinguishable"} from 0.
All this is one small network on {TRAINING_IMAGES} training images at a time: yours may differ."""


def parse_options() -> argparse.Namespace:
    # Without a usage text, argparse reports a mistake in one line.
    what = "Train one network with every dropout of contdrop on handwritten digits, and compare them run by run."
    parser = argparse.ArgumentParser(description=what, usage=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=15, help="runs per method, at least 2 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="training epochs, at least 1 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another number gives other runs (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all results, run by run, as JSON instead")
    parser.add_argument("--development", action="store_true", help="use the images on which the setting was chosen")
    options = parser.parse_args()
    for name, least in (("runs", 2), ("epochs", 1), ("seed", 0)):
        if (value := getattr(options, name)) < least:
            parser.error(f"expected --{name} to be a whole number of at least {least}, got {value}")
    return options


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # in so small a network a second thread costs more than it gives
    screen = Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    if not options.json:
        screen.print(INTRODUCTION.format(runs=options.runs))
    results = compare(options)
    if options.json:
        print(json.dumps({**vars(options), "results": [asdict(result) for result in results.values()]}, indent=2))
    else:
        screen.print(result_table(results, "validation" if options.development else "test"))
        screen.print(reading(results))


if __name__ == "__main__":
    main()
