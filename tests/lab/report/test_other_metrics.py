"""Pages of studies that are not compared by errors: no word of classification, and the right winner."""

import re

import pytest
from test_page import Reader

from contdrop import lab
from contdrop.cli import session
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.dataset_ranks import rank
from contdrop.lab.analysis.metric_format import Measure
from contdrop.lab.analysis.verdict import analyze
from contdrop.lab.report import page, supplementary_tables, tables
from contdrop.lab.report.page import forest
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from stores import ALL_METHODS, make_store

RMSE = {"name": "rmse", "unit": "", "better": "lower"}
IOU = {"name": "mean IoU", "unit": "", "better": "higher"}
LEVELS = {"none": 2.0, "bernoulli": 3.0, "gaussian": 6.0, "uniform": 9.0}

# What fits classification only; a confidence, a level or a power in per cent fits everywhere.
ALIEN = re.compile(r"\berr(?:s|or|ors)?\b|\bimages?\b|\bpoints?\b|(?<!\b95 )(?<!\b80 )(?<!\b5 )%", re.IGNORECASE)


@pytest.fixture(autouse=True)
def one_format(monkeypatch):
    monkeypatch.setattr(page.drawing, "FORMATS", ("svg",))


def results_of(path):
    with Store(path) as store:
        return collect_all(store)


def test_the_words_are_noticed():
    for text in ("it errs less", "Error, %", "test images", "0.20 points", "3.1 %", "15 %"):
        assert ALIEN.search(text), text
    assert not ALIEN.search("the 95 % interval, 80 % power, at 5 %; interval, terror, disappoint")


@pytest.mark.parametrize("levels", [{}, dict.fromkeys(ALL_METHODS, 3.0)], ids=["decided", "open"])
def test_a_regression_page_has_no_word_of_classification(tmp_path, levels, capsys):
    store = make_store(
        tmp_path / "s.db", methods=ALL_METHODS, runs=8, epochs=9, images=2000, metric=RMSE, selection=True,
        experiment="houses", dataset="houses", title="Prices", failed={("fast", 1)}, missing={("uniform", 2)},
        levels=levels,
    )  # fmt: skip
    written = page.write(store, tmp_path / "out")
    text = written.index.read_text(encoding="utf-8")
    told = Reader(text).text
    assert "rmse" in told
    assert not (found := ALIEN.findall(told)), [
        told[m.start() - 60 : m.end() + 30] for m in ALIEN.finditer(told)
    ] + found
    pictures = re.findall(r'aria-label="([^"]*)"', text)
    assert any("rmse" in picture for picture in pictures)
    assert not [picture for picture in pictures if ALIEN.search(picture)]
    for path in written.tables:
        if path.suffix == ".md":
            assert not ALIEN.search(path.read_text(encoding="utf-8")), path.name
    session.show_summary(analyze(results_of(store)[0]))
    assert not ALIEN.search(capsys.readouterr().out)


@pytest.fixture(scope="module")
def maximised(tmp_path_factory):
    """Uniform has the highest values, then the reference."""
    path = tmp_path_factory.mktemp("maximised") / "s.db"
    return make_store(path, methods=tuple(LEVELS), runs=8, images=2000, noise=0.05, metric=IOU, levels=LEVELS)


def test_the_highest_value_wins_in_the_forest_and_the_table(maximised, tmp_path):
    (results,) = results_of(maximised)
    written = page.write(maximised, tmp_path / "out")
    text = written.index.read_text(encoding="utf-8")
    forest = text.split('<div class="forest">')[1].split("</table>")[0]
    rows = re.findall(r'<tr class="(\w+)">\s*<th scope="row">([^<]*)', forest)
    assert rows == [("worse", "Uniform"), ("better", "Bernoulli"), ("better", "No dropout")]  # the strongest on top
    assert "Positive means that Gaussian is better." in text
    assert "Mean IoU of Gaussian minus that of each method" in text
    table = tables.comparison(analyze(results))
    assert [row[0].text for row in table.rows if row[1].bold] == ["Uniform"]
    assert {m: (c.wins, c.losses) for m, c in compare(results).items()} == {
        "none": (8, 0), "bernoulli": (8, 0), "uniform": (0, 8),
    }  # fmt: skip


def test_a_difference_of_rounding_alone_is_none():
    """The means are equal, and the mean difference 5e-18, of which a reader would look for the meaning."""
    hits = {"original": [27, 82, 18, 42, 25], "none": [30, 85, 21, 44, 14]}  # of 180 examples
    values = {method: [each / 180 for each in found] for method, found in hits.items()}
    found = compare(lab.analyze(values, metric="length").results)
    assert found["none"].difference == 0
    (row,) = forest(found, Measure("length", ""))["rows"]
    assert row["text"].startswith("0  [")


@pytest.mark.parametrize("odd", ["\uffff", "\ufffe", "\x01", "\x0b", "\x1b", "\n"], ids=ascii)
def test_a_metric_may_be_called_anything(tmp_path, odd):
    metric = {"name": f"rm{odd}se", "unit": f"m{odd}", "better": "lower"}
    store = make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=3, epochs=2, metric=metric)
    with Store(store) as opened:
        (results,) = collect_all(opened)
    for job in results.finished:
        job.results[f"test:o{odd}"] = 1.0
    assert odd not in supplementary_tables.secondary_metrics(results).headings[1]
    page_text = page.write(store, tmp_path / "out").index.read_text(encoding="utf-8")
    assert odd == "\n" or odd not in page_text
    assert Measure.of({"metric": {"name": "a  b", "unit": "m/s"}}).name == "a  b"  # as arrays in the store have it


def test_the_highest_value_has_rank_one(tmp_path):
    path = tmp_path / "s.db"
    for number, dataset in enumerate(("roads", "cells", "leaves")):
        make_store(
            path, methods=tuple(LEVELS), runs=3, epochs=1, images=2000, noise=0.05, metric=IOU, levels=LEVELS,
            experiment=dataset, dataset=dataset, seed=number,
        )  # fmt: skip
    every = results_of(path)
    average = rank(every).comparison.ranks.average
    assert average == {"uniform": 1, "gaussian": 2, "bernoulli": 3, "none": 4}
    table = supplementary_tables.ranks(every)
    assert [row[0].text for row in table.rows] == ["Uniform", "Gaussian", "Bernoulli", "No dropout"]
    assert table.notes[0].startswith("Rank 1 is the highest mean IoU; equal ones")
    make_store(path, methods=tuple(LEVELS), runs=3, epochs=1, experiment="faces", dataset="faces", levels=LEVELS)
    assert (
        supplementary_tables.ranks(results_of(path))
        .notes[0]
        .startswith("Rank 1 is the best mean of its data set's metric;")
    )
