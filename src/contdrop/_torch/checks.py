"""Argument checks with one-line errors; they accept NumPy scalars as numbers."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

_Class = TypeVar("_Class", bound=type)
_Entry = TypeVar("_Entry")
# A tuple: the compiler of torch 2.6 to 2.8 does not follow a search in a frozenset.
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_input(owner: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{owner}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{owner}: expected a floating-point tensor, got {x.dtype}; convert it, for example by x.float()"
        )


def check_choice(owner: str, name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{owner}: expected {name} to be one of {expected}; got {value!r}")


def check_whole(owner: str, name: str, value: object, least: int) -> int:
    """Return the number as a Python int."""
    if not _is_whole(value) or value < least:  # type: ignore[operator]
        raise ValueError(f"{owner}: expected {name} to be a whole number of at least {least}, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_counts(owner: str, **counts: tuple[object, int]) -> None:
    """Raise an error unless each number is whole and of at least the second of its pair."""
    for name, (value, least) in counts.items():
        check_whole(owner, name, value, least)


def check_seed(owner: str, seed: object) -> None:
    if seed is not None and not _is_whole(seed):
        raise TypeError(f"{owner}: expected seed to be a whole number or None, got {type(seed).__name__}")


def check_axes(owner: str, axes: object) -> tuple[int, ...]:
    """Return axes as a tuple of Python ints, without comparing them to a tensor."""
    if not isinstance(axes, (tuple, list, Iterable)):
        raise TypeError(f"{owner}: expected shared_axes to be a sequence of axes, got {axes!r}; write ({axes!r},)")
    given = tuple(axes)
    for axis in given:
        if not _is_whole(axis):
            raise TypeError(f"{owner}: expected whole numbers in shared_axes, got {axis!r}")
    return tuple(int(axis) for axis in given)


def _is_whole(value: object) -> bool:
    # The compiler of torch knows the first of the two only.
    return isinstance(value, (int, numbers.Integral)) and not isinstance(value, bool)


def check_number(owner: str, name: str, value: object) -> float:
    """Return the number as a Python float, because torch takes some NumPy scalars for arrays."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: expected a number for {name}, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def check_generator(owner: str, generator: torch.Generator | None) -> None:
    if generator is None or is_dynamo_compiling():  # compilers of torch before 2.9 do not know a generator's device
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"{owner}: expected a torch.Generator or None, got {type(generator).__name__}")
    if generator.device.type != "cpu":
        raise ValueError(
            f"{owner}: expected a generator on the cpu, where the seed is drawn for inputs on every device, "
            f"got one on {generator.device}; use torch.Generator()"
        )


def check_module(owner: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{owner}: expected a torch.nn.Module, got {type(model).__name__}")


def check_model(owner: str, model: object, step: str) -> None:
    """Raise an error unless the model is a module in Python; ``step`` is what to do before scripting it."""
    check_module(owner, model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{owner}: expected a model in Python, got a scripted one; {step} before torch.jit.script")


def is_forward_of(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Tell whether a module runs the forward of this class: neither its own class nor the instance overrides it."""
    return type(module).forward is kind.forward and "forward" not in vars(module)


def entry_of(module: torch.nn.Module, table: Mapping[type[torch.nn.Module], _Entry]) -> _Entry | None:
    """Return the entry of a module's class; None if it is not in the table or the module has its own forward."""
    for kind in type(module).__mro__:
        if kind in table:
            return table[kind] if is_forward_of(module, kind) else None
    return None


def check_finite(
    owner: str, name: str, value: object, least: float = -math.inf, most: float = math.inf, *, finite: bool = True
) -> float:
    """Return the number as a Python float, after refusing NaN, numbers out of range and, if ``finite``, infinity."""
    number = check_number(owner, name, value)
    if math.isnan(number) or (finite and math.isinf(number)):
        raise ValueError(f"{owner}: expected a {'finite ' if finite else ''}number for {name}, got {number}")
    if not least <= number <= most:
        wanted = f"of at least {least:g}" if most == math.inf else f"in [{least:g}, {most:g}]"
        raise ValueError(f"{owner}: expected a number {wanted} for {name}, got {number}")
    return number


def by_keyword(law: _Class) -> _Class:
    """Make a law refuse positional parameters, whose meaning a reader cannot see, in one line."""
    original: Any = law.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def initialize(self: Any, *positional: Any, **named: Any) -> None:
        if positional:
            ((keyword, meaning),) = law._leading.items()  # type: ignore[attr-defined]
            raise TypeError(
                f"{law.__name__}: expected its parameters by keyword, got {', '.join(map(repr, positional))}; "
                f"write {law.__name__}({keyword}={positional[0]!r}) if it is the {meaning}"
            )
        original(self, **named)

    law.__init__ = initialize  # type: ignore[misc]
    return law
