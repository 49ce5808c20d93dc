"""Errors by class and confusion matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...analysis.rendering import listed
from ...extensions import extension
from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from .. import style
from ..formats import NONE
from ..protocol import size_of
from ..templating import caption
from .drawing import TINY, Array, Picture, laid_out, plots, short_names, styled

Shares = Mapping[str, Array]
_MOST_CLASSES = 20
_MOST_MATRICES = 12  # of a sweep, matrices show nothing
_SMALLEST = 6.5  # text, in points


def matrices(store: Store, results: Results) -> dict[str, Array]:
    """Return by method the percentage of each class's test images (row) predicted as each class (column).

    Mean over its finished runs; methods without stored predictions are left out. None of more classes than are drawn:
    their squares would take gigabytes.
    """
    counts: dict[str, list[tuple[Array, Array]]] = {}
    for method, jobs in results.by_method.items():
        for job in jobs:
            predictions, truth = (store.artefact(job.id, f"test_{what}") for what in ("predictions", "labels"))
            if predictions is not None and truth is not None and len(truth):
                if max(predictions.max(), truth.max()) >= _MOST_CLASSES:
                    return {}
                counts.setdefault(method, []).append((predictions, truth))
    classes = 1 + max((int(array.max()) for found in counts.values() for pair in found for array in pair), default=0)
    shares = {}
    for method, found in counts.items():
        places = np.concatenate([truth.astype(np.int64) * classes + predictions for predictions, truth in found])
        total = np.bincount(places, minlength=classes**2).reshape(classes, classes)
        with np.errstate(invalid="ignore"):  # a class without images has no share
            shares[method] = 100 * total / total.sum(axis=1, keepdims=True)
    return shares


def class_errors(shares: Array) -> Array:
    """Return the error of each class in per cent."""
    return 100 - np.diagonal(shares)


def wins(errors: Shares) -> dict[str, int]:
    """Return on how many classes each method has the lowest error; ties count for each."""
    return dict(zip(errors, _is_lowest(np.array(list(errors.values()))).sum(axis=1).tolist()))


def _is_lowest(table: Array) -> np.ndarray:
    """Return True where a method (row) has the lowest error on a class (column), but for rounding."""
    rounded = table.round(9)
    return np.asarray(rounded == np.where(np.isnan(rounded), np.inf, rounded).min(axis=0))


def classes_of(results: Results, shares: Shares) -> Picture | None:
    if len(shares) < 2:
        return None
    errors = {method: class_errors(found) for method, found in shares.items()}
    reference, won = results.reference, wins(errors)
    begun = labels.display_name(reference)
    number = len(next(iter(errors.values())))
    against = {
        method: int(np.sum(errors[reference].round(9) < found.round(9)))
        for method, found in errors.items()
        if reference in errors and method != reference
    }
    beaten = listed({method: f"on {count}" for method, count in against.items()})
    return Picture(
        "classes",
        "Error class by class",
        caption("classes", reference, size_of(results), bool(against)),
        f"Of {number} classes, best on: {listed(won)}." + (f" {begun} errs less than {beaten}." if against else ""),
        partial(_draw_classes, errors, won, against, begun, _class_names(results, number)),
    )


def _class_names(results: Results, number: int) -> tuple[str, ...]:
    known = extension().class_names(results.named_dataset)
    return known if len(known) == number else tuple(map(str, range(number)))


def _shade(axes: Axes, shares: Array, colour: str) -> None:
    """Shade cells by their shares of 1, the first row on top, without grid and tick marks."""
    rows, columns = np.nonzero(np.nan_to_num(shares))
    cells = [Rectangle((x, y), 1, 1) for x, y in zip(columns.tolist(), rows.tolist())]
    shades = [(colour, share) for share in shares[rows, columns].tolist()]
    axes.add_collection(PatchCollection(cells, facecolor=shades, edgecolor="none"))
    axes.set(xlim=(0, shares.shape[1]), ylim=(len(shares), 0))
    axes.tick_params(length=0, pad=3)
    axes.grid(visible=False)


@styled()
def _draw_classes(
    errors: Shares, won: Mapping[str, int], against: Mapping[str, int], called: str, names: Sequence[str]
) -> Figure:
    shown = [labels.shorten(name, 12) for name in names]
    tilted = max(map(len, shown)) > 3
    figure, ((axes,),) = plots(0.27 * len(errors) + (0.95 if tilted else 0.5))
    _write_errors(axes, np.array(list(errors.values())), min(TINY, 72 / len(names)))
    axes.set_yticks(np.arange(len(errors)) + 0.5, labels=list(short_names(errors).values()))
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(names)) + 0.5, labels=shown, fontsize=TINY, rotation=50 if tilted else 0,
                    ha="left" if tilted else "center", rotation_mode="anchor")  # fmt: skip
    axes.spines[:].set_visible(False)
    beside = [(1.06, "best\non", won), (1.18, f"{labels.shorten(called, 10)}\nbetter", against)]
    text = partial(axes.text, transform=axes.get_yaxis_transform(), ha="center")
    for x, heading, counts in beside[: 1 + bool(against)]:
        text(x, -0.15, heading, va="bottom", fontsize=_SMALLEST, color=style.FAINT)
        for row, method in enumerate(errors):
            text(x, row + 0.5, str(counts.get(method, NONE)), va="center_baseline", fontsize=TINY)
    return laid_out(figure)


def _write_errors(axes: Axes, table: Array, size: float) -> None:
    """Write the errors into shaded cells, the lowest of each class in a box."""
    _shade(axes, 0.5 * table / max(float(np.nanmax(table)), 1e-9), style.FAINT)
    lowest = _is_lowest(table)
    for row, column in np.argwhere(~np.isnan(table)).tolist():
        best = lowest[row, column]
        axes.text(column + 0.5, row + 0.5, f"{table[row, column]:.1f}", ha="center", va="center_baseline",
                  fontsize=size, fontweight="bold" if best else "normal")  # fmt: skip
        if best:
            axes.add_patch(
                Rectangle((column + 0.05, row + 0.08), 0.9, 0.84, fill=False, edgecolor=style.INK, linewidth=1)
            )


def confusion_of(results: Results, shares: Shares) -> Picture | None:
    if not 1 <= len(shares) <= _MOST_MATRICES:
        return None
    names = _class_names(results, len(next(iter(shares.values()))))
    mistakes = {method: np.nan_to_num(found - np.diag(np.diagonal(found))) for method, found in shares.items()}
    worst = [f"{labels.display_name(method)}, {_worst(found, names)}" for method, found in mistakes.items()]
    return Picture(
        "confusion",
        "What is taken for what",
        caption("confusion", size_of(results)),
        f"Most frequent confusions: {'; '.join(worst)}.",
        partial(_draw_confusion, mistakes, names),
    )


def _worst(mistakes: Array, names: Sequence[str]) -> str:
    true, taken = divmod(int(np.argmax(mistakes)), len(mistakes))
    share = mistakes[true, taken]
    return f"{names[true]} taken for {names[taken]} ({share:.1f} %)" if share else "none"


@styled()
def _draw_confusion(mistakes: Shares, names: Sequence[str]) -> Figure:
    columns = min(len(mistakes), 2 if len(mistakes) <= 4 else 3)
    rows = -(-len(mistakes) // columns)
    shown = [labels.shorten(name, 11) for name in names]
    figure, plotted = plots(rows * (4.8 / max(columns, 2) + 0.25) + 1.0, rows, columns, sharex=True, sharey=True)
    largest, titles = max(float(found.max()) for found in mistakes.values()) or 1.0, short_names(mistakes)
    for axes, (method, found) in zip(plotted.flat, mistakes.items()):
        _shade(axes, found / largest, style.INK)
        axes.plot([0, len(names)], [0, len(names)], color=style.GRID, linewidth=0.8, zorder=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(np.arange(len(names)) + 0.5, labels=shown, fontsize=_SMALLEST)
        axes.tick_params(axis="x", rotation=90 if max(map(len, shown)) > 2 else 0)
        axes.spines[:].set(visible=True, color=style.GRID)
        axes.set_title(titles[method], fontsize=TINY, pad=3, loc="left", color=style.style(method).colour,
                       fontweight="bold")  # fmt: skip
    for number, axes in enumerate(plotted.flat):
        axes.xaxis.set_tick_params(labelbottom=number + columns >= len(mistakes))
        axes.set_axis_on() if number < len(mistakes) else axes.set_axis_off()
    figure.supxlabel("taken for", fontsize=TINY)
    figure.supylabel("true class", fontsize=TINY)
    shades = LinearSegmentedColormap.from_list("", [(style.INK, 0.0), (style.INK, 1.0)], N=10)
    scale = figure.colorbar(PatchCollection([], cmap=shades), ax=plotted, location="bottom", shrink=0.3, aspect=12,
                            anchor=(0.0, 0.5))  # fmt: skip
    scale.set_ticks([0, 1], labels=["0", f"{largest:.2g} %"], fontsize=_SMALLEST)
    scale.outline.set_edgecolor(style.GRID)
    return laid_out(figure)
