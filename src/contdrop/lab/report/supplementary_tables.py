"""Supplementary tables: selection, failures, cost, uncertainty, single networks and ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..._text import plural
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
from .formats import NONE, Cell, Table, in_full, mean_sd, method_cell, p_cell, p_value, signed
from .protocol import OWN_LOOP, at_most, origin, size_of, title_of

_UNCERTAINTY = "test:uncertainty_"


def selections(results: Results) -> Table | None:
    """Return the selected parameters and the validation values they were selected by."""
    rows, measure = [], results.measure
    for label, selection in results.selections.items():
        for candidate, score in selection.candidates.items():
            failed = "failed" in score
            error = math.nan if failed else float(score["val_error"])
            chosen = candidate == selection.variant
            rows.append(
                (
                    Cell(labels.display_name(label, longest=10_000)),
                    Cell(in_full(candidate)),
                    Cell("failed" if failed else measure.written(error), None if failed else error, chosen),
                    Cell("chosen" if chosen else "", float(chosen), chosen),
                )
            )
    if not rows:
        return None
    settings = results.protocol.configuration.get("selection") or {}
    runs, epochs = settings.get("runs"), settings.get("epochs")
    each = "" if runs == 1 else " each"
    size = f" by {plural(runs, 'run')} of {at_most(results, epochs)}{each}" if runs and epochs else ""
    notes = [f"Chosen by validation {measure.name}{size}, with separate seeds; test data were not used."]
    if origin(results) == OWN_LOOP:
        notes = [f"Chosen by the validation {measure.name} that its loop reported, with separate seeds."]
    for label, source in (settings.get("follows") or {}).items():
        if label in results.methods:
            name = labels.display_name(label, longest=60)
            notes.append(f"{name} takes over what was chosen for {labels.name_in_text(source)}.")
    notes += [clearness(selection, measure) for selection in results.selections.values() if selection.variant]
    headings = ("Method", "Candidate", f"Validation {measure.heading}", "")
    return Table("selections", f"{title_of(results)}: parameters chosen", headings, tuple(rows), tuple(notes))


def clearness(selection: SelectionRecord, measure: Measure = Measure()) -> str:
    """Describe how far apart the candidates were, and if the choice is beyond chance."""
    name = labels.display_name(selection.method, longest=60)
    found = lead(selection, measure)
    if found is None:
        return f"{name}: how far apart the candidates were in single runs is not recorded."
    best, second = (in_full(variant or "", labels.name_in_text) for variant in (selection.variant, found.runner_up))
    text = (
        f"{name}: all candidates are within {measure.gap(found.spread)} of validation {measure.name}; {best} is "
        f"{measure.gap(found.difference)} ahead of the next, {second}"
    )
    if found.runs == 1:
        return f"{text}, in one run, which cannot tell them apart."
    if math.isnan(found.interval[0]):
        return f"{text}, in each of {found.runs} paired runs alike; without spread there is no test."
    low, high = (measure.signed(end) for end in found.interval)
    text += f" (mean of {found.runs} paired runs, 95 % interval {low} to {high})"
    if found.is_clear:
        return f"{text}."
    return f"{text}: these two cannot be told apart, so the choice between them may be chance."


def lowest_epochs(results: Results, store: Store) -> Table | None:
    """Return the best test value of any epoch beside the last one's: the bias of selecting an epoch on test data."""
    measure = results.measure
    best = max if measure.better == HIGHER else min
    curves = store.curves(results.protocol.key)
    rows = []
    for method, jobs in results.by_method.items():
        found = [[epoch.test_error for epoch in curves.get(job.id, [])] for job in jobs]
        errors = [[error for error in curve if error is not None] for curve in found]
        if not all(errors) or errors != found:  # no curve, or one without test errors
            continue
        last = stats.summary([curve[-1] for curve in errors])
        lowest = stats.summary([best(curve) for curve in errors])
        bias = lowest.mean - last.mean
        rows.append(
            (
                method_cell(results, method),
                Cell(mean_sd(last, measure), last.mean),
                Cell(mean_sd(lowest, measure), lowest.mean),
                Cell(signed(bias, 3 if measure.is_percentage else 1 + measure.decimals([last.mean])), bias),
                Cell(str(len(errors)), float(len(errors))),
            )
        )
    if not rows:
        return None
    which = measure.best
    unit = f", {measure.unit}" if measure.unit else ""
    headings = (
        "Method",
        f"Last epoch{unit}",
        f"{which.capitalize()} of any epoch{unit}",
        "Bias, points" if measure.is_percentage else "Bias",
        "Runs",
    )
    notes = (
        f"Test {measure.name}. The {which} of all epochs is chosen by looking at the test examples, so it is too good, "
        "and the more so the longer the curve is and the more it jumps; no verdict uses it. It is here because papers "
        "report it, and the MNIST code of the authors of continuous dropout does.",
    )
    whose = "as the authors' code reports it" if measure.is_error else "as some papers report it"
    title = f"{title_of(results)}: {which} test {measure.name} of any epoch, {whose}"
    return Table("lowest-epochs", title, headings, tuple(rows), notes)


