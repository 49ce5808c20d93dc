"""The tool that breaks the code on purpose: what it changes, and that its sample stands still."""

import ast
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import mutants

SOURCE = '''
"""A module."""
LIMIT: int | None = 3

class Box:
    """With a number of 7."""

    @property
    def size(self) -> int:
        """Not 9."""
        return self.n * 2 if self.n > 1 and not self.empty else -self.n

def outer(x, least=0.5):
    assert x != 8, "left alone"
    def inner(y):
        return y + 1
    for each in x:
        if each is None:
            continue
        print(f"{each:>10}")
    return inner(x)
'''


def found():
    return {f"{mutant.function}: {mutant.change}": mutant for mutant in mutants.find("box", SOURCE)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("module: 3 -> 4", "constant"),
        ("Box.size: self.n * 2 -> self.n / 2", "arithmetic"),
        ("Box.size: self.n > 1 -> self.n >= 1", "comparison"),
        ("Box.size: self.n > 1 -> self.n <= 1", "comparison"),
        ("Box.size: not self.empty -> self.empty", "boolean"),
        ("Box.size: self.n > 1 and (not self.empty) -> self.n > 1 or not self.empty", "boolean"),
        ("Box.size: -self.n -> self.n", "arithmetic"),
        ("outer: 0.5 -> 1.5", "constant"),
        ("outer.inner: y + 1 -> y - 1", "arithmetic"),
        ("outer: each is None -> each is not None", "comparison"),
        ("outer: continue -> pass", "statement"),
        ("outer: return inner(x) -> return None", "return"),
    ],
)
def test_each_kind_of_change(name, kind):
    mutant = found()[name]
    assert mutant.kind == kind
    after = mutant.change.partition(" -> ")[2]
    changed = ast.unparse(mutants.apply(mutant, SOURCE))
    assert changed != ast.unparse(ast.parse(SOURCE))
    assert ast.unparse(ast.parse(after)) in changed
    compile(changed, "box", "exec")


def test_texts_annotations_and_assertions_are_left_alone():
    changes = [mutant.change for mutant in found().values()]
    assert not any(
        part in change for change in changes for part in ("7", "9", "8", "int | None", "int & None", "10 ->")
    )


def test_sample_stands_still_while_other_functions_are_edited():
    first = mutants.sample(mutants.find("box", SOURCE), 5, seed=1)
    assert [m.name for m in first] == [m.name for m in mutants.sample(found().values(), 5, seed=1)]
    assert [m.name for m in first] != [m.name for m in mutants.sample(found().values(), 5, seed=2)]
    moved = "\n# a line more\n" + SOURCE
    assert [m.name for m in mutants.sample(mutants.find("box", moved), 5, seed=1)] == [m.name for m in first]
    names = [mutant.name for mutant in mutants.find("box", SOURCE)]
    assert len(set(names)) == len(names)


def test_where_a_function_s_code_is():
    lines = SOURCE.splitlines()
    for name, qualified, start in (
        ("Box.size: self.n * 2 -> self.n / 2", "Box.size", "    @property"),
        ("outer.inner: y + 1 -> y - 1", "outer", "def outer(x, least=0.5):"),
    ):
        function, line = mutants.outermost(found()[name], SOURCE)
        assert (function, lines[line - 1]) == (qualified, start)
    assert mutants.outermost(found()["outer: 0.5 -> 1.5"], SOURCE) is None
    assert mutants.outermost(found()["module: 3 -> 4"], SOURCE) is None


def test_touched_functions_say_their_names():
    said = []
    names = {"touch": said.append, "print": lambda *_: None}
    exec(compile(mutants.touched(ast.parse(SOURCE), "touch"), "box", "exec"), names)
    box = names["Box"]()
    box.n, box.empty = 2, False
    assert box.size == 4
    assert names["Box"].size.fget.__doc__ == "Not 9."
    with pytest.raises(TypeError):
        names["outer"]([1])
    assert said == ["Box.size", "outer", "outer.inner"]
