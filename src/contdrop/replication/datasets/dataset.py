"""A data set in memory."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, as stored: a pixel's value as a float is the stored value divided by ``divisor``."""

    name: str
    title: str
    train_images: npt.NDArray[np.uint8]  # [N, C, H, W], C-contiguous
    train_labels: npt.NDArray[np.int64]  # [N]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    divisor: float
    classes: tuple[str, ...]
    provenance: str  # one line: where it comes from, which files
    fingerprint: str  # of the four arrays, in the order above


def fingerprint(*arrays: npt.NDArray[np.generic]) -> str:
    """SHA-256 over shapes, types and bytes, so that no two different sets of arrays share it by construction."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
