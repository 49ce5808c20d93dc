"""Supplementary tables: selection, failures, cost, uncertainty, single networks and ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from .. import stats
from ..analysis import dataset_ranks
from ..analysis.metric_format import HIGHER, Measure
from ..extensions import extension
from ..store.results import Results
from ..store.schema import FINAL, JobRecord, SelectionRecord
from ..store.writer import Store
from ..study import labels
from ..study.selection import lead
from ..training.metric_values import UNCERTAINTY, WAYS
from .formats import NONE, Cell, Table, count_cell, in_full, mean_sd, method_cell, name_cell, p_cell, p_value, signed
from .protocol import OWN_LOOP, at_most, origin, size_of, title_of
from .templating import caption, texts

_UNCERTAINTY = "test:uncertainty_"


def selections(results: Results) -> Table | None:
    """Return the selected parameters and the validation values they were selected by."""
    measure = results.measure
    rows = []
    for selection in results.selections.values():
        for candidate, score in selection.candidates.items():
            error, chosen = None if "failed" in score else float(score["val_error"]), candidate == selection.variant
            shown = "failed" if error is None else measure.written(error)
            rows.append(
                {
                    "Method": name_cell(selection.method),
                    "Candidate": Cell(in_full(candidate)),
                    f"Validation {measure.heading}": Cell(shown, error, chosen),
                    "": Cell("chosen" if chosen else "", float(chosen), chosen),
                }
            )
    notes = [
        *texts("selections", results, origin(results) == OWN_LOOP, functools.partial(at_most, results)),
        *(clearness(selection, measure) for selection in results.selections.values() if selection.variant),
    ]
    return Table.of("selections", f"{title_of(results)}: parameters chosen", rows, notes) if rows else None


def clearness(selection: SelectionRecord, measure: Measure = Measure()) -> str:
    """Describe how far apart the candidates were, and if the choice is beyond chance."""
    found = lead(selection, measure)
    candidates = (selection.variant or "", found.runner_up if found else "")
    best, second = (in_full(candidate, labels.name_in_text) for candidate in candidates)
    return caption("clearness", selection.method, measure, found, best, second)


def lowest_epochs(results: Results, store: Store) -> Table | None:
    """Return the best test value of any epoch beside the last one's: the bias of selecting an epoch on test data."""
    measure, curves = results.measure, store.curves(results.protocol.key)
    unit = f", {measure.unit}" if measure.unit else ""
    rows = []
    for method, jobs in results.by_method.items():
        errors = [[epoch.test_error for epoch in curves.get(job.id, [])] for job in jobs]
        measured = [[error for error in curve if error is not None] for curve in errors]
        if not all(measured) or measured != errors:  # no curve, or one without test errors
            continue
        last = stats.summary([curve[-1] for curve in measured])
        best = stats.summary([max(curve) if measure.better == HIGHER else min(curve) for curve in measured])
        bias, decimals = best.mean - last.mean, 3 if measure.is_percentage else 1 + measure.decimals([last.mean])
        rows.append(
            {
                "Method": method_cell(results, method),
                f"Last epoch{unit}": Cell(mean_sd(last, measure), last.mean),
                f"{measure.best.capitalize()} of any epoch{unit}": Cell(mean_sd(best, measure), best.mean),
                "Bias, points" if measure.is_percentage else "Bias": Cell(signed(bias, decimals), bias),
                "Runs": count_cell(len(measured)),
            }
        )
    whose = "as the authors' code reports it" if measure.is_error else "as some papers report it"
    title = f"{title_of(results)}: {measure.best} test {measure.name} of any epoch, {whose}"
    return Table.of("lowest-epochs", title, rows, texts("lowest_epochs", measure)) if rows else None


def secondary_metrics(results: Results) -> Table | None:
    """Return the metrics that methods are not compared by, and the cost of each method."""
    jobs, description = results.by_method, results.protocol.description
    columns: dict[str, dict[str, Cell]] = {}
    known = {f"test:{measure.name}": measure for measure in Measure.secondary(description)}
    for name in dict.fromkeys(name for job in results.finished for name in job.results):
        if name.startswith("test:") and not name.startswith(_UNCERTAINTY):
            measure = known.get(name, Measure(labels.printable(name.removeprefix("test:")), ""))
            columns[f"Test {measure.heading}"] = {method: _summed(done, name, measure) for method, done in jobs.items()}
    memory = (description.get("cost") or {}).get("memory")  # of a study that was tried before it ran
    seconds = {method: _seconds(done) for method, done in jobs.items()}
    if any(seconds.values()):
        columns["Seconds per epoch"] = {method: _figure(each) for method, each in seconds.items()}
    if memory:
        columns["Memory, MB"] = {method: _figure(memory.get(method, 0) / 1e6) for method in jobs}
    rows = [
        {"Method": method_cell(results, method), **{heading: column[method] for heading, column in columns.items()}}
        for method in jobs
    ]
    notes = texts("others", any(seconds.values()), bool(memory))
    return Table.of("others", f"{title_of(results)}: other metrics and cost", rows, notes) if columns else None


def _seconds(jobs: Sequence[JobRecord]) -> float:
    """Return the median seconds per epoch; 0 if unknown."""
    found = [job.seconds / job.epochs_done for job in jobs if job.epochs_done and job.seconds]
    return float(np.median(found)) if found else 0.0


