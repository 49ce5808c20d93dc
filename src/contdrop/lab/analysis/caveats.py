"""Limitations of a comparison, as sentences."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._text import plural
from ..stats import Comparison, summary
from ..store.results import Results
from ..store.schema import IMPORTED
from ..study import amendments
from ..study.labels import name_in_text
from .comparisons import margin_of, planned_margin
from .metric_format import capital, moment, names, run_count

_PLACES = re.compile(r"[\d,]+ places? with dropout out of reach: [^;]+")


def caveats(results: Results, comparisons: Mapping[str, Comparison], margin: float | None) -> Iterable[str]:
    """Yield the limitations, those specific to this store first; ``margin`` is one chosen after the fact, if any."""
    yield from _incomplete(results)
    yield from _uneven(results, comparisons)
    yield from _out_of_reach(results.protocol.description)
    if comparisons:
        yield _margin(results, margin)
        yield from map(_changed, amendments.changes(results.protocol.description))
        yield from _always(results, any(found.two_way for found in comparisons.values()))


def _incomplete(results: Results) -> Iterable[str]:
    """Yield the runs that failed, that are missing, and that a replication of the paper would have."""
    description, runs = results.protocol.description, plural(len(results.final), "run")
    failed = collections.Counter(job.method for job in results.final if job.status == "failed")
    if failed:
        which = ", ".join(f"{name_in_text(method)} {number}" for method, number in failed.items())
        yield (
            f"{failed.total()} of {runs} failed ({which}). The comparison has to leave them out, which flatters "
            "methods that fail."
        )
    if missing := len(results.missing):
        yield f"{missing} of {runs} {'is' if missing == 1 else 'are'} not finished yet, so this may change."
    if description.get("paper") and description.get("paper_runs"):
        wanted = description["paper_runs"], description["paper_epochs"]
        if falls_short(results, *wanted):
            found = run_count({len(errors) for errors in results.errors().values()} or {0})
            yield (
                f"Not a replication of the paper's {description['paper']}: {found} of "
                f"{plural(results.protocol.epochs, 'epoch')} here, {wanted[0]} of {wanted[1]} with the preset “paper”."
            )


def _uneven(results: Results, comparisons: Mapping[str, Comparison]) -> Iterable[str]:
    """Yield the methods that share fewer runs, and those whose differences are all equal."""
    most = max((comparison.runs for comparison in comparisons.values()), default=0)
    if fewer := [f"{name_in_text(method)} {c.runs}" for method, c in comparisons.items() if c.runs < most]:
        shared = f"{plural(most, 'run')} with {name_in_text(results.reference)}"
        yield f"Not every method shares {shared}: {', '.join(fewer)}."
    alike = collections.defaultdict(list)
    for method, comparison in comparisons.items():
        for note in comparison.notes:
            if "equal" in note and "leaves out" not in note:  # single ties are for the table
                alike[note].append(method)
    for note, methods in alike.items():
        yield f"Against {names(methods)}: {note[0].lower()}{note[1:]}"


def _out_of_reach(description: Mapping[str, Any]) -> Iterable[str]:
    """Yield a sentence on dropout that stays on with every method, as the dry run described it."""
    sites = description.get("sites")
    given = sites if isinstance(sites, Mapping) else {}
    place = next(filter(None, (_PLACES.search(str(text)) for text in given.values())), None)
    if place:
        also = ", no dropout too" if "none" in given else ""
        yield f"Not all dropout of the model is compared: {place[0]}; it stays on with every method{also}."


def _margin(results: Results, chosen: float | None) -> str:
    planned, measure = planned_margin(results), results.measure
    moved = amendments.has_moved(results.protocol.description, "margin")
    if chosen is not None:
        had = "had changed to" if moved else "had fixed"
        rest = "" if planned is None else f"; the experiment {had} ±{measure.amount(planned)}"
        return (
            f"The margin of ±{measure.gap(chosen)} was chosen after the fact (--margin), not before the results{rest}."
        )
    if planned is not None:
        reason = str(results.protocol.description.get("margin_reason") or "").rstrip(".")
        when = "chose when results were there" if moved else "fixed before the results"
        return (
            f"Differences of less than {measure.gap(planned)} count as negligible, which the experiment "
            f"{when}{reason and f': {reason}'}."
        )
    share, reference = margin_of(results), name_in_text(results.reference)
    if share is not None:
        reason = "; a share of the value itself could be more than all that is left to gain" if measure.ideal else ""
        return (
            f"Differences of less than {measure.gap(share)}, a tenth of {measure.room_of(reference)}, count as "
            f"negligible{reason}; that bound comes from the results, since the experiment fixed none."
        )
    why = f"How good {measure.name} can be is not known"
    if measure.room(summary(list(results.errors()[results.reference].values())).mean) == 0:
        why = f"{capital(reference)} {'makes no errors' if measure.is_error else 'leaves nothing to gain'}"
    return (
        f"{why}, so a share of that cannot say which difference matters, and none is called too small; a margin "
        "of the study sets a bound, or contdrop report --margin."
    )


def _changed(change: amendments.PlanChange) -> str:
    """Describe a change, made after the first results, of something that should be fixed before."""
    there = _then(change)
    if change.what == "methods":
        return f"Added to the methods {there}: {change.after}. Every method added is one more chance of a difference."
    return f"The {change.what} was changed from {change.before or 'none'} to {change.after or 'none'} {there}."


def _then(entry: amendments.PlanChange | amendments.PlanEntry) -> str:
    were = "was" if entry.results == 1 else "were"
    return f"on {moment(entry.time)}, when {plural(entry.results, 'result')} {were} there"


def _always(results: Results, has_two_way: bool) -> Iterable[str]:
    """Yield the limitations of every result of this kind."""
    configuration = results.protocol.configuration
    is_known = results.protocol.preset != IMPORTED and not configuration.get("run")  # a loop may draw test data too
    start = "All runs share one test set:" if is_known else "Runs may share one test set; then"
    others = "; that, only the interval over runs and test examples says" if has_two_way else ""
    yield (
        f"{start} p-values and intervals over runs say whether the methods differ on these test examples, and not on "
        f"others{others}."
    )
    if train := results.sizes.get("train"):
        yield (
            f"Networks were trained on {train:,} examples; with more or fewer the order of the methods may be another."
        )
    if configuration.get("run"):  # pairing is proven only where the loop recorded fingerprints
        proven = sorted({name for job in results.finished for name in job.fingerprints})
        rest = f", but for {', '.join(proven)}" if proven else ""
        yield (
            "The study trains by a loop of its own: the methods of a run are paired by seed, which is not proven"
            f"{rest}."
        )
    elif configuration.get("training") or configuration.get("recipe"):
        yield "All methods share one recipe, which may suit one of them better than another."
    yield _looks(results)


def _looks(results: Results) -> str:
    """Say if the number of runs was fixed before the first result."""
    plans, planned = amendments.plans(results.protocol.description), len({job.run for job in results.final})
    if not plans or plans[0].results or max(plan.runs for plan in plans) != planned:
        return (
            "The store does not say when all runs were planned; if some were added after a look at the results, "
            "p-values and intervals are not corrected for the looks."
        )
    added = list(_added(results, plans))
    if not added:
        return f"The number of runs, {planned}, was fixed before the first result."
    steps = ", ".join(f"{plan.runs} {_then(plan)}" for plan in added)
    return (
        f"Runs were added after results were there: {plans[0].runs} were planned at first, {steps}. p-values and "
        f"intervals are not corrected for such looks; multiplied by {len(added) + 1}, their number, a p-value would be."
    )


def _added(results: Results, plans: Sequence[amendments.PlanEntry]) -> Iterable[amendments.PlanEntry]:
    """Yield plans for more runs than before that were made when there were results, in this or a merged store."""
    most = plans[0].runs
    for plan in plans[1:]:
        there = sum(job.ended is not None and job.ended < plan.time for job in results.finished)
        if plan.runs > most:
            most = plan.runs
            if plan.results or there:
                yield dataclasses.replace(plan, results=max(plan.results, there))


def falls_short(results: Results, runs: int, epochs: int | None) -> bool:
    """Return True if a method with results has fewer or shorter finished runs than these."""
    fewest = min((len(found) for found in results.errors().values()), default=0)
    return fewest < runs or (epochs is not None and results.protocol.epochs < epochs)
