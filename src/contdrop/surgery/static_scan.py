"""Static search for dropout that is not a layer of its own.

Functions called in ``forward``, attention probabilities and recurrent networks drop units without a dropout layer. Such
sites cannot be replaced from outside, but they can be listed: for torch's own modules from their attributes, for others
by parsing the Python code of their ``forward``, their own methods and the functions it calls. A site is a call of a
dropout function, or a rate that is read (an attribute with "drop" in its name, or the ``p`` of a dropout layer). Rates
come from the module; a rate of 0 is not a site. No code of the model runs, so properties are not evaluated.
:mod:`contdrop.surgery.runtime_count` finds the rest by watching a forward pass.
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
from ..nn import equal_rate
from .dropout_layers import WHOLE, is_plain

# Dropout functions by name, with keyword and position of the rate.
_FUNCTIONS = {
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d", "native_dropout", "feature_dropout"], ("p", 1)),
    **dict.fromkeys(["dropout_", "alpha_dropout", "feature_alpha_dropout"], ("p", 1)),
    "scaled_dot_product_attention": ("dropout_p", 4),
}
_RANDOM = {"bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like"}
_FILLS = {"normal_", "uniform_"}  # methods of a tensor; functions of these names initialise parameters
_SAMPLES = {"sample", "rsample"}  # methods of torch.distributions
_UNKNOWN = object()  # value of an attribute that only code of the model can compute
_DEEPEST = 4  # nesting of functions that are followed

Chain = tuple[str, ...]  # names of nested attributes of the module; empty for the module itself
Rate = Chain | float | None  # an attribute of the module, a number, or unknown
Bound = tuple[tuple[str, Rate], ...]  # arguments of a function


class Unreachable(NamedTuple):
    """Dropout that cannot be replaced.

    Attributes:
        name: Module that draws it.
        what: Kind, such as "attention probabilities".
        rate: Drop rate; None if only running the model can tell.
    """

    name: str
    what: str
    rate: float | None


_FIELDS: Any = (types.MemberDescriptorType, type(vars(Unreachable)["rate"]))  # of slots, and of named tuples


def unreachable(model: torch.nn.Module) -> list[Unreachable]:
    """List the dropout of a model, with a rate above 0, that is not a dropout layer.

    Example:
        >>> unreachable(torch.nn.LSTM(8, 8, 2, dropout=0.2))
        [Unreachable(name='LSTM', what='between the layers of LSTM', rate=0.2)]
    """
    return [
        Unreachable(name or type(module).__name__, what, rate)
        for name, module in model.named_modules()
        for what, rate in _sites(module)
    ]


def out_of_reach(model: torch.nn.Module) -> str:
    """Name the first three unreachable sites, for a message; empty if there is none."""
    return some_of([f"{name} ({what})" for name, what, _ in unreachable(model)], 3)


def _sites(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Yield kind and rate of the unreachable dropout of one module, without its children."""
    layer = type(module)
    if layer.__module__ == parametrize.__name__:  # a class that torch derives for a module with parametrizations
        layer = layer.__bases__[0]
    if isinstance(module, torch.nn.MultiheadAttention):
        if module.dropout > 0:
            yield "attention probabilities", module.dropout
    elif isinstance(module, torch.nn.RNNBase):
        if module.dropout > 0 and module.num_layers > 1:
            yield f"between the layers of {type(module).__name__}", module.dropout
    elif isinstance(module, WHOLE):
        law = getattr(module, "law", None)
        rate = None if law is None else equal_rate(law.relative_variance)
        if rate != 0:
            yield f"masks of {type(module).__name__}", rate
    elif isinstance(module, TORCH_DROPOUTS):
        rate = _number(_attribute(module, "p"))
        if not is_plain(module) and rate != 0:
            yield f"{type(module).__name__}, a dropout layer with a forward of its own", rate
    elif not layer.__module__.startswith("torch.nn."):
        yield from _hidden_layers(module)
        yield from _sites_in_code(module, layer)


