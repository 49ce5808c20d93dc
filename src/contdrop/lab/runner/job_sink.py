"""What a job writes to while it is done: the store, or over a network whoever writes there, or nothing."""

from __future__ import annotations

import pathlib
import queue
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..store.blobs import Buffer
from ..store.records import Epoch
from ..store.writer import Store

Message = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method of the store, and with what to call it


class Wire:
    """The ledger of a job that is done elsewhere: what it writes goes to the driver, in order."""

    FORWARDED = frozenset({"drop_progress", "progress", "fail", "finish"})

    def __init__(self, saved: tuple[int, Buffer] | None, path: str, node: str) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._saved, self._node = saved, node
        # Files of a user's own loop: beside the store where the node sees that directory, else on the node.
        here = pathlib.Path(path)
        self.path = here if here.parent.is_dir() else pathlib.Path(tempfile.gettempdir()) / here.name

    def send(self, name: str, *arguments: Any, **named: Any) -> None:
        self.messages.put((name, arguments, named))

    def begin(self, job: int, **named: Any) -> str | None:
        """The driver ends this task if something does not match."""
        self.send("begin", self._node, **named)
        return None

    def resume(self, job: int) -> tuple[int, Buffer] | None:
        return self._saved

    def drop_progress(self, job: int) -> None:
        self._saved = None
        self.send("drop_progress")

    def progress(
        self, job: int, epochs: Sequence[Epoch], checkpoint: tuple[int, Sequence[Buffer]] | None = None
    ) -> None:
        """The state is copied, for its pieces are the training's own memory, which goes on."""
        copied = None if checkpoint is None else (checkpoint[0], [b"".join(checkpoint[1])])
        self.send("progress", list(epochs), copied)

    def fail(self, job: int, reason: str, epochs: Sequence[Epoch] = ()) -> None:
        self.send("fail", reason, list(epochs))

    def finish(
        self,
        job: int,
        epochs: Sequence[Epoch],
        results: Mapping[str, float],
        artefacts: Mapping[str, np.ndarray],
        weights: Sequence[Buffer] = (),
    ) -> None:
        kept = [b"".join(weights)] if weights else []
        self.send("finish", list(epochs), dict(results), dict(artefacts), kept)


class Silent:
    """The ledger of a job's other processes, of which only the first writes."""

    path = pathlib.Path()

    def begin(self, job: int, **_: Any) -> str | None: ...
    def resume(self, job: int) -> tuple[int, Buffer] | None: ...
    def drop_progress(self, job: int) -> None: ...
    def progress(self, job: int, *_: Any) -> None: ...
    def fail(self, job: int, *_: Any) -> None: ...
    def finish(self, job: int, *_: Any) -> None: ...


Ledger: TypeAlias = Store | Wire | Silent
