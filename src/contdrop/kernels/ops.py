"""Operators as torch sees them: schemas, shapes, derivatives and batching rules.

Every operator is a pure function of its arguments, including the seed and the law, and (multi)linear in its
floating-point arguments. So its derivative is an operator of the same family with the same seed: backward recreates
the mask instead of storing it, and double backward and forward mode apply the same rule again.

A law is a tensor (:class:`contdrop._kernel_law.KernelLaw`): as constants of a graph its numbers would make
torch.compile start again for each value of a schedule, and give up after the eighth.

The derivatives are registered below torch.compile's front end, as one autograd function per operator, because
``torch.library.register_autograd`` does not support forward mode and would return zero tangents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._torch import private
from ..laws import KernelLaw
from . import backends, reference

LIBRARY = torch.library.Library("contdrop", "DEF")

_EXAMPLES = "Tensor seed, Tensor law, SymInt first_example=0"
LIBRARY.define(
    "dropout(Tensor x, Tensor seed, Tensor law, int[] shared_axes, int stream, SymInt[] window=[]) -> Tensor"
)
LIBRARY.define("keep_where(Tensor x, Tensor seed, Tensor keep, int[] shared_axes, SymInt[] window=[]) -> Tensor")
LIBRARY.define(f"dropconnect(Tensor x, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"dropconnect_input_gradient(Tensor gradient, Tensor weight, {_EXAMPLES}) -> Tensor")
LIBRARY.define(f"dropconnect_weight_gradient(Tensor gradient, Tensor x, {_EXAMPLES}) -> Tensor")

dropout_operator: Any = torch.ops.contdrop.dropout.default
keep_where: Any = torch.ops.contdrop.keep_where.default
dropconnect_operator: Any = torch.ops.contdrop.dropconnect.default
_input_gradient: Any = torch.ops.contdrop.dropconnect_input_gradient.default
_weight_gradient: Any = torch.ops.contdrop.dropconnect_weight_gradient.default
# The operators of DropConnect by the matrix that they compute, and the matrices that they take; see
# :func:`contdrop.kernels.reference.dropconnect`.
_CONTRACTIONS = {
    "g": (dropconnect_operator, "x", "w"),
    "x": (_input_gradient, "g", "w"),
    "w": (_weight_gradient, "g", "x"),
}


def autograd_kernel(function: type[torch.autograd.Function], op: Any, plain: Callable[..., Tensor]) -> Any:
    """Return the Autograd kernel of an operator; ``plain`` is differentiated step by step if torch needs that."""
    if not private.DERIVATIVES:
        return plain

    def kernel(*args: Any) -> Tensor:
        return private.apply_one_level(function, op, *args)

    return kernel


class Linear(private.OneLevelFunction):
    """Derivative of an operator that is elementwise linear in its first argument and constant in the others."""

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
    """Derivatives of the three operators of per-example DropConnect.

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
        both_needed = ctx.op is dropconnect_operator and all(ctx.needs_input_grad[1:3])
        # Both from one draw of the masks, unless something observes the operation, be it a second derivative.
        if both_needed and not torch.is_grad_enabled() and all(map(_is_plain, (cotangent, left, right))):
            both = _contract("xw", None, {"g": cotangent, "w": right, "x": left}, seed, *ctx.law)
            return None, *both, None, *(None for _ in ctx.law)
        computed, taken = next((name, taken) for name, (op, *taken) in _CONTRACTIONS.items() if op is ctx.op)
        matrices = dict(zip((*taken, computed), (left, right, cotangent)))
        gradients: list[Tensor | None] = []
        for name, needed in zip(taken, ctx.needs_input_grad[1:3]):
            op, first, second = _CONTRACTIONS[name]
            gradients.append(op(matrices[first], matrices[second], seed, *ctx.law) if needed else None)
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


def _is_plain(x: Tensor) -> bool:
    """Return True if nothing but reverse-mode differentiation observes operations on x."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and x.device.type != "meta"
        and private.unobserved(x)
    )


class _Direct(private.OneLevelFunction):
    """Elementwise dropout without torch's dispatcher, which would take longer than the kernel of a small layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        ctx.arguments = arguments
        return backends.for_device(x.device.type).dropout(x, *arguments)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return dropout(gradient, *ctx.arguments), *(None for _ in ctx.arguments)


def dropout(x: Tensor, seed: Tensor, law: KernelLaw | Tensor, *arguments: Any) -> Tensor:
    """Call the operator ``contdrop::dropout``, or the back end itself if that makes no difference.

    The arguments are those of :func:`contdrop.kernels.reference.dropout`.
    """
    if not isinstance(law, KernelLaw):
        return dropout_operator(x, seed, law, *arguments)
    if not _is_plain(x):
        return dropout_operator(x, seed, law.tensor(), *arguments)
    if x.requires_grad and torch.is_grad_enabled():
        return _Direct.apply(x, seed, law, *arguments)
    return backends.for_device(x.device.type).dropout(x, seed, law, *arguments)


# Kernels of the operators, which take the law as a tensor. The back end is that of the device if no module is given.


def _elementwise(name: str, module: Any, x: Tensor, seed: Tensor, by: Tensor, *rest: Any) -> Tensor:
    function = getattr(module or backends.for_device(x.device.type), name)
    result: Tensor = function(x, seed, KernelLaw.of_tensor(by) if name == "dropout" else by, *rest)
    return result


