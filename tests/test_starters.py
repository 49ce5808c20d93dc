"""``contdrop compare --init``: every kind of starter runs as it is."""

import sys

import pytest

from contdrop import lab
from contdrop.cli import app
from contdrop.errors import UserError
from contdrop.lab import sources, starters


@pytest.mark.parametrize("kind", starters.KINDS)
def test_starter_runs_as_it_is(kind, tmp_path):
    path = tmp_path / "my_study.py"
    starters.write(path, kind)
    study = sources.load_file(path)
    result = lab.compare(study, runs=1, epochs=1, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    assert {method: list(runs) for method, runs in result.results.errors().items()} == {
        method: [0] for method in study.methods
    }


def test_command_writes_one_and_says_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["contdrop", "compare", "--init", "mine.py", "--kind", "regression"])
    assert app.run() == 0
    assert capsys.readouterr().out == "mine.py is written. Look into it, then: contdrop compare mine.py\n"
    assert (tmp_path / "mine.py").read_text() == starters.read("regression")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("mine.py", "regresion", "--kind: unknown kind 'regresion'; did you mean 'regression'?"),
        ("mine.txt", "regression", "--init: expected a name that ends with .py; got .*mine.txt"),
        ("nowhere/mine.py", "regression", "--init: there is no directory .*nowhere; make it first"),
    ],
)
def test_bad_names_get_one_line(name, kind, message, tmp_path):
    with pytest.raises(UserError, match=message):
        starters.write(tmp_path / name, kind)
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_there_stays(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("mine")
    with pytest.raises(UserError, match="is there already, and stays as it is; choose another name"):
        starters.write(path, "text")
    assert path.read_text() == "mine"
