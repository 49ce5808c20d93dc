"""Words and numbers of the sentences on the page."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from ...text import plural

_MOST_NAMES = 4  # in one sentence


def called(method: str) -> str:
    """What a method is called in a sentence.

    >>> called("none"), called("gaussian:sigma=0.3")
    ('no dropout', 'gaussian:sigma=0.3')
    """
    return "no dropout" if method == "none" else method


def points(value: float) -> str:
    """A gap in percentage points: two decimals, or more for a small one.

    >>> points(0.604), points(0.0031), points(-1.2)
    ('0.60', '0.0031', '−1.20')
    """
    sign = "\N{MINUS SIGN}" if value < 0 else ""
    return sign + (f"{abs(value):.2f}" if abs(value) >= 0.01 or value == 0 else f"{abs(value):.2g}")


def probability(p: float) -> str:
    """A p-value in a sentence; the tables have all its digits.

    >>> probability(0.0213), probability(2e-7)
    ('p = 0.021', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def percent(value: float) -> str:
    return f"{value:.2f} %"


def within(margin: float | None) -> str:
    return f"±{points(margin or 0)} percentage points"


def moment(seconds: float) -> str:
    """A time, as text.

    >>> moment(0.0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def all_of(number: int, what: str) -> str:
    return f"the only {what}" if number == 1 else f"all {number} {what}s"


def run_count(numbers: Iterable[int]) -> str:
    low, high = min(numbers), max(numbers)
    return plural(low, "run") if low == high else f"{low} to {high} runs"


def tally(wins: int, ties: int, losses: int) -> str:
    """How many runs were better, equal and worse.

    >>> tally(5, 0, 1), tally(0, 10, 0), tally(0, 1, 1)
    ('better in 5 of 6 runs and worse in 1', 'equal in all 10 runs', 'equal in 1 of 2 runs and worse in 1')
    """
    runs = wins + ties + losses
    kinds = [(what, n) for what, n in (("better", wins), ("equal", ties), ("worse", losses)) if n]
    if len(kinds) == 1:
        return f"{kinds[0][0]} in {all_of(runs, 'run')}"
    first, *others = kinds
    return " and ".join([f"{first[0]} in {first[1]} of {runs} runs", *(f"{what} in {n}" for what, n in others)])


def ordinal(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return {2: "second", 3: "third"}.get(place, f"{place}{ending}")


def names(methods: Sequence[str]) -> str:
    shown = [called(method) for method in methods]
    if len(shown) > _MOST_NAMES + 1:
        shown = [*shown[:_MOST_NAMES], f"{len(shown) - _MOST_NAMES} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
