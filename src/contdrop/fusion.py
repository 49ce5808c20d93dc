"""A rectified linear unit and the dropout layer behind it, done in one pass."""

from __future__ import annotations

import itertools
from collections import Counter

import torch

from .compatibility import has_hooks
from .nn import Dropout


def fuse_relu(model: torch.nn.Module) -> list[str]:
    """Lets each dropout layer of a model do the work of the torch.nn.ReLU right before it; the numbers stay the same.

    Where a ``torch.nn.Sequential`` holds a ReLU and behind it a :class:`contdrop.Dropout`, the dropout layer gets
    ``activation="relu"`` and the ReLU's place a ``torch.nn.Identity``, so that names and state dict stay as they are.
    Nothing is done where somebody might see the difference: if either has hooks or works in place, if the dropout layer
    is used in more than one place, or if the container has a forward of its own. Do not call it for a model whose
    ReLUs are also called, or read, from elsewhere.

    Returns:
        The names of the dropout layers that were changed.
    """
    places = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    fused = []
    for path, container in model.named_modules():
        if type(container).forward is not torch.nn.Sequential.forward or has_hooks(container):
            continue
        # Unlike named_children this keeps a module that is in two places.
        inside = container.named_modules(remove_duplicate=False)
        children = [(name, module) for name, module in inside if name and "." not in name]
        for (relu_name, relu), (name, dropout) in itertools.pairwise(children):
            if _may_fuse(relu, dropout) and places[id(dropout)] == 1:
                dropout.activation = "relu"
                setattr(container, relu_name, torch.nn.Identity())
                fused.append(f"{path}.{name}" if path else name)
    return fused


def _may_fuse(relu: torch.nn.Module, dropout: torch.nn.Module) -> bool:
    return (
        type(relu) is torch.nn.ReLU
        and isinstance(dropout, Dropout)
        and type(dropout).forward is Dropout.forward
        and dropout.activation is None
        and not (relu.inplace or dropout.inplace)
        and not (has_hooks(relu) or has_hooks(dropout))
    )
