"""Speed of shared axes, layouts other than contiguous, and DropConnect with a mask per example.

    python benchmarks/layouts.py [--rounds 9] [--threads 1 2] [--sections shared layouts dropconnect] [--processor-time]

Contestants take turns within a round and the best round counts, so what is printed are ratios of one run:

- shared: ``shared_axes=(2, 3)`` with a Gaussian law against ``nn.Dropout2d``, forward in training and forward+backward;
- layouts: dropout of channels-last and transposed tensors against ``x * w`` of the same layout, forward in training
  and forward+backward, with the same for contiguous tensors beside it: what the generator costs in any layout;
- dropconnect: a training step, forward and both gradients, against two draws of its masks. A draw is elementwise
  dropout of as many elements: once of one tensor [examples, out, in], which is fresh memory, and once of [out, in] for
  every example, which stays in the caches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import contdrop as cd
from contdrop import kernels
from contdrop.laws import KernelLaw
from contdrop_bench.environment import keep_freed_memory
from contdrop_bench.timing import interleave

SHARED = ((32, 16, 5, 5), (64, 32, 7, 7), (32, 64, 14, 14), (64, 128, 28, 28))
IMAGES = ((32, 16, 5, 5), (32, 64, 14, 14), (64, 128, 28, 28))
MATRICES = ((128, 800), (512, 512), (1024, 4096))
CONNECTED = ((64, 800, 784), (128, 512, 512))
CLOCK = [time.perf_counter]
LAWS = {"bernoulli": cd.Bernoulli(keep=0.5), "uniform": cd.Uniform(), "gaussian": cd.Gaussian(sigma=0.3)}


def race(contestants: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return seconds per call, the best of several rounds in which all contestants take turns."""
    times = interleave(dict(enumerate(contestants)), rounds, clock=CLOCK[-1])
    return [min(times[place]) for place in range(len(contestants))]


def both_ways(
    layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    x = x.detach().requires_grad_()
    ones = torch.ones_like(x)
    return lambda: layer(x), lambda: torch.autograd.grad(layer(x), x, ones)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def shared(rounds: int) -> None:
    for shape in SHARED:
        for name, place in (("contiguous", torch.clone), ("channels-last", channels_last)):
            x = place(torch.randn(shape))
            ours, theirs = cd.Dropout(LAWS["gaussian"], shared_axes=(2, 3)), torch.nn.Dropout2d()
            times = race([*both_ways(theirs, x), *both_ways(ours, x)], rounds)
            print(
                f"  {name:13} {shape!s:18} nn.Dropout2d {times[0] * 1e6:8.1f} us: "
                f"forward {times[2] / times[0]:.2f}, forward+backward {times[3] / times[1]:.2f}",
                flush=True,
            )


def layouts(rounds: int) -> None:
    cases = [("channels-last", shape, lambda shape: channels_last(torch.randn(shape))) for shape in IMAGES]
    cases += [("transposed", shape, lambda shape: torch.randn(shape[::-1]).t()) for shape in MATRICES]
    for name, shape, make in cases:
        x, w, plain = make(shape), make(shape), torch.randn(shape)
        calls = [*both_ways(lambda x, w=w: x * w, x)]
        for law in LAWS.values():
            layer = cd.Dropout(law)
            calls += [*both_ways(layer, x), *both_ways(layer, plain)]
        times = race(calls, rounds)
        for way, product in enumerate(times[:2]):
            ours, contiguous = times[2 + way :: 4], times[4 + way :: 4]
            parts = [
                f"{law} {here / product:.2f} (contiguous {there / product:.2f})"
                for law, here, there in zip(LAWS, ours, contiguous, strict=True)
            ]
            passes = ("forward", "forward+backward")[way]
            print(f"  {name:13} {shape!s:18} {passes:16} x * w {product * 1e6:8.1f} us: {', '.join(parts)}", flush=True)


def dropconnect(rounds: int) -> None:
    law = LAWS["gaussian"]
    for examples, outputs, inputs in CONNECTED:
        layer = cd.DropConnectLinear(inputs, outputs, bias=False, law=law)
        x = torch.randn(examples, inputs, requires_grad=True)
        ones = torch.ones(examples, outputs)
        one, seed = torch.randn(outputs, inputs), torch.tensor(5)

        def draw(tensor: torch.Tensor, seed: torch.Tensor = seed) -> torch.Tensor:
            return kernels.ops.dropout(tensor, seed, KernelLaw(law.kind, law.params, 2.0), [], kernels.STREAM_MASK)

        def draws(one: torch.Tensor = one, examples: int = examples) -> None:
            for _ in range(examples):
                draw(one)

        def step(x: torch.Tensor = x, layer: torch.nn.Module = layer, ones: torch.Tensor = ones) -> object:
            return torch.autograd.grad(layer(x), (x, layer.weight), ones)

        whole = torch.randn(examples, outputs, inputs)
        taken, cached, fresh = race([step, draws, lambda whole=whole: draw(whole)], max(3, rounds // 2))
        print(
            f"  {examples} x {outputs} x {inputs}: a step {taken * 1e3:.1f} ms, of two draws "
            f"{taken / 2 / cached:.2f} (in the caches) and {taken / 2 / fresh:.2f} (fresh memory)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sections = {"shared": shared, "layouts": layouts, "dropconnect": dropconnect}
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sections", nargs="+", choices=list(sections), default=list(sections))
    parser.add_argument("--processor-time", action="store_true", help="for one thread, where others are at work too")
    options = parser.parse_args()
    if options.processor_time:
        CLOCK.append(time.process_time)
    keep_freed_memory()
    print(f"{cd.backend()}, torch {torch.__version__}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.sections:
            print(f"{name}, {threads} thread{'s' if threads > 1 else ''}")
            sections[name](options.rounds)


if __name__ == "__main__":
    main()
