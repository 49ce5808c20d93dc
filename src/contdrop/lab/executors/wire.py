"""What passes between a driver and the tasks of a cluster: a job's writes one way, its data the other."""

from __future__ import annotations

import io
import pathlib
import pickle
import queue
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batches import Prepared
from ..records import Epoch
from ..sidecar import Buffer

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


# ---- data: tensors as arrays, which Ray's object store hands out without a copy


class _Pickler(pickle.Pickler):
    def reducer_override(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            raw = content.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (raw, content.dtype, tuple(content.shape))
        return NotImplemented


def _tensor(raw: np.ndarray, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody may write to it, which nobody does
        return torch.from_numpy(raw).view(kind).reshape(shape)


def packed(data: Prepared) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(data)
    return [file.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


def unpacked(content: list[Any]) -> Prepared:
    data: Prepared = pickle.loads(content[0], buffers=content[1:])
    return data
