"""The package's operators as torch sees them: schemas, shapes, derivatives and batching rules.

Every operator is a pure function of its arguments, the seed among them, and (multi)linear in its floating-point
arguments. So its derivative is an operator of the same family with the same seed: backward re-creates the mask instead
of storing it, and double backward and forward mode follow by applying the same rule again.

The derivatives are registered below torch.compile's front end, as one autograd function per operator, because
``torch.library.register_autograd`` knows no forward mode and would return zero tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch import private
from . import backends, reference
from .library import LIBRARY

_LAW = "Tensor seed, str kind, float[] params, float scale"

LIBRARY.define(f"dropout(Tensor x, {_LAW}, int[] shared_axes, int stream, SymInt[] window=[]) -> Tensor")
LIBRARY.define("keep_where(Tensor x, Tensor seed, Tensor keep, int[] shared_axes, SymInt[] window=[]) -> Tensor")
_EXAMPLES = f"{_LAW}, SymInt first_example=0"
LIBRARY.define(f"dropconnect(Tensor x, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"dropconnect_input_gradient(Tensor gradient, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"dropconnect_weight_gradient(Tensor gradient, Tensor x, {_EXAMPLES}) -> Tensor")

dropout_operator: Any = torch.ops.contdrop.dropout.default
keep_where: Any = torch.ops.contdrop.keep_where.default
dropconnect: Any = torch.ops.contdrop.dropconnect.default
_input_gradient = torch.ops.contdrop.dropconnect_input_gradient.default
_weight_gradient = torch.ops.contdrop.dropconnect_weight_gradient.default

for _name in (
    "dropout",
    "keep_where",
    "dropconnect",
    "dropconnect_input_gradient",
    "dropconnect_weight_gradient",
):
    LIBRARY.impl(_name, getattr(backends, _name), "CompositeExplicitAutograd")


# Shapes.


@torch.library.register_fake("contdrop::dropout", lib=LIBRARY)
@torch.library.register_fake("contdrop::keep_where", lib=LIBRARY)
def _fake_like(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("contdrop::dropconnect", lib=LIBRARY)
def _fake_dropconnect(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.register_fake("contdrop::dropconnect_input_gradient", lib=LIBRARY)
def _fake_input_gradient(gradient: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return gradient.new_empty(gradient.shape[0], weight.shape[1])


@torch.library.register_fake("contdrop::dropconnect_weight_gradient", lib=LIBRARY)
def _fake_weight_gradient(gradient: Tensor, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(gradient.shape[1], x.shape[1])


FAKES = {
    "dropout": _fake_like,
    "dropconnect": _fake_dropconnect,
    "dropconnect_input_gradient": _fake_input_gradient,
    "dropconnect_weight_gradient": _fake_weight_gradient,
}


# Derivatives.

# Of each operator of per-example DropConnect, the three that belong together: see Bilinear.
_family = (dropconnect, _input_gradient, _weight_gradient)
DROPCONNECT_FAMILIES: dict[Any, tuple[Any, Any, Any]] = dict.fromkeys(_family, _family)


class Linear(private.OneLevelFunction):
    """The derivative of an operator that is linear in its first argument, elementwise, and constant in the others."""

    @staticmethod
    def forward(ctx: Any, op: Any, x: Tensor, *rest: Any) -> Tensor:
        tensors = [value for value in rest if isinstance(value, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.op = op
        ctx.rest = [None if isinstance(value, Tensor) else value for value in rest]
        with private.below_autograd():
            return op(x, *rest)

    @staticmethod
    def _again(ctx: Any, x: Tensor) -> Tensor:
        tensors = iter(ctx.saved_tensors)
        return ctx.op(x, *(next(tensors) if value is None else value for value in ctx.rest))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, Linear._again(ctx, gradient), *(None for _ in ctx.rest)

    @staticmethod
    def jvp(ctx: Any, _op: None, tangent: Tensor, *_: None) -> Tensor:
        return Linear._again(ctx, tangent)


class Bilinear(private.OneLevelFunction):
    """The derivatives of the three operators that make up per-example DropConnect.

    With T(g, W, x) = sum of mask[n, o, i] g[n, o] W[o, i] x[n, i], the forward pass is dT/dg and the two gradients are
    dT/dx and dT/dW. Each is bilinear, and its derivatives are the other two.
    """

    @staticmethod
    def forward(ctx: Any, op: Any, left: Tensor, right: Tensor, seed: Tensor, *law: Any) -> Tensor:
        ctx.save_for_backward(left, right, seed)
        ctx.save_for_forward(left, right, seed)
        ctx.op, ctx.law = op, law
        with private.below_autograd():
            return op(left, right, seed, *law)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        left, right, seed = ctx.saved_tensors
        if ctx.op is dropconnect and all(ctx.needs_input_grad[1:3]) and _is_final(cotangent, left, right):
            # The fast path: both from one draw of the masks.
            both = backends.dropconnect_gradients(cotangent, right, left, seed, *ctx.law)
            return None, *both, None, *(None for _ in ctx.law)
        # For each operator: the arguments of T that left, right and the cotangent stand for give the derivatives.
        by_g, by_x, by_w = DROPCONNECT_FAMILIES[ctx.op]
        if ctx.op is by_g:  # left = x, right = W, cotangent = g
            by_left = by_x, cotangent, right
            by_right = by_w, cotangent, left
        elif ctx.op is by_x:  # left = g, right = W, cotangent = x
            by_left = by_g, cotangent, right
            by_right = by_w, left, cotangent
        else:  # left = g, right = x, cotangent = W
            by_left = by_g, right, cotangent
            by_right = by_x, left, cotangent
        gradients = [
            op(first, second, seed, *ctx.law) if needed else None
            for (op, first, second), needed in zip((by_left, by_right), ctx.needs_input_grad[1:3])
        ]
        return None, *gradients, None, *(None for _ in ctx.law)

    @staticmethod
    def jvp(ctx: Any, _op: None, left_tangent: Tensor | None, right_tangent: Tensor | None, *_: None) -> Tensor:
        left, right, seed = ctx.saved_tensors
        terms = []
        if left_tangent is not None:
            terms.append(ctx.op(left_tangent, right, seed, *ctx.law))
        if right_tangent is not None:
            terms.append(ctx.op(left, right_tangent, seed, *ctx.law))
        return sum(terms[1:], terms[0])


def autograd_kernel(function: type[torch.autograd.Function], op: Any, plain: Callable[..., Tensor]) -> Any:
    if not private.DERIVATIVES:
        return plain  # and torch differentiates every step of it

    def kernel(*args: Any) -> Tensor:
        return private.apply_one_level(function, op, *args)

    return kernel


for _op, _function, _plain in (
    (dropout_operator, Linear, reference.dropout),
    (keep_where, Linear, reference.keep_where),
    (dropconnect, Bilinear, reference.dropconnect),
    (_input_gradient, Bilinear, reference.dropconnect_input_gradient),
    (_weight_gradient, Bilinear, reference.dropconnect_weight_gradient),
):
    LIBRARY.impl(_op, autograd_kernel(_function, _op, _plain), "Autograd")


# The fast path for elementwise dropout in plain eager mode: for a small layer, a pass through the dispatcher would cost
# more than the kernel.


class _PlainDropout(private.OneLevelFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        ctx.arguments = arguments
        return backends.dropout(x, *arguments)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return dropout(gradient, *ctx.arguments), *(None for _ in ctx.arguments)


def dropout(x: Tensor, *arguments: Any) -> Tensor:
    """The operator ``contdrop::dropout``, by the fast path where there is one; the arguments are those of
    :func:`contdrop.kernels.reference.dropout`.
    """
    if not _is_plain(x):
        return dropout_operator(x, *arguments)
    if x.requires_grad and torch.is_grad_enabled():
        return _PlainDropout.apply(x, *arguments)
    return backends.dropout(x, *arguments)


def _is_plain(x: Tensor) -> bool:
    """Whether nothing but reverse-mode differentiation looks at what happens to x."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and x.device.type != "meta"
        and private.unobserved(x)
    )


