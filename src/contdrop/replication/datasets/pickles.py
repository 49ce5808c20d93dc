"""Values out of a pickle without unpickling it: the few instructions that plain data need are followed, no other.

``pickle`` imports and calls whatever a file names, and even an unpickler that is told what it may import allocates by
numbers in the file. Here an array is the three things that its pickle says of it, and no name is looked up.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any

from ..._text import printable
from ...errors import UserError

# The names by which versions of NumPy have pickled arrays.
_ARRAYS = {f"numpy.{core}.multiarray _reconstruct" for core in ("core", "_core")}
_TYPE = "numpy dtype"
_INERT = {*_ARRAYS, _TYPE, "numpy ndarray"}
_MOST_DIMENSIONS = 8


@dataclasses.dataclass
class Array:
    """What a pickle says of an array: whether its content has that shape and type is not checked."""

    shape: tuple[int, ...] | None = None
    kind: str | None = None  # such as "u1"
    content: Any = None  # a byte per character, or bytes


def read(content: bytes, file: str) -> Any:
    """The value that a pickle describes: dictionaries, lists, tuples, numbers, text (bytes as Latin-1) and arrays.

    Args:
        content: The whole file.
        file: What to call it in an error.

    Raises:
        UserError: It asks for anything else, or is no whole pickle.
    """
    reader = _Reader(file)
    try:
        for instruction, argument, _ in pickletools.genops(content):
            reader.follow(instruction.name, argument)
        (value,) = reader.stack
    except UserError:
        raise
    # A damaged pickle takes values from an empty stack, indexes what is no list, and more.
    except Exception as error:
        raise UserError(f"{file}: damaged, no pickle that can be read ({printable(str(error)[:200])[:100]})") from error
    return value


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.stack.append(_VALUES[name](argument))
        elif name in _OTHERS:
            _OTHERS[name](self, argument)
        else:
            raise UserError(
                f"{self.file}: expected a pickle of plain data; it has the instruction {name}, not followed"
            )

    def since_mark(self) -> list[Any]:
        at = self._marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def mark(self, _: Any) -> None:
        self._marks.append(len(self.stack))

    def put(self, number: int) -> None:
        self._memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        self.stack.append(self._memo[number])

    def last(self, number: int) -> tuple[Any, ...]:
        values = tuple(self.stack[len(self.stack) - number :])
        del self.stack[len(self.stack) - number :]
        return values

    def add(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("values are added to what is no list")
        self.stack[-1].extend(values)

    def set(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("entries are added to what is no dictionary")
        if not all(isinstance(key, str) for key in values[::2]):  # a tuple of tuples can take forever to hash
            raise ValueError("an entry's name is no text")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def name(self, name: str) -> None:
        if name not in _INERT:
            raise UserError(f"{self.file}: expected a pickle of plain data; it would import {printable(name[:60])!r}")
        self.stack.append(name)

    def call(self, _: Any) -> None:
        function, arguments = self.last(2)
        if function not in (*_ARRAYS, _TYPE):
            raise ValueError("something is called that is no function")
        self.stack.append(Array() if function in _ARRAYS else arguments[0])

    def build(self, _: Any) -> None:
        array, state = self.last(2)
        if isinstance(array, Array):
            _, array.shape, array.kind, is_fortran, array.content = state
            # A few bytes describe pairs of pairs of pairs, which take forever to compare or to print.
            if not _is_shape(array.shape):
                raise ValueError("an array's shape is not that of one")
            if not isinstance(array.kind, str):
                raise ValueError("an array's type is no text")
            if is_fortran:
                raise ValueError("an array is stored by columns")
        self.stack.append(array)  # a type's own state says nothing more of types of one byte


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= _MOST_DIMENSIONS and all(type(size) is int for size in value)


_VALUES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"), lambda value: value),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), lambda value: value),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
}
_OTHERS: dict[str, Callable[[_Reader, Any], None]] = {
    "PROTO": lambda reader, version: None,
    "STOP": lambda reader, _: None,
    "MARK": _Reader.mark,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Reader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Reader.get),
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.stack.append(reader.last(1)),
    "TUPLE2": lambda reader, _: reader.stack.append(reader.last(2)),
    "TUPLE3": lambda reader, _: reader.stack.append(reader.last(3)),
    "APPEND": lambda reader, _: reader.add(list(reader.last(1))),
    "APPENDS": lambda reader, _: reader.add(reader.since_mark()),
    "SETITEM": lambda reader, _: reader.set(list(reader.last(2))),
    "SETITEMS": lambda reader, _: reader.set(reader.since_mark()),
    "GLOBAL": _Reader.name,
    "REDUCE": _Reader.call,
    "BUILD": _Reader.build,
}
