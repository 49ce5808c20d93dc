"""The gallery: every example runs, small here and whole behind the slow marker; the cells of the notebooks run too."""

import ast
import json
import pathlib
import re

import pytest

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.analysis import comparisons
from contdrop.lab.study import source
from contdrop.replication import datasets as data_sets

ROOT = pathlib.Path(__file__).parents[2]
PLACE = ROOT / "examples"
SCRIPTS = {"penalty", "pictures"}  # what is no study
STUDIES = sorted(path for path in PLACE.glob("*.py") if path.stem not in SCRIPTS)
NEEDS = {"text_encoder": "transformers", "lightning_loop": "lightning", "timm_vit": "timm"}
DATA = {"cifar10_resnet": "cifar-10", "fashion_mnist": "fashion-mnist"}
WHY_NO_TIMM = "timm needs a torchvision that fits torch; the index's is a CUDA build, whose operators do not load"

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of transformers' and Lightning's own
]
every_notebook = pytest.mark.parametrize("path", sorted(PLACE.glob("*.ipynb")), ids=lambda path: path.stem)
every_example = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def load(path):
    name = NEEDS.get(path.stem)
    if name is not None:
        why = WHY_NO_TIMM if name == "timm" else f"{path.name} needs {name}, which is not installed"
        # What is installed may still fail to load.
        pytest.importorskip(name, reason=why, exc_type=(ImportError, RuntimeError))
    if path.stem in DATA:
        try:
            data_sets.load(DATA[path.stem])
        except UserError as error:
            pytest.skip(f"{DATA[path.stem]} is not there: {error}")
    return source.load_file(path)


def compare(study, tmp_path, **options):
    return lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False, **options)


@every_example
def test_example_runs_in_small(path, tmp_path):
    study = load(path)
    methods = ["original", "gaussian:match"]
    found = compare(study, tmp_path, runs=1, epochs=1, methods=methods).results.errors()
    assert {method: list(runs) for method, runs in found.items()} == {method: [0] for method in methods}


@pytest.mark.slow
@every_example
def test_example_runs_as_a_whole(path, tmp_path):
    study = load(path)
    result = compare(study, tmp_path)
    found = {method: len(runs) for method, runs in result.results.errors().items()}
    assert found == dict.fromkeys(study.methods, study.runs)
    # The check of the lab itself: the same noise from other random numbers must not be told apart.
    assert comparisons.compare(result.results)["bernoulli:match"].t_p_holm > 0.01


@every_example
def test_example_says_how_to_run_it(path):
    assert f"contdrop compare examples/{path.name}" in path.read_text()
    assert f"(../examples/{path.name})" in (ROOT / "docs" / "gallery.md").read_text()


def cells(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@every_notebook
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, cell in enumerate(cells(path)):
        exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
    if "result" in names:
        assert "<table>" in names["result"]._repr_html_()


@every_notebook
def test_notebook_is_in_the_gallery_and_shows_what_its_cells_show(path):
    assert f"(../examples/{path.name})" in (ROOT / "docs" / "gallery.md").read_text()
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run tools/notebooks.py"
    for cell in code:
        last = ast.parse("".join(cell["source"])).body[-1]
        assert bool(cell["outputs"]) >= isinstance(last, ast.Expr), "run tools/notebooks.py"
        assert not re.search(r"/(tmp|home|work|root)/", json.dumps(cell["outputs"]))


@pytest.mark.slow
def test_notebook_runs_in_jupyter(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(PLACE / "first_study.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("text/html" in output.get("data", {}) for output in shown)
