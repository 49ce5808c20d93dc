"""Script for the picture of the README: error by strength and shape, from the archives of the dose studies.

python tools/picture.py
"""

from __future__ import annotations

import pathlib
import sys

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from contdrop.lab import stats
from contdrop.replication.claims import verdicts
from contdrop.replication.claims.claims import UNUSED
from contdrop.replication.claims.verdicts import Runs
from contdrop.replication.studies import dose

ROOT = pathlib.Path(__file__).parents[1]
PANELS = {"dose-1000": "1 000 training images", "dose-5000": "5 000 training images"}
LAWS = {  # what a reader calls it, its colour, its marker, and how far it stands aside so that intervals stay apart
    "bernoulli": ("ordinary dropout: 0 or 1", "#263238", "o", 0.94),
    "gaussian": ("clipped Gaussian", "#c62828", "s", 1.0),
    "uniform": ("uniform", "#2e7d32", "D", 1.06),
    "normal": ("Gaussian N(1, r)", "#1565c0", "^", 1.12),
}

TOP = 0.3  # points; what lies above is written, so that the rest can be seen
BESIDE = {"bernoulli": 0.93 * TOP, "normal": 0.8 * TOP}


def draw(axes: Axes, runs: Runs, title: str) -> None:
    """Draw one line per law: the gain over no dropout against the strength, with its interval."""
    none = runs.values("none", UNUSED)
    for law, (label, colour, marker, aside) in LAWS.items():
        strengths = [r for r in dose.STRENGTHS if runs.values(f"{law}:r={r}", UNUSED)]
        found = [stats.compare_paired(runs.values(f"{law}:r={r}", UNUSED), none) for r in strengths]
        gains = [each.difference for each in found]
        half = [(each.interval[1] - each.interval[0]) / 2 for each in found]
        axes.plot([float(r) for r in strengths], gains, color=colour, linewidth=1, alpha=0.6)
        aside_of = [float(r) * aside for r in strengths]
        axes.errorbar(aside_of, gains, half, label=label, color=colour, marker=marker, markersize=5, linestyle="")
        for r, gain in zip(strengths, gains, strict=True):
            if gain > TOP:
                axes.annotate(f"{gain:+.2f} ↑", (float(r), BESIDE[law]), color=colour, fontsize=9, ha="center")
    axes.axhline(0, color="#90a4ae", linewidth=1)
    axes.set_ylim(top=min(axes.get_ylim()[1], TOP))
    axes.set_xscale("log")
    axes.set_xticks(
        [float(r) for r in dose.STRENGTHS],
        [f"{r}\n{float(r) / (1 + float(r)):.0%}" for r in dose.STRENGTHS],
    )
    axes.minorticks_off()
    axes.set_title(f"{title}: {stats.summary(list(none.values())).mean:.2f} % without dropout", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    runs = verdicts.gather(ROOT / "results")
    missing = [study for study in PANELS if study not in runs]
    if missing:
        sys.exit(f"results: expected archives of {' and '.join(PANELS)}; missing: {' and '.join(missing)}")
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for axes, (study, title) in zip(panels, PANELS.items(), strict=True):
        draw(axes, runs[study], title)
    panels[0].set_ylabel("change in error, points")
    panels[0].legend(frameon=False, fontsize=9)
    figure.supxlabel("strength r of the noise (relative variance), and the dropout rate of that strength", fontsize=10)
    figure.savefig(ROOT / "docs" / "images" / "why.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
