"""Calls into the compiled library."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...laws import KINDS, KernelLaw, check_kind
from .. import reference
from .loader import MAX_AXES, DropConnect, Dropout, KeepWhere, Law, library

TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_KINDS = {name: number for number, name in enumerate(KINDS)}
_CONTRACTIONS = {"output": 0, "input gradient": 1, "weight gradient": 2, "gradients": 3}
_RESULTS = {"output": "g", "input gradient": "x", "weight gradient": "w", "gradients": "xw"}  # whose shapes they have


@functools.lru_cache(maxsize=256)
def prepare(kind: str, params: tuple[float, ...], factor: float) -> Law:
    """Return the structure that the compiled code takes for a law."""
    if kind not in _KINDS:
        check_kind(kind)
    number = _KINDS[kind]
    if kind == "bernoulli":
        return Law(number, *reference.bernoulli_bits(params[0]), 0.0, factor, 0.0, 0.0, 0.0)
    if kind == "uniform":
        low, high = params
        return Law(number, reference.NUMBER_BITS, 0, low * factor, (high - low) * factor, 0.0, 0.0, 0.0)
    mu, sigma, low, high = params
    if sigma == 0:  # one value, which every element keeps
        return Law(_KINDS["bernoulli"], 1, 2, 0.0, min(max(mu, low), high) * factor, 0.0, 0.0, 0.0)
    reach = max(abs(low - mu), abs(high - mu)) / sigma
    # A negative factor reverses the interval; a factor of 0 leaves nothing of an infinite one.
    bounds = sorted((low * factor, high * factor)) if factor else (0.0, 0.0)
    return Law(number, reference.NUMBER_BITS, 0, mu * factor, sigma * factor, *bounds, reach)


def dropout(
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int] = (),
) -> Tensor:
    if seed.dim():
        own = [axis - seed.dim() for axis in shared_axes]
        return _per_seed(x, seed, lambda part, s: dropout(part, s, law, own, stream, window))
    x = _in_memory(x)
    out = torch.empty_like(x)
    count = x.numel()
    if count == 0:
        reference.mask_layout(x.shape, shared_axes, window)  # checks the window
        return out
    prepared = prepare(*law[:3])
    threads = torch.get_num_threads()
    if not shared_axes and not window and x.is_contiguous():
        library().contdrop_dropout_row(
            x.data_ptr(),
            out.data_ptr(),
            TYPES[x.dtype],
            count,
            seed.item(),
            stream,
            threads,
            ctypes.addressof(prepared),
        )
        return out
    axes = x.dim()
    if axes > MAX_AXES:
        return reference.dropout(x, seed, law, shared_axes, stream, window)
    call = Dropout(x.data_ptr(), out.data_ptr(), TYPES[x.dtype], axes)
    call.mask_first, call.mask_stride[:axes] = reference.mask_layout(x.shape, shared_axes, window)
    call.size[:axes], call.x_stride[:axes], call.out_stride[:axes] = x.shape, x.stride(), out.stride()
    call.seed, call.stream, call.threads, call.law = seed.item(), stream, threads, prepared
    library().contdrop_dropout(ctypes.byref(call))
    return out


def _in_memory(x: Tensor) -> Tensor:
    """Return the tensor with its values in memory: torch represents zeros and negation lazily."""
    if not x.is_cpu:  # its address means nothing here
        raise RuntimeError(
            f"contdrop: expected every tensor on the cpu, got one on {x.device}; move it there by .cpu()"
        )
    return x.resolve_neg() if x.data_ptr() else torch.zeros_like(x)


def _per_seed(x: Tensor, seed: Tensor, one: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Call ``one`` for every seed of a batch, whose axes are the leading axes of x."""
    parts = [one(part, s) for part, s in zip(x.flatten(0, seed.dim() - 1), seed.flatten())]
    stacked = torch.stack(parts) if parts else x.new_empty(0, *x.shape[seed.dim() :])
    return torch.empty_like(x).copy_(stacked.view(x.shape))


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    x, keep = _in_memory(x), _in_memory(keep)
    alike = keep.shape == x.shape and keep.dtype == x.dtype and x.is_contiguous() and keep.is_contiguous()
    if seed.dim() or shared_axes or window or not alike:
        u = dropout(
            torch.ones_like(x, dtype=reference.compute_dtype(x.dtype)),
            seed,
            KernelLaw("uniform", (0.0, 1.0), 1.0),
            shared_axes,
            reference.STREAM_MASK,
            window,
        )
        return reference.multiply(x, (u < keep).to(u.dtype))
    out = torch.empty_like(x)
    call = KeepWhere(
        x.data_ptr(),
        keep.data_ptr(),
        out.data_ptr(),
        TYPES[x.dtype],
        torch.get_num_threads(),
        x.numel(),
        seed.item(),
        reference.STREAM_MASK,
    )
    library().contdrop_keep_where(ctypes.byref(call))
    return out