def secondary_metrics(results: Results) -> Table | None:
    """Return the metrics that methods are not compared by, and the cost of each method."""
    jobs = results.by_method
    columns: dict[str, dict[str, Cell]] = {}
    known = {f"test:{measure.name}": measure for measure in Measure.secondary(results.protocol.description)}
    for name in dict.fromkeys(name for job in results.finished for name in job.results):
        if name.startswith("test:") and not name.startswith(_UNCERTAINTY):
            measure = known.get(name, Measure(labels.printable(name.removeprefix("test:")), ""))
            columns[f"Test {measure.heading}"] = {
                method: _summed([job.results[name] for job in done if name in job.results], measure)
                for method, done in jobs.items()
            }
    notes = ["Mean ± standard deviation over runs. No verdict uses these figures."]
    cost = results.protocol.description.get("cost") or {}  # of a study that was tried before it ran
    seconds = {method: _seconds(done) for method, done in jobs.items()}
    if any(seconds.values()):
        columns["Seconds per epoch"] = {method: _figure(each) for method, each in seconds.items()}
        notes.append("Seconds: median over runs of the mean epoch, evaluation included, whatever else the machine did.")
    if memory := cost.get("memory"):
        columns["Memory, MB"] = {method: _figure(memory.get(method, 0) / 1e6) for method in jobs}
        notes.append(
            "Memory: weights, gradients, the optimizer's state, and what backward keeps of one batch; counted in the "
            "dry run, without the data, the program and what an operation needs for a moment."
        )
    if not columns:
        return None
    rows = tuple((method_cell(results, method), *(column[method] for column in columns.values())) for method in jobs)
    return Table("others", f"{title_of(results)}: other metrics and cost", ("Method", *columns), rows, tuple(notes))


def _seconds(jobs: Sequence[JobRecord]) -> float:
    """Return the median seconds per epoch; 0 if unknown."""
    found = [job.seconds / job.epochs_done for job in jobs if job.epochs_done and job.seconds]
    return float(np.median(found)) if found else 0.0


