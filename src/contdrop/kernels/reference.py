"""The reference back end: plain torch, and the definition of every random number in the package.

**Words.** Random bits come from Philox-4x32 with 7 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011), the fewest rounds that pass BigCrush there. The key is the call's 64-bit seed, low half
first. The counter is (block, low half; block, high half; stream; 0). Streams keep apart the different things one call
may draw: see ``STREAM_*``.

**Order.** The words of a call are numbered 0, 1, 2, ... so that a vector unit needs no shuffles: word k comes from
block ``16 * (k // 64) + k % 16`` and is that block's output number ``(k // 16) % 4``.

**Elements.** Elements are numbered in the row-major order of the mask's own shape, whatever the layout of the tensor in
memory. An element takes b bits, b a power of two up to 32. Element i lies in a run of 16 words that holds 16 * n
elements, n to a word; with r its place in the run, its word is number ``r % 16`` of the run, and its slot ``r // 16``.
Up to b = 16 there are n = 32 / b elements to a word, and slot s is the bits ``b * s`` and up.

**Numbers.** With b = 32 there are n = 2: half a word is enough to make a number of 32 bits if its lower half, which
hardly matters, is borrowed. With w[0] to w[3] the outputs of a block, the elements of word w[j] are

    slot 0: w[j]                      ^  (w[j + 1] >> 16)
    slot 1: w[j] with halves swapped  ^  (w[j - 1] >> 16)

with j + 1 and j - 1 modulo 4. The upper half of each is a half of w[j] of its own. The lower half is the exclusive or
of two halves that are the upper halves of two others. So every number is uniform, and every two are independent, to
the last of their 32 bits: means, variances and covariances of masks are what they would be with a word for each. Only
three or more numbers of a block know of each other, below a 2^-16 of their range.

**Values.** A continuous law turns such a number e into ``(2 * (e >> 10) + 1) / 2**23``, which is exact in float32, in
the open interval (0, 1), and symmetric about one half. So a mask is the same in every type, but for rounding. A
Bernoulli law with keep = t / 2^b keeps the element if its b bits are less than t, with the smallest b up to 16 for
which t is whole: one bit for keep = 0.5. If there is none, b is 32 and t is rounded.

**Per-example DropConnect.** The mask of example n, output o, input i is element ``(n * out + o) * pitch + i``, where
the pitch is the number of inputs rounded up to whole runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROUNDS = 7
STREAM_MASK = 0  # mask values of activations or weights
STREAM_BIAS = 1  # mask values of a bias beside masked weights
STREAM_NORMAL = 2  # standard normal numbers

_LOW_32 = 0xFFFFFFFF
# Largest number of mask elements that DropConnect materialises at once.
_CHUNK = 1 << 22


def philox(counter: Sequence[Tensor], key: Sequence[Tensor], rounds: int = ROUNDS) -> list[Tensor]:
    """Philox-4x32 on int64 tensors that hold unsigned 32-bit numbers; everything broadcasts."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        # The product of two 32-bit numbers wraps around in int64, but its 64 bits are the right ones.
        product0 = c0 * 0xD2511F53
        product1 = c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (product1 >> 32 & _LOW_32) ^ c1 ^ k0,
            product1 & _LOW_32,
            (product0 >> 32 & _LOW_32) ^ c3 ^ k1,
            product0 & _LOW_32,
        )
        k0 = k0 + 0x9E3779B9 & _LOW_32
        k1 = k1 + 0xBB67AE85 & _LOW_32
    return [c0, c1, c2, c3]


def words(seed: Tensor, first_group: int, groups: int, stream: int) -> Tensor:
    """Words ``64 * first_group`` and up, as int64 of shape ``[*seed.shape, 64 * groups]``."""
    group = torch.arange(first_group, first_group + groups, device=seed.device)
    block = (16 * group)[:, None] + torch.arange(16, device=seed.device)
    key = seed[..., None, None]
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    counter = (block & _LOW_32, block >> 32 & _LOW_32, zero + stream, zero)
    outputs = philox(counter, (key & _LOW_32, key >> 32 & _LOW_32))
    shape = (*seed.shape, groups, 16)
    return torch.stack([output.expand(shape) for output in outputs], dim=-2).flatten(-3)


