"""Checks that a model treats each example by itself, on which bounds on its errors rest.

Examples may be coupled by the model, through statistics of the batch or a mixed-up axis, or by masks that they share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import nn
from .._torch.private import BATCH_NORMS
from ..choices import MixtureMasks
from ..surgery.dropout_layers import Layers, dropout_layers, dropout_on, mask_axes, seeded

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


def check_masks(owner: str, model: torch.nn.Module, layers: Layers, x: Tensor, masks: MixtureMasks) -> None:
    """Raise ValueError if examples share a mask, or if ``masks="fixed"`` would not give all of them the same one.

    The axis of the examples in the input of a layer is the one that grows from a small batch to a large one.
    """
    few, many = 2, max(3, len(x))
    calls = []
    for size in (few, many):
        with torch.no_grad(), dropout_on(model, layers) as shapes, seeded(layers, 0):
            model(x[torch.zeros(size, dtype=torch.long)])
        calls.append(shapes)
    before, after = calls
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
            if grown & mask_axes(layer, len(large)):
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
