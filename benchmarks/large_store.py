"""Time and memory of the commands that read a store of 10 000 jobs.

It makes such a store through the store's own interface, as the tests do, then times the commands, each a process of its
own, by the wall clock and with the most memory it had.

python benchmarks/large_store.py [--jobs 10000] [--experiments 10] [--keep FILE]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

from stores import ALL_METHODS, make_store

GOALS = {"status": (2.0, 1e9), "report": (20.0, 1e9)}  # seconds and bytes


def make(path: pathlib.Path, jobs: int, experiments: int) -> float:
    """Write the store, and return seconds per job."""
    runs = jobs // (experiments * len(ALL_METHODS))
    begin = time.perf_counter()
    for number in range(experiments):
        make_store(path, methods=ALL_METHODS, runs=runs, epochs=20, seed=number, experiment=f"experiment-{number}")
    return (time.perf_counter() - begin) / (runs * experiments * len(ALL_METHODS))


def measure(*arguments: str) -> tuple[float, float]:
    """Return the seconds and bytes of a command."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "contdrop.cli", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return time.perf_counter() - begin, usage.ru_maxrss * 1024.0


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--experiments", type=int, default=10)
    options.add_argument("--keep", type=pathlib.Path, help="use this store, and make it if it is not there")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = given.keep or pathlib.Path(directory) / "runs.db"
        if not store.exists():
            print(f"written at {1000 * make(store, given.jobs, given.experiments):.1f} ms per job")
        print(f"{store.stat().st_size / 1e6:.0f} MB")
        out = str(pathlib.Path(directory) / "page")
        for command, more in {"status": [], "check": [], "report": ["--out", out]}.items():
            target = [str(store)] if command == "check" else ["--store", str(store)]
            seconds, memory = measure(command, *target, *more)
            most = GOALS.get(command)
            verdict = (
                "" if most is None else ", goal met" if seconds < most[0] and memory < most[1] else ", GOAL MISSED"
            )
            print(f"contdrop {command}: {seconds:.1f} s, {memory / 1e6:.0f} MB{verdict}")


if __name__ == "__main__":
    main()
