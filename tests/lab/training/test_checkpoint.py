"""What is saved of a training comes back: tensors of every type, counters, and buffers that no state_dict has."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from contdrop import lab
from contdrop.lab.data.data import prepare
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import Variant, add_plan, plan
from contdrop.lab.training import checkpoint
from contdrop.lab.training import job as running
from contdrop.lab.training.trainer import Trainer

X = torch.randn(120, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
pytestmark = pytest.mark.usefixtures("one_thread")


def data():
    return lab.Data(train=(X, Y), test=0.25, validation=0.2)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


STUDY = lab.Study("own", data, model, epochs=6, runs=1, batch_size=32, methods=["original"])


def begin(**change):
    study = STUDY.replace(**change)
    return Trainer(plan(study)[0], Variant.parse("original"), prepare(data(), task="classification"))


def saved(content):
    return b"".join(checkpoint.parts(content))


class Rotating(nn.Module):
    """Holds complex numbers, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.network = model()
        self.register_buffer("turns", torch.polar(torch.ones(5), torch.arange(5.0)))

    def forward(self, x):
        return self.network((x * self.turns).real)


class Centring(nn.Module):
    """Keeps a running mean beside its state_dict, and a mask that is spread over memory that it shares."""

    def __init__(self):
        super().__init__()
        self.network = model()
        self.register_buffer("mean", torch.zeros(5), persistent=False)
        self.register_buffer("mask", torch.ones(5).expand(3, 5), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return self.network((x - self.mean) * self.mask[0])


def warm_then_steps(optimizer, total):
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1, 2), lr_scheduler.MultiStepLR(optimizer, [2], 0.1)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


@pytest.mark.parametrize(
    "change",
    [
        {"scheduler": warm_then_steps, "schedule_by": "epoch"},
        {"model": Rotating},
        {"model": Centring},
        {"model": Centring, "keep": "best"},
    ],
    ids=["counter", "complex", "buffers", "best"],
)
def test_resumption_is_bit_exact(change):
    whole, first, second = (begin(**change) for _ in range(3))
    expected = [dataclasses.replace(whole.run_epoch(), seconds=0.0) for _ in range(6)]
    found = [dataclasses.replace(first.run_epoch(), seconds=0.0)]
    second.restore(b"".join(first.state()))
    found += [dataclasses.replace(second.run_epoch(), seconds=0.0) for _ in range(5)]
    assert found == expected
    assert second.results()[0] == whole.results()[0]


def test_the_best_model_is_that_of_its_epoch_in_all_its_buffers():
    trained = begin(model=Centring, keep="best", optimizer=lambda network: torch.optim.SGD(network.parameters(), 0.0))
    means = []
    while not trained.is_over:
        trained.run_epoch()
        means.append(trained.network.mean.clone())
    best = trained.best.epoch
    assert best < 6  # the weights stay, and the error changes with the mean alone
    trained.results()
    assert torch.equal(trained.network.mean, means[best - 1])


def test_a_checkpoint_without_these_buffers_is_loaded():
    first, second = begin(model=Centring), begin(model=Centring)
    first.run_epoch()
    content = checkpoint.loads(b"".join(first.state()))
    del content["buffers"], content["best"]["buffers"]
    second.restore(saved(content))
    assert second.epoch == 1
    assert second.network.mean.eq(0).all()


def test_buffers_that_were_replaced_by_others_come_back():
    first, second = begin(model=Centring), begin(model=Centring)
    first.network.mean = torch.arange(3.0)
    second.restore(b"".join(first.state()))
    assert second.network.mean.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_numbers_come_back(kind):
    content = torch.randn(3, 4, dtype=kind)
    for tensor in (content, content.t(), content.conj(), content[:0], content[0, 0]):
        back = checkpoint.loads(saved(tensor))
        assert torch.equal(back, tensor)
        assert back.dtype == kind
    imaginary = content.conj().imag
    assert imaginary.is_neg()
    assert torch.equal(checkpoint.loads(saved(imaginary)), imaginary)


def test_counters_come_back_as_counters():
    content = {"milestones": collections.Counter([2, 4, 4]), "plain": {1: 2}}
    back = checkpoint.loads(saved(content))
    assert back == content
    assert [type(each) for each in back.values()] == [collections.Counter, dict]


def test_types_that_could_not_be_read_again_are_not_written():
    with pytest.raises(TypeError, match=r"^expected tensors of float32, .*bool; got float8_e4m3fn; keep it in one "):
        checkpoint.parts({"scale": torch.ones(2).to(torch.float8_e4m3fn)})


def test_numbers_of_numpy_come_back_with_their_types():
    content = {np.int64(20): np.float32(0.1), "on": np.bool_(True), "far": np.float64("inf"), "n": np.uint8(3)}
    found = checkpoint.loads(saved(content))
    assert found == {20: np.float32(0.1), "on": True, "far": np.inf, "n": 3}
    assert [type(value) for value in found.values()] == [np.float32, np.bool_, np.float64, np.uint8]
    damaged = saved({"a": np.float32(1)}).replace(b'"float32"', b'"floaty9"')
    with pytest.raises(checkpoint.StateError, match="a number of type 'floaty9'"):
        checkpoint.loads(damaged)


def test_a_training_whose_state_cannot_be_saved_ends_all_the_same(tmp_path, monkeypatch):
    def refuse(self):
        raise TypeError("a state holds tensors")

    monkeypatch.setattr(Trainer, "state", refuse)
    with Store(tmp_path / "runs.db", create=True) as store:
        ((number, job),) = add_plan(store, plan(STUDY)).items()
        with store.locks.holding(number):
            prepared = prepare(data(), task="classification")
            running.run(store, number, job, Variant.parse("original"), prepared, checkpoint_seconds=0)
        assert (store.job(number).status, store.job(number).epochs_done) == (FINISHED, 6)