def _is_final(*tensors: Tensor) -> bool:
    """Whether nothing at all looks at what happens to the tensors: they are not even differentiated again."""
    return not torch.is_grad_enabled() and all(map(_is_plain, tensors))


# Batching for torch.func.vmap.


def _align(
    batch_size: int, seed: Tensor, seed_axis: int | None, *tensors: tuple[Tensor, int | None]
) -> tuple[Tensor, list[Tensor], int]:
    """Brings the batch axis to where the operators expect it, and says where that is.

    A batched seed means a mask per example: the new axis joins the seed's, in front. A single seed means that the
    examples share the mask: the new axis comes behind the seed's, and is shared.
    """
    axis = seed.dim() if seed_axis is None else 0
    if seed_axis is not None:
        seed = seed.movedim(seed_axis, 0)
    aligned = []
    for tensor, tensor_axis in tensors:
        if tensor_axis is None:
            shape = (*tensor.shape[:axis], batch_size, *tensor.shape[axis:])
            aligned.append(tensor.unsqueeze(axis).expand(shape))
        else:
            aligned.append(tensor.movedim(tensor_axis, axis))
    return seed, aligned, axis


def _shift_axes(shared_axes: Sequence[int], axis: int, seed_is_batched: bool) -> list[int]:
    moved = [shared + 1 if shared >= axis else shared for shared in shared_axes]
    return moved if seed_is_batched else [axis, *moved]


