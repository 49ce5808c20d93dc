"""What ``contdrop theory`` found, as a picture of four panels."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from ..laws import Bernoulli, Gaussian, Law, Uniform
from ..theory import monte_carlo, paper_equations, static
from . import plot_command

SIZES = (10, 30, 100, 300, 800)

# Of Okabe and Ito, the same for a law as in the plot of speeds.
_COLOURS: dict[Law, str] = {
    Bernoulli(keep=0.5): "#D55E00",
    Uniform(): "#009E73",
    Gaussian(sigma=0.3): "#0072B2",
}
_GREY = "#777777"


def draw(shares: dict[str, float], path: pathlib.Path) -> None:
    """Draws the trade-off, the normal approximation, the probit's error and the terms of the gradient."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    axes = figure.subplots(2, 2)
    _trade_off(axes[0, 0])
    _normality(axes[0, 1])
    _probit(axes[1, 0], figure)
    _gradient(axes[1, 1], shares)
    plot_command.save(figure, path)


def _trade_off(axis: Any) -> None:
    mc = monte_carlo.MonteCarlo()
    sigmas = torch.linspace(0.05, 1.0, 39).tolist()
    curve = static.trade_off([Gaussian(sigma=s) for s in sigmas], mc.layer, mc.x)
    axis.plot([point.variance for point in curve], [point.covariance for point in curve], color=_GREY, zorder=1)
    for law, colour in _COLOURS.items():
        (point,) = static.trade_off([law], mc.layer, mc.x)
        axis.scatter([point.variance], [point.covariance], color=colour, zorder=2, label=str(law))
    axis.set(
        title="One knob: every law is on one line",
        xlabel="mean variance of the outputs (diversity)",
        ylabel="mean |covariance| between outputs",
    )
    axis.legend(title="grey: clipped Gaussian, sigma 0.05 to 1", fontsize="small", title_fontsize="small")


def _normality(axis: Any) -> None:
    found = paper_equations.normality(SIZES)
    for law, colour in _COLOURS.items():
        rows = [row for row in found if row.law == law]
        axis.loglog(SIZES, [row.distance for row in rows], "o-", color=colour, label=str(law))
        axis.loglog(SIZES, [row.bound for row in rows], ":", color=colour)
    axis.set(
        title="How normal is S?",
        xlabel="inputs of the unit",
        ylabel="Kolmogorov distance to a normal variable",
    )
    axis.legend(title="dotted: Berry-Esseen bound", fontsize="small", title_fontsize="small")


def _probit(axis: Any, figure: Any) -> None:
    mean = torch.linspace(-8, 8, 161, dtype=torch.float64)
    deviation = torch.linspace(0, 8, 81, dtype=torch.float64)
    error = static.sigmoid_error(mean, deviation.square().unsqueeze(-1))
    limit = error.abs().max().item()
    options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "shading": "nearest", "rasterized": True}
    mesh = axis.pcolormesh(mean.tolist(), deviation.tolist(), error.tolist(), **options)
    figure.colorbar(mesh, ax=axis)
    axis.set(
        title=f"Error of the probit approximation, here at most {limit:.3f}",
        xlabel="mean of S",
        ylabel="standard deviation of S",
    )


def _gradient(axis: Any, shares: dict[str, float]) -> None:
    names = {"paper": "the paper's term", "bernoulli": "second order", "stein": "Stein's lemma", "exact": "exact"}
    values = [100 * shares[form] for form in names]
    bars = axis.barh(list(names.values()), values, color=["#D55E00", "#E69F00", "#56B4E9", "#0072B2"])
    axis.bar_label(bars, fmt="%.1f %%", padding=3)
    axis.invert_yaxis()
    axis.set(
        title="Effect of the noise on a sigmoid unit's gradient",
        xlabel="share left unexplained, per cent",
        xlim=(0, 1.15 * max(100.0, *values)),
    )
