"""From a user's data to batches: forms, order, augmentation, loader processes, fingerprints, and errors in one line."""

import collections
import dataclasses
import random
import re
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from contdrop.lab.data import fingerprints
from contdrop.lab.data.batch import find_target, inputs_and_target, size_of, to_device
from contdrop.lab.data.data import Data, prepare
from contdrop.lab.training import random_streams
from contdrop.lab.training.model import default_forward
from refusals import refusal

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 4
TEST = (X[:5], Y[:5])


class Numbers(Dataset):
    """Items that draw from every global generator, and a count of those that were read."""

    targets = Y

    def __init__(self):
        self.read = collections.Counter()

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.read[index] += 1
        drawn = [float(torch.rand(())), float(np.random.rand()), random.random()]
        return torch.tensor([index, *drawn], dtype=torch.float64), int(Y[index])


def noisy(item, generator):
    x, y = item
    return x + torch.rand(x.shape, generator=generator) + torch.rand(()) + np.random.rand() + random.random(), y


def noisy_collate(items):
    x, y = zip(*items)
    return torch.stack(x) + torch.rand(()), torch.tensor(y)


def _parts(data, task="classification", **job):
    return prepare(data, task=task).parts(**{"root_seed": 0, "stage": "final", "run": 0, **job})


def _all(part, seed=1, size=8, epoch=3, **options):
    return list(part.batches(part.order(seed, size), seed=epoch, **options))


# ---- arrays


def test_data_of_arrays_are_plain_indexing():
    parts = _parts(Data((X, torch.from_numpy(Y)), TEST, 8, stratify=False))
    train = np.sort(
        np.random.Generator(np.random.Philox(random_streams.seed(0, "final", 0, "split"))).permutation(40)[:32]
    )
    shuffled = np.random.Generator(np.random.Philox(11)).permutation(32)
    found = _all(parts.train, seed=11, size=10)
    assert [len(y) for _, y in found] == [10, 10, 10, 2]
    assert torch.equal(torch.cat([x for x, _ in found]), torch.from_numpy(X[train][shuffled]))
    assert torch.equal(torch.cat([y for _, y in found]), torch.from_numpy(Y[train][shuffled]))
    assert found[0][0].dtype == torch.float32
    in_order = list(parts.train.batches(parts.train.order(None, 10)))
    assert torch.equal(torch.cat([y for _, y in in_order]), torch.from_numpy(Y[train]))
    (test,) = parts.test.batches(parts.test.order(None, 10))
    assert torch.equal(test[0], torch.from_numpy(TEST[0]))


def test_parts_too_large_to_copy_give_the_same_batches(monkeypatch):
    data = Data({"a": X, "b": [X[:, :1], (X, Y)]}, 0.2, 0.2)
    copied = fingerprints.of_content(*_all(_parts(data).train))
    monkeypatch.setattr("contdrop.lab.data.data._COPIED_BYTES", 0)
    assert fingerprints.of_content(*_all(_parts(data).train)) == copied


def test_nesting_stays_and_batches_are_copies():
    point = collections.namedtuple("point", "u v")
    train = {"a": X, "b": point(X.astype(np.float64), (Y.tolist(), (X > 0).tolist()))}
    prepared = prepare(Data(train, 0.2, 0.2), task=None)
    (batch, *_) = _all(prepared.parts(0, "final", 0).train)
    assert isinstance(batch["b"], point)
    assert [batch["a"].dtype, batch["b"].u.dtype] == [torch.float32, torch.float64]
    assert [leaf.dtype for leaf in batch["b"].v] == [torch.int64, torch.bool]
    assert torch.equal(batch["a"].double(), batch["b"].u)
    before = prepared.sources["train"].nest["a"].clone()
    batch["a"].zero_()
    assert torch.equal(prepared.sources["train"].nest["a"], before)
    assert X.any()


def test_transforms_in_place_do_not_reach_the_data():
    def wipe(item, generator):
        item[0].zero_()
        return item

    parts = _parts(Data((X, Y), TEST, 8, transform=wipe))
    assert not any(x.any() for x, _ in _all(parts.train))
    assert all(x.any() for x, _ in _all(parts.validation))
    assert all(x.any() for x, _ in parts.train.batches(parts.train.order(1, 8)))  # without a seed: evaluation


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Endless(Dataset):
    def __getitem__(self, index):
        return index


NO_DATA = [
    *[(X, Y[:30]), {"x": X, "y": Y[:30]}, (X[:0], Y[:0]), (), None, 3, (X, 3), (X, None), (X, torch.tensor(3))],
    *[(X, np.array([None] * 40)), (X, np.array(["cat"] * 40)), (["a text"] * 40, Y), ([[1.0], [1.0, 2.0]], [0, 1])],
    *[(X, np.where(Y == 3, np.nan, Y)), (torch.from_numpy(X).to_sparse(), Y), iter([1]), Stream(), Endless()],
    DataLoader(TensorDataset(torch.zeros(3))),
]
UNFIT = [
    *[{"test": (X[:5].astype(np.float64), Y[:5])}, {"test": (X[:5], Y[:5, None])}, {"validation": X[:5]}],
    *[{"transform": 3}, {"loader_workers": -1}],
]


