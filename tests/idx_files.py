"""Small data sets in IDX format for the tests of data: written from the description of the format, not by contdrop."""

import gzip
import hashlib
import struct

import numpy as np

from contdrop.replication.datasets.file_source import File
from contdrop.replication.datasets.mnist import IdxSource

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN, TEST, SIDE = 40, 12, 28


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def packed(content):
    return gzip.compress(content, mtime=0)


def make_arrays(seed=0):
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 256, (TRAIN, SIDE, SIDE)),
        random.integers(0, 10, TRAIN),
        random.integers(0, 256, (TEST, SIDE, SIDE)),
        random.integers(0, 10, TEST),
    ]


def make_source(arrays, mirrors=(), name="mnist"):
    """A data set like MNIST, with these arrays as what was published."""
    files = []
    for file_name, holds, array in zip(NAMES, ("images", "labels") * 2, arrays):
        gz = packed(idx(array))
        md5, sha256 = hashlib.md5(gz).hexdigest(), hashlib.sha256(idx(array)).hexdigest()
        files.append(File(f"{file_name}.gz", len(gz), md5, examples=len(array), holds=holds, sha256=sha256))
    parts = {"training": tuple(files[:2]), "testing": tuple(files[2:])}
    return IdxSource(name=name, title="Tiny", classes=tuple("0123456789"), mirrors=tuple(mirrors), **parts)


def write(folder, arrays, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays):
        (folder / f"{name}{suffix}").write_bytes(packed(idx(array)) if suffix.endswith(".gz") else idx(array))
