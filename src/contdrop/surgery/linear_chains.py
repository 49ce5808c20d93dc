"""Where in a model a linear layer, its activation and dropout follow each other.

Some methods are more than a mask on units: DropConnect masks the weights that make them, Standout needs what goes into
the activation, fast dropout draws in the layer that reads them. They fit only where these layers are found around a
dropout layer: by following the model's graph (torch.fx), or, if it cannot be traced, the order inside of each
torch.nn.Sequential.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Graph, Node, Tracer

from ..choices import Activation
from ..nn import Dropout
from .sites import is_plain, shared_axes

_FUNCTIONS: dict[Any, Activation] = {
    torch.relu: "relu",
    nn.functional.relu: "relu",
    torch.sigmoid: "sigmoid",
    nn.functional.sigmoid: "sigmoid",
    "relu": "relu",
    "sigmoid": "sigmoid",
}
_LAYERS: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid"}


class Chain(NamedTuple):
    """A linear layer, its activation, the dropout behind it, and the linear layer that reads that."""

    linear: nn.Module  # makes the units
    activation: Activation
    layer: nn.Module | None  # the activation; None if it is a function
    reader: nn.Module | None  # of the units; None if that is not a linear layer, or not it alone


@dataclass
class Found:
    """What was found in a model."""

    chains: dict[str, list[Chain]] = field(default_factory=dict)  # by dropout layer, every place where it is called
    misfits: dict[str, str] = field(default_factory=dict)  # by name of each other dropout layer, why it does not fit
    calls: Counter[int] = field(default_factory=Counter)  # of each module, by its id


def find(model: nn.Module) -> Found:
    """All dropout layers of a model, with what is around each of them."""
    graph = _graph(model)
    names = [name for name, module in model.named_modules() if is_plain(module)]
    found = Found()
    steps = _by_order(model, found.calls) if graph is None else _by_graph(model, graph, found.calls)
    for name in names:
        reached = steps.get(name, [])
        reasons = [step for step in reached if isinstance(step, str)]
        if not reached:
            reasons = ["it is not called" if graph is not None else "it is not in a torch.nn.Sequential"]
        if reasons:
            found.misfits[name] = reasons[0]
            continue
        chains = [step for step in reached if isinstance(step, Chain)]
        twice = [chain for chain in chains if found.calls[id(chain.linear)] > 1]
        if twice:
            found.misfits[name] = "its linear layer is used more than once"
        else:
            found.chains[name] = chains
    return found


def _chain(dropout: nn.Module, linear: Any, activation: Any, layer: Any, reader: Any) -> Chain | str:
    """The chain around a dropout layer, or why there is none."""
    if (isinstance(dropout, Dropout) and (dropout.activation or dropout.shared_axes)) or shared_axes(dropout):
        return "it has an activation inside, or shares mask values"
    if activation is None:
        return "no ReLU or sigmoid is right before it"
    if type(linear) is not nn.Linear:
        return "no torch.nn.Linear is right before its activation"
    return Chain(linear, activation, layer, reader if type(reader) is nn.Linear else None)


def _graph(model: nn.Module) -> Graph | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Tracer().trace(model)
    except Exception:  # whatever tracing meets in a user's model, order is the other way
        return None


def _by_graph(model: nn.Module, graph: Graph, calls: Counter[int]) -> dict[str, list[Chain | str]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in model.named_modules()}
    called = {node: modules[str(node.target)] for node in graph.nodes if node.op == "call_module"}
    calls.update(id(module) for module in called.values())

    def alone(node: Any) -> Node | None:
        """What a node reads, if nothing else reads it."""
        source = node.args[0] if isinstance(node, Node) and node.args else None
        return source if isinstance(source, Node) and len(source.users) == 1 else None

    found: dict[str, list[Chain | str]] = {}
    for node, dropout in called.items():
        if not is_plain(dropout):
            continue
        before = alone(node)
        layer = called.get(before) if before is not None else None
        source = alone(before)
        linear = called.get(source) if source is not None else None
        readers = list(node.users)
        reader = called.get(readers[0]) if len(readers) == 1 else None
        step = _chain(dropout, linear, _activation(before, layer), layer, reader)
        found.setdefault(names[id(dropout)], []).append(step)
    return found


def _activation(node: Node | None, layer: nn.Module | None) -> Activation:
    if layer is not None:
        return _LAYERS.get(type(layer))
    if node is None or node.op not in ("call_function", "call_method") or node.kwargs.get("inplace"):
        return None
    return _FUNCTIONS.get(node.target)


def _by_order(model: nn.Module, calls: Counter[int]) -> dict[str, list[Chain | str]]:
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, list[Chain | str]] = {}
    # Nothing tells how often forward calls a module; where it is in the tree is the best guess.
    calls.update(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for container in model.modules():
        if type(container).forward is not nn.Sequential.forward:
            continue
        inside = [(key, each) for key, each in container.named_modules(remove_duplicate=False) if key]
        layers = [each for key, each in inside if "." not in key]
        padded = [None, None, *layers, None]
        for linear, layer, dropout, reader in zip(padded, padded[1:], padded[2:], padded[3:]):
            if dropout is not None and is_plain(dropout):
                activation = _LAYERS.get(type(layer)) if layer is not None else None
                step = _chain(dropout, linear, activation, layer, reader)
                found.setdefault(names[id(dropout)], []).append(step)
    return found
