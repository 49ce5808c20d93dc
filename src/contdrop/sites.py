"""Dropout of a model that is not a layer of its own, found without running it.

Noise is drawn in many places beside ``torch.nn.Dropout``: functions called in ``forward``, attention probabilities,
between the layers of a recurrent network. These cannot be exchanged from outside, but they can be named.

How they are found: torch's own modules by their attributes; all others by reading the Python code that their
``forward`` runs, their own methods and the functions it calls. There, each call of a dropout function is a site, and so
is each rate that is read (an attribute with "drop" in its name, or the ``p`` of a dropout layer). The values of these
come from the module itself, so a rate of 0 is no site. What this cannot see (rates that are made up on the way,
compiled code) is seen by :mod:`contdrop.counting`, which watches a pass.
"""

from __future__ import annotations

import ast
import functools
import inspect
import numbers
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from . import nn
from .compatibility import TORCH_DROPOUTS

# The layers of torch that multiply by a mask, and how many trailing axes share a value of it.
PLAIN: dict[Any, tuple[int, ...]] = {
    torch.nn.Dropout: (),
    torch.nn.Dropout1d: (-1,),
    torch.nn.Dropout2d: (2, 3),
    torch.nn.Dropout3d: (-3, -2, -1),
}
ALPHA = (torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout)
# Random layers of our own that are more than a mask on units.
_WHOLE_LAYERS = (nn.AdaptiveDropout, nn.DropConnectLinear, nn.FastDropoutLinear)

# Names of functions that drop, and which of their arguments is the rate.
_FUNCTIONS = {
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout", "feature_dropout"], ("p", 1)),
    **dict.fromkeys(["dropout_", "alpha_dropout", "feature_alpha_dropout"], ("p", 1)),
    "scaled_dot_product_attention": ("dropout_p", 4),
}
_RANDOM = {"bernoulli", "bernoulli_", "rand", "rand_like", "randn_like"}
_DEEPEST = 4  # functions within functions

Chain = tuple[str, ...]
# Arguments of a function: an attribute of the module, the module itself (an empty chain), a number, or not known.
Bound = tuple[tuple[str, "Chain | float | None"], ...]


class Unreachable(NamedTuple):
    """Dropout that cannot be exchanged.

    Attributes:
        name: The module that draws it.
        what: Such as "attention probabilities".
        rate: The drop rate; None if it cannot be told without running the model.
    """

    name: str
    what: str
    rate: float | None


def unreachable(model: torch.nn.Module) -> list[Unreachable]:
    """Dropout of a model, with a rate above 0, that is not a dropout layer."""
    found = []
    for name, module in model.named_modules():
        found += [Unreachable(name or type(module).__name__, what, rate) for what, rate in _of(module)]
    return found


def is_plain(module: torch.nn.Module) -> bool:
    """Whether it is a dropout layer that does what torch's or ours do, and nothing else."""
    if "forward" in vars(module):  # assigned to this very layer, as libraries that place layers on devices do
        return False
    if isinstance(module, nn.Dropout):
        return type(module).forward is nn.Dropout.forward
    return any(type(module).forward is layer.forward for layer in PLAIN) and isinstance(module, tuple(PLAIN))


def shared_axes(module: torch.nn.Module) -> tuple[int, ...]:
    if isinstance(module, nn.Dropout):
        return module.shared_axes
    return next(axes for layer, axes in PLAIN.items() if type(module).forward is layer.forward)


