"""Whether an experiment has the size of the table of the paper that it is of."""

from __future__ import annotations

from ..store.results import Results


def falls_short(results: Results, runs: int, epochs: int | None) -> bool:
    """Whether a method with results has fewer finished runs than these, or shorter ones; more of either is no harm."""
    fewest = min((len(found) for found in results.errors().values()), default=0)
    return fewest < runs or (epochs is not None and results.protocol.epochs < epochs)
