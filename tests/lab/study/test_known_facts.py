"""Pages say what is known: nothing of how numbers from elsewhere were made, nor of what a loop of one's own does."""

import pytest
from test_page import Reader

from contdrop import lab
from contdrop.lab.analysis.verdict import analyze
from contdrop.lab.extensions import Extension
from contdrop.lab.report import page, protocol, supplementary_tables, tables
from contdrop.lab.store import imports
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from stores import make_store

VALUES = {"gaussian-dropout": [0.50, 0.52, 0.51, 0.55, 0.53, 0.54], "mine": [0.61, 0.66, 0.62, 0.64, 0.69, 0.63]}
SHARED = "share the data, the split, the initial weights and the order of the data"
AGAIN = "The same seeds give the same splits, initial weights, data order and masks."
LAST = "after the last epoch"
OF_THE_LAB = (SHARED, AGAIN, LAST, "which share its split, initial weights and data order", "are derived from it")


@pytest.fixture(autouse=True)
def few_files(monkeypatch):
    monkeypatch.setattr(page.drawing, "FORMATS", ("svg",))
    monkeypatch.setattr(page, "extension", lambda: Extension())


def results_of(path):
    with Store(path) as store:
        return collect_all(store)


def told(path, out):
    return Reader(page.write(path, out).index.read_text(encoding="utf-8")).text


@pytest.fixture
def imported(tmp_path):
    found = imports.from_values(
        {(method, run): value for method, values in VALUES.items() for run, value in enumerate(values)},
        name="numbers", reference=None, metric={"name": "rmse", "unit": "", "better": "lower"}, margin=None,
    )  # fmt: skip
    with Store(tmp_path / "numbers.db", create=True) as store:
        imports.add_contents(store, found, "a test")
    return tmp_path / "numbers.db"


def own_loop(path, *, logs=0, **options):
    def run(job):
        for epoch in range(1, logs + 1):
            job.log(epoch, train_loss=1.0)
        return {"loss": job.run + len(job.method) / 10, "val": 1.0}

    settings = {"metric": lab.Metric("loss"), "runs": 6, "methods": ["original", "none"], "seed": 7, **options}
    study = lab.Study("own", run=run, **settings)
    lab.compare(study, store=path, workers=0, device="cpu", progress=False)
    return path


def test_of_numbers_from_elsewhere_only_what_is_known_is_said(imported, tmp_path):
    text = told(imported, tmp_path / "out")
    unknown = "fixed beforehand|from unit to unit|0 epochs|unknown|1970|Planned|12 planned|No job has failed|No run"
    assert not [words for words in (*OF_THE_LAB, *unknown.split("|")) if words in text]
    for known in (
        "6 runs, imported", "numbers of the same run", "Those of the same run are taken for pairs",
        "With the same numbers, the result is the same", "test rmse; lower is better", "every other method is compared",
    ):  # fmt: skip
        assert known in text, known
    (results,) = results_of(imported)
    terms = [term for term, _ in protocol.protocol(results)]
    assert terms == ["Size", "Metric", "Reference", "Methods", "Notes"]


def test_of_a_loop_of_ones_own_only_what_is_known_is_said(tmp_path):
    text = told(own_loop(tmp_path / "own.db"), tmp_path / "out")
    unknown = (*OF_THE_LAB, "unknown", "batch size", "20 epochs", "fixed beforehand")
    assert not [words for words in unknown if words in text]
    for known in (
        "Training a loop of the study's own: own_loop.<locals>.run", "Seed 7; the loop receives seeds derived",
        "6 runs", "which had the same seed", "methods of a run get the same seed",
    ):  # fmt: skip
        assert known in text, known
    (results,) = results_of(tmp_path / "own.db")
    assert not {"Data", "Network"} & dict(protocol.protocol(results)).keys()
    assert tables.overview(analyze(results)).notes[0] == "6 runs."


def test_epochs_of_a_loop_of_ones_own_are_those_it_logged(tmp_path):
    text = told(own_loop(tmp_path / "own.db", logs=3, epochs=3), tmp_path / "out")
    assert "6 runs of 3 epochs each" in text
    assert "Test loss per epoch" not in text  # it logged none


def test_what_a_loop_of_ones_own_selects_by_is_its_word(tmp_path):
    selection = lab.Selection(candidates={"none": ["none", "none:mean=0.5"]}, runs=1)
    (results,) = results_of(own_loop(tmp_path / "own.db", selection=selection))
    said = " ".join(dict(protocol.protocol(results))["Selected"])
    for each in (supplementary_tables.selections(results).notes[0], said):
        assert "not used" not in each
        assert "its loop reported" in each


def test_a_page_on_several_kinds_says_of_each_what_it_shares(imported, tmp_path):
    make_store(imported, methods=("none", "gaussian"), runs=6, epochs=2, images=50)
    text = told(imported, tmp_path / "out")
    for known in (SHARED, AGAIN, LAST, "Those of the same run are taken for pairs"):
        assert text.count(known) == 1, known
    assert "methods of a run get the same seed" not in text
