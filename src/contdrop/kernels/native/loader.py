"""Compiled library of kernels: its structures, which mirror ``api.h``, and its loading with torch's threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
from collections.abc import Iterator

import torch

from .. import reference

INSTRUCTIONS = ("avx512", "avx2", "neon", "portable")
VARIABLE = "CONTDROP_INSTRUCTIONS"
FILE = "_contdrop.so"

# Rises whenever functions change, which sizes of structures do not show; the same number is in ``interface.h``.
INTERFACE = 3

MAX_AXES = 16
_Axes = ctypes.c_int64 * MAX_AXES


class Law(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("threshold", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("offset", "gain", "low", "high", "reach")),
    )


class Dropout(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        *((name, _Axes) for name in ("size", "x_stride", "out_stride", "mask_stride")),
        ("mask_first", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("law", Law),
    )


class Relu(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "gate", "out")),
        ("count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("law", Law),
    )


class KeepWhere(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("keep", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
    )


class DropConnect(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("g", "w", "x", "result", "second")),
        ("type", ctypes.c_int32),
        ("contraction", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("examples", "outputs", "inputs", "pitch", "first_example")),
        ("seed", ctypes.c_uint64),
        ("stream", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("law", Law),
    )


def interface() -> str:
    """Describe what Python assumes about the compiled code, in the words of ``interface.h``.

    Both sides write down the place of every field. A library from another version gives another description and is not
    used: it would read and write the wrong memory.
    """
    parts = [f"interface {INTERFACE}", f"masks {reference.MASKS_VERSION}"]
    for structure in (Law, Dropout, Relu, KeepWhere, DropConnect):
        places = [f"{field[0]} {getattr(structure, field[0]).offset}" for field in structure._fields_]
        parts.append(f"{structure.__name__} {ctypes.sizeof(structure)}: {', '.join(places)}")
    return "; ".join(parts)


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, with the best instruction set of this CPU or the one in ``CONTDROP_INSTRUCTIONS``.

    Raises:
        OSError: If it was not built, or cannot be loaded here, or was built from another version of this package.
        ValueError: If that variable names no instruction set.
        RuntimeError: If it names one that this CPU does not have.
    """
    from . import __path__ as places  # an editable install has more than one

    path = next(filter(pathlib.Path.exists, (pathlib.Path(place) / FILE for place in places)), None)
    if path is None:
        raise OSError("the native kernels were not built")
    loaded = ctypes.CDLL(str(path))
    describe = getattr(loaded, "contdrop_interface", None)
    if describe is not None:
        describe.restype = ctypes.c_char_p
    if describe is None or describe().decode() != interface():  # nothing else is called before this
        raise OSError("_contdrop.so was built from another version of contdrop; reinstall contdrop to rebuild it")
    loaded.contdrop_instructions.restype = ctypes.c_char_p
    loaded.contdrop_use_instructions.argtypes = [ctypes.c_char_p]
    loaded.contdrop_use_threads.argtypes = [ctypes.c_void_p] * 3
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    row = [pointer, pointer, i32, i64, ctypes.c_uint64, ctypes.c_uint32, i32, pointer]
    taken = {"dropout_row": row, "dropout": [pointer], "keep_where": [pointer], "dropconnect": [pointer]}
    for name, arguments in taken.items():
        function = getattr(loaded, f"contdrop_{name}")
        function.argtypes, function.restype = arguments, None
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


def _openmp() -> ctypes.CDLL | None:
    """Find the OpenMP library that torch has loaded: a second one would bring a second pool of threads."""
    only_if_loaded = getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW
    package = pathlib.Path(torch.__file__).parent
    places = (package / "lib", package.with_name("torch.libs"))  # the second in wheels for aarch64
    bundled = sorted(path for place in places for path in place.glob("lib*omp*"))
    for path in (*bundled, None):  # None is for all libraries that the process has loaded globally
        with contextlib.suppress(OSError):
            candidate = ctypes.CDLL(str(path) if path else None, mode=only_if_loaded if path else ctypes.DEFAULT_MODE)
            if hasattr(candidate, "GOMP_parallel"):
                return candidate
    return None


def detail() -> str:
    """Return the instruction set in use."""
    name: bytes = library().contdrop_instructions()
    return name.decode()


@contextlib.contextmanager
def use_instructions(name: str) -> Iterator[None]:
    """Use another instruction set, one of INSTRUCTIONS, in a ``with`` block. The numbers agree to rounding."""
    before = detail()
    if library().contdrop_use_instructions(name.encode()):
        raise ValueError(f"use_instructions: expected one of {', '.join(INSTRUCTIONS)} that this CPU has, got {name!r}")
    try:
        yield
    finally:
        library().contdrop_use_instructions(before.encode())
