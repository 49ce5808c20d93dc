"""Methods over several data sets: which results are ranked, for the table and the diagram alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import stats
from ..results import Results
from .wording import mean_of

ENOUGH_DATASETS, ENOUGH_METHODS = 3, 3


@dataclass(frozen=True)
class Ranking:
    """Mean errors by data set and method, and their comparison; ``sources`` names the experiment of each data set."""

    errors: dict[str, dict[str, float]]
    sources: dict[str, Results]
    comparison: stats.RankComparison

    @property
    def first(self) -> str:
        """What has rank 1, in words."""
        kinds = {(results.measure.best, mean_of(results.measure.name)) for results in self.sources.values()}
        return " ".join(kinds.pop()) if len(kinds) == 1 else "best mean of its data set's metric"


def rank(every: Sequence[Results]) -> Ranking | None:
    """Over data sets that share at least three methods; None if there are fewer than three such data sets.

    Two experiments on one data set are not independent, so each data set counts once: with the experiment that has
    most methods, then most paired runs, then epochs. Means are over the runs that all ranked methods have finished.
    """
    sources: dict[str, Results] = {}
    for results in every:
        dataset = results.dataset
        # A sweep over variants of one method ranks nothing that other data sets have.
        if results.reference in results.errors() and (
            dataset not in sources or _weight(results) > _weight(sources[dataset])
        ):
            sources[dataset] = results
    if len(sources) < ENOUGH_DATASETS:
        return None
    reference = next(iter(sources.values())).reference
    first = next(iter(sources.values())).errors()
    shared = [method for method in first if all(method in results.errors() for results in sources.values())]
    if reference not in shared or len(shared) < ENOUGH_METHODS:
        return None
    errors = {}
    for dataset, results in sources.items():
        found = results.errors()
        runs = set.intersection(*(set(found[method]) for method in shared))
        if not runs:
            return None
        sign = results.measure.sign  # ranks go by what is better
        errors[dataset] = {method: sign * sum(found[method][run] for run in runs) / len(runs) for method in shared}
    return Ranking(errors, sources, stats.compare_ranks(errors, reference))


def _weight(results: Results) -> tuple[int, int, int]:
    plain = sum(":" not in method for method in results.errors())
    return plain, len(results.complete_runs()), results.protocol.epochs
