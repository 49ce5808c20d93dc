"""Study files: mistakes in them, modules beside them, and what is the user's code."""

import importlib
import json
import pathlib
import sys
import textwrap

import pytest
import torch

from contdrop import lab
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments, source, user_errors
from refusals import refusal

LATE = """
import torch
from torch import nn
from contdrop import lab

def data():
    import beside_the_study
    x = torch.randn(90, beside_the_study.WIDTH, generator=torch.Generator().manual_seed(0))
    return lab.Data(train=(x, (x[:, 0] > 0).long()), test=0.3, transform=same)

def same(item, generator):
    import also_beside_the_study
    return item

def model():
    from beside_the_study import WIDTH
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))

study = lab.Study("late", data, model, epochs=1, runs=1, methods=["original", "none"])
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = tmp_path / "elsewhere"
    made.mkdir()
    yield made
    for name in ("beside_the_study", "also_beside_the_study"):
        sys.modules.pop(name, None)


def beside(directory, text=LATE):
    (directory / "beside_the_study.py").write_text("WIDTH = 3\n")
    (directory / "also_beside_the_study.py").write_text("")
    path = directory / "late_study.py"
    path.write_text(text)
    return path


def test_functions_of_a_study_file_import_what_lies_beside_it(directory):
    study = source.load_file(beside(directory))
    assert len(study.data().train[0]) == 90
    source.load_file(directory / "late_study.py")
    assert sys.path.count(str(directory)) == 1


def test_workers_import_it_too(cli, directory):
    code, _, err = cli("compare", beside(directory), "--workers", "1")
    assert code == 0, err
    with Store("runs.db") as store:
        assert [job.status for job in store.jobs()] == [FINISHED] * 2


def test_what_lies_beside_a_study_hides_no_module_of_pythons(directory):
    (directory / "this.py").write_text("MINE = 1")
    source.load_file(beside(directory))
    place = sys.path.index(str(directory))
    assert place > sys.path.index(str(pathlib.Path(importlib.__file__).parents[1]))
    assert "site-packages" in sys.path[place + 1]
    sys.modules.pop("this", None)
    assert importlib.util.find_spec("this").origin != str(directory / "this.py")


def test_while_it_loads_its_directory_comes_first_as_that_of_a_script(directory):
    text = f"import sys\nassert sys.path[0] == {str(directory)!r}\n{LATE}"
    before = list(sys.path)
    source.load_file(beside(directory, text))
    assert [each for each in sys.path if each != str(directory)] == before


def test_a_file_that_cannot_be_loaded_leaves_no_trace(directory):
    before = list(sys.path)
    assert "division by zero" in refusal(source.load_file, beside(directory, "1 / 0"))
    assert sys.path == before


def test_a_study_file_that_exits_is_no_success(tmp_path):
    path = tmp_path / "s.py"
    path.write_text('import sys\n\nsys.exit("no data")\n')
    assert "SystemExit: no data (s.py, line 3)" in refusal(source.load_file, path)


# ---- mistakes

GOOD = """
import torch
from torch import nn
from contdrop import lab

def data():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    return lab.Data(train=(x, (x[:, 0] > 0).long()), test=0.3)

def model():
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))

study = lab.Study("from-a-file", data, model, epochs=1, runs=2, methods=["original", "gaussian:match"])
"""


def write(text, name="my_study.py"):
    path = pathlib.Path(name)
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_file_gives_a_table_a_verdict_and_a_page(cli):
    code, out, err = cli("compare", write(GOOD), "--workers", "1")
    assert code == 0, err
    assert "from-a-file" in out
    assert pathlib.Path("from-a-file-report/index.html").exists()
    with Store("runs.db") as store:
        assert all(job.status == FINISHED for job in store.jobs())
    code, _, err = cli("compare", write(GOOD + "\n# other text\n"), "--workers", "1")
    assert code == 0, err
    code, _, err = cli("compare", write(GOOD.replace("Linear(3, 6)", "Linear(3, 7)").replace("(6, 2)", "(7, 2)")))
    assert code == 2
    assert "is not what runs.db was begun with" in err


FILES = [
    *["x = 1", "import torch\ndef f(:", "import torch\n\nx = unknown"],
    *(GOOD.replace("runs=2", other) for other in ("runs=0", "optimiser=1", "clip=1.0", "selection_runs=1")),
    *(GOOD.replace("runs=2", other) for other in ("training=lab.Training(clipp=1)", "training={}")),
    *(GOOD.replace("(x[:, 0] > 0).long()", y) for y in ("(x[:, 0] > 0).float()", "(x[:, 0] > 0).long() + 1")),
    GOOD.replace("study =", "mine ="),
    GOOD.replace("Linear(3, 6)", "Linear(4, 6)"),
    GOOD.replace("lab.Data(train=(", "((").replace(", test=0.3", ", 0.3"),
    GOOD.replace("model, epochs", "model(), epochs"),
    GOOD.replace("torch.randn(90, 3,", "torch.randn(90, 3, dtype=torch.float64,"),
    GOOD.replace("return lab", "x[7] = torch.nan; return lab"),
    GOOD.replace("def model", "def modell"),
]


def test_mistakes_in_a_file_get_one_line(cli, snapshot):
    lines = []
    for text in FILES:
        code, out, err = cli("compare", write(text))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert not pathlib.Path("runs.db").exists()
        lines.append(err)
    snapshot("refusals_of_files", "".join(lines))


def test_estimate_prints_the_plan_and_trains_nothing(cli):
    code, out, err = cli("compare", write(GOOD), "--estimate", "--workers", "1")
    assert code == 0, err
    assert "4 jobs, 0 of them done" in out
    assert "Time: about" in out
    assert "Memory: about" in out
    assert "do at least 5 first (--runs 5), then ask again" in out
    assert not pathlib.Path("runs.db").exists()


def test_estimate_changes_nothing_in_a_store(cli):
    path = pathlib.Path(write(GOOD))
    lab.compare(source.load_file(path), store="runs.db", runs=1, workers=0, device="cpu", progress=False)

    def content():
        with Store("runs.db") as store:
            return store.jobs(), store.protocols()

    before = content()
    more = ["compare", str(path), "--estimate", "--device", "cpu", "--methods", "original,gaussian:match,none"]
    code, out, err = cli(*more, "--runs", "3")
    assert (code, "9 jobs, 2 of them done" in out) == (0, True), err
    code, _, err = cli(*more, "--threads", "2")
    assert (code, "2 finished jobs of runs to go on" in err) == (2, True)
    assert content() == before


def test_source_of_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(GOOD)
    found = source.of_file(path)
    assert found.load().name == "from-a-file"
    path.write_text(GOOD + "#")
    assert "has changed since the command began" in refusal(found.load)


def test_users_code_is_what_no_installation_brought():
    mine = [f"{sys.base_prefix}/src/app/my_study.py", "/home/me/my_study.py"]
    theirs = [json.__file__, torch.__file__, amendments.__file__, "/usr/lib/python3/dist-packages/six.py", "<string>"]
    assert [user_errors.is_users(file) for file in mine + theirs] == [True] * 2 + [False] * 5