def test_data_and_settings_that_cannot_be_are_refused_in_one_line(refusals):
    options = [{"train": train, "test": 0.2} for train in NO_DATA]
    options += [{"train": (X, Y), "test": TEST, **option} for option in UNFIT]
    refusals("refusals_of_data", [lambda each=each: prepare(Data(**each), task="classification") for each in options])


def test_unusual_arrays_are_taken_as_they_are():
    class Frame:  # as pandas has it
        def to_numpy(self):
            return X

    read_only = Y.copy()
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = Data((Frame(), X.astype(">f8"), X[:, ::-1], read_only), 0.2)
        prepared = prepare(data, task="classification")
    frame, double, reverse, labels = prepared.sources["train"].nest
    assert torch.equal(frame, torch.from_numpy(X))
    assert double.dtype == torch.float64
    assert torch.equal(double.float(), frame)
    assert torch.equal(reverse.flip(1), frame)
    assert labels.tolist() == Y.tolist()
    assert _all(_parts(Data(X, 0.2), task=None).train)[0].shape == (8, 3)
    tensors = prepare(Data(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), TEST), task=None)
    assert tensors.is_arrays


# ---- datasets


def test_a_dataset_is_never_read_as_a_whole():
    numbers = Numbers()
    prepared = prepare(Data(numbers, 0.2, 0.2), task="classification")
    assert prepared.strata is not None  # from .targets
    assert sum(numbers.read.values()) <= 16
    assert not prepared.is_arrays
    parts = prepared.parts(0, "final", 0)
    numbers.read.clear()
    assert torch.equal(_all(parts.train)[0][1], torch.from_numpy(Y)[_all(parts.train)[0][0][:, 0].long()])
    assert {*numbers.read} == {*parts.train.positions.tolist()}
    nested = Subset(Subset(numbers, range(10, 40)), range(0, 30, 2))
    assert prepare(Data(nested, 0.2), task="classification").strata.tolist() == (Y[10::2] // 2).tolist()


def test_lists_of_examples_are_datasets():
    texts = [("a", 0), ("bb", 1), ("ccc", 0), ("dd", 1), ("e", 0)]
    parts = _parts(Data(texts, 2, 1), task=None)
    (batch,) = parts.train.batches(parts.train.order(None, 9))
    assert [(text, int(label)) for text, label in zip(*batch)] == [texts[i] for i in parts.train.positions]
    rows = [{"x": float(i), "labels": i % 2} for i in range(10)]
    parts = _parts(Data(rows, 2, 2, collate=lambda items: sorted(item["x"] for item in items)), task=None)
    assert [*parts.train.batches(parts.train.order(None, 9))] == [parts.train.positions.tolist()]


def _shown(data, **job):
    """Fingerprints of two epochs of training, with an evaluation in the middle of the second one."""
    parts = _parts(data, **job)
    second, abandoned = (parts.train.batches(parts.train.order(epoch, 8), seed=epoch) for epoch in (2, 3))
    shown = [*_all(parts.train, seed=1, epoch=1), next(second), *_all(parts.validation, epoch=None), *second]
    shown.append(next(abandoned))
    del abandoned
    found = [fingerprints.of_content(batch) for batch in (*shown, *_all(parts.test, epoch=None))]
    del parts, second
    assert not torch.multiprocessing.active_children()
    return found


@pytest.mark.parametrize("source", [Numbers(), (X, Y)], ids=["dataset", "arrays"])
def test_data_do_not_depend_on_the_number_of_loader_processes(source):
    for collate in (None, noisy_collate):
        options = {"validation": 0.2, "transform": noisy, "collate": collate}
        expected = _shown(Data(source, 0.2, **options))
        assert len({*expected}) == len(expected)
        for workers in (1, 4):
            assert _shown(Data(source, 0.2, loader_workers=workers, **options)) == expected


def test_augmentation_follows_from_epoch_and_position_alone():
    part = _parts(Data(Numbers(), 0.2, 0.2, transform=noisy)).train

    def by_index(**options):
        positions = part.positions[torch.cat(part.order(options.get("seed", 1), options.get("size", 8)))]
        drawn = torch.cat([x for x, _ in _all(part, **options)])
        return {int(index): row.tolist() for index, row in zip(positions, drawn)}

    assert by_index() == by_index(seed=9, size=3)  # another order, other batches
    assert by_index() != by_index(epoch=4)
    assert len({tuple(row) for row in by_index().values()}) == len(part)
    order = part.order(1, 8)
    again = list(part.batches([order[0], order[0]], seed=3))
    assert not torch.equal(again[0][0], again[1][0])  # shown twice in an epoch: changed in two ways
    rest = list(part.batches([order[0], order[0]], seed=3, skip=1))
    assert len(rest) == 1
    assert torch.equal(rest[0][0], again[1][0])


@pytest.mark.parametrize("workers", [0, 1])
def test_what_items_draw_does_not_shift_the_masks(workers):
    part = _parts(Data(Numbers(), 0.2, 0.2, transform=noisy, loader_workers=workers)).train
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)

    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    _all(part)
    assert states() == before


