"""Named streams of chance: every use has a seed of its own, so no method can shift what another one sees.

A seed depends on names and numbers only, never on what was drawn before. So an interrupted run needs no generator's
state to resume, and in run i all methods get the same split, initial weights and data order.
"""

from __future__ import annotations

import hashlib

import numpy as np

SPLIT, WEIGHTS, ORDER, AUGMENT, MASKS, MEASURE = "split", "weights", "order", "augment", "masks", "measure"
LARGEST_SEED = 2**63 - 1


def seed(root: int, stage: str, run: int, stream: str, *detail: object) -> int:
    """A seed below 2^63 for one use of chance.

    >>> seed(0, "final", 0, SPLIT) == seed(0, "final", 0, SPLIT)
    True
    >>> seed(0, "final", 0, SPLIT) == seed(0, "selection", 0, SPLIT)
    False
    """
    text = "/".join(str(part) for part in (root, stage, run, stream, *detail))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def permutation(count: int, seed: int) -> np.ndarray:
    """A random order of ``count`` things."""
    return np.random.Generator(np.random.Philox(seed)).permutation(count)
