"""Studies as users write them, and those that ``contdrop compare --init`` writes for them: each runs as it is."""

import pathlib
import re
import sys

import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.cli import app
from contdrop.lab.study import source, templates
from refusals import refusal

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
STUDIES = sorted((pathlib.Path(__file__).parent / "studies").glob("*.py"))

NEEDS = {"text_bert": "transformers", "lightning_loop": "lightning"}
FOR_CLASSES_ONLY = r"\b(errs?|errors?, %|test error|accuracy|misclassified|digits?|images?|labels?)\b"

every_study = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def compare(path, tmp_path, **options):
    """The study of a file and its result, whose methods have all of their runs."""
    study = source.load_file(path)
    result = lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False, **options)
    found = {method: tuple(sorted(runs)) for method, runs in result.results.errors().items()}
    assert found == dict.fromkeys(study.methods, tuple(range(options.get("runs", study.runs))))
    return study, result


def words(page):
    """What a reader sees of a page."""
    return re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)


@pytest.mark.parametrize("kind", templates.KINDS)
def test_starter_runs_as_it_is(kind, tmp_path):
    templates.write(tmp_path / "my_study.py", kind)
    compare(tmp_path / "my_study.py", tmp_path, runs=1, epochs=1)


@pytest.mark.filterwarnings("ignore")  # of transformers' and Pillow's own
@every_study
def test_study_is_short_and_gives_results_and_a_page(path, tmp_path):
    assert len(path.read_text().splitlines()) < 40
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    study, result = compare(path, tmp_path)
    page = result.report(tmp_path / "page").read_text()
    assert study.name in page
    assert study.metrics[0].name in words(page)


def test_page_of_a_regression_has_no_word_for_classes(tmp_path):
    (path,) = (path for path in STUDIES if path.stem == "tabular_regression")
    text = words(compare(path, tmp_path, runs=6, epochs=1)[1].report(tmp_path / "page").read_text())
    assert "rmse" in text
    assert set(re.findall(FOR_CLASSES_ONLY, text, re.IGNORECASE)) == set()


class Recorder:
    """In place of a job: keeps what its network sees."""

    method, run, epochs = "original", 0, 1

    def __init__(self, seed):
        self.seed, self.trained, self.tested = seed, [], []

    def build(self, function):
        model = function()
        first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
        seen = (self.tested, self.trained)
        first.register_forward_hook(lambda layer, given, _: seen[layer.training].append(given[0]))
        return model

    def same(self, *_, **__): ...

    log = tell = same


@pytest.mark.parametrize("loop", ["starter", "lightning"])
@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_loops_that_are_shown_test_all_runs_on_the_same_examples(loop, tmp_path):
    """Intervals over runs and test examples take that for granted; what is trained on varies."""
    path = EXAMPLES / "lightning_loop.py"
    if loop == "starter":
        path = tmp_path / "my_study.py"
        templates.write(path, "loop")
    else:
        pytest.importorskip("lightning")
    study = source.load_file(path)
    one, other = Recorder(1), Recorder(2)
    for job in (one, other):
        study.run(job)
    assert torch.equal(one.tested[-1], other.tested[-1])
    tested = {tuple(row.tolist()) for row in one.tested[-1]}
    seen = [{tuple(row.tolist()) for batch in job.trained for row in batch} for job in (one, other)]
    assert seen[0] != seen[1]
    assert not tested & (seen[0] | seen[1])


def test_command_writes_one_and_says_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["contdrop", "compare", "--init", "mine.py", "--kind", "regression"])
    assert app.run() == 0
    assert capsys.readouterr().out == "mine.py is written. Look into it, then: contdrop compare mine.py\n"
    assert (tmp_path / "mine.py").read_text() == templates.read("regression")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("mine.py", "regresion", "--kind: unknown kind 'regresion'; did you mean 'regression'?"),
        ("mine.txt", "regression", "--init: expected a name that ends with .py; got {}/mine.txt"),
        ("nowhere/mine.py", "regression", "--init: there is no directory {}/nowhere; make it first"),
    ],
)
def test_bad_names_get_one_line(name, kind, message, tmp_path):
    assert message.format(tmp_path) in refusal(templates.write, tmp_path / name, kind)
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_there_stays(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("mine")
    assert "already exists and is not overwritten; choose another name" in refusal(templates.write, path, "text")
    assert path.read_text() == "mine"