class Broken(Numbers):
    def __getitem__(self, index):
        if index == 21:
            raise KeyError("no\nsuch file")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_the_users_code_is_told_with_its_line(workers):
    parts = _parts(Data(Broken(), TEST, Numbers(), loader_workers=workers))
    said = refusal(_all, parts.train)
    assert said.startswith(r"data: item 21 of train: KeyError: 'no\nsuch file' (test_data.py, line ")
    assert len(_all(parts.validation)) == 5  # the processes are still good
    ragged = [(torch.zeros(length), 0) for length in range(1, 20)]
    for data, words in (
        (
            Data((X, Y), TEST, transform=lambda item, generator: item[5]),
            r"transform of item \d+ of train: IndexError: ",
        ),
        (Data(ragged, 2, 2), "batches of these items need collate=: RuntimeError"),
    ):
        part = _parts(dataclasses.replace(data, loader_workers=workers), task=None).train
        assert re.match(f"data: {words}", refusal(_all, part))


# ---- batches of the user's own


def test_own_batches_are_shown_as_they_are():
    lengths = torch.tensor([3, 1, 2] * 20)

    def by_length(dataset, generator):
        own = torch.tensor([len(dataset[i][0]) for i in range(len(dataset))])
        shuffled = torch.randperm(len(dataset), generator=generator)
        return shuffled[own[shuffled].argsort(stable=True)].split(5)

    texts = [("x" * int(length), i) for i, length in enumerate(lengths)]
    part = _parts(Data(texts, 10, 10, batches=by_length), task=None).train
    shown = [{len(text) for text in texts} for texts, _ in _all(part, seed=4)]
    assert max(len(kinds) for kinds in shown) <= 2
    assert sorted(torch.cat(part.order(4, 99)).tolist()) == list(range(40))
    assert [batch.tolist() for batch in part.order(4, 8)] == [batch.tolist() for batch in part.order(4, 8)]
    assert [batch.tolist() for batch in part.order(4, 8)] != [batch.tolist() for batch in part.order(5, 8)]
    assert [len(batch) for batch in part.order(None, 16)] == [16, 16, 8]


OWN = [[[0, 32]], [[0], [-1]], [], [[]], [[0.5]], [3]]


def test_own_batches_are_checked(refusals):
    parts = [_parts(Data((X, Y), TEST, 8, batches=lambda *_, own=own: own)).train for own in OWN]
    refusals("refusals_of_batches", [partial(part.order, 1, 8) for part in parts])


# ---- processes


