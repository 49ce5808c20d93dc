# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803, N806, RET505
"""Triton back end: kernels for GPUs, with the numbers of the reference back end.

Tested in Triton's interpreter only (``TRITON_INTERPRET=1``, tensors on the CPU), **not yet on a GPU**. The tests also
compile every kernel for one, which checks types and shapes but runs nothing.

The functions are those of :mod:`contdrop.kernels.reference`, which also defines the random numbers. Masks are never
stored: each kernel computes them from the seed and the number of the element, in one of three ways, fastest first:

- whole groups: a tile covers groups of sixteen blocks, and uses all of a block (``_of_groups``). Contiguous tensors
  without shared axes, and DropConnect with elements of 21 bits, whose rows begin with a group;
- whole runs: one Philox for every word, and all its elements from it. DropConnect with other elements;
- single elements: one Philox for every element. Strides and shared axes.

Shapes are powers of two in Triton, but a group has 96 elements of 21 bits: these come in groups of 128 columns, of
which the last 32 belong to nobody (``_columns``).

Random bits are those of the reference; mask values agree to 1e-6. The normal quantile is computed in float32 even for
float64 tensors, as in the native back end.

The file is long because kernels cannot share a list of parameters, and it is the only one that imports triton.
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
def _of_runs(seed, stream, run, BITS: tl.constexpr):
    """Return the elements of runs [n], in their order."""
    outputs = _philox(seed, stream, (16 * (run >> 2))[:, None] + tl.arange(0, 16)[None, :])
    return _fields(_pick(outputs, run[:, None]), BITS)


@triton.jit
def _fields(words, BITS: tl.constexpr):
    """Return the elements of runs [n, 16] of words, in their order."""
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

_LAW_VALUES = (
    "seed",
    "stream",
    "threshold",
    "first",
    "first_example",
)  # must not be compiled into a kernel where they happen to be 1


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


# Per-example DropConnect. A row is the pair of an example and an output; a tile is ROWS of them by RUNS runs of inputs,
# or by RUNS groups where elements have 21 bits. No two programs add to the same place, so the order of additions is
# always the same.


@triton.jit
def _rows(
    row,
    first_run,
    runs,
    seed,
    stream,
    threshold,
    offset,
    gain,
    low,
    high,
    factor,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute mask values [rows, COLUMNS] of RUNS runs or groups from ``first_run`` on, in rows of ``runs`` of them."""
    ROWS: tl.constexpr = row.shape[0]
    start = row * runs + first_run
    run = (start[:, None] + tl.arange(0, RUNS)[None, :]).reshape(ROWS * RUNS)
    bits = _of_groups(seed, stream, run, BITS) if BITS == 21 else _of_runs(seed, stream, run, BITS)
    bits = bits.reshape(ROWS, COLUMNS)
    return _mask(bits, 0.0, threshold, offset, gain, low, high, factor, KIND, WIDE)


