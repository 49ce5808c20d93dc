"""Results of one protocol, by method and run, and the checks that they are paired.

Only paired results may be compared: in every run all methods must have had the same data, split, initial weights and
data order. :func:`collect` verifies that by the fingerprints in the store.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import UserError
from ..analysis.metric_format import Measure
from .reader import DamageError, StoreReader
from .schema import FAILED, FINAL, FINISHED, ORDER, PROCESSOR, SELECTION, JobRecord, ProtocolRecord, SelectionRecord

_ROUNDING = 1e-9  # of a percentage


@dataclass(frozen=True)
class Results:
    """All jobs of one protocol. Methods are in the experiment's order, then those that were added.

    ``contributions`` has, by method and run, an array with what each test example contributes, or each group of them;
    its mean is the error. All are over the same examples in the same order; runs whose predictions were not kept have
    none.
    """

    protocol: ProtocolRecord
    methods: tuple[str, ...]
    final: tuple[JobRecord, ...]
    selection: tuple[JobRecord, ...]
    selections: Mapping[str, SelectionRecord]
    contributions: Mapping[tuple[str, int], np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def reference(self) -> str:
        """Return the method that others are compared with: the reference, or its variant that was run instead."""
        wanted = str(self.protocol.description.get("reference"))
        same_name = [method for method in self.methods if method.partition(":")[0] == wanted]
        return wanted if wanted in self.methods else next(iter([*same_name, *self.methods]), wanted)

    @functools.cached_property
    def measure(self) -> Measure:
        """Return the metric that methods are compared by."""
        return Measure.of(self.protocol.description)

    @property
    def dataset(self) -> str:
        """Return the name of the data set, or of the experiment if the store has none."""
        return self.named_dataset or self.protocol.experiment

    @property
    def named_dataset(self) -> str:
        """Return the name of the data set; empty if the store has none."""
        configuration = self.protocol.configuration
        given = configuration.get("data")
        name = self.protocol.description.get("dataset") or (given.get("name") if isinstance(given, Mapping) else None)
        return str(name or configuration.get("dataset") or "")

    @property
    def sizes(self) -> dict[str, int]:
        """Return the numbers of examples to train, validate and test on, as far as they are stored."""
        found = self.protocol.description.get("sizes") or self.protocol.configuration.get("split")
        given = found if isinstance(found, Mapping) else {}
        return {str(part): number for part, number in given.items() if isinstance(number, int)}

    @functools.cached_property
    def finished(self) -> tuple[JobRecord, ...]:
        return tuple(job for job in self.final if job.status == FINISHED)

    @property
    def failed(self) -> tuple[JobRecord, ...]:
        """Return failed jobs of both stages."""
        return tuple(job for job in (*self.selection, *self.final) if job.status == FAILED)

    @property
    def missing(self) -> tuple[JobRecord, ...]:
        """Return final jobs that are planned or running."""
        return tuple(job for job in self.final if job.status not in (FINISHED, FAILED))

    @functools.cached_property
    def by_method(self) -> Mapping[str, list[JobRecord]]:
        """Return finished jobs by method; methods without any are left out."""
        found: dict[str, list[JobRecord]] = {method: [] for method in self.methods}
        for job in self.finished:
            found[job.method].append(job)
        return {method: jobs for method, jobs in found.items() if jobs}

    def errors(self) -> dict[str, dict[int, float]]:
        """Return the test values of finished jobs, by method and run."""
        return {method: {job.run: job.results["test_error"] for job in jobs} for method, jobs in self.by_method.items()}

    def complete_runs(self) -> tuple[int, ...]:
        """Return the runs that every method with results has finished, which a comparison of all may use."""
        runs = [{job.run for job in jobs} for jobs in self.by_method.values()]
        return tuple(sorted(set.intersection(*runs))) if runs else ()

    @property
    def has_spread(self) -> bool:
        """Return True if a method has several finished runs."""
        return any(len(jobs) > 1 for jobs in self.by_method.values())

    def variants(self) -> dict[str, str]:
        """Return the label with all parameters that each method was trained with."""
        return {job.method: job.variant for job in self.final if job.variant}

    def job(self, method: str, run: int) -> JobRecord | None:
        """Return the finished job of a method and run; None if there is none."""
        return self._by_place.get((method, run))

    @functools.cached_property
    def _by_place(self) -> dict[tuple[str, int], JobRecord]:
        return {(job.method, job.run): job for job in self.finished}


def collect(store: StoreReader, protocol: ProtocolRecord) -> Results:
    """Read the results of one protocol.

    Raises:
        UserError: Its runs are not paired, or its test values are not those of its predictions.
    """
    with store.snapshot():
        results = assemble(protocol, store.jobs(protocol=protocol.key), store.selections(protocol.key))
        return replace(results, contributions=_contributions(store, results.measure, results.finished))


def assemble(protocol: ProtocolRecord, jobs: Sequence[JobRecord], selections: Mapping[str, SelectionRecord]) -> Results:
    """Return the results of a protocol's jobs, without contributions of examples; raise UserError if not paired."""
    final, selection = (tuple(job for job in jobs if job.stage == stage) for stage in (FINAL, SELECTION))
    present = dict.fromkeys(job.method for job in final)
    order = dict.fromkeys([*protocol.description.get("methods", []), *present])
    results = Results(protocol, tuple(each for each in order if each in present), final, selection, selections)
    for run, mismatch in mismatches(results.finished):
        raise UserError(f"{protocol.experiment}: in run {run} {mismatch}; {remedy(mismatch)}")
    for method, finished in results.by_method.items():
        trained = sorted({str(job.variant) for job in finished})
        if len(trained) > 1:
            raise UserError(
                f"{protocol.experiment}: {method} was trained as {' and '.join(trained)}; use another --store"
            )
    return results


