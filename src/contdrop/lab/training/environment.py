"""Machine, device and package versions of a job, as far as they may change a number."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import torch

import contdrop

from ...errors import UserError
from ...kernels import backend


def versions() -> dict[str, str]:
    """Return the versions of all packages that may change a number."""
    own = {"contdrop": contdrop.__version__, "python": platform.python_version()}
    packages = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    return own | packages | {"backend": backend().name}


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the identity of the machine on which a job trains."""
    kind = torch.device(device).type
    found = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if kind == "cuda":
        found["instructions"] = torch.cuda.get_device_name(device)
    elif kind != "cpu":
        found["instructions"] = kind
    return found


def peak_memory() -> float:
    """Return the largest number of bytes that this process had in memory; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def find_device(name: str) -> str:
    """Return the device of a name, after a trial; "auto" is the fastest available.

    The project's tests run on the CPU only. On other devices some of torch's operations are not deterministic, so that
    results may differ in the last bits from one run to the next.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"--device: {name!r} does not work on this machine ({reason}); auto takes the fastest device that does"
        ) from error
    return name


def set_up_process(threads: int) -> None:
    """Set the number of torch's threads, and flush denormal numbers, which are slow to multiply, to zero."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor()