def elements(seed: Tensor, first: int, count: int, bits: int, stream: int) -> Tensor:
    """The bits of elements ``first`` to ``first + count - 1``, as int64 of shape ``[*seed.shape, count]``."""
    per_group = 64 * per_word(bits)
    first_group, last_group = first // per_group, -(-(first + count) // per_group)
    runs = words(seed, first_group, last_group - first_group, stream).unflatten(-1, (-1, 4, 16))
    if bits == 32:
        slots = [runs ^ (runs.roll(-1, -2) >> 16), _swap_halves(runs) ^ (runs.roll(1, -2) >> 16)]
        drawn = torch.stack(slots, dim=-2)
    else:
        shift = torch.arange(0, 32, bits, device=seed.device)
        drawn = runs[..., None, :] >> shift[:, None] & (1 << bits) - 1
    start = first - first_group * per_group
    return drawn.flatten(-4)[..., start : start + count]


def per_word(bits: int) -> int:
    """The number of elements that one word serves."""
    return 2 if bits == 32 else 32 // bits


def _swap_halves(word: Tensor) -> Tensor:
    return word << 16 & _LOW_32 | word >> 16


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which masks are drawn and multiplied for a tensor of this type; the result is rounded once."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def uniforms(word: Tensor, dtype: torch.dtype) -> Tensor:
    """Turns 32-bit words into numbers in (0, 1), exactly, in the type that masks are computed in."""
    return (2 * (word >> 10) + 1).to(compute_dtype(dtype)) * 2.0**-23


def bernoulli_bits(keep: float) -> tuple[int, int]:
    """The number of bits b an element takes, and the threshold t: keep the element if its bits are less than t."""
    for bits in (1, 2, 4, 8, 16):
        threshold = keep * 2**bits
        if threshold == math.floor(threshold):
            return bits, int(threshold)
    return 32, round(keep * 2**32)


def bits_per_element(kind: str, params: Sequence[float]) -> int:
    return bernoulli_bits(params[0])[0] if kind == "bernoulli" else 32


