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
from .drawing import WIDTH, Array, Picture, blank, label_ends, names_width, place, plain_ticks, size_of, styled

_MOST_POINTS = 400  # drawn per line; a figure of 3000 epochs would be megabytes
_MOST_BANDS = 8


def curves(store: Store, results: Results) -> Picture | None:
    epochs_of = store.curves(results.protocol.key)
    found: dict[str, list[list[float]]] = {}
    for method, jobs in results.by_method.items():
        for job in jobs:
            if 0 < len(epochs_of.get(job.id, [])) == results.protocol.epochs:
                found.setdefault(method, []).append(
                    [np.nan if e.test_error is None else e.test_error for e in epochs_of[job.id]]
                )
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
    if epochs >= 8:
        yield "Above: all of training, on a logarithmic axis. Below: its second half."
    if results.has_spread:
        which = "Bands" if len(banded) == len(errors) else f"The band, of {labels.called(next(iter(banded)))} alone"
        yield f"{which}: ± 1 standard deviation over runs. That is how runs vary; whether methods differ, pairs show."
    if drawn < epochs:
        yield f"{drawn} of {epochs:,} epochs are drawn."
    yield "No choice was made by these figures."


def _drawn(epochs: int) -> Array:
    """Numbers of the epochs to draw, from 1; the first and the last among them."""
    return np.unique(np.linspace(1, epochs, min(epochs, _MOST_POINTS)).round())


def _draw(errors: Mapping[str, Array], epochs: Array, banded: Collection[str], title: str) -> Figure:
    with styled():
        height, left = max(2.2, 0.165 * len(errors)), 0.62
        width = WIDTH - left - min(2.1, names_width(errors) + 0.62)
        last = int(epochs[-1])
        if last < 8:
            figure = blank(height + 0.65)
            axes = place(figure, left, 0.12, width, height)
            _lines(axes, errors, epochs, banded)
            _finish(axes, errors, epochs, height, title)
            return figure
        figure = blank(height + 2.55)
        above = place(figure, left, 0.12, width, 1.45)
        _lines(above, errors, epochs, banded)
        above.set_yscale("log")
        above.set_xlim(1, last)
        above.set_ylabel(title)
        plain_ticks(above.yaxis)
        below = place(figure, left, 1.95, width, height)
        _lines(below, errors, epochs[epochs >= last / 2], banded)
        above.axvspan(float(epochs[epochs >= last / 2][0]), last, color=colours.GRID, alpha=0.45, linewidth=0)
        _finish(below, errors, epochs[epochs >= last / 2], height, title)
        return figure


def _lines(axes: Axes, errors: Mapping[str, Array], epochs: Array, banded: Collection[str]) -> None:
    columns = epochs.astype(int) - 1
    for method, runs in errors.items():
        look = colours.style(method)
        values = runs[:, columns]
        mean = values.mean(axis=0)
        if len(runs) > 1 and method in banded:
            sd = values.std(axis=0, ddof=1)
            # A band that leaves the logarithmic axis at 0 would be drawn to the end of the world.
            low = np.maximum(mean - sd, mean / 10)
            axes.fill_between(epochs, low, mean + sd, color=look.colour, alpha=0.13, linewidth=0)
        marker = look.marker if len(epochs) < 8 else ""
        axes.plot(epochs, mean, color=look.colour, linestyle=look.line, linewidth=1.5, marker=marker, markersize=4)


def _finish(axes: Axes, errors: Mapping[str, Array], epochs: Array, height: float, title: str) -> None:
    first, last = float(epochs[0]), float(epochs[-1])
    axes.set_xlim(*((first, last) if last > first else (first - 0.5, last + 0.5)))
    axes.set_xlabel("epoch")
    axes.set_ylabel(title)
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, {method: (last, float(runs[:, int(last) - 1].mean())) for method, runs in errors.items()}, height)
