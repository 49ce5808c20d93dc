"""Eight studies as users write them, each short: anything that the lab assumes too much of fails here."""

import pathlib
import re
import subprocess
import sys

import pytest
from torch import nn

from contdrop import lab
from contdrop.lab.study import apply_method, source

STUDIES = sorted((pathlib.Path(__file__).parent / "studies").glob("*.py"))
NEEDS = {"text_bert": "transformers", "lightning_loop": "lightning", "images_folder": "PIL"}
FOR_CLASSES_ONLY = r"\b(errs?|errors?, %|test error|accuracy|misclassified|digits?|images?|labels?)\b"

every_study = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def need(path):
    name = NEEDS.get(path.stem, "torch")
    pytest.importorskip(name, reason=f"{path.name} needs {name}, which is not installed")


def words(page):
    """What a reader sees of a page."""
    return re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of transformers' and Lightning's own
@every_study
def test_study_gives_results_and_a_page(path, tmp_path):
    need(path)
    study = source.load_file(path)
    result = lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    found = result.results.errors()
    assert set(found) == set(study.methods)
    assert all(set(runs) == set(range(study.runs)) for runs in found.values())
    page = result.report(tmp_path / "page").read_text()
    assert study.name in page
    assert study.metrics[0].name in words(page)


def test_page_of_a_regression_has_no_word_for_classes(tmp_path):
    study = source.load_file(next(path for path in STUDIES if path.stem == "tabular_regression"))
    result = lab.compare(study, runs=6, epochs=1, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    text = words(result.report(tmp_path / "page").read_text())
    assert "rmse" in text
    assert set(re.findall(FOR_CLASSES_ONLY, text, re.IGNORECASE)) == set()


def test_metric_to_be_maximised_has_the_highest_as_its_winner():
    values = {"a": [0.5, 0.51, 0.5, 0.52, 0.5, 0.51], "b": [0.6, 0.62, 0.6, 0.63, 0.61, 0.6]}
    lower, higher = (lab.analyze(values, better=way, metric="share").verdict.headline for way in ("lower", "higher"))
    assert (lower, higher) == ("A is better than b, by 0.103.", "A is worse than b, by 0.103.")


def test_original_has_the_noise_of_the_models_own_layers():
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(2, 2), nn.Dropout(0.5), nn.Dropout(1.0))
    found = apply_method.apply("original", model).noise
    assert {name: each["relative_variance"] for name, each in found.items()} == pytest.approx({"0": 0.25, "2": 1.0})
    assert {each["mean"] for each in found.values()} == {1.0}


@every_study
def test_study_is_short(path):
    assert len(path.read_text().splitlines()) < 40


@pytest.mark.slow
@every_study
def test_study_gives_a_report_in_one_command(path, tmp_path):
    need(path)
    command = [sys.executable, "-m", "contdrop.cli", "compare", str(path), "--store", "runs.db", "--out", "page"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert path.stem.replace("_", "-") in (tmp_path / "page" / "index.html").read_text()
