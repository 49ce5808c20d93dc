"""``contdrop theory``: what it prints, draws and refuses."""

import functools
import json

import pytest

pytest.importorskip("typer")

from contdrop.theory import paper_equations


@pytest.fixture
def run(cli):
    return functools.partial(cli, "theory")


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
    (tmp_path / "plots").mkdir()
    code, _, err = run("--draws", "1000", "--plot", "plots/theory.png")
    assert code == 0, err
    (plot,) = (tmp_path / "plots").iterdir()
    assert (plot.name, plot.stat().st_size > 20_000) == ("theory.png", True)
