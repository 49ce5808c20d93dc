"""Dropout of a model that is not a layer of its own, found without running it.

Noise is drawn in many places beside ``torch.nn.Dropout``: functions called in ``forward``, attention probabilities,
between the layers of a recurrent network. These cannot be exchanged from outside, but they can be named.

How they are found: torch's own modules by their attributes; all others by reading the Python code that their
``forward`` runs, their own methods and the functions it calls. There, each call of a dropout function is a site, and so
is each rate that is read (an attribute with "drop" in its name, or the ``p`` of a dropout layer). The values of these
come from the module itself, so a rate of 0 is no site. No code of the model is run for it: what a property would give
is not known. What this cannot see (rates that are made up on the way, compiled code) is seen by
:mod:`contdrop.surgery.trace`, which watches a pass.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import numbers
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.utils import parametrize

from .. import nn
from .._text import some_of
from .._torch.private import TORCH_DROPOUTS
from ..laws import equal_rate

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
_RANDOM = {"bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like"}
_FILLS = {"normal_", "uniform_"}  # random as methods of a tensor; functions of these names initialise parameters
_SAMPLES = {"sample", "rsample"}  # of torch.distributions
_UNKNOWN = object()  # in place of a value that takes running code of the model
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


_FIELDS: Any = (types.MemberDescriptorType, type(vars(Unreachable)["rate"]))  # of slots, and of named tuples


def unreachable(model: torch.nn.Module) -> list[Unreachable]:
    """Dropout of a model, with a rate above 0, that is not a dropout layer."""
    found = []
    for name, module in model.named_modules():
        found += [Unreachable(name or type(module).__name__, what, rate) for what, rate in _of(module)]
    return found


def out_of_reach(model: torch.nn.Module) -> str:
    """Where the first few of them are, for a message; empty if there is none."""
    return some_of([f"{name} ({what})" for name, what, _ in unreachable(model)], 3)


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
        rate = None if law is None else equal_rate(law.relative_variance)
        yield from [] if rate == 0 else [(f"masks of {type(module).__name__}", rate)]
    elif isinstance(module, TORCH_DROPOUTS):
        rate = _number(_attribute(module, "p"))
        if not is_plain(module) and rate != 0:
            yield f"{type(module).__name__}, a dropout layer with a forward of its own", rate
    elif not _written_class(module).__module__.startswith("torch.nn."):
        yield from _hidden_layers(module)
        yield from _read(module)


def _written_class(module: torch.nn.Module) -> type:
    """The class that somebody wrote: torch derives one of its own from it for a module with parametrizations."""
    layer = type(module)
    return layer.__bases__[0] if layer.__module__ == parametrize.__name__ else layer


def _hidden_layers(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Dropout layers in plain lists and dictionaries, which torch does not take for parts of the module."""
    for name, value in vars(module).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        for layer in inside if not name.startswith("_") else ():
            rate = _number(_attribute(layer, "p")) if isinstance(layer, TORCH_DROPOUTS) else 0.0
            if rate != 0:
                yield f"{type(layer).__name__} in {name}, which is no module", rate


