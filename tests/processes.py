"""Processes and the ports on which they listen, by /proc: a process's own, whatever runs beside it."""

import contextlib
import os
import pathlib

LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def children(number: int) -> list[int]:
    """Processes that a process has started, from whichever of its threads."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == number:
                    found.append(int(entry.name))
    return found


def descendants(number: int) -> list[int]:
    return [each for child in children(number) for each in (child, *descendants(child))]


def listening(numbers: list[int]) -> set[str]:
    """Addresses on which these processes listen; empty if they do not, which a test should not take for silence."""
    inodes = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            for file in pathlib.Path(f"/proc/{number}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in pathlib.Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def beyond_loopback(addresses: set[str]) -> set[str]:
    return {address for address in addresses if address.partition(":")[0] not in LOOPBACK}
