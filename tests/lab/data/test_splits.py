"""Which examples go where: the draws against plain counting, and the very positions that earlier versions drew."""

import collections
import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contdrop.lab.data import fingerprints, splits
from contdrop.lab.data.data import Data, prepare
from contdrop.lab.training import random_streams


def _data(n=60, classes=3, **options):
    x = np.arange(n, dtype=np.float32)[:, None]
    return Data((x, np.arange(n) % classes), **{"test": (x[:9], np.arange(9) % classes), **options})


def _positions(parts):
    return [part.positions.numpy() for part in (parts.train, parts.validation, parts.test)]


def test_catalogue_draws_are_as_ever():
    """The positions that stored runs were trained on, and the fingerprint that they carry."""
    order = np.random.Generator(np.random.Philox(random_streams.seed(7, "final", 2, "split"))).permutation(60)
    found = prepare(_data(validation=20, subset=30, stratify=False), task="classification").parts(7, "final", 2)
    train, validation, _ = _positions(found)
    assert train.tolist() == sorted(order[:30])
    assert validation.tolist() == sorted(order[30:50])
    assert splits.divide(9, 3, 2, seed=5)[0].tolist() == [0, 1, 4]  # drawn by 0.1.0
    assert splits.divide(9, 3, 2, seed=5)[1].tolist() == [2, 7]
    assert found.split == "d3a8cb36063aed3f410800441d0d1274"
    rest, validation, _ = _positions(prepare(_data(validation=20, stratify=False), task=None).parts(7, "final", 2))
    assert rest.tolist() == sorted(order[:40])
    assert validation.tolist() == sorted(order[40:])


def test_a_tenth_validates_by_default():
    assert prepare(_data(), task=None).parts(0, "final", 0).sizes == {"train": 54, "validation": 6, "test": 9}


def test_amounts_are_of_the_training_data_as_given():
    found = prepare(_data(100, test=0.2, validation=0.25, subset=0.5), task=None).parts(0, "final", 0)
    assert found.sizes == {"train": 50, "validation": 25, "test": 20}
    assert len(np.unique(np.concatenate(_positions(found)))) == 95
    assert found.split == fingerprints.of_arrays(*_positions(found))
    assert [splits.count(f, 10, "test") for f in (0.01, 0.14, 0.15, 0.94, 0.99)] == [1, 1, 2, 9, 9]


def test_the_test_set_is_one_for_all_runs_and_the_rest_is_drawn_anew():
    prepared = prepare(_data(test=0.2, validation=0.2), task="classification")
    first, second, selection = (prepared.parts(0, *job) for job in (("final", 0), ("final", 1), ("selection", 0)))
    assert len({tuple(part.test.positions.tolist()) for part in (first, second, selection)}) == 1
    assert len({tuple(part.validation.positions.tolist()) for part in (first, second, selection)}) == 3
    assert len({part.split for part in (first, second, selection)}) == 3
    assert prepared.parts(0, "final", 1).split == second.split
    assert prepared.parts(1, "final", 0).test.positions.tolist() != first.test.positions.tolist()


def test_without_resplit_all_runs_share_one_division():
    prepared = prepare(_data(test=0.2, validation=0.2, resplit=False), task="classification")
    assert len({prepared.parts(0, "final", run).split for run in range(4)}) == 1
    assert prepared.parts(1, "final", 0).split != prepared.parts(0, "final", 0).split


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.01, 0.99), st.floats(0.01, 1), st.integers(0, 99)
)
def test_stratified_parts_hold_every_class_in_proportion(classes, out, kept, seed):
    strata, n = np.unique(classes, return_inverse=True)[1], len(classes)
    held_out = min(max(1, round(out * n)), n - 1)
    train = max(1, round(kept * (n - held_out)))
    one, other = splits.divide(n, train, held_out, seed, strata=strata)
    assert (len(one), len(other), len({*one, *other})) == (train, held_out, train + held_out)
    assert (np.sort(one) == one).all()
    assert (np.sort(other) == other).all()
    sizes = collections.Counter(strata.tolist())
    found = collections.Counter(strata[other].tolist())
    for stratum, size in sizes.items():
        # Within one of the exact share, and beyond it only where others had to leave their last example in training.
        spare = len(sizes)
        assert held_out * size / n - 1 <= found[stratum] + 1e-9 <= held_out * size / n + spare
    if held_out <= n - len(sizes) and train == n - held_out:
        assert {*strata[one].tolist()} == {*sizes}