def _read(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """What the code of a module says."""
    layer: Any = _written_class(module)
    code = _code_of(layer)
    attention = any(word in layer.__name__.lower() for word in ("attention", "attn"))
    told = False  # whether anything is known about the rate, be it 0
    unknown = set(code.unknown)
    seen: set[Chain] = set()
    for site in [*code.sites, *_held(module, code)]:
        value = site.constant if site.chain is None else _value(module, site.chain)
        rate = _number(value)
        if site.chain is not None:
            seen.add(site.chain)
        if rate is None and value is not None and value is not False:  # both mean that it is off
            unknown.add(site.function)
        told |= rate is not None
        if rate is not None and rate > 0:
            in_attention = attention or site.function == "scaled_dot_product_attention"
            what = "attention probabilities" if in_attention else "functional dropout"
            yield f"{what} ({site.function})", rate
    loose = bool(unknown or code.random)
    for chain in sorted(code.reads | (code.tested if loose else set())):
        rate = _number(_value(module, chain)) if _is_rate(module, chain, loose) else None
        if rate is None or chain in seen:
            continue
        told = True
        if 0 < rate <= 1:
            what = "attention probabilities" if attention else "functional dropout"
            yield f"{what} (rate self.{'.'.join(chain)})", rate
    if not told and unknown:
        yield f"functional dropout ({', '.join(sorted(unknown))})", None
    elif not told and code.random:
        yield f"random numbers of its own ({', '.join(sorted(code.random))})", None


def _held(module: torch.nn.Module, code: _Code) -> Iterator[_Site]:
    """Calls of dropout functions that the module itself holds, such as ``self.drop = partial(F.dropout, p=0.2)``."""
    for name, given in sorted(code.held, key=str):
        function, rate = vars(module).get(name), given
        if isinstance(function, functools.partial):
            rate = function.keywords.get("p", given)
            function = function.func
        called = getattr(function, "__name__", "")
        if called in _FUNCTIONS and (getattr(function, "__module__", None) or "torch").startswith("torch"):
            rate = 0.5 if rate is None else rate  # torch's default
            yield _Site(called, None, rate) if isinstance(rate, tuple) else _Site(called, _number(rate), None)


def _is_rate(module: torch.nn.Module, chain: Chain, loose: bool) -> bool:
    if chain[-1] == "p":
        return loose or isinstance(_value(module, chain[:-1]), TORCH_DROPOUTS)
    return "drop" in chain[-1].lower() or (loose and chain[-1] in ("rate", "prob", "keep", "keep_prob"))


def _value(holder: Any, chain: Chain) -> Any:
    """An attribute of an attribute, and so on; None if there is none."""
    for name in chain:
        if holder is not _UNKNOWN:
            holder = _attribute(holder, name)
    return holder


def _attribute(holder: Any, name: str) -> Any:
    """What getattr gives, but for what is computed: a property may change the model, keep what it gives, or raise."""
    found: Any = inspect.getattr_static(holder, name, None)
    of_ours = isinstance(found, property) and getattr(found.fget, "__module__", "") == nn.__name__
    if of_ours or isinstance(found, _FIELDS):
        return found.__get__(holder)
    if found is not None:
        return _UNKNOWN if hasattr(type(found), "__get__") else found
    # Left are the parts of a module, and settings that are looked up by name.
    look_up: Any = torch.nn.Module.__getattr__ if isinstance(holder, torch.nn.Module) else getattr
    try:
        return look_up(holder, name)
    except Exception:
        return None


def _number(value: object) -> float | None:
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
        held: Attributes that are called though the class has none of the name, and the rate if they are to drop.
    """

    sites: list[_Site] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    random: set[str] = field(default_factory=set)
    reads: set[Chain] = field(default_factory=set)
    tested: set[Chain] = field(default_factory=set)
    held: set[tuple[str, Chain | float | None]] = field(default_factory=set)


@functools.lru_cache(maxsize=1024)
def _code_of(layer: type) -> _Code:
    code = _Code()
    done: set[Any] = set()
    forward = _function(getattr(layer, "forward", None))
    pending: list[tuple[Any, Bound, int]] = [(forward, _itself(forward), 0)] if forward else []
    while pending:
        function, bound, depth = pending.pop()
        if (function, bound) in done or depth > _DEEPEST:
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


def _function(found: Any) -> types.FunctionType | None:
    """What is below decorators, if it is written in Python."""
    found = inspect.unwrap(found) if callable(found) else None
    return found if isinstance(found, types.FunctionType) else None


def _itself(method: types.FunctionType) -> Bound:
    """That the first argument of a method, whatever its name, is the module."""
    return tuple((name, ()) for name in method.__code__.co_varnames[: min(1, method.__code__.co_argcount)])


def _enclosing(function: types.FunctionType) -> dict[str, Any]:
    """What the names that a function takes from around it stand for; ``__class__`` is the class it is written in."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


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
        self.layer, self.code, self.bound = layer, code, dict(bound)
        self.globals, self.enclosing = function.__globals__, _enclosing(function)
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
                method = inspect.getattr_static(self.layer, name, None)
                if method is None:
                    self.code.held.add((name, self._given(node)))
                self._follow(node, getattr(self.layer, name, None), itself=not isinstance(method, staticmethod))
        elif (base := self._base(node.func)) is not None:
            self._follow(node, getattr(base, name, None), itself=isinstance(base, super))
        elif name in _FUNCTIONS:
            rate = self._site(node, name)
        elif name in _RANDOM or self._fills(node.func) or self._samples(node.func):
            self.code.random.add(name)
        elif isinstance(node.func, ast.Name):
            self._follow(node, self._named(node.func))
        if chain is None:
            self.visit(node.func)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if argument is not rate:
                self.visit(argument)

    def _named(self, node: ast.AST | None) -> Any:
        """What a name from outside of the function stands for."""
        name = node.id if isinstance(node, ast.Name) else ""
        return self.enclosing[name] if name in self.enclosing else self.globals.get(name)

    def _base(self, function: ast.AST) -> Any:
        """What a method is looked up in by ``super().name`` or ``Class.name``; None for other functions."""
        of = function.value if isinstance(function, ast.Attribute) else None
        if isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "super":
            below: Any = self._named(of.args[0]) if of.args else self.enclosing.get("__class__")
            return super(below, self.layer) if self._is_above(below) else None
        named = self._named(of)
        return named if self._is_above(named) else None

    def _is_above(self, found: object) -> bool:
        return isinstance(found, type) and found in self.layer.__mro__

    def _fills(self, function: ast.AST) -> bool:
        """Whether it is a method that fills a tensor with random numbers, and none of torch.nn.init."""
        if not isinstance(function, ast.Attribute) or function.attr not in _FILLS:
            return False
        return ast.unparse(function.value).split(".")[-1] != "init"

    def _samples(self, function: ast.AST) -> bool:
        """Whether it is torch.normal, or draws from one of torch's distributions."""
        if not isinstance(function, ast.Attribute) or ast.unparse(function.value) == "random":
            return False
        return function.attr in _SAMPLES or ast.unparse(function) == "torch.normal"

    def _given(self, node: ast.Call) -> Chain | float | None:
        """The rate, if the function that is called takes it as most do: second, or by the name p."""
        rates = [each.value for each in node.keywords if each.arg == "p"] + node.args[1:2]
        return self._told(rates[0]) if rates else None

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
        tests = [each.test for each in inside if isinstance(each, ast.IfExp)]
        in_tests = {each for test in tests for each in ast.walk(test)}
        found = [(each, chain) for each in inside if (chain := self._chain(each)) and chain != ("training",)]
        chains = [chain for each, chain in found if each not in in_tests] or [chain for _, chain in found]
        constants: list[Any] = [each.value for each in inside if isinstance(each, ast.Constant)]
        constants += [self.bound.get(each.id) for each in inside if isinstance(each, ast.Name)]
        constants = [float(number) for number in constants if type(number) in (int, float)]
        return max(chains, key=len) if chains else max(constants, default=None)

    def _follow(self, node: ast.Call, function: Any, *, itself: bool = False) -> None:
        """Notes a function to read, and what is known of its arguments; ``itself``: the first of them is the module."""
        function = _function(function)
        if function is None or (function.__module__ or "").startswith("torch."):
            return
        parameters = inspect.signature(function).parameters
        start = _itself(function) if itself else ()
        bound: dict[str, Chain | float | None] = {
            name: each.default for name, each in parameters.items() if type(each.default) in (int, float)
        }
        handed: dict[str, ast.expr] = dict(zip(list(parameters)[len(start) :], node.args))
        handed |= {each.arg: each.value for each in node.keywords if each.arg is not None and each.arg in parameters}
        for name, argument in handed.items():
            is_module = isinstance(argument, ast.Name) and self.bound.get(argument.id) == ()
            bound[name] = () if is_module else self._told(argument)
        self.called.append((function, (*start, *bound.items())))
