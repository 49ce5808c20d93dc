"""Limitations of a comparison, as sentences."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from ..stats import Comparison, summary
from ..store.results import Results
from ..store.schema import IMPORTED
from ..study import amendments
from ..study.labels import name_in_text
from .margin import margin_of, planned_margin
from .metric_format import run_count
from .rendering import texts

_PLACES = re.compile(r"[\d,]+ places? with dropout out of reach: [^;]+")


def caveats(results: Results, comparisons: Mapping[str, Comparison], margin: float | None) -> Iterable[str]:
    """Yield the limitations, those specific to this store first; ``margin`` is one chosen after the fact, if any."""
    description, configuration = results.protocol.description, results.protocol.configuration
    yield from _incomplete(results)
    yield from _uneven(results, comparisons)
    sites = description.get("sites")
    given = sites if isinstance(sites, Mapping) else {}  # as the dry run described it
    if place := next(filter(None, (_PLACES.search(str(text)) for text in given.values())), None):
        yield from texts("out_of_reach", place[0], "none" in given)
    if comparisons:
        yield from _margin(results, margin)
        yield from texts("changed", amendments.changes(description))
        is_imported, train = results.protocol.preset == IMPORTED, results.sizes.get("train")
        proven = sorted({name for job in results.finished for name in job.fingerprints})
        has_two_way = any(found.two_way for found in comparisons.values())
        yield from texts("always", configuration, is_imported, train, proven, has_two_way)
        yield from _looks(results)


def _incomplete(results: Results) -> tuple[str, ...]:
    """Return the runs that failed, that are missing, and that a replication of the paper would have."""
    description = results.protocol.description
    failed = collections.Counter(job.method for job in results.final if job.status == "failed")
    is_the_papers = description.get("paper") and description.get("paper_runs")
    is_short = is_the_papers and falls_short(results, description["paper_runs"], description["paper_epochs"])
    size = run_count({len(errors) for errors in results.errors().values()} or {0})
    return texts("incomplete", results, failed, size if is_short else "")


def _uneven(results: Results, comparisons: Mapping[str, Comparison]) -> tuple[str, ...]:
    """Return the methods that share fewer runs, and those whose differences are all equal."""
    most = max((comparison.runs for comparison in comparisons.values()), default=0)
    fewer = {method: found.runs for method, found in comparisons.items() if found.runs < most}
    alike = collections.defaultdict(list)
    for method, comparison in comparisons.items():
        for note in comparison.notes:
            if "equal" in note and "leaves out" not in note:  # single ties are for the table
                alike[note].append(method)
    return texts("uneven", results.reference, most, fewer, alike)


def _margin(results: Results, chosen: float | None) -> tuple[str, ...]:
    description, measure = results.protocol.description, results.measure
    return texts(
        "margin",
        measure,
        name_in_text(results.reference),
        chosen,
        planned=planned_margin(results),
        share=margin_of(results),
        reason=str(description.get("margin_reason") or "").rstrip("."),
        has_moved=amendments.has_moved(description, "margin"),
        is_best=measure.room(summary(list(results.errors()[results.reference].values())).mean) == 0,
    )


def _looks(results: Results) -> tuple[str, ...]:
    """Return a sentence that says if the number of runs was fixed before the first result."""
    plans, planned = amendments.plans(results.protocol.description), len({job.run for job in results.final})
    if not plans or plans[0].results or max(plan.runs for plan in plans) != planned:
        return texts("looks", planned, None, ())
    return texts("looks", planned, plans[0], list(_added(results, plans)))


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
