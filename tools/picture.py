"""Draws the picture of the README from the archive of a study: how far two dropouts differ, and what would matter.

python tools/picture.py
"""

from __future__ import annotations

import pathlib

from matplotlib.figure import Figure

from contdrop.lab import stats
from contdrop.lab.analysis import evidence

ROOT = pathlib.Path(__file__).parents[1]
STUDY = "cifar10-nin-head"
PAIRS = (
    ("Gaussian masks against no dropout", "gaussian", "none"),
    ("Gaussian masks against ordinary dropout", "gaussian", "bernoulli"),
    ("Gaussian masks against ordinary dropout of equal strength", "gaussian", "bernoulli-matched"),
    ("uniform masks against ordinary dropout of equal strength", "uniform", "bernoulli-matched:uniform"),
)
METRIC = "test_error"


def main() -> None:
    runs = evidence.gather(ROOT / "results")[STUDY]
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    axes = figure.add_subplot()
    assert runs.margin is not None
    axes.axvspan(-runs.margin, runs.margin, color="#e8f0e4", zorder=0)
    axes.axvline(0, color="#607d8b", linewidth=1)
    for row, (label, first, second) in enumerate(PAIRS):
        found = stats.compare_paired(runs.values(first, METRIC), runs.values(second, METRIC))
        axes.plot(found.interval, (row, row), color="#1565c0", linewidth=2.5, solid_capstyle="butt")
        axes.plot(found.difference, row, "o", color="#1565c0", markersize=7)
        print(
            f"{label}: {found.difference:+.3f} [{found.interval[0]:+.3f}, {found.interval[1]:+.3f}], {found.runs} runs"
        )
    axes.set_yticks(range(len(PAIRS)), [label for label, *_ in PAIRS])
    axes.set_ylim(len(PAIRS) - 0.5, -0.5)
    axes.set_xlim(-1.5 * runs.margin, 1.5 * runs.margin)
    figure.supxlabel(
        f"difference in test error on CIFAR-10, points; mean of {found.runs} paired runs with its 95 % interval\n"
        f"left of 0: the first errs less; shaded: too small to matter (±{runs.margin:g}, fixed before the runs)",
        fontsize=9.5,
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(ROOT / "docs" / "images" / "why.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