@triton.jit(do_not_specialize=_LAW_VALUES)
def _output(
    x_ptr,
    w_ptr,
    y_ptr,
    outputs: tl.int64,
    inputs: tl.int64,
    runs: tl.int64,
    first_example: tl.int64,
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
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute y[n, o]: a program takes one example and ROWS outputs, and goes through the inputs."""
    RUN: tl.constexpr = 96 if BITS == 21 else 16 * (32 // BITS)
    column, counts = _columns(COLUMNS, BITS)
    program = tl.program_id(0).to(tl.int64)
    tiles = (outputs + ROWS - 1) // ROWS
    n = program // tiles
    o = program % tiles * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first_run in range(0, runs, RUNS):
        i = first_run * RUN + column
        mask = _rows(
            (first_example + n) * outputs + o, first_run, runs, seed, stream, threshold, offset, gain, low, high,
            factor, KIND, BITS, RUNS, COLUMNS, WIDE,
        )  # fmt: skip
        present = counts & (i < inputs)
        inside = (o < outputs)[:, None] & present[None, :]
        w = tl.load(w_ptr + o[:, None] * inputs + i[None, :], mask=inside, other=0.0).to(WIDE)
        x = tl.load(x_ptr + n * inputs + i, mask=present, other=0.0).to(WIDE)
        total = tl.fma(mask * w, x[None, :], total)
    tl.store(y_ptr + n * outputs + o, tl.sum(total, 1).to(y_ptr.dtype.element_ty), mask=o < outputs)


@triton.jit(do_not_specialize=_LAW_VALUES)
def _input_gradient(
    g_ptr,
    w_ptr,
    result_ptr,
    outputs: tl.int64,
    inputs: tl.int64,
    runs: tl.int64,
    first_example: tl.int64,
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
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute the gradient by x[n, i]: a program takes one example and a tile of inputs, and loops over outputs."""
    RUN: tl.constexpr = 96 if BITS == 21 else 16 * (32 // BITS)
    column, counts = _columns(COLUMNS, BITS)
    program = tl.program_id(0).to(tl.int64)
    tiles = (runs + RUNS - 1) // RUNS
    n = program // tiles
    first_run = program % tiles * RUNS
    i = first_run * RUN + column
    present = counts & (i < inputs)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for first_output in range(0, outputs, ROWS):
        o = first_output + tl.arange(0, ROWS).to(tl.int64)
        mask = _rows(
            (first_example + n) * outputs + o, first_run, runs, seed, stream, threshold, offset, gain, low, high,
            factor, KIND, BITS, RUNS, COLUMNS, WIDE,
        )  # fmt: skip
        inside = (o < outputs)[:, None] & present[None, :]
        w = tl.load(w_ptr + o[:, None] * inputs + i[None, :], mask=inside, other=0.0).to(WIDE)
        g = tl.load(g_ptr + n * outputs + o, mask=o < outputs, other=0.0).to(WIDE)
        total = tl.fma(mask * w, g[:, None], total)
    tl.store(result_ptr + n * inputs + i, tl.sum(total, 0).to(result_ptr.dtype.element_ty), mask=present)


@triton.jit(do_not_specialize=_LAW_VALUES)
def _weight_gradient(
    g_ptr,
    x_ptr,
    result_ptr,
    examples: tl.int64,
    outputs: tl.int64,
    inputs: tl.int64,
    runs: tl.int64,
    first_example: tl.int64,
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
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute the gradient by w[o, i]: a program takes a tile of weights, and goes through the examples."""
    RUN: tl.constexpr = 96 if BITS == 21 else 16 * (32 // BITS)
    column, counts = _columns(COLUMNS, BITS)
    program = tl.program_id(0).to(tl.int64)
    tiles = (runs + RUNS - 1) // RUNS
    first_run = program % tiles * RUNS
    o = program // tiles * ROWS + tl.arange(0, ROWS)
    i = first_run * RUN + column
    present = counts & (i < inputs)
    total = tl.zeros((ROWS, COLUMNS), WIDE)
    for n in range(examples):
        mask = _rows(
            (first_example + n) * outputs + o, first_run, runs, seed, stream, threshold, offset, gain, low, high,
            factor, KIND, BITS, RUNS, COLUMNS, WIDE,
        )  # fmt: skip
        g = tl.load(g_ptr + n * outputs + o, mask=o < outputs, other=0.0).to(WIDE)
        x = tl.load(x_ptr + n * inputs + i, mask=present, other=0.0).to(WIDE)
        total = tl.fma(mask, g[:, None] * x[None, :], total)
    inside = (o < outputs)[:, None] & present[None, :]
    place = o[:, None] * inputs + i[None, :]
    tl.store(result_ptr + place, total.to(result_ptr.dtype.element_ty), mask=inside)


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
    numbers = {"offset": offset, "gain": gain, "low": low, "high": high, "factor": factor}
    numbers = {name: float(value) for name, value in numbers.items()}
    return {"threshold": threshold, **numbers, "KIND": kind, "BITS": bits, **_OPTIONS}


def _wide(dtype: torch.dtype) -> Any:
    return tl.float64 if reference.compute_dtype(dtype) == torch.float64 else tl.float32


def dropout(
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    shared_axes: Sequence[int],
    stream: int,
    window: Sequence[int] = (),
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
    arguments = {**law, "seed": seed.item(), "stream": stream, "WIDE": _wide(x.dtype)}
    if not shared_axes and not window and all(tensor.is_contiguous() for tensor in (x, keep, out)):
        _launch_flat(x, keep, out, count, arguments)
        return True
    first, mask_strides = reference.mask_layout(x.shape, shared_axes, window)
    axes = _merged_axes(x, keep, out, mask_strides)
    if len(axes) > _MAX_AXES:
        return False
    tiles = triton.cdiv(count, _STRIDED_TILE)
    index = tl.int32 if tiles * _STRIDED_TILE < 2**31 else tl.int64
    with _on(x.device):
        _strided[(tiles,)](
            x,
            keep,
            out,
            count,
            *map(tuple, zip(*axes)),
            first,
            **arguments,
            AXES=len(axes),
            INDEX=index,
            SIZE=_STRIDED_TILE,
        )
    return True


def _launch_flat(x: Tensor, keep: Tensor | None, out: Tensor, count: int, arguments: dict[str, Any]) -> None:
    group = reference.per_group(arguments["BITS"])
    groups = max(1, _TILE // _power_of_two(group))
    with _on(out.device):
        _flat[(triton.cdiv(count, groups * group),)](x, keep, out, count, **arguments, GROUPS=groups)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two of at least ``count``, the columns that Triton needs."""
    return 1 << (count - 1).bit_length()


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


def dropconnect(
    x: Tensor,
    weight: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    x, weight = _in_memory(x), _in_memory(weight)
    result = x.new_empty(x.shape[0], weight.shape[0])
    tile = _tile(result, weight.shape[1], seed, law, first_example)
    programs = x.shape[0] * triton.cdiv(weight.shape[0], tile["ROWS"])
    if result.numel():
        with _on(x.device):
            _output[(programs,)](x.contiguous(), weight.contiguous(), result, *weight.shape, **tile)
    return result


def dropconnect_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    gradient, weight = _in_memory(gradient), _in_memory(weight)
    result = gradient.new_empty(gradient.shape[0], weight.shape[1])
    tile = _tile(result, weight.shape[1], seed, law, first_example)
    programs = gradient.shape[0] * triton.cdiv(tile["runs"], tile["RUNS"])
    if result.numel():
        with _on(gradient.device):
            _input_gradient[(programs,)](gradient.contiguous(), weight.contiguous(), result, *weight.shape, **tile)
    return result


def dropconnect_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> Tensor:
    gradient, x = _in_memory(gradient), _in_memory(x)
    result = x.new_empty(gradient.shape[1], x.shape[1])
    tile = _tile(result, x.shape[1], seed, law, first_example)
    programs = triton.cdiv(gradient.shape[1], tile["ROWS"]) * triton.cdiv(tile["runs"], tile["RUNS"])
    if result.numel():
        with _on(x.device):
            _weight_gradient[(programs,)](
                gradient.contiguous(), x.contiguous(), result, x.shape[0], *result.shape, **tile
            )
    return result


def dropconnect_gradients(
    gradient: Tensor,
    weight: Tensor,
    x: Tensor,
    seed: Tensor,
    law: KernelLaw,
    first_example: int = 0,
) -> tuple[Tensor, Tensor]:
    arguments = (seed, law, first_example)
    by_x = dropconnect_input_gradient(gradient, weight, *arguments)
    return by_x, dropconnect_weight_gradient(gradient, x, *arguments)


def _tile(
    result: Tensor,
    inputs: int,
    seed: Tensor,
    law: KernelLaw,
    first_example: int,
) -> dict[str, Any]:
    """Return the common arguments of the DropConnect kernels: a tile has about eight rows of 128 columns."""
    arguments = _law(*law[:3])
    run = reference.pitch(1, arguments["BITS"])
    runs = reference.pitch(inputs, arguments["BITS"]) // run
    columns = _power_of_two(run)
    runs_at_once = max(1, 128 // columns)
    return {
        **arguments,
        "seed": seed.item(),
        "stream": reference.STREAM_MASK,
        "runs": runs,
        "first_example": first_example,
        "ROWS": max(1, _TILE // (runs_at_once * columns)),
        "RUNS": runs_at_once,
        "COLUMNS": runs_at_once * columns,
        "WIDE": _wide(result.dtype),
    }
