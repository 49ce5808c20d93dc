"""Linear layer, activation and dropout that follow each other in a model.

Some methods are more than a mask on units: DropConnect masks the weights that produce them, Standout needs the input of
the activation, fast dropout draws in the layer that reads them. They need these layers around a dropout layer, which
are found in the graph of the model (torch.fx) or, if it cannot be traced, in the order of each torch.nn.Sequential.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Graph, Node, Tracer

from ..choices import Activation
from ..nn import Dropout
from .dropout_layers import children, is_plain, shared_axes

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
    """A linear layer, its activation, and the linear layer that reads the dropout behind it."""

    linear: nn.Module
    activation: Activation
    layer: nn.Module | None  # of the activation; None if it is a function
    reader: nn.Module | None  # None if the units are not read by one linear layer alone


@dataclass
class Found:
    """Chains of a model.

    Attributes:
        chains: By dropout layer, one for every place where it is called.
        misfits: By name of each other dropout layer, the reason why it has none.
        calls: Number of calls by id of the module.
    """

    chains: dict[str, list[Chain]] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    calls: Counter[int] = field(default_factory=Counter)


# A dropout layer, and as far as there are such: linear layer, activation, its layer, and the layer that reads.
_Around = tuple[nn.Module, Any, Activation, Any, Any]


def find(model: nn.Module) -> Found:
    """Find all dropout layers of a model, and the layers around each of them."""
    found = Found()
    names = {id(module): name for name, module in model.named_modules()}
    graph = None
    # A model of the user's that torch.fx does not trace may raise anything.
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        graph = Tracer().trace(model)
    steps: defaultdict[str, list[Chain | str]] = defaultdict(list)
    for around in _by_order(model, found.calls) if graph is None else _by_graph(model, graph, found.calls):
        steps[names[id(around[0])]].append(_chain(*around))
    for name in [name for name, module in model.named_modules() if is_plain(module)]:
        chains = [step for step in steps[name] if isinstance(step, Chain)]
        reasons = [step for step in steps[name] if isinstance(step, str)]
        if not steps[name]:
            reasons = ["it is not called" if graph is not None else "it is not in a torch.nn.Sequential"]
        elif not reasons and any(found.calls[id(chain.linear)] > 1 for chain in chains):
            reasons = ["its linear layer is used more than once"]
        if reasons:
            found.misfits[name] = reasons[0]
        else:
            found.chains[name] = chains
    return found


def _chain(dropout: nn.Module, linear: Any, activation: Activation, layer: Any, reader: Any) -> Chain | str:
    """Return the chain around a dropout layer, or the reason why there is none."""
    if (isinstance(dropout, Dropout) and (dropout.activation or dropout.shared_axes)) or shared_axes(dropout):
        return "it has an activation inside, or shares mask values"
    if activation is None:
        return "no ReLU or sigmoid is right before it"
    if type(linear) is not nn.Linear:
        return "no torch.nn.Linear is right before its activation"
    return Chain(linear, activation, layer, reader if type(reader) is nn.Linear else None)


def _by_graph(model: nn.Module, graph: Graph, calls: Counter[int]) -> Iterator[_Around]:
    """Follow the graph of a model, and count the calls of its modules."""
    modules = dict(model.named_modules(remove_duplicate=False))
    called: dict[Any, nn.Module] = {node: modules[str(node.target)] for node in graph.nodes if node.op == "call_module"}
    calls.update(id(module) for module in called.values())
    for node, dropout in called.items():
        if is_plain(dropout):
            before = _read_alone(node)
            layer = called.get(before)
            reader = called.get(next(iter(node.users))) if len(node.users) == 1 else None
            yield dropout, called.get(_read_alone(before)), _activation(before, layer), layer, reader


def _read_alone(node: Any) -> Node | None:
    """Return the input of a node if no other node reads it."""
    source = node.args[0] if isinstance(node, Node) and node.args else None
    return source if isinstance(source, Node) and len(source.users) == 1 else None


def _activation(node: Node | None, layer: nn.Module | None) -> Activation:
    if layer is not None:
        return _LAYERS.get(type(layer))
    if node is None or node.op not in ("call_function", "call_method") or node.kwargs.get("inplace"):
        return None
    return _FUNCTIONS.get(node.target)


def _by_order(model: nn.Module, calls: Counter[int]) -> Iterator[_Around]:
    """Follow the order of each Sequential; the number of places in the tree stands for the number of calls."""
    calls.update(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for container in model.modules():
        if type(container).forward is not nn.Sequential.forward:
            continue
        padded = [None, None, *(layer for _, layer in children(container)), None]
        for linear, layer, dropout, reader in zip(padded, padded[1:], padded[2:], padded[3:]):
            if dropout is not None and is_plain(dropout):
                yield dropout, linear, _activation(None, layer), layer, reader
