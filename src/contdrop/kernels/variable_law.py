"""The operators once more, for compiled graphs in which a law may change: its numbers are a tensor.

As constants of the graph they would make torch.compile start anew for each value of a schedule, and give up after the
eighth. The tensor holds what the kernels multiply by, the mean and the variance of the mask, and the law's parameters;
``contdrop.laws.BuiltIn.prepare_for_graphs`` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import backends, ops, reference
from .library import LIBRARY

_MOMENTS = 3  # how many numbers stand before the parameters

_LAW = "Tensor seed, str kind, Tensor law"
_EXAMPLES = f"{_LAW}, SymInt first_example=0"
LIBRARY.define(f"variable_dropout(Tensor x, {_LAW}, int[] shared_axes, int stream, SymInt[] window=[]) -> Tensor")
LIBRARY.define(f"variable_dropconnect(Tensor x, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"variable_dropconnect_input_gradient(Tensor gradient, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"variable_dropconnect_weight_gradient(Tensor gradient, Tensor x, {_EXAMPLES}) -> Tensor")

dropout: Any = torch.ops.contdrop.variable_dropout.default
dropconnect: Any = torch.ops.contdrop.variable_dropconnect.default
_input_gradient = torch.ops.contdrop.variable_dropconnect_input_gradient.default
_weight_gradient = torch.ops.contdrop.variable_dropconnect_weight_gradient.default


def _with_constants(function: Callable[..., Tensor], place: int) -> Callable[..., Tensor]:
    """A function that takes params and scale, as one that takes the tensor of a law at the given place."""

    def kernel(*args: Any) -> Tensor:
        law = args[place].tolist()
        return function(*args[:place], law[_MOMENTS:], law[0], *args[place + 1 :])

    return kernel


_family = (dropconnect, _input_gradient, _weight_gradient)
ops.DROPCONNECT_FAMILIES.update(dict.fromkeys(_family, _family))

for _name, _op, _function, _place in (
    ("dropout", dropout, ops.Linear, 3),
    ("dropconnect", dropconnect, ops.Bilinear, 4),
    ("dropconnect_input_gradient", _input_gradient, ops.Bilinear, 4),
    ("dropconnect_weight_gradient", _weight_gradient, ops.Bilinear, 4),
):
    LIBRARY.impl(_op, _with_constants(getattr(backends, _name), _place), "CompositeExplicitAutograd")
    _plain = _with_constants(getattr(reference, _name), _place)
    LIBRARY.impl(_op, ops.autograd_kernel(_function, _op, _plain), "Autograd")
    torch.library.register_fake(_op, ops.FAKES[_name], lib=LIBRARY)


@torch.library.register_vmap("contdrop::variable_dropout", lib=LIBRARY)
def _vmap_dropout(
    info: Any,
    in_dims: Any,
    x: Tensor,
    seed: Tensor,
    kind: str,
    law: Tensor,
    shared: Any,
    stream: int,
    window: Sequence[int] = (),
) -> tuple[Tensor, int]:
    x, seed, shared, window, axis = ops.batched_arguments(info, in_dims, x, seed, shared, window)
    return dropout(x, seed, kind, law, shared, stream, window), axis


for _op in _family:
    torch.library.register_vmap(_op, ops.vmap_by_loop(_op), lib=LIBRARY)
