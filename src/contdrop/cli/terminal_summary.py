"""The comparison in the terminal, after a run: mean ± standard deviation, and the paired difference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..lab import stats
from ..lab.analysis.phrases import run_count
from ..lab.analysis.verdict import Analysis
from ..lab.report import cells, tables
from ..lab.store.results import Results
from ..lab.study import labels
from . import terminal


def show(analysis: Analysis) -> None:
    """Print the table of one experiment and the verdict on it."""
    results, comparisons = analysis.results, analysis.comparisons
    screen = terminal.screen()
    screen.print()
    if not results.errors():
        screen.print(f"{results.protocol.experiment}: no final run is finished, so there is nothing to compare.")
        return
    shown = tables.overview(analysis)
    table = terminal.table(_title(results, comparisons), [re.sub(r" (?=[\[(])", "\n", each) for each in shown.headings])
    for row in shown.rows:
        table.add_row(*(cell.text for cell in row), style="bold" if row[1].bold else "")
    screen.print(table)
    for note in shown.notes[1:]:
        screen.print(note, style="dim")
    if results.selections:
        chosen = ", ".join(
            cells.in_full(s.variant, labels.name_in_text)
            if s.variant
            else f"nothing for {labels.name_in_text(s.method)}"
            for s in results.selections.values()
        )
        screen.print(f"Selected on validation data, by runs of their own: {chosen}.", style="dim")
    found = analysis.verdict
    screen.print()
    screen.print(found.headline, style="bold")
    for detail in found.details:
        screen.print(detail)
    for finding in found.findings:
        screen.print(f"- {finding.label}: {finding.text}")
    for caveat in found.caveats:
        screen.print(f"- {caveat}", style="dim")
    screen.print()


def _title(results: Results, comparisons: Mapping[str, stats.Comparison]) -> str:
    protocol = results.protocol
    runs = run_count({len(found) for found in results.errors().values()})
    if comparisons:
        runs = run_count({found.runs for found in comparisons.values()}, "paired run")
    epochs = f" of {length}" if (length := cells.length_of(results)) else ""
    return f"{protocol.description['title']}: {runs}{epochs} ({protocol.preset})"


def plain(analysis: Analysis) -> dict[str, Any]:
    """Return the same as plain data."""
    results, comparisons = analysis.results, analysis.comparisons
    errors = results.errors()
    variants = results.variants()
    return {
        "experiment": results.protocol.experiment,
        "preset": results.protocol.preset,
        "epochs": results.protocol.epochs,
        "reference": results.reference,
        "metric": results.measure.name,
        "unit": results.measure.unit,
        "better": results.measure.better,
        "selected": {label: selection.variant for label, selection in results.selections.items()},
        "methods": [
            {
                "method": method,
                "variant": variants.get(method, method),
                "test": found,
                **({"test_error": found} if results.measure.is_error else {}),
                **_moments(stats.summary(list(found.values()))),
                "comparison": _figures(comparisons[method]) if method in comparisons else None,
            }
            for method, found in errors.items()
        ],
        "verdict": analysis.verdict.headline,
        "failed": len(results.failed),
        "missing": len(results.missing),
    }


def _moments(summary: stats.Summary) -> dict[str, float]:
    return {"mean": summary.mean, "sd": summary.sd}


def _figures(comparison: stats.Comparison) -> dict[str, Any]:
    return {n: _moments(each) if isinstance(each, stats.Summary) else each for n, each in vars(comparison).items()}
