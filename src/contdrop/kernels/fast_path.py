"""Fast path of elementwise dropout, for plain eager mode on the CPU; see ``native/express.cpp``.

Between two matrix products a line of Python costs microseconds, because the interpreter has left the caches. A layer
of a small network would spend more time in its Python than in its kernel.
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
from ..laws import KernelLaw
from . import backends, ops, reference, seeds

# A call as the graph keeps it: seed, bytes of a Law, kind, params, factor, whether to rectify, shared axes.
_Call = tuple[int, bytes, str, tuple[float, ...], float, bool, tuple[int, ...]]


def _general(x: Tensor, call: _Call, gate: Tensor | None) -> Tensor:
    """Do what the fast path began by the operator."""
    seed, _, kind, params, factor, relu, shared_axes = call
    if relu and gate is None:
        x = torch.relu(x)
    axes = [axis % x.dim() for axis in shared_axes]
    law = KernelLaw(kind, params, factor)
    y = ops.dropout(x, torch.tensor(seed, device="cpu"), law, axes, reference.STREAM_MASK)
    return y if gate is None else torch.where(gate != 0, y, 0)


def _decline(*_: Any) -> Tensor | None:
    return None


def _connect(native: Any) -> Callable[..., Tensor | None]:
    """Connect the functions in C to torch; return the fast path, or a function that declines every call."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # a Python whose objects are not those it was compiled for
        return _decline
    try:
        from .native import _express  # type: ignore[attr-defined]
    except ImportError:  # built without Python's headers
        return _decline

    library = native.library()
    if getattr(_express, "interface", str)() != library.contdrop_interface().decode():
        warnings.warn(
            "contdrop: the fast path for small layers was built from another version of contdrop and is not used; "
            "reinstall contdrop to rebuild it",
            stacklevel=2,
        )
        return _decline
    if not private.SEES_EVERYBODY or private.dlpack_table is None:
        return _decline

    class Dropout(private.OneLevelFunction):
        forward = staticmethod(_express.forward)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            if torch.compiler.is_compiling():  # by compiled autograd, which cannot look into a function in C
                saved = ctx.saved_tensors
                return _general(gradient, ctx.call, saved[0] if saved else None), None
            return _express.backward(ctx, gradient)

    functions = library.contdrop_dropout_row, library.contdrop_dropout, library.contdrop_relu
    node = private.node_class(Dropout)
    if node is not None:
        node.apply = _express.method_of(node)
    connected = _express.connect(
        *(ctypes.cast(function, ctypes.c_void_p).value for function in functions),
        private.dlpack_table,
        Tensor,
        torch.nn.Parameter,
        torch.empty_like,
        # A place for a seed, which can be written to in any mode.
        torch.inference_mode(False)(functools.partial(torch.empty, (), dtype=torch.int64, device="cpu")),
        0,
        seeds.LIMIT,
        torch.get_num_threads,
        torch.is_grad_enabled,
        private.transforms_active,
        private.dispatch_modes,
        private.tracing_state,
        forward_ad,
        functools.lru_cache(maxsize=256)(lambda *law: bytes(native.prepare(*law))),
        backends.chosen,
        native,
        torch.Generator,
        seeds.contexts,
        private.backward_task or 0,
        Dropout.apply,
        _general,
    )
    found: Callable[..., Tensor | None] = _express.dropout
    return found if connected else _decline


def _first(x: Any, *arguments: Any) -> Tensor | None:
    """Choose the back end of the CPU, and connect the fast path if it is the native one."""
    global dropout
    if not isinstance(x, Tensor) or x.device.type != "cpu":
        return None
    module = backends.for_device("cpu")
    if module.__name__ != f"{__package__}.native":
        return None
    dropout = _connect(module)
    return dropout(x, *arguments)


# dropout(x, kind, params, factor, relu, shared_axes, generator) draws a seed from the generator, or from torch's
# default one. If it does not handle a call it returns None, and has drawn nothing.
dropout: Callable[..., Tensor | None] = _first
