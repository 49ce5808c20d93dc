"""Formatting of metrics, numbers and names in sentences, tables and figures. Never imports torch.

Everything asks here: a regression has no "error, %", and a metric that is to be maximised has another winner.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._text import plural, printable, visible
from ..study.labels import name_in_text
from ..training import metric_values

LOWER, HIGHER = "lower", "higher"
_LARGE = 1e7  # from here on numbers are written with an exponent
_ROUNDING = 1e-12  # a relative spread that is none
_MOST_NAMES = 4  # in one sentence
_LEVEL = 0.05  # of tests


@dataclass(frozen=True)
class Measure:
    """A metric without the function that computes it.

    Attributes:
        name: Of the metric.
        unit: Written behind values; per cent for errors.
        better: Which values are, "lower" or "higher".
        kind: How the value follows from what each test example contributes: "mean", "built-in", or "own" where only
            the study's own function knows.
    """

    name: str = "error"
    unit: str = "%"
    better: str = LOWER
    kind: str = "mean"

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Measure:
        """Return the primary metric of a protocol from its description."""
        found = description.get("metric")
        return cls._read(found) if isinstance(found, Mapping) else cls()

    @classmethod
    def secondary(cls, description: Mapping[str, Any]) -> tuple[Measure, ...]:
        """Return the secondary metrics."""
        found = description.get("others")
        return tuple(cls._read(each) for each in found if isinstance(each, Mapping)) if isinstance(found, list) else ()

    @classmethod
    def _read(cls, found: Mapping[str, Any]) -> Measure:
        better = HIGHER if found.get("better") == HIGHER else LOWER
        kind = str(found.get("kind", "mean"))
        # Printable names stay as they are, spaces included: arrays in the store are named after them.
        name = visible(str(found.get("name", "value"))).replace("\n", " ")
        return cls(name, printable(str(found.get("unit") or "")), better, kind)

    @property
    def is_error(self) -> bool:
        """True for the share of wrong answers in per cent."""
        return (self.name, self.unit) == ("error", "%")

    @property
    def is_percentage(self) -> bool:
        return self.unit == "%"

    @property
    def sign(self) -> float:
        """Factor that makes lower values better."""
        return -1.0 if self.better == HIGHER else 1.0

    @property
    def ideal(self) -> float | None:
        """The best possible value; None where it is unknown, as for a custom metric to be maximised."""
        built_in = self.kind == "built-in"
        if self.better == HIGHER:
            known = built_in or self.name == "accuracy"
            return None if not known else 100.0 if self.is_percentage else 1.0
        return 1.0 if built_in and self.name == "perplexity" else 0.0

    def room(self, value: float) -> float | None:
        """Return the distance of a value to the best possible one; None where that is unknown.

        >>> Measure("auroc", "", "higher", "built-in").room(0.75), Measure().room(1.5)
        (0.25, 1.5)
        """
        if self.ideal is None or (distance := self.sign * (value - self.ideal)) < 0:
            return None
        return distance

    def room_of(self, owner: str) -> str:
        """Describe that distance.

        >>> Measure().room_of("uniform"), Measure("auroc", "", "higher", "built-in").room_of("uniform")
        ('the error of uniform', 'the distance of the auroc of uniform to 1')
        """
        value = f"the {self.name} of {owner}"
        return f"the distance of {value} to {self.ideal:g}" if self.ideal else value

    @property
    def heading(self) -> str:
        """Name and unit, for a column or an axis.

        >>> Measure().heading, Measure("rmse", "").heading
        ('error, %', 'rmse')
        """
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def best(self) -> str:
        return "highest" if self.better == HIGHER else "lowest"

    def value(self, value: float, sd: float = math.nan) -> str:
        """Format a value with its unit; a mean gets as many digits as its spread needs.

        >>> Measure().value(1.349), Measure("rmse", "").value(0.51234), Measure("length", "mm").value(12.5)
        ('1.35 %', '0.5123', '12.5 mm')
        """
        shown = self.written(value, sd)
        return f"{shown} {self.unit}" if self.unit else shown

    def written(self, value: float, sd: float = math.nan) -> str:
        """Format without the unit: two decimals of percentages, else four digits, or what the spread needs.

        Large values differ in their decimals, so they have some; of a mean, the second digit of the standard deviation
        says how many.

        >>> elbo = Measure("elbo", "nats")
        >>> elbo.written(0.51234), elbo.written(-10233.4471), elbo.written(-10233.4471, 1.16)
        ('0.5123', '-10233.45', '-10233.4')
        """
        if self.is_percentage:
            return f"{value:.2f}"
        shown = _short(value, 4)
        if not _ROUNDING * abs(value) < sd < math.inf:
            is_large = 1000 <= abs(value) < _LARGE
            return f"{value:.2f}".rstrip("0").rstrip(".") if is_large else shown
        number, _, exponent = shown.partition("e")
        decimals, needed = len(number.partition(".")[2]) - int(exponent or 0), 1 - math.floor(math.log10(sd))
        if decimals >= needed:
            return shown
        return f"{value:.{needed + int(exponent)}e}" if exponent else f"{value:.{min(12, needed)}f}"

    def spread(self, sd: float) -> str:
        """Format a standard deviation without its unit: three decimals of percentages, else three digits."""
        return f"{sd:.3f}" if self.is_percentage else _short(sd, 3)

    def full(self, value: float) -> str:
        """Format a value with all its digits."""
        return f"{value} {self.unit}" if self.unit else str(value)

    @property
    def is_mean(self) -> bool:
        """True if the value is the plain mean of one number per example, so that intervals over examples are exact."""
        return self.kind == "mean" or (
            self.kind == "built-in" and self.name not in {**metric_values.COMBINE, **metric_values.WHOLE}
        )

    def of_examples(self, contributions: np.ndarray) -> float | None:
        """Compute the value from each test example's contribution; None if only the study's own function can."""
        if self.kind == "own":
            return None
        combine, whole = (found.get(self.name) for found in (metric_values.COMBINE, metric_values.WHOLE))
        if self.kind == "mean":
            combine = whole = None
        return float(metric_values.value(contributions, combine, whole))

    def decimals(self, values: Sequence[float]) -> int:
        """Return the decimals with which means of this size show four digits; two for percentages."""
        largest = max((abs(value) for value in values), default=0.0)
        if self.is_percentage or largest == 0:
            return 2
        return min(8, max(0, 3 - math.floor(math.log10(largest))))

    @property
    def gap_unit(self) -> str:
        """Unit of a difference with a leading space; empty where values have no unit."""
        if self.is_percentage:
            return " percentage points"
        return f" {self.unit}" if self.unit else ""

    @property
    def in_unit(self) -> str:
        """Unit of a difference behind its name; empty where values have no unit."""
        return f", in{self.gap_unit}" if self.gap_unit else ""

    def amount(self, gap: float) -> str:
        """Format a difference without its unit: two or more decimals of percentages, else three digits.

        >>> Measure().amount(0.604), Measure().amount(0.0031), Measure("rmse", "").amount(-0.01234)
        ('0.60', '0.0031', '−0.0123')
        """
        sign, size = ("\N{MINUS SIGN}" if gap < 0 else ""), abs(gap)
        if self.is_percentage:
            return sign + (f"{size:.2f}" if size >= 0.01 or size == 0 else f"{size:.2g}")
        return sign + _short(size, 3)

    def interval(self, low: float, high: float) -> str:
        """Format the ends of an interval of differences, without their unit."""
        return f"{self.amount(low)} to {self.amount(high)}"

    def signed(self, gap: float) -> str:
        """Format a difference without its unit, always with its sign."""
        return f"+{self.amount(gap)}" if gap > 0 else self.amount(gap)

    def gap(self, gap: float) -> str:
        """Format a difference with its short unit.

        >>> Measure().gap(0.604), Measure("rmse", "").gap(0.01234)
        ('0.60 points', '0.0123')
        """
        return self.amount(gap) + (" points" if self.is_percentage else self.gap_unit)

    def within(self, margin: float | None) -> str:
        return f"±{self.amount(margin or 0)}{self.gap_unit}"

    def compared(self, difference: float) -> str:
        """Return the comparative for the direction of a difference."""
        low, high = ("less", "more") if self.is_error else ("lower", "higher")
        return low if difference < 0 else high

    def sign_rule(self, reference: str) -> str:
        """Explain the sign of a difference, reference minus method.

        >>> Measure().sign_rule("gaussian"), Measure("auroc", "", "higher").sign_rule("gaussian")
        ('negative means that gaussian errs less', 'positive means that gaussian is better')
        """
        if self.is_error:
            return f"negative means that {reference} errs less"
        return f"{'positive' if self.better == HIGHER else 'negative'} means that {reference} is better"


def _short(value: float, digits: int) -> str:
    """Format with so many digits, without an exponent where all digits before the point have room.

    >>> _short(0.51234, 4), _short(10233.4, 4), _short(1.0362e13, 4)
    ('0.5123', '10233', '1.036e+13')
    """
    shown = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in shown and 1 <= abs(value) < _LARGE else shown


def moment(seconds: float) -> str:
    """Format a time.

    >>> moment(0.0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def probability(p: float) -> str:
    """Format a p-value for a sentence; the tables have all its digits.

    >>> probability(0.0213), probability(2e-7), probability(0.0499)
    ('p = 0.021', 'p < 0.001', 'p = 0.0499')
    """
    digits = next((n for n in range(2, 17) if float(f"{p:.{n}g}") != _LEVEL), 2)  # on which side it is has to show
    return "p < 0.001" if p < 0.001 else f"p = {p:.{digits}g}"


def run_count(numbers: Iterable[int], what: str = "run") -> str:
    low, high = min(numbers), max(numbers)
    return plural(low, what) if low == high else f"{low} to {high} {what}s"


def tally(wins: int, ties: int, losses: int) -> str:
    """Describe in how many runs the reference was better, equal and worse.

    >>> tally(5, 0, 1), tally(0, 10, 0)
    ('better in 5 of 6 runs and worse in 1', 'equal in all 10 runs')
    >>> tally(4, 2, 4)
    'better in 4 of 10 runs, equal in 2 and worse in 4'
    """
    runs = wins + ties + losses
    kinds = [(what, n) for what, n in (("better", wins), ("equal", ties), ("worse", losses)) if n]
    if len(kinds) == 1:
        return f"{kinds[0][0]} in {'the only run' if runs == 1 else f'all {runs} runs'}"
    (what, number), *between, last = kinds
    texts = [f"{what} in {number} of {runs} runs", *(f"{kind} in {n}" for kind, n in between)]
    return f"{', '.join(texts)} and {last[0]} in {last[1]}"


def mean_of(metric: str) -> str:
    """Return the name of a metric's mean over runs.

    >>> mean_of("error"), mean_of("mean IoU")
    ('mean error', 'mean IoU')
    """
    return metric if metric.startswith("mean ") else f"mean {metric}"


def ordinal(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return {2: "second", 3: "third"}.get(place, f"{place}{ending}")


def names(methods: Sequence[str]) -> str:
    shown = [name_in_text(method) for method in methods]
    if len(shown) > _MOST_NAMES + 1:
        shown = [*shown[:_MOST_NAMES], f"{len(shown) - _MOST_NAMES} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
