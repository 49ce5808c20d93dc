"""Which back end does the work: native on the CPU, Triton on GPUs, reference everywhere else.

The choice can be forced by the environment variable ``CONTDROP_BACKEND`` or by :func:`use_backend`. All back ends give
the same random bits, and mask values that agree to 1e-6.
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
from torch import Tensor

NAMES = ("native", "triton", "reference")
VARIABLE = "CONTDROP_BACKEND"


@dataclasses.dataclass(frozen=True)
class Backend:
    """What makes the masks: its name, and for the native back end the instruction set in use."""

    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name


_forced: str | None = None
chosen: dict[str, Any] = {}  # the module in use for a type of device, until the choice is forced or released


def backend(device: torch.device | str = "cpu") -> Backend:
    """Says which back end is in use for tensors on a device."""
    name = _name(torch.device(device).type)
    return Backend(name, _load(name).detail() if name == "native" else "")


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Forces a back end for a while: "native", "triton" or "reference".

    Raises:
        ValueError: If there is no back end of that name.
        RuntimeError: If it cannot be used here.
    """
    global _forced
    _check(name)
    before, _forced = _forced, name
    chosen.clear()
    try:
        yield
    finally:
        _forced = before
        chosen.clear()


def _check(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"contdrop: expected a back end of {', '.join(NAMES)}; got {name!r}")
    try:
        _load(name)
    except (ImportError, OSError) as error:
        raise RuntimeError(f"contdrop: the {name} back end cannot be used here: {error}") from error


@functools.cache
def _load(name: str) -> Any:
    module = importlib.import_module(f".{name}", __package__)
    if name == "native":
        module.detail()  # loads the library
    return module


@functools.cache
def _from_environment() -> str | None:
    name = os.environ.get(VARIABLE) or None
    if name is not None:
        try:
            _check(name)
        except (ValueError, RuntimeError) as error:
            raise type(error)(f"{error} (set by {VARIABLE})") from None
    return name


@functools.cache
def _automatic(device: str) -> str:
    name = {"cpu": "native", "cuda": "triton"}.get(device, "reference")
    try:
        _load(name)
    except (ImportError, OSError) as error:
        warnings.warn(
            f"contdrop: the {name} back end cannot be used here ({error}); the reference back end gives the same "
            "numbers, slower",
            stacklevel=2,
        )
        return "reference"
    return name


def _name(device: str) -> str:
    return _forced or _from_environment() or _automatic(device)


def _for(tensor: Tensor) -> Any:
    device = tensor.device.type
    return chosen.get(device) or _choose(device)


def _choose(device: str) -> Any:
    chosen[device] = _load(_name(device))
    return chosen[device]


def dropout(x: Tensor, *arguments: Any) -> Tensor:
    return _for(x).dropout(x, *arguments)


def keep_where(x: Tensor, *arguments: Any) -> Tensor:
    return _for(x).keep_where(x, *arguments)


def dropconnect(x: Tensor, *arguments: Any) -> Tensor:
    return _for(x).dropconnect(x, *arguments)


def dropconnect_input_gradient(gradient: Tensor, *arguments: Any) -> Tensor:
    return _for(gradient).dropconnect_input_gradient(gradient, *arguments)


def dropconnect_weight_gradient(gradient: Tensor, *arguments: Any) -> Tensor:
    return _for(gradient).dropconnect_weight_gradient(gradient, *arguments)


def dropconnect_gradients(gradient: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _for(gradient).dropconnect_gradients(gradient, *arguments)
    return both
