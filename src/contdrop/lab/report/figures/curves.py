"""Learning curves: test value per epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...._text import plural
from ...analysis.rendering import listed
from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from .. import style
from ..protocol import THE_LAB, origin, size_of
from ..templating import caption
from . import drawing
from .drawing import SMALL, Array, Picture, laid_out, plots, short_names, styled

_MOST_POINTS = 400  # drawn per line; a figure of 3000 epochs would be megabytes
_MOST_BANDS = 8
_ENOUGH = 8  # epochs, for a picture of their second half
_ABOVE = 1.45  # height of the picture of all, in inches


def curves(store: Store, results: Results) -> Picture | None:
    found = _runs(store, results)
    last = max((len(run) for runs in found.values() for run in runs), default=0)
    filled = {method: np.array([_filled(run, last) for run in runs]) for method, runs in found.items()}
    errors = {method: runs for method, runs in filled.items() if _epochs({method: runs}).size}
    epochs = _epochs(errors)
    if epochs.size < 2:
        return None
    places = np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_POINTS)).round().astype(np.int64)
    drawn = epochs[places]  # the first and the last among them
    # Bands of more methods hide each other and everything else.
    banded = tuple(errors) if len(errors) <= _MOST_BANDS else (results.reference,)
    bands = "Bands" if len(banded) == len(errors) else f"The band, of {labels.name_in_text(results.reference)} alone"
    measure, has_stopped = results.measure, any(len(run) < last for runs in found.values() for run in runs)
    ends = {method: float(_mean(runs, epochs)[1][-1]) for method, runs in errors.items()}
    return Picture(
        "curves",
        f"Test {measure.name} per epoch",
        caption(
            "curves",
            results,
            size_of(results),
            len(drawn) >= _ENOUGH,
            _is_positive(errors, drawn),
            bands,
            len(drawn),
            len(epochs),
            has_stopped,
            origin(results) == THE_LAB,
        ),
        f"Lines of test {measure.name} over {last} epochs for {plural(len(errors), 'method')}. After the last epoch, "
        f"from the lowest: {listed({m: measure.value(ends[m]) for m in sorted(ends, key=lambda m: (ends[m], m))})}.",
        partial(_draw, errors, drawn, banded, f"test {measure.heading}"),
    )


def _runs(store: Store, results: Results) -> dict[str, list[Array]]:
    """Return by method the test values after each epoch of every run that has some; NaN where none was measured."""
    curves_of = store.curves(results.protocol.key)
    found: dict[str, list[Array]] = {}
    for method, jobs in results.by_method.items():
        for job in jobs:
            run = np.array([each.test_error for each in curves_of.get(job.id, [])], dtype=np.float64)  # None is NaN
            if np.isfinite(run).any():
                found.setdefault(method, []).append(run)
    return found


def _filled(run: Array, epochs: int) -> Array:
    """Repeat the last measured value for all epochs after an early stop."""
    return np.pad(run, (0, epochs - len(run)), constant_values=run[np.isfinite(run)][-1])


def _epochs(errors: Mapping[str, Array]) -> Array:
    """Return the epochs, from 1, after which all runs of a method were measured."""
    whole = [np.isfinite(runs).all(axis=0) for runs in errors.values()]
    return np.flatnonzero(np.any(whole, axis=0)).astype(np.float64) + 1


def _mean(runs: Array, epochs: Array) -> tuple[Array, Array, Array]:
    """Return the epochs after which all runs were measured, and mean and standard deviation after each."""
    values = runs[:, epochs.astype(int) - 1]
    whole = np.isfinite(values).all(axis=0)
    kept = values[:, whole]
    return epochs[whole], kept.mean(axis=0), kept.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(kept.shape[1])


def _is_positive(errors: Mapping[str, Array], epochs: Array) -> bool:
    """Return True if all means drawn are positive, as a logarithmic axis needs."""
    return all((_mean(runs, epochs)[1] > 0).all() for runs in errors.values())


@styled()
def _draw(errors: Mapping[str, Array], epochs: Array, banded: Collection[str], title: str) -> Figure:
    height, few = max(2.2, 0.165 * len(errors)), len(epochs) < _ENOUGH
    heights = [height] if few else [_ABOVE, height]
    figure, axes = plots(sum(heights) + 0.6 * len(heights), len(heights), height_ratios=heights)
    below, shown = axes[-1, 0], epochs if few else epochs[epochs >= epochs[-1] / 2]
    for above in axes[:-1, 0]:
        is_logarithmic = _is_positive(errors, epochs)
        above.set_yscale("log" if is_logarithmic else "linear")
        _draw_lines(above, errors, epochs, banded)
        if is_logarithmic:
            drawing.plain_ticks(above.yaxis)
        above.axvspan(shown[0], shown[-1], color=style.GRID, alpha=0.45, linewidth=0)
        above.set_xlim(epochs[0], epochs[-1])
        above.set_ylabel(drawing.wrapped(title, _ABOVE))
    _draw_lines(below, errors, shown, banded)
    pad = 0.0 if shown[-1] > shown[0] else 0.5
    below.set(xlim=(shown[0] - pad, shown[-1] + pad), ylim=below.get_ylim(), xlabel="epoch")
    below.locator_params(axis="x", integer=True, nbins=6)
    below.set_ylabel(drawing.wrapped(title, height))
    _label_ends(below, short_names(errors), {method: _mean(runs, shown) for method, runs in errors.items()}, height)
    return laid_out(figure)


def _draw_lines(axes: Axes, errors: Mapping[str, Array], epochs: Array, banded: Collection[str]) -> None:
    for method, runs in errors.items():
        look = style.style(method)
        measured, mean, sd = _mean(runs, epochs)
        if len(runs) > 1 and method in banded:
            # On a logarithmic axis, a band that leaves it at 0 would be drawn to the end of the world.
            low = np.maximum(mean - sd, mean / 10) if axes.get_yscale() == "log" else mean - sd
            axes.fill_between(measured, low, mean + sd, color=look.colour, alpha=0.13, linewidth=0)
        marker = look.marker if len(measured) < _ENOUGH else ""
        axes.plot(measured, mean, **look.stroke, linewidth=1.5, marker=marker, markersize=4)


def _label_ends(
    axes: Axes, names: Mapping[str, str], lines: Mapping[str, tuple[Array, Array, Array]], height: float
) -> None:
    """Name the lines at their ends, beside the plot."""
    ends = {method: (epochs[-1], mean[-1]) for method, (epochs, mean, _) in lines.items() if epochs.size}
    in_axes: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for method, beside in zip(ends, drawing.name_heights(axes, [y for _, y in ends.values()], height)):
        look = style.style(method)
        x, y = axes.transAxes.inverted().transform(axes.transData.transform(ends[method]))
        axes.plot([x + 0.01, 1.06], [y, beside], color=look.colour, linewidth=0.7, **in_axes)
        axes.plot([1.09], [beside], marker=look.marker, color=look.colour, markersize=4.5, **in_axes)
        axes.text(1.125, beside, names[method], fontsize=SMALL, va="center_baseline", **in_axes)
