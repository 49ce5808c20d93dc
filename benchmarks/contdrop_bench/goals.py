"""The speed that contdrop aims at, and whether this run reached it."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import sections
from .contestants import BERNOULLI, GAUSSIAN, LAWS, NN_DROPOUT, PRODUCT, TORCH_GAUSSIAN, TORCH_UNIFORM, UNIFORM
from .results import Report, Timing, find


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on a measured number: from below, or else from above. Not measured is neither passed nor failed."""

    what: str
    measured: float | None
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def passed(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "passed": self.passed}


def goals(report: Report) -> list[Goal]:
    def faster(contestant: str, than: str, shape: tuple[int, ...] = sections.LARGE) -> float | None:
        return _ratio(find(report.elementwise, than, shape), find(report.elementwise, contestant, shape))

    floor = [
        _ratio(find(report.elementwise, name, sections.LARGE), find(report.elementwise, PRODUCT, sections.LARGE))
        for name in LAWS
    ]
    saved = [row.bytes for row in report.memory if row.contestant in LAWS]
    steps = {row.contestant: row for row in report.step}
    plain = steps.get(sections.PLAIN)

    def slowdown(contestant: str) -> float | None:
        return steps[contestant].times(plain) if plain and contestant in steps else None

    types = {(row.contestant, row.dtype): row for row in report.types}
    halves = [_ratio(types.get((name, "bfloat16")), types.get((name, "float32"))) for name in (BERNOULLI, GAUSSIAN)]
    stored = find(report.dropconnect, sections.MATERIALISED[BERNOULLI], sections.DROPCONNECT)
    return [
        Goal("Gaussian(0.3), 1024x4096: faster than plain torch", faster(GAUSSIAN, TORCH_GAUSSIAN), 6, True),
        Goal("Gaussian(0.3), 1024x4096: faster than nn.Dropout", faster(GAUSSIAN, NN_DROPOUT), 16, True),
        Goal("Uniform, 1024x4096: faster than plain torch", faster(UNIFORM, TORCH_UNIFORM), 7, True),
        Goal("Bernoulli(0.5), 1024x4096: faster than nn.Dropout", faster(BERNOULLI, NN_DROPOUT), 24, True),
        Goal("slowest law, 1024x4096: times a multiplication", _largest(floor), 2.5, False),
        Goal("Gaussian(0.3), 128x800: faster than nn.Dropout", faster(GAUSSIAN, NN_DROPOUT, sections.SMALL), 8, True),
        Goal("any law, 1024x4096: saved for backward", max(saved) if saved else None, 99, False, " bytes"),
        Goal("SGD step with Gaussian(0.3): times no dropout", slowdown(GAUSSIAN), 1.05, False),
        Goal(
            "SGD step with Gaussian(0.3), relu inside: times no dropout",
            slowdown(sections.FUSED[GAUSSIAN]),
            1.05,
            False,
        ),
        Goal(
            "DropConnect, Bernoulli(0.5): faster than stored masks",
            _ratio(stored, find(report.dropconnect, BERNOULLI, sections.DROPCONNECT)),
            40,
            True,
        ),
        Goal("bfloat16, 1024x4096, Bernoulli or Gaussian: times float32", _largest(halves), 1.0, False),
    ]


def _ratio(numerator: Timing | None, denominator: Timing | None) -> float | None:
    return numerator.best / denominator.best if numerator and denominator else None


def _largest(ratios: list[float | None]) -> float | None:
    """The largest of all; None if any is missing."""
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known) if len(known) == len(ratios) else None
