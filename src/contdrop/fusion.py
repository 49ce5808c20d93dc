"""A rectified linear unit and the dropout layer behind it, done in one pass."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .compatibility import has_hooks, is_sequence
from .nn import Dropout


class Pair(NamedTuple):
    """A ReLU of a container, and the dropout layer right behind it."""

    container: torch.nn.Module
    key: str  # of the ReLU
    relu: torch.nn.Module
    dropout: Dropout
    name: str  # of the dropout layer

    def fuse(self) -> None:
        self.dropout.activation = "relu"
        setattr(self.container, self.key, torch.nn.Identity())

    def part(self) -> None:
        self.dropout.activation = None
        setattr(self.container, self.key, self.relu)


def fuse_relu(model: torch.nn.Module) -> list[str]:
    """Lets each dropout layer of a model do the work of the torch.nn.ReLU right before it; the numbers stay the same.

    Where a ``torch.nn.Sequential`` holds a ReLU and behind it a :class:`contdrop.Dropout`, the dropout layer gets
    ``activation="relu"`` and the ReLU's place a ``torch.nn.Identity``, so that names and state dict stay as they are.
    Nothing is done where somebody might see the difference: if either has hooks or works in place, if the dropout layer
    is used in more than one place, or if the container has a forward of its own. Do not call it for a model whose
    ReLUs are also called, or read, from elsewhere. ``swap_dropout(model, law, fuse_relu=True)`` does the same to the
    layers that it puts in, and can undo it.

    Returns:
        The names of the dropout layers that were changed.
    """
    found = list(pairs(model))
    for pair in found:
        pair.fuse()
    return [pair.name for pair in found]


def pairs(model: torch.nn.Module) -> Iterator[Pair]:
    """What may be fused."""
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for path, container in model.named_modules():
        if not is_sequence(container) or has_hooks(container):
            continue
        # Unlike named_children this keeps a module that is in two places.
        inside = container.named_modules(remove_duplicate=False)
        children = [(name, module) for name, module in inside if name and "." not in name]
        for (key, relu), (name, dropout) in itertools.pairwise(children):
            if isinstance(dropout, Dropout) and _may_fuse(relu, dropout) and places[id(dropout)] == 1:
                yield Pair(container, key, relu, dropout, f"{path}.{name}" if path else name)


def _may_fuse(relu: torch.nn.Module, dropout: Dropout) -> bool:
    return (
        type(relu) is torch.nn.ReLU
        and type(dropout).forward is Dropout.forward
        and dropout.activation is None
        and not (relu.inplace or dropout.inplace)
        and not (has_hooks(relu) or has_hooks(dropout))
    )
