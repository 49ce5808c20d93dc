"""Reliability diagrams: accuracy against confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.metric_format import capital
from ...analysis.rendering import listed
from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from ...training.metric_values import WAYS
from .. import style
from ..protocol import size_of
from ..templating import caption
from .drawing import SMALL, TINY, Array, Picture, deviation, label_rows, laid_out, plots, short_names, styled

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
    averaged = measured.get("mc")
    lacking = [
        labels.name_in_text(method) for method in measured.get("point", ()) if averaged and method not in averaged
    ]
    errors = [
        f"{capital(WAYS[way])}: {listed({method: f'{each.error:.3f}' for method, each in found.items()})}."
        for way, found in measured.items()
    ]
    return Picture(
        "reliability",
        "Does confidence mean what it says?",
        caption("reliability", measured, _ENOUGH, size_of(results), several, lacking),
        f"Expected calibration error. {' '.join(errors)}",
        partial(_draw, measured),
    )


def calibrations(store: Store, results: Results) -> dict[str, dict[str, Calibration]]:
    """Return the calibration by way and method over finished runs; what was not measured is left out."""
    found: dict[str, dict[str, Calibration]] = {}
    for way in WAYS:
        for method, jobs in results.by_method.items():
            kept = (
                [store.artefact(job.id, f"uncertainty_{way}_{what}") for what in ("reliability", "ece")] for job in jobs
            )
            if runs := [(bins, float(error)) for bins, error in kept if bins is not None and error is not None]:
                found.setdefault(way, {})[method] = _pooled(*zip(*runs))
    return found


def _pooled(bins: Sequence[Array], errors: Sequence[float]) -> Calibration:
    every = np.array(bins, dtype=np.float64)
    counts = every[:, 0].sum(axis=0)
    enough = counts >= _ENOUGH
    confidence, accuracy = ((every[:, 0] * every[:, row]).sum(axis=0)[enough] / counts[enough] for row in (1, 2))
    return Calibration(confidence, accuracy, list(errors))


@styled()
def _draw(measured: Calibrations) -> Figure:
    names = short_names(method for found in measured.values() for method in found)
    rows, sides = 0.24 * len(names) + 0.12, {1: 2.4, 2: 1.9, 3: 1.3}
    side = sides[len(measured)]
    figure, plotted = plots(side + rows + 1.45, 2, len(measured), height_ratios=[side, rows], sharey="row")
    reach = 1.12 * max(each.error + deviation(each.errors) for found in measured.values() for each in found.values())
    for (above, below), (way, found) in zip(plotted.T, measured.items()):
        _draw_diagram(above, found, way)
        _draw_errors(below, found, list(names))
        below.set_xlim(0, max(reach, 1e-3))
    label_rows(plotted[1, 0], list(names.values()), 0.6, 0.6)
    plotted[0, 0].set_ylabel("share correct", fontsize=SMALL)
    return laid_out(figure)


def _draw_diagram(axes: Axes, found: Mapping[str, Calibration], way: str) -> None:
    axes.plot([0, 1], [0, 1], color=style.FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    for method, each in found.items():
        look = style.style(method)
        axes.plot(each.confidence, each.accuracy, **look.stroke, marker=look.marker, linewidth=1.2, markersize=3,
                  markeredgewidth=0)  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1), box_aspect=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"])
    axes.set_title(WAYS[way], fontsize=SMALL, pad=4, loc="left")
    axes.set_xlabel("confidence", fontsize=SMALL)


def _draw_errors(axes: Axes, found: Mapping[str, Calibration], methods: Sequence[str]) -> None:
    """Draw the calibration errors, with a row for each method that also serves as a legend."""
    for method, each in found.items():
        look = style.style(method)
        axes.errorbar([each.error], [methods.index(method)], xerr=[deviation(each.errors)], color=look.colour,
                      marker=look.marker, markersize=5, elinewidth=1.1)  # fmt: skip
    axes.locator_params(axis="x", nbins=3)
    axes.tick_params(axis="x", labelsize=TINY)
    axes.set_xlabel("calibration error", fontsize=SMALL)
