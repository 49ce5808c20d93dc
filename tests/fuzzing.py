"""Mutated files for the readers of outside formats: reading any of them ends soon, in a value or in one line.

``CONTDROP_MUTANTS`` is the number of files per format; the slow tests read 100,000.
"""

import contextlib
import os
import random
import signal
import struct
import tracemalloc

import pytest

from contdrop.errors import UserError
from refusals import refusal as refusal

MUTANTS = int(os.environ.get("CONTDROP_MUTANTS", "800"))
SECONDS = 5  # a reader that takes longer over a small file hangs
# For a test of a format, with its number of mutated files: some always, many if asked for.
mutants = pytest.mark.parametrize("mutants", [MUTANTS, pytest.param(100_000, marks=pytest.mark.slow)])
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def mutated(content, rng, interesting=()):
    """Another file: some bytes changed, cut out, repeated, or overwritten by numbers that are at the edge of a type.

    Args:
        content: A good file.
        rng: What decides.
        interesting: Places where a change matters more, such as those of a header.
    """
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.choice(interesting) if interesting and rng.random() < 0.7 else rng.randrange(len(found) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = rng.randrange(256)
        elif kind == 2:
            del found[at : at + rng.choice((1, 4, 64, len(found)))]
        elif kind == 3:
            found[at:at] = found[at : at + rng.choice((1, 4, 64))]
        elif kind == 4:
            found[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        else:
            code = rng.choice(("<I", ">I", "<Q", ">Q", "<H"))
            number = struct.pack(code, rng.choice(_NUMBERS) % 2 ** (8 * struct.calcsize(code)))
            found[at : at + len(number)] = number
    return bytes(found)


@contextlib.contextmanager
def memory_below(limit):
    """Fails if more bytes are allocated at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def refuses(read, path, cases, most, start="", end=""):
    """Fails unless each content of a file is refused in a line that has its message, before much is allocated."""
    for content, message in cases:
        path.write_bytes(content)
        with memory_below(most):
            text = refusal(read)
        assert text.startswith(f"{start}{path}: ")
        assert message in text
        assert text.endswith(end)


def by_file(path, read):
    """For readers of files: writes the content to ``path`` and reads that."""

    def of_content(content):
        path.write_bytes(content)
        read(path)

    return of_content


def survives(read, files, mutants=MUTANTS, seed=0):
    """Reads mutated files; fails with the number of the first that leads to anything but a value or a line.

    Args:
        read: Called with the content of a file.
        files: Good ones, each with the places that matter more, or none.
        mutants: How many.
        seed: Of all of them.

    Returns:
        How many were refused.
    """
    refused = 0

    def expire(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    try:
        for number in range(mutants):
            rng = random.Random(f"{seed} {number}")
            content, interesting = files[number % len(files)]
            changed = mutated(content, rng, interesting)
            signal.alarm(SECONDS)
            try:
                read(changed)
            except UserError as error:
                refused += 1
                if "\n" in str(error):
                    pytest.fail(f"mutant {number} of seed {seed}: more than one line: {error}")
            except BaseException as error:
                pytest.fail(f"mutant {number} of seed {seed}: {type(error).__name__}: {error}")
            finally:
                signal.alarm(0)
    finally:
        signal.signal(signal.SIGALRM, before)
    return refused
