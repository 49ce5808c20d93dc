"""Runner of PractRand and TestU01 on the integers behind the masks; see docs/randomness.md.

    python tools/randomness/run.py build --testu01 INSTALLED --build FOLDER
    python tools/randomness/run.py run --build FOLDER --results FOLDER [--jobs 2] [--kept FILE]
    python tools/randomness/run.py summary --results FOLDER [--kept FILE] [--page FILE]

Every finished piece (a stream through PractRand, one test of TestU01) leaves one file in the results folder; a run that
was stopped resumes with the first piece that has none. A summary adds the results to the file that keeps them; a run
on another machine takes over what is finished there. Everything runs with the lowest priority.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import verdicts
from records import Piece, merge, read_folder, read_kept, take_over, write_atomically, write_kept

HERE = pathlib.Path(__file__).parent
# Most telling first: runs take hours, and may be stopped.
STREAMS = [
    "natural",
    "column16",
    "seeds",
    "bernoulli",
    "column8",
    "column32",
    "column128",
    "calls",
    "bernoulli-column16",
]
BATTERIES = ["smallcrush", "practrand", "crush"]
LOG2_BYTES = 35  # 32 GB


class UsageError(Exception):
    """A mistake in the command, reported in one line."""


# Building.


def build(testu01: pathlib.Path, folder: pathlib.Path) -> None:
    """Build the programs streams and battery into ``folder``; the batteries themselves must be installed."""
    libraries = [testu01 / "lib" / f"lib{name}.a" for name in ("testu01", "probdist", "mylib")]
    missing = next((library for library in libraries if not library.exists()), None)
    if missing:
        raise UsageError(
            f"expected TestU01 installed in {testu01}, with {missing.relative_to(testu01)}; it is not there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    ours = ["-std=c++17", "-O3", "-march=native"]
    _call(["c++", *ours, HERE / "streams.cpp", "-o", folder / "streams"])
    include = f"-I{testu01 / 'include'}"
    _call(["c++", *ours, include, HERE / "battery.cpp", "-o", folder / "battery", *libraries, "-lm"])


def _call(command: Sequence[Any], **options: Any) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise UsageError(f"{command[0]} failed with {done.returncode}:\n{done.stdout[-2000:]}")


# Running.


class Runner:
    """Scheduler that runs pieces without a result in order, ``jobs`` of them at a time."""

    def __init__(self, programs: pathlib.Path, results: pathlib.Path, log2_bytes: int) -> None:
        self.programs, self.results, self.log2_bytes = programs, results, log2_bytes
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[Any]] = set()
        self.stopped = False
        self.errors: list[str] = []

    def run(self, pieces: Sequence[Piece], jobs: int) -> None:
        queue = iter(pieces)
        workers = [threading.Thread(target=self._work, args=(queue,)) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.errors:
            raise UsageError("\n".join(self.errors))

    def stop(self, *_: object) -> None:
        self.stopped = True
        for process in list(self.running):
            process.terminate()

    def _work(self, queue: Iterator[Piece]) -> None:
        while not self.stopped:
            with self.lock:
                piece = next(queue, None)
            if piece is None:
                return
            record = self._result(piece)
            if record and piece.round == 1 and verdicts.suspicious(record):
                self._result(dataclasses.replace(piece, round=2))

    def _result(self, piece: Piece) -> verdicts.Record | None:
        path = self.results / f"{piece.name}.json"
        if path.exists():
            return dict(json.loads(path.read_text()))
        try:
            found = self._practrand(piece) if piece.battery == "practrand" else self._testu01(piece)
        except (OSError, ValueError) as error:
            if not self.stopped:
                self.errors.append(f"{piece.name}: {error}")
            return None
        if self.stopped:
            return None
        record = {**dataclasses.asdict(piece), "seed": piece.seed, **found}
        write_atomically(path, json.dumps(record))
        print(f"{piece.name}: {'suspicious' if verdicts.suspicious(record) else 'clean'}", flush=True)
        return record

    def _start(self, command: Sequence[Any], **options: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen([str(word) for word in command], **options)
        self.running.add(process)
        return process

    def _wait(self, process: subprocess.Popen[Any]) -> float:
        """Wait for the end of a process and return its processor time."""
        _, status, usage = os.wait4(process.pid, 0)
        self.running.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime

    def _options(self, piece: Piece) -> list[str]:
        return ["--seed", str(piece.seed), "--scheme", piece.scheme]

    def _practrand(self, piece: Piece) -> verdicts.Record:
        log = self.results / f"{piece.name}.log"
        limits = ["-tlmin", "1MB", "-tlmax", str(self.log2_bytes), "-singlethreaded"]
        with log.open("w") as out:
            source = self._start(
                [self.programs / "streams", piece.stream, *self._options(piece)], stdout=subprocess.PIPE
            )
            test = self._start(
                [self.programs / "RNG_test", "stdin32", *limits], stdin=source.stdout, stdout=out, stderr=out
            )
            assert source.stdout is not None
            source.stdout.close()  # so that the source ends when the test does
            seconds = self._wait(test) + self._wait(source)
        lengths = verdicts.parse_practrand(log.read_text())
        failed = any("FAIL" in bad["evaluation"] for bad in verdicts.worse_than_unusual(lengths))
        if test.returncode or not lengths or not (failed or lengths[-1]["log2_bytes"] == self.log2_bytes):
            raise ValueError(f"RNG_test ended early with {test.returncode}, see {log}")
        return {"finished": True, "processor_seconds": round(seconds, 1), "lengths": lengths}

    def _testu01(self, piece: Piece) -> verdicts.Record:
        command = [self.programs / "battery", piece.battery, piece.stream, "--test", piece.test]
        process = self._start([*command, *self._options(piece)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        text = process.stdout.read()
        process.stdout.close()
        seconds = self._wait(process)
        if process.returncode:
            raise ValueError(f"battery ended with {process.returncode}")
        return {"processor_seconds": round(seconds, 1), **json.loads(text.splitlines()[-1])}


def plan(scheme: str, streams: Sequence[str], batteries: Sequence[str]) -> list[Piece]:
    """Return all pieces with the first seed: battery after battery, stream after stream."""
    pieces = []
    for battery in batteries:
        tests = range(1, verdicts.TESTS[battery] + 1) if battery in verdicts.TESTS else [None]
        pieces += [Piece(scheme, stream, battery, test=test) for stream in streams for test in tests]
    return pieces


def run(args: argparse.Namespace) -> None:
    for program in ("RNG_test", "streams", "battery"):
        if not (args.build / program).exists():
            raise UsageError(
                f"expected {program} in {args.build}; put PractRand's RNG_test there, and build the others by the "
                "build command"
            )
    args.results.mkdir(parents=True, exist_ok=True)
    with (args.results / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run is writing to {args.results}; wait for it or give another folder") from None
        os.nice(19)
        take_over((record for record in read_kept(args.kept) if record["scheme"] == args.scheme), args.results)
        runner = Runner(args.build.resolve(), args.results, args.log2_bytes)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, runner.stop)
        runner.run(plan(args.scheme, args.streams, args.batteries), args.jobs)


# Summing up.


def summary(args: argparse.Namespace) -> None:
    found = read_folder(args.results, args.scheme)
    records = merge(read_kept(args.kept), found)
    table = verdicts.table(records, args.streams)
    print(table)
    seconds = sum(record.get("processor_seconds", 0) for record in found)
    print(f"\nprocessor time of the finished pieces: {seconds / 60:.0f} minutes")
    if args.kept:
        write_kept(records, args.kept)
    if args.page:
        write_page(args.page, "results" if args.scheme == "independent" else args.scheme, table)


def write_page(page: pathlib.Path, marker: str, table: str) -> None:
    """Write a table between its two markers."""
    first, last = f"<!-- {marker} -->\n", f"\n<!-- /{marker} -->"
    before, found, rest = page.read_text().partition(first)
    _, ended, after = rest.partition(last)
    if not (found and ended):
        raise UsageError(f"expected {first.strip()} and {last.strip()} in {page}, found not both; add them")
    write_atomically(page, before + first + table + last + after)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = top.add_subparsers(required=True)
    make = commands.add_parser("build", help="build our programs, which feed the batteries")
    make.add_argument("--testu01", type=pathlib.Path, required=True, help="where TestU01 is installed")
    make.add_argument("--build", type=pathlib.Path, required=True, help="where the programs go")
    make.set_defaults(call=lambda args: build(args.testu01.resolve(), args.build.resolve()))
    start = commands.add_parser("run", help="run, or resume, the batteries")
    start.add_argument("--build", type=pathlib.Path, required=True)
    start.add_argument("--jobs", type=int, default=1)
    start.add_argument("--batteries", nargs="+", choices=BATTERIES, default=BATTERIES)
    start.add_argument("--log2-bytes", type=int, default=LOG2_BYTES, help="how far PractRand goes (35: 32 GB)")
    start.set_defaults(call=run)
    show = commands.add_parser("summary", help="print the verdicts")
    show.add_argument("--page", type=pathlib.Path, help="write the table between the markers of this page")
    show.set_defaults(call=summary)
    for command in (start, show):
        command.add_argument("--results", type=pathlib.Path, required=True, help="one file per finished piece")
        command.add_argument("--kept", type=pathlib.Path, help="the file that keeps results from machine to machine")
        command.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
        command.add_argument("--scheme", choices=["independent", "borrowed"], default="independent")
    return top


if __name__ == "__main__":
    arguments = parser().parse_args()
    try:
        arguments.call(arguments)
    except UsageError as error:
        sys.exit(f"run.py: {error}")
