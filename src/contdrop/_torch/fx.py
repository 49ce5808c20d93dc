"""Layers in the graphs of torch.fx and torch.jit.script.

torch.fx takes only the modules of torch.nn for leaves. It runs the forward of all others with proxies in place of
tensors, and so would fix for ever whether a layer is training. Here each layer is one node that calls it, as torch's
own layers are, and ``graph_module.eval()`` means what it says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from ..laws import BuiltIn, Law, divisor

# Kind and parameters of a law, what the kernels multiply the mask by, the mean and variance of the
# scaled mask, and what units are multiplied by in evaluation.
ScriptedLaw = tuple[str, list[float], float, float, float, float]


def call_node(layer: torch.nn.Module, *inputs: Any) -> Any:
    """The node that calls a layer; None if nothing is being traced, or if the layer itself is what is being traced."""
    # Not next(..., None), which the compiler of torch 2.6 does not follow.
    proxies = [value for value in inputs if isinstance(value, Proxy)]
    proxy = proxies[0] if proxies else None
    if proxy is None or proxy.tracer.root is layer:  # type: ignore[attr-defined]
        return None
    path = proxy.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    return proxy.tracer.create_proxy("call_module", path, inputs, {})


def scripted_law(owner: str, law: Law, scale: str, generator: torch.Generator | None) -> ScriptedLaw:
    """A law as TorchScript can hold it."""
    refuse_generator(owner, generator)
    if not isinstance(law, BuiltIn):
        raise RuntimeError(f"{owner}: TorchScript can hold the built-in laws only, got {law!r}; use torch.compile")
    inverse, by = 1 / divisor(law, scale), law.factor / divisor(law, scale)
    in_evaluation = law.mean if scale == "paper" else 1.0
    return law.kind, list(law.params), by, law.mean * inverse, law.variance * inverse**2, in_evaluation


def refuse_generator(owner: str, generator: torch.Generator | None) -> None:
    if generator is not None:
        raise RuntimeError(
            f"{owner}: TorchScript cannot hold a torch.Generator; script the layer without a generator, or use "
            "torch.compile"
        )