def _of(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    if isinstance(module, torch.nn.MultiheadAttention):
        yield from [("attention probabilities", module.dropout)] if module.dropout > 0 else []
    elif isinstance(module, torch.nn.RNNBase):
        if module.dropout > 0 and module.num_layers > 1:
            yield f"between the layers of {type(module).__name__}", module.dropout
    elif isinstance(module, _WHOLE_LAYERS):
        law = getattr(module, "law", None)
        strength = None if law is None else law.relative_variance
        yield f"masks of {type(module).__name__}", None if strength is None else strength / (1 + strength)
    elif isinstance(module, TORCH_DROPOUTS):
        rate = getattr(module, "p", None)
        if not is_plain(module) and rate != 0:
            yield f"{type(module).__name__}, a dropout layer with a forward of its own", rate
    elif not type(module).__module__.startswith("torch.nn."):
        yield from _hidden_layers(module)
        yield from _read(module)


def _hidden_layers(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Dropout layers in plain lists and dictionaries, which torch does not take for parts of the module."""
    for name, value in vars(module).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        for layer in inside if not name.startswith("_") else ():
            rate: Any = getattr(layer, "p", 0.0)
            if isinstance(layer, TORCH_DROPOUTS) and rate > 0:
                yield f"{type(layer).__name__} in {name}, which is no module", rate


def _read(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """What the code of a module says."""
    layer: Any = type(module)
    code = _code_of(layer)
    attention = any(word in type(module).__name__.lower() for word in ("attention", "attn"))
    told = False  # whether anything is known about the rate, be it 0
    seen: set[Chain] = set()
    for site in code.sites:
        rate = site.constant if site.chain is None else _number(module, site.chain)
        if site.chain is not None:
            seen.add(site.chain)
        told |= rate is not None
        if rate is not None and rate > 0:
            in_attention = attention or site.function == "scaled_dot_product_attention"
            what = "attention probabilities" if in_attention else "functional dropout"
            yield f"{what} ({site.function})", rate
    loose = bool(code.unknown or code.random)
    for chain in sorted(code.reads | (code.tested if loose else set())):
        rate = _number(module, chain)
        if rate is None or chain in seen or not _is_rate(module, chain, loose):
            continue
        told = True
        if 0 < rate <= 1:
            what = "attention probabilities" if attention else "functional dropout"
            yield f"{what} (rate self.{'.'.join(chain)})", rate
    if not told and code.unknown:
        yield f"functional dropout ({', '.join(sorted(code.unknown))})", None
    elif not told and code.random:
        yield f"random numbers of its own ({', '.join(sorted(code.random))})", None


def _is_rate(module: torch.nn.Module, chain: Chain, loose: bool) -> bool:
    if chain[-1] == "p":
        return loose or isinstance(_value(module, chain[:-1]), TORCH_DROPOUTS)
    return "drop" in chain[-1].lower() or (loose and chain[-1] in ("rate", "prob", "keep", "keep_prob"))


def _value(module: Any, chain: Chain) -> Any:
    for name in chain:
        module = getattr(module, name, None)
    return module


def _number(module: torch.nn.Module, chain: Chain) -> float | None:
    value = _value(module, chain)
    return None if type(value) is bool or not isinstance(value, numbers.Real) else float(value)


# Reading code.


class _Site(NamedTuple):
    """A call of a function that drops: with which rate, as a number or as an attribute of the module."""

    function: str
    constant: float | None
    chain: Chain | None


@dataclass
class _Code:
    """What the code of a class does about dropout; chains are attributes of the module, such as ("config", "dropout").

    Attributes:
        sites: Calls of dropout functions whose rate can be told.
        unknown: Names of those whose rate cannot.
        random: Names of other random functions that are called.
        reads: Attributes that are read.
        tested: Attributes that are read in conditions only.
    """

    sites: list[_Site] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    random: set[str] = field(default_factory=set)
    reads: set[Chain] = field(default_factory=set)
    tested: set[Chain] = field(default_factory=set)


@functools.lru_cache(maxsize=1024)
def _code_of(layer: type) -> _Code:
    code = _Code()
    done: set[Any] = set()
    pending: list[tuple[Any, Bound, int]] = [(getattr(layer, "forward", None), (("self", ()),), 0)]
    while pending:
        function, bound, depth = pending.pop()
        function = inspect.unwrap(function) if callable(function) else None
        if not isinstance(function, types.FunctionType) or (function, bound) in done or depth > _DEEPEST:
            continue
        done.add((function, bound))
        tree = _tree(function)
        if tree is None:
            _names_alone(function, code)
            continue
        reader = _Reader(layer, code, function, bound)
        for statement in tree.body:
            reader.visit(statement)
        pending += [(called, handed, depth + 1) for called, handed in reader.called]
    return code


def _tree(function: types.FunctionType) -> Any:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    first = tree.body[0]
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _names_alone(function: types.FunctionType, code: _Code) -> None:
    """For a function without source: what names it uses."""
    names = set(function.__code__.co_names)
    code.unknown |= names & _FUNCTIONS.keys() - {"dropout"}
    code.random |= names & _RANDOM
    code.reads |= {(name,) for name in names if "drop" in name}


class _Reader(ast.NodeVisitor):
    """Reads one function of a class; ``bound`` says what it was called with."""

    def __init__(self, layer: type, code: _Code, function: types.FunctionType, bound: Bound) -> None:
        self.layer, self.code, self.globals, self.bound = layer, code, function.__globals__, dict(bound)
        self.called: list[tuple[Any, Bound]] = []
        self.in_test = False

    def _chain(self, node: ast.AST) -> Chain | None:
        """The attribute of the module that an expression is; empty for the module itself, None for anything else."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        start = self.bound.get(node.id) if isinstance(node, ast.Name) else None
        return (*start, *reversed(names)) if isinstance(start, tuple) else None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = self._chain(node)
        if chain is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            (self.code.tested if self.in_test else self.code.reads).add(chain)

    def _conditional(self, node: Any) -> None:
        before, self.in_test = self.in_test, True
        self.visit(node.test)
        self.in_test = before
        for name in ("body", "orelse"):
            inside = getattr(node, name, [])
            for each in inside if isinstance(inside, list) else [inside]:
                self.visit(each)

    visit_If = visit_IfExp = visit_While = visit_Assert = _conditional  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        chain = self._chain(node.func)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        rate: ast.AST | None = None
        if chain is not None:
            if len(chain) == 1:
                self._follow(node, getattr(self.layer, chain[0], None), (("self", ()),))
        elif name in _FUNCTIONS:
            rate = self._site(node, name)
        elif name in _RANDOM:
            self.code.random.add(name)
        elif isinstance(node.func, ast.Name):
            self._follow(node, self.globals.get(name), ())
        if chain is None:
            self.visit(node.func)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if argument is not rate:
                self.visit(argument)

    def _site(self, node: ast.Call, name: str) -> ast.AST | None:
        """Notes a call of a dropout function; returns the argument that says the rate."""
        keyword, place = _FUNCTIONS[name]
        given = {each.arg: each.value for each in node.keywords}
        rate = given.get(keyword, node.args[place] if len(node.args) > place else None)
        training = given.get("training", node.args[place + 1] if len(node.args) > place + 1 else None)
        if isinstance(training, ast.Constant) and training.value is False:
            return rate
        if rate is None:
            if keyword == "p":  # torch's default
                self.code.sites.append(_Site(name, 0.5, None))
            return None
        value = self._told(rate)
        if isinstance(value, tuple):
            self.code.sites.append(_Site(name, None, value))
        elif value is not None:
            self.code.sites.append(_Site(name, value, None))
        else:
            self.code.unknown.add(name)
        return rate

    def _told(self, expression: ast.AST) -> Chain | float | None:
        """What an expression such as ``self.p if self.training else 0.0`` is: an attribute, a number, or not known."""
        inside = list(ast.walk(expression))
        chains = [chain for each in inside if (chain := self._chain(each)) and chain != ("training",)]
        constants: list[Any] = [each.value for each in inside if isinstance(each, ast.Constant)]
        constants += [self.bound.get(each.id) for each in inside if isinstance(each, ast.Name)]
        constants = [float(number) for number in constants if type(number) in (int, float)]
        return max(chains, key=len) if chains else max(constants, default=None)

    def _follow(self, node: ast.Call, function: Any, start: Bound) -> None:
        """Notes a function to read, with what is known of its arguments."""
        if not isinstance(function, types.FunctionType) or function.__module__.startswith("torch."):
            return
        parameters = inspect.signature(function).parameters
        bound: dict[str, Chain | float | None] = {
            name: each.default for name, each in parameters.items() if type(each.default) in (int, float)
        }
        handed: dict[str, ast.expr] = dict(zip(list(parameters)[len(start) :], node.args))
        handed |= {each.arg: each.value for each in node.keywords if each.arg is not None and each.arg in parameters}
        for name, argument in handed.items():
            is_module = isinstance(argument, ast.Name) and self.bound.get(argument.id) == ()
            bound[name] = () if is_module else self._told(argument)
        self.called.append((function, (*start, *bound.items())))
