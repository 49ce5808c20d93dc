"""Errors by class and confusion matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...extensions import extension
from ...store.results import Results
from ...store.writer import Store
from ...study import labels
from .. import style
from ..protocol import size_of
from .drawing import SMALL, TINY, WIDTH, Array, Picture, blank, place, short_names, styled, text_width

_MOST_CLASSES = 20
_MOST_MATRICES = 12  # of a sweep, matrices show nothing


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
    if not counts:
        return {}
    classes = 1 + max(int(max(p.max(), t.max())) for found in counts.values() for p, t in found)
    shares = {}
    for method, found in counts.items():
        total = np.zeros((classes, classes))
        for predictions, truth in found:
            places = truth.astype(np.int64) * classes + predictions
            total += np.bincount(places, minlength=classes**2).reshape(classes, classes)
        with np.errstate(invalid="ignore"):  # a class without images has no share
            shares[method] = 100 * total / total.sum(axis=1, keepdims=True)
    return shares


def class_errors(shares: Array) -> Array:
    """Return the error of each class in per cent."""
    return 100 - np.diagonal(shares)


def wins(errors: Mapping[str, Array]) -> dict[str, int]:
    """Return on how many classes each method has the lowest error; ties count for each."""
    table = np.array(list(errors.values())).round(9)
    best = table == np.nanmin(np.where(np.isnan(table), np.inf, table), axis=0)
    return dict(zip(errors, best.sum(axis=1).tolist()))


def classes_of(results: Results, shares: Mapping[str, Array]) -> Picture | None:
    if len(shares) < 2:
        return None
    errors = {method: class_errors(found) for method, found in shares.items()}
    reference, won = results.reference, wins(errors)
    called, begun = labels.name_in_text(reference), labels.display_name(reference)
    number = len(next(iter(errors.values())))
    against = {
        method: int(np.sum(errors[reference].round(9) < found.round(9)))
        for method, found in errors.items()
        if reference in errors and method != reference
    }
    return Picture(
        "classes",
        "Error class by class",
        f"Error on each class in per cent of its test examples, mean over {size_of(results)}. Boxed: the lowest of a "
        f"class. “Best on” counts a method's boxes"
        + (f"; “{begun} better” counts the classes on which {called} errs less than the method." if against else ".")
        + " With few runs such counts are mostly chance.",
        f"Of {number} classes, best on: "
        + ", ".join(f"{labels.name_in_text(method)} {count}" for method, count in won.items())
        + "."
        + (f" {begun} errs less than " if against else "")
        + ", ".join(f"{labels.name_in_text(method)} on {count}" for method, count in against.items())
        + ("." if against else ""),
        partial(_draw_classes, errors, won, against, begun, _class_names(results, number)),
    )


def _class_names(results: Results, number: int) -> tuple[str, ...]:
    known = extension().class_names(results.named_dataset)
    return known if len(known) == number else tuple(str(place) for place in range(number))


def _draw_classes(
    errors: Mapping[str, Array], won: Mapping[str, int], against: Mapping[str, int], called: str, names: Sequence[str]
) -> Figure:
    with styled():
        rows = list(short_names(errors).values())
        left = min(1.85, text_width(rows, SMALL) + 0.12)
        right = 0.95 if against else 0.5
        shown = [labels.shorten(name, 12) for name in names]
        tilted = max(len(name) for name in shown) > 3
        top = (0.3 + 0.75 * text_width(shown, TINY) if tilted else 0.3) + 0.12
        cell = (WIDTH - left - right) / len(names)
        height = 0.27 * len(errors)
        figure = blank(top + height + 0.12)
        axes = place(figure, left, top, cell * len(names), height)
        axes.set_xlim(0, len(names))
        axes.set_ylim(len(errors), 0)
        table = np.array(list(errors.values()))
        largest = max(float(np.nanmax(table)), 1e-9)
        lowest = np.nanmin(np.where(np.isnan(table), np.inf, table), axis=0).round(9)
        size = min(TINY, 72 * cell / 2.6)
        for row, found in enumerate(table):
            for column, value in enumerate(found):
                if np.isnan(value):
                    continue
                axes.add_patch(Rectangle((column, row), 1, 1, facecolor=style.FAINT, edgecolor="none",
                                         alpha=0.5 * float(value) / largest))  # fmt: skip
                best = round(float(value), 9) == lowest[column]
                axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center_baseline", fontsize=size,
                          fontweight="bold" if best else "normal")  # fmt: skip
                if best:
                    axes.add_patch(Rectangle((column + 0.05, row + 0.08), 0.9, 0.84, fill=False,
                                             edgecolor=style.INK, linewidth=1))  # fmt: skip
        axes.set_yticks(np.arange(len(errors)) + 0.5, labels=rows)
        axes.xaxis.tick_top()
        axes.set_xticks(np.arange(len(names)) + 0.5, labels=shown, fontsize=TINY, rotation=50 if tilted else 0,
                        ha="left" if tilted else "center", rotation_mode="anchor")  # fmt: skip
        axes.tick_params(length=0, pad=3)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        columns = [("best\non", won), (f"{labels.shorten(called, 10)}\nbetter", against)]
        for x, (heading, counts) in zip((0.22, 0.65), columns):
            if not counts:
                continue
            at = len(names) + x / cell
            axes.text(at, -0.15, heading, ha="center", va="bottom", fontsize=6.5, color=style.FAINT)
            for row, method in enumerate(errors):
                axes.text(
                    at,
                    row + 0.5,
                    str(counts.get(method, "\N{EN DASH}")),
                    ha="center",
                    va="center_baseline",
                    fontsize=TINY,
                )
        return figure


def confusion_of(results: Results, shares: Mapping[str, Array]) -> Picture | None:
    if not 1 <= len(shares) <= _MOST_MATRICES:
        return None
    names = _class_names(results, len(next(iter(shares.values()))))
    mistakes = {method: np.nan_to_num(found - np.diag(np.diagonal(found))) for method, found in shares.items()}
    return Picture(
        "confusion",
        "What is taken for what",
        "Confusion matrices: rows are true classes, columns what they were taken for, the shade the share of the "
        "class's test examples; correct answers, the diagonal, are left out. "
        f"Mean over {size_of(results)}; one scale for all.",
        "Most frequent confusions: "
        + "; ".join(_worst(method, found, names) for method, found in mistakes.items())
        + ".",
        partial(_draw_confusion, mistakes, names),
    )


def _worst(method: str, mistakes: Array, names: Sequence[str]) -> str:
    true, taken = divmod(int(np.argmax(mistakes)), len(mistakes))
    share = mistakes[true, taken]
    if not share:
        return f"{labels.display_name(method)}, none"
    return f"{labels.display_name(method)}, {names[true]} taken for {names[taken]} ({share:.1f} %)"


def _draw_confusion(mistakes: Mapping[str, Array], names: Sequence[str]) -> Figure:
    with styled():
        columns = min(len(mistakes), 2 if len(mistakes) <= 4 else 3)
        rows = -(-len(mistakes) // columns)
        shown = [labels.shorten(name, 11) for name in names]
        left = text_width(shown, 6.5) + 0.32
        gap = 0.14
        side = (WIDTH - left - 0.1 - gap * (columns - 1)) / columns
        side = min(side, 2.3)
        foot = (text_width(shown, 6.5) if max(map(len, shown)) > 2 else 0.0) + 0.8
        figure = blank((side + 0.32) * rows + foot)
        largest, titles = max(float(found.max()) for found in mistakes.values()) or 1.0, short_names(mistakes)
        for place_, (method, found) in enumerate(mistakes.items()):
            row, column = divmod(place_, columns)
            axes = place(figure, left + column * (side + gap), 0.3 + row * (side + 0.32), side, side)
            true, taken = np.nonzero(found)
            cells = PatchCollection(
                [Rectangle((x, y), 1, 1) for x, y in zip(taken.tolist(), true.tolist())], edgecolor="none"
            )
            shares = (found[true, taken] / largest).tolist()
            cells.set_facecolor([(style.INK, share) for share in shares])
            axes.add_collection(cells)
            axes.plot([0, len(names)], [0, len(names)], color=style.GRID, linewidth=0.8, zorder=0)
            axes.set_xlim(0, len(names))
            axes.set_ylim(len(names), 0)
            axes.grid(visible=False)
            middle = np.arange(len(names)) + 0.5
            lowest = place_ + columns >= len(mistakes)
            tilted = max(map(len, shown)) > 2
            axes.set_xticks(middle if lowest else [], labels=shown if lowest else [], fontsize=6.5,
                            rotation=90 if tilted else 0)  # fmt: skip
            axes.set_yticks(middle if column == 0 else [], labels=[] if column else shown, fontsize=6.5)
            axes.tick_params(length=0, pad=2)
            axes.spines[:].set(visible=True, color=style.GRID)
            axes.set_title(titles[method], fontsize=TINY, pad=3, loc="left",
                           color=style.style(method).colour, fontweight="bold")  # fmt: skip
            if column == 0 and row == (rows - 1) // 2:
                axes.set_ylabel("true class", fontsize=TINY)
        _key(figure, largest, left)
        centre = left + (columns * (side + gap) - gap) / 2
        figure.text(centre / WIDTH, 0.42 / figure.get_size_inches()[1], "taken for", ha="center", fontsize=TINY)
        return figure


def _key(figure: Figure, largest: float, left: float) -> None:
    axes = place(figure, left, float(figure.get_size_inches()[1]) - 0.34, 1.0, 0.1)
    for step in range(10):
        axes.add_patch(Rectangle((step / 10, 0), 0.1, 1, facecolor=style.INK, alpha=(step + 0.5) / 10, linewidth=0))
    axes.set_xticks([0, 1], labels=["0", f"{largest:.2g} %"], fontsize=6.5)
    axes.set_yticks([])
    axes.set_xlim(0, 1)
    axes.grid(visible=False)
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set(visible=True, color=style.GRID)
