"""All claims of the paper at a glance: a row for each, coloured by its verdict."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from ..lab.analysis.ledger import FAILS, HOLDS, OPEN, OUT, Entry, counts
from . import plots

# Of Okabe and Ito; the verdict is written too, so colour is not all that tells.
_COLOURS = {HOLDS: "#009E73", FAILS: "#D55E00", OPEN: "#F0E442", OUT: "#BBBBBB"}


def draw(entries: Sequence[Entry], path: pathlib.Path) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.6 + 0.27 * len(entries)), layout="constrained")
    axis = figure.subplots()
    rows = range(len(entries))
    axis.barh(rows, [1] * len(entries), color=[_COLOURS[entry.verdict] for entry in entries], height=0.85)
    for row, entry in zip(rows, entries):
        axis.text(0.5, row, entry.verdict, ha="center", va="center", fontsize=8)
        axis.text(1.1, row, f"{entry.claim.id}  {entry.claim.text}", va="center", fontsize=8)
    axis.set(xlim=(0, 9), ylim=(len(entries) - 0.4, -0.6))
    axis.axis("off")
    axis.set_title(", ".join(f"{number} {verdict}" for verdict, number in counts(entries).items()), loc="left")
    plots.save(figure, path)
