"""Checks that a model treats each example by itself, on which bounds on its errors rest.

Examples may be coupled by the model, through statistics of the batch or a mixed-up axis, or by masks that they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .._torch.private import BATCH_NORMS
from ..choices import MixtureMasks
from ..inference import dropout_layers, dropout_on, seeded

_WITNESSES = 8  # examples that are compared


def check_separate(owner: str, model: torch.nn.Module, x: Tensor) -> None:
    """Raise ValueError if the output for an example, without dropout, depends on the others of its batch [N, ...]."""
    for name, layer in model.named_modules():
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is None:
            raise ValueError(
                f"{owner}: expected a model that treats each example by itself; {name or 'it'} is a "
                f"{type(layer).__name__} that keeps no running statistics, so it couples examples; train one with "
                "track_running_stats=True"
            )
    x = x[:_WITNESSES]
    # Each example among copies of itself, at the same place of a batch of the same size, so that rounding is the same.
    alone = torch.stack([_evaluated(model, x[[number] * len(x)])[number] for number in range(len(x))])
    together = _evaluated(model, x)
    size = together.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    # Rounding, which layers may have amplified.
    tolerance = torch.finfo(alone.dtype).eps ** (2 / 3) * size if alone.is_floating_point() else 0.0
    if not torch.allclose(together.double(), alone.double(), rtol=0, atol=tolerance, equal_nan=True):
        raise ValueError(
            f"{owner}: expected a model that treats each example, along axis 0, by itself; its output for one changes "
            "with the others of the batch; look for statistics of the batch, for means over padding, and for layers "
            "that have the batch along another axis (batch_first)"
        )


def _evaluated(model: torch.nn.Module, x: Tensor) -> Tensor:
    """Return the output without dropout; seeded, because a model may draw in evaluation too."""
    with torch.no_grad(), dropout_on(model, {}), seeded(dropout_layers(model), 0):
        output: Tensor = model(x.clone()).cpu()
    return output


# Torch's layers that draw one value for all elements behind the second axis.
_BY_FEATURE = (torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.FeatureAlphaDropout)


def check_masks(
    owner: str, model: torch.nn.Module, layers: dict[str, torch.nn.Module], x: Tensor, masks: MixtureMasks
) -> None:
    """Raise ValueError if examples share a mask, or if ``masks="fixed"`` would not give all of them the same one.

    The axis of the examples in the input of a layer is the one that grows from a small batch to a large one.
    """
    few, many = 2, max(3, len(x))
    before, after = (_shapes(model, layers, x, size) for size in (few, many))
    for name, layer in layers.items():
        for small, large in zip(before[name], after[name]):
            # Calls for each example, or for parts of the batch, cannot be matched: any axis may be that of examples.
            alike = len(before[name]) == len(after[name]) and len(small) == len(large)
            grown = {axis for axis in range(len(large)) if not alike or small[axis] != large[axis]}
            if not grown:
                raise ValueError(
                    f"{owner}: expected masks drawn for every example; {name} is called with {large} however many "
                    "there are, so errors of members would not be independent; mask what belongs to one example"
                )
            if grown & _shared_axes(layer, len(large)):
                raise ValueError(
                    f"{owner}: expected masks drawn for every example; {name} shares one over the batch, so errors of "
                    "members would not be independent; change its shared_axes or masks"
                )
            first = not isinstance(layer, nn.Dropout) or (grown == {0} and small[0] == few)
            if masks == "fixed" and not (alike and first):
                raise ValueError(
                    f"{owner}: expected examples along the first axis for masks='fixed'; {name} is called with {large} "
                    f"for {many} of them; use masks='fresh'"
                )


def _shapes(
    model: torch.nn.Module, layers: dict[str, torch.nn.Module], x: Tensor, size: int
) -> dict[str, list[tuple[int, ...]]]:
    """Return the input shapes of each layer, call by call, for a batch of ``size`` copies of the first example."""
    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in layers}

    def noting(name: str) -> Callable[..., None]:
        def note(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
            # Rows of a nested tensor have several lengths.
            found[name].append((x.size(0), *[-1] * (x.dim() - 1)) if x.is_nested else tuple(x.shape))

        return note

    hooks = [layer.register_forward_pre_hook(noting(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with torch.no_grad(), dropout_on(model, layers), seeded(layers, 0):
            model(x[torch.zeros(size, dtype=torch.long)])
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _shared_axes(layer: torch.nn.Module, axes: int) -> set[int]:
    """Return the axes along which a mask of this layer has one value, for an input of ``axes`` axes."""
    if isinstance(layer, nn.DropConnectLinear):
        return set(range(axes)) if layer.masks == "batch" else set()
    if isinstance(layer, nn.Dropout):
        return {axis % axes for axis in layer.shared_axes}
    # With this few axes torch takes the first for features, and there is no batch.
    single = (isinstance(layer, torch.nn.Dropout1d) and axes == 2) or (
        isinstance(layer, torch.nn.Dropout3d) and axes == 4
    )
    return set(range(1 if single else 2, axes)) if isinstance(layer, _BY_FEATURE) else set()
