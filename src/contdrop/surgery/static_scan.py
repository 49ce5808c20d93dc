"""Static search for dropout that is not a layer of its own.

Functions called in ``forward``, attention probabilities and recurrent networks drop units without a dropout layer. Such
sites cannot be replaced from outside, but they can be listed: for torch's own modules from their attributes, for others
from the names and attributes in the Python code of their ``forward``, their own methods and the functions it calls. A
site is a call of a function of torch's that drops or draws, or an attribute that is a rate (a number with "drop" in its
name, or the ``p`` of a dropout layer). A rate of 0 is not a site. No code of the model runs, so properties are not
evaluated. :mod:`contdrop.surgery.runtime_count` finds the rest by watching a forward pass.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import inspect
import numbers
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .. import nn
from .._text import some_of
from .._torch.private import TORCH_DROPOUTS
from ..nn import equal_rate
from .dropout_layers import WHOLE, is_plain

# Dropout functions by name, with keyword, position and default of the rate.
_FUNCTIONS = {
    **dict.fromkeys(["dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_"], ("p", 1, 0.5)),
    **dict.fromkeys(["native_dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"], ("p", 1, 0.5)),
    "scaled_dot_product_attention": ("dropout_p", 4, 0.0),
}
_RANDOM = {"bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like", "normal"}
# Methods of tensors and of torch.distributions; functions of these names are torch.nn.init's, or Python's.
_METHODS = {"normal_", "uniform_", "sample", "rsample"}
_UNKNOWN = object()  # value that only code of the model can compute
_DEEPEST = 4  # nesting of functions that are followed


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
        if rate != 0
    ]


def out_of_reach(model: torch.nn.Module) -> str:
    """Name the first three unreachable sites, for a message; empty if there is none."""
    return some_of([f"{name} ({what})" for name, what, _ in unreachable(model)], 3)


def _sites(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Yield kind and rate of the unreachable dropout of one module, without its children."""
    if isinstance(module, torch.nn.MultiheadAttention):
        yield "attention probabilities", module.dropout
    elif isinstance(module, torch.nn.RNNBase):
        yield f"between the layers of {type(module).__name__}", module.dropout if module.num_layers > 1 else 0.0
    elif isinstance(module, WHOLE):
        law = getattr(module, "law", None)
        yield f"masks of {type(module).__name__}", None if law is None else equal_rate(law.relative_variance)
    elif isinstance(module, TORCH_DROPOUTS):
        rate = _number(_attribute(module, "p"))
        yield f"{type(module).__name__}, a dropout layer with a forward of its own", 0.0 if is_plain(module) else rate
    else:
        yield from _hidden_layers(module)
        yield from _sites_in_code(module)


