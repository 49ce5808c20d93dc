"""Accuracy of ``contdrop.theory.dynamic.penalty`` for the expected loss of trained networks.

Networks are trained with dropout on the handwritten digits of scikit-learn, and with ``--mnist`` a 784-800-800-10
network on MNIST too. The truth is the mean over many passes of the real layers, of the cross entropy of 200 images that
were not trained on, minus the loss without noise. Printed are that increase with its standard error, and by how much
each method is off in per cent of it; its standard error limits what can be said.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import contdrop as cd
from contdrop.replication import datasets
from contdrop.theory.dynamic import penalty

METHODS = ("expectation", "moments", "gauss-newton")
LAWS = ("gaussian:sigma=0.3", "bernoulli:keep=0.5")
IMAGES = 200  # that the loss is measured on
COPIES = 10  # of them in a pass

Dropout = Callable[[], nn.Module]


def dense(inputs: int, hidden: int, activation: type[nn.Module], dropout: Dropout) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(inputs, hidden), activation(), dropout()),
        *(nn.Linear(hidden, hidden), activation(), dropout()),
        nn.Linear(hidden, 10),
    )


def convolutional(dropout: Dropout) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), dropout()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), dropout()),
        nn.Linear(128, 10),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


@torch.no_grad()
def truth(model: nn.Module, x: Tensor, y: Tensor, passes: int) -> tuple[float, float]:
    """Return E[loss with noise] - loss without, by passes of the real layers, and its standard error."""
    base = cross_entropy(model.eval()(x), y)
    model.train()
    losses = torch.stack(
        [cross_entropy(model(x.repeat(COPIES, 1)), y.repeat(COPIES)) for _ in range(passes // COPIES)]
    ).double()
    model.eval()
    return (losses.mean() - base).item(), losses.std().item() / math.sqrt(len(losses))


def report(name: str, law: str, model: nn.Module, x: Tensor, y: Tensor, passes: int) -> None:
    increase, error = truth(model, x, y, passes)
    base = cross_entropy(model(x), y).item()
    # Unflatten is only a view, which propagation does not know as a layer.
    if isinstance(model[0], nn.Unflatten):
        model, x = model[1:], model[0](x)
    cells = []
    for method in METHODS:
        start = time.perf_counter()
        value = penalty(model, x, y, cross_entropy, method=method)
        value.backward()
        seconds = time.perf_counter() - start
        cells.append(f"{100 * (value.item() / increase - 1):+7.1f} % {seconds:6.2f} s")
    print(f"{name:22} {law:19} {base:7.4f} {increase:8.5f} ± {error:.5f} {' '.join(cells)}", flush=True)


def split(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:-IMAGES], y[:-IMAGES], x[-IMAGES:], y[-IMAGES:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=10_000, help="of each image; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=40, help="on the digits; default: %(default)s")
    parser.add_argument("--mnist", action="store_true", help="784-800-800-10 on MNIST too, with a tenth of the passes")
    parser.add_argument("--mnist-epochs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--data-dir", type=pathlib.Path, help="where MNIST is; default: as contdrop data")
    options = parser.parse_args()
    print(f"{'network':22} {'law':19} {'loss':>7} {'dropout adds':>18} {'; '.join(METHODS)}: off, time with gradient")
    networks: dict[str, Callable[[Dropout], nn.Sequential]] = {
        "64-128-128-10 ReLU": lambda dropout: dense(64, 128, nn.ReLU, dropout),
        "64-128-128-10 sigmoid": lambda dropout: dense(64, 128, nn.Sigmoid, dropout),
        "convolutional": convolutional,
    }
    work = [("digits", name, make, options.epochs, options.passes) for name, make in networks.items()]
    if options.mnist:
        paper = ("784-800-800-10 ReLU", lambda dropout: dense(784, 800, nn.ReLU, dropout))
        work.append(("mnist", *paper, options.mnist_epochs, options.passes // 10))
    for source, name, make, epochs, passes in work:
        found = datasets.load(source, datasets.directory(options.data_dir))
        images = torch.as_tensor(found.train_images).float().flatten(1)
        parts = split(images / found.divisor, torch.as_tensor(found.train_labels).long())
        for law in LAWS:
            torch.manual_seed(0)
            model = make(lambda law=law: cd.Dropout(cd.parse_law(law)))  # type: ignore[misc]
            train(model, *parts[:2], epochs)
            report(name, law, model, *parts[2:], passes)


if __name__ == "__main__":
    main()
