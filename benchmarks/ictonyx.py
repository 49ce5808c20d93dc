"""The same small study with this lab and with ictonyx in turn: training steps per second on all cores.

64-128-128-10 on scikit-learn's digits, batch 20, AdamW at a rate of 0.001, two models (dropout 0.5, none), ten runs
each. ictonyx may live in an environment of its own; give that one's Python. Each side first does a small study that
does not count: it leaves Python's bytecode behind, as whoever has used a package once has it. The lab's own AdamW is
torch's fused one; ictonyx takes torch's default, or the fused one, too, with --fused.

python benchmarks/ictonyx.py --peer /path/to/python [--epochs 80] [--runs 10] [--fused]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

EXAMPLES, BATCH = 1200, 20
GOAL = 4.0

PEER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from torch import nn
from sklearn.datasets import load_digits
import ictonyx as ix
from ictonyx import ArraysDataHandler, PyTorchModelWrapper

batch, fused, epochs, runs = map(int, sys.argv[1:])
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

def builder(dropout):
    def build(config):
        off = [nn.Dropout(0.5)] if dropout else []
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *off, nn.Linear(128, 128), nn.ReLU(), *off,
                              nn.Linear(128, 10))
        return PyTorchModelWrapper(model, criterion=nn.CrossEntropyLoss(), optimizer_class=torch.optim.AdamW,
                                   optimizer_params={"lr": 0.001, "fused": bool(fused)}, task="classification")
    build.__name__ = "dropout" if dropout else "none"
    return build

start = time.perf_counter()
n = len(x)
ix.compare_models(models=[builder(True), builder(False)],
                  data=ArraysDataHandler(x, y.astype("int64"), val_split=0.1, test_split=(n - 1200) / n - 0.1),
                  runs=runs, epochs=epochs, batch_size=batch, metric="val_accuracy", seed=0,
                  verbose=False)
print("SECONDS", time.perf_counter() - start)
"""


def own_seconds(epochs: int, runs: int) -> float:
    from sklearn.datasets import load_digits
    from torch import nn

    from contdrop import lab

    def data():
        x, y = load_digits(return_X_y=True)
        x = (x / 16).astype("float32")
        first, last = EXAMPLES, EXAMPLES + 180
        return lab.Data((x[:first], y[:first]), test=(x[last:], y[last:]), validation=(x[first:last], y[first:last]))

    def model():
        layers = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.Linear(128, 10))

    study = lab.Study(
        "beside-ictonyx",
        data,
        model,
        methods=["original", "none"],
        batch_size=BATCH,
        epochs=epochs,
        runs=runs,
    )
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        lab.compare(study, store=pathlib.Path(directory) / "runs.db", progress=False, device="cpu")
        return time.perf_counter() - start


def seconds_of(command: list[str], epochs: int, runs: int) -> float:
    """Return the result that a program reports in its second start."""
    with tempfile.TemporaryDirectory() as bytecode:
        # As for anyone who has just installed it: torch takes as many threads as it likes.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for size in ((1, 2), (epochs, runs)):
            whole = [*command, *map(str, size)]
            done = subprocess.run(whole, capture_output=True, text=True, check=False, env=environment)
            lines = [line for line in done.stdout.splitlines() if line.startswith("SECONDS")]
            if done.returncode or not lines:
                raise SystemExit(f"{command[0]}: did not run: {done.stderr.strip().splitlines()[-1:]}")
        return float(lines[0].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", nargs=2, type=int, metavar=("EPOCHS", "RUNS"), help=argparse.SUPPRESS)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has ictonyx (default: this one)")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fused", action="store_true", help="the fused AdamW for ictonyx, too")
    options = parser.parse_args()
    if options.own:
        print("SECONDS", own_seconds(*options.own))
        return
    steps = 2 * options.runs * options.epochs * EXAMPLES // BATCH
    found = {
        "contdrop": seconds_of([sys.executable, __file__, "--own"], options.epochs, options.runs),
        "ictonyx": seconds_of(
            [options.peer, "-c", PEER, str(BATCH), str(int(options.fused))], options.epochs, options.runs
        ),
    }
    for name, seconds in found.items():
        print(f"{name}: {seconds:.1f} s, {steps / seconds:,.0f} steps per second, start-up included")
    ratio = found["ictonyx"] / found["contdrop"]
    print(f"{ratio:.1f} times as fast; goal {GOAL:.0f}: {'met' if ratio >= GOAL else 'missed'}")
    print(json.dumps({"steps": steps, **found}))


if __name__ == "__main__":
    main()
