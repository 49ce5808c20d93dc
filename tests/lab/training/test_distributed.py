"""One job in several processes: the same steps, losses and results as in one, to rounding; and refused where not."""

import dataclasses
import os
import pathlib
import signal
import sqlite3
import subprocess
import time

import numpy as np
import pytest
import torch
from test_local import command, content, finish
from torch import nn

import processes
from contdrop.errors import UserError
from contdrop.lab import Data, Study
from contdrop.lab.data.data import prepare
from contdrop.lab.runner.runner import PlannedStudy, StudyRunner
from contdrop.lab.store.schema import FINAL
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import PlannedJob, StudyPlan, Variant, plan
from contdrop.lab.study.source import StudySource
from contdrop.lab.training.distributed import LostError, ProcessGroup, check_division, process_group
from contdrop.lab.training.environment import find_device
from contdrop.lab.training.trainer import Trainer

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo"),
    pytest.mark.usefixtures("one_thread"),
]
METHODS = ("original", "none", "gaussian", "adaptive", "dropconnect", "fast")


def arrays():
    x = np.random.default_rng(0).normal(size=(120, 6))
    return (x, (x[:, 0] > 0).astype(np.int64))


def data():
    return Data(arrays(), test=20, validation=20)


def noisy(item, generator):
    return item[0] + torch.randn(6, generator=generator, dtype=torch.float64), item[1]


def collate(items):
    return torch.stack([x for x, _ in items]) + torch.randn(6, dtype=torch.float64), torch.tensor([y for _, y in items])


def listed():
    items = [(torch.from_numpy(x), int(y)) for x, y in zip(*arrays())]
    return Data(items, test=20, validation=20, transform=noisy)


def collated():
    return dataclasses.replace(listed(), collate=collate)


def repeating():
    return dataclasses.replace(listed(), batches=lambda dataset, generator: [[0, 1, 2, 1, 0], [5], [1, 2]])


def model():
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(8, 2)).double()


STUDY = Study("divided", data, model, methods=METHODS, batch_size=33, epochs=2)
STUDIES = {
    **{method: (STUDY, method) for method in METHODS},
    "clip and accumulate": (STUDY.replace(clip=0.1, accumulate=2), "gaussian"),
    "last batch of one": (STUDY.replace(batch_size=79), "gaussian"),
    "several networks": (STUDY.replace(networks=2), "gaussian"),
    "transformed": (STUDY.replace(data=listed), "original"),
    "own collation": (STUDY.replace(data=collated), "original"),
    "own batches": (STUDY.replace(data=repeating), "gaussian"),
}


