"""What the rows of a store are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLANNED, RUNNING, FINISHED, FAILED = "planned", "running", "finished", "failed"
SELECTION, FINAL = "selection", "final"
ONLY_SIZE = "study"  # the preset of a study that names no sizes
IMPORTED = "imported"  # the preset of numbers that come from elsewhere

METRICS = ("train_loss", "train_error", "val_loss", "val_error", "test_loss", "test_error")


@dataclass(frozen=True)
class ProtocolRecord:
    """A row of ``protocols``."""

    key: str
    experiment: str
    preset: str
    epochs: int
    configuration: dict[str, Any]
    description: dict[str, Any]
    created: float


@dataclass(frozen=True)
class JobRecord:
    """A row of ``jobs``. ``status`` is what the table says; see :meth:`Store.is_interrupted`.

    ``results`` of a finished job has the final model's losses and errors (in per cent), in evaluation mode, under the
    names of ``METRICS``; a selection job has none of the test data. ``seconds`` is the time of its epochs together.
    ``origin`` is the file that it was imported from, and None if it was done in this store.
    """

    id: int
    key: str
    protocol: str
    experiment: str
    stage: str
    method: str
    run: int
    epochs: int
    configuration: dict[str, Any]
    status: str
    error: str | None
    variant: str | None
    seeds: dict[str, int]
    fingerprints: dict[str, str]
    versions: dict[str, str]
    machine: dict[str, Any]
    results: dict[str, float]
    created: float
    started: float | None
    ended: float | None
    epochs_done: int
    seconds: float
    origin: str | None

    @property
    def shared(self) -> dict[str, str]:
        """What all methods of a run have to have in common."""
        return {**self.fingerprints, PROCESSOR: processor(self.machine)}


PROCESSOR, ORDER = "kind of processor", "data order"


def processor(machine: Mapping[str, Any]) -> str:
    """What decides the last bits of a result: the same in two places, the results are the same."""
    threads, devices = machine.get("threads", "?"), machine.get("devices", 1)
    return (
        f"{machine.get('architecture', '?')} {machine.get('instructions', '?')}, "
        f"{threads} thread{'' if threads == 1 else 's'}{'' if devices == 1 else f', {devices} devices'}"
    )


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch, counted from 1; None where nothing was.

    Training figures are those under dropout, as it went.
    """

    epoch: int
    train_loss: float | None
    train_error: float | None
    val_loss: float | None
    val_error: float | None
    test_loss: float | None
    test_error: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class SelectionRecord:
    """Which variant was selected for a label, from which validation errors. ``variant`` is None if all failed."""

    protocol: str
    method: str
    variant: str | None
    reason: str
    candidates: dict[str, Any]
    decided: float
