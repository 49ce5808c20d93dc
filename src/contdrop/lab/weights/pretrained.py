"""Networks that start from published weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..configuration import Configuration
from ..methods import Method
from ..models import Model
from .assigning import assign
from .files import read
from .published import find


@dataclass(frozen=True)
class Pretrained(Configuration):
    """A study's model that starts from published weights; layers that have none stay random.

    Attributes:
        model: Builds the network.
        weights: Their name, see ``contdrop weights list``.
    """

    kind: ClassVar[str] = "pretrained"

    model: Model
    weights: str

    def __call__(self, method: Method) -> nn.Module:
        path = find(self.weights).here()
        network = self.model(method)
        assign(network, read(path), str(path))
        return network
