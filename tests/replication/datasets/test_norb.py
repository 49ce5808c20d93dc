"""NORB: files in the exact format, gzipped or not, of every type, and what is refused in which words."""

import dataclasses
import gzip
import struct

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.replication.datasets import norb
from contdrop.replication.datasets.dataset import MissingError
from fuzzing import by_file, mutants, refuses, survives

RANDOM = np.random.default_rng(0)
PAIRS = 5
IMAGES = {fold: RANDOM.integers(0, 256, (PAIRS, 2, 108, 108)).astype(np.uint8) for fold in "abc"}
LABELS = {fold: RANDOM.integers(0, 6, PAIRS).astype(np.int32) for fold in "abc"}
SOURCE = dataclasses.replace(norb.NORB, training=norb.folds(("a-", "b-"), PAIRS), testing=norb.folds(["c-"], PAIRS))
MAGIC = {"float32": 0x1E3D4C51, "float64": 0x1E3D4C53, "int32": 0x1E3D4C54, "uint8": 0x1E3D4C55, "int16": 0x1E3D4C56}


def matrix(array):
    sizes = array.shape + (1,) * (3 - array.ndim)
    head = struct.pack("<II", MAGIC[array.dtype.name], array.ndim) + struct.pack(f"<{len(sizes)}i", *sizes)
    return head + array.astype(array.dtype.newbyteorder("<")).tobytes()


def write(directory, packed=True):
    folder = directory / "norb"
    folder.mkdir()
    for fold in "abc":
        for what, array in (("dat", IMAGES[fold]), ("cat", LABELS[fold])):
            content = matrix(array)
            name = f"{fold}-{what}.mat{'.gz' if packed else ''}"
            (folder / name).write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


def naive(image):
    """From 108 to 48 by a grid of 432, in which a pixel has four parts before and nine after."""
    return np.kron(image, np.ones((4, 4))).reshape(48, 9, 48, 9).mean((1, 3))


@pytest.mark.parametrize("packed", [True, False])
def test_folds_follow_each_other_reduced(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(norb, "_AT_ONCE", 2)
    write(tmp_path, packed)
    found = SOURCE.load(tmp_path)
    assert found.train_images.shape == (2 * PAIRS, 2, 48, 48)
    assert found.train_images.dtype == np.uint8
    assert found.train_labels.tolist() == [*LABELS["a"], *LABELS["b"]]
    assert found.test_labels.tolist() == LABELS["c"].tolist()
    for pair, eye in ((0, 0), (PAIRS + 1, 1)):
        original = np.concatenate([IMAGES["a"], IMAGES["b"]])[pair, eye].astype(float)
        np.testing.assert_allclose(found.train_images[pair, eye], naive(original), atol=0.5 + 1e-4)


@pytest.mark.parametrize(("before", "after"), [(108, 48), (9, 4), (7, 7), (6, 3)])
def test_area_means_against_an_integral(before, after):
    """An exact integral of a step function: from cumulated sums, interpolated at the edges."""
    line = RANDOM.random(before)
    cumulated = np.interp(np.linspace(0, before, after + 1), np.arange(before + 1), np.r_[0, np.cumsum(line)])
    np.testing.assert_allclose(norb.area_matrix(before, after) @ line, np.diff(cumulated) * after / before, atol=1e-5)


def test_small_norb_keeps_its_size(tmp_path):
    images = RANDOM.integers(0, 256, (3, 2, 96, 96)).astype(np.uint8)
    source = dataclasses.replace(norb.SMALL_NORB, training=norb.folds(["a-"], 3), testing=norb.folds(["a-"], 3))
    folder = tmp_path / "small-norb"
    folder.mkdir()
    (folder / "a-dat.mat").write_bytes(matrix(images))
    (folder / "a-cat.mat").write_bytes(matrix(np.array([0, 4, 2], np.int32)))
    found = source.load(tmp_path)
    np.testing.assert_array_equal(found.train_images, images)
    assert source.shape == (2, 96, 96)


@pytest.mark.parametrize("kind", list(MAGIC))
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2), (4, 3, 2, 2)])
def test_every_type_and_number_of_dimensions(tmp_path, kind, shape):
    array = RANDOM.integers(0, 100, shape).astype(kind)
    (tmp_path / "m").write_bytes(matrix(array))
    parts = list(norb.matrix(tmp_path / "m", shape, 3))
    assert [len(part) for part in parts] == [3, 1]
    assert parts[0].dtype == np.dtype(kind)
    np.testing.assert_array_equal(np.concatenate(parts), array)


