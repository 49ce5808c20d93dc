"""The measurements as tables of text, to be shown on a terminal or written into a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from contdrop._text import plural

from . import goals as goals_
from . import sections
from .contestants import COUNTERPARTS, NN_DROPOUT, PRODUCT
from .results import BOTH, FORWARD, Report, Timing, find

# Share of all processor time that others may use without a word.
_NOISY = 0.03


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table; its first column is a name, the others are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def sheets(report: Report) -> list[Sheet]:
    """Every section that was measured, and at last the goals."""
    found = [elementwise(report, shape) for shape in shapes(report)]
    if report.types:
        found.append(types(report))
    if report.memory:
        found.append(memory(report))
    if report.step:
        found.append(step(report))
    if report.dropconnect:
        found.append(dropconnect(report))
    return [*found, goals(report)]


def shapes(report: Report) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(row.shape for row in report.elementwise))


def elementwise(report: Report, shape: tuple[int, ...]) -> Sheet:
    names = dict.fromkeys(row.contestant for row in report.elementwise)
    dropout, floor = (find(report.elementwise, name, shape) for name in (NN_DROPOUT, PRODUCT))
    rows = []
    for name in names:
        forward, both = (find(report.elementwise, name, shape, passes) for passes in (FORWARD, BOTH))
        counterpart = find(report.elementwise, COUNTERPARTS.get(name, ""), shape)
        ratios = (_over(dropout, both), _over(counterpart, both), _over(both, floor))
        rows.append((name, _nanoseconds(forward), _nanoseconds(both), *ratios))
    size = sections.shape_text(shape) if len(shape) > 1 else f"{shape[0]:,} elements"
    return Sheet(
        f"Elementwise, float32, {size}",
        (
            "",
            "forward\nns/element",
            "forward+backward\nns/element",
            "x faster than\nnn.Dropout",
            "x faster than the\nsame in plain torch",
            "times a\nmultiplication",
        ),
        rows,
        "Ratios are of forward+backward.",
    )


def by_size(report: Report) -> Sheet:
    """Forward+backward of everyone at every size."""
    names = dict.fromkeys(row.contestant for row in report.elementwise)
    sizes = shapes(report)
    rows = [(name, *(_nanoseconds(find(report.elementwise, name, shape)) for shape in sizes)) for name in names]
    headings = ("ns/element", *(sections.shape_text(shape) if len(shape) > 1 else f"{shape[0]:,}" for shape in sizes))
    return Sheet("Forward+backward, float32, by size", headings, rows)


def types(report: Report) -> Sheet:
    names = dict.fromkeys(row.contestant for row in report.types)
    dtypes = dict.fromkeys(row.dtype for row in report.types)
    table = {(row.contestant, row.dtype): row for row in report.types}
    rows = []
    for name in names:
        for dtype in dtypes:
            row = table[name, dtype]
            ratios = (_over(table[NN_DROPOUT, dtype], row), _over(row, table[name, "float32"]))
            rows.append((f"{name}, {dtype}", _nanoseconds(row), *ratios))
    headings = ("", "forward+backward\nns/element", "x faster than\nnn.Dropout", "times\nfloat32")
    return Sheet(f"Types, {sections.shape_text(sections.LARGE)}", headings, rows)


def memory(report: Report) -> Sheet:
    rows = [(row.contestant, f"{row.bytes:,}") for row in report.memory]
    return Sheet(f"Saved for backward, float32, {sections.shape_text(sections.LARGE)}", ("", "bytes"), rows)


def step(report: Report) -> Sheet:
    plain = next(row for row in report.step if row.contestant == sections.PLAIN)
    rows = [
        (
            row.contestant,
            _milliseconds(row.median),
            _milliseconds(row.best),
            f"{row.times(plain):.3f}",
        )
        for row in report.step
    ]
    headings = ("", "median\nms", "minimum\nms", "times\nno dropout")
    note = (
        f"{len(plain.seconds)} rounds, one step of each per round; dropout after both hidden layers. The last column "
        f"is the median of the ratios within a round. {sections.DOUBLED} in place of dropout is the price of any "
        "elementwise operation of torch's own."
    )
    return Sheet("Training step, SGD, 784-800-800-10, batch 100", headings, rows, note)


def dropconnect(report: Report) -> Sheet:
    rows = []
    for row in report.dropconnect:
        stored = find(report.dropconnect, sections.MATERIALISED.get(row.contestant, ""), sections.DROPCONNECT)
        rows.append((row.contestant, _milliseconds(row.best), _over(stored, row)))
    headings = ("", "forward+backward\nms", "x faster than\nmasks stored")
    return Sheet("DropConnect, a mask per example, 800x800, batch 100", headings, rows)


def goals(report: Report) -> Sheet:
    rows = []
    for goal in goals_.goals(report):
        bound = f"{'at least' if goal.at_least else 'at most'} {goal.bound:g}{goal.unit}"
        measured = "" if goal.measured is None else f"{goal.measured:.4g}{goal.unit}"
        verdict = {True: "pass", False: "FAIL", None: "not measured"}[goal.passed]
        rows.append((goal.what, bound, measured, verdict))
    return Sheet("Goals, forward+backward, on two idle cores", ("", "goal", "measured", ""), rows)


def environment(report: Report) -> list[str]:
    """Where this was measured, what was left out, and whether the machine was busy."""
    e = report.environment
    lines = [
        f"contdrop {e['contdrop']}, back end {e['backend']}; torch {e['torch']}, {threads(e)}; Python {e['python']}",
        f"{e['cpu']}, {e['cores']} cores",
    ]
    if e["others"] is not None and e["others"] > _NOISY:
        lines.append(
            f"NOISY: other programs used {e['others']:.0%} of the processors meanwhile; measure again when idle"
        )
    if report.left_out:
        lines.append("Left out: " + ", ".join(f"{name} {why}" for name, why in report.left_out.items()))
    return lines


def threads(environment: Mapping[str, Any]) -> str:
    return plural(environment["threads"], "thread")


def _nanoseconds(timing: Timing | None) -> str:
    return _digits(timing.nanoseconds) if timing else ""


def _milliseconds(seconds: float) -> str:
    return _digits(seconds * 1e3)


def _over(numerator: Timing | None, denominator: Timing | None) -> str:
    return _digits(numerator.best / denominator.best) if numerator and denominator else ""


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{places}f}"
