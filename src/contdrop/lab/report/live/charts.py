"""Line charts of the live page, as positions from 0 to 100 for a template.

The template stretches the lines to the available width and sets the text beside them at its own size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import MaxNLocator

from ...analysis.interim import InterimResult
from ...analysis.metric_format import Measure
from ...store.schema import Epoch, JobRecord
from ...study import labels
from .. import style

_MOST_POINTS = 200  # per line
_WIDEST = 4.0  # an interval that many times as wide as the last one is cut off, lest it flatten all others
_CURVES = (
    (("train_loss",), "Training loss"),
    (("val_error", "test_error", "train_error"), ""),  # the first that was measured
)
_PARTS = {"val_error": "Validation", "test_error": "Test", "train_error": "Training"}


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], share: float = 0.06) -> _Axis:
        shown = list(values)
        pad = share * (max(shown) - min(shown)) or abs(shown[0]) or 1.0
        return cls(min(shown) - pad, max(shown) + pad)

    def place(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def ticks(self, *, whole: bool = False) -> list[tuple[float, str]]:
        found = [float(x) for x in MaxNLocator(5, integer=whole).tick_values(self.low, self.high)]
        inside = [tick for tick in found if self.low <= tick <= self.high]
        return list(zip(map(self.place, inside), _written(inside)))


def _written(ticks: Sequence[float]) -> list[str]:
    """Format ticks with the decimals that their distance needs; with an exponent if very large or small."""
    step = min((after - before for before, after in itertools.pairwise(ticks)), default=max(map(abs, ticks), default=1))
    kept = [0.0 if abs(tick) < step / 100 else tick for tick in ticks]
    largest = max(map(abs, kept), default=0.0)
    is_plain = largest == 0 or 1e-5 <= largest < 1e7
    for digits in range(17):
        texts = [f"{tick:.{digits}{'f' if is_plain else 'e'}}" if tick or is_plain else "0" for tick in kept]
        if all(abs(float(text) - tick) <= step / 100 for text, tick in zip(texts, kept)):
            break
    return [text.replace("-", "\N{MINUS SIGN}") for text in texts]


def interim_chart(looks: Sequence[InterimResult], planned: int, margin: float | None, method: str) -> dict[str, Any]:
    """Return estimate and interval against the number of finished pairs, up to all that are planned."""
    finite = [look for look in looks if math.isfinite(look.low)]
    width = _WIDEST * (finite[-1].high - finite[-1].low) if finite else math.inf
    shown = [0.0, *(look.difference for look in looks)]
    shown += [end for look in finite if look.high - look.low <= width for end in (look.low, look.high)]
    if margin is not None and margin < 2 * max(map(abs, shown)):
        shown += [-margin, margin]
    x, y = _Axis(min(1.0, looks[0].pairs), max(planned, 2)), _Axis.around(shown)
    edge = [(look.pairs, look.high) for look in finite] + [(look.pairs, look.low) for look in reversed(finite)]
    band = None if margin is None else (100 - y.place(margin), round(y.place(margin) - y.place(-margin), 2))
    return {
        "x": x.ticks(whole=True),
        "y": y.ticks(),
        "zero": 100 - y.place(0.0),
        "margin": band,
        "edge": _points(edge, x, y),
        "lines": [_line([(look.pairs, look.difference) for look in looks], x, y, method)],
        "cut": any(look.high - look.low > width for look in finite),
        "x_label": "finished pairs",
    }


def curves(running: Sequence[tuple[JobRecord, Sequence[Epoch]]], measure: Measure) -> Iterable[dict[str, Any]]:
    """Yield charts of the metrics after each epoch of the running jobs."""
    for names, title in _CURVES:
        name = next((name for name in names if any(_values(epochs, name) for _, epochs in running)), None)
        if name is None:
            continue
        found = [(job.method, _values(epochs, name)) for job, epochs in running]
        x = _Axis(1.0, max(2, *(job.epochs for job, _ in running)))
        y = _Axis.around(value for _, points in found for _, value in points)
        yield {
            "title": title or f"{_PARTS[name]} {measure.heading}",
            "x": x.ticks(whole=True),
            "y": y.ticks(),
            "lines": [_line(points, x, y, method) for method, points in found if points],
            "x_label": "epoch",
        }


def _values(epochs: Sequence[Epoch], name: str) -> list[tuple[float, float]]:
    found = [(epoch.epoch, getattr(epoch, name)) for epoch in epochs]
    measured = [(number, value) for number, value in found if value is not None and math.isfinite(value)]
    every = -(-len(measured) // _MOST_POINTS) or 1
    return [point for place, point in enumerate(measured) if place % every == 0 or place == len(measured) - 1]


def _line(points: Sequence[tuple[float, float]], x: _Axis, y: _Axis, method: str) -> dict[str, Any]:
    last_x, last_y = points[-1]
    return {
        "name": labels.display_name(method, longest=60),
        "points": _points(points, x, y),
        "end": (x.place(last_x), 100 - y.place(last_y)),
        **line_style(method),
    }


def line_style(method: str) -> dict[str, str]:
    """Return color and dashes; on a dark page a custom property gives another shade."""
    look = style.style(method)
    dashes = "" if isinstance(look.line, str) else " ".join(f"{2 * part:g}" for part in look.line[1])
    return {"colour": f"var(--c-{look.colour[1:]}, {look.colour})", "dashes": dashes}


def _points(points: Iterable[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    return " ".join(f"{x.place(at):g},{round(100 - y.place(value), 2):g}" for at, value in points)
