"""The IDX format of the MNIST database: a magic number, the sizes, and then the values.

All numbers of the header are big-endian: two zero bytes, the type of the values (8 is an unsigned byte, the only one
read here), the number of dimensions, and the size of each in four bytes (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import zlib

import numpy as np
import numpy.typing as npt

from ...errors import UserError

LIMIT = 100_000_000  # bytes; twice the largest of these files, so that no compressed bomb fills the memory
_KINDS = {1: "labels", 3: "images"}


def read_content(path: pathlib.Path, limit: int | None = None) -> bytes:
    """The content of a file, unpacked if it is gzipped, unless that is more than ``limit`` bytes.

    Its first bytes tell, not its name: browsers and unpackers are known to change the one and not the other.
    """
    limit = limit or LIMIT
    try:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: a symbolic link that leads nowhere, to {os.readlink(path)}")
        if not path.is_file():
            raise UserError(f"{path}: expected a file; it is {'a directory' if path.is_dir() else 'something else'}")
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            # As many bytes as are asked for are allocated at once, so no more than there are.
            size = min(limit, os.fstat(file.fileno()).st_size)
            content = gzip.GzipFile(fileobj=file).read(limit + 1) if gzipped else file.read(size + 1)
    except EOFError as error:
        raise UserError(f"{path}: truncated, it ends in the middle of its gzip data") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise UserError(f"{path}: expected at most {limit:,} bytes of content; it holds more")
    return content


def parse(content: bytes, dimensions: int, file: str) -> npt.NDArray[np.uint8]:
    """The values, with the shape that the header states.

    Args:
        content: The whole file, unpacked.
        dimensions: How many there must be: 1 for labels, 3 for images.
        file: What to call it in an error.

    Raises:
        UserError: It is not such a file, or not a whole one.
    """
    kind = _KINDS[dimensions]
    if not content:
        raise UserError(f"{file}: expected {kind} in IDX format; it is empty")
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise UserError(
            f"{file}: expected {kind} in IDX format, which start with the bytes {magic.hex(' ')}; {_describe(content)}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise UserError(f"{file}: truncated, {len(content)} bytes are less than its header of {start}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        much = "truncated, it holds" if len(content) < expected else "bytes follow its end, it holds"
        sizes = "x".join(map(str, shape))
        raise UserError(f"{file}: {much} {len(content):,} bytes where its header ({sizes}) asks for {expected:,}")
    # A copy: torch wants memory that may be written to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _describe(content: bytes) -> str:
    for dimensions, kind in _KINDS.items():
        if content[:4] == bytes([0, 0, 8, dimensions]):
            return f"it holds {kind}: is it wrongly named?"
    if content[:2] == b"\x1f\x8b":
        return "it is gzipped twice"
    if content.lstrip()[:1] == b"<":
        return "it looks like a web page, not like data"
    return f"it starts with {content[:4].hex(' ')}"
