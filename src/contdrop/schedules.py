"""Laws that change during training.

A schedule is a function from the fraction of training that is done, 0 to 1, to a law. :class:`Schedule` assigns the law
to all layers of a model. A compiled model is not recompiled as long as the law stays in its family: its numbers are
inputs of the graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from ._text import plural
from ._torch.checks import check_whole
from .laws import BuiltIn, Law, parse_law
from .nn import DropConnectLinear, Dropout, FastDropoutLinear
from .surgery import Swap

Course = Callable[[float], Law]


def linear(start: Law | str, end: Law | str) -> Course:
    """Interpolate between two laws of a family, each parameter linearly."""
    return _between("linear", start, end, lambda fraction: fraction)


def cosine(start: Law | str, end: Law | str) -> Course:
    """Interpolate between two laws of a family, slowly at both ends: by (1 - cos(pi t)) / 2 of the way at time t."""
    return _between("cosine", start, end, lambda fraction: (1 - math.cos(math.pi * fraction)) / 2)


def _between(owner: str, start: Law | str, end: Law | str, way: Callable[[float], float]) -> Course:
    first, last = (parse_law(law) if isinstance(law, str) else law for law in (start, end))
    if not isinstance(first, BuiltIn) or type(first) is not type(last):
        raise ValueError(
            f"{owner}: expected two built-in laws of one family, got {first!r} and {last!r}; write a function of the "
            "fraction of training done for others"
        )
    law: Any = first
    ends = {field.name: (getattr(first, field.name), getattr(last, field.name)) for field in dataclasses.fields(law)}
    changing = {name: pair for name, pair in ends.items() if pair[0] != pair[1]}  # infinite bounds may only stay

    def at(fraction: float) -> Law:
        done = way(fraction)
        mixed = {name: b if done == 1 else a + (b - a) * done for name, (a, b) in changing.items()}
        found: Law = dataclasses.replace(law, **mixed)
        return found

    at(0.0), at(0.5)  # bounds may be infinite at one end only
    return at


class Schedule:
    """Assignment of the laws of a schedule to layers, step by step::

        schedule = Schedule(model, linear("gaussian:sigma=0", "gaussian:sigma=0.3"), steps=1000)
        for batch in batches:
            ...
            schedule.step()

    Args:
        target: A model, all of whose layers with a law are scheduled (:class:`contdrop.Dropout` and its subclasses,
            DropConnectLinear and FastDropoutLinear), or a :class:`contdrop.surgery.Swap`.
        course: The law as a function of the fraction of training done.
        steps: Number of calls of ``step`` until the end is reached.
    """

    def __init__(self, target: torch.nn.Module | Swap, course: Course, steps: int = 1) -> None:
        if not isinstance(target, (torch.nn.Module, Swap)):
            raise TypeError(f"Schedule: expected a model or a Swap, got {type(target).__name__}")
        if not callable(course) or isinstance(course, torch.nn.Module):
            raise TypeError(
                "Schedule: expected a function of the fraction of training done that gives a law, got "
                f"{type(course).__name__}; contdrop.schedules.linear(start, end) makes one"
            )
        modules = target.layers if isinstance(target, Swap) else target.modules()
        kinds = (Dropout, DropConnectLinear, FastDropoutLinear)
        self._layers = [module for module in modules if isinstance(module, kinds)]
        if not self._layers:
            raise ValueError(
                "Schedule: expected dropout layers of contdrop, whose law can be assigned, got none; "
                "contdrop.swap_dropout puts them in"
            )
        self.course = course
        self.steps = check_whole("Schedule", "steps", steps, 1)
        self.done = 0
        self.at(0.0)

    def at(self, fraction: float) -> Law:
        """Assign the law at this fraction of training, clamped to [0, 1], and return it."""
        law = self.course(min(max(float(fraction), 0.0), 1.0))
        for layer in self._layers:
            layer.law = law
        return law

    def step(self) -> Law:
        """Advance by one step; at the end the law stays."""
        self.done += 1
        return self.at(self.done / self.steps)

    def __repr__(self) -> str:
        layers = plural(len(self._layers), "layer")
        return f"Schedule({self.done} of {plural(self.steps, 'step')}, {layers}, now {self._layers[0].law!r})"

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = int(state["done"])
        self.at(self.done / self.steps)