def _hidden_layers(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Yield dropout layers in plain lists and dictionaries, which torch does not register."""
    for name, value in vars(module).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        for layer in inside if not name.startswith("_") else ():
            rate = _number(_attribute(layer, "p")) if isinstance(layer, TORCH_DROPOUTS) else 0.0
            if rate != 0:
                yield f"{type(layer).__name__} in {name}, which is no module", rate


def _sites_in_code(module: torch.nn.Module, layer: type) -> Iterator[tuple[str, float | None]]:
    """Yield the sites that the code of a class shows, with the rates of this module."""
    code = _code_of(layer)
    kind = "functional dropout"
    if any(word in layer.__name__.lower() for word in ("attention", "attn")):
        kind = "attention probabilities"
    known = False  # a rate was found, be it 0
    unknown = set(code.unknown)
    seen: set[Chain] = set()
    for function, given in [*code.sites, *_held_functions(module, code)]:
        value = given
        if isinstance(given, tuple):
            seen.add(given)
            value = _value(module, given)
        rate = _number(value)
        known |= rate is not None
        if rate is None and value is not None and value is not False:  # None and False turn dropout off
            unknown.add(function)
        elif rate is not None and rate > 0:
            in_attention = function == "scaled_dot_product_attention"
            yield f"{'attention probabilities' if in_attention else kind} ({function})", rate
    # Where something random is drawn at an unknown rate, more attributes count as its rate.
    loose = bool(unknown or code.random)
    for chain in sorted((code.reads | (code.tested if loose else set())) - seen):
        found = _number(_value(module, chain)) if _is_rate(module, chain, loose) else None
        known |= found is not None
        if found is not None and 0 < found <= 1:
            yield f"{kind} (rate self.{'.'.join(chain)})", found
    if not known and unknown:
        yield f"functional dropout ({', '.join(sorted(unknown))})", None
    elif not known and code.random:
        yield f"random numbers of its own ({', '.join(sorted(code.random))})", None


def _held_functions(module: torch.nn.Module, code: _Code) -> Iterator[tuple[str, Rate]]:
    """Yield calls of dropout functions that the instance holds, such as ``self.drop = partial(F.dropout, p=0.2)``."""
    for name, given in sorted(code.held, key=str):
        function, rate = vars(module).get(name), given
        if isinstance(function, functools.partial):
            rate = function.keywords.get("p", given)
            function = function.func
        called = getattr(function, "__name__", "")
        if called in _FUNCTIONS and (getattr(function, "__module__", None) or "torch").startswith("torch"):
            yield called, 0.5 if rate is None else rate  # torch's default


def _is_rate(module: torch.nn.Module, chain: Chain, loose: bool) -> bool:
    if chain[-1] == "p":
        return loose or isinstance(_value(module, chain[:-1]), TORCH_DROPOUTS)
    return "drop" in chain[-1].lower() or (loose and chain[-1] in ("rate", "prob", "keep", "keep_prob"))


def _value(holder: Any, chain: Chain) -> Any:
    """Return the value of nested attributes; None if there is none."""
    for name in chain:
        if holder is not _UNKNOWN:
            holder = _attribute(holder, name)
    return holder


def _attribute(holder: Any, name: str) -> Any:
    """Return an attribute without running a property, which may change the model, cache its value, or raise."""
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


# Parsing code.


@dataclass
class _Code:
    """Dropout in the code of a class.

    Attributes:
        sites: Dropout functions that are called with a known rate.
        unknown: Dropout functions that are called with an unknown rate.
        random: Other random functions that are called.
        reads: Attributes that are read.
        tested: Attributes that are read in conditions.
        held: Attributes that are called although the class has no such method, and the rate they are called with.
    """

    sites: list[tuple[str, Rate]] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    random: set[str] = field(default_factory=set)
    reads: set[Chain] = field(default_factory=set)
    tested: set[Chain] = field(default_factory=set)
    held: set[tuple[str, Rate]] = field(default_factory=set)


@functools.lru_cache(maxsize=1024)
def _code_of(layer: type) -> _Code:
    """Parse the forward of a class, and the functions it calls."""
    code = _Code()
    done: set[Any] = set()
    forward = _python_function(getattr(layer, "forward", None))
    pending: list[tuple[Any, Bound, int]] = [(forward, _self_argument(forward), 0)] if forward else []
    while pending:
        function, bound, depth = pending.pop()
        if (function, bound) in done or depth > _DEEPEST:
            continue
        done.add((function, bound))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        except (OSError, TypeError, SyntaxError):
            tree = None
        if not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):  # no source: only its names are known
            names = set(function.__code__.co_names)
            code.unknown |= names & _FUNCTIONS.keys() - {"dropout"}
            code.random |= names & _RANDOM
            code.reads |= {(name,) for name in names if "drop" in name}
            continue
        reader = _Reader(layer, code, function, bound)
        for statement in tree.body:
            reader.visit(statement)
        pending += [(called, passed, depth + 1) for called, passed in reader.called]
    return code


def _python_function(found: Any) -> types.FunctionType | None:
    """Return the function below decorators; None if it is not written in Python."""
    found = inspect.unwrap(found) if callable(found) else None
    return found if isinstance(found, types.FunctionType) else None


def _self_argument(method: types.FunctionType) -> Bound:
    """Bind the first argument of a method, whatever its name, to the module."""
    return tuple((name, ()) for name in method.__code__.co_varnames[: min(1, method.__code__.co_argcount)])


class _Reader(ast.NodeVisitor):
    """Visitor of one function of a class, called with the arguments ``bound``."""

    def __init__(self, layer: type, code: _Code, function: types.FunctionType, bound: Bound) -> None:
        self.layer, self.code, self.bound = layer, code, dict(bound)
        self.globals = function.__globals__
        self.enclosing: dict[str, Any] = {}  # closure variables; ``__class__`` is the class the function is written in
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                self.enclosing[name] = cell.cell_contents
        self.called: list[tuple[Any, Bound]] = []
        self.in_test = False

    def _chain(self, node: ast.AST) -> Chain | None:
        """Return the attribute of the module that an expression is; None for other expressions."""
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
                    rates = [each.value for each in node.keywords if each.arg == "p"] + node.args[1:2]
                    self.code.held.add((name, self._rate(rates[0]) if rates else None))
                self._follow(node, getattr(self.layer, name, None), method=not isinstance(method, staticmethod))
        elif (base := self._base(node.func)) is not None:
            self._follow(node, getattr(base, name, None), method=isinstance(base, super))
        elif name in _FUNCTIONS:
            rate = self._add_site(node, name)
        elif self._is_random(node.func, name):
            self.code.random.add(name)
        elif isinstance(node.func, ast.Name):
            self._follow(node, self._named(node.func))
        if chain is None:
            self.visit(node.func)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if argument is not rate:
                self.visit(argument)

    def _named(self, node: ast.AST | None) -> Any:
        """Return the value of a name from outside of the function."""
        name = node.id if isinstance(node, ast.Name) else ""
        return self.enclosing[name] if name in self.enclosing else self.globals.get(name)

    def _base(self, function: ast.AST) -> Any:
        """Return the object that ``super().name`` or ``Class.name`` looks a method up in; None for other functions."""
        of = function.value if isinstance(function, ast.Attribute) else None
        is_super = isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "super"
        if isinstance(of, ast.Call) and is_super:
            found: Any = self._named(of.args[0]) if of.args else self.enclosing.get("__class__")
        else:
            found = self._named(of)
        if not isinstance(found, type) or found not in self.layer.__mro__:
            return None
        return super(found, self.layer) if is_super else found

    def _is_random(self, function: ast.AST, name: str) -> bool:
        """Tell whether a function draws random numbers other than by dropout, and does not initialise a parameter."""
        if name in _RANDOM:
            return True
        if not isinstance(function, ast.Attribute):
            return False
        owner = ast.unparse(function.value)
        if name in _FILLS:
            return owner.split(".")[-1] != "init"
        return (name in _SAMPLES and owner != "random") or (owner, name) == ("torch", "normal")

    def _add_site(self, node: ast.Call, name: str) -> ast.AST | None:
        """Note a call of a dropout function, and return the argument that is the rate."""
        keyword, place = _FUNCTIONS[name]
        given = {each.arg: each.value for each in node.keywords}
        rate = given.get(keyword, node.args[place] if len(node.args) > place else None)
        training = given.get("training", node.args[place + 1] if len(node.args) > place + 1 else None)
        if isinstance(training, ast.Constant) and training.value is False:
            return rate
        value = self._rate(rate) if rate is not None else 0.5 if keyword == "p" else 0.0  # torch's defaults
        if value is None:
            self.code.unknown.add(name)
        elif rate is not None or value:
            self.code.sites.append((name, value))
        return rate

    def _rate(self, expression: ast.AST) -> Rate:
        """Return the rate that an expression such as ``self.p if self.training else 0.0`` gives in training."""
        inside = list(ast.walk(expression))
        in_tests = {each for test in inside if isinstance(test, ast.IfExp) for each in ast.walk(test.test)}
        found = [(each, chain) for each in inside if (chain := self._chain(each)) and chain != ("training",)]
        chains = [chain for each, chain in found if each not in in_tests] or [chain for _, chain in found]
        constants: list[Any] = [each.value for each in inside if isinstance(each, ast.Constant)]
        constants += [self.bound.get(each.id) for each in inside if isinstance(each, ast.Name)]
        constants = [float(number) for number in constants if type(number) in (int, float)]
        return max(chains, key=len) if chains else max(constants, default=None)

    def _follow(self, node: ast.Call, function: Any, *, method: bool = False) -> None:
        """Note a function to parse, with what is known of its arguments."""
        function = _python_function(function)
        if function is None or (function.__module__ or "").startswith("torch."):
            return
        parameters = inspect.signature(function).parameters
        start = _self_argument(function) if method else ()
        bound: dict[str, Rate] = {
            name: each.default for name, each in parameters.items() if type(each.default) in (int, float)
        }
        passed: dict[str, ast.expr] = dict(zip(list(parameters)[len(start) :], node.args))
        passed |= {each.arg: each.value for each in node.keywords if each.arg is not None and each.arg in parameters}
        for name, argument in passed.items():
            is_module = isinstance(argument, ast.Name) and self.bound.get(argument.id) == ()
            bound[name] = () if is_module else self._rate(argument)
        self.called.append((function, (*start, *bound.items())))
