"""Caffe models for the tests of weights: written from caffe.proto, not by contdrop."""

import struct

import numpy as np


def varint(number):
    out = b""
    while True:
        number, low = number >> 7, number & 127
        out += bytes([low | (128 if number else 0)])
        if not number:
            return out


def field(number, content):
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def blob(array, old):
    values = field(5, np.asarray(array, "<f4").tobytes())
    if old:
        sizes = (1,) * (4 - array.ndim) + array.shape
        return b"".join(field(number, size) for number, size in enumerate(sizes, 1)) + values
    return field(7, field(1, b"".join(map(varint, array.shape)))) + values


def layer(name, arrays, old=True):
    if old:
        rates = b"".join(varint(7 << 3 | 5) + struct.pack("<f", rate) for rate in (1, 2))
        parts = field(2, b"data") + field(4, name.encode()) + field(5, 4)
        return field(2, parts + b"".join(field(6, blob(array, old)) for array in arrays) + rates)
    parts = field(1, name.encode()) + field(2, b"Convolution") + field(3, b"data")
    return field(100, parts + b"".join(field(7, blob(array, old)) for array in arrays))


def model(layers, old=True):
    """A whole file; layers without weights are in it, too."""
    found = field(1, b"net") + layer("data", [], old)
    for name, arrays in layers.items():
        found += layer(name, arrays, old) + layer(f"relu_{name}", [], old)
    return found
