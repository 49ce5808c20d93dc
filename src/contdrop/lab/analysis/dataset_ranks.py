"""Selection of the results that are ranked over data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import stats
from ..store.results import Results
from .metric_format import mean_of

ENOUGH_DATASETS, ENOUGH_METHODS = 3, 3


@dataclass(frozen=True)
class Ranking:
    """Mean errors by data set and method, their comparison, and the experiment of each data set."""

    errors: dict[str, dict[str, float]]
    sources: dict[str, Results]
    comparison: stats.RankComparison

    @property
    def first(self) -> str:
        """Description of rank 1."""
        kinds = {(results.measure.best, mean_of(results.measure.name)) for results in self.sources.values()}
        return " ".join(kinds.pop()) if len(kinds) == 1 else "best mean of its data set's metric"


def rank(every: Sequence[Results]) -> Ranking | None:
    """Rank methods over data sets that share at least three of them; None for fewer than three such data sets.

    Two experiments on one data set are not independent, so each data set, by the fingerprint of its content or its
    name, counts once: with the experiment that has most methods, then most paired runs, then epochs. Results without
    a fingerprint of their data are not ranked. Means are over the runs that all ranked methods have finished.
    """
    sources = _sources(every)
    if len(sources) < ENOUGH_DATASETS:
        return None
    reference = next(iter(sources.values())).reference
    first = next(iter(sources.values())).errors()
    shared = [method for method in first if all(method in results.errors() for results in sources.values())]
    if reference not in shared or len(shared) < ENOUGH_METHODS:
        return None
    errors = {dataset: _means(results, shared) for dataset, results in sources.items()}
    return Ranking(errors, sources, stats.compare_ranks(errors, reference)) if all(errors.values()) else None


def rank_published(
    every: Sequence[Results], methods: Sequence[str], names: Mapping[str, str]
) -> tuple[stats.Ranks, dict[str, Results]] | None:
    """Rank published methods alone, ties as in a competition; None if fewer than two published data sets are there.

    Args:
        every: Results of all experiments.
        methods: The published methods.
        names: By the name of a data set here, its published name.
    """
    found = {
        names[dataset]: results
        for dataset, results in _sources(every).items()
        if dataset in names and set(methods) <= set(results.errors()) and _means(results, methods)
    }
    if len(found) < 2:
        return None
    return stats.ranks({name: _means(r, methods) for name, r in found.items()}, ties="competition"), found


def _sources(every: Sequence[Results]) -> dict[str, Results]:
    sources: dict[str, Results] = {}
    taken: set[str] = set()

    def weight(results: Results) -> tuple[int, int, int]:
        plain = sum(":" not in method for method in results.errors())
        return plain, len(results.complete_runs()), results.protocol.epochs

    for results in sorted(every, key=weight, reverse=True):
        data = {job.fingerprints["data"] for job in results.finished if "data" in job.fingerprints}
        # A sweep over variants of one method ranks nothing that other data sets have.
        if data and results.reference in results.errors() and taken.isdisjoint(data | {results.dataset}):
            sources[results.dataset] = results
            taken |= data | {results.dataset}
    return sources


def _means(results: Results, methods: Sequence[str]) -> dict[str, float]:
    """Return means over the runs that all of these methods have finished, lower is better; empty without such runs."""
    found = results.errors()
    runs = set.intersection(*(set(found[method]) for method in methods))
    sign = results.measure.sign
    return {method: sign * sum(found[method][run] for run in runs) / len(runs) for method in methods} if runs else {}