def _figure(value: float) -> Cell:
    return Cell(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", value) if value else Cell(NONE)


def _summed(jobs: Sequence[JobRecord], name: str, measure: Measure) -> Cell:
    values = [job.results[name] for job in jobs if name in job.results]
    if not values:
        return Cell(NONE)
    found = stats.summary(values)
    return Cell(mean_sd(found, measure), found.mean)


def uncertainty(results: Results) -> Table | None:
    """Return the calibration and uncertainty metrics for each way to predict, if they were measured."""
    found = {name for job in results.finished for name in job.results if name.startswith(_UNCERTAINTY)}
    values = {name: head for name, head in UNCERTAINTY.items() if any(each.endswith(f"_{name}") for each in found)}
    rows = []
    for method, jobs in results.by_method.items():
        for way, called in WAYS.items():
            names = [f"{_UNCERTAINTY}{way}_{name}" for name in values]
            if any(name in job.results for job in jobs for name in names):
                cells = dict(zip(values.values(), (_summed(jobs, name, Measure("", "")) for name in names)))
                rows.append({"Method": method_cell(results, method), "Prediction": Cell(called), **cells})
    return Table.of("uncertainty", f"{title_of(results)}: uncertainty", rows, texts("uncertainty")) if rows else None


def failures(results: Results) -> Table | None:
    """Return every failed job with its reason."""
    rows = [
        {
            "Method": name_cell(job.method),
            "Run": count_cell(job.run),
            "Stage": Cell("comparison" if job.stage == FINAL else "selection"),
            "Epochs done": Cell(f"{job.epochs_done} of {job.epochs}", float(job.epochs_done)),
            "Reason": Cell(labels.printable(job.error or "no reason was recorded")),
        }
        for job in results.failed
    ]
    return Table.of("failures", f"{title_of(results)}: failed runs", rows) if rows else None


def mcnemar(results: Results, store: Store) -> Table | None:
    """Return for each pair of trained networks the test examples on which only one of them is right."""
    reference, errors = results.reference, results.errors()
    called, begun = (name(reference, longest=40) for name in (labels.name_in_text, labels.display_name))
    rows, read = [], functools.cache(store.artefact)  # the reference's are looked at once for each method
    for method in errors:
        found = [each for run in errors.get(reference, {}) if (each := _mcnemar(results, read, method, run))]
        if method == reference or not found:
            continue
        counts = np.array([(each.only_a_right, each.only_b_right) for each in found])
        clear = np.array([[each.p < 0.05] for each in found])
        ours, theirs = counts.mean(axis=0).tolist()
        better = (clear & (counts > counts[:, ::-1])).sum(axis=0).tolist()  # in how many runs each of the two is
        shares = [Cell(f"{number} of {len(found)}", number / len(found)) for number in better]
        rows.append(
            {
                "Method": method_cell(results, method),
                f"Only {called} right, examples": Cell(f"{ours:.1f}", ours),
                "Only the method right": Cell(f"{theirs:.1f}", theirs),
                "Median p": p_cell(float(np.median([each.p for each in found]))),
                f"{begun} better in": shares[0],
                "The method better in": shares[1],
            }
        )
    return (
        Table.of("mcnemar", f"{title_of(results)}: network against network", rows, texts("mcnemar")) if rows else None
    )


def _mcnemar(
    results: Results, read: Callable[[int, str], np.ndarray | None], method: str, run: int
) -> stats.McNemar | None:
    ours, theirs = results.job(results.reference, run), results.job(method, run)
    if ours is None or theirs is None:
        return None
    first, second = (read(job.id, "test_predictions") for job in (ours, theirs))
    truth = read(ours.id, "test_labels")
    return None if first is None or second is None or truth is None else stats.mcnemar(first, second, truth)


def ranks(every: Sequence[Results]) -> Table | None:
    """Return the ranks of each method on each data set, and their average, if there are at least three data sets."""
    found = dataset_ranks.rank(every)
    if found is None:
        return None
    compared, published = found.comparison, extension().average_ranks
    average, by_dataset = compared.ranks.average, [compared.ranks.by_dataset[dataset] for dataset in found.errors]
    rows = [
        (
            name_cell(method),
            *(Cell(f"{each[method]:g}", each[method], each[method] == min(each.values())) for each in by_dataset),
            Cell(f"{average[method]:.2f}", average[method], average[method] == min(average.values())),
            p_cell(compared.against_reference.get(method)),
            *([Cell(f"{rank:g}" if (rank := published.get(method)) else NONE, rank)] if published else []),
        )
        for method in sorted(average, key=average.__getitem__)
    ]
    used = "; ".join(
        f"{labels.printable(dataset)}: {labels.printable(results.protocol.experiment)}, {size_of(results)}"
        for dataset, results in found.sources.items()
    )
    called = labels.name_in_text(compared.reference, longest=40)
    notes = texts("ranks", found, used, p_value(compared.permutation_p), extension().ranks_note if published else "")
    headings = ("Method", *map(labels.printable, found.errors), "Average", f"p against {called}")
    headings += ("The paper's average",) if published else ()
    return Table("ranks", "Ranks over data sets", headings, tuple(rows), notes)
