"""Inline SVG for the page: matplotlib figures and forest plots under its security policy and color scheme.

Style attributes would need a policy that allows any, so they become classes; colors become custom properties with the
light colors as fallback, so that a dark page can set others.
"""

from __future__ import annotations

import html
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..analysis.comparisons import outcome_of
from ..analysis.metric_format import Measure
from ..stats import Comparison
from ..study import labels

_DROPPED = {"metadata", "style", "title", "script", "foreignObject"}
_LINKS = {"{http://www.w3.org/1999/xlink}href", "href"}
_REFERENCE = re.compile(r"url\(#([^)\s]+)\)")
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_HARMLESS = re.compile(r"[\w\s:;#%.,'()+-]*")


@dataclass
class InlineFigures:
    """Converter of figures to inline SVG, and collector of the style sheet they need."""

    classes: dict[str, str] = field(default_factory=dict)  # names by the style they stand for
    colours: set[str] = field(default_factory=set)  # as "rrggbb"

    def embed(self, svg: str, prefix: str, alt: str) -> str:
        """Return an SVG file of matplotlib as an element; the prefix makes its identifiers unique on the page."""
        root = ElementTree.fromstring(svg)
        for size in ("width", "height"):
            root.attrib.pop(size, None)
        root.attrib |= {"role": "img", "aria-label": alt, "class": "drawing"}
        return "".join(self._write(root, prefix))

    def rules(self) -> str:
        """Return the style rules of all embedded figures."""
        styles = {name: _COLOUR.sub(r"var(--c-\1, #\1)", style) for style, name in self.classes.items()}
        return "\n".join(f".{name} {{ {style} }}" for name, style in styles.items())

    def _write(self, element: ElementTree.Element, prefix: str) -> list[str]:
        tag = element.tag.rpartition("}")[2]
        if tag in _DROPPED:
            return []
        attributes = "".join(self._attribute(name, value, prefix) for name, value in element.attrib.items())
        parts = [f"<{tag}{attributes}>", html.escape(element.text or "")]
        for child in element:
            parts += [*self._write(child, prefix), html.escape(child.tail or "")]
        return [*parts, f"</{tag}>"]

    def _attribute(self, name: str, value: str, prefix: str) -> str:
        if name in _LINKS:
            if value.startswith("#"):
                return f' href="#{prefix}-{html.escape(value[1:])}"'
            return f' href="{html.escape(value)}"' if value.startswith("data:image/png;base64,") else ""
        if name == "style":
            name, value = "class", self._class(value)
        elif name == "id":
            value = f"{prefix}-{value}"
        elif name.lower().startswith("on") or "}" in name:
            return ""
        else:
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
        return f' {name}="{html.escape(value)}"'

    def _class(self, style: str) -> str:
        style = style.strip().rstrip(";")
        if not _HARMLESS.fullmatch(style):  # not what matplotlib writes
            return ""
        self.colours |= set(_COLOUR.findall(style))
        return self.classes.setdefault(style, f"d{len(self.classes)}")


def forest(comparisons: Mapping[str, Comparison], measure: Measure) -> dict[str, Any] | None:
    """Return the comparisons as rows of a forest plot, the strongest rival first; positions are from 0 to 100."""
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
    """Return the ends of an interval; empty if there is none."""
    return () if ends is None or math.isnan(ends[0]) else ends
