"""Named random streams: every use of randomness has its own seed, so that methods cannot shift each other's draws.

A seed depends on names and numbers only, never on earlier draws. An interrupted run therefore resumes without the state
of a generator, and in run i all methods get the same split, initial weights and data order.
"""

from __future__ import annotations

import hashlib

import numpy as np

SPLIT, WEIGHTS, ORDER, AUGMENT, MASKS, MEASURE = "split", "weights", "order", "augment", "masks", "measure"
LARGEST_SEED = 2**63 - 1


def seed(root: int, stage: str, run: int, stream: str, *detail: object) -> int:
    """Return a seed below 2^63 for one use of randomness.

    >>> seed(0, "final", 0, SPLIT) == seed(0, "final", 0, SPLIT)
    True
    >>> seed(0, "final", 0, SPLIT) == seed(0, "selection", 0, SPLIT)
    False
    """
    text = "/".join(str(part) for part in (root, stage, run, stream, *detail))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def permutation(count: int, seed: int) -> np.ndarray:
    """Return a random permutation of ``count`` numbers."""
    return np.random.Generator(np.random.Philox(seed)).permutation(count)
