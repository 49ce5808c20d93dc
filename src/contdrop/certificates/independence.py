"""Whether a model treats each example by itself: what bounds on its errors rest on.

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

_WITNESSES = 8  # examples that show whether others change what a model says of one


def check_separate(owner: str, model: torch.nn.Module, x: Tensor) -> None:
    """An error if what the model says of an example, without dropout, depends on the others of its batch [N, ...]."""
    _check_statistics(owner, model)
    x = x[:_WITNESSES]
    # Each among copies of itself, in the same place of a batch as large, so that its numbers are rounded as before.
    alone = [_evaluated(model, x[[number] * len(x)])[number] for number in range(len(x))]
    if not _agree(_evaluated(model, x), torch.stack(alone)):
        raise ValueError(
            f"{owner}: expected a model that treats each example, along axis 0, by itself; its output for one changes "
            "with the others of the batch; look for statistics of the batch, for means over padding, and for layers "
            "that have the batch along another axis (batch_first)"
        )


def _check_statistics(owner: str, model: torch.nn.Module) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is None:
            raise ValueError(
                f"{owner}: expected a model that treats each example by itself; {name or 'it'} is a "
                f"{type(layer).__name__} that keeps no running statistics, so it couples examples; train one with "
                "track_running_stats=True"
            )


def _evaluated(model: torch.nn.Module, x: Tensor) -> Tensor:
    """The output without dropout; seeded, because a model may draw in evaluation, too."""
    with torch.no_grad(), dropout_on(model, {}), seeded(dropout_layers(model), 0):
        output: Tensor = model(x.clone()).cpu()
    return output


def _agree(first: Tensor, second: Tensor) -> bool:
    """Whether they differ by no more than rounding, which layers may have made larger."""
    size = first.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    tolerance = torch.finfo(first.dtype).eps ** (2 / 3) * size if first.is_floating_point() else 0.0
    return torch.allclose(first.double(), second.double(), rtol=0, atol=tolerance, equal_nan=True)


# Those of torch that draw one value for all that follows the second axis.
_BY_FEATURE = (torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.FeatureAlphaDropout)


def check_masks(
    owner: str, model: torch.nn.Module, layers: dict[str, torch.nn.Module], x: Tensor, masks: MixtureMasks
) -> None:
    """An error if examples share a mask, or if ``masks="fixed"`` would not give them all the same one.

    Where the examples are in what a layer is called with is seen from two batches: what grows from one to the other.
    """
    few, many = 2, max(3, len(x))
    before, after = (_shapes(model, layers, x, size) for size in (few, many))
    for name, layer in layers.items():
        for small, large in zip(before[name], after[name]):
            # Calls that go by the example, or by parts of the batch, cannot be told from one another: any axis may do.
            alike = len(before[name]) == len(after[name]) and len(small) == len(large)
            grown = {axis for axis in range(len(large)) if not alike or small[axis] != large[axis]}
            _check_fresh(owner, name, large, grown, _shared_axes(layer, len(large)))
            first = not isinstance(layer, nn.Dropout) or (grown == {0} and small[0] == few)
            if masks == "fixed" and not (alike and first):
                raise ValueError(
                    f"{owner}: expected examples along the first axis for masks='fixed'; {name} is called with {large} "
                    f"for {many} of them; use masks='fresh'"
                )


def _check_fresh(owner: str, name: str, shape: tuple[int, ...], grown: set[int], shared: set[int]) -> None:
    if not grown:
        raise ValueError(
            f"{owner}: expected masks drawn for every example; {name} is called with {shape} however many there are, "
            "so errors of members would not be independent; mask what belongs to one example"
        )
    if grown & shared:
        raise ValueError(
            f"{owner}: expected masks drawn for every example; {name} shares one over the batch, so errors of "
            "members would not be independent; change its shared_axes or masks"
        )


def _shapes(
    model: torch.nn.Module, layers: dict[str, torch.nn.Module], x: Tensor, size: int
) -> dict[str, list[tuple[int, ...]]]:
    """What each layer is called with, call by call, for a batch of so many copies of the first example."""
    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in layers}

    def noting(name: str) -> Callable[..., None]:
        def note(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[name].append(_shape(next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))))

        return note

    hooks = [layer.register_forward_pre_hook(noting(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with torch.no_grad(), dropout_on(model, layers), seeded(layers, 0):
            model(x[torch.zeros(size, dtype=torch.long)])
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _shape(x: Tensor) -> tuple[int, ...]:
    return (x.size(0), *[-1] * (x.dim() - 1)) if x.is_nested else tuple(x.shape)  # rows of several lengths


def _shared_axes(layer: torch.nn.Module, axes: int) -> set[int]:
    """Along which a mask of this layer has one value, if its input has so many axes."""
    if isinstance(layer, nn.DropConnectLinear):
        return set(range(axes)) if layer.masks == "batch" else set()
    if isinstance(layer, nn.Dropout):
        return {axis % axes for axis in layer.shared_axes}
    # Of so few axes, the first is a feature to torch, and there is no batch.
    single = (isinstance(layer, torch.nn.Dropout1d) and axes == 2) or (
        isinstance(layer, torch.nn.Dropout3d) and axes == 4
    )
    return set(range(1 if single else 2, axes)) if isinstance(layer, _BY_FEATURE) else set()
