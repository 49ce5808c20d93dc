"""Test error per epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import labels
from ...results import Results
from ...store import Store
from .. import colours
from ..cells import THE_LAB, maker, size_of
from .drawing import (
    PLAIN,
    SIZE,
    WIDTH,
    Array,
    Picture,
    blank,
    label_ends,
    names_width,
    place,
    plain_ticks,
    styled,
    wrapped,
)

_MOST_POINTS = 400  # drawn per line; a figure of 3000 epochs would be megabytes
_MOST_BANDS = 8
_ENOUGH = 8  # epochs, for a picture of their second half
_ABOVE = 1.45  # height of the picture of all, in inches


def curves(store: Store, results: Results) -> Picture | None:
    epochs_of = store.curves(results.protocol.key)
    found: dict[str, list[list[float]]] = {}
    for method, jobs in results.by_method.items():
        for job in jobs:
            values = [np.nan if e.test_error is None else e.test_error for e in epochs_of.get(job.id, [])]
            if len(values) == results.protocol.epochs and not np.isnan(values).all():
                found.setdefault(method, []).append(values)
    if not found or results.protocol.epochs < 2:
        return None
    errors = {method: np.array(runs, dtype=np.float64) for method, runs in found.items()}
    epochs, drawn = results.protocol.epochs, _drawn(results.protocol.epochs)
    # Bands of more methods hide each other and everything else.
    banded = tuple(errors) if len(errors) <= _MOST_BANDS else (results.reference,)
    measure = results.measure
    last = sorted((float(runs[:, -1].mean()), method) for method, runs in errors.items())
    return Picture(
        "curves",
        f"Test {measure.name} per epoch",
        " ".join(_caption(results, errors, banded, len(drawn))),
        f"Lines of test {measure.name} over {epochs} epochs for {len(errors)} methods. After the last epoch, from the "
        "lowest: " + ", ".join(f"{labels.called(method)} {measure.value(error)}" for error, method in last) + ".",
        partial(_draw, errors, drawn, banded, f"test {measure.heading}"),
    )


def _caption(results: Results, errors: Mapping[str, Array], banded: Collection[str], drawn: int) -> Iterator[str]:
    epochs = results.protocol.epochs
    yield f"Mean test {results.measure.name} after each epoch, {size_of(results)}."
    if epochs >= _ENOUGH:
        scale = ", on a logarithmic axis" if _is_positive(errors, _drawn(epochs)) else ""
        yield f"Above: all of training{scale}. Below: its second half."
    if results.has_spread:
        which = "Bands" if len(banded) == len(errors) else f"The band, of {labels.called(next(iter(banded)))} alone"
        yield f"{which}: ± 1 standard deviation over runs. That is how runs vary; whether methods differ, pairs show."
    if drawn < epochs:
        yield f"{drawn} of {epochs:,} epochs are drawn."
    if maker(results) == THE_LAB:
        yield "No choice was made by these figures."


def _drawn(epochs: int) -> Array:
    """Numbers of the epochs to draw, from 1; the first and the last among them."""
    return np.unique(np.linspace(1, epochs, min(epochs, _MOST_POINTS)).round())


def _draw(errors: Mapping[str, Array], epochs: Array, banded: Collection[str], title: str) -> Figure:
    with styled():
        height, left = max(2.2, 0.165 * len(errors)), 0.62
        width = WIDTH - left - min(2.1, names_width(errors) + 0.62)
        last = int(epochs[-1])
        if last < _ENOUGH:
            figure = blank(height + 0.65)
            axes = place(figure, left, 0.12, width, height)
            _lines(axes, errors, epochs, banded)
            _finish(axes, errors, epochs, height, title)
            _make_room(figure)
            return figure
        figure = blank(height + _ABOVE + 1.1)
        above = place(figure, left, 0.12, width, _ABOVE)
        if _is_positive(errors, epochs):
            above.set_yscale("log")
        _lines(above, errors, epochs, banded)
        if above.get_yscale() == "log":
            plain_ticks(above.yaxis)
        else:
            above.ticklabel_format(axis="y", style="sci", scilimits=PLAIN, useOffset=False)
        above.set_xlim(1, last)
        above.set_ylabel("\n".join(wrapped(title, SIZE, _ABOVE)))
        below = place(figure, left, _ABOVE + 0.5, width, height)
        _lines(below, errors, epochs[epochs >= last / 2], banded)
        above.axvspan(float(epochs[epochs >= last / 2][0]), last, color=colours.GRID, alpha=0.45, linewidth=0)
        _finish(below, errors, epochs[epochs >= last / 2], height, title)
        _make_room(figure)
        return figure


def _is_positive(errors: Mapping[str, Array], epochs: Array) -> bool:
    """Whether all means that are drawn are, as a logarithmic axis needs."""
    means = np.array([runs[:, epochs.astype(int) - 1].mean(axis=0) for runs in errors.values()])
    return bool((means[np.isfinite(means)] > 0).all())


def _lines(axes: Axes, errors: Mapping[str, Array], epochs: Array, banded: Collection[str]) -> None:
    columns = epochs.astype(int) - 1
    for method, runs in errors.items():
        look = colours.style(method)
        values = runs[:, columns]
        mean = values.mean(axis=0)
        if len(runs) > 1 and method in banded:
            sd = values.std(axis=0, ddof=1)
            low = mean - sd
            if axes.get_yscale() == "log":  # a band that leaves it at 0 would be drawn to the end of the world
                low = np.maximum(low, mean / 10)
            axes.fill_between(epochs, low, mean + sd, color=look.colour, alpha=0.13, linewidth=0)
        marker = look.marker if len(epochs) < _ENOUGH else ""
        axes.plot(epochs, mean, color=look.colour, linestyle=look.line, linewidth=1.5, marker=marker, markersize=4)


def _finish(axes: Axes, errors: Mapping[str, Array], epochs: Array, height: float, title: str) -> None:
    first, last = float(epochs[0]), float(epochs[-1])
    axes.set_xlim(*((first, last) if last > first else (first - 0.5, last + 0.5)))
    axes.set_xlabel("epoch")
    axes.set_ylabel("\n".join(wrapped(title, SIZE, height)))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.ticklabel_format(axis="y", style="sci", scilimits=PLAIN, useOffset=False)
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, {method: (last, float(runs[:, int(last) - 1].mean())) for method, runs in errors.items()}, height)


def _make_room(figure: Figure) -> None:
    """Moves the left ends of plots to the right, where what stands beside them, long numbers say, would be cut off."""
    boxes = [box for axes in figure.axes if (box := axes.yaxis.get_tightbbox()) is not None]
    missing = -min(box.x0 for box in boxes) / figure.bbox.width
    for axes in figure.axes if missing > 0 else ():
        box = axes.get_position()
        axes.set_position((box.x0 + missing + 0.01, box.y0, box.width - missing - 0.01, box.height))
