"""Nodes for layers in graphs of torch.fx.

torch.fx takes only the modules of torch.nn as leaves. It runs the forward of all others with proxies in place of
tensors, which would fix whether a layer is training. Here each layer becomes one node that calls it, like torch's own
layers, so ``graph_module.eval()`` works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy


def call_node(layer: torch.nn.Module, *inputs: Any) -> Any:
    """Return the graph node that calls a layer; None outside a trace, or if the layer is the root of the trace."""
    # Not next(..., None), which the compiler of torch 2.6 does not follow.
    proxies = [value for value in inputs if isinstance(value, Proxy)]
    proxy = proxies[0] if proxies else None
    if proxy is None or proxy.tracer.root is layer:  # type: ignore[attr-defined]
        return None
    path = proxy.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    return proxy.tracer.create_proxy("call_module", path, inputs, {})


def refuse_script(layer: torch.nn.Module) -> None:
    """Raise an error in place of torch.jit.script, which calls this as ``__prepare_scriptable__``."""
    raise RuntimeError(f"{type(layer).__name__}: torch.jit.script is not supported; use torch.compile or torch.export")