def _in_worker(pipe, prepared):
    """What a daemonic worker with a thread of its own sees, and whether it writes to the same memory."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    torch.set_num_threads(2)
    pipe.send([fingerprints.of_content(batch) for batch in _all(prepared.parts(0, "final", 0).train)])
    prepared.sources["test"].nest[0].fill_(7)
    pipe.send([child.pid for child in torch.multiprocessing.active_children()])
    pipe.recv()


def test_daemonic_workers_share_arrays_and_may_have_loader_processes():
    prepared = prepare(Data((X, Y), TEST, 8, transform=noisy, loader_workers=2), task="classification").share()
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_worker, args=(theirs, prepared), daemon=True)
    process.start()
    theirs.close()
    shown, children = ours.recv(), ours.recv()
    assert (prepared.sources["test"].nest[0] == 7).all()
    assert len(children) == 2
    process.kill()
    process.join()
    assert ours.poll(4)  # an end of the pipe that a loader process held open would keep this silent for longer
    with pytest.raises(EOFError):
        ours.recv()
    limit = time.monotonic() + 4
    while any(_runs(child) for child in children):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert shown == [fingerprints.of_content(batch) for batch in _all(prepared.parts(0, "final", 0).train)]


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# ---- fingerprints


def test_fingerprints_of_arrays_are_of_their_content():
    def fingerprint(train=(X, Y), test=TEST, **options):
        return prepare(Data(train, test, **options), task=None).fingerprint

    changed = X.copy()
    changed[39, 2] = np.nextafter(changed[39, 2], 1)
    assert fingerprint() == fingerprint((X.copy(), torch.from_numpy(Y)))
    different = [fingerprint(), fingerprint((changed, Y)), fingerprint(version="2"), fingerprint((X, Y[::-1]))]
    others = [(X, Y.astype(np.int32)), {"x": X, "y": Y}, (Y, X), (X, Y)]
    different += [fingerprint(train, test=0.2) for train in others]
    assert len({*different}) == len(different)


def test_fingerprints_of_datasets_are_of_sampled_items_length_and_version():
    def fingerprint(items, **options):
        return prepare(Data(items, 1, 1, **options), task=None).fingerprint

    texts = [(str(i), i) for i in range(100)]
    assert fingerprint(texts) == fingerprint(list(texts))
    different = [texts, texts[:-1], [("?", 0), *texts[1:]], [*texts[:-1], ("?", 99)]]
    assert len({fingerprint(items) for items in different} | {fingerprint(texts, version="b")}) == 5
    assert fingerprint(texts[:1] * 100) != fingerprint(texts[:1] * 99)
    assert fingerprint(Numbers()) == fingerprint(Numbers())  # though its items draw


class Picture:
    """As PIL has it."""

    mode, size = "L", (2, 1)

    def __init__(self, pixels):
        self.pixels = pixels

    def tobytes(self):
        return self.pixels


def test_content_of_every_kind_counts():
    kinds = [
        *[1, 1.0, True, None, "1", b"1", 1j, [1], [[1]], {"a": 1}, {"a": 2}, {1}, np.float32(1), np.int64(1)],
        *[torch.ones(1), torch.ones(1, 1), torch.ones(1, dtype=torch.bfloat16), torch.ones(()), torch.ones(1) * 1j],
        *[np.ones(1, np.float32), np.array([None, 1], object), Picture(b"ab"), Picture(b"ac"), ["a", "b"], ["ab"]],
        *[torch.zeros(1), torch.zeros(1, dtype=torch.int32), [[1], 2], [[1, 2]]],
    ]
    found = [fingerprints.of_content(kind) for kind in kinds]
    assert len({*found}) == len(kinds)
    assert found == [fingerprints.of_content(kind) for kind in kinds]
    for one, other in (
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Picture(b"ab"), Picture(b"ab")),
        (torch.arange(6).reshape(2, 3).T, torch.tensor([[0, 3], [1, 4], [2, 5]])),
    ):
        assert fingerprints.of_content(one) == fingerprints.of_content(other)


# ---- forms of batches


class Recorder(torch.nn.Module):
    def forward(self, *inputs, **named):
        return inputs, named


class WithLabels(torch.nn.Module):
    def forward(self, ids, labels=None):
        return (ids,), {"labels": labels}


A, B, LABELS = torch.zeros(3, 2), torch.ones(3, 1), torch.arange(3)


@pytest.mark.parametrize(
    ("batch", "inputs", "named", "target"),
    [
        ((A, LABELS), (A,), {}, LABELS),
        ([A, LABELS], (A,), {}, LABELS),
        (((A, B), LABELS), (A, B), {}, LABELS),
        (([A, B], LABELS), (A, B), {}, LABELS),
        (({"a": A, "b": B}, LABELS), (), {"a": A, "b": B}, LABELS),
        ((A, B, LABELS), (A, B), {}, LABELS),
        ({"a": A, "labels": LABELS}, (), {"a": A}, LABELS),
        (collections.UserDict({"a": A, "y": LABELS}), (), {"a": A}, LABELS),
        ({"a": A, "b": B}, (), {"a": A, "b": B}, None),
        ((A,), (A,), {}, None),
        (A, (A,), {}, None),
    ],
)
def test_the_form_of_a_batch_tells_how_a_model_is_called(batch, inputs, named, target):
    called = default_forward(Recorder(), batch)
    assert [*map(id, called[0])] == [*map(id, inputs)]
    assert {key: id(value) for key, value in called[1].items()} == {key: id(value) for key, value in named.items()}
    assert inputs_and_target(batch)[2] is target
    assert find_target(batch) is target
    assert size_of(batch) == 3
    moved = inputs_and_target(to_device(batch, "meta"))
    assert {leaf.device.type for leaf in [*moved[0], *moved[1].values()]} == {"meta"}


def test_a_model_that_asks_for_the_labels_gets_them():
    batch = {"ids": A, "labels": LABELS}
    assert default_forward(WithLabels(), batch)[1]["labels"] is LABELS
    assert find_target(batch) is LABELS


def test_sizes_of_other_batches():
    assert size_of((["a", "b"], LABELS[:2])) == 2
    assert size_of({"step": torch.tensor(7), "x": A}) == 3
    assert to_device((["a"], A), "cpu")[0] == ["a"]
    with pytest.raises(TypeError, match="expected a batch with a tensor"):
        size_of({})
