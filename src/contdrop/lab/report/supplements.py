"""Tables about how the result came about, and over several data sets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...text import plural
from .. import labels, paper, stats
from ..analysis import ranking
from ..results import Results
from ..selection import lead
from ..store import FINAL, Selection, Store
from .cells import NONE, Cell, Table, method_cell, p_cell, p_value, signed, size_of, title_of


def selections(results: Results) -> Table | None:
    """Which parameters were chosen, from which validation errors."""
    rows = []
    for label, selection in results.selections.items():
        for candidate, score in selection.candidates.items():
            failed = "failed" in score
            error = math.nan if failed else float(score["val_error"])
            chosen = candidate == selection.variant
            rows.append(
                (
                    Cell(labels.shown(label, longest=10_000)),
                    Cell(labels.printable(candidate)),
                    Cell("failed" if failed else f"{error:.2f}", None if failed else error, chosen),
                    Cell("chosen" if chosen else "", float(chosen), chosen),
                )
            )
    if not rows:
        return None
    settings = results.protocol.configuration.get("selection") or {}
    runs, epochs = settings.get("runs"), settings.get("epochs")
    size = f" by {plural(runs, 'run')} of {plural(epochs, 'epoch')} each" if runs and epochs else ""
    notes = [f"Chosen by validation error{size}, with seeds of their own; test data were not looked at."]
    for label, source in (settings.get("follows") or {}).items():
        notes.append(
            f"{labels.shown(label, longest=60)} takes over what was chosen for {labels.shown(source, longest=60)}."
        )
    notes += [clearness(selection) for selection in results.selections.values() if selection.variant]
    headings = ("Method", "Candidate", "Validation error, %", "")
    return Table("selections", f"{title_of(results)}: parameters chosen", headings, tuple(rows), tuple(notes))


def clearness(selection: Selection) -> str:
    """A sentence on how far apart the candidates were, and whether the choice is more than luck."""
    name = labels.shown(selection.method, longest=60)
    found = lead(selection)
    if found is None:
        return f"{name}: how far apart the candidates were in single runs is not recorded."
    best, second = (labels.printable(variant or "") for variant in (selection.variant, found.runner_up))
    text = (
        f"{name}: all candidates are within {found.spread:.2f} points of validation error; {best} is "
        f"{found.difference:.2f} points ahead of the next, {second}"
    )
    if found.runs == 1:
        return f"{text}, in one run, which cannot tell them apart."
    low, high = (signed(end) for end in found.interval)
    text += f" (mean of {found.runs} paired runs, 95 % interval {low} to {high})"
    if found.is_clear:
        return f"{text}."
    return f"{text}: these two cannot be told apart, so which of them was chosen may be luck."


def lowest_epochs(results: Results, store: Store) -> Table | None:
    """The lowest test error of any epoch beside that of the last one: what choosing an epoch on test data is worth."""
    curves = store.curves(results.protocol.key)
    rows = []
    for method in results.errors():
        jobs = [job for job in results.finished if job.method == method]
        found = [[epoch.test_error for epoch in curves.get(job.id, [])] for job in jobs]
        errors = [[error for error in curve if error is not None] for curve in found]
        if not all(errors) or errors != found:  # no curve, or one without test errors
            continue
        last = stats.summary([curve[-1] for curve in errors])
        lowest = stats.summary([min(curve) for curve in errors])
        bias = lowest.mean - last.mean
        rows.append(
            (
                method_cell(results, method),
                Cell(_mean_sd(last), last.mean),
                Cell(_mean_sd(lowest), lowest.mean),
                Cell(signed(bias, 3), bias),
                Cell(str(len(errors)), float(len(errors))),
            )
        )
    if not rows:
        return None
    headings = ("Method", "Last epoch, %", "Lowest of any epoch, %", "Bias, points", "Runs")
    notes = (
        "Test errors. The lowest of all epochs is chosen by looking at the test images, so it is too low, and the more "
        "so the longer the curve is and the more it jumps; no verdict uses it. It is here because the authors' MNIST "
        "code reports it.",
    )
    title = f"{title_of(results)}: lowest test error of any epoch, as the authors' code reports it"
    return Table("lowest-epochs", title, headings, tuple(rows), notes)


def _mean_sd(summary: stats.Summary) -> str:
    return f"{summary.mean:.2f}" if math.isnan(summary.sd) else f"{summary.mean:.2f} ± {summary.sd:.3f}"


def failures(results: Results) -> Table | None:
    """Every job that failed, with its reason."""
    rows = tuple(
        (
            Cell(labels.printable(job.method)),
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
    """Of each pair of trained networks: on which test images only one of them is right."""
    reference = results.reference
    called = labels.shown(reference, longest=40)
    rows = []
    for method in results.errors():
        found = [each for run in results.errors().get(reference, {}) if (each := _mcnemar(results, store, method, run))]
        if method == reference or not found:
            continue
        ours = sum(each.p < 0.05 and each.only_a_right > each.only_b_right for each in found)
        theirs = sum(each.p < 0.05 and each.only_a_right < each.only_b_right for each in found)
        first, second = (float(np.mean([v(each) for each in found])) for v in (_only_a, _only_b))
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
        "Method", f"Only {called} right, images", "Only the method right", "Median p", f"{called} better in",
        "The method better in",
    )  # fmt: skip
    notes = (
        "McNemar's exact test, two-sided, for each run: do these two trained networks err equally often on the test "
        "images? Image counts are means over runs; “better in” counts the runs with p < 0.05, which equal "
        "networks reach in at most one run of twenty. It is about single networks; whether methods differ, the paired "
        "tests over runs tell.",
    )
    return Table("mcnemar", f"{title_of(results)}: network against network", headings, tuple(rows), notes)


def _mcnemar(results: Results, store: Store, method: str, run: int) -> stats.McNemar | None:
    jobs = results.job(results.reference, run), results.job(method, run)
    if jobs[0] is None or jobs[1] is None:
        return None
    first, second = (store.artefact(job.id, "test_predictions") for job in jobs if job)
    truth = store.artefact(jobs[0].id, "test_labels")
    if first is None or second is None or truth is None:
        return None
    return stats.mcnemar(first, second, truth)


def _only_a(found: stats.McNemar) -> int:
    return found.only_a_right


def _only_b(found: stats.McNemar) -> int:
    return found.only_b_right


def ranks(every: Sequence[Results]) -> Table | None:
    """Of each method on each data set, and on average; if there are at least three data sets."""
    found = ranking.rank(every)
    if found is None:
        return None
    compared = found.comparison
    average = compared.ranks.average
    lowest = min(average.values())
    rows = []
    for method in sorted(average, key=average.__getitem__):
        by_dataset = [compared.ranks.by_dataset[dataset][method] for dataset in found.errors]
        rows.append(
            (
                Cell(labels.shown(method, longest=10_000)),
                *(
                    Cell(f"{rank:g}", rank, rank == min(compared.ranks.by_dataset[dataset].values()))
                    for dataset, rank in zip(found.errors, by_dataset)
                ),
                Cell(f"{average[method]:.2f}", average[method], average[method] == lowest),
                p_cell(compared.against_reference.get(method)),
                Cell(
                    f"{paper.AVERAGE_RANKS[method]:g}" if method in paper.AVERAGE_RANKS else NONE,
                    paper.AVERAGE_RANKS.get(method),
                ),
            )
        )
    used = "; ".join(
        f"{labels.printable(dataset)}: {labels.printable(results.protocol.experiment)}, {size_of(results)}"
        for dataset, results in found.sources.items()
    )
    called = labels.shown(compared.reference, longest=40)
    notes = (
        "Rank 1 is the lowest mean error; equal ones share the mean of their ranks. Each data set counts once, with "
        f"the experiment that has most methods and runs: {used}.",
        f"Friedman test: chi-square {compared.chi_square:.2f}, p = {p_value(compared.chi_square_p)}; Iman and "
        f"Davenport's F {compared.f:.2f}, p = {p_value(compared.f_p)}. Nemenyi's critical difference at "
        f"{100 * compared.alpha:g} %: {compared.critical_difference:.2f}. The column of p-values: each method against "
        f"{called}, two-sided, adjusted by Holm.",
        "The paper's ranks are over MNIST, CIFAR-10, SVHN, NORB and ILSVRC-2012, without “no dropout”.",
    )
    datasets = [labels.printable(dataset) for dataset in found.errors]
    headings = ("Method", *datasets, "Average", f"p against {called}", "The paper's average")
    return Table("ranks", "Ranks over data sets", headings, tuple(rows), notes)
