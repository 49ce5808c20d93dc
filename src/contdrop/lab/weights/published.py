"""Which published weights the lab's networks can start from."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

from torch import nn

from ...errors import UserError, suggest
from ..data import location
from ..models.nin import published_nin
from . import nin


@dataclasses.dataclass(frozen=True)
class Published:
    """Weights by name.

    Attributes:
        name: Also of the folder in the data directory.
        title: In a line.
        file: Its name there.
        offered: Where its owner offers it, and what of it is known.
        network: Builds the network that they are of.
        data: The data set that its error is known on.
        error: Its published error there, in per cent.
        measure: Computes that error, of a file and with data from a directory.
    """

    name: str
    title: str
    file: str
    offered: str
    network: Callable[[], nn.Module]
    data: str = ""
    error: float | None = None
    measure: Callable[[pathlib.Path, pathlib.Path | None], float] | None = None

    def path(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        return location.directory(directory) / self.name / self.file

    def here(self, directory: pathlib.Path | None = None) -> pathlib.Path:
        """The file; raises UserError, which says where it is to be had, if it is not there."""
        path = self.path(directory)
        if not path.is_file():
            raise UserError(f"{self.name}: the weights are missing; put {self.file} into {path.parent}: {self.offered}")
        return path


PUBLISHED = (
    Published(
        name="nin-cifar10",
        title="Network in Network, CIFAR-10, Caffe model zoo",
        file="cifar10_nin.caffemodel",
        offered="the Caffe model zoo lists it as Network in Network, CIFAR10 model",
        network=published_nin,
        data="cifar-10",
        error=10.4,
        measure=nin.error_on_test_images,
    ),
)


def find(name: str) -> Published:
    for published in PUBLISHED:
        if published.name == name:
            return published
    names = [published.name for published in PUBLISHED]
    raise UserError(f"unknown weights {name!r}; {suggest(name.lower().replace('_', '-'), names)}")