def _hidden_layers(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Yield dropout layers in plain lists and dictionaries, which torch does not register."""
    for name, value in vars(module).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        for layer in inside if not name.startswith("_") else ():
            if isinstance(layer, TORCH_DROPOUTS):
                yield f"{type(layer).__name__} in {name}, which is no module", _number(_attribute(layer, "p"))


def _sites_in_code(module: torch.nn.Module) -> Iterator[tuple[str, float | None]]:
    """Yield the sites that the code of a module shows."""
    code = _Code(module)
    kind = "functional dropout"
    if any(word in type(module).__name__.lower() for word in ("attention", "attn")):
        kind = "attention probabilities"
    known = [(name, rate) for name, rate in code.called if rate is not _UNKNOWN]
    for name, rate in known:
        yield f"{'attention probabilities' if name == 'scaled_dot_product_attention' else kind} ({name})", rate
    passed = {rate.path for _, rate in known if isinstance(rate, _Setting)}
    read = {path: rate for path, rate in sorted(code.read.items()) if path not in passed and 0 <= rate <= 1}
    for path, rate in read.items():
        yield f"{kind} (rate self.{path})", rate
    # A rate that is known, be it 0, is taken for that of all functions whose rate is not.
    if not known and not read and code.called:
        yield f"functional dropout ({', '.join(sorted({name for name, _ in code.called}))})", None
    elif not known and not read and code.random:
        yield f"random numbers of its own ({', '.join(sorted(code.random))})", None


# Reading code.


class _Setting(float):
    """Number that an attribute of the module holds."""

    path: str  # of the attribute


class _Code:
    """Dropout in the forward of a module, and in the functions that it calls.

    Attributes:
        called: Dropout functions that are called, and their rates, which may be unknown.
        random: Other random functions that are called.
        read: Rates that are read, by path of the attribute.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.called: list[tuple[str, Any]] = []
        self.random: set[str] = set()
        self.read: dict[str, float] = {}
        self._done: set[Any] = set()
        self._follow(getattr(type(module), "forward", None), [module], {}, 0)

    def _follow(self, function: Any, arguments: list[Any], named: dict[str, Any], depth: int) -> None:
        """Read the code of a function in Python that is called with these arguments."""
        if isinstance(function, types.MethodType):
            function, arguments = function.__func__, [function.__self__, *arguments]
        function = inspect.unwrap(function)
        if not isinstance(function, types.FunctionType) or (function.__module__ or "").startswith("torch."):
            return
        nodes, defaults = _parsed(function)
        passed = {**defaults, **dict(zip(function.__code__.co_varnames, arguments)), **named}
        call = (function, *(value for value in passed.values() if isinstance(value, float)))
        if call in self._done or depth > _DEEPEST:
            return
        self._done.add(call)
        enclosing = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                enclosing[name] = cell.cell_contents
        local = dict.fromkeys(function.__code__.co_varnames, _UNKNOWN)
        scope = collections.ChainMap(passed, local, enclosing, function.__globals__)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._note_call(node, scope, depth)
            elif isinstance(rate := self._value(node, scope), _Setting):
                name = rate.path.rpartition(".")[2]
                of_layer = isinstance(self._value(node.value, scope), TORCH_DROPOUTS)
                if "drop" in name.lower() or (name == "p" and of_layer):
                    self.read[rate.path] = rate

    def _note_call(self, node: ast.Call, scope: Mapping[str, Any], depth: int) -> None:
        """Note the call of a dropout function, or of another random one; follow that of any other."""
        function = self._value(node.func, scope)
        called, kept = function, {}
        if isinstance(function, functools.partial):
            called, kept = function.func, function.keywords
        is_function = isinstance(called, (types.FunctionType, types.MethodType, types.BuiltinFunctionType))
        name = called.__name__ if is_function else ""
        known = name and (called.__module__ or "torch").startswith(("torch", "contdrop.functional"))
        given = {each.arg: each.value for each in node.keywords if each.arg}
        if known and name in _FUNCTIONS:
            keyword, place, default = _FUNCTIONS[name]
            rate = given.get(keyword, node.args[place] if len(node.args) > place else None)
            training = given.get("training", node.args[2] if len(node.args) > 2 else None)
            if keyword != "p" or not isinstance(training, ast.Constant) or training.value is not False:
                self.called.append((name, kept.get(keyword, default) if rate is None else self._rate(rate, scope)))
        elif known and name in _RANDOM:
            self.random.add(name)
        elif called is _UNKNOWN and isinstance(node.func, ast.Attribute):
            root = ast.unparse(node.func).partition(".")[0]
            if node.func.attr in _RANDOM | _METHODS and scope.get(root) is not self.module:
                self.random.add(node.func.attr)
        elif is_function and (isinstance(node.func, ast.Name) or hasattr(type(self.module), name)):
            values = [self._argument(each, scope) for each in node.args]
            self._follow(called, values, {key: self._argument(each, scope) for key, each in given.items()}, depth + 1)

    def _value(self, node: ast.AST, scope: Mapping[str, Any]) -> Any:
        """Return the value of a name, a constant, an attribute of such, or ``super()``."""
        if isinstance(node, ast.Constant):
            return _number(node.value)
        if isinstance(node, ast.Name):
            return scope.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            found = _attribute(self._value(node.value, scope), node.attr)
            if (number := _number(found)) is None:
                return found
            root, _, path = ast.unparse(node).partition(".")
            if scope.get(root) is self.module:
                number = _Setting(number)
                number.path = path
            return number
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            start = self._value(node.args[0], scope) if node.args else scope.get("__class__")
            return super(start, self.module) if start in type(self.module).__mro__ else _UNKNOWN
        return _UNKNOWN

    def _rate(self, expression: ast.expr, scope: Mapping[str, Any]) -> Any:
        """Return the rate that an expression such as ``self.p if self.training else 0.0`` gives in training."""
        parts = list(ast.walk(expression))
        for kinds in (ast.Attribute, (ast.Name, ast.Constant)):
            values = [self._value(part, scope) for part in parts if isinstance(part, kinds)]
            known = [value for value in values if _number(value) is not None]
            if known or any(value is _UNKNOWN for value in values):
                return max(known, default=_UNKNOWN)
        value = self._value(expression, scope)
        return 0.0 if value is None or value is False else _UNKNOWN

    def _argument(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        value = self._value(node, scope)
        return self._rate(node, scope) if value is _UNKNOWN else value


@functools.lru_cache(maxsize=1024)
def _parsed(function: types.FunctionType) -> tuple[list[ast.Call | ast.Attribute], dict[str, float]]:
    """Return the calls and attributes in the code of a function, but for its conditions, and its numeric defaults."""
    parameters = inspect.signature(function).parameters.values()
    defaults = {each.name: number for each in parameters if (number := _number(each.default)) is not None}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        tree = None
    if not isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):  # no source: all its names may be attributes
        owner = ast.Name(function.__code__.co_varnames[0] if function.__code__.co_varnames else "")
        return [ast.Attribute(owner, name) for name in function.__code__.co_names], defaults
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            node.test = ast.Constant(None)
    inside = [node for statement in tree.body for node in ast.walk(statement)]
    return [node for node in inside if isinstance(node, (ast.Call, ast.Attribute))], defaults


def _attribute(holder: Any, name: str) -> Any:
    """Return an attribute without running a property, which may change the model, cache its value, or raise."""
    if holder is _UNKNOWN:
        return _UNKNOWN
    if type(holder) is super:
        behind: Any = holder
        found: Any = getattr(super(behind.__thisclass__, type(behind.__self__)), name, None)
        return types.MethodType(found, behind.__self__) if isinstance(found, types.FunctionType) else _UNKNOWN
    found = inspect.getattr_static(holder, name, None)
    of_ours = isinstance(found, property) and getattr(found.fget, "__module__", "") == nn.__name__
    if of_ours or isinstance(found, _FIELDS):
        return found.__get__(holder)
    if isinstance(found, staticmethod):
        return found.__func__
    if isinstance(found, types.FunctionType):
        is_method = not isinstance(holder, (type, types.ModuleType)) and name not in getattr(holder, "__dict__", ())
        return types.MethodType(found, holder) if is_method else found
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