def test_the_paper_s_folds():
    assert norb.NORB.training[0].name == "norb-5x46789x9x18x6x2x108x108-training-01-dat.mat.gz"
    assert norb.NORB.testing[3].name == "norb-5x01235x9x18x6x2x108x108-testing-02-cat.mat.gz"
    assert norb.SMALL_NORB.training[1].name == "smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz"
    assert (norb.NORB.train, norb.NORB.test, norb.NORB.shape) == (58_320, 58_320, (2, 48, 48))


GOOD = matrix(IMAGES["a"])
HEAD = struct.pack("<IIiiii", MAGIC["uint8"], 4, PAIRS, 2, 108, 108)


REFUSED = [
    (b"", "truncated, 0 bytes are less than the head of a matrix"),
    (GOOD[:20], "truncated, it ends in the middle of its head"),
    (GOOD[:-1], "truncated, it ends in the middle of its values"),
    (GOOD + b"1", "too long, bytes follow its 5 rows"),
    (gzip.compress(GOOD, 1)[:-9], "damaged gzip data ("),
    (gzip.compress(GOOD, 1)[:4000], "damaged gzip data ("),
    (b"\x1f\x8b\x08\x00" + bytes(40), "damaged gzip data ("),
    (gzip.compress(HEAD + bytes(60_000_000)), "too long, bytes follow its 5 rows"),
    (b"\0\0\0\0" + GOOD[4:], "expected a matrix, which starts with a number such as 1e3d4c55; got 00000000"),
    (struct.pack("<I", 0x1E3D4C52) + GOOD[4:], "it is a packed one"),
    (struct.pack("<II", MAGIC["uint8"], 2**31) + GOOD[8:], "at most 8 dimensions; its head says 2,147,483,648"),
    (HEAD[:8] + struct.pack("<4i", 2**30, 2**10, 108, 108), "5x2x108x108; its head says 1073741824x1024x108x108"),
    (HEAD[:8] + struct.pack("<4i", -5, 2, 108, 108), "its head says -5x2x108x108"),
    (matrix(IMAGES["a"].astype(np.int16)), "expected images of bytes; it has int16"),
    (matrix(LABELS["a"]), "expected a matrix of 5x2x108x108; its head says 5"),
]


def test_other_files_get_one_line(tmp_path):
    path = write(tmp_path) / "a-dat.mat.gz"
    refuses(lambda: SOURCE.load(tmp_path), path, REFUSED, 3_000_000, "norb: ")


def test_a_category_that_is_none(tmp_path):
    folder = write(tmp_path)
    (folder / "b-cat.mat.gz").write_bytes(matrix(np.array([0, 5, 6, 0, 0], np.int32)))
    with pytest.raises(UserError, match="expected categories from 0 to 5; that of pair 2 is 6"):
        SOURCE.load(tmp_path)


def test_what_is_missing_and_where_it_is_offered(tmp_path):
    (write(tmp_path) / "c-cat.mat.gz").unlink()
    assert SOURCE.missing(tmp_path) == ("c-cat.mat.gz",)
    with pytest.raises(
        MissingError, match=r"1 of 6 files are missing; put c-cat.mat.gz, unpacked if you like, .*; its owner offers"
    ):
        SOURCE.load(tmp_path)
    with pytest.raises(UserError, match=r"^norb: cannot be downloaded here; put c-cat.mat.gz into .*; its owner"):
        SOURCE.get(tmp_path, None)


SMALL = RANDOM.integers(0, 256, (2, 2, 9, 9)).astype(np.uint8)
FILES = [(matrix(SMALL), range(24)), (gzip.compress(matrix(SMALL), 1), range(40))]


@mutants
def test_mutated_files(tmp_path, mutants):
    source = dataclasses.replace(norb.NORB, original=9, shape=(2, 4, 4))

    def read(path):
        for file in norb.folds([""], 2):
            source._check(file, path)

    assert survives(by_file(tmp_path / "file", read), FILES, mutants) > 0.3 * mutants
