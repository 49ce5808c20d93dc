"""The comparison in the terminal, after a run: mean ± standard deviation, and the paired difference."""

from __future__ import annotations

import math
from typing import Any

from ..lab import labels, stats
from ..lab.analysis.comparisons import compare
from ..lab.analysis.verdict import verdict
from ..lab.measures import HIGHER, Measure
from ..lab.results import Results
from ..text import plural
from . import screens


def show(results: Results) -> None:
    """Prints the table of one protocol, and what to make of it."""
    screen = screens.screen()
    screen.print()
    errors, comparisons, measure = results.errors(), compare(results), results.measure
    if not errors:
        screen.print(f"{results.protocol.experiment}: no final run is finished, so there is nothing to compare.")
        return
    table = screens.table(
        _title(results),
        (
            "method",
            f"test {measure.heading}",
            f"{labels.called(results.reference)} minus it\n[95 % interval]",
            "p, two-sided\n(Holm)",
            "noise",
        ),
    )
    means = {method: stats.summary(list(found.values())) for method, found in errors.items()}
    best = min(means, key=lambda method: measure.sign * means[method].mean)
    variants = results.variants()
    for method in errors:
        comparison = comparisons.get(method)
        table.add_row(
            labels.shown(variants.get(method, method), longest=60),
            _mean_and_sd(means[method], measure),
            _difference(comparison, measure) if comparison else "",
            _number(comparison.t_p_two_sided_holm, ".2g") if comparison else "",
            _noise(results, method),
            style="bold" if method == best else "",
        )
    screen.print(table)
    screen.print(
        f"{_sign(results)} Noise is the relative variance of the mask."
        + (" Best mean in bold." if screen.is_terminal else ""),
        style="dim",
    )
    if results.selections:
        chosen = ", ".join(
            labels.called(s.variant) if s.variant else f"nothing for {labels.called(s.method)}"
            for s in results.selections.values()
        )
        screen.print(f"Selected on validation data, by runs of their own: {chosen}.", style="dim")
    found = verdict(results, comparisons=comparisons)
    screen.print()
    screen.print(found.headline, style="bold")
    for detail in found.details:
        screen.print(detail)
    for finding in found.findings:
        screen.print(f"- {finding.label}: {finding.text}")
    for caveat in found.caveats:
        screen.print(f"- {caveat}")
    screen.print()


def _sign(results: Results) -> str:
    reference = labels.called(results.reference)
    if results.measure.is_error:
        return f"Negative: {reference} errs less."
    return f"{'Positive' if results.measure.better == HIGHER else 'Negative'}: {reference} is better."


def _title(results: Results) -> str:
    protocol = results.protocol
    runs = max(len(found) for found in results.errors().values())
    size = f"{plural(runs, 'paired run')} of {plural(protocol.epochs, 'epoch')}"
    return f"{protocol.description['title']}: {size} ({protocol.preset})"


def plain(results: Results) -> dict[str, Any]:
    """The same as plain data."""
    errors, comparisons = results.errors(), compare(results)
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
                "comparison": _finite(vars(comparisons[method])) if method in comparisons else None,
            }
            for method, found in errors.items()
        ],
        "verdict": verdict(results, comparisons=comparisons).headline,
        "failed": len(results.failed),
        "missing": len(results.missing),
    }


def _moments(summary: stats.Summary) -> dict[str, float | None]:
    return {"mean": summary.mean, "sd": None if math.isnan(summary.sd) else summary.sd}


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity, and summaries are objects."""

    def plain_value(value: Any) -> Any:
        if isinstance(value, stats.Summary):
            return _moments(value)
        if isinstance(value, tuple | list):
            return [plain_value(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {name: plain_value(value) for name, value in content.items()}


def _mean_and_sd(summary: stats.Summary, measure: Measure) -> str:
    form = measure.form
    return f"{summary.mean:{form}}" if math.isnan(summary.sd) else f"{summary.mean:{form}} ± {summary.sd:{form}}"


def _difference(comparison: stats.Comparison, measure: Measure) -> str:
    (low, high), form = comparison.interval, f"+{measure.form}"
    between = "" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{comparison.difference:{form}}{between}"


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def _noise(results: Results, method: str) -> str:
    noise = next((job.results.get("relative_variance") for job in results.finished if job.method == method), None)
    without = "the model's" if labels.base(method) == labels.ORIGINAL else "by unit"
    return without if noise is None else f"{noise:.3f}"
