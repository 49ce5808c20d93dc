"""The measurements as data: what is printed as JSON, and read back for tables and plots."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

FORWARD, BOTH, STEP = "forward", "forward+backward", "step"


@dataclasses.dataclass(frozen=True)
class Timing:
    """The time of one contestant in one setting: seconds per call, a number for each round."""

    contestant: str
    shape: tuple[int, ...]
    dtype: str
    passes: str
    seconds: tuple[float, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def times(self, other: Timing) -> float:
        """How many times as long as the other: the median over the rounds, in each of which both were measured."""
        return statistics.median(mine / others for mine, others in zip(self.seconds, other.seconds))

    @property
    def nanoseconds(self) -> float:
        """Per element, in the best round."""
        return self.best / self.elements * 1e9

    def as_dict(self) -> dict[str, Any]:
        return {
            "contestant": self.contestant,
            "shape": list(self.shape),
            "elements": self.elements,
            "dtype": self.dtype,
            "passes": self.passes,
            "nanoseconds_per_element": float(f"{self.nanoseconds:.6g}"),
            "best_seconds": float(f"{self.best:.6g}"),
            "median_seconds": float(f"{self.median:.6g}"),
            "seconds": [float(f"{value:.6g}") for value in self.seconds],
        }

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> Timing:
        return Timing(row["contestant"], tuple(row["shape"]), row["dtype"], row["passes"], tuple(row["seconds"]))


@dataclasses.dataclass(frozen=True)
class Saved:
    """What one contestant keeps in memory between forward and backward."""

    contestant: str
    shape: tuple[int, ...]
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "shape": list(self.shape)}


@dataclasses.dataclass
class Report:
    """All that one run of the benchmark found out. Sections that were not run are empty."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    left_out: dict[str, str]
    elementwise: list[Timing] = dataclasses.field(default_factory=list)
    types: list[Timing] = dataclasses.field(default_factory=list)
    memory: list[Saved] = dataclasses.field(default_factory=list)
    step: list[Timing] = dataclasses.field(default_factory=list)
    dropconnect: list[Timing] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        rows = ("elementwise", "types", "memory", "step", "dropconnect")
        return {
            "environment": self.environment,
            "settings": self.settings,
            "left_out": self.left_out,
            **{name: [row.as_dict() for row in getattr(self, name)] for name in rows},
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        timings = {
            name: [Timing.from_dict(row) for row in data[name]]
            for name in ("elementwise", "types", "step", "dropconnect")
        }
        memory = [Saved(row["contestant"], tuple(row["shape"]), row["bytes"]) for row in data["memory"]]
        return Report(data["environment"], data["settings"], data["left_out"], memory=memory, **timings)


def find(timings: Sequence[Timing], contestant: str, shape: tuple[int, ...], passes: str = BOTH) -> Timing | None:
    """The measurement of a contestant in float32 at a size, if there is one."""
    for timing in timings:
        key = timing.contestant, timing.shape, timing.passes, timing.dtype
        if key == (contestant, shape, passes, "float32"):
            return timing
    return None


def to_json(data: Mapping[str, Any]) -> str:
    """JSON with a line for every entry, but lists of plain values in one line."""
    return re.sub(
        r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", json.dumps(data, indent=2)
    )
