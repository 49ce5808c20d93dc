"""What Python and the compiled code share. The structures mirror ``api.h``, which explains them."""

from __future__ import annotations

import ctypes

from .. import reference

# Rises whenever functions change, which the sizes of structures do not tell; the same number is in ``interface.h``.
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
        ("size", _Axes),
        ("x_stride", _Axes),
        ("out_stride", _Axes),
        ("mask_stride", _Axes),
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
    """All that Python takes for granted of the compiled code, in the words of ``interface.h``.

    Both sides write down where every field is. A library that was built from another version says something else, and
    is not used: it would read and write the wrong memory.
    """
    parts = [f"interface {INTERFACE}", f"masks {reference.MASKS_VERSION}"]
    for structure in (Law, Dropout, Relu, KeepWhere, DropConnect):
        places = [f"{field[0]} {getattr(structure, field[0]).offset}" for field in structure._fields_]
        parts.append(f"{structure.__name__} {ctypes.sizeof(structure)}: {', '.join(places)}")
    return "; ".join(parts)
