"""Learning curves: test value per epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...._text import plural
from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from .. import style
from ..protocol import THE_LAB, origin, size_of
from .drawing import (
    PLAIN,
    SIZE,
    WIDTH,
    Array,
    Picture,
    blank,
    label_ends,
    make_room,
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
    found = _runs(store, results)
    last = max((len(run) for runs in found.values() for run in runs), default=0)
    filled = {method: np.array([_filled(run, last) for run in runs]) for method, runs in found.items()}
    errors = {method: runs for method, runs in filled.items() if _epochs({method: runs}).size}
    epochs = _epochs(errors)
    if epochs.size < 2:
        return None
    drawn = _thinned(epochs)
    # Bands of more methods hide each other and everything else.
    banded = tuple(errors) if len(errors) <= _MOST_BANDS else (results.reference,)
    measure = results.measure
    ends = sorted((_mean(runs, epochs)[1][-1], method) for method, runs in errors.items())
    caption = [
        *_caption(results, errors, banded, drawn),
        f"{len(drawn)} of {len(epochs):,} epochs are drawn." if len(drawn) < len(epochs) else "",
        "Runs that stopped early keep their last value."
        if any(len(run) < last for runs in found.values() for run in runs)
        else "",
        "No choice was made by these figures." if origin(results) == THE_LAB else "",
    ]
    return Picture(
        "curves",
        f"Test {measure.name} per epoch",
        " ".join(sentence for sentence in caption if sentence),
        f"Lines of test {measure.name} over {last} epochs for {plural(len(errors), 'method')}. After the last epoch, "
        "from the lowest: "
        + ", ".join(f"{labels.name_in_text(method)} {measure.value(end)}" for end, method in ends)
        + ".",
        partial(_draw, errors, drawn, banded, f"test {measure.heading}"),
    )


def _runs(store: Store, results: Results) -> dict[str, list[Array]]:
    """Return by method the test values after each epoch of every run that has some; NaN where none was measured."""
    curves_of = store.curves(results.protocol.key)
    found: dict[str, list[Array]] = {}
    for method, jobs in results.by_method.items():
        for job in jobs:
            values = [np.nan if e.test_error is None else e.test_error for e in curves_of.get(job.id, [])]
            run = np.array(values, dtype=np.float64)
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


def _mean(runs: Array, epochs: Array) -> tuple[Array, Array]:
    """Return the epochs after which all runs were measured, and the mean after each."""
    values = runs[:, epochs.astype(int) - 1]
    whole = np.isfinite(values).all(axis=0)
    return epochs[whole], values[:, whole].mean(axis=0)


def _caption(results: Results, errors: Mapping[str, Array], banded: Collection[str], drawn: Array) -> Iterator[str]:
    every = results.protocol.configuration.get("evaluate")
    each = f"every {every} epochs" if isinstance(every, int) and every > 1 else "each epoch"
    yield f"Mean test {results.measure.name} after {each}, {size_of(results)}."
    if len(drawn) >= _ENOUGH:
        scale = ", on a logarithmic axis" if _is_positive(errors, drawn) else ""
        yield f"Above: all of training{scale}. Below: its second half."
    if results.has_spread:
        which = (
            "Bands" if len(banded) == len(errors) else f"The band, of {labels.name_in_text(next(iter(banded)))} alone"
        )
        yield f"{which}: ± 1 standard deviation over runs. That is how runs vary; whether methods differ, pairs show."


def _thinned(epochs: Array) -> Array:
    """Return the points to draw, the first and the last among them."""
    places = np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_POINTS)).round().astype(np.int64)
    return np.array(epochs[places])


def _draw(errors: Mapping[str, Array], epochs: Array, banded: Collection[str], title: str) -> Figure:
    with styled():
        height, left = max(2.2, 0.165 * len(errors)), 0.62
        width = WIDTH - left - min(2.1, names_width(errors) + 0.62)
        last = int(epochs[-1])
        if len(epochs) < _ENOUGH:
            figure = blank(height + 0.65)
            axes = place(figure, left, 0.12, width, height)
            _lines(axes, errors, epochs, banded)
            _finish(axes, errors, epochs, height, title)
            make_room(figure)
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
        above.set_xlim(float(epochs[0]), last)
        above.set_ylabel("\n".join(wrapped(title, SIZE, _ABOVE)))
        below = place(figure, left, _ABOVE + 0.5, width, height)
        _lines(below, errors, epochs[epochs >= last / 2], banded)
        above.axvspan(float(epochs[epochs >= last / 2][0]), last, color=style.GRID, alpha=0.45, linewidth=0)
        _finish(below, errors, epochs[epochs >= last / 2], height, title)
        make_room(figure)
        return figure


def _is_positive(errors: Mapping[str, Array], epochs: Array) -> bool:
    """Return True if all means drawn are positive, as a logarithmic axis needs."""
    return all((_mean(runs, epochs)[1] > 0).all() for runs in errors.values())


def _lines(axes: Axes, errors: Mapping[str, Array], epochs: Array, banded: Collection[str]) -> None:
    for method, runs in errors.items():
        look = style.style(method)
        measured, mean = _mean(runs, epochs)
        if len(runs) > 1 and method in banded:
            sd = runs[:, measured.astype(int) - 1].std(axis=0, ddof=1)
            low = mean - sd
            if axes.get_yscale() == "log":  # a band that leaves it at 0 would be drawn to the end of the world
                low = np.maximum(low, mean / 10)
            axes.fill_between(measured, low, mean + sd, color=look.colour, alpha=0.13, linewidth=0)
        marker = look.marker if len(measured) < _ENOUGH else ""
        axes.plot(measured, mean, color=look.colour, linestyle=look.line, linewidth=1.5, marker=marker, markersize=4)


def _finish(axes: Axes, errors: Mapping[str, Array], epochs: Array, height: float, title: str) -> None:
    first, last = float(epochs[0]), float(epochs[-1])
    axes.set_xlim(*((first, last) if last > first else (first - 0.5, last + 0.5)))
    axes.set_xlabel("epoch")
    axes.set_ylabel("\n".join(wrapped(title, SIZE, height)))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.ticklabel_format(axis="y", style="sci", scilimits=PLAIN, useOffset=False)
    axes.set_ylim(axes.get_ylim())
    drawn = {method: _mean(runs, epochs) for method, runs in errors.items()}
    ends = {method: (float(at[-1]), float(mean[-1])) for method, (at, mean) in drawn.items() if at.size}
    label_ends(axes, ends, height)
