"""Two costs of the fast path, as ratios within one run: a layer with its own generator, and a ReLU before the layer.

    python benchmarks/fast_path.py [--rounds 200] [--threads 2] [--processor-time]

The first table: 100 elements, forward and backward, against torch.nn.Dropout. The second: an SGD step of
784-800-800-10, batch 128, each unit of the hidden layers against the same network with ReLUs alone; the last column is
what it costs above ``x * 2`` in the same place, the median over the rounds, in parts of the step without dropout.
"""

import argparse
import statistics
import time

import torch

import contdrop as cd
from contdrop_bench.sections import BATCH, LAYERS, _Doubled, _training_step
from contdrop_bench.timing import interleave

LAW = cd.Gaussian(sigma=0.3)


def small(rounds, clock):
    x = torch.randn(100, requires_grad=True)
    gradient = torch.ones(100)
    layers = {
        "torch.nn.Dropout": torch.nn.Dropout(0.5),
        "BernoulliDropout": cd.BernoulliDropout(0.5),
        "BernoulliDropout, own generator": cd.BernoulliDropout(0.5, generator=torch.Generator()),
        "GaussianDropout": cd.GaussianDropout(sigma=0.3),
        "GaussianDropout, own generator": cd.GaussianDropout(sigma=0.3, generator=torch.Generator()),
    }
    plain = x.detach()
    forward = {name: lambda layer=layer: layer(plain) for name, layer in layers.items()}
    both = {name: lambda layer=layer: torch.autograd.grad(layer(x), x, gradient) for name, layer in layers.items()}
    for title, calls in (("forward", forward), ("forward and backward", both)):
        show(f"100 elements, {title}", interleave(calls, rounds, clock=clock), "torch.nn.Dropout")


def step(rounds, clock):
    relu = torch.nn.ReLU

    def fused():
        network = torch.nn.Sequential(relu(), cd.Dropout(LAW))
        cd.fuse_relu(network)
        return list(network)

    units = {
        "relu": lambda: [relu()],
        "relu, x * 2": lambda: [relu(), _Doubled()],
        "relu, nn.Dropout": lambda: [relu(), torch.nn.Dropout(0.5)],
        "relu, GaussianDropout": lambda: [relu(), cd.Dropout(LAW)],
        "the same after fuse_relu": fused,
    }
    x, target = torch.randn(BATCH, LAYERS[0]), torch.randint(LAYERS[-1], (BATCH,))
    calls = {name: _training_step(unit, x, target) for name, unit in units.items()}
    times = interleave(calls, rounds, shortest=0.0, clock=clock)
    above = {
        name: statistics.median(
            (own - double) / plain
            for own, double, plain in zip(seconds, times["relu, x * 2"], times["relu"], strict=True)
        )
        for name, seconds in times.items()
    }
    show("SGD step 784-800-800-10", times, "relu", above)


def show(title, times, base, above=None):
    best = {name: min(seconds) for name, seconds in times.items()}
    print(f"{title} ({torch.get_num_threads()} threads, {cd.backend()})")
    for name, seconds in best.items():
        last = f"  {above[name]:+.3f}" if above else ""
        print(f"  {name:34} {seconds * 1e6:10.2f} us  {seconds / best[base]:.3f}{last}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="for one thread, where others are at work too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    small(options.rounds, clock)
    step(options.rounds, clock)
