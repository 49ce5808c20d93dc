"""Mask generation in two builds of contdrop: the new one's time as a ratio of the old one's.

Each build runs in a worker process of its own interpreter. The two take turns at one setting, in another order each
round, and the best round of each counts, so what disturbs the machine disturbs both. Only what both builds can do by
the same public names is called: ``contdrop.functional.dropout`` and ``dropconnect_linear`` on tensors of ones.

    python benchmarks/masks_old_new.py OLD_PYTHON NEW_PYTHON [--what dropout] [--threads 1 2]
        [--shapes 1024x4096 128x800] [--types float32] [--laws uniform gaussian:sigma=0.3] [--rounds 15] [--json]
        [--clock processor]

``--clock processor`` counts the processor's time of the process instead of the clock on the wall: for one thread on a
machine that is not idle. With more threads it counts those that wait, too.

The shapes of DropConnect (``--what dropconnect``, or ``backward`` for forward and backward) are examples x inputs x
outputs, a mask per example.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from typing import Any

ROUND_SECONDS = 0.012  # what a turn takes, at least
LAWS = ("uniform", "gaussian:sigma=0.3", "bernoulli:keep=0.5", "bernoulli:keep=0.9")


def serve() -> None:
    """Read settings in a worker, one JSON list a line, and answer with the seconds of a call."""
    import ctypes
    import functools
    import time

    import torch

    import contdrop
    from contdrop.laws import parse_law

    if contdrop.backend().name == "reference":
        raise SystemExit(f"masks_old_new: expected the native back end; {sys.executable} has none that fits")
    if sys.platform == "linux":  # keep freed memory: fresh pages can cost as much as the work itself
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(option, 1 << 30)

    @functools.cache
    def prepared(what: str, shape: tuple[int, ...], kind: str, law: str) -> Any:
        dtype = getattr(torch, kind)
        if what == "dropout":
            x = torch.ones(shape, dtype=dtype)
            return functools.partial(contdrop.functional.dropout, x, parse_law(law))
        examples, inputs, outputs = shape
        x, weight = torch.ones(examples, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
        linear = functools.partial(contdrop.functional.dropconnect_linear, x, weight, None, parse_law(law))
        if what == "dropconnect":
            return linear
        x.requires_grad_(), weight.requires_grad_()
        gradient = torch.ones(examples, outputs, dtype=dtype)
        return lambda: torch.autograd.grad(linear(), (x, weight), gradient)

    clock = time.process_time if sys.argv[2] == "processor" else time.perf_counter

    def seconds(call: Any, repeats: int) -> float:
        start = clock()
        for _ in range(repeats):
            call()
        return clock() - start

    @functools.cache
    def repeats(threads: int, *setting: Any) -> int:
        once = min(seconds(prepared(*setting), 1) for _ in range(5))
        return max(1, int(ROUND_SECONDS / once) + 1)

    for line in sys.stdin:
        what, shape, kind, law, threads = json.loads(line)
        torch.set_num_threads(threads)
        setting = what, tuple(shape), kind, law
        count = repeats(threads, *setting)
        call = prepared(*setting)
        call()
        print(seconds(call, count) / count, flush=True)


class Worker:
    def __init__(self, interpreter: str, clock: str) -> None:
        self.process = subprocess.Popen(
            [interpreter, __file__, "--serve", clock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, setting: list[Any]) -> float:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(setting), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"masks_old_new: a worker ended while it measured {setting}; its message is above")
        return float(answer)


def compare(workers: list[Worker], setting: list[Any], rounds: int) -> list[float]:
    """Return the best seconds of each worker."""
    best = [float("inf")] * len(workers)
    for turn in range(rounds):
        for place in range(len(workers)):
            which = (place + turn) % len(workers)
            best[which] = min(best[which], workers[which].measure(setting))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs=2, metavar="PYTHON", help="of the old and of the new build")
    parser.add_argument("--what", choices=["dropout", "dropconnect", "backward"], default="dropout")
    parser.add_argument("--shapes", nargs="+", default=["1024x4096", "128x800"])
    parser.add_argument("--types", nargs="+", default=["float32"])
    parser.add_argument("--laws", nargs="+", default=list(LAWS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    workers = [Worker(interpreter, options.clock) for interpreter in options.interpreters]
    rows = []
    if not options.json:
        print("| shape | type | law | threads | old, us | new, us | new / old |\n|---|---|---|---|---|---|---|")
    for shape, kind, law, threads in itertools.product(options.shapes, options.types, options.laws, options.threads):
        setting = [options.what, [int(size) for size in shape.split("x")], kind, law, threads]
        old, new = compare(workers, setting, options.rounds)
        rows.append({"shape": shape, "type": kind, "law": law, "threads": threads, "old": old, "new": new})
        if not options.json:
            times = f"{old * 1e6:.1f} | {new * 1e6:.1f} | {new / old:.3f}"
            print(f"| {shape} | {kind} | {law} | {threads} | {times} |", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        main()
