"""Training several small networks at once with stacked parameters: steps of SGD on 64-128-128-10.

Processor time of one thread per step and network, the best of several rounds; plain torch, and `torch.func.vmap`.

python benchmarks/stacked.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

BATCH = 100


def network() -> nn.Module:
    hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 128), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*hidden, nn.Linear(128, 10))


def alone() -> Callable[[], None]:
    model, x, y = network(), torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def stacked(count: int) -> Callable[[], None]:
    found, _ = stack_module_state([network() for _ in range(count)])
    parameters = {name: value.detach() for name, value in found.items()}
    momentum = {name: torch.zeros_like(value) for name, value in parameters.items()}
    x, y, base = torch.randn(count, BATCH, 64), torch.randint(0, 10, (count, BATCH)), network().to("meta")

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(base, values, (x,)), y)

    gradients = vmap(grad(loss), randomness="different")

    def step() -> None:
        for name, gradient in gradients(parameters, x, y).items():
            momentum[name].mul_(0.9).add_(gradient)
            parameters[name].add_(momentum[name], alpha=-0.1)

    return step


def measure(step: Callable[[], None], steps: int = 60, rounds: int = 5) -> float:
    """Return the seconds of a step."""
    times = []
    for _ in range(rounds + 1):
        begin = time.process_time()
        for _ in range(steps):
            step()
        times.append((time.process_time() - begin) / steps)
    return min(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    single = measure(alone())
    print(f"alone: {1e3 * single:.2f} ms per step")
    for count in (2, 4, 8, 16):
        each = measure(stacked(count)) / count
        print(f"{count} together: {1e3 * each:.2f} ms per step and network, {single / each:.2f} times as fast")


if __name__ == "__main__":
    main()