def _contraction(wanted: str, module: Any, left: Tensor, right: Tensor, *rest: Any) -> Tensor:
    matrices = dict(sorted(zip(_CONTRACTIONS[wanted][1:], (left, right))))
    return _contract(wanted, module, matrices, *rest)[0]


def _contract(
    wanted: str, module: Any, matrices: dict[str, Tensor], seed: Tensor, law: Tensor, first_example: int = 0
) -> list[Tensor]:
    module = module or backends.for_device(next(iter(matrices.values())).device.type)
    results: list[Tensor] = module.dropconnect(wanted, matrices, seed, KernelLaw.of_tensor(law), first_example)
    return results


def _contraction_shape(wanted: str, left: Tensor, right: Tensor, *_: Any) -> Tensor:
    sizes = reference.sizes_of(dict(zip(_CONTRACTIONS[wanted][1:], (left, right))))
    return left.new_empty([sizes[axis] for axis in reference.AXES[wanted]])


def _register(op: Any, function: type[torch.autograd.Function], kernel: Any, fake: Callable[..., Tensor]) -> None:
    LIBRARY.impl(op, partial(kernel, None), "CompositeExplicitAutograd")
    LIBRARY.impl(op, autograd_kernel(function, op, partial(kernel, reference)), "Autograd")
    torch.library.register_fake(op, fake, lib=LIBRARY)


for _name, _op in (("dropout", dropout_operator), ("keep_where", keep_where)):
    _register(_op, Linear, partial(_elementwise, _name), lambda x, *_: torch.empty_like(x))
for _wanted, (_op, *_) in _CONTRACTIONS.items():
    _register(_op, Bilinear, partial(_contraction, _wanted), partial(_contraction_shape, _wanted))


@functools.lru_cache(maxsize=256)
def _kept_tensor(law: KernelLaw) -> Tensor:
    with torch.inference_mode(False):
        return law.tensor()


def dropconnect(x: Tensor, weight: Tensor, seed: Tensor, law: KernelLaw | Tensor, first_example: int = 0) -> Tensor:
    """Call the operator ``contdrop::dropconnect``."""
    if isinstance(law, KernelLaw):
        law = _kept_tensor(law) if _is_plain(x) else law.tensor()
    return dropconnect_operator(x, weight, seed, law, first_example)


# Batching for torch.func.vmap.


def _align(
    batch_size: int,
    seed: Tensor,
    seed_axis: int | None,
    shared_axes: Sequence[int],
    window: Sequence[int],
    *tensors: tuple[Tensor, int | None],
) -> tuple[int, Tensor, list[int], list[int], list[Tensor]]:
    """Move the batch axis to where the operators expect it; return its place, and the arguments fitted to it.

    A batched seed means a mask per example: the new axis joins the seed's, in front, which are not part of windows.
    With a single seed the examples share the mask: the new axis comes after the seed's, is shared, and is complete.
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
    shared = [shared + 1 if shared >= axis else shared for shared in shared_axes]
    if seed_axis is None:
        shared = [axis, *shared]
        half = len(window) // 2
        window = [batch_size, *window[:half], 0, *window[half:]] if window else window
    return axis, seed, shared, list(window), aligned


@torch.library.register_vmap("contdrop::dropout", lib=LIBRARY)
def _vmap_dropout(
    info: Any, in_dims: Any, x: Tensor, seed: Tensor, law: Tensor, shared: Any, stream: int, window: Sequence[int] = ()
) -> tuple[Tensor, int]:
    axis, seed, shared, window, (x,) = _align(info.batch_size, seed, in_dims[1], shared, window, (x, in_dims[0]))
    return dropout_operator(x, seed, law, shared, stream, window), axis


@torch.library.register_vmap("contdrop::keep_where", lib=LIBRARY)
def _vmap_keep_where(
    info: Any, in_dims: Any, x: Tensor, seed: Tensor, keep: Tensor, shared: Any, window: Sequence[int] = ()
) -> tuple[Tensor, int]:
    tensors = (x, in_dims[0]), (keep, in_dims[2])
    axis, seed, shared, window, (x, keep) = _align(info.batch_size, seed, in_dims[1], shared, window, *tensors)
    return keep_where(x, seed, keep, shared, window), axis


def vmap_by_loop(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """Return a batching rule of one call per example: masks of weights are too large to gain from batching."""

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[Tensor, int]:
        if info.batch_size == 0:  # zeros in place of an example give the shape of the result
            result = op(*map(_zeros_like_example, args, in_dims))
            return result.new_empty(0, *result.shape), 0
        calls = (
            [arg.select(axis, i) if isinstance(axis, int) else arg for arg, axis in zip(args, in_dims)]
            for i in range(info.batch_size)
        )
        return torch.stack([op(*call) for call in calls]), 0

    return rule


def _zeros_like_example(argument: Any, axis: int | None) -> Any:
    return argument.new_zeros(argument.movedim(axis, 0).shape[1:]) if isinstance(axis, int) else argument


for _op in (dropconnect_operator, _input_gradient, _weight_gradient):
    torch.library.register_vmap(_op, vmap_by_loop(_op), lib=LIBRARY)
