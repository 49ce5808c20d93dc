"""How clear a selection was, what each mask's noise is, and what choosing an epoch on test data is worth."""

import statistics

import pytest

import stores
from contdrop.lab.report import protocol, supplementary_tables
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.schema import SelectionRecord
from contdrop.lab.store.writer import Store


def _selection(**errors):
    scores = {
        name: {"val_error": statistics.mean(values), "val_loss": 1.0, "val_errors": values}
        for name, values in errors.items()
    }
    return SelectionRecord("key", "gaussian", min(errors, key=lambda name: scores[name]["val_error"]), "", scores, 0.0)


def test_a_choice_says_how_clear_it_was(snapshot):
    old = SelectionRecord("key", "gaussian", "a", "", {name: {"val_error": 1.0, "val_loss": 1.0} for name in "ab"}, 0.0)
    selections = (
        _selection(a=[1.0, 1.2, 1.4], b=[1.3, 1.1, 1.5], c=[3.0, 3.0, 3.0]),
        _selection(a=[1.0, 1.2, 1.4], b=[2.0, 2.21, 2.39]),
        _selection(a=[1.0], b=[2.0]),
        _selection(a=[1.13, 2.05, 3.0], b=[1.15, 2.07, 3.02]),
        old,
    )
    snapshot("clearness", "\n".join(map(supplementary_tables.clearness, selections)))


def test_lowest_test_error_of_any_epoch_stands_beside_the_last(tmp_path):
    with Store(stores.make_store(tmp_path / "s.db", runs=4, epochs=9, missing={("uniform", 2)})) as store:
        (results,) = collect_all(store)
        table = supplementary_tables.lowest_epochs(results, store)
        curves = {job.id: [epoch.test_error for epoch in store.epochs(job.id)] for job in results.finished}
    assert table.title.endswith("lowest test error of any epoch, as the authors' code reports it")
    assert len(table.rows) == len(results.errors())
    for method, row in zip(results.errors(), table.rows):
        of_it = [curves[job.id] for job in results.finished if job.method == method]
        last = statistics.mean(curve[-1] for curve in of_it)
        lowest = statistics.mean(min(curve) for curve in of_it)
        assert [cell.value for cell in row[1:]] == pytest.approx([last, lowest, lowest - last, len(of_it)])
    assert any(row[3].value < 0 for row in table.rows)


def test_no_table_without_curves(tmp_path):
    with Store(stores.make_store(tmp_path / "s.db", runs=2)) as store:
        (results,) = collect_all(store)
        store.curves = lambda protocol: {}
        assert supplementary_tables.lowest_epochs(results, store) is None


def test_seconds_are_those_of_whole_epochs_and_of_nothing_else(tmp_path):
    """Evaluation is among them, so by steps they cannot be divided."""
    with Store(stores.make_store(tmp_path / "s.db", methods=("none", "gaussian"), runs=2, epochs=3)) as store:
        (results,) = collect_all(store)
    results.protocol.description["cost"] = {"steps": 10, "memory": {"none": 1e6, "gaussian": 2e6}}
    table = supplementary_tables.secondary_metrics(results)
    assert table.headings == ("Method", "Seconds per epoch", "Memory, MB")
    assert [row[1].value for row in table.rows] == pytest.approx([0.2, 0.2])
    assert "evaluation included" in " ".join(table.notes)


def test_the_page_says_mean_and_strength_of_every_method(tmp_path):
    with Store(stores.make_store(tmp_path / "s.db", methods=("none", "gaussian", "adaptive"), runs=2)) as store:
        (results,) = collect_all(store)
    for job in results.finished:
        if job.method != "adaptive":
            job.results.update({"mean": 0.5, "relative_variance": 0.25})
    noise = dict(protocol.protocol(results))["Noise"]
    assert noise == [
        "No dropout: mean 0.5, relative variance 0.250",
        "Gaussian: mean 0.5, relative variance 0.250",
        "Adaptive: differs from unit to unit",
    ]
