"""How a law gets to the kernels: the one place that knows which laws they draw by themselves.

For a built-in law the kernels make the mask, multiply by it and make it again in backward. For any other law they give
the uniform numbers behind the mask, of which ``law.quantile`` makes mask values in plain torch; autograd keeps these.
The numbers are those of a built-in continuous law with the same seed. So a law of the user's own that is written like
``Uniform`` gives the masks of ``Uniform``.

Of a tensor that is sharded over processes, each masks its own part with its part of the mask; so it is with a batch
that is divided among processes (:mod:`.rows`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from .._torch import data_parallel, dtensor
from ..choices import SCALES
from ..laws import BuiltIn, Gaussian, Law

_STANDARD_NORMAL = Gaussian(sigma=1.0, mu=0.0, low=-math.inf, high=math.inf)


class LawInGraph:
    """A built-in law, scaled, whose numbers are an input of a compiled graph (``kernels.variable_law``)."""

    def __init__(self, kind: str, numbers: Tensor) -> None:
        self.kind = kind
        self.numbers = numbers
        self.mean = numbers[1]
        self.variance = numbers[2]


def law_in_graph(law: Law, scale: str) -> LawInGraph | None:
    if not isinstance(law, BuiltIn) or law._numbers is None:
        return None
    return LawInGraph(law.kind, law._numbers[SCALES.index(scale)])


def multiply(
    x: Tensor,
    seed: Tensor,
    law: Law | LawInGraph,
    divided_by: float,
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int] | None = None,
) -> Tensor:
    """x times mask over ``divided_by``, elementwise; along ``shared_axes`` one mask value is shared.

    With a ``window`` the mask is a part of a larger one; see :func:`contdrop.kernels.reference.mask_layout`. Without
    one x has a row for each example; an empty one is for what has not, such as a weight.
    """
    if dtensor.is_sharded(x):
        return dtensor.apply(lambda part, window: multiply(part, seed, law, divided_by, shared_axes, stream, window), x)
    if window is None:
        window = data_parallel.window(x.shape)
    if isinstance(law, LawInGraph):
        masked: Tensor = kernels.variable_law.dropout(x, seed, law.kind, law.numbers, shared_axes, stream, window)
        return masked
    if isinstance(law, BuiltIn):
        return kernels.dropout(x, seed, law.kind, law.params, law.factor / divided_by, shared_axes, stream, window)
    size = [1 if axis in shared_axes else length for axis, length in enumerate(x.shape)]
    window = [min(number, 1 - place) if axis in shared_axes else number for place, axis, number in _of_axes(window)]
    u = kernels.uniform(seed, size, kernels.compute_dtype(x.dtype), x.device, stream, window)
    mask = _values(law, u) * (1 / divided_by)
    return (x.to(mask.dtype) * mask).to(x.dtype)


def _of_axes(window: Sequence[int]) -> list[tuple[int, int, int]]:
    """The numbers of a window, each with 0 if it is a size or 1 if it is an offset, and its axis."""
    axes = len(window) // 2
    return [(place // axes, place % axes, number) for place, number in enumerate(window)]


def connect(
    x: Tensor, weight: Tensor, seed: Tensor, law: Law | LawInGraph, divided_by: float, first_example: int = 0
) -> Tensor:
    """y[n, o] = sum over i of mask[first_example + n, o, i] weight[o, i] x[n, i], over ``divided_by``."""
    if dtensor.is_sharded(x):
        return dtensor.apply_to_rows(lambda *part: connect(part[0], part[1], seed, law, divided_by, part[2]), x, weight)
    if window := data_parallel.window(x.shape):
        first_example = window[x.dim()]
    if isinstance(law, LawInGraph):
        connected: Tensor = kernels.variable_law.dropconnect(x, weight, seed, law.kind, law.numbers, first_example)
        return connected
    if isinstance(law, BuiltIn):
        return kernels.dropconnect(x, weight, seed, law.kind, law.params, law.factor / divided_by, first_example)
    wide = kernels.compute_dtype(x.dtype)
    size = [x.shape[0], weight.shape[0], kernels.row_of_numbers(weight.shape[1])]
    window = [first_example + size[0], *size[1:], first_example, 0, 0] if first_example else []
    u = kernels.uniform(seed, size, wide, x.device, kernels.STREAM_MASK, window)
    mask = _values(law, u[..., : weight.shape[1]]) * (1 / divided_by)
    return torch.bmm(mask * weight.to(wide), x.to(wide).unsqueeze(-1)).squeeze(-1).to(x.dtype)


def gate(x: Tensor, seed: Tensor, keep: Tensor) -> Tensor:
    """x where a uniform number is less than the element's own ``keep``, and x times zero elsewhere."""
    if dtensor.is_sharded(x):
        return dtensor.apply(lambda part, keep, window: kernels.keep_where(part, seed, keep, [], window), x, keep)
    return kernels.keep_where(x, seed, keep, [], data_parallel.window(x.shape))


def standard_normal_times(deviation: Tensor, seed: Tensor) -> Tensor:
    """deviation times standard normal numbers, one for each element."""
    return multiply(deviation, seed, _STANDARD_NORMAL, 1.0, [], kernels.STREAM_NORMAL)


def _values(law: Law, u: Tensor) -> Tensor:
    values = law.quantile(u)
    if not isinstance(values, Tensor) or values.shape != u.shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{type(law).__name__}.quantile: expected a tensor of the shape of u, {tuple(u.shape)}, got {got}"
        )
    return values.to(u.dtype)
