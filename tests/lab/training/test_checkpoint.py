"""States of a training: everything comes back, nothing else is written, and reading runs no code."""

import collections
import contextlib
import io
import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch
from test_trainer import resume
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

_HEADER = b'{"dict":[["a",{"tensor":["float32",[2,3],[1,0]]}],["b",[{"tensor":["float32",[]]},{"float":"inf"}]]]}'
OLD = b"contdrop state 1\n" + len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(28)

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


CHANGES = {
    "counter": {"scheduler": warm_then_steps, "schedule_by": "epoch"},
    "complex": {"model": Rotating},
    "buffers": {"model": Centring},
    "best": {"model": Centring, "keep": "best"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_resumption_is_bit_exact(change):
    resume(partial(begin, **CHANGES[change]), epochs=6, interrupted=1)


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


def test_buffers_that_were_replaced_by_others_come_back():
    first, second = begin(model=Centring), begin(model=Centring)
    first.network.mean = torch.arange(3.0)
    second.restore(b"".join(first.state()))
    assert second.network.mean.tolist() == [0.0, 1.0, 2.0]
    assert "mean" not in second.network.state_dict()


def back(content):
    return checkpoint.loads(saved(content))


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_numbers_come_back(kind):
    content = torch.randn(3, 4, dtype=kind)
    imaginary = content.conj().imag
    assert imaginary.is_neg()
    for tensor in (content, content.t(), content.conj(), content[:0], content[0, 0], imaginary):
        assert torch.equal(back(tensor), tensor)
        assert back(tensor).dtype == tensor.dtype


def test_tensors_of_every_type_come_back_as_they_lay_in_memory():
    kinds = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)
    assert [tensor.dtype for tensor in back([torch.ones(3).to(kind) for kind in kinds])] == list(kinds)
    last = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for tensor in (last, last.transpose(0, 3), last[:, :2], last[:1], torch.ones(2, 1).expand(2, 3), torch.empty(0, 4)):
        assert torch.equal(back(tensor), tensor)
        assert back(tensor).stride() == tensor.stride()
    whole = torch.zeros(4)
    found = back({"whole": whole, "part": whole[1:3]})
    found["part"].fill_(1.0)
    assert found["whole"].tolist() == [0.0, 1.0, 1.0, 0.0]  # they share memory again


def test_numbers_and_containers_come_back_with_their_types():
    content = {np.int64(20): np.float32(0.1), "on": np.bool_(True), "far": np.float64("-inf"), "n": np.uint8(3)}
    content |= {
        "plain": [None, 1, 2.5, float("inf"), "x", (1, 2)],
        "steps": collections.Counter([2, 4, 4]),
        "d": {1: 2},
    }
    assert back(content) == content
    kinds = [np.float32, np.bool_, np.float64, np.uint8, list, collections.Counter, dict]
    assert [type(value) for value in back(content).values()] == kinds


@pytest.mark.parametrize("other", [print, lambda: None, object(), nn.Linear(1, 1), np.ones(3)])
def test_content_that_could_not_be_read_again_is_not_written(other):
    with pytest.raises(TypeError, match=r"^expected tensors, numbers, texts, lists and dictionaries in a state; got "):
        checkpoint.parts({"f": other})


class Trap:
    def __reduce__(self):
        return open, (TRAP, "w")


TRAP = "opened-by-a-state"


def test_bytes_that_are_no_state_are_refused_and_run_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    torch.save({"a": Trap()}, file)
    for data in (file.getvalue(), pickle.dumps(Trap()), b"PK\3\4", b"", b"contdrop state 1\n{}"):
        with pytest.raises(checkpoint.StateError, match=r"^expected a state of contdrop; torch cannot read it"):
            checkpoint.loads(data)
    assert not (tmp_path / TRAP).exists()


@pytest.mark.parametrize("old", [False, True], ids=["torch", "0.1.0"])
def test_a_damaged_state_is_refused_or_differs_only_in_numbers(old):
    data = OLD if old else saved({"a": torch.ones(2, 3), "b": [torch.tensor(2.5), {0: None}]})
    chooser = random.Random(0)
    for _ in range(1000):
        changed = bytearray(data[: chooser.choice((len(data), chooser.randrange(len(data))))])
        for _ in range(chooser.randrange(1, 4) if changed else 0):
            changed[chooser.randrange(len(changed))] ^= 1 << chooser.randrange(8)
        with contextlib.suppress(checkpoint.StateError):
            checkpoint.loads(bytes(changed))


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
