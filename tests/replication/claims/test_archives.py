"""What is committed under results/: whole, the source of every figure in the docs, and what comes out again."""

import os
import pathlib
import types

import pytest

import scripts
from contdrop.lab import api
from contdrop.lab.store import imports, integrity
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.training import environment
from contdrop.replication.claims import verdicts
from contdrop.replication.datasets.dataset import MissingError
from contdrop.replication.studies import dose

ROOT = pathlib.Path(__file__).parents[3]
REAL = ROOT.parent / "shared" / "data"
ARCHIVES = sorted((ROOT / "results").glob("*.jsonl.gz"))


@pytest.fixture(scope="module")
def tool():
    return scripts.load("tools/results.py")


def test_every_figure_of_the_replication_is_recomputed_from_the_archives(tool):
    made = tool.Blocks()
    for page in tool.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tool.BLOCK.search(text), f"{page.name} has no block"
        assert tool.filled(text, made) == text, f"{page.name} is stale: python tools/results.py"


def test_a_page_with_another_figure_is_stale(tool):
    class Changed:
        def __getitem__(self, name):
            return "7"

    for page in tool.PAGES:
        text = page.read_text("utf-8")
        assert tool.filled(text, Changed()) != text


def test_the_lowest_epoch_is_that_of_each_run(tool):
    jobs = [
        types.SimpleNamespace(id=7 + run, run=run, method=name) for run, name in enumerate(("none", "none", "other"))
    ]
    errors = {7: [3.0, None, 1.0, 2.0], 8: [5.0, 4.0], 9: [0.0]}
    curves = {id: [types.SimpleNamespace(test_error=error) for error in curve] for id, curve in errors.items()}
    assert tool._lowest(verdicts.Runs("any", tuple(jobs), curves, None), "none") == {0: 1.0, 1: 4.0}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_archives_are_whole(archive, tmp_path):
    imports.import_file(archive, tmp_path / "runs.db")
    with Store(tmp_path / "runs.db") as store:
        assert integrity.check(store) == []


def test_a_cell_of_the_dose_table_comes_out_again(tmp_path, monkeypatch):
    """Bit for bit on the same kind of processor with the same versions, else nearly."""
    if not os.environ.get("CONTDROP_DATA") and REAL.exists():
        monkeypatch.setenv("CONTDROP_DATA", str(REAL))
    archive = ROOT / "results" / "dose-1000.jsonl.gz"
    label = "gaussian:r=0.3"
    found, _ = imports.load(archive)
    old = next(each.job for each in found.jobs if (each.job.method, each.job.run) == (label, 0))
    try:
        api.compare(dose.DOSE_1000, methods=[label], runs=1, store=tmp_path / "again.db", workers=0)
    except MissingError as error:
        pytest.skip(str(error))
    with Store(tmp_path / "again.db") as store:
        (new,) = [job for job in store.jobs() if job.status == FINISHED]
    kind = ("instructions", "threads", "processor")
    same = all(old.machine[name] == new.machine[name] for name in kind) and old.versions == environment.versions()
    assert new.fingerprints["data"] == old.fingerprints["data"]
    for name in ("test_error", "test:unused error", "train_loss"):
        assert new.results[name] == (old.results[name] if same else pytest.approx(old.results[name], abs=0.5))
