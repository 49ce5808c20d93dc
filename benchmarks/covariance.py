"""Time, memory and accuracy of ``contdrop.coadaptation`` on the paper's figure.

A 784-800-800-10 ReLU network with dropout after both hidden layers, 10 inputs, 10 000 repeats, the covariances of both
layers. Beside it, what one would write by hand: all repeats of an input in one batch, and ``torch.cov`` in float32 or
float64. Each contestant runs in a process of its own, so that its peak memory is its own. Errors are those of the
first input, against numpy in float64 on the same activations.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from torch import Tensor, nn

import contdrop as cd
from contdrop import coadaptation

LAYERS = ("2", "5")
CONTESTANTS = ("coadaptation", "torch.cov, float32", "torch.cov, float64")
GOALS = {"seconds": 60.0, "megabytes": 1000.0, "error": 1e-6}


def network(law: str) -> nn.Sequential:
    def dropout() -> cd.Dropout:
        return cd.Dropout(cd.parse_law(law))

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 800), nn.ReLU(), dropout(), nn.Linear(800, 800), nn.ReLU(), dropout(), nn.Linear(800, 10)
    )


def by_hand(model: nn.Module, x: Tensor, repeats: int, dtype: torch.dtype) -> dict[str, Tensor]:
    model.train()
    outputs: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(layer).register_forward_hook(lambda _m, _x, y, layer=layer: outputs.update({layer: y}))
        for layer in LAYERS
    ]
    covariances: dict[str, list[Tensor]] = {layer: [] for layer in LAYERS}
    with torch.no_grad():
        for one in x:
            model(one.expand(repeats, -1))
            for layer in LAYERS:
                covariances[layer].append(torch.cov(outputs[layer].to(dtype).T).float())
    for hook in hooks:
        hook.remove()
    return {layer: torch.stack(matrices) for layer, matrices in covariances.items()}


def run(contestant: str, model: nn.Module, x: Tensor, repeats: int) -> dict[str, Tensor]:
    if contestant == "coadaptation":
        return coadaptation(model, x, LAYERS, repeats).covariances
    return by_hand(model, x, repeats, torch.float32 if contestant.endswith("32") else torch.float64)


def error(contestant: str, model: nn.Sequential, x: Tensor, repeats: int) -> float:
    """Return the largest error of a covariance, in units of sd_i sd_j."""
    stored: dict[str, list[Tensor]] = {layer: [] for layer in LAYERS}
    for layer in LAYERS:
        model.get_submodule(layer).register_forward_hook(lambda _m, _x, y, layer=layer: stored[layer].append(y.clone()))
    covariances = run(contestant, model, x[:1], repeats)
    largest = 0.0
    for layer in LAYERS:
        # Without the trial pass of two copies, and without the surplus of the last batch.
        values = torch.cat([output for output in stored[layer] if len(output) > 2])[:repeats].double().numpy()
        expected = np.cov(values, rowvar=False)
        deviation = np.sqrt(expected.diagonal())
        varies = deviation > 0
        ratio = np.abs(covariances[layer][0].numpy() - expected)[varies][:, varies]
        largest = max(largest, float((ratio / np.outer(deviation[varies], deviation[varies])).max()))
    return largest


def peak() -> float:
    """Return the peak memory of this process in megabytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 1e6 if sys.platform == "darwin" else size * 1024 / 1e6


def measure(contestant: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure one contestant in this process."""
    if options.threads:
        torch.set_num_threads(options.threads)
    model, x = network(options.law), torch.rand(options.inputs, 784)
    run(contestant, model, x[:1], 10)
    before = peak()
    start = time.perf_counter()
    run(contestant, model, x, options.repeats)
    seconds = time.perf_counter() - start
    megabytes = peak() - before
    return {
        "seconds": seconds,
        "megabytes": megabytes,
        "error": error(contestant, model, x, options.repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10_000, help="at least 3; default: %(default)s")
    parser.add_argument("--inputs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--law", default="gaussian:sigma=0.3", help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", choices=CONTESTANTS, help="one contestant, in this process; prints JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options)))
        return
    results = {}
    for contestant in CONTESTANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", contestant]
        results[contestant] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{options.inputs} inputs, {options.repeats} repeats, layers of 800 and 800 units, {options.law}")
    print(f"{'':20} {'seconds':>9} {'extra MB':>9} {'error':>9}")
    for name, figures in (*results.items(), ("goal: below", GOALS)):
        print(f"{name:20} {figures['seconds']:9.2f} {figures['megabytes']:9.0f} {figures['error']:9.1e}")


if __name__ == "__main__":
    main()
