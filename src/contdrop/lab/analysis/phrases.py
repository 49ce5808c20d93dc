"""Phrases and numbers for sentences in reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from ..._text import plural
from ..study.labels import name_in_text

_MOST_NAMES = 4  # in one sentence
_LEVEL = 0.05  # of tests


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


def all_of(number: int, what: str) -> str:
    return f"the only {what}" if number == 1 else f"all {number} {what}s"


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
        return f"{kinds[0][0]} in {all_of(runs, 'run')}"
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
