"""Calls into the native library. The structures mirror ``api.h``, which explains them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import reference
from .loader import library

_MAX_AXES = 16
_Axes = ctypes.c_int64 * _MAX_AXES
TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_KINDS = {name: number for number, name in enumerate(reference.KINDS)}
_CONTRACTIONS = {"output": 0, "input gradient": 1, "weight gradient": 2}


class _Law(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("threshold", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("offset", "gain", "low", "high", "reach")),
    )


class _Dropout(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("size", _Axes),
        ("x_stride", _Axes),
        ("out_stride", _Axes),
        ("mask_stride", _Axes),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("law", _Law),
    )


class _KeepWhere(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("keep", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
    )


class _Normal(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
    )


class _DropConnect(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("g", "w", "x", "result")),
        ("type", ctypes.c_int32),
        ("contraction", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("examples", "outputs", "inputs", "pitch")),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("law", _Law),
    )


@functools.lru_cache(maxsize=256)
def prepare(kind: str, params: tuple[float, ...], scale: float) -> _Law:
    reference.check_kind(kind)
    if kind == "bernoulli":
        bits, threshold = reference.bernoulli_bits(params[0])
        return _Law(_KINDS[kind], bits, threshold, 0.0, scale, 0.0, 0.0, 0.0)
    if kind == "uniform":
        low, high = params
        return _Law(_KINDS[kind], reference.NUMBER_BITS, 0, low * scale, (high - low) * scale, 0.0, 0.0, 0.0)
    mu, sigma, low, high = params
    if sigma == 0:  # one value, which every element keeps
        return _Law(_KINDS["bernoulli"], 1, 2, 0.0, min(max(mu, low), high) * scale, 0.0, 0.0, 0.0)
    reach = max(abs(low - mu), abs(high - mu)) / sigma
    # A negative scale turns the interval round; a scale of 0 leaves nothing of an infinite one.
    bounds = sorted((low * scale, high * scale)) if scale else (0.0, 0.0)
    return _Law(_KINDS[kind], reference.NUMBER_BITS, 0, mu * scale, sigma * scale, *bounds, reach)


def dropout(
    x: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int] = (),
) -> Tensor:
    if window:
        return reference.dropout(x, seed, kind, params, scale, shared_axes, stream, window)
    if seed.dim():
        return _per_seed(
            x, seed, shared_axes, lambda part, s, axes: dropout(part, s, kind, params, scale, axes, stream)
        )
    x = _in_memory(x)
    out = torch.empty_like(x)
    count = x.numel()
    if count == 0:
        return out
    law = prepare(kind, tuple(params), scale)
    threads = torch.get_num_threads()
    if not shared_axes and x.is_contiguous():
        library().contdrop_dropout_row(
            x.data_ptr(),
            out.data_ptr(),
            TYPES[x.dtype],
            count,
            seed.item(),
            stream,
            threads,
            ctypes.addressof(law),
        )
        return out
    call = _Dropout(x.data_ptr(), out.data_ptr(), TYPES[x.dtype])
    if not _lay_out(call, x, out, shared_axes):
        return reference.dropout(x, seed, kind, params, scale, shared_axes, stream)
    call.seed, call.stream, call.threads, call.law = seed.item(), stream, threads, law
    library().contdrop_dropout(ctypes.byref(call))
    return out


def _in_memory(x: Tensor) -> Tensor:
    """The tensor itself, unless torch only pretends that its numbers are in memory: all zeros, or to be negated."""
    return x.resolve_neg() if x.data_ptr() else torch.zeros_like(x)


def _lay_out(call: _Dropout, x: Tensor, out: Tensor, shared_axes: Sequence[int]) -> bool:
    """Describes x, the result and the mask by as few axes as possible; False if these are still too many."""
    merged: list[list[int]] = []  # size, stride in x, stride in the result, stride in the mask
    mask_stride = 1
    for axis in reversed(range(x.dim())):
        size = x.shape[axis]
        shared = axis in shared_axes
        if size > 1:
            strides = [x.stride(axis), out.stride(axis), 0 if shared else mask_stride]
            if merged and all(stride == merged[-1][0] * inner for stride, inner in zip(strides, merged[-1][1:])):
                merged[-1][0] *= size
            else:
                merged.append([size, *strides])
        if not shared:
            mask_stride *= size
    merged = merged or [[1, 1, 1, 1]]
    if len(merged) > _MAX_AXES:
        return False
    call.axes = len(merged)
    for place, (size, x_stride, out_stride, stride) in enumerate(reversed(merged)):
        call.size[place] = size
        call.x_stride[place], call.out_stride[place], call.mask_stride[place] = x_stride, out_stride, stride
    return True


def _per_seed(x: Tensor, seed: Tensor, shared_axes: Sequence[int], one) -> Tensor:  # type: ignore[no-untyped-def]
    """One call for every seed of a batch of seeds, which the leading axes of x belong to."""
    axes = [axis - seed.dim() for axis in shared_axes]
    parts = [one(part, s, axes) for part, s in zip(x.flatten(0, seed.dim() - 1), seed.flatten())]
    stacked = torch.stack(parts) if parts else x.new_empty(0, *x.shape[seed.dim() :])
    return torch.empty_like(x).copy_(stacked.view(x.shape))


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    x, keep = _in_memory(x), _in_memory(keep)
    alike = keep.shape == x.shape and keep.dtype == x.dtype and x.is_contiguous() and keep.is_contiguous()
    if seed.dim() or shared_axes or window or not alike:
        return reference.keep_where(x, seed, keep, shared_axes, window)
    out = torch.empty_like(x)
    call = _KeepWhere(
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


def normal(
    seed: Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, window: Sequence[int] = ()
) -> Tensor:
    if window:
        return reference.normal(seed, size, dtype, device, window)
    if seed.dim():
        parts = [normal(s, size, dtype, device) for s in seed.flatten()]
        return torch.stack(parts).view(*seed.shape, *size) if parts else seed.new_empty(*seed.shape, *size, dtype=dtype)
    wide = reference.compute_dtype(dtype)
    out = torch.empty(tuple(size), dtype=wide)
    call = _Normal(
        out.data_ptr(),
        TYPES[wide],
        torch.get_num_threads(),
        math.prod(size),
        seed.item(),
        reference.STREAM_NORMAL,
    )
    library().contdrop_normal(ctypes.byref(call))
    return out.to(dtype)


def dropconnect(
    x: Tensor,
    weight: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    if first_example:
        return reference.dropconnect(x, weight, seed, kind, params, scale, first_example)
    return _contract("output", None, weight, x, seed, kind, params, scale)


def dropconnect_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    if first_example:
        return reference.dropconnect_input_gradient(gradient, weight, seed, kind, params, scale, first_example)
    return _contract("input gradient", gradient, weight, None, seed, kind, params, scale)


def dropconnect_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    if first_example:
        return reference.dropconnect_weight_gradient(gradient, x, seed, kind, params, scale, first_example)
    return _contract("weight gradient", gradient, None, x, seed, kind, params, scale)


def _contract(
    contraction: str,
    g: Tensor | None,
    w: Tensor | None,
    x: Tensor | None,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
) -> Tensor:
    given = [tensor for tensor in (g, w, x) if tensor is not None]
    dtype = given[0].dtype
    wide = reference.compute_dtype(dtype)
    g, w, x = (None if tensor is None else _in_memory(tensor.to(wide)).contiguous() for tensor in (g, w, x))
    examples = (x if x is not None else g).shape[0]  # type: ignore[union-attr]
    outputs = w.shape[0] if w is not None else g.shape[1]  # type: ignore[union-attr]
    inputs = (x if x is not None else w).shape[1]  # type: ignore[union-attr]
    shape = {
        "output": (examples, outputs),
        "input gradient": (examples, inputs),
        "weight gradient": (outputs, inputs),
    }[contraction]
    result = torch.empty(shape, dtype=wide)
    law = prepare(kind, tuple(params), scale)
    call = _DropConnect(
        *(None if tensor is None else tensor.data_ptr() for tensor in (g, w, x)),
        result.data_ptr(),
        TYPES[wide],
        _CONTRACTIONS[contraction],
        examples,
        outputs,
        inputs,
        reference.pitch(inputs, law.bits),
        seed.item(),
        reference.STREAM_MASK,
        torch.get_num_threads(),
        law,
    )
    library().contdrop_dropconnect(ctypes.byref(call))
    return result.to(dtype)
