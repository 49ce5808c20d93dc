"""Graph of a model's forward, and the functions in it that can be followed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional as F

from ..._torch.private import has_forward_hooks, is_sequence
from ...surgery.dropout_layers import DROPOUT_LAYERS, children
from ..penalty_terms import switched
from . import layers
from .gaussian import GaussianMoments, PropagatedLayer, RefusedError, affine, reshaping, scaling


class _Tracer(torch.fx.Tracer):
    """Tracer that stops at known layers, all dropout layers, and torch's own layers."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(m, DROPOUT_LAYERS)
            or layers.handler(m) is not None
            or super().is_leaf_module(m, module_qualified_name)
        )


def trace(model: torch.nn.Module) -> torch.fx.Graph:
    """Trace the forward of a model."""
    if layers.handler(model) is not None:  # a single layer; tracing would look inside
        graph = torch.fx.Graph()
        graph.output(graph.call_module("", (graph.placeholder("x"),)))
        return graph
    if has_forward_hooks(model):  # which tracing would pass by
        raise NotImplementedError(
            f"moments: {type(model).__name__} has forward hooks, and what they do is not known; remove them"
        )
    paths = list(_chain(model, ""))
    if None not in paths:
        graph = torch.fx.Graph()
        node = graph.placeholder("x")
        for path in paths:
            node = graph.call_module(str(path), (node,))
        graph.output(node)
        return graph
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise NotImplementedError(
            f"moments: {type(model).__name__} cannot be followed, because torch.fx does not trace its forward: {reason}"
        ) from error
    _check_called(model, graph)
    return graph


def _check_called(model: torch.nn.Module, graph: torch.fx.Graph) -> None:
    """Refuse a model that calls dropout layers in training mode only, or none of those that it has."""
    # A dropout layer with a forward of its own may be traced into.
    leaves = {name: layer for name, layer in model.named_modules() if _Tracer().is_leaf_module(layer, "")}
    dropouts = {name: layer for name, layer in leaves.items() if isinstance(layer, DROPOUT_LAYERS)}
    called = _called(model, graph)
    missing = {name: layer for name, layer in dropouts.items() if layer not in called}
    if not missing or (len(missing) < len(dropouts) and not _called_in_training(model) & set(missing.values())):
        return  # a layer that is called in neither mode does no harm if others are called
    raise ValueError(
        f"moments: expected {type(model).__name__} to call its dropout layers in either mode, got a forward that does "
        f"not call {', '.join(missing)}; call them without asking for self.training, in evaluation they do nothing"
    )


def _called(model: torch.nn.Module, graph: torch.fx.Graph) -> set[torch.nn.Module]:
    return {model.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}


def _called_in_training(model: torch.nn.Module) -> set[torch.nn.Module]:
    try:
        with switched(model, training=True):
            return _called(model, _Tracer().trace(model))
    except Exception:  # what cannot be traced in training mode is not known to call them
        return set()


def _chain(module: torch.nn.Module, path: str) -> Iterator[str | None]:
    """Yield the paths of the layers of nested Sequentials, which need no tracing; None for other modules."""
    if layers.handler(module) is not None:
        yield path
    elif is_sequence(module) and not has_forward_hooks(module):
        for name, child in children(module):
            yield from _chain(child, f"{path}.{name}" if path else name)
    else:
        yield None


def function(target: Any, args: Sequence[Any], kwargs: dict[str, Any], full: bool) -> PropagatedLayer:
    """Evaluate a function or method of one activation and constants."""
    if sum(isinstance(each, GaussianMoments) for each in args) != 1:
        raise unsupported()
    x, rest = args[0], args[1:]
    if target in _PRODUCTS and len(args) == 2 and not kwargs:
        x, factor = (args[0], args[1]) if isinstance(args[0], GaussianMoments) else (args[1], args[0])
        return scaling(x, factor)
    if not isinstance(x, GaussianMoments):
        raise unsupported()
    if target in _QUOTIENTS and len(rest) == 1 and not kwargs:
        return scaling(x, 1 / rest[0])
    if target in _NEGATIVES:
        return scaling(x, -1.0)
    if target in _RESHAPES:
        return reshaping(x, _RESHAPES[target](x.mean, *rest, **kwargs).shape)
    if target in _MEANS:
        return _mean(x, full, *rest, **kwargs)
    if target in _MODULES:
        module = _MODULES[target](*rest, **kwargs)
        step = layers.handler(module)
        assert step is not None
        return step(module, x, full)
    raise unsupported()


def unsupported() -> NotImplementedError:
    names = ", ".join(kind.__name__ for kind in layers.HANDLERS)
    return NotImplementedError(f"is not supported; supported are {names}, their functions, sums and reshapes")


def shape(value: Any, dim: Any = None) -> Any:
    """Return x.size(), x.size(dim) or x.shape of an activation."""
    if not isinstance(value, GaussianMoments) or dim not in (None, "shape", *range(-8, 8)):
        raise unsupported()
    return value.mean.shape if dim in (None, "shape") else value.mean.shape[dim]


def _mean(x: GaussianMoments, full: bool, dim: Any = None, keepdim: bool = False) -> PropagatedLayer:
    axes = sorted(axis % x.mean.dim() for axis in ([dim] if isinstance(dim, int) else dim or [0]))
    if 0 in axes:
        raise RefusedError("expected a mean over other axes than the batch")
    count = 1
    for axis in axes:
        count *= x.mean.shape[axis]
    return affine(x, full, lambda t: t.mean(axes, keepdim), lambda t: t.mean(axes, keepdim) / count)


SUMS: dict[Any, float] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), 1.0),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), -1.0),
}
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
_NEGATIVES = (operator.neg, torch.neg, "neg")
_MEANS = (torch.mean, "mean")
SHAPES = (getattr, "size")
RELUS = (torch.relu, F.relu, "relu", "relu_")
_RESHAPES: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.flatten, "flatten"), torch.flatten),
    **dict.fromkeys(("view", "reshape", torch.reshape), Tensor.reshape),
    "contiguous": Tensor.contiguous,
}
_MODULES: dict[Any, Callable[..., torch.nn.Module]] = {
    **dict.fromkeys(RELUS, torch.nn.ReLU),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid", "sigmoid_"), torch.nn.Sigmoid),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh", "tanh_"), torch.nn.Tanh),
    F.max_pool2d: torch.nn.MaxPool2d,
    F.avg_pool2d: torch.nn.AvgPool2d,
    F.adaptive_avg_pool2d: torch.nn.AdaptiveAvgPool2d,
}
