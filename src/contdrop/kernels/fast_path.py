"""The fast path of elementwise dropout, for plain eager mode on the CPU; see ``native/express.cpp``.

Between two matrix products a line of Python costs microseconds, because the interpreter has left the caches. A layer
of a small network would cost more for its Python than for its kernel.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._torch import private
from . import backends, ops, reference, seeds


@functools.lru_cache(maxsize=256)
def _law_bytes(kind: str, params: tuple[float, ...], scale: float) -> bytes:
    from .native import binding

    return bytes(binding.prepare(kind, params, scale))


def _place_for_a_seed() -> Tensor:
    with torch.inference_mode(False):  # so that it can be written to in any mode
        return torch.empty((), dtype=torch.int64, device="cpu")


# A call as the graph keeps it: seed, bytes of a Law, kind, params, scale, whether to rectify, shared axes.
_Call = tuple[int, bytes, str, tuple[float, ...], float, bool, tuple[int, ...]]


def _general(x: Tensor, call: _Call, gate: Tensor | None) -> Tensor:
    seed, _, kind, params, scale, relu, shared_axes = call
    if relu and gate is None:
        x = torch.relu(x)
    axes = [axis % x.dim() for axis in shared_axes]
    y = ops.dropout(x, torch.tensor(seed, device="cpu"), kind, params, scale, axes, reference.STREAM_MASK)
    return y if gate is None else torch.where(gate != 0, y, 0)


def _declines(*_: Any) -> Tensor | None:
    return None


def _connect() -> Callable[..., Tensor | None]:
    from . import native

    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # a Python whose objects are not those it was compiled for
        return _declines
    try:
        from .native import _express, structures  # type: ignore[attr-defined]
    except ImportError:  # built without Python's headers
        return _declines

    if getattr(_express, "interface", str)() != structures.interface():
        warnings.warn(
            "contdrop: the fast path for small layers was built from another version of contdrop, and is not used; "
            "install contdrop again to build it anew",
            stacklevel=2,
        )
        return _declines
    if not private.SEES_EVERYBODY or private.dlpack_table is None:
        return _declines

    class Dropout(private.OneLevelFunction):
        forward = staticmethod(_express.forward)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            if torch.compiler.is_compiling():  # by compiled autograd, which cannot look into a function in C
                saved = ctx.saved_tensors
                return _general(gradient, ctx.call, saved[0] if saved else None), None
            return _express.backward(ctx, gradient)

    node = private.node_class(Dropout)
    if node is not None:
        node.apply = _express.method_of(node)
    library = native.loader.library()
    connected = _express.connect(
        ctypes.cast(library.contdrop_dropout_row, ctypes.c_void_p).value,
        ctypes.cast(library.contdrop_dropout, ctypes.c_void_p).value,
        ctypes.cast(library.contdrop_relu, ctypes.c_void_p).value,
        private.dlpack_table,
        Tensor,
        torch.nn.Parameter,
        torch.empty_like,
        _place_for_a_seed,
        0,
        seeds.LIMIT,
        torch.get_num_threads,
        torch.is_grad_enabled,
        private.transforms_active,
        private.dispatch_modes,
        private.tracing_state,
        forward_ad,
        _law_bytes,
        backends.chosen,
        native,
        torch.Generator,
        seeds.contexts,
        private.backward_task or 0,
        Dropout.apply,
        _general,
    )
    found: Callable[..., Tensor | None] = _express.dropout
    return found if connected else _declines


def _dropout_before_native(*arguments: Any) -> Tensor | None:
    """Declines until the native back end is in use, and then makes place for the function in C."""
    global dropout
    if getattr(backends.chosen.get("cpu"), "__name__", "") != f"{__package__}.native":
        return None
    dropout = _connect()
    return dropout(*arguments)


# dropout(x, kind, params, scale, relu, shared_axes, generator) draws a seed from the generator, or from torch's default
# one. It returns None, and has drawn nothing, if the general way has to be taken.
dropout: Callable[..., Tensor | None] = _dropout_before_native
