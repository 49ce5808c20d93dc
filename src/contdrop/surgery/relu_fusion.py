"""Fusion of a ReLU with the dropout layer that follows it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .._torch.private import TORCH_DROPOUTS, has_hooks, is_sequence
from ..nn import Dropout
from .dropout_layers import children

# Modules that may return their input or a view of it, into which a module behind them may write in place.
_ALIASING = (torch.nn.Identity, torch.nn.Flatten, torch.nn.Unflatten, *TORCH_DROPOUTS)


class Pair(NamedTuple):
    """A ReLU of a container, and the dropout layer right behind it."""

    container: torch.nn.Module
    key: str  # of the ReLU in the container
    relu: torch.nn.Module
    dropout: Dropout
    name: str  # of the dropout layer in the model

    def fuse(self) -> None:
        self.dropout.activation = "relu"
        setattr(self.container, self.key, torch.nn.Identity())

    def part(self) -> None:
        self.dropout.activation = None
        setattr(self.container, self.key, self.relu)


def fuse_relu(model: torch.nn.Module) -> list[str]:
    """Let each dropout layer of a model apply the torch.nn.ReLU right before it too; the numbers stay the same.

    Where a ``torch.nn.Sequential`` has a ReLU and then a :class:`contdrop.Dropout`, the dropout layer gets
    ``activation="relu"`` and a ``torch.nn.Identity`` replaces the ReLU, so that names and state dict stay the same.
    Pairs are left alone if either has hooks or works in place, if the dropout layer is used in several places, if the
    container has a forward of its own, or if the next module works in place or contains one that does. Do not use it
    for a model whose ReLUs are called, or read, from elsewhere too. ``swap_dropout(model, law, fuse_relu=True)`` does
    the same to the layers that it inserts, and can undo it.

    Like torch's ReLU, the layer keeps its result for backward. Where your own code writes into that result, such as
    ``y += x``, torch raises in backward ("modified by an inplace operation"); write ``y = y + x`` there.

    Returns:
        Names of the dropout layers that were changed.

    Example:
        >>> import contdrop
        >>> fuse_relu(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), contdrop.GaussianDropout(0.3)))
        ['2']
    """
    found = list(pairs(model))
    for pair in found:
        pair.fuse()
    return [pair.name for pair in found]


def pairs(model: torch.nn.Module) -> Iterator[Pair]:
    """Yield the pairs that can be fused."""
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    overwritten = _overwritten(model)
    for path, container in model.named_modules():
        if not is_sequence(container) or has_hooks(container):
            continue
        for (key, relu), (name, dropout) in itertools.pairwise(children(container)):
            alone = places[id(dropout)] == 1 and id(dropout) not in overwritten
            if isinstance(dropout, Dropout) and _can_fuse(relu, dropout) and alone:
                yield Pair(container, key, relu, dropout, f"{path}.{name}" if path else name)


def _can_fuse(relu: torch.nn.Module, dropout: Dropout) -> bool:
    return (
        type(relu) is torch.nn.ReLU
        and type(dropout).forward is Dropout.forward
        and dropout.activation is None
        and not (relu.inplace or dropout.inplace)
        and not (has_hooks(relu) or has_hooks(dropout))
    )


def _overwritten(model: torch.nn.Module) -> set[int]:
    """Return the ids of modules whose result the next module of a sequence may write into."""
    found: set[int] = set()
    for container in model.modules():
        writes = False
        for module in reversed(list(_flat(container)) if is_sequence(container) else []):
            if writes:
                found.add(id(module))
            in_place = any(getattr(part, "inplace", False) is True for part in module.modules())
            writes = in_place or (writes and isinstance(module, _ALIASING))
    return found


def _flat(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the modules that nested sequences run, in order."""
    if not is_sequence(module):
        yield module
        return
    for _, child in children(module):
        yield from _flat(child)
