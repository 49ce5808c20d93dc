"""The confound: error against the strength of the noise, for all laws."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.comparisons import control_of, noise_mismatch
from ...analysis.phrases import capital
from ...store.results import Results
from ...study import labels
from .. import style
from ..cells import size_of
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
    styled,
    text_width,
    wrapped,
)

_ENOUGH = 3  # points; two of them say nothing about strength


def noise(results: Results) -> Picture | None:
    """If at least three methods have a law, and so a relative variance."""
    errors = results.errors()
    strengths: dict[str, float] = {}
    for job in results.finished:
        if "relative_variance" in job.results:
            strengths[job.method] = job.results["relative_variance"]
    strengths = {method: strengths[method] for method in results.methods if method in strengths}
    if len(strengths) < _ENOUGH:
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
        partial(_draw, values, strengths, f"test {results.measure.heading}"),
    )


def _controls(results: Results, methods: Collection[str]) -> Iterator[str]:
    """Of each method that stands beside its control: whether a gap between the two says something about the law."""
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
    """Where to draw each point, so that none hides another."""
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


def _draw(errors: Mapping[str, Sequence[float]], strengths: Mapping[str, float], title: str) -> Figure:
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
                    value = labels.display_name(method).rpartition(" ")[2]
                    axes.annotate(value, (drawn_at[method], np.mean(errors[method])),
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
