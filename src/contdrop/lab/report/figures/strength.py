"""Error against the strength of the noise: Gaussian width, certificates, relative variance."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.comparisons import control_of, noise_mismatch
from ...analysis.phrases import capital
from ...store.results import Results
from ...study import labels
from .. import style
from ..protocol import size_of
from .drawing import (
    SIZE,
    SMALL,
    TINY,
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
    """Draw the error against the width of the Gaussian, if several widths were trained."""
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
    """Draw the bounds that ``contdrop certify`` found."""
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
    """Draw bounds against r; methods of equal strength are joined at their mean."""
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


_ENOUGH_POINTS = 3  # points; two of them say nothing about strength


def noise(results: Results) -> Picture | None:
    """Draw the error against the relative variance, if at least three methods have one."""
    errors = results.errors()
    strengths: dict[str, float] = {}
    for job in results.finished:
        if "relative_variance" in job.results:
            strengths[job.method] = job.results["relative_variance"]
    strengths = {method: strengths[method] for method in results.methods if method in strengths}
    if len(strengths) < _ENOUGH_POINTS:
        return None
    without = [labels.name_in_text(method) for method in errors if method not in strengths]
    on_weights = any(labels.base(method) == "dropconnect" for method in strengths)
    sentences = [
        f"Mean test {results.measure.name} against the strength of the noise: the relative variance Var(m) / E[m]² of "
        f"the mask m, {size_of(results)}.",
        "If laws differ only in strength, all markers lie on one curve.",
        *_controls(results, strengths),
        "Bars: ± 1 standard deviation over runs." if results.has_spread else "",
        "Markers of equal strength are set side by side." if _offsets(strengths, 1.0) != strengths else "",
        "DropConnect's mask is on weights, so its strength is not quite comparable." if on_weights else "",
        f"Without a law of one strength, and not drawn: {', '.join(without)}." if without else "",
    ]
    values = {method: list(errors[method].values()) for method in strengths}
    return Picture(
        "noise",
        f"{capital(results.measure.name)} and strength of noise",
        " ".join(sentence for sentence in sentences if sentence),
        f"Relative variance and mean test {results.measure.name}: "
        + "; ".join(
            f"{labels.name_in_text(m)} {strengths[m]:.3f}, {results.measure.value(float(np.mean(values[m])))}"
            for m in strengths
        )
        + ".",
        partial(_draw_noise, values, strengths, f"test {results.measure.heading}"),
    )


def _controls(results: Results, methods: Collection[str]) -> Iterator[str]:
    """Yield for each method with its control if a gap between the two says something about the law."""
    for method in methods:
        control = control_of(method)
        if control not in methods or control is None:
            continue
        refusal = noise_mismatch(results, method, control)
        first, second = labels.name_in_text(method), capital(labels.name_in_text(control))
        yield (
            f"{second} is no control of {first} here: {refusal}."
            if refusal
            else f"{second} has the strength and mean of {first}: a gap between these two, beyond chance, is the law's."
        )


def _offsets(strengths: Mapping[str, float], width: float) -> dict[str, float]:
    """Return offsets so that no point hides another."""
    near: list[list[str]] = []
    for method in sorted(strengths, key=strengths.__getitem__):
        if near and strengths[method] - strengths[near[-1][-1]] < 0.012 * width:
            near[-1].append(method)
        else:
            near.append([method])
    step = 0.022 * width
    return {
        method: strengths[method] + (step * (place - (len(group) - 1) / 2) if len(group) > 1 else 0.0)
        for group in near
        for place, method in enumerate(group)
    }


def _draw_noise(errors: Mapping[str, Sequence[float]], strengths: Mapping[str, float], title: str) -> Figure:
    with styled():
        of_base: dict[str, list[str]] = {}
        for method in strengths:
            of_base.setdefault(labels.base(method), []).append(method)
        families = {methods[0] if len(methods) == 1 else base: methods for base, methods in of_base.items()}
        names = short_names(families, longest=18)
        height, left = 2.7, 0.62
        width = WIDTH - left - min(2.1, text_width(list(names.values()), SMALL) + 0.42)
        figure = blank(height + 0.7)
        axes = place(figure, left, 0.12, width, height)
        reach = max(max(strengths.values()), 0.1)
        drawn_at = _offsets(strengths, reach)
        for family, methods in families.items():
            look = style.style(family)
            methods = sorted(methods, key=strengths.__getitem__)
            axes.errorbar(
                [drawn_at[method] for method in methods],
                [float(np.mean(errors[method])) for method in methods],
                yerr=[deviation(errors[method]) for method in methods],
                color=look.colour, marker=look.marker, linestyle=look.line if len(methods) > 1 else "none",
                linewidth=1.2, elinewidth=1.1, markersize=6.5, markeredgecolor=style.PAPER, markeredgewidth=0.6,
            )  # fmt: skip
            if len(methods) > 1:
                for method, up in ((methods[0], 4), (methods[-1], -9)):
                    name = labels.display_name(method).rpartition(" ")[2]
                    axes.annotate(name, (drawn_at[method], np.mean(errors[method])),
                                  xytext=(6, up), textcoords="offset points", fontsize=TINY, color=look.colour,
                                  annotation_clip=False)  # fmt: skip
        axes.set_xlim(-0.06 * reach, 1.09 * reach)
        axes.set_xlabel("relative variance of the noise")
        axes.set_ylabel("\n".join(wrapped(title, SIZE, height)))
        best = {family: min(float(np.mean(errors[method])) for method in found) for family, found in families.items()}
        order = sorted(families, key=best.__getitem__, reverse=True)  # as the points are, the worst on top
        handles = [
            Line2D([], [], linestyle="none", marker=look.marker, color=look.colour, markersize=6, label=names[family])
            for family, look in ((family, style.style(family)) for family in order)
        ]  # fmt: skip
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handletextpad=0.2,
                    labelspacing=0.6)  # fmt: skip
        make_room(figure)
        return figure
