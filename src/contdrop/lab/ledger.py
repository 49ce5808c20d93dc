"""What a job writes while it is done: to the store, or over a network to whoever writes there."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .records import Epoch
from .sidecar import Buffer


class Silent:
    """The ledger of a job's other processes, of which only the first writes."""

    path = pathlib.Path()

    def begin(self, job: int, **_: Any) -> None: ...
    def resume(self, job: int) -> None: ...
    def drop_progress(self, job: int) -> None: ...
    def progress(self, job: int, *_: Any) -> None: ...
    def fail(self, job: int, *_: Any) -> None: ...
    def finish(self, job: int, *_: Any) -> None: ...


class Ledger(Protocol):
    """A :class:`~contdrop.lab.store.Store` is one; its methods say what they do."""

    @property
    def path(self) -> pathlib.Path:
        """Files of a user's own loop are kept beside it."""

    def begin(
        self,
        job: int,
        *,
        variant: str,
        seeds: Mapping[str, int],
        fingerprints: Mapping[str, str],
        versions: Mapping[str, str],
        machine: Mapping[str, Any],
    ) -> str | None: ...

    def resume(self, job: int) -> tuple[int, Buffer] | None: ...
    def drop_progress(self, job: int) -> None: ...
    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None: ...
    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None: ...
    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None: ...
