"""``contdrop theory``: what it prints, draws and refuses."""

import json
import sys

import pytest

pytest.importorskip("typer")

from contdrop.cli import app
from contdrop.theory import paper_equations


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["contdrop", "theory", *arguments])
        code = app.run()
        return code, *capsys.readouterr()

    return run


def test_help_teaches(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert "contdrop theory --details" in out
    assert all(word in out for word in ("--draws", "--json", "--plot", "standard errors", "docs/theory.md"))


def test_table_of_verdicts(run):
    code, out, err = run("--draws", "4000")
    assert code == 0
    assert out.count("does not hold") >= 4
    assert "exact" in out
    assert "good to" in out
    assert "the paper's term" in out
    assert "(16) E[g_i f(S)] is not" in out
    assert "[1/3] equations" in err
    assert len(max(out.splitlines(), key=len)) <= 120


def test_details_show_every_case(run):
    _, out, _ = run("--draws", "2000", "--details")
    assert "gaussian:sigma=0.5" in out
    assert "E[dE_D/dw_i] = dE_ENS/dw_i + w_i I_i^2 sigma^2" in out
    assert "one knob" in out
    assert "Berry-Esseen bound" in out


def test_json_has_every_number(run):
    code, out, _ = run("--draws", "2000", "--seed", "3", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["draws"], found["seed"]) == (2000, 3)
    assert len(found["checks"]) == len(paper_equations.EQUATIONS)
    assert {row["inputs"] for row in found["normality"]} == {10, 100, 800}
    assert all(row["distance"] < row["bound"] for row in found["normality"])
    correlations = [row["correlation"] for row in found["trade_off"]]
    assert max(correlations) - min(correlations) < 1e-12
    assert set(found["unexplained_shares"]) == {"exact", "stein", "paper", "bernoulli"}


def test_plot(run, tmp_path):
    pytest.importorskip("matplotlib")
    name = "theory.png"
    code, _, err = run("--draws", "1000", "--plot", str(tmp_path / name))
    assert code == 0, err
    assert (tmp_path / name).stat().st_size > 20_000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--draws 10", "--draws: expected a whole number of at least 1000; got 10"),
        ("--seed -1", "--seed: expected a whole number from 0 to 2^63 - 1; got -1"),
        ("--plot theory.pdf", "--plot: expected a file name that ends in .png or .svg; got 'theory.pdf'"),
        ("--plot nowhere/theory.png", "--plot: there is no directory 'nowhere'; make it first"),
        ("--draws many", "Invalid value for '--draws'"),
    ],
)
def test_usage_errors_get_one_line(run, arguments, message):
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