class Mixed(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * x.mean(0).sum()


class Noisy(nn.Sequential):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def normalised():
    return nn.Sequential(model(), nn.BatchNorm1d(2).double())


def summed(output, batch):
    return nn.functional.cross_entropy(output, batch[1], reduction="sum")


REFUSED = {
    "1 (BatchNorm1d) takes its statistics from a whole batch": {"model": normalised},
    "gradients that differ by": {"loss": summed},
    "the examples of a batch": {"model": lambda: Mixed(*model())},
    "draws random numbers that cannot be divided": {"model": lambda: Noisy(*model())},
}


def started(team, study, method):
    job = PlannedJob(StudyPlan(study, "study", 2, 1, 2, 0), FINAL, method, 0)
    return Trainer(job, Variant.parse(method), prepare(study.data(), task="classification"), team=team)


def train(team, study, method):
    training = started(team, study, method)
    if team.size > 1:
        check_division(training)
    epochs = [training.run_epoch() for _ in range(2)]
    results, artefacts = training.results()
    return epochs, results, artefacts, weights_of(training)


def weights_of(training):
    return torch.cat([p.detach().flatten() for p in training.network.parameters()])


def resume(team):
    """The weights and the last epoch, of a training that was interrupted after the first."""
    first, second = (started(team, *STUDIES["gaussian"]) for _ in range(2))
    first.run_epoch()
    second.restore(b"".join(first.state()))
    return second.run_epoch()._replace(seconds=0.0), weights_of(second)


def train_all(team, directory):
    torch.set_num_threads(1)
    found = {name: train(team, *study) for name, study in STUDIES.items()}
    found["refused"] = [refusal(team, changes) for changes in REFUSED.values()]
    found["resumed"] = resume(team)
    torch.save(found, f"{directory}/{team.rank}")
    team.gather(None)  # nobody leaves before all have written


def refusal(team, changes):
    with pytest.raises((UserError, ValueError)) as error:
        train(team, STUDY.replace(**changes), "gaussian")
    return str(error.value)


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    directory = tmp_path_factory.mktemp("divided")
    with process_group(2, "cpu", train_all, directory) as team:
        train_all(team, directory)
    return [torch.load(directory / str(rank), weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", STUDIES)
def test_two_processes_do_what_one_does(name, divided):
    alone = train(ProcessGroup(), *STUDIES[name])
    for epochs, results, artefacts, weights in (found[name] for found in divided):
        for one, other in zip(alone[0], epochs):
            assert other[:-1] == pytest.approx(one[:-1], rel=1e-9)
        assert results == pytest.approx(alone[1], rel=1e-9)
        assert artefacts.keys() == alone[2].keys()
        np.testing.assert_allclose(artefacts["test_error"], alone[2]["test_error"])
        torch.testing.assert_close(weights, alone[3], rtol=1e-8, atol=1e-10)
    assert torch.equal(*(found[name][3] for found in divided))  # bit for bit: they take the same steps


def test_resumption_is_bit_exact(divided):
    for found in divided:
        epoch, weights = found["resumed"]
        assert epoch == found["gaussian"][0][1]._replace(seconds=0.0)
        assert torch.equal(weights, found["gaussian"][3])


def vanish(team):
    os._exit(3)


def complain(team):
    raise ArithmeticError("of its own")


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [(vanish, LostError, "process 2 of 2 ended with exit code 3"), (complain, RuntimeError, "process 2 of 2: Arithm")],
)
def test_a_process_that_is_lost_is_told_from_one_that_fails(what, kind, text):
    with pytest.raises(kind, match=text), process_group(2, "cpu", what) as team:
        team.gather(None)


# ---- refusals


def test_what_processes_would_do_otherwise_is_refused(divided):
    for expected, found in zip(REFUSED, divided[0]["refused"], strict=True):
        assert expected in found


@pytest.mark.parametrize(
    ("changes", "reason"), [({"batch_size": 1}, "its batches have 1 examples"), ({"compile": True}, "it is compiled")]
)
def test_studies_that_cannot_be_divided_are_refused_before_anything_is_done(changes, reason):
    jobs = plan(STUDY.replace(**changes))
    with pytest.raises(UserError, match=f"--devices: study 'divided' cannot be trained by 2 processes: {reason}"):
        StudyRunner([PlannedStudy(jobs, StudySource("pickle", "divided"))], devices=2)


# ---- the command


TEXT = """
import numpy
from torch import nn
from contdrop import lab

def data():
    x = numpy.random.default_rng(0).normal(size=(90, 6)).astype(numpy.float32)
    return lab.Data((x, (x[:, 0] > 0).astype(numpy.int64)), test=20, validation=20)

def model():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

study = lab.Study(
    "divided", data, model, methods=("gaussian",), reference="gaussian", runs=1, epochs=150, batch_size=20
)
"""


def arguments(directory: pathlib.Path) -> list[str]:
    (directory / "study.py").write_text(TEXT)
    out = str(directory / "report")
    return ["compare", str(directory / "study.py"), "--workers", "1", "--devices", "2", "--out", out]


def epochs_in(store: pathlib.Path) -> int:
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM epochs").fetchone()[0])
    except sqlite3.Error:
        return 0


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds processes by /proc")
def test_a_killed_process_is_made_good_and_a_killed_command_resumes_bit_for_bit(tmp_path):
    given = arguments(tmp_path)
    store, undisturbed = tmp_path / "killed.db", tmp_path / "whole.db"
    running = subprocess.Popen(
        command(*given, store=store), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for strike in (1, 0):  # first the job's other process, then everything
        before = epochs_in(store)
        while epochs_in(store) <= before and running.poll() is None:
            time.sleep(0.02)
        assert running.poll() is None, running.communicate()[0]
        found = processes.descendants(running.pid)
        if strike:
            assert (here := processes.listening(found)), "nothing listens, so this test sees nothing"
            assert not processes.beyond_loopback(here)
            os.kill(found[-1], signal.SIGKILL)
        else:
            running.kill()
            running.communicate()
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{each}") for each in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(os.path.exists(f"/proc/{each}") for each in found)  # none is left behind
    for path in (store, undisturbed):
        finish(*given, store=path)
    assert content(store) == content(undisturbed)
    with Store(undisturbed) as opened:
        (job,) = opened.jobs()
    assert job.shared["kind of processor"].endswith(", 1 thread, 2 devices")


def test_a_device_that_is_not_there_is_told_with_what_to_do(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "zeros", refuse)
    message = "--device: 'cuda' does not work on this machine .*CUDA enabled.; auto takes the fastest device that does"
    with pytest.raises(UserError, match=message):
        find_device("cuda")
