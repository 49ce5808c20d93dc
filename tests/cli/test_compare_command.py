"""What ``contdrop compare --estimate`` does with the other options: the same as the command without it."""

import json
import pathlib

import pytest

from contdrop.lab.runner import ray_cluster, runner
from contdrop.lab.store.schema import FAILED
from contdrop.lab.store.writer import Store
from contdrop.lab.study import source
from contdrop.lab.study.plan import add_plan, plan
from contdrop.lab.training import environment

STUDY = """
import torch
from torch import nn
from contdrop import lab

def data():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    return lab.Data(train=(x, (x[:, 0] > 0).long()), test=0.3)

def model():
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))

study = lab.Study("estimated", data, model, epochs=1, runs=2, methods=["original", "gaussian:match"])
"""


@pytest.fixture
def estimate(cli):
    pathlib.Path("study.py").write_text(STUDY)

    def ask(*options):
        return cli("compare", "study.py", "--estimate", "--device", "cpu", *options)

    return ask


def test_part_of_the_runs_is_estimated_as_that_part(estimate):
    assert "4 jobs, 0 of them done" in estimate()[1]
    assert "2 jobs, 0 of them done" in estimate("--shard", "1/2")[1]
    code, _, err = estimate("--shard", "3/2")
    assert (code, err.count("\n")) == (2, 1)
    assert "--shard: expected a part and the number of parts, such as 2/5 or 0/5; got '3/2'" in err


def test_as_json(estimate):
    code, out, _ = estimate("--json", "--workers", "2")
    found = json.loads(out)
    assert (code, found["study"], found["jobs"], found["done"], found["workers"]) == (0, "estimated", 4, 0, 2)
    assert 0 < found["seconds"] < 600
    assert found["examples"] == {"train": 54, "validation": 9, "test": 27}
    assert found["memory_per_worker"] > 1e6
    assert list(found["sites"]) == ["original", "gaussian:match"]
    assert "do at least 5 first" in found["runs_needed"][0]


def test_jobs_with_several_threads_leave_fewer_workers(estimate, monkeypatch):
    monkeypatch.setattr(runner, "cores", lambda: 8)
    assert "with 8 workers" in estimate()[1]
    assert "with 4 workers" in estimate("--threads", "2")[1]


def test_failed_jobs_that_are_to_be_retried_are_not_done(estimate):
    with Store("runs.db", create=True) as store:
        for number in add_plan(store, plan(source.load_file(pathlib.Path("study.py")))):
            store.fail(number, "the disk was full")
    assert "4 jobs, 4 of them done" in estimate()[1]
    assert "4 jobs, 0 of them done" in estimate("--retry-failed")[1]
    with Store("runs.db") as store:
        assert {job.status for job in store.jobs()} == {FAILED}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--executor", "slurm"), "--executor: expected local or ray; got 'slurm'"),
        (("--cpus", "2"), "--address, --cpus, --gpus: expected --executor ray"),
    ],
)
def test_executor_that_would_be_refused_is_refused(estimate, options, message):
    code, out, err = estimate(*options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_cluster_does_the_jobs_that_are_estimated_and_is_left(estimate, monkeypatch):
    class Cluster:
        processes, refused, left = 7, (), 0

        def __init__(self, wanted, *, threads, device):
            assert (wanted.cpus, threads, device) == (2.0, 1, "cpu")
            self.machine = {**environment.machine(device), "threads": threads}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            Cluster.left += 1

    monkeypatch.setattr(ray_cluster, "Cluster", Cluster)
    code, out, err = estimate("--executor", "ray", "--cpus", "2")
    assert code == 0, err
    assert "with 7 workers" in out
    assert Cluster.left == 1


def test_a_page_that_could_not_be_written_is_refused_before_the_training(cli):
    pathlib.Path("study.py").write_text(STUDY)
    code, _, err = cli("compare", "study.py", "--device", "cpu", "--out", "study.py")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out: expected a directory; study.py is a file" in err
    assert not pathlib.Path("runs.db").exists()
