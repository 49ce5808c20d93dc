"""What a store says about one protocol: errors by method and run, what failed, and what is still missing.

Only results that are paired may be compared: in every run all methods must have had the same data, split, initial
weights and data order. :func:`collect` checks that by the fingerprints in the store, and refuses otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError
from .store import FAILED, FINAL, FINISHED, SELECTION, JobRecord, ProtocolRecord, Selection, Store, find_mismatch


@dataclass(frozen=True)
class Results:
    """All jobs of one protocol. Methods are in the experiment's order, then those that were added."""

    protocol: ProtocolRecord
    methods: tuple[str, ...]
    final: tuple[JobRecord, ...]
    selection: tuple[JobRecord, ...]
    selections: Mapping[str, Selection]

    @property
    def reference(self) -> str:
        """What the others are compared with: the experiment's reference, or its variant that was run instead."""
        wanted: str = self.protocol.description["reference"]
        same_name = [method for method in self.methods if method.partition(":")[0] == wanted]
        return next(iter([*[m for m in same_name if m == wanted], *same_name, *self.methods]), wanted)

    @property
    def finished(self) -> tuple[JobRecord, ...]:
        return tuple(job for job in self.final if job.status == FINISHED)

    @property
    def failed(self) -> tuple[JobRecord, ...]:
        """Of both stages."""
        return tuple(job for job in (*self.selection, *self.final) if job.status == FAILED)

    @property
    def missing(self) -> tuple[JobRecord, ...]:
        """Final jobs that are planned or under way."""
        return tuple(job for job in self.final if job.status not in (FINISHED, FAILED))

    def errors(self, metric: str = "test_error") -> dict[str, dict[int, float]]:
        """By method and run, of finished jobs; methods without any are left out."""
        found: dict[str, dict[int, float]] = {method: {} for method in self.methods}
        for job in self.finished:
            found[job.method][job.run] = job.results[metric]
        return {method: runs for method, runs in found.items() if runs}

    def complete_runs(self) -> tuple[int, ...]:
        """Runs that every method with results has finished: what a comparison of all may use."""
        errors = self.errors()
        if not errors:
            return ()
        return tuple(sorted(set.intersection(*(set(runs) for runs in errors.values()))))

    def variants(self) -> dict[str, str]:
        """With which parameters each method was trained."""
        return {job.method: job.variant for job in self.final if job.variant}

    def job(self, method: str, run: int) -> JobRecord | None:
        return next((job for job in self.finished if job.method == method and job.run == run), None)


def collect(store: Store, protocol: ProtocolRecord) -> Results:
    """Reads one protocol; raises UserError if its runs are not paired."""
    jobs = store.jobs(protocol=protocol.key)
    final = tuple(job for job in jobs if job.stage == FINAL)
    order = [*protocol.description.get("methods", []), *(job.method for job in final)]
    present = {job.method for job in final}
    results = Results(
        protocol,
        tuple(method for method in dict.fromkeys(order) if method in present),
        final,
        tuple(job for job in jobs if job.stage == SELECTION),
        store.selections(protocol.key),
    )
    by_run: dict[int, dict[str, Mapping[str, str]]] = {}
    for job in results.finished:
        by_run.setdefault(job.run, {})[job.method] = job.fingerprints
    for run, fingerprints in sorted(by_run.items()):
        mismatch = find_mismatch(fingerprints)
        if mismatch:
            raise UserError(
                f"{protocol.experiment}: in run {run} {mismatch}; delete the odd runs or use another --store"
            )
    variants = {(job.method, job.variant) for job in results.finished}
    for method in results.methods:
        trained = sorted(str(variant) for name, variant in variants if name == method)
        if len(trained) > 1:
            raise UserError(
                f"{protocol.experiment}: {method} was trained as {' and '.join(trained)}; use another --store"
            )
    return results


def collect_all(store: Store) -> list[Results]:
    return [collect(store, protocol) for protocol in store.protocols()]
