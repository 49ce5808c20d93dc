"""Study files: modules beside them can be imported whenever a function of theirs does so."""

import importlib
import pathlib
import sys

import pytest

from contdrop.errors import UserError
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.study import source

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


def write(directory, text=LATE):
    (directory / "beside_the_study.py").write_text("WIDTH = 3\n")
    (directory / "also_beside_the_study.py").write_text("")
    path = directory / "late_study.py"
    path.write_text(text)
    return path


def test_functions_of_a_study_file_import_what_lies_beside_it(directory):
    study = source.load_file(write(directory))
    assert len(study.data().train[0]) == 90
    source.load_file(directory / "late_study.py")
    assert sys.path.count(str(directory)) == 1


def test_workers_import_it_too(cli, directory):
    code, _, err = cli("compare", write(directory), "--workers", "1")
    assert code == 0, err
    with Store("runs.db") as store:
        assert [job.status for job in store.jobs()] == [FINISHED] * 2


def test_what_lies_beside_a_study_hides_no_module_of_pythons(directory):
    (directory / "this.py").write_text("MINE = 1")
    source.load_file(write(directory))
    place = sys.path.index(str(directory))
    assert place > sys.path.index(str(pathlib.Path(importlib.__file__).parents[1]))
    assert "site-packages" in sys.path[place + 1]
    sys.modules.pop("this", None)
    assert importlib.util.find_spec("this").origin != str(directory / "this.py")


def test_while_it_loads_its_directory_comes_first_as_that_of_a_script(directory):
    text = f"import sys\nassert sys.path[0] == {str(directory)!r}\n{LATE}"
    before = list(sys.path)
    source.load_file(write(directory, text))
    assert [each for each in sys.path if each != str(directory)] == before


def test_a_file_that_cannot_be_loaded_leaves_no_trace(directory):
    before = list(sys.path)
    with pytest.raises(Exception, match="division by zero"):
        source.load_file(write(directory, "1 / 0"))
    assert sys.path == before


def test_a_study_file_that_exits_is_no_success(tmp_path):
    path = tmp_path / "s.py"
    path.write_text('import sys\n\nsys.exit("no data")\n')
    with pytest.raises(UserError, match=r"SystemExit: no data \(s.py, line 3\)"):
        source.load_file(path)
