"""All that a store holds, apart from any file: what archives are written from, and stores are joined by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..analysis.metric_format import Measure
from .records import FAILED, FINISHED, PLANNED, Epoch, JobRecord, ProtocolRecord, SelectionRecord
from .writer import Store


@dataclass(frozen=True, eq=False)
class Content:
    """A job with its epochs and artefacts."""

    job: JobRecord
    epochs: tuple[Epoch, ...]
    artefacts: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Contents:
    """Of a whole store, in the order of its plan. A job that is under way counts as planned: it starts over."""

    protocols: tuple[ProtocolRecord, ...]
    selections: tuple[SelectionRecord, ...]
    jobs: tuple[Content, ...]


def read(store: Store) -> Contents:
    """Everything, as it is at one moment, every checksum verified."""
    with store.snapshot():
        return _read(store)


def _read(store: Store) -> Contents:
    protocols = tuple(store.protocols())
    jobs = []
    for job in store.jobs():
        if job.status not in (FINISHED, FAILED):
            jobs.append(Content(as_planned(job), (), {}))
            continue
        artefacts = {name: store.artefact(job.id, name) for name in store.artefact_names(job.id)}
        kept = {name: array for name, array in artefacts.items() if array is not None}
        jobs.append(Content(job, tuple(store.epochs(job.id)), kept))
    selections = [each for protocol in protocols for each in store.selections(protocol.key).values()]
    return Contents(protocols, tuple(selections), tuple(jobs))


def smaller(contents: Contents) -> Contents:
    """Without what test examples contributed to metrics that nothing is computed from.

    Verdicts, intervals and checks read the contributions to the metric that methods are compared by, and errors are
    read from predictions and labels where these are kept. The means of all metrics stay.
    """
    measures = {protocol.key: Measure.of(protocol.description) for protocol in contents.protocols}
    metrics = {protocol.key: protocol.configuration.get("metric", ()) for protocol in contents.protocols}

    def less(content: Content) -> Content:
        measure, kept = measures[content.job.protocol], content.artefacts
        superfluous = {f"test_{name}" for name in metrics[content.job.protocol]}
        if not (measure.is_error and _follows_from_classes(kept)):
            superfluous.discard(f"test_{measure.name}")
        return replace(content, artefacts={name: kept[name] for name in kept if name not in superfluous})

    return replace(contents, jobs=tuple(less(content) for content in contents.jobs))


def _follows_from_classes(artefacts: Mapping[str, np.ndarray]) -> bool:
    """Whether errors are those of predictions and labels; an error of the study's own may weigh them."""
    predictions, labels = (artefacts.get(f"test_{name}") for name in ("predictions", "labels"))
    if predictions is None or labels is None:
        return False
    errors = artefacts.get("test_error")
    return errors is None or np.array_equal(errors, np.where(predictions == labels, 0.0, 100.0))


def as_planned(job: JobRecord) -> JobRecord:
    """The job before anything was done of it."""
    return replace(
        job, status=PLANNED, error=None, variant=None, seeds={}, fingerprints={}, versions={}, machine={}, results={},
        started=None, ended=None, epochs_done=0, seconds=0.0,
    )  # fmt: skip
