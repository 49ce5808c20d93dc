"""Starts commands of contdrop at the price of a fork: torch is imported once, here, and not by each of them.

Run as a program it reads requests from its standard input, one per line as JSON, and answers each with a line. What it
starts is the command line's own code; only the start of its workers is another, a fork from a server, again because of
torch.

Requests: ``{"start": [arguments], "log": file, "mode": {...}}`` answers the process's number; ``{"wait": number}`` its
exit code, once it has ended. A mode makes a process's life harder: see ``_prepare``.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import os
import resource
import signal
import subprocess
import sys
import time
import types


def serve() -> None:
    import torch

    torch.set_num_threads(1)
    import often  # noqa: F401
    import torch._dynamo  # optimizers import it when the first is made

    import contdrop.cli
    import contdrop.lab.report.page
    import contdrop.lab.runner.ray_cluster

    # The page is not what is tested, and takes seconds.
    contdrop.lab.report.page.write = lambda store, out, **_: types.SimpleNamespace(index="no page")
    multiprocessing.set_forkserver_preload(["contdrop.lab.runner.ray_cluster", "often", "torch._dynamo"])
    multiprocessing.forkserver.ensure_running()
    print(json.dumps(multiprocessing.forkserver._forkserver._forkserver_pid), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = _start(**request) if "start" in request else _wait(request["wait"])
        print(json.dumps(answer), flush=True)


def _wait(number: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def _start(start: list[str], log: str, mode: dict[str, float]) -> int:
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _prepare(mode)
        sys.argv = ["contdrop", *start]
        from contdrop.cli import main

        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"Traceback: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def _prepare(mode: dict[str, float]) -> None:
    """``clock``: seconds that it is wrong by; ``room``: bytes that a file may still have; ``user``: whose rights."""
    from contdrop.lab.runner import local

    real = multiprocessing.get_context("forkserver")
    multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # it is the nursery's
    local.torch.multiprocessing.get_context = lambda kind: real
    if "clock" in mode:
        right, wrong = time.time, mode["clock"]
        time.time = lambda: right() + wrong
    if "room" in mode:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(mode["room"]), int(mode["room"])))
    if "user" in mode:
        os.setuid(int(mode["user"]))


class Nursery:
    """Talks to the program above; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.server = self._answer()

    def _answer(self) -> int:
        assert self._process.stdout
        return int(json.loads(self._process.stdout.readline()))

    def _ask(self, **request: object) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def start(self, arguments: list[str], log: str, **mode: float) -> int:
        return self._ask(start=arguments, log=log, mode=mode)

    def wait(self, number: int) -> int:
        return self._ask(wait=number)

    def workers(self) -> list[int]:
        """The processes that train at the moment, of whatever command."""
        path = f"/proc/{self.server}/task/{self.server}/children"
        with open(path) as file:
            return [int(number) for number in file.read().split()]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


if __name__ == "__main__":
    serve()