def test_strata_are_met_exactly_where_they_divide():
    strata = np.repeat([0, 1, 2], [100, 40, 20])
    one, other = splits.divide(160, 80, 40, 3, strata=strata)
    assert np.bincount(strata[one]).tolist() == [50, 20, 10]
    assert np.bincount(strata[other]).tolist() == [25, 10, 5]


def test_the_last_example_of_a_class_is_trained_on():
    strata = np.repeat([0, 1], [2, 20])  # of class 0 its share of 20 held out is 1.8
    for seed in range(5):
        assert {*strata[splits.divide(22, None, 20, seed, strata=strata)[0]]} == {0, 1}


def test_every_member_of_a_stratum_is_as_likely_as_any_other():
    """In 400 draws each of 20 examples is held out 100 times, to within five standard deviations."""
    strata = np.repeat([0, 1], [12, 8])
    counts = sum(np.bincount(splits.divide(20, None, 5, seed, strata=strata)[1], minlength=20) for seed in range(400))
    assert abs(counts - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_auto_stratifies_classification_only():
    x, y = np.zeros((40, 1)), np.array([0] * 36 + [1] * 4)

    def ones(task, labels=y, **options):
        prepared = prepare(Data((x, labels), 0.25, 0.25, **options), task=task)
        return {
            int((labels[part.test.positions] == 1).sum()) for part in (prepared.parts(s, "final", 0) for s in range(30))
        }

    assert ones("classification") == {1}
    assert ones("classification", stratify=False) > {1}
    assert ones("regression") > {1}
    assert ones("regression", stratify=y) == {1}
    assert ones("regression", stratify=np.array(["a", "b"], object)[y]) == {1}
    assert ones("classification", np.array([0] * 39 + [1])) >= {0, 1}  # one example cannot be in two parts


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=80).filter(lambda groups: len({*groups}) >= 3),
    st.floats(0.05, 0.5),
    st.integers(0, 99),
    st.booleans(),
)
def test_no_group_is_in_two_parts(ids, fraction, seed, with_subset):
    groups, n = np.unique(ids, return_inverse=True)[1], len(ids)
    held_out = max(1, round(fraction * n))
    one, other = splits.divide(n, n // 3 + 1 if with_subset else None, held_out, seed, groups=groups)
    assert len(one)
    assert len(other)
    assert not {*groups[one]} & {*groups[other]}
    for part in (one, other):  # whole groups
        assert len(part) == np.isin(groups, groups[part]).sum()
    if not with_subset:
        assert len(one) + len(other) == n
    largest = np.bincount(groups).max()
    assert abs(len(other) - held_out) <= max(largest, held_out)


def test_groups_keep_drawn_test_data_apart_from_the_rest():
    groups = np.repeat(np.arange(20), 5)
    prepared = prepare(_data(100, test=0.2, validation=0.2, groups=groups), task="classification")
    for run in range(5):
        train, validation, test = (groups[part] for part in _positions(prepared.parts(0, "final", run)))
        assert [len(part) for part in (train, validation, test)] == [60, 20, 20]
        assert not {*train} & {*validation} | {*train} & {*test} | {*validation} & {*test}


def test_draws_of_groups_never_change():
    """Of many sizes of groups, with and without a subset, for one and two more parts to be drawn."""
    drawn = []
    for seed, train, leave in itertools.product(range(50), (None, 20), (1, 2)):
        lengths = np.random.Generator(np.random.Philox(seed)).integers(1, 40, 3 + seed % 10)
        groups = np.repeat(np.arange(len(lengths)), lengths)
        held_out = max(1, len(groups) * (5 + seed) // 100)
        drawn += splits.divide(len(groups), train, held_out, seed, groups=groups, leave=leave)
    assert fingerprints.of_arrays(*drawn) == "3a68a973a12146ebf676d95a7a0d384b"


def test_splits_by_groups_never_change():
    """Of studies that had something to train on; results of theirs are in stores."""
    for groups, options, expected in (
        (np.arange(60) // 5, {"test": 0.2, "validation": 0.2}, ["b607687b", "b607687b", "87994a2e"]),
        (np.arange(60) % 7, {"test": 0.25}, ["b270cfaf", "0a88abe5", "e6c55619"]),
        (np.arange(60) // 20, {"test": 0.2, "validation": 0.1}, ["65d51735", "a94d95c0", "a94d95c0"]),
        (np.arange(60) // 4, {"test": 0.2, "validation": 12, "subset": 15}, ["c6060501", "3f39ed9b", "f04f6636"]),
    ):
        prepared = prepare(_data(groups=groups, **options), task="classification")
        assert [prepared.parts(0, "final", run).split[:8] for run in range(3)] == expected


@pytest.mark.parametrize("lengths", [[5, 5, 90], [10, 10, 40], [3, 3, 3, 91], [10, 10, 10, 70], [1, 1, 1]])
@pytest.mark.parametrize("test", [0.1, 0.25, 0.4])
def test_groups_leave_something_for_every_part(lengths, test):
    groups = np.repeat(np.arange(len(lengths)), lengths)
    for subset in (None, 1):
        prepared = prepare(
            _data(len(groups), classes=1, test=test, validation=1, groups=groups, subset=subset), task=None
        )
        for seed in range(30):
            assert min(prepared.parts(seed, "final", 0).sizes.values()) > 0


def test_groups_are_found_by_key_attribute_and_function():
    x, ids = np.zeros((10, 2)), np.array(list("aabbccddee"))
    codes = np.repeat(np.arange(5), 2)

    class Patients(list):
        patients = ids

    for train, groups in (
        ({"x": x, "patient": codes}, "patient"),
        (Patients([(i, 0) for i in range(10)]), "patients"),
        ((x, codes), lambda train: train[1]),
        ((x, codes), ids),
    ):
        prepared = prepare(Data(train, 0.2, 0.2, groups=groups), task=None)
        assert prepared.groups.tolist() == codes.tolist()


GIVEN = (np.zeros((9, 1), np.float32), np.zeros(9, int))
IMPOSSIBLE = [
    *[{"test": 1.0}, {"test": 0}, {"test": -0.1}, {"test": True}, {"test": float("nan")}, {"validation": 60}],
    *[{"validation": 30, "test": 30}, {"validation": 30, "subset": 31}, {"subset": "half"}, {"stratify": "yes"}],
    *[{"stratify": [1, 2]}, {"groups": [1, 2]}, {"groups": [1] * 60}, {"groups": "patient"}],
    *[{"groups": [1] * 60, "stratify": True}, {"groups": np.arange(60), "stratify": "yes"}],
    *[{"groups": np.arange(60), "validation": GIVEN}, {"classes": 59, "stratify": True}],
    {"classes": 0.5, "stratify": True},
]


def test_impossible_divisions_are_refused_in_one_line(refusals):
    calls = [partial(prepare, _data(**options), task="classification") for options in IMPOSSIBLE]
    refusals("refusals_of_splits", calls)


def test_a_split_never_changes():
    train, validation = splits.divide(10, 4, 3, 1)
    assert (train.tolist(), validation.tolist()) == ([0, 1, 2, 6], [3, 4, 8])
