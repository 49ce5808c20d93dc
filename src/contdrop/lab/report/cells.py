"""Tables as data, and the formatting of their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..._text import plural
from ..analysis.metric_format import Measure
from ..analysis.phrases import run_count
from ..stats.paired import ENOUGH_RUNS, Summary
from ..store.results import Results
from ..store.schema import IMPORTED, ONLY_SIZE
from ..study import labels

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
DOUBTFUL = "†"  # beside a p-value of too few runs
THE_LAB, OWN_LOOP, ELSEWHERE = "the lab", "own loop", "elsewhere"


@dataclass(frozen=True)
class Cell:
    """Text of a cell, its sort key, and a mark for the best of its column."""

    text: str
    value: float | str | None = None
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A table: headings, rows of cells, and notes that are always shown with it. ``name`` serves as a file name.

    ``data`` is for programs, where a cell says several things at once: rows of plain values by column.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    data: tuple[Mapping[str, float | int | str | None], ...] = ()


def p_value(p: float | None) -> str:
    """Format a p-value as in the paper: 0.031, 9.1e-7.

    Example:
        >>> p_value(9.127e-7), p_value(0.0314), p_value(0.0)
        ('9.1e-7', '0.031', '<1e-300')
    """
    if p is None or math.isnan(p):
        return NONE
    if p >= 0.01:
        return f"{p:.3f}"
    if p < 1e-300:
        return "<1e-300"
    digits, _, exponent = f"{p:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def signed(value: float, decimals: int = 2) -> str:
    """Format with a sign and a proper minus; a difference that rounds to 0 has no sign.

    Example:
        >>> signed(-0.254), signed(0.001)
        ('−0.25', '0.00')
    """
    if not math.isfinite(value):
        return NONE if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    text = f"{value:+.{decimals}f}".replace("-", MINUS)
    return text if float(f"{value:.{decimals}f}") else text[1:]


def method_cell(results: Results, method: str) -> Cell:
    """Return a method's display name with the parameters it was trained with."""
    variant = results.variants().get(method, method)
    if variant == method:
        return Cell(labels.display_name(method, longest=10_000))
    same = labels.base(labels.without_factor(variant)[0]) == labels.base(method)
    return Cell(in_full(variant) if same else labels.printable(method))


def in_full(variant: str, name: Callable[..., str] = labels.display_name) -> str:
    """Return a method with its parameters, and the factor of the learning rate if it had one of its own.

    Example:
        >>> in_full("original@0.5")
        'Original dropout at 0.5 times the learning rate'
    """
    label, factor = labels.without_factor(variant)
    return name(label, longest=10_000) + (f" at {factor} times the learning rate" if factor else "")


def p_cell(p: float | None, runs: int = ENOUGH_RUNS) -> Cell:
    """Return a p-value, marked if it rests on too few runs; a single pair of runs has none."""
    if p is None or math.isnan(p) or runs == 1:
        return Cell(NONE)
    return Cell(p_value(p) + doubt(runs), p)


def mean_sd(summary: Summary, measure: Measure) -> str:
    mean = measure.written(summary.mean, summary.sd)
    return mean if math.isnan(summary.sd) else f"{mean} ± {measure.spread(summary.sd)}"


def doubt(runs: int) -> str:
    return f" {DOUBTFUL}" if 1 < runs < ENOUGH_RUNS else ""


def title_of(results: Results) -> str:
    protocol = results.protocol
    return labels.printable(str(protocol.description.get("title") or protocol.experiment))


def origin(results: Results) -> str:
    """Return who trained the networks: the lab, a custom loop of the study, or somebody else (imported numbers)."""
    if results.protocol.preset == IMPORTED:
        return ELSEWHERE
    return OWN_LOOP if results.protocol.configuration.get("run") is not None else THE_LAB


def size_of(results: Results) -> str:
    """Return runs, epochs and preset in words."""
    return sized(results, run_count({len(runs) for runs in results.errors().values()} or {0}))


def sized(results: Results, runs: str) -> str:
    """Describe a number of runs with their epochs, if known, and the preset, if the study has several."""
    protocol = results.protocol
    if origin(results) == ELSEWHERE:
        return f"{runs}, {IMPORTED}"
    each = "" if runs == "1 run" else " each"
    epochs = f" of {length}{each}" if (length := length_of(results)) else ""
    preset = "" if protocol.preset == ONLY_SIZE else f", preset “{labels.printable(protocol.preset)}”"
    return f"{runs}{epochs}{preset}"


def length_of(results: Results) -> str:
    """Return the epochs of a run in words; empty for a custom loop that logged other numbers of epochs."""
    planned, logged = results.protocol.epochs, {job.epochs_done for job in results.finished}
    if logged == {planned}:
        return plural(planned, "epoch")
    if origin(results) != THE_LAB:
        return ""
    return f"up to {plural(planned, 'epoch')}" if min(logged, default=planned) < planned else at_most(results, planned)


def at_most(results: Results, epochs: int) -> str:
    """Return the number of epochs in words, as a maximum if the study stops early."""
    return f"{'' if results.protocol.configuration.get('patience') is None else 'up to '}{plural(epochs, 'epoch')}"
