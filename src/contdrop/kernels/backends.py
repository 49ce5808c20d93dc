"""Choice of the back end: native on the CPU, Triton on GPUs, reference everywhere else.

The environment variable ``CONTDROP_BACKEND`` or :func:`use_backend` forces the choice. All back ends give the same
random bits, and mask values that agree to 1e-6.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

NAMES = ("native", "triton", "reference")
VARIABLE = "CONTDROP_BACKEND"


@dataclasses.dataclass(frozen=True)
class Backend:
    """Name of a back end, and for the native one the instruction set in use."""

    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name


_forced: str | None = None
chosen: dict[str, Any] = {}  # the module in use for each type of device


def backend(device: torch.device | str = "cpu") -> Backend:
    """Return the back end in use for tensors on a device."""
    module = for_device(torch.device(device).type)
    name = module.__name__.rpartition(".")[2]
    return Backend(name, module.detail() if name == "native" else "")


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force a back end in a ``with`` block: "native", "triton" or "reference".

    Raises:
        ValueError: If there is no back end of that name.
        RuntimeError: If it cannot be used here.
    """
    global _forced
    _check(name)
    before, _forced = (_forced, dict(chosen)), name
    chosen.clear()
    for_device("cpu")  # so that the next call may take the fast path
    try:
        yield
    finally:
        _forced, modules = before
        chosen.clear()
        chosen.update(modules)


def for_device(device: str) -> Any:
    """Return the module that handles tensors on a type of device: forced, set by the environment, or automatic."""
    if device in chosen:
        return chosen[device]
    wanted = _forced or os.environ.get(VARIABLE)
    if wanted and not _forced:
        _check(wanted, f" (set by {VARIABLE})")
    name = wanted or {"cpu": "native", "cuda": "triton"}.get(device, "reference")
    try:
        chosen[device] = _load(name)
    except (ImportError, OSError) as error:
        warnings.warn(
            f"contdrop: the {name} back end cannot be used here ({error}); using the reference back end, which gives "
            "the same numbers but is slower",
            stacklevel=2,
        )
        chosen[device] = _load("reference")
    return chosen[device]


def _check(name: str, origin: str = "") -> None:
    if name not in NAMES:
        raise ValueError(f"contdrop: expected a back end of {', '.join(NAMES)}; got {name!r}{origin}")
    try:
        _load(name)
    except (ImportError, OSError) as error:
        raise RuntimeError(f"contdrop: the {name} back end cannot be used here: {error}{origin}") from error


@functools.cache
def _load(name: str) -> Any:
    module = importlib.import_module(f".{name}", __package__)
    if name == "native":
        module.library()
    return module
