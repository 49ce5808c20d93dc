"""Histograms of the covariance between units of a layer under dropout noise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.rendering import listed
from ...store.results import Results
from ...store.writer import Store
from .. import style
from ..protocol import size_of
from ..templating import caption
from .drawing import SMALL, Array, Picture, laid_out, plain_ticks, plots, short_names, styled

Layers = Mapping[int, Mapping[str, Array]]  # counts by layer and method, the mean over runs


def covariances(store: Store, results: Results) -> Picture | None:
    """Draw the histograms, if covariances were measured."""
    found: dict[int, dict[str, list[Array]]] = {}
    edges: Array | None = None
    for job in results.finished:
        its_edges = store.artefact(job.id, "covariance_edges")
        if its_edges is None:
            continue
        edges = its_edges.astype(np.float64)
        layer = 1
        while (counts := store.artefact(job.id, f"covariance_layer{layer}")) is not None:
            found.setdefault(layer, {}).setdefault(job.method, []).append(counts.astype(np.float64))
            layer += 1
    if edges is None or not found:
        return None
    layers = {
        layer: {method: np.mean(methods[method], axis=0) for method in results.methods if method in methods}
        for layer, methods in sorted(found.items())
    }
    what = results.protocol.configuration.get("measure")
    measured = "some images"
    if isinstance(what, Mapping) and {"inputs", "repeats"} <= set(what):
        measured = f"{what['inputs']} validation images, each passed {what['repeats']:,} times"
    near = float(edges[-1]) / 20
    inside = abs(edges[1:] + edges[:-1]) / 2 <= near
    shares = [
        f"Layer {layer}, share of pairs within ±{near:.2g}: "
        + listed({method: f"{100 * each[inside].sum() / max(each.sum(), 1):.1f} %" for method, each in methods.items()})
        for layer, methods in layers.items()
    ]
    return Picture(
        "covariances",
        "Covariance between units",
        caption("covariances", measured, size_of(results), edges[-1]),
        f"{'; '.join(shares)}.",
        partial(_draw, edges, layers),
    )


@styled()
def _draw(edges: Array, layers: Layers) -> Figure:
    methods = dict.fromkeys(method for found in layers.values() for method in found)
    figure, plotted = plots(2.15 * len(layers) + 0.09 * len(methods) + 0.3, len(layers))
    seen = np.any([counts > 0 for found in layers.values() for counts in found.values()], axis=0)
    ends = np.abs([edges[:-1][seen], edges[1:][seen]])
    reach = float(ends.max()) * 1.04 if ends.size else float(edges[-1])  # the largest distance from 0 to be seen
    middle = (edges[1:] + edges[:-1]) / 2
    for axes, (layer, found) in zip(plotted[:, 0], layers.items()):
        for method, counts in found.items():
            look = style.style(method)
            axes.plot(middle, np.where(counts > 0, counts, np.nan), **look.stroke, linewidth=1.4)
            alone = (counts > 0) & (np.convolve(counts, [1, 0, 1], "same") == 0)  # no line goes through one point
            axes.plot(middle[alone], counts[alone], **look.dots, markersize=3, markeredgewidth=0)
        axes.set(yscale="log", xlim=(-reach, reach), ylabel="pairs of units")
        plain_ticks(axes.yaxis)
        axes.text(0.02, 0.97, f"layer {layer}", transform=axes.transAxes, va="top", fontsize=SMALL)
    axes.set_xlabel("covariance")
    handles = [
        Line2D([], [], **style.style(method).stroke, label=name) for method, name in short_names(methods).items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, handlelength=3.2)
    return laid_out(figure)
