"""All that a store holds, apart from any file: what archives are written from, and stores are joined by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .records import FAILED, FINISHED, PLANNED, Epoch, JobRecord, ProtocolRecord, Selection
from .store import Store


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
    selections: tuple[Selection, ...]
    jobs: tuple[Content, ...]


def read(store: Store) -> Contents:
    """Everything, every checksum verified."""
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


def as_planned(job: JobRecord) -> JobRecord:
    """The job before anything was done of it."""
    return replace(
        job, status=PLANNED, error=None, variant=None, seeds={}, fingerprints={}, versions={}, machine={}, results={},
        started=None, ended=None, epochs_done=0, seconds=0.0,
    )  # fmt: skip
