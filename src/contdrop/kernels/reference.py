"""Reference back end in plain torch, which defines every random number of the package.

**Blocks.** Random bits come from Philox-4x32 with 7 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
easy as 1, 2, 3", SC 2011), the fewest rounds that pass BigCrush there. The key is the call's 64-bit seed, low half
first. The counter is (block, low half; block, high half; stream; 0). Streams keep apart the different things one call
may draw: see ``STREAM_*``. The outputs of a block are four words w[0] to w[3] of 32 bits.

**Groups.** Sixteen blocks make a group, so that a vector unit needs no shuffles: group g is the blocks ``16 * g`` to
``16 * g + 15``, and the block of an element is number ``i % 16`` of its group, its lane, where i is the number of the
element. Elements are numbered in the row-major order of the mask's own shape, whatever the layout of the tensor in
memory. An element takes b bits, and no bit of a block serves two elements.

**Fields.** With b = 1, 2, 4, 8, 16 or 32 an element is a field of a word: there are 32 / b of them to a word and
n = 64 * (32 / b) to a group. Element i is in group ``i // n``. With k = i % n its place in there, its word is
w[k // (n / 4)], and its field is the bits ``b * s`` and up of it, s = k % (n / 4) // 16.

**Numbers.** With b = 21 the 128 bits of a block make six numbers, and two bits are left over. Element i is in group
``i // 96``, and is its block's number s = i % 96 // 16:

    s = 0 to 3: the upper 21 bits of w[s]
    s = 4:      the lower 11 bits of w[0], followed by the lower 10 bits of w[1]
    s = 5:      the lower 11 bits of w[2], followed by the lower 10 bits of w[3]

No two numbers share a bit, so any of them are independent of all others as far as the bits of Philox are.

**Values.** A continuous law turns such a number e into ``(2 * e + 1) / 2**22``, which is exact in float32, in the open
interval (0, 1), and symmetric about one half. So a mask is the same in every type, but for rounding. A Bernoulli law
with keep = t / 2^b keeps the element if its b bits are less than t, with the smallest b up to 16 for which t is whole:
one bit for keep = 0.5. If there is none, t is rounded: to 21 bits, or to 32 where keep or 1 - keep is below 1/64. The
first is off by 2^-22 at most; even at 1/64 it takes more than 10^11 elements to see that, by one standard error.

**Per-example DropConnect.** The mask of example n, output o, input i is element ``(n * out + o) * pitch + i``, where
the pitch is the number of inputs rounded up to a multiple of 96 for numbers, and of 16 * (32 / b), the fields of
sixteen words, for fields. So no row begins in the middle of what a vector unit makes at once.

**Versions.** ``MASKS_VERSION`` names the masks: it changes whenever the same seed gives another mask.

1. A word of 32 bits for every continuous value, and for every Bernoulli value whose keep is no multiple of 2^-16.
2. Two numbers of 32 bits from a word, their lower halves borrowed from other words of the block. Every two were
   independent, three were not, and test batteries saw it.
3. Six numbers of 21 bits from a block, which share no bit: what is written above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .._torch.private import widest
from ..laws import KernelLaw, check_kind

MASKS_VERSION = 3
ROUNDS = 7
STREAM_MASK = 0  # mask values of activations or weights
STREAM_BIAS = 1  # mask values of a bias beside masked weights
STREAM_NORMAL = 2  # standard normal numbers

NUMBER_BITS = 21  # of the elements that are numbers, not fields of a word

# Matrices of per-example DropConnect by letter, and their axes: examples n, outputs o, inputs i.
AXES = {"g": "no", "w": "oi", "x": "ni"}

_LOW_32 = 0xFFFFFFFF
# Bernoulli laws that are rarer than this are resolved to 32 bits.
_RARE = 2.0**-6
# Largest number of mask elements that DropConnect materialises at once.
_CHUNK = 1 << 22


def philox(counter: Sequence[Tensor], key: Sequence[Tensor], rounds: int = ROUNDS) -> list[Tensor]:
    """Compute Philox-4x32 on int64 tensors that hold unsigned 32-bit numbers; everything broadcasts."""
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
    """Return the words of groups by group, output and lane, as int64 of shape ``[*seed.shape, 64 * groups]``."""
    group = torch.arange(first_group, first_group + groups, device=seed.device)
    block = (16 * group)[:, None] + torch.arange(16, device=seed.device)
    key = seed[..., None, None]
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    counter = (block & _LOW_32, block >> 32 & _LOW_32, zero + stream, zero)
    outputs = philox(counter, (key & _LOW_32, key >> 32 & _LOW_32))
    shape = (*seed.shape, groups, 16)
    return torch.stack([output.expand(shape) for output in outputs], dim=-2).flatten(-3)


def elements(seed: Tensor, first: int, count: int, bits: int, stream: int) -> Tensor:
    """Return the bits of elements ``first`` to ``first + count - 1``, as int64 of shape ``[*seed.shape, count]``."""
    size = per_group(bits)
    first_group, last_group = first // size, -(-(first + count) // size)
    group = words(seed, first_group, last_group - first_group, stream).unflatten(-1, (-1, 4, 16))
    drawn = _numbers(group) if bits == NUMBER_BITS else _fields(group, bits)
    start = first - first_group * size
    return drawn.flatten(-3)[..., start : start + count]


def _fields(group: Tensor, bits: int) -> Tensor:
    """Return the elements [..., fields, 16] of groups of words [..., 4, 16]."""
    shift = torch.arange(0, 32, bits, device=group.device)
    return (group[..., None, :] >> shift[:, None] & (1 << bits) - 1).flatten(-3, -2)


def _numbers(group: Tensor) -> Tensor:
    """Return the elements [..., 6, 16] of groups of words [..., 4, 16]."""
    joined = (group[..., 0::2, :] & 0x7FF) << 10 | group[..., 1::2, :] & 0x3FF
    return torch.cat([group >> 11, joined], dim=-2)


def per_group(bits: int) -> int:
    """Return the number of elements in a group of sixteen blocks."""
    return 96 if bits == NUMBER_BITS else 64 * (32 // bits)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which masks for tensors of this type are computed; the result is rounded once."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def uniforms(number: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert numbers of 21 bits into numbers in (0, 1), exactly, in the type that masks are computed in."""
    return (2 * number + 1).to(compute_dtype(dtype)) * 2.0**-22