def _figure(value: float) -> Cell:
    return Cell(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", value) if value else Cell(NONE)


def uncertainty(results: Results) -> Table | None:
    """Return the calibration and uncertainty metrics for each way to predict, if they were measured."""
    found = {name for job in results.finished for name in job.results if name.startswith(_UNCERTAINTY)}
    values = {name: head for name, head in UNCERTAINTY.items() if any(each.endswith(f"_{name}") for each in found)}
    rows = []
    for method, jobs in results.by_method.items():
        for way, called in WAYS.items():
            names = [f"{_UNCERTAINTY}{way}_{name}" for name in values]
            columns = [[job.results[name] for job in jobs if name in job.results] for name in names]
            if any(columns):
                cells = (_summed(each, Measure("", "")) for each in columns)
                rows.append((method_cell(results, method), Cell(called), *cells))
    if not rows:
        return None
    notes = (
        "Mean ± standard deviation over runs. No verdict uses these figures. AUROC: the probability that an input from "
        "elsewhere gets more of it than a test example; 0.5 is a guess, higher is better. Of the rest lower is better.",
    )
    headings = ("Method", "Prediction", *values.values())
    return Table("uncertainty", f"{title_of(results)}: uncertainty", headings, tuple(rows), notes)


def _summed(values: Sequence[float], measure: Measure) -> Cell:
    if not values:
        return Cell(NONE)
    found = stats.summary(values)
    return Cell(mean_sd(found, measure), found.mean)


def failures(results: Results) -> Table | None:
    """Return every failed job with its reason."""
    rows = tuple(
        (
            Cell(labels.display_name(job.method, longest=10_000)),
            Cell(str(job.run), float(job.run)),
            Cell("comparison" if job.stage == FINAL else "selection"),
            Cell(f"{job.epochs_done} of {job.epochs}", float(job.epochs_done)),
            Cell(labels.printable(job.error or "no reason was recorded")),
        )
        for job in results.failed
    )
    if not rows:
        return None
    headings = ("Method", "Run", "Stage", "Epochs done", "Reason")
    return Table("failures", f"{title_of(results)}: failed runs", headings, rows)


def mcnemar(results: Results, store: Store) -> Table | None:
    """Return for each pair of trained networks the test examples on which only one of them is right."""
    reference = results.reference
    called, begun = (name(reference, longest=40) for name in (labels.name_in_text, labels.display_name))
    rows, read = [], functools.cache(store.artefact)  # the reference's are looked at once for each method
    for method in results.errors():
        found = [each for run in results.errors().get(reference, {}) if (each := _mcnemar(results, read, method, run))]
        if method == reference or not found:
            continue
        ours = sum(each.p < 0.05 and each.only_a_right > each.only_b_right for each in found)
        theirs = sum(each.p < 0.05 and each.only_a_right < each.only_b_right for each in found)
        first, second = np.mean([(each.only_a_right, each.only_b_right) for each in found], axis=0).tolist()
        middle = float(np.median([each.p for each in found]))
        rows.append(
            (
                method_cell(results, method),
                Cell(f"{first:.1f}", first),
                Cell(f"{second:.1f}", second),
                p_cell(middle),
                Cell(f"{ours} of {len(found)}", ours / len(found)),
                Cell(f"{theirs} of {len(found)}", theirs / len(found)),
            )
        )
    if not rows:
        return None
    headings = (
        "Method", f"Only {called} right, examples", "Only the method right", "Median p", f"{begun} better in",
        "The method better in",
    )  # fmt: skip
    notes = (
        "McNemar's exact test, two-sided, for each run: do these two trained networks err equally often on the test "
        "examples? Counts are means over runs; “better in” counts the runs with p < 0.05, which equal "
        "networks reach in at most one run of twenty. It is about single networks; whether methods differ, the paired "
        "tests over runs tell.",
    )
    return Table("mcnemar", f"{title_of(results)}: network against network", headings, tuple(rows), notes)


def _mcnemar(
    results: Results, read: Callable[[int, str], np.ndarray | None], method: str, run: int
) -> stats.McNemar | None:
    jobs = results.job(results.reference, run), results.job(method, run)
    if jobs[0] is None or jobs[1] is None:
        return None
    first, second = (read(job.id, "test_predictions") for job in jobs if job)
    truth = read(jobs[0].id, "test_labels")
    if first is None or second is None or truth is None:
        return None
    return stats.mcnemar(first, second, truth)


def ranks(every: Sequence[Results]) -> Table | None:
    """Return the ranks of each method on each data set, and their average, if there are at least three data sets."""
    found = dataset_ranks.rank(every)
    if found is None:
        return None
    compared = found.comparison
    average, published = compared.ranks.average, extension().average_ranks
    lowest = min(average.values())
    rows = []
    for method in sorted(average, key=average.__getitem__):
        by_dataset = [compared.ranks.by_dataset[dataset][method] for dataset in found.errors]
        rows.append(
            (
                Cell(labels.display_name(method, longest=10_000)),
                *(
                    Cell(f"{rank:g}", rank, rank == min(compared.ranks.by_dataset[dataset].values()))
                    for dataset, rank in zip(found.errors, by_dataset)
                ),
                Cell(f"{average[method]:.2f}", average[method], average[method] == lowest),
                p_cell(compared.against_reference.get(method)),
                *(
                    [Cell(f"{published[method]:g}" if method in published else NONE, published.get(method))]
                    if published
                    else []
                ),
            )
        )
    used = "; ".join(
        f"{labels.printable(dataset)}: {labels.printable(results.protocol.experiment)}, {size_of(results)}"
        for dataset, results in found.sources.items()
    )
    called = labels.name_in_text(compared.reference, longest=40)
    notes = (
        f"Rank 1 is the {found.first}; equal ones share the mean of their ranks. Each data set counts once, with "
        f"the experiment that has most methods and runs: {used}.",
        f"Friedman test: chi-square {compared.chi_square:.2f}, p = {p_value(compared.permutation_p)} by permutation of "
        "the methods within data sets. Nemenyi's critical difference at "
        f"{100 * compared.alpha:g} %: {compared.critical_difference:.2f}. The column of p-values: each method against "
        f"{called}, two-sided, adjusted by Holm.",
        *([extension().ranks_note] if published else []),
    )
    datasets = [labels.printable(dataset) for dataset in found.errors]
    headings = ("Method", *datasets, "Average", f"p against {called}", *(["The paper's average"] if published else []))
    return Table("ranks", "Ranks over data sets", headings, tuple(rows), notes)
