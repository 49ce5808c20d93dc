"""How the training images are divided into those to train on and those to choose by."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ...errors import UserError


@dataclasses.dataclass(frozen=True)
class Split:
    """So many images to train on, and so many others to validate on."""

    train: int
    validation: int

    def __post_init__(self) -> None:
        if self.train < 1 or self.validation < 0:
            raise UserError(
                "split: expected at least 1 image to train on and at least 0 to validate on; "
                f"got {self.train} and {self.validation}"
            )

    def indices(self, available: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Disjoint positions among ``available`` images, drawn by ``seed``.

        They ascend within each part, so that they say nothing about the order in which images are shown.

        Example:
            >>> train, validation = Split(train=3, validation=2).indices(6, seed=0)
            >>> sorted({*train.tolist(), *validation.tolist()}).__len__()
            5
        """
        if self.train + self.validation > available:
            raise UserError(
                f"split: expected at most {available} images, as many as there are; got {self.train} to train on and "
                f"{self.validation} to validate on, {self.train + self.validation} together"
            )
        order = np.random.Generator(np.random.Philox(seed)).permutation(available)
        return np.sort(order[: self.train]), np.sort(order[self.train : self.train + self.validation])
