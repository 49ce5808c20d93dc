"""Native back end: C++ kernels for the CPU, with the numbers of the reference back end.

The library is plain C++ behind a C interface and uses the threads of the OpenMP library that torch has loaded. The
functions are those of :mod:`contdrop.kernels.reference`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...laws import KINDS, KernelLaw, check_kind
from .. import reference
from .loader import MAX_AXES, DropConnect, Dropout, KeepWhere, Law
from .loader import detail as detail
from .loader import library as library
from .loader import use_instructions as use_instructions

TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
# Numbers of contractions by what they compute: outputs g, or gradients by the inputs x, the weights w, or both.
CONTRACTIONS = {"g": 0, "x": 1, "w": 2, "xw": 3}


@functools.lru_cache(maxsize=256)
def prepare(kind: str, params: tuple[float, ...], factor: float) -> Law:
    """Return the structure that the compiled code takes for a law."""
    check_kind(kind)
    number = KINDS.index(kind)
    if kind == "bernoulli":
        return Law(number, *reference.bernoulli_bits(params[0]), 0.0, factor, 0.0, 0.0, 0.0)
    if kind == "uniform":
        low, high = params
        return Law(number, reference.NUMBER_BITS, 0, low * factor, (high - low) * factor, 0.0, 0.0, 0.0)
    mu, sigma, low, high = params
    if sigma == 0:  # one value, which every element keeps
        return Law(KINDS.index("bernoulli"), 1, 2, 0.0, min(max(mu, low), high) * factor, 0.0, 0.0, 0.0)
    reach = max(abs(low - mu), abs(high - mu)) / sigma
    # A negative factor reverses the interval; a factor of 0 leaves nothing of an infinite one.
    bounds = sorted((low * factor, high * factor)) if factor else (0.0, 0.0)
    return Law(number, reference.NUMBER_BITS, 0, mu * factor, sigma * factor, *bounds, reach)


def dropout(
    x: Tensor, seed: Tensor, law: KernelLaw, shared_axes: Sequence[int], stream: int, window: Sequence[int] = ()
) -> Tensor:
    if seed.dim():  # the leading axes of x are those of the seed, each entry with a mask of its own
        own = [axis - seed.dim() for axis in shared_axes]
        pairs = zip(x.flatten(0, seed.dim() - 1), seed.flatten())
        parts = [dropout(part, each, law, own, stream, window) for part, each in pairs]
        stacked = torch.stack(parts) if parts else x.new_empty(0, *x.shape[seed.dim() :])
        return torch.empty_like(x).copy_(stacked.view(x.shape))
    x = _in_memory(x)
    out = torch.empty_like(x)
    count = x.numel()
    if count == 0:
        reference.mask_layout(x.shape, shared_axes, window)  # checks the window
        return out
    prepared = prepare(*law[:3])
    threads = torch.get_num_threads()
    if not shared_axes and not window and x.is_contiguous():
        pointers = x.data_ptr(), out.data_ptr()
        address = ctypes.addressof(prepared)
        library().contdrop_dropout_row(*pointers, TYPES[x.dtype], count, seed.item(), stream, threads, address)
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


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    x, keep = _in_memory(x), _in_memory(keep)
    stream = reference.STREAM_MASK
    alike = keep.shape == x.shape and keep.dtype == x.dtype and x.is_contiguous() and keep.is_contiguous()
    if seed.dim() or shared_axes or window or not alike:
        ones = torch.ones_like(x, dtype=reference.compute_dtype(x.dtype))
        u = dropout(ones, seed, KernelLaw("uniform", (0.0, 1.0), 1.0), shared_axes, stream, window)
        return reference.multiply(x, (u < keep).to(u.dtype))
    out = torch.empty_like(x)
    pointers = x.data_ptr(), keep.data_ptr(), out.data_ptr()
    call = KeepWhere(*pointers, TYPES[x.dtype], torch.get_num_threads(), x.numel(), seed.item(), stream)
    library().contdrop_keep_where(ctypes.byref(call))
    return out


def dropconnect(
    wanted: str, matrices: Mapping[str, Tensor], seed: Tensor, law: KernelLaw, first_example: int = 0
) -> list[Tensor]:
    sizes = reference.sizes_of(matrices)
    shapes = {name: tuple(sizes[axis] for axis in axes) for name, axes in reference.AXES.items()}
    dtype = next(iter(matrices.values())).dtype
    # The kernel takes addresses and would exceed the memory of matrices that do not fit.
    if any(matrix.dtype != dtype for matrix in matrices.values()):
        types = " and ".join(str(matrix.dtype) for matrix in matrices.values())
        raise RuntimeError(f"dropconnect: expected matrices of one type, got {types}")
    if any(matrix.shape != shapes[name] for name, matrix in matrices.items()):
        got = " and ".join(str(tuple(matrix.shape)) for matrix in matrices.values())
        raise RuntimeError(f"dropconnect: expected matrices whose sizes fit together, got {got}")
    wide = reference.compute_dtype(dtype)
    operands = {name: _in_memory(matrix.to(wide)).contiguous() for name, matrix in matrices.items()}
    results = [torch.empty(shapes[name], dtype=wide, device="cpu") for name in wanted]
    prepared = prepare(*law[:3])
    call = DropConnect(
        *(operands[name].data_ptr() if name in operands else None for name in shapes),
        results[0].data_ptr(),
        results[1].data_ptr() if len(results) > 1 else None,
        TYPES[wide],
        CONTRACTIONS[wanted],
        *(sizes[axis] for axis in "noi"),
        reference.pitch(sizes["i"], prepared.bits),
        first_example,
        seed.item(),
        reference.STREAM_MASK,
        torch.get_num_threads(),
        prepared,
    )
    library().contdrop_dropconnect(ctypes.byref(call))
    return [result.to(dtype) for result in results]
