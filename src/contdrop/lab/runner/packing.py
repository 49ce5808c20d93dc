"""Data on their way to the tasks of a cluster: tensors as arrays, which Ray's object store hands out without a copy."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.data import PreparedData


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


def packed(data: PreparedData) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(data)
    return [file.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


def unpacked(content: list[Any]) -> PreparedData:
    data: PreparedData = pickle.loads(content[0], buffers=content[1:])
    return data
