"""A rectified linear unit and the dropout layer behind it, done in one pass."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .._torch.private import TORCH_DROPOUTS, has_hooks, is_sequence
from ..nn import Dropout

# Their result may be their input, or a view of it: what works in place behind them writes into that.
_HAND_ON = (torch.nn.Identity, torch.nn.Flatten, torch.nn.Unflatten, *TORCH_DROPOUTS)


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
    is used in more than one place, if the container has a forward of its own, or if what comes next in it works in
    place (``inplace=True``) or has a part that does. Do not call it for a model whose ReLUs are also called, or read,
    from elsewhere. ``swap_dropout(model, law, fuse_relu=True)`` does the same to the layers that it puts in, and can
    undo it.

    Like torch's ReLU, the layer keeps its result for backward. Where code of your own writes into that result, such as
    ``y += x``, torch raises in backward ("modified by an inplace operation"); write ``y = y + x`` there.

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
    overwritten = _overwritten(model)
    for path, container in model.named_modules():
        if not is_sequence(container) or has_hooks(container):
            continue
        for (key, relu), (name, dropout) in itertools.pairwise(_children(container)):
            alone = places[id(dropout)] == 1 and id(dropout) not in overwritten
            if isinstance(dropout, Dropout) and _may_fuse(relu, dropout) and alone:
                yield Pair(container, key, relu, dropout, f"{path}.{name}" if path else name)


def _children(container: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    # Unlike named_children this keeps a module that is in two places.
    inside = container.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in inside if name and "." not in name]


def _overwritten(model: torch.nn.Module) -> set[int]:
    """The ids of modules into whose result another one writes, or may write, as far as sequences tell who is next."""
    found: set[int] = set()
    for container in model.modules():
        writes = False
        for module in reversed(list(_flat(container)) if is_sequence(container) else []):
            if writes:
                found.add(id(module))
            in_place = any(getattr(part, "inplace", False) is True for part in module.modules())
            writes = in_place or (writes and isinstance(module, _HAND_ON))
    return found


def _flat(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """What a sequence runs, one after the other, with the sequences in it taken apart."""
    if not is_sequence(module):
        yield module
        return
    for _, child in _children(module):
        yield from _flat(child)


def _may_fuse(relu: torch.nn.Module, dropout: Dropout) -> bool:
    return (
        type(relu) is torch.nn.ReLU
        and type(dropout).forward is Dropout.forward
        and dropout.activation is None
        and not (relu.inplace or dropout.inplace)
        and not (has_hooks(relu) or has_hooks(dropout))
    )
