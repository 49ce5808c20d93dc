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
from .phrases import capital, moment, names, run_count

_PLACES = re.compile(r"[\d,]+ places? with dropout out of reach: [^;]+")


def caveats(results: Results, comparisons: Mapping[str, Comparison], margin: float | None) -> Iterable[str]:
    """Yield the limitations, those specific to this store first; ``margin`` is one chosen after the fact, if any."""
    description, total = results.protocol.description, len(results.final)
    failed = [job for job in results.final if job.status == "failed"]
    if failed:
        each = collections.Counter(job.method for job in failed)
        which = ", ".join(f"{name_in_text(method)} {number}" for method, number in each.items())
        yield (
            f"{len(failed)} of {plural(total, 'run')} failed ({which}). The comparison has to leave them out, which "
            "flatters methods that fail."
        )
    if results.missing:
        are = "is" if len(results.missing) == 1 else "are"
        yield f"{len(results.missing)} of {plural(total, 'run')} {are} not finished yet, so this may change."
    if description.get("paper") and description.get("paper_runs"):
        wanted = description["paper_runs"], description["paper_epochs"]
        if falls_short(results, *wanted):
            runs = run_count({len(found) for found in results.errors().values()} or {0})
            yield (
                f"Not a replication of the paper's {description['paper']}: {runs} of "
                f"{plural(results.protocol.epochs, 'epoch')} here, {wanted[0]} of {wanted[1]} with the preset “paper”."
            )
    if len({comparison.runs for comparison in comparisons.values()}) > 1:
        most = max(comparison.runs for comparison in comparisons.values())
        fewer = ", ".join(f"{name_in_text(method)} {c.runs}" for method, c in comparisons.items() if c.runs < most)
        yield f"Not every method shares {plural(most, 'run')} with {name_in_text(results.reference)}: {fewer}."
    alike: dict[str, list[str]] = {}
    for method, comparison in comparisons.items():
        for note in comparison.notes:
            if "equal" in note and "leaves out" not in note:  # single ties are for the table
                alike.setdefault(note, []).append(method)
    for note, methods in alike.items():
        yield f"Against {names(methods)}: {note[0].lower()}{note[1:]}"
    if left := _out_of_reach(description):
        yield left
    if comparisons:
        yield _margin(results, margin)
        yield from map(_changed, amendments.changes(description))
        yield from _always(results, any(found.two_way for found in comparisons.values()))


def _out_of_reach(description: Mapping[str, Any]) -> str:
    """Return a sentence on dropout that stays on with every method, as the dry run described it."""
    given = description.get("sites")
    texts = [str(text) for text in given.values()] if isinstance(given, Mapping) else []
    places = dict.fromkeys(found[0] for text in texts if (found := _PLACES.search(text)))
    if not places:
        return ""
    also = ", no dropout too" if isinstance(given, Mapping) and "none" in given else ""
    return f"Not all dropout of the model is compared: {next(iter(places))}; it stays on with every method{also}."


def _margin(results: Results, chosen: float | None) -> str:
    planned, reason = planned_margin(results), str(results.protocol.description.get("margin_reason") or "")
    measure, moved = results.measure, amendments.has_moved(results.protocol.description, "margin")
    if chosen is not None:
        text = f"The margin of ±{measure.gap(chosen)} was chosen after the fact (--margin), not before the results"
        had = "had changed to" if moved else "had fixed"
        return text + (f"; the experiment {had} ±{measure.amount(planned)}." if planned is not None else ".")
    if planned is not None:
        because = f": {reason.rstrip('.')}" if reason else ""
        when = "chose when results were there" if moved else "fixed before the results"
        return (
            f"Differences of less than {measure.gap(planned)} count as negligible, which the experiment "
            f"{when}{because}."
        )
    share = margin_of(results)
    reference = name_in_text(results.reference)
    if share is None:
        why = f"How good {measure.name} can be is not known"
        if measure.room(summary(list(results.errors()[results.reference].values())).mean) == 0:
            why = f"{capital(reference)} {'makes no errors' if measure.is_error else 'leaves nothing to gain'}"
        return (
            f"{why}, so a share of that cannot say which difference matters, and none is called too small; a margin "
            "of the study sets a bound, or contdrop report --margin."
        )
    reason = "; a share of the value itself could be more than all that is left to gain" if measure.ideal else ""
    return (
        f"Differences of less than {measure.gap(share)}, a tenth of {measure.room_of(reference)}, count as "
        f"negligible{reason}; that bound comes from the results, since the experiment fixed none."
    )


def _changed(change: amendments.PlanChange) -> str:
    """Describe a change, made after the first results, of something that should be fixed before."""
    there = f"on {moment(change.time)}, when {plural(change.results, 'result')} {_were(change.results)} there"
    if change.what == "methods":
        return f"Added to the methods {there}: {change.after}. Every method added is one more chance of a difference."
    return f"The {change.what} was changed from {change.before or 'none'} to {change.after or 'none'} {there}."


def _always(results: Results, has_two_way: bool) -> Iterable[str]:
    """Yield the limitations of every result of this kind."""
    configuration = results.protocol.configuration
    is_known = results.protocol.preset != IMPORTED and not configuration.get("run")  # a loop may draw test data too
    start = "All runs share one test set:" if is_known else "Runs may share one test set; then"
    yield (
        f"{start} p-values and intervals over runs say whether the methods differ on these test examples, and not on "
        "others" + ("; that, only the interval over runs and test examples says." if has_two_way else ".")
    )
    train = results.sizes.get("train")
    if train:
        yield (
            f"Networks were trained on {train:,} examples; with more or fewer the order of the methods may be another."
        )
    if configuration.get("run"):
        yield _own_loop(results)
    elif configuration.get("training") or configuration.get("recipe"):
        yield "All methods share one recipe, which may suit one of them better than another."
    yield _looks(results)


def _own_loop(results: Results) -> str:
    """Say that a custom loop's pairing is by seed and proven only where it recorded fingerprints."""
    proven = sorted({name for job in results.finished for name in job.fingerprints})
    rest = f", but for {', '.join(proven)}" if proven else ""
    return f"The study trains by a loop of its own: the methods of a run are paired by seed, which is not proven{rest}."


def _looks(results: Results) -> str:
    """Say if the number of runs was fixed before the first result."""
    plans, planned = amendments.plans(results.protocol.description), len({job.run for job in results.final})
    if not plans or plans[0].results or max(plan.runs for plan in plans) != planned:
        return (
            "The store does not say when all runs were planned; if some were added after a look at the results, "
            "p-values and intervals are not corrected for the looks."
        )
    first, added = plans[0], list(_added(results, plans))
    if not added:
        return f"The number of runs, {planned}, was fixed before the first result."
    steps = ", ".join(
        f"{plan.runs} on {moment(plan.time)}, when {plural(plan.results, 'result')} {_were(plan.results)} there"
        for plan in added
    )
    return (
        f"Runs were added after results were there: {first.runs} were planned at first, {steps}. p-values and "
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


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def falls_short(results: Results, runs: int, epochs: int | None) -> bool:
    """Return True if a method with results has fewer or shorter finished runs than these."""
    fewest = min((len(found) for found in results.errors().values()), default=0)
    return fewest < runs or (epochs is not None and results.protocol.epochs < epochs)
