"""Errors and the bounds on them, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import style
from .drawing import SMALL, WIDTH, Picture, blank, place, short_names, styled

_KINDS = (("mean network", "o"), ("mixture", "s"), ("random member", "^"), ("PAC-Bayes network", "D"))
_SHADES = ("#0072b2", "#008a64", "#d55e00", "#b8578f")
_ROW = 0.62
_CURVES = 2.6  # height of the lower part
_FEWEST = 2  # strengths, for which a curve says nothing


def certificates(found: Sequence[Any], delta: float) -> Picture:
    """Of what ``contdrop certify`` found."""
    return Picture(
        "certificates",
        "Errors and certificates",
        f"Symbols are errors, the right ends of lines their upper bounds, which hold all together with a confidence of "
        f"{1 - delta:.0%}. Methods are in the order of their strength, and below are the bounds against it.",
        f"Errors and bounds of {len(found)} methods.",
        partial(_draw, sorted(found, key=lambda each: each.strength or 0.0)),
    )


def _draw(found: Sequence[Any]) -> Figure:
    known = [each for each in found if each.strength is not None]
    curves = len({each.strength for each in known}) > _FEWEST
    with styled():
        height, below = _ROW * len(found), _CURVES if curves else 0.0
        figure = blank(height + below + 1.05)
        _rows(place(figure, 1.75, 0.45, WIDTH - 1.95, height), found)
        if curves:
            _against_strength(place(figure, 1.75, height + 1.1, WIDTH - 1.95, below - 0.65), known)
        handles, names = figure.axes[0].get_legend_handles_labels()
        unique = dict(zip(names, handles))
        figure.legend(unique.values(), unique.keys(), loc="upper center", ncols=4, fontsize=SMALL, frameon=False,
                      handletextpad=0.2, columnspacing=0.9)  # fmt: skip
        return figure


def _rows(axes: Axes, found: Sequence[Any]) -> None:
    for row, each in enumerate(found):
        for number, pair in enumerate(_pairs(each)):
            if pair is None:
                continue
            error, bound = (100 * value for value in pair)
            y = row + 0.18 * (number - 1.5)
            name, marker = _KINDS[number]
            axes.plot([error, bound], [y, y], color=_SHADES[number], linewidth=1.2)
            axes.plot([bound], [y], marker="|", color=_SHADES[number], markersize=7)
            axes.plot([error], [y], marker, color=_SHADES[number], label=name if row == 0 or number else None)
    axes.set(ylim=(len(found) - 0.5, -0.5), yticks=range(len(found)), xlabel="error and bound, %")
    axes.set_xlim(left=0)
    names = short_names(each.method for each in found)
    axes.set_yticklabels([_named(names[each.method], each.strength) for each in found])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["bottom"].set_color(style.FAINT)


def _against_strength(axes: Axes, found: Sequence[Any]) -> None:
    """Bounds against r; where several methods have one strength, the line goes through their mean."""
    for number, (_, marker) in enumerate(_KINDS):
        bounds: dict[float, list[float]] = {}
        for each in found:
            pair = _pairs(each)[number]
            if pair is not None:
                bounds.setdefault(each.strength, []).append(100 * pair[1])
        axes.plot(list(bounds), [sum(each) / len(each) for each in bounds.values()], color=_SHADES[number], linewidth=1)
        for strength, each in bounds.items():
            axes.plot([strength] * len(each), each, marker, color=_SHADES[number], markersize=4)
    axes.set(xlabel="noise strength r", ylabel="bound, %")
    axes.set_ylim(bottom=0)


def _named(name: str, strength: float | None) -> str:
    return name if strength is None else f"{name}\nr = {strength:.3g}"


def _pairs(each: Any) -> list[tuple[float, float] | None]:
    held, made = each.holdout, each.pac_bayes
    return [
        (each.mean.error, each.mean.bound),
        (held.mixture.error, held.mixture.bound) if held else None,
        (held.member.error, held.member.bound) if held else None,
        (made.test_error, made.bound) if made else None,
    ]