def pitch(inputs: int, bits: int) -> int:
    """The number of elements from one row of a DropConnect mask to the next: the inputs, rounded up to whole runs."""
    run = 16 * per_word(bits)
    return -(-inputs // run) * run


def row_of_numbers(inputs: int) -> int:
    """The pitch of a DropConnect mask with a continuous law."""
    return pitch(inputs, bits_per_element("uniform", (0.0, 1.0)))


def mask_values(bits: Tensor, kind: str, params: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Turns the bits of elements into mask values of a law, in the type masks are computed in."""
    dtype = compute_dtype(dtype)
    if kind == "bernoulli":
        return (bits < bernoulli_bits(params[0])[1]).to(dtype)
    u = uniforms(bits, dtype)
    if kind == "uniform":
        low, high = params
        return low + (high - low) * u
    mu, sigma, low, high = params
    return (mu + sigma * torch.special.ndtri(u.double())).clamp(low, high).to(dtype)


def mask_layout(shape: Sequence[int], shared_axes: Sequence[int], window: Sequence[int] = ()) -> tuple[int, list[int]]:
    """The number of the mask's first element, and its strides: how far the number rises along each axis.

    Args:
        shape: Of the tensor.
        shared_axes: Axes along which one value is shared; their stride is 0.
        window: Empty, or the shape of the whole tensor that this one is a part of, followed by the place of its first
            element in the whole. The mask is then that part of the mask of the whole.
    """
    whole, start = (window[: len(shape)], window[len(shape) :]) if window else (shape, [0] * len(shape))
    if window and len(window) != 2 * len(shape):
        raise ValueError(f"window: expected {2 * len(shape)} numbers, a shape and an offset; got {list(window)}")
    for size, part, offset in zip(whole, shape, start):
        if not 0 <= offset <= offset + part <= size:
            raise ValueError(f"window: expected a part of {list(whole)}, got {list(shape)} from {list(start)} on")
    first, stride, strides = 0, 1, [0] * len(shape)
    for axis in reversed(range(len(shape))):
        if axis not in shared_axes:
            first += stride * start[axis]
            strides[axis] = stride
            stride *= whole[axis]
    return first, strides


def _drawn(
    seed: Tensor, shape: Sequence[int], shared_axes: Sequence[int], bits: int, stream: int, window: Sequence[int]
) -> Tensor:
    """The bits of a tensor's mask, of shape ``[*seed.shape, *shape]`` with 1 in place of shared axes."""
    first, strides = mask_layout(shape, shared_axes, window)
    shape = [1 if axis in shared_axes else size for axis, size in enumerate(shape)]
    if not window:
        return elements(seed, 0, math.prod(shape), bits, stream).reshape((*seed.shape, *shape))
    if 0 in shape:
        return seed.new_empty((*seed.shape, *shape))
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    drawn = elements(seed, first, count, bits, stream).contiguous()
    return drawn.as_strided((*seed.shape, *shape), (*drawn.stride()[:-1], *strides))


def shared_bits(
    x: Tensor, seed: Tensor, shared_axes: Sequence[int], bits: int, stream: int, window: Sequence[int] = ()
) -> Tensor:
    """Bits for every element of x, of a shape that broadcasts to x.

    The leading axes of x are those of ``seed``, each entry with a mask of its own; along ``shared_axes`` one value is
    shared. A ``window`` is about the axes after the seed's; see :func:`mask_layout`.
    """
    own = [axis - seed.dim() for axis in shared_axes]
    return _drawn(seed.to(x.device), x.shape[seed.dim() :], own, bits, stream, window)


def _multiply(x: Tensor, mask: Tensor) -> Tensor:
    result = torch.empty_like(x)
    return result.copy_(x.to(mask.dtype) * mask)


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
    """x times mask times scale."""
    bits = shared_bits(x, seed, shared_axes, bits_per_element(kind, params), stream, window)
    return _multiply(x, mask_values(bits, kind, params, x.dtype) * scale)


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    """x where a uniform number is less than the element's own ``keep``, and x times zero elsewhere."""
    u = uniforms(shared_bits(x, seed, shared_axes, 32, STREAM_MASK, window), x.dtype)
    return _multiply(x, (u < keep).to(u.dtype))


def normal(
    seed: Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, window: Sequence[int] = ()
) -> Tensor:
    """Standard normal numbers of shape ``[*seed.shape, *size]``."""
    word = _drawn(seed.to(device), size, [], 32, STREAM_NORMAL, window)
    return torch.special.ndtri(uniforms(word, dtype).double()).to(dtype)


def _example_masks(
    examples: int,
    weight_shape: torch.Size,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int,
    like: Tensor,
) -> Iterator[tuple[slice, Tensor]]:
    """Scaled masks [n, out, in] for successive slices of the examples, the first of which has number first_example."""
    outputs, inputs = weight_shape
    bits = bits_per_element(kind, params)
    row = pitch(inputs, bits)
    per_example = outputs * row
    step = max(1, _CHUNK // max(per_example, 1))
    seed = seed.to(like.device)
    for start in range(0, examples, step):
        stop = min(start + step, examples)
        drawn = elements(seed, (first_example + start) * per_example, (stop - start) * per_example, bits, STREAM_MASK)
        mask = drawn.view(stop - start, outputs, row)[..., :inputs]
        yield slice(start, stop), mask_values(mask, kind, params, like.dtype) * scale


def dropconnect(
    x: Tensor,
    weight: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    """y[n, o] = sum over i of mask[first_example + n, o, i] weight[o, i] x[n, i]."""
    wide = compute_dtype(x.dtype)
    result = x.new_empty(x.shape[0], weight.shape[0])
    for part, mask in _example_masks(x.shape[0], weight.shape, seed, kind, params, scale, first_example, x):
        result[part] = torch.bmm(mask.mul_(weight), x[part, :, None].to(wide)).squeeze(2)
    return result


def dropconnect_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    """The gradient by x of sum(gradient * y): sum over o of mask[n, o, i] weight[o, i] gradient[n, o]."""
    wide = compute_dtype(gradient.dtype)
    result = gradient.new_empty(gradient.shape[0], weight.shape[1])
    for part, mask in _example_masks(
        gradient.shape[0], weight.shape, seed, kind, params, scale, first_example, gradient
    ):
        result[part] = torch.bmm(gradient[part, None, :].to(wide), mask.mul_(weight)).squeeze(1)
    return result


def dropconnect_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    seed: Tensor,
    kind: str,
    params: Sequence[float],
    scale: float,
    first_example: int = 0,
) -> Tensor:
    """The gradient by weight of sum(gradient * y): sum over n of mask[n, o, i] gradient[n, o] x[n, i]."""
    wide = compute_dtype(x.dtype)
    shape = torch.Size((gradient.shape[1], x.shape[1]))
    result = torch.zeros(shape, dtype=wide, device=x.device)
    for part, mask in _example_masks(x.shape[0], shape, seed, kind, params, scale, first_example, x):
        outer = gradient[part, :, None].to(wide) * x[part, None, :].to(wide)
        result += mask.mul_(outer).sum(0)
    return result.to(x.dtype)
