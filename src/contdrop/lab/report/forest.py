"""Every comparison of an experiment as a strip: the difference, its intervals and the margin, from 0 to 100."""

from __future__ import annotations

import math
from typing import Any

from ..analysis.metric_format import Measure
from ..analysis.outcomes import outcome_of
from ..stats import Comparison
from ..study import labels


def forest(comparisons: dict[str, Comparison], measure: Measure) -> dict[str, Any] | None:
    """Reference minus method, as everywhere; the strongest rival on top. Positions from 0 to 100."""
    if not comparisons:
        return None
    first = next(iter(comparisons.values()))
    margin = first.margin
    intervals = [ends for found in comparisons.values() for ends in (found.interval, found.two_way)]
    shown = [0.0, *(found.difference for found in comparisons.values())]
    shown += [end for ends in intervals for end in _known(ends)]
    if margin is not None and margin < 2 * max(map(abs, shown)):
        shown += [-margin, margin]
    left, right = min(shown), max(shown)
    pad = 0.04 * (right - left) or 1.0
    left, right = left - pad, right + pad

    def place(value: float) -> float:
        return round(min(100.0, max(0.0, 100 * (value - left) / (right - left))), 2)

    def row(method: str, found: Comparison) -> dict[str, Any]:
        low, high = map(place, _known(found.interval)) if _known(found.interval) else (None, None)
        span = ", ".join(map(measure.signed, _known(found.interval)))
        return {
            "method": labels.display_name(method, longest=60),
            "outcome": outcome_of(found),
            "middle": place(found.difference),
            "low": low,
            "high": high,
            "both": tuple(map(place, _known(found.two_way))) or None,
            "text": measure.signed(found.difference) + (f"  [{span}]" if span else ""),
        }

    rows = sorted(comparisons.items(), key=lambda item: -measure.sign * item[1].difference)
    return {
        "confidence": f"{first.confidence:.0%}".replace("%", " %"),
        "both": any(_known(found.two_way) for found in comparisons.values()),
        "margin": None if margin is None else f"±{measure.gap(margin)}",
        "band": None if margin is None else (place(-margin), round(place(margin) - place(-margin), 2)),
        "zero": place(0.0),
        "rows": [row(method, found) for method, found in rows],
    }


def _known(ends: tuple[float, float] | None) -> tuple[float, ...]:
    """Of an interval, unless there is none."""
    return () if ends is None or math.isnan(ends[0]) else ends
