"""Reliability diagrams: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from ...training.metric_values import WAYS
from .. import style
from ..protocol import size_of
from .drawing import SMALL, TINY, WIDTH, Array, Picture, blank, deviation, place, short_names, styled, text_width

_ENOUGH = 10  # examples of a bin, all runs together; the share of fewer says nothing


@dataclass(frozen=True)
class Calibration:
    """Calibration of one method with one way to predict."""

    confidence: Array  # the mean in each bin that has enough examples, all runs together
    accuracy: Array  # the share of them that is right
    errors: list[float]  # the expected calibration error of each run

    @property
    def error(self) -> float:
        return float(np.mean(self.errors))


Calibrations = Mapping[str, Mapping[str, Calibration]]  # by way and method


def reliability(store: Store, results: Results) -> Picture | None:
    """Draw the diagrams, if calibration was measured."""
    measured = calibrations(store, results)
    if not measured:
        return None
    several = any(len(each.errors) > 1 for found in measured.values() for each in found.values())
    return Picture(
        "reliability",
        "Does confidence mean what it says?",
        "Top: the share of test examples that are classified correctly, against the probability that the model gave "
        "its answer, in bins of equal width, all runs together; above the diagonal a model is too modest, below it too "
        f"sure. Bins of fewer than {_ENOUGH} examples are left out. Bottom: the expected calibration error, the mean "
        f"distance from the diagonal over examples, {size_of(results)}"
        + ("; bars: ± 1 standard deviation over runs. " if several else ". ")
        + _explained(measured),
        "Expected calibration error. "
        + " ".join(
            f"{WAYS[way][0].upper()}{WAYS[way][1:]}: "
            + ", ".join(f"{labels.name_in_text(method)} {each.error:.3f}" for method, each in found.items())
            + "."
            for way, found in measured.items()
        ),
        partial(_draw, measured),
    )


def calibrations(store: Store, results: Results) -> dict[str, dict[str, Calibration]]:
    """Return the calibration by way and method over finished runs; what was not measured is left out."""
    found: dict[str, dict[str, Calibration]] = {}
    for way in WAYS:
        for method, jobs in results.by_method.items():
            runs = []
            for job in jobs:
                bins, error = (store.artefact(job.id, f"uncertainty_{way}_{what}") for what in ("reliability", "ece"))
                if bins is not None and error is not None:
                    runs.append((bins.astype(np.float64), float(error)))
            if runs:
                found.setdefault(way, {})[method] = _pooled(runs)
    return found


def _pooled(runs: list[tuple[Array, float]]) -> Calibration:
    counts = np.sum([bins[0] for bins, _ in runs], axis=0)
    enough = counts >= _ENOUGH
    confidence, accuracy = (
        np.sum([bins[0] * bins[row] for bins, _ in runs], axis=0)[enough] / counts[enough] for row in (1, 2)
    )
    return Calibration(confidence, accuracy, [error for _, error in runs])


def _explained(measured: Calibrations) -> str:
    sentences = {
        "mc": "Monte Carlo: probabilities are averages over passes with dropout on.",
        "moments": "Moments: averages over the distribution of the logits, propagated in one pass.",
    }
    lacking = [method for method in measured.get("point", {}) if "mc" in measured and method not in measured["mc"]]
    without = f"Without masks to average over, and so with dropout off only: {_names(lacking)}." if lacking else ""
    return " ".join([*(text for way, text in sentences.items() if way in measured), without]).strip()


def _names(methods: list[str]) -> str:
    return ", ".join(labels.name_in_text(method) for method in methods)


def _draw(measured: Calibrations) -> Figure:
    with styled():
        methods = list(dict.fromkeys(method for found in measured.values() for method in found))
        names = list(short_names(methods).values())
        left, gap, top = max(0.75, min(1.85, text_width(names, SMALL) + 0.14)), 0.22, 0.32
        side = min(2.4, (WIDTH - left - 0.15 - gap * (len(measured) - 1)) / len(measured))
        rows = 0.24 * len(methods) + 0.12
        figure = blank(top + side + 0.62 + rows + 0.5)
        reach = 1.12 * max(
            each.error + deviation(each.errors) for found in measured.values() for each in found.values()
        )
        for column, (way, found) in enumerate(measured.items()):
            x = left + column * (side + gap)
            _diagram(place(figure, x, top, side, side), found, way, is_first=column == 0)
            below = place(figure, x, top + side + 0.62, side, rows)
            _errors(below, found, methods, names if column == 0 else None, max(reach, 1e-3))
        return figure


def _diagram(axes: Axes, found: Mapping[str, Calibration], way: str, *, is_first: bool) -> None:
    axes.plot([0, 1], [0, 1], color=style.FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    for method, each in found.items():
        look = style.style(method)
        axes.plot(each.confidence, each.accuracy, color=look.colour, linestyle=look.line, marker=look.marker,
                  linewidth=1.2, markersize=3, markeredgewidth=0)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    ticks = [0, 0.5, 1]
    axes.set_xticks(ticks, labels=["0", "0.5", "1"])
    axes.set_yticks(ticks, labels=["0", "0.5", "1"] if is_first else [""] * 3)
    axes.set_title(WAYS[way], fontsize=SMALL, pad=4, loc="left")
    axes.set_xlabel("confidence", fontsize=SMALL)
    if is_first:
        axes.set_ylabel("share correct", fontsize=SMALL)


def _errors(
    axes: Axes, found: Mapping[str, Calibration], methods: list[str], names: list[str] | None, reach: float
) -> None:
    """Draw the calibration errors, with a row for each method that also serves as a legend."""
    for row, method in enumerate(methods):
        if method in found:
            look, each = style.style(method), found[method]
            axes.errorbar([each.error], [row], xerr=[deviation(each.errors)], color=look.colour, marker=look.marker,
                          markersize=5, elinewidth=1.1)  # fmt: skip
    axes.set_xlim(0, reach)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=3)
    axes.tick_params(axis="x", labelsize=TINY)
    axes.set_yticks(range(len(methods)), labels=names if names else [""] * len(methods))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("calibration error", fontsize=SMALL)
