"""Every comparison of an experiment as a strip: the difference, its intervals and the margin, from 0 to 100."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import labels
from ..analysis.outcomes import outcome_of
from ..measures import Measure
from ..stats import Comparison


def forest(comparisons: dict[str, Comparison], measure: Measure) -> dict[str, Any] | None:
    """Reference minus method, as everywhere; the strongest rival on top. Positions from 0 to 100."""
    if not comparisons:
        return None
    rows = []
    for method, found in comparisons.items():
        low, high = found.interval
        rows.append((method, found.difference, low if low == low else None, high if high == high else None, found))
    margin = next(iter(comparisons.values())).margin
    shown = [0.0, *(end for _, middle, low, high, _ in rows for end in (middle, low, high) if end is not None)]
    shown += [end for found in comparisons.values() for end in found.two_way or () if end == end]
    if margin is not None and margin < 2 * max(map(abs, shown)):
        shown += [-margin, margin]
    left, right = min(shown), max(shown)
    pad = 0.04 * (right - left) or 1.0
    left, right = left - pad, right + pad

    def place(value: float) -> float:
        return round(min(100.0, max(0.0, 100 * (value - left) / (right - left))), 2)

    confidence = f"{next(iter(comparisons.values())).confidence:.0%}".replace("%", " %")
    return {
        "confidence": confidence,
        "both": any(_both(found, place) for found in comparisons.values()),
        "margin": None if margin is None else f"±{measure.gap(margin)}",
        "band": None if margin is None else (place(-margin), round(place(margin) - place(-margin), 2)),
        "zero": place(0.0),
        "rows": [
            {
                "method": labels.shown(method, longest=60),
                "outcome": outcome_of(found),
                "middle": place(middle),
                "low": None if low is None else place(low),
                "high": None if high is None else place(high),
                "both": _both(found, place),
                "text": measure.signed(middle)
                + ("" if low is None or high is None else f"  [{measure.signed(low)}, {measure.signed(high)}]"),
            }
            for method, middle, low, high, found in sorted(rows, key=lambda row: -measure.sign * row[1])
        ],
    }


def _both(found: Comparison, place: Callable[[float], float]) -> tuple[float, float] | None:
    """The interval over runs and test examples."""
    if found.two_way is None or found.two_way[0] != found.two_way[0]:
        return None
    return place(found.two_way[0]), place(found.two_way[1])