def bernoulli_bits(keep: float) -> tuple[int, int]:
    """Return the number of bits b of an element, and the threshold t below which it is kept."""
    for bits in (1, 2, 4, 8, 16):
        threshold = keep * 2**bits
        if threshold == math.floor(threshold):
            return bits, int(threshold)
    bits = NUMBER_BITS if min(keep, 1 - keep) >= _RARE else 32
    return bits, round(keep * 2**bits)


def bits_per_element(law: KernelLaw) -> int:
    """Return the number of bits that an element of a mask takes."""
    check_kind(law.kind)
    return bernoulli_bits(law.params[0])[0] if law.kind == "bernoulli" else NUMBER_BITS


def pitch(inputs: int, bits: int) -> int:
    """Return the number of elements from one row of a DropConnect mask to the next."""
    whole = per_group(bits) if bits == NUMBER_BITS else per_group(bits) // 4
    return -(-inputs // whole) * whole


def mask_values(bits: Tensor, law: KernelLaw, dtype: torch.dtype) -> Tensor:
    """Convert the random bits of elements to mask values in the compute dtype."""
    dtype = compute_dtype(dtype)
    if law.kind == "bernoulli":
        return (bits < bernoulli_bits(law.params[0])[1]).to(dtype) * law.factor
    u = uniforms(bits, dtype)
    if law.kind == "uniform":
        low, high = law.params
        return (low + (high - low) * u) * law.factor
    mu, sigma, low, high = law.params
    # The quantile needs float64, and is computed on the CPU if the device does not have it.
    z = torch.special.ndtri((u if widest(u.device) == torch.float64 else u.cpu()).double())
    return (mu + sigma * z).clamp(low, high).to(dtype).to(u.device) * law.factor


def mask_layout(shape: Sequence[int], shared_axes: Sequence[int], window: Sequence[int] = ()) -> tuple[int, list[int]]:
    """Return the number of the mask's first element, and its strides: the step of the number along each axis.

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


def shared_bits(
    x: Tensor, seed: Tensor, shared_axes: Sequence[int], bits: int, stream: int, window: Sequence[int] = ()
) -> Tensor:
    """Return bits for every element of x, of a shape that broadcasts to x.

    The leading axes of x are those of ``seed``, each entry with a mask of its own; along ``shared_axes`` one value is
    shared. A ``window`` is about the axes after the seed's; see :func:`mask_layout`.
    """
    seed = seed.to(x.device)
    own = [axis - seed.dim() for axis in shared_axes]
    first, strides = mask_layout(x.shape[seed.dim() :], own, window)
    shape = [1 if axis in own else size for axis, size in enumerate(x.shape[seed.dim() :])]
    if not window:
        return elements(seed, 0, math.prod(shape), bits, stream).reshape((*seed.shape, *shape))
    if 0 in shape:
        return seed.new_empty((*seed.shape, *shape))
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    drawn = elements(seed, first, count, bits, stream).contiguous()
    return drawn.as_strided((*seed.shape, *shape), (*drawn.stride()[:-1], *strides))


def multiply(x: Tensor, mask: Tensor) -> Tensor:
    """Multiply x by a mask in the mask's type; the result is rounded once and laid out like x."""
    result = torch.empty_like(x)
    return result.copy_(x.to(mask.dtype) * mask)


def dropout(
    x: Tensor, seed: Tensor, law: KernelLaw, shared_axes: Sequence[int], stream: int, window: Sequence[int] = ()
) -> Tensor:
    """Multiply x by the mask."""
    bits = shared_bits(x, seed, shared_axes, bits_per_element(law), stream, window)
    return multiply(x, mask_values(bits, law, x.dtype))


def keep_where(x: Tensor, seed: Tensor, keep: Tensor, shared_axes: Sequence[int], window: Sequence[int] = ()) -> Tensor:
    """Return x where a uniform number is less than the element's own ``keep``, and x times zero elsewhere."""
    u = uniforms(shared_bits(x, seed, shared_axes, NUMBER_BITS, STREAM_MASK, window), x.dtype)
    return multiply(x, (u < keep).to(u.dtype))


def sizes_of(matrices: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the numbers of examples n, outputs o and inputs i; see :func:`dropconnect`."""
    return {axis: size for name, matrix in matrices.items() for axis, size in zip(AXES[name], matrix.shape)}


def _example_masks(
    sizes: Mapping[str, int], seed: Tensor, law: KernelLaw, first_example: int, like: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the examples, numbered from first_example on, and their masks [n, out, in]."""
    examples, outputs, inputs = (sizes[axis] for axis in "noi")
    bits = bits_per_element(law)
    row = pitch(inputs, bits)
    per_example = outputs * row
    step = max(1, _CHUNK // max(per_example, 1))
    seed = seed.to(like.device)
    for start in range(0, examples, step):
        stop = min(start + step, examples)
        drawn = elements(seed, (first_example + start) * per_example, (stop - start) * per_example, bits, STREAM_MASK)
        mask = drawn.view(stop - start, outputs, row)[..., :inputs]
        yield slice(start, stop), mask_values(mask, law, like.dtype)


def dropconnect(
    wanted: str, matrices: Mapping[str, Tensor], seed: Tensor, law: KernelLaw, first_example: int = 0
) -> list[Tensor]:
    """Return derivatives of T = sum of mask[first_example + n, o, i] g[n, o] w[o, i] x[n, i] over all n, o and i.

    The derivative by g is the output of DropConnect; with the gradient of that as g, the others are its gradients.

    Args:
        wanted: Letters of the matrices to differentiate by: "g", "x", "w", or "xw", for which the masks may be drawn
            once.
        matrices: Those that the derivatives depend on, by letter, in the order g, w, x and of one type.
        seed: Seed of the masks.
        law: Their law.
        first_example: Number of the first example.
    """
    sizes, like = sizes_of(matrices), next(iter(matrices.values()))
    results = []
    for name in wanted:
        result = like.new_zeros([sizes[axis] for axis in AXES[name]], dtype=compute_dtype(like.dtype))
        for part, mask in _example_masks(sizes, seed, law, first_example, like):
            rows = {letter: matrices[letter][part].to(mask.dtype) for letter in "gx" if letter in matrices}
            if name == "g":
                result[part] = torch.bmm(mask.mul_(matrices["w"]), rows["x"].unsqueeze(2)).squeeze(2)
            elif name == "x":
                result[part] = torch.bmm(rows["g"].unsqueeze(1), mask.mul_(matrices["w"])).squeeze(1)
            else:
                result += mask.mul_(rows["g"].unsqueeze(2) * rows["x"].unsqueeze(1)).sum(0)
        results.append(result.to(like.dtype))
    return results
