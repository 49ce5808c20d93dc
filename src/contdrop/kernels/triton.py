# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803, N806, RET505
"""Triton back end: kernels for GPUs, with the numbers of the reference back end.

Tested in Triton's interpreter only (``TRITON_INTERPRET=1``, tensors on the CPU), **not yet on a GPU**. The tests also
compile every kernel for one, which checks types and shapes but runs nothing.

The functions are those of :mod:`contdrop.kernels.reference`, which also defines the random numbers, and whose
per-example DropConnect is used as it is. Masks of elementwise dropout are never stored: each kernel computes them from
the seed and the number of the element, in one of two ways:

- whole groups, for contiguous tensors without shared axes: a tile covers groups of sixteen blocks, and uses all of a
  block (``_of_groups``);
- single elements, for strides and shared axes: one Philox for every element.

Shapes are powers of two in Triton, but a group has 96 elements of 21 bits: these come in groups of 128 columns, of
which the last 32 belong to nobody (``_columns``).

Random bits are those of the reference; mask values agree to 1e-6. The normal quantile is computed in float32 even for
float64 tensors, as in the native back end.

Kernels cannot share a list of parameters. This is the only module that imports triton.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor
from torch.torch_version import TorchVersion

from ..laws import KernelLaw, check_kind
from . import reference
from .reference import dropconnect as dropconnect

# Older ones take no tuples as arguments of kernels.
if TorchVersion(triton.__version__) < "3.3":
    raise ImportError(f"it needs Triton 3.3 or later, which torch 2.7 brings, and found {triton.__version__}")

_ROUNDS = tl.constexpr(reference.ROUNDS)
# Elements that a program of 128 threads works on. Strides need registers, so there a thread has fewer.
_TILE = 1024
_STRIDED_TILE = 256
_MAX_AXES = 5
# Fused operations are written out where they are wanted: no compiler's choice comes between interpreter and GPU.
_OPTIONS = {"enable_fp_fusion": False}

# Random words and mask values. Capital letters are known when a kernel is compiled. Elements of 21 bits are numbers
# that a block makes, others are fields of words: see the reference. Branches that return need their ``else``: the
# compiler wants one type from all that comes after an ``if``.


@triton.jit
def _philox(seed, stream, block):
    """Return the four outputs of Philox for 64-bit numbers of blocks."""
    return tl.philox(seed, (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32), stream, 0, _ROUNDS)


@triton.jit
def _joined(first, second):
    """Return the number made of the unused bits of two words."""
    return ((first & 0x7FF) << 10) | (second & 0x3FF)


@triton.jit
def _by_output(first, second, third, fourth):
    """Join four outputs of blocks: output 2 i + j is at [..., i, j]."""
    return tl.join(tl.join(first, third), tl.join(second, fourth))


@triton.jit
def _of_groups(seed, stream, group, BITS: tl.constexpr):
    """Return the elements of groups [n], in the order of ``_columns``."""
    a, b, c, d = _philox(seed, stream, 16 * group[:, None] + tl.arange(0, 16)[None, :])
    if BITS == 21:
        words = _by_output(a >> 11, b >> 11, c >> 11, d >> 11)
        fifth, sixth = _joined(a, b), _joined(c, d)
        rest = _by_output(fifth, sixth, fifth, sixth)  # the last two are for columns that do not count
        return tl.ravel(tl.join(words, rest).permute(0, 4, 2, 3, 1))
    else:
        return _fields(_by_output(a, b, c, d).permute(0, 2, 3, 1).reshape(4 * group.shape[0], 16), BITS)


@triton.jit
def _pick(outputs, number):
    """Select one of four outputs by its number modulo 4."""
    number = number & 3
    return tl.where(
        number < 2, tl.where(number == 0, outputs[0], outputs[1]), tl.where(number == 2, outputs[2], outputs[3])
    )


@triton.jit
def _fields(words, BITS: tl.constexpr):
    """Return the elements of words [n, 16], in their order."""
    if BITS == 32:
        return tl.ravel(words)
    else:
        shift = BITS * tl.arange(0, 32 // BITS)
        return tl.ravel((words[:, None, :] >> shift[None, :, None]) & ((1 << BITS) - 1))


@triton.jit
def _columns(COUNT: tl.constexpr, BITS: tl.constexpr):
    """Return the element of each of COUNT columns that begin with a group, and whether it is valid."""
    column = tl.arange(0, COUNT)
    if BITS == 21:
        return column // 128 * 96 + column % 128, column % 128 < 96
    else:
        return column, column >= 0


@triton.jit
def _element(seed, stream, element, BITS: tl.constexpr):
    """Return single elements."""
    if BITS == 21:
        slot = (element % 96) // 16
        a, b, c, d = _philox(seed, stream, 16 * (element // 96) + element % 16)
        rest = tl.where(slot == 4, _joined(a, b), _joined(c, d))
        return tl.where(slot < 4, _pick((a, b, c, d), slot) >> 11, rest)
    else:
        RUN: tl.constexpr = 16 * (32 // BITS)
        run, slot = element // RUN, (element % RUN) // 16
        word = _pick(_philox(seed, stream, 16 * (run >> 2) + element % 16), run)
        if BITS == 32:
            return word
        else:
            return (word >> (BITS * slot).to(tl.uint32)) & ((1 << BITS) - 1)


@triton.jit
def _uniform(number):
    """Return (2 e + 1) / 2^22 in float32, exactly."""
    return (2 * number.to(tl.int32) + 1).to(tl.float32) * 2.0**-22


@triton.jit
def _quantile(u):
    """Compute the standard normal quantile of u, in float32.

    With v = u - 1/2 and t = -log(4 u (1 - u)), it is v times a rational function of t: the fit for the far tails
    in ``native/values.h``, where it is explained. Over all 2^21 values of u the error is at most 1.2e-6, and
    below 6e-7 where the result is within 2.5. The fused operations and the rounded division make it the same on every
    machine, but for the logarithm's last bit.
    """
    t = -tl.log(4.0 * (u * (1.0 - u)))  # u and 1 - u are exact
    top = tl.fma(t, 6.845029514853869e-05, 0.0018516205320840565)
    top = tl.fma(t, top, 0.022196474192882495)
    top = tl.fma(t, top, 0.16984079641734212)
    top = tl.fma(t, top, 0.8710541659783915)
    top = tl.fma(t, top, 2.506628688613941)
    bottom = tl.fma(t, 1.2787585690064028e-06, 0.00018007063155757382)
    bottom = tl.fma(t, bottom, 0.0019270286384997198)
    bottom = tl.fma(t, bottom, 0.032283207747469365)
    bottom = tl.fma(t, bottom, 0.08570257460314433)
    bottom = tl.fma(t, bottom, 1.0)
    return (u - 0.5) * tl.div_rn(top, bottom)


@triton.jit
def _mask(bits, keep, threshold, offset, gain, low, high, factor, KIND: tl.constexpr, WIDE: tl.constexpr):
    """Compute mask values in the type WIDE; only the kind "where" uses ``keep``. For the numbers see ``_law``."""
    # tl.full, because these are typed scalars on a GPU but plain Python numbers in the interpreter.
    times = tl.full((), factor, WIDE)
    if KIND == "bernoulli":
        return tl.where(bits.to(tl.int64) < threshold, times, 0.0)
    u = _uniform(bits)
    if KIND == "where":
        return (u < keep).to(WIDE)
    start, slope = tl.full((), offset, WIDE), tl.full((), gain, WIDE)
    if KIND == "uniform":
        return tl.fma(u.to(WIDE), slope, start) * times
    value = tl.fma(_quantile(u).to(WIDE), slope, start)
    value = tl.minimum(tl.maximum(value, tl.full((), low, WIDE)), tl.full((), high, WIDE))
    return value * times


# Elementwise: x times mask.

# These must not be compiled into a kernel where they happen to be 1.
_LAW_VALUES = ("seed", "stream", "threshold", "first")


@triton.jit(do_not_specialize=_LAW_VALUES)
def _flat(
    x_ptr,
    keep_ptr,
    out_ptr,
    count: tl.int64,
    seed: tl.int64,
    stream,
    threshold: tl.int64,
    offset: tl.float64,
    gain: tl.float64,
    low: tl.float64,
    high: tl.float64,
    factor: tl.float64,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Multiply contiguous tensors: element i of the mask belongs to element i of x. A tile is a number of groups."""
    GROUP: tl.constexpr = 96 if BITS == 21 else 64 * (32 // BITS)
    SIZE: tl.constexpr = GROUPS * (128 if BITS == 21 else GROUP)
    tile = tl.program_id(0).to(tl.int64)
    column, counts = _columns(SIZE, BITS)
    element = tile * (GROUPS * GROUP) + column
    inside = counts & (element < count)
    bits = _of_groups(seed, stream, tile * GROUPS + tl.arange(0, GROUPS), BITS)
    keep = 0.0
    if KIND == "where":
        keep = tl.load(keep_ptr + element, mask=inside, other=0.0)
    value = _mask(bits, keep, threshold, offset, gain, low, high, factor, KIND, WIDE)
    value *= tl.load(x_ptr + element, mask=inside, other=0.0).to(WIDE)
    tl.store(out_ptr + element, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_LAW_VALUES)
def _strided(
    x_ptr,
    keep_ptr,
    out_ptr,
    count: tl.int64,
    sizes,
    x_strides,
    keep_strides,
    out_strides,
    mask_strides,
    first: tl.int64,
    seed: tl.int64,
    stream,
    threshold: tl.int64,
    offset: tl.float64,
    gain: tl.float64,
    low: tl.float64,
    high: tl.float64,
    factor: tl.float64,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    AXES: tl.constexpr,
    INDEX: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Multiply tensors of any strides by a mask whose first element has number ``first``.

    The mask's stride is 0 along shared axes. Axes run from the fastest to the slowest.

    INDEX is the type that counts the elements of x: division is slow in 64 bits.
    """
    place = tl.program_id(0).to(INDEX) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    x_at = tl.zeros((SIZE,), tl.int64)
    keep_at, out_at, element = x_at, x_at, x_at + first
    for axis in tl.static_range(AXES):
        i = (place % sizes[axis]).to(tl.int64)
        place = place // sizes[axis]
        x_at += i * x_strides[axis]
        keep_at += i * keep_strides[axis]
        out_at += i * out_strides[axis]
        element += i * mask_strides[axis]
    bits = _element(seed, stream, element, BITS)
    keep = 0.0
    if KIND == "where":
        keep = tl.load(keep_ptr + keep_at, mask=inside, other=0.0)
    value = _mask(bits, keep, threshold, offset, gain, low, high, factor, KIND, WIDE)
    value *= tl.load(x_ptr + x_at, mask=inside, other=0.0).to(WIDE)
    tl.store(out_ptr + out_at, value.to(out_ptr.dtype.element_ty), mask=inside)


# Calls.

_INTERPRETED = not isinstance(_flat, triton.JITFunction)


def _check_device(device: torch.device) -> None:
    if device.type != "cuda" and not (_INTERPRETED and device.type == "cpu"):
        raise RuntimeError(
            "contdrop: the triton back end runs on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; "
            f"got a tensor on {device}"
        )


def _in_memory(x: Tensor) -> Tensor:
    """Return the tensor with its values in memory: torch represents zeros and negation lazily."""
    _check_device(x.device)
    return x.resolve_neg() if x.data_ptr() else torch.zeros_like(x)


def _on(device: torch.device) -> Any:
    """Make the tensors' GPU the current one, on which Triton launches."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


@functools.lru_cache(maxsize=256)
def _law(kind: str, params: tuple[float, ...], factor: float) -> dict[str, Any]:
    """Return the arguments of ``_mask`` for a law, and the options of the compiler.

    A Bernoulli value is ``factor`` if its bits are less than ``threshold``. The others are ``offset + gain * z``, then
    clipped to [low, high] if Gaussian, then times ``factor``; z is uniform or standard normal.
    """
    bits, threshold, offset, gain, low, high = reference.NUMBER_BITS, 0, 0.0, 0.0, 0.0, 0.0
    if kind == "bernoulli":
        bits, threshold = reference.bernoulli_bits(params[0])
    elif kind == "uniform":
        offset, gain = params[0], params[1] - params[0]
    elif kind == "gaussian":
        offset, gain, low, high = params
    names = ("offset", "gain", "low", "high", "factor")
    numbers = dict(zip(names, map(float, (offset, gain, low, high, factor))))
    return {"threshold": threshold, **numbers, "KIND": kind, "BITS": bits, **_OPTIONS}


def dropout(
    x: Tensor, seed: Tensor, law: KernelLaw, shared_axes: Sequence[int], stream: int, window: Sequence[int] = ()
) -> Tensor:
    check_kind(law.kind)
    x = _in_memory(x)
    out = torch.empty_like(x)
    if _elementwise(x, x, out, seed, _law(*law[:3]), shared_axes, stream, window):
        return out
    return reference.dropout(x, seed, law, shared_axes, stream, window)


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    x, keep = _in_memory(x), _in_memory(keep)
    out = torch.empty_like(x)
    law = _law("where", (), 1.0)
    if _elementwise(x, keep.expand(x.shape), out, seed, law, shared_axes, reference.STREAM_MASK, window):
        return out
    return reference.keep_where(x, seed, keep, shared_axes, window)


def _elementwise(
    x: Tensor,
    keep: Tensor,
    out: Tensor,
    seed: Tensor,
    law: dict[str, Any],
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int],
) -> bool:
    """Fill ``out`` with x times mask; return False if the layout takes too many axes.

    A batch of seeds is a loop. Without a ``keep``, x stands in for it.
    """
    if seed.dim():
        inner = [axis - 1 for axis in shared_axes]
        return all(_elementwise(*part, law, inner, stream, window) for part in zip(x, keep, out, seed))
    count = x.numel()
    if count == 0:
        return True
    wide = tl.float64 if reference.compute_dtype(x.dtype) == torch.float64 else tl.float32
    arguments = {**law, "seed": seed.item(), "stream": stream, "WIDE": wide}
    if not shared_axes and not window and all(tensor.is_contiguous() for tensor in (x, keep, out)):
        group = reference.per_group(law["BITS"])
        groups = max(1, _TILE // triton.next_power_of_2(group))
        with _on(x.device):
            _flat[(triton.cdiv(count, groups * group),)](x, keep, out, count, **arguments, GROUPS=groups)
        return True
    first, mask_strides = reference.mask_layout(x.shape, shared_axes, window)
    axes = _merged_axes(x, keep, out, mask_strides)
    if len(axes) > _MAX_AXES:
        return False
    tiles = triton.cdiv(count, _STRIDED_TILE)
    index = tl.int32 if tiles * _STRIDED_TILE < 2**31 else tl.int64
    options = {"AXES": len(axes), "INDEX": index, "SIZE": _STRIDED_TILE}
    with _on(x.device):
        _strided[(tiles,)](x, keep, out, count, *map(tuple, zip(*axes)), first, **arguments, **options)
    return True


def _merged_axes(x: Tensor, keep: Tensor, out: Tensor, mask_strides: Sequence[int]) -> list[list[int]]:
    """Describe the tensors and the mask by as few axes as possible, the one fastest in the result's memory first.

    An axis is its size, and its strides in x, keep, the result and the mask.
    """
    axes = [
        [x.shape[axis], *(tensor.stride(axis) for tensor in (x, keep, out)), mask_strides[axis]]
        for axis in reversed(range(x.dim()))
        if x.shape[axis] > 1
    ]
    axes.sort(key=operator.itemgetter(3))
    merged: list[list[int]] = []
    for size, *strides in axes:
        if merged and all(stride == merged[-1][0] * inner for stride, inner in zip(strides, merged[-1][1:])):
            merged[-1][0] *= size
        else:
            merged.append([size, *strides])
    return merged or [[1, 0, 0, 0, 0]]