def dropconnect(
    x: Tensor,
    weight: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    return _contract("output", None, weight, x, seed, law, first_example)[0]


def dropconnect_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    return _contract("input gradient", gradient, weight, None, seed, law, first_example)[0]


def dropconnect_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    return _contract("weight gradient", gradient, None, x, seed, law, first_example)[0]


def dropconnect_gradients(
    gradient: Tensor,
    weight: Tensor,
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> tuple[Tensor, Tensor]:
    by_x, by_weight = _contract("gradients", gradient, weight, x, seed, law, first_example)
    return by_x, by_weight


def _contract(
    contraction: str,
    g: Tensor | None,
    w: Tensor | None,
    x: Tensor | None,
    seed: Tensor,
    law: KernelLaw,
    first_example: int,
) -> list[Tensor]:
    """Contract the matrices that are given; "gradients" gives two results from one draw of the masks."""
    given = [tensor for tensor in (g, w, x) if tensor is not None]
    examples = (x if x is not None else g).shape[0]  # type: ignore[union-attr]
    outputs = w.shape[0] if w is not None else g.shape[1]  # type: ignore[union-attr]
    inputs = (x if x is not None else w).shape[1]  # type: ignore[union-attr]
    shapes = {"g": (examples, outputs), "w": (outputs, inputs), "x": (examples, inputs)}
    _check_operands(given, [shape for shape, tensor in zip(shapes.values(), (g, w, x)) if tensor is not None])
    dtype = given[0].dtype
    wide = reference.compute_dtype(dtype)
    g, w, x = (None if tensor is None else _in_memory(tensor.to(wide)).contiguous() for tensor in (g, w, x))
    results = [torch.empty(shapes[name], dtype=wide, device="cpu") for name in _RESULTS[contraction]]
    prepared = prepare(*law[:3])
    call = DropConnect(
        *(None if tensor is None else tensor.data_ptr() for tensor in (g, w, x)),
        results[0].data_ptr(),
        results[1].data_ptr() if len(results) > 1 else None,
        TYPES[wide],
        _CONTRACTIONS[contraction],
        examples,
        outputs,
        inputs,
        reference.pitch(inputs, prepared.bits),
        first_example,
        seed.item(),
        reference.STREAM_MASK,
        torch.get_num_threads(),
        prepared,
    )
    library().contdrop_dropconnect(ctypes.byref(call))
    return [result.to(dtype) for result in results]


def _check_operands(given: list[Tensor], shapes: list[tuple[int, int]]) -> None:
    """Raise an error if the matrices do not fit; the kernel takes addresses and would exceed their memory."""
    if any(tensor.dtype != given[0].dtype for tensor in given):
        types = " and ".join(str(tensor.dtype) for tensor in given)
        raise RuntimeError(f"dropconnect: expected matrices of one type, got {types}")
    if any(tensor.shape != shape for tensor, shape in zip(given, shapes)):
        sizes = " and ".join(str(tuple(tensor.shape)) for tensor in given)
        raise RuntimeError(f"dropconnect: expected matrices whose sizes fit together, got {sizes}")
