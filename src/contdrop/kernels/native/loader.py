"""Finds and loads the compiled library, and gives it torch's threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
from collections.abc import Iterator

import torch

from . import structures

INSTRUCTIONS = ("avx512", "avx2", "neon", "portable")
VARIABLE = "CONTDROP_INSTRUCTIONS"


@functools.cache
def library() -> ctypes.CDLL:
    """Loads the library. It uses the best instruction set of this CPU, or the one in ``CONTDROP_INSTRUCTIONS``.

    Raises:
        OSError: If it was not built, or cannot be loaded here, or was built from another version of this package.
        ValueError: If that variable names no instruction set.
        RuntimeError: If it names one that this CPU does not have.
    """
    path = _path()
    loaded = ctypes.CDLL(str(path))
    if not _agrees(loaded):
        raise OSError(
            f"{path.name} was built from another version of contdrop; install contdrop again to build it anew"
        )
    loaded.contdrop_instructions.restype = ctypes.c_char_p
    loaded.contdrop_use_instructions.argtypes = [ctypes.c_char_p]
    loaded.contdrop_use_threads.argtypes = [ctypes.c_void_p] * 3
    for name in ("dropout", "keep_where", "dropconnect"):
        function = getattr(loaded, f"contdrop_{name}")
        function.argtypes = [ctypes.c_void_p]
        function.restype = None
    loaded.contdrop_dropout_row.restype = None
    loaded.contdrop_dropout_row.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_int32,
        ctypes.c_void_p,
    ]
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted not in INSTRUCTIONS:
        expected = ", ".join(INSTRUCTIONS)
        raise ValueError(f"contdrop: expected an instruction set of {expected}; got {wanted!r} (set by {VARIABLE})")
    if wanted and loaded.contdrop_use_instructions(wanted.encode()):
        raise RuntimeError(f"contdrop: this CPU does not have the instruction set {wanted} (set by {VARIABLE})")
    openmp = _openmp()
    if openmp is not None:
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        loaded.contdrop_use_threads(*(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in names))
    return loaded


def _agrees(loaded: ctypes.CDLL) -> bool:
    """Whether the library and this package have the same structures and masks. Nothing else is called before this."""
    try:
        describe = loaded.contdrop_interface
    except AttributeError:
        return False
    describe.restype = ctypes.c_char_p
    description: bytes = describe()
    return description.decode() == structures.interface()


def _path() -> pathlib.Path:
    from . import __path__ as places  # an editable install has more than one

    for place in places:
        path = pathlib.Path(place) / "_contdrop.so"
        if path.exists():
            return path
    raise OSError("the native kernels were not built")


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded: a second one would bring a second pool of threads."""
    only_if_loaded = getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW
    package = pathlib.Path(torch.__file__).parent
    places = (package / "lib", package.with_name("torch.libs"))  # the second in wheels for aarch64
    bundled = sorted(path for place in places for path in place.glob("lib*omp*"))
    for path in (*bundled, None):  # None stands for everything that the process has loaded for all to see
        with contextlib.suppress(OSError):
            candidate = ctypes.CDLL(str(path) if path else None, mode=only_if_loaded if path else ctypes.DEFAULT_MODE)
            if hasattr(candidate, "GOMP_parallel"):
                return candidate
    return None


def detail() -> str:
    """The instruction set in use."""
    name: bytes = library().contdrop_instructions()
    return name.decode()


@contextlib.contextmanager
def use_instructions(name: str) -> Iterator[None]:
    """Uses another instruction set for a while, one of INSTRUCTIONS. The numbers agree to rounding."""
    before = detail()
    if library().contdrop_use_instructions(name.encode()):
        raise ValueError(f"use_instructions: expected one of {', '.join(INSTRUCTIONS)} that this CPU has, got {name!r}")
    try:
        yield
    finally:
        library().contdrop_use_instructions(before.encode())