def _widen(window: Sequence[int], batch_size: int, seed_is_batched: bool) -> list[int]:
    """The window with a batch axis in front, of which it has all; a batched seed's axis is none of a window's."""
    if not window or seed_is_batched:
        return list(window)
    half = len(window) // 2
    return [batch_size, *window[:half], 0, *window[half:]]


def batched_arguments(
    info: Any, in_dims: Any, x: Tensor, seed: Tensor, shared: Sequence[int], window: Sequence[int]
) -> tuple[Tensor, Tensor, list[int], list[int], int]:
    """x, seed, shared axes and window of elementwise dropout under vmap, and the batch axis of the result."""
    batched = in_dims[1] is not None
    seed, (x,), axis = _align(info.batch_size, seed, in_dims[1], (x, in_dims[0]))
    return x, seed, _shift_axes(shared, axis, batched), _widen(window, info.batch_size, batched), axis


@torch.library.register_vmap("contdrop::dropout", lib=LIBRARY)
def _vmap_dropout(
    info: Any,
    in_dims: Any,
    x: Tensor,
    seed: Tensor,
    kind: str,
    params: Any,
    scale: float,
    shared: Any,
    stream: int,
    window: Sequence[int] = (),
) -> tuple[Tensor, int]:
    x, seed, shared, window, axis = batched_arguments(info, in_dims, x, seed, shared, window)
    return dropout_operator(x, seed, kind, params, scale, shared, stream, window), axis


@torch.library.register_vmap("contdrop::keep_where", lib=LIBRARY)
def _vmap_keep_where(
    info: Any, in_dims: Any, x: Tensor, seed: Tensor, keep: Tensor, shared: Any, window: Sequence[int] = ()
) -> tuple[Tensor, int]:
    batched = in_dims[1] is not None
    seed, (x, keep), axis = _align(info.batch_size, seed, in_dims[1], (x, in_dims[0]), (keep, in_dims[2]))
    shared, window = _shift_axes(shared, axis, batched), _widen(window, info.batch_size, batched)
    return keep_where(x, seed, keep, shared, window), axis


def vmap_by_loop(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """One call per example: a mask of weights is too large to gain anything from batching calls."""

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        if info.batch_size == 0:  # zeros in place of an example show what shape a result would have
            result = op(*map(_one_of_none, args, in_dims))
            return result.new_empty(0, *result.shape), 0
        calls = (
            [arg.select(axis, i) if isinstance(axis, int) else arg for arg, axis in zip(args, in_dims)]
            for i in range(info.batch_size)
        )
        return torch.stack([op(*call) for call in calls]), 0

    return rule


def _one_of_none(argument: Any, axis: int | None) -> Any:
    """An example of an empty batch along an axis."""
    return argument.new_zeros(argument.movedim(axis, 0).shape[1:]) if isinstance(axis, int) else argument


for _op in _family:
    torch.library.register_vmap(_op, vmap_by_loop(_op), lib=LIBRARY)
