"""Mutants: small deliberate faults, one at a time, in the source of a module.

A mutant is named by its module, the function it is in, what it changes and which of several alike it is. The name holds
no line, so a sample stays the same while other functions are edited.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
KINDS = ("comparison", "arithmetic", "boolean", "constant", "return", "statement")


@dataclass(frozen=True)
class Mutant:
    """One change. ``path`` leads from the module's tree to the node, by fields and list positions."""

    module: str
    function: str
    kind: str
    change: str
    occurrence: int
    line: int
    path: tuple[tuple[str, int | None], ...]
    choice: int

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}: {self.kind}: {self.change} #{self.occurrence}"

    def rank(self, seed: int) -> str:
        """Return the sort key in a sample: a hash that depends only on the seed and the name."""
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()


def find(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module."""
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    for node, path, function in _walk(ast.parse(source), (), ""):
        for choice, (kind, changed) in enumerate(_changes(node)):
            change = f"{_short(node)} -> {_short(changed)}"
            occurrence = seen[function, kind, change] = seen.get((function, kind, change), 0) + 1
            line = getattr(node, "lineno", 0)
            found.append(Mutant(module, function or "module", kind, change, occurrence, line, path, choice))
    return found


def apply(mutant: Mutant, source: str) -> ast.Module:
    """Return the module's tree with the change."""
    tree = ast.parse(source)
    *way, (field, place) = mutant.path
    parent: ast.AST = tree
    for name, at in way:
        parent = getattr(parent, name) if at is None else getattr(parent, name)[at]
    node = getattr(parent, field) if place is None else getattr(parent, field)[place]
    _, changed = list(_changes(node))[mutant.choice]
    ast.copy_location(changed, node)
    if place is None:
        setattr(parent, field, changed)
    else:
        getattr(parent, field)[place] = changed
    return ast.fix_missing_locations(tree)


def outermost(mutant: Mutant, source: str) -> tuple[str, int] | None:
    """Return name and first line of the outermost function around a mutant; None outside of function bodies."""
    node: ast.AST = ast.parse(source)
    names: list[str] = []
    for place, (field, at) in enumerate(mutant.path):
        if isinstance(node, ast.FunctionDef):
            if field != "body":
                return None  # a default is made where the function is
            first = min(each.lineno for each in (node, *node.decorator_list))
            return ".".join(names), first
        node = getattr(node, field) if at is None else getattr(node, field)[at]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and place < len(mutant.path) - 1:
            names.append(node.name)
    return None


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else f"{text[:50]}...{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_Path = tuple[tuple[str, "int | None"], ...]


def _walk(node: ast.AST, path: _Path, function: str) -> Iterator[tuple[ast.AST, _Path, str]]:
    """Yield every node that may be changed: no annotations, docstrings, assertions or decorators."""
    if path:
        yield node, path, function
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "ctx", "format_spec"):
            continue
        children = value if isinstance(value, list) else [value]
        for place, child in enumerate(children):
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield from _walk(child, (*path, (field, place if isinstance(value, list) else None)), function)


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    return isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom))


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare) and len(node.ops) >= 1:
        for at, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[at] = other()
                yield "comparison", changed
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC and not _is_type_union(node):
        yield "arithmetic", _with(node, op=_ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "arithmetic", copy.deepcopy(node.operand)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", copy.deepcopy(node.operand)
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and isinstance(
        node.test, (ast.Name, ast.Call, ast.Attribute)
    ):
        yield "boolean", _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return", _with(node, value=ast.Constant(None))
    elif isinstance(node, (ast.Raise, ast.Continue, ast.Break)) or _is_call(node):
        yield "statement", ast.Pass()


def _with(node: ast.AST, **fields: ast.AST) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_type_union(node: ast.BinOp | ast.AugAssign) -> bool:
    """Return True for ``str | None`` and the like, which only a type checker reads."""
    names = {"str", "int", "float", "bool", "bytes", "None", "Tensor", "list", "dict", "tuple"}
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and any(ast.unparse(side).partition("[")[0] in names for side in (node.left, node.right))
    )


def touched(tree: ast.Module, name: str) -> ast.Module:
    """Return the tree with a call of ``name`` at the start of every function, with the function's name."""

    def visit(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = f"{function}.{child.name}".lstrip(".")
            if isinstance(child, ast.FunctionDef):
                call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(inner)], [])
                docstring = isinstance(child.body[0], ast.Expr) and isinstance(child.body[0].value, ast.Constant)
                child.body.insert(int(docstring), ast.Expr(call))
            visit(child, inner)

    visit(tree, "")
    return ast.fix_missing_locations(tree)


def sample(mutants: Iterable[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return the first ``size`` mutants in the order of their ranks."""
    return sorted(mutants, key=lambda mutant: mutant.rank(seed))[:size]