def _contributions(
    store: StoreReader, measure: Measure, jobs: Iterable[JobRecord]
) -> dict[tuple[str, int], np.ndarray]:
    """Return what each test example contributes, of jobs tested on the same ones, if the value is their plain mean."""
    found: dict[tuple[str, int], np.ndarray] = {}
    shared: np.ndarray | None = None
    for job in jobs:
        kept = example_values(store, job, measure)
        if kept is None or kept.ndim != 1 or not measure.is_mean:
            continue
        labels = store.artefact(job.id, "test_labels")
        shared = labels if shared is None else shared
        if labels is None or shared is None or np.array_equal(labels, shared):
            groups = store.artefact(job.id, "test_groups")
            found[job.method, job.run] = kept if groups is None else by_group(kept, groups)
    return found if len({len(each) for each in found.values()}) == 1 else {}


def example_values(store: StoreReader, job: JobRecord, measure: Measure) -> np.ndarray | None:
    """Return what each test example contributed to a finished job's value; None if that was not kept.

    It is stored as such or, of a classifier, as predictions and labels.

    Raises:
        DamageError: The examples do not give the stored value.
    """
    values = store.artefact(job.id, f"test_{measure.name}")
    if values is None and measure.is_error:
        values = _errors(store, job)
    stored = job.results.get("test_error")
    if values is None or stored is None:
        return values
    found, wrong = measure.of_examples(values) if len(values) else None, None
    if not len(values):
        wrong = "it has been tested on no example"
    elif found is not None and not math.isclose(found, stored, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        wrong = f"its test {measure.name} is {measure.full(stored)}, and that of its examples {measure.full(found)}"
    if wrong:
        raise DamageError(store.path, f"job {job.id} ({job.experiment} {job.method} run {job.run}): {wrong}")
    return values


def _errors(store: StoreReader, job: JobRecord) -> np.ndarray | None:
    """Return the error of each test example, in per cent, from predictions and labels."""
    predictions, labels = (store.artefact(job.id, f"test_{what}") for what in ("predictions", "labels"))
    if predictions is None or labels is None:
        return None
    if predictions.shape != labels.shape:
        raise DamageError(store.path, f"job {job.id} has {len(predictions)} predictions for {len(labels)} labels")
    return np.where(predictions != labels, np.float32(100), np.float32(0))


def by_group(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return one value for each group of dependent examples, with the same mean as the values by example.

    For groups g of n_g of all N examples, mean + G / N sum over g of (value - mean), as of a ratio of two sums.
    """
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    mean = float(np.mean(values, dtype=np.float64))
    return mean + len(sizes) / len(values) * np.bincount(place, values - mean)


def remedy(mismatch: str) -> str:
    """Return what the user can do about a run whose methods do not share what they should."""
    is_other_processor = PROCESSOR in mismatch
    return (
        "contdrop run --redo does that run again"
        if is_other_processor
        else "delete the odd runs or use another --store"
    )


def mismatches(jobs: Iterable[JobRecord]) -> Iterator[tuple[int, str]]:
    """Yield runs whose methods do not share what they should, and what that is."""
    by_run: dict[tuple[str, int], dict[str, Mapping[str, str]]] = {}
    for job in jobs:
        by_run.setdefault((job.stage, job.run), {})[job.method] = job.shared
    for (_, run), shared in sorted(by_run.items()):
        if mismatch := find_mismatch(shared):
            yield run, mismatch


def collect_all(store: StoreReader, keys: Collection[str] | None = None) -> list[Results]:
    """Read the results of every protocol, or of those with these keys."""
    return [collect(store, protocol) for protocol in store.protocols() if keys is None or protocol.key in keys]


def find_mismatch(shared: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return what differs between methods that must share all but masks, of which a custom loop may lack some."""
    (first, mine), *others = shared.items()
    for method, found in others:
        by_the_lab = ORDER in mine or ORDER in found
        for what in sorted(mine.keys() | found.keys() if by_the_lab else mine.keys() & found.keys()):
            if mine.get(what) != found.get(what):
                return f"{first} and {method} do not share the same {what}, so they are not paired"
    return None


def trained_on(job: JobRecord) -> str | None:
    """Return the fingerprint of a protocol's data; None for a custom loop, which may have others in each run."""
    return job.fingerprints.get("data") if ORDER in job.fingerprints else None


def of_other_data(
    jobs: Iterable[JobRecord], fingerprint: str, kind: str, *, of_one_name: bool = True
) -> list[JobRecord]:
    """Return a protocol's jobs trained on other data than those of this fingerprint on this kind of processor.

    Another kind of processor may compute features with other last bits. There, data of one name are the same.
    """
    others = [job for job in jobs if trained_on(job) not in (None, fingerprint)]
    return [job for job in others if job.shared[PROCESSOR] == kind or not of_one_name]


def has_one_name(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return True if two descriptions of a protocol name the same data; a stand-in has another mark."""
    names = {about["dataset"] for about in (first, second) if isinstance(about.get("dataset"), str)}
    return len(names) < 2 and first.get("mark", "") == second.get("mark", "")
