"""Overhead of the lab's training loop over a plain loop with the same model, batches and optimizer.

One thread, and its processor time, which other programs hardly change; epochs of both alternate, and the best of each
counts. The plain loop keeps no figures but the sum of the losses; the lab's also keeps the training error. Evaluation
is not part of it. Freed memory is kept, as in contdrop bench: otherwise one of the two pays for fresh pages by luck.

python benchmarks/study_overhead.py [--repeats 7]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.study.plan import Variant, plan
from contdrop.lab.training.trainer import Trainer
from contdrop_bench.environment import keep_freed_memory

GOAL = 5.0  # per cent


class Transformer(nn.Module):
    """Two layers of width 64 on sequences of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(64, 10)

    def forward(self, codes: Tensor) -> Tensor:
        result: Tensor = self.output(self.layers(self.symbols(codes)).mean(1))
        return result


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, 10),
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(512, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )


def plain_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, size: int) -> float:
    model.train()
    total = torch.zeros(())
    for chosen in torch.randperm(len(x)).split(size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(total)


def measure(name: str, make: type[nn.Module] | object, x: Tensor, size: int, repeats: int) -> None:
    y = torch.randint(10, (len(x),))
    study = lab.Study(
        "overhead",
        lambda: lab.Data(train=(x, y), test=(x[:50], y[:50]), validation=(x[:50], y[:50])),
        make,
        batch_size=size,
        epochs=repeats + 1,
        methods=["original"],
    )
    job = plan(study)[0]
    training = Trainer(job, Variant.parse(job.method), prepare(study.data(), task=study.task))
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)  # as the lab's own
    steps = -(-len(x) // size)
    seconds: dict[str, list[float]] = {"plain": [], "lab": []}
    for _ in range(repeats + 1):  # the first warms up
        start = time.process_time()
        plain_epoch(model, optimizer, x, y, size)
        middle = time.process_time()
        training._train()
        training.epoch += 1
        seconds["plain"].append(middle - start)
        seconds["lab"].append(time.process_time() - middle)
    plain, own = (1e6 * min(seconds[key][1:]) / steps for key in ("plain", "lab"))
    extra = 100 * (own / plain - 1)
    verdict = "met" if extra <= GOAL else "missed"
    print(f"| {name} | {plain:.0f} | {own:.0f} | {extra:+.1f} % | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="epochs of each (default: %(default)s)")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    print(f"| model | plain loop, µs per step | lab | overhead | goal: {GOAL:.0f} % |\n|---|---|---|---|---|")
    measure("MLP 64-128-128-10, batch 20", mlp, torch.randn(4000, 64), 20, repeats)
    measure("CNN on 28x28, batch 64", cnn, torch.randn(1280, 1, 28, 28), 64, repeats)
    measure("transformer, 2 layers of 64, batch 32", Transformer, torch.randint(100, (640, 32)), 32, repeats)


if __name__ == "__main__":
    main()
