"""Where the measurements were made."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import pathlib
import platform
from typing import Any

import torch

import contdrop


def describe() -> dict[str, Any]:
    """Versions, processor, threads and the back end in use."""
    return {
        "contdrop": contdrop.__version__,
        "backend": str(contdrop.backend()),
        "torch": torch.__version__,
        "keras": _version("keras"),
        "jax": _version("jax"),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


class Others:
    """Watches how much of the machine other programs use."""

    def __init__(self) -> None:
        self._start = _seconds_used()

    def share(self) -> float | None:
        """The share of all processors that others had since this was made; None where the system does not tell."""
        if self._start is None or (now := _seconds_used()) is None:
            return None
        everyone, mine, available = (after - before for after, before in zip(now, self._start))
        return round(max(0.0, everyone - mine) / available, 3) if available > 0 else None


def _seconds_used() -> tuple[float, float, float] | None:
    """Processor time used by all programs, by this one and those it started, and all that there was."""
    with contextlib.suppress(OSError, ValueError):
        first, *ticks = pathlib.Path("/proc/stat").read_text().partition("\n")[0].split()
        user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = map(int, ticks[:8])
        if first == "cpu":
            busy = user + nice + system + interrupts + soft_interrupts + stolen
            per_second = os.sysconf("SC_CLK_TCK")
            mine = sum(os.times()[:4])
            return busy / per_second, mine, (busy + idle + waiting) / per_second
    return None


def keep_freed_memory() -> bool:
    """Stops glibc from handing freed memory back to the system after some calls and not after others.

    Whether it does depends on what else lies in the heap, so by luck one contestant pays for fresh pages, which cost as
    much as the work itself, and the next does not. From 32 MB on, memory is fresh in every call of everyone, as ever.

    Returns:
        Whether this could be arranged here.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(trim_threshold, 1 << 30) and mallopt(mmap_threshold, 32 << 20))
    return False


def memory() -> float:
    """Bytes of memory in this machine; infinite if it does not say."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
