"""Error against the width of the Gaussian.

Errors and the bounds on them, method by method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.phrases import capital
from ...store.results import Results
from ...study import labels
from .. import style
from ..cells import size_of
from .drawing import (
    SIZE,
    SMALL,
    WIDTH,
    Picture,
    blank,
    deviation,
    make_room,
    place,
    short_names,
    spread,
    styled,
    text_width,
    wrapped,
)

_ENOUGH = 3  # widths; two of them are no curve


def sweep(results: Results) -> Picture | None:
    """If several Gaussian variants were trained."""
    errors = {method: list(runs.values()) for method, runs in results.errors().items()}
    widths = {method: width for method in errors if (width := labels.gaussian_width(method)) is not None}
    if len(set(widths.values())) < _ENOUGH:
        return None
    others = [method for method in errors if method not in widths and method != "gaussian"]
    measure = results.measure
    best = min(widths, key=lambda method: measure.sign * float(np.mean(errors[method])))
    both = len({"variance" in method for method in widths}) == 2
    sentences = [
        f"Mean test {measure.name} of Gaussian dropout against its width before clipping to [0, 1], "
        f"{size_of(results)}.",
        "The paper calls its numbers variances and treats them as standard deviations: filled circles read 0.1, 0.2, … "
        "as standard deviations, open squares as variances. Both are drawn over the standard deviation, so they would "
        "lie on one curve if runs did not vary."
        if both
        else "The scale above gives the variance.",
        "Bars and band: ± 1 standard deviation over runs." if results.has_spread else "",
    ]
    levels = ", ".join(
        f"{labels.name_in_text(method)} {measure.value(float(np.mean(errors[method])))}" for method in others
    )
    return Picture(
        "sweep",
        f"{capital(measure.name)} against the Gaussian's width",
        " ".join(sentence for sentence in sentences if sentence),
        f"Test {measure.name} over {len(widths)} widths, {measure.best} for {labels.name_in_text(best)} at "
        f"{measure.value(float(np.mean(errors[best])))}." + (f" For comparison: {levels}." if levels else ""),
        partial(_draw, errors, widths, others, both=both, title=f"test {measure.heading}"),
    )


def _draw(
    errors: Mapping[str, Sequence[float]], widths: Mapping[str, float], others: Sequence[str], *, both: bool, title: str
) -> Figure:
    with styled():
        look = style.style("gaussian")
        names = list(short_names(others).values())
        height, left = max(2.5, 0.165 * len(others)), 0.62
        width = WIDTH - left - max(0.2, min(1.85, text_width(names, SMALL) + 0.22))
        figure = blank(height + (1.45 if both else 1.2))
        axes = place(figure, left, 0.6, width, height)
        for method in others:
            mean, sd = float(np.mean(errors[method])), deviation(errors[method])
            theirs = style.style(method)
            if method == "bernoulli":
                axes.axhspan(mean - sd, mean + sd, color=theirs.colour, alpha=0.13, linewidth=0)
            axes.axhline(mean, color=theirs.colour, linestyle=theirs.line, linewidth=1.6)
        series: tuple[tuple[str, style.Line, str, str, str], ...] = (
            ("sigma", "solid", "o", look.colour, labels.SIGMA),
            ("variance", (0, (4, 1.5)), "s", style.PAPER, f"{labels.SIGMA}²"),
        )
        for reading, line, marker, face, label in series:
            chosen = sorted((method for method in widths if f"{reading}=" in method), key=widths.__getitem__)
            if not chosen:
                continue
            axes.errorbar(
                [widths[method] for method in chosen],
                [float(np.mean(errors[method])) for method in chosen],
                yerr=[deviation(errors[method]) for method in chosen],
                color=look.colour, linestyle=line, marker=marker, markerfacecolor=face, markersize=5.5,
                linewidth=1.6, elinewidth=1, label=f"Gaussian, number read as {label}",
            )  # fmt: skip
        axes.set_xlim(0, max(widths.values()) * 1.06)
        axes.set_xlabel(f"standard deviation {labels.SIGMA} before clipping")
        axes.set_ylabel("\n".join(wrapped(title, SIZE, height)))
        axes.set_ylim(axes.get_ylim())
        above = axes.secondary_xaxis("top", functions=(_square, _root))
        above.set_xlabel("variance σ²")
        largest = max(widths.values()) ** 2
        step = next((step for step in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if largest / step <= 6), largest / 4)
        shown = np.arange(0, largest * 1.06, step)
        above.set_xticks(shown, labels=[f"{tick:g}" for tick in shown.round(3)])
        above.spines["top"].set_visible(True)
        if both:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5 / height), ncols=2, frameon=False)
        low, high = axes.get_ylim()
        wanted = [(float(np.mean(errors[method])) - low) / (high - low) for method in others]
        for name, y, method in zip(names, spread(wanted, 1.25 * SMALL / 72 / height, 0.02, 0.98), others):
            axes.text(1.02, y, name, color=style.style(method).colour, fontsize=SMALL, va="center_baseline",
                      transform=axes.transAxes)  # fmt: skip
        make_room(figure)
        return figure


# The axis begins a little left of 0, where both are to be monotonic too.
def _square(sigma: npt.ArrayLike) -> npt.ArrayLike:
    return np.sign(sigma) * np.square(sigma)


def _root(variance: npt.ArrayLike) -> npt.ArrayLike:
    return np.sign(variance) * np.sqrt(np.abs(variance))


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
        partial(_draw_certificates, sorted(found, key=lambda each: each.strength or 0.0)),
    )


def _draw_certificates(found: Sequence[Any]) -> Figure:
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
