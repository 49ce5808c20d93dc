"""The networks of the paper's other data sets: multiply-adds, training steps against the same network in plain torch,
and the cost of augmentation.

One thread, and its processor time, which other programs hardly change; steps of both alternate, and the median of the
ratios counts. The lab's step is a whole one of its training loop: batch, forward, backward, update, running figures.

python benchmarks/networks.py [--steps 7] [--only nin|vgg|augmentation]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.study.methods import parse
from contdrop.lab.study.plan import Variant, plan
from contdrop.lab.training.trainer import Trainer
from contdrop.replication.augmentation import Affine
from contdrop.replication.networks import NIN, VGG, ConvLocal, Model
from contdrop.replication.networks.conv_local import LocallyConnected2d

GOAL, GOAL_OF_AUGMENTATION = 5.0, 10.0  # per cent
SHAPES = {"NIN": (NIN(), (3, 32, 32)), "SVHN": (ConvLocal(), (3, 28, 28)), "VGG-16": (VGG(), (3, 224, 224))}
SHAPES["NORB"] = (ConvLocal(image=(2, 48, 48), classes=6), (2, 48, 48))


def multiply_adds(model: Model, shape: tuple[int, int, int]) -> int:
    """Return the multiply-adds of one forward pass, in convolutions, local and fully connected layers."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            total += layer.weight.numel() * output[0].numel() // layer.weight.shape[0]
        elif isinstance(layer, LocallyConnected2d):
            total += layer.weight.numel()

    network = model(parse("none")).eval()
    for layer in network.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        network(torch.zeros(1, *shape))
    return total


def plain_nin() -> nn.Sequential:
    def block(channels: int, *maps: int, kernel: int) -> Iterator[nn.Module]:
        for number, size in zip(maps, (kernel, 1, 1)):
            yield nn.Conv2d(channels, number, size, padding=size // 2)
            yield nn.ReLU(inplace=True)
            channels = number

    return nn.Sequential(
        *(*block(3, 192, 160, 96, kernel=5), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(*block(96, 192, 192, 192, kernel=5), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(*block(192, 192, 192, 10, kernel=3), nn.Flatten()),
        *(nn.Linear(640, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    ).to(memory_format=torch.channels_last)


def plain_vgg(side: int, hidden: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for stage in VGG().stages:
        for maps in stage:
            layers += [nn.Conv2d(channels, maps, 3, padding=1), nn.ReLU(inplace=True)]
            channels = maps
        layers.append(nn.MaxPool2d(2))
    dense = [nn.Linear(channels * (side // 32) ** 2, hidden), nn.ReLU(), nn.Dropout(0.5)]
    dense += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def plain_step(network: nn.Module, x: Tensor, y: Tensor, size: int, layout: torch.memory_format) -> Callable[[], None]:
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9, fused=True)
    order = itertools.cycle(torch.randperm(len(x)).split(size))
    network.train()

    def step() -> None:
        chosen = next(order)
        batch = x.index_select(0, chosen).to(memory_format=layout)
        loss = nn.functional.cross_entropy(network(batch), y.index_select(0, chosen))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def lab_step(model: Model, x: Tensor, y: Tensor, size: int, **settings: object) -> Callable[[], None]:
    """Run an epoch of one step."""
    transform = settings.pop("transform", None)
    study = lab.Study(
        "benchmark",
        lambda: lab.Data(train=(x, y), test=(x[:1], y[:1]), validation=(x[:1], y[:1]), transform=transform),
        model,
        methods=("bernoulli",),
        reference="bernoulli",
        optimizer=lambda network: torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9, fused=True),
        batch_size=size,
        epochs=1000,
    ).replace(epoch_steps=1, **settings)
    (job,) = plan(study, runs=1)
    assert study.data is not None
    training = Trainer(job, Variant.parse("bernoulli"), prepare(study.data(), task="classification"))
    return lambda: (training._train(), None)[1]


def compare(title: str, ours: Callable[[], None], plain: Callable[[], None], steps: int, *, share: bool) -> None:
    """Return the ratio of both, or with ``share`` the part of ours that is not in the plain one."""
    times: dict[Callable[[], None], list[float]] = {ours: [], plain: []}
    for number in range(steps + 1):  # the first does not count
        for step in (ours, plain) if number % 2 else (plain, ours):
            begun = time.process_time()
            step()
            times[step].append(time.process_time() - begun)
    pairs = list(zip(times[ours], times[plain]))[1:]
    found = statistics.median(100 * (1 - p / o) if share else 100 * (o / p - 1) for o, p in pairs)
    goal = GOAL_OF_AUGMENTATION if share else GOAL
    verdict = "ok" if found <= goal else "FAIL"
    what = "of the step" if share else "more than plain"
    middle = statistics.median(times[ours][1:])
    print(f"{title}: {middle:.3f} s a step, {found:+.1f} % {what}, at most {goal:g}: {verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--only", choices=["counts", "nin", "vgg", "augmentation"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.only in (None, "counts"):
        for name, (model, shape) in SHAPES.items():
            print(f"{name}: {multiply_adds(model, shape) / 1e6:,.1f} million multiply-adds a forward pass", flush=True)
    y = torch.arange(256) % 6
    if options.only in (None, "nin"):
        x = torch.randn(256, 3, 32, 32)
        ours, plain = lab_step(NIN(), x, y, 32), plain_step(plain_nin(), x, y, 32, torch.channels_last)
        compare("NIN, batch 32", ours, plain, options.steps, share=False)
    if options.only in (None, "vgg"):
        x = torch.randn(64, 3, 64, 64)
        model = VGG(side=64, hidden=1024)
        ours = lab_step(model, x, y[:64], 4)
        plain = plain_step(plain_vgg(64, 1024), x, y[:64], 4, torch.contiguous_format)
        compare("VGG-16 of 64 pixels and 1024 units, batch 4", ours, plain, options.steps, share=False)
    if options.only in (None, "augmentation"):
        for name, model, changes in (
            ("SVHN", ConvLocal(), Affine(side=28, flip=True)),
            ("NORB", ConvLocal(image=(2, 48, 48), classes=6), Affine()),
        ):
            channels, height, _ = model.image
            side = 32 if name == "SVHN" else height
            x = torch.randint(0, 256, (256, channels, side, side), dtype=torch.uint8)
            steps = [
                lab_step(model, x, y, 128, forward=changes.forward, transform=transform)
                for transform in (changes.draw, None)
            ]
            compare(f"augmentation for {name}, batch 128", steps[0], steps[1], options.steps, share=True)


if __name__ == "__main__":
    main()
