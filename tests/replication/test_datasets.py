"""Data sets: what is loaded, what is refused and in which words, and how images are split."""

import gzip
import os
import pathlib
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contdrop.errors import UserError
from contdrop.replication import datasets
from contdrop.replication.datasets import download, mnist
from contdrop.replication.datasets.dataset import MissingError
from data_files import NAMES, TEST, TRAIN, idx, make_arrays, make_source, packed, real, write
from fuzzing import by_file, memory_below, mutants, refusal, survives

ARRAYS = make_arrays()
SOURCE = make_source(ARRAYS)
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "mnist", ARRAYS)
    return tmp_path / "mnist"


def complaint(folder, kind=UserError):
    return refusal(SOURCE.load, folder.parent, kind=kind).replace(f"{folder}/", "")


def assert_whole(found):
    for ours, published in zip((found.train_images, found.test_images), (ARRAYS[0], ARRAYS[2])):
        assert ours.shape == (len(published), 1, 28, 28)
        assert ours.dtype == np.uint8
        assert ours.flags.c_contiguous
        assert ours.flags.writeable  # torch.from_numpy warns if not
        np.testing.assert_array_equal(ours[:, 0], published)
    for ours, published in zip((found.train_labels, found.test_labels), (ARRAYS[1], ARRAYS[3])):
        assert ours.dtype == np.int64
        np.testing.assert_array_equal(ours, published)


# Published data sets


@pytest.mark.parametrize(
    ("name", "train", "test", "mean", "first", "fingerprint"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
            0.1307,
            "5",
            "11de40ec28a7c150195b86fd3a818037e73f1e8d04ab1621d02836dbdf8a2d54",
        ),
        ("fashion-mnist", [6000] * 10, [1000] * 10, 0.2860, "Ankle boot", "b42e0f31"),
    ],
)
def test_the_data_sets_that_everybody_knows(name, train, test, mean, first, fingerprint):
    """By counts and mean as they are given everywhere."""
    found = real(name)
    assert found.train_images.shape == (60_000, 1, 28, 28)
    assert found.test_images.shape == (10_000, 1, 28, 28)
    assert np.bincount(found.train_labels).tolist() == train
    assert np.bincount(found.test_labels).tolist() == test
    assert found.train_images.mean() / found.divisor == pytest.approx(mean, abs=5e-5)
    assert found.classes[found.train_labels[0]] == first
    assert found.fingerprint.startswith(fingerprint)
    assert "train-images-idx3-ubyte" in found.provenance


def test_digits():
    pytest.importorskip("sklearn")
    before = np.random.get_state()[1].tolist()
    found = datasets.load("digits")
    assert np.random.get_state()[1].tolist() == before
    assert found.train_images.shape == (1000, 1, 8, 8)
    assert found.test_images.shape == (797, 1, 8, 8)
    assert found.train_images.dtype == np.uint8
    assert found.train_labels.dtype == np.int64
    assert (found.train_images.max(), found.divisor) == (16, 16.0)
    # The test set may never change: results rest on it.
    assert found.fingerprint == "d1b8a7aad496dc11e899cd4a0560edbbd7de104522fe1f1f71d7c9252188f240"


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingError, match=r'^digits: needs scikit-learn, .*; run: pip install "contdrop\[lab\]"$'):
        datasets.load("digits")


# Names and places


def test_names():
    assert datasets.names() == (
        *("digits", "mnist", "fashion-mnist", "cifar-10"),
        *("svhn", "svhn-extra", "svhn-subset", "norb", "small-norb"),
        *("ilsvrc", "ilsvrc-10", "imagenette-subset", "svhn-generated", "norb-generated", "ilsvrc-generated"),
    )


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("mnits", "'mnits'; did you mean 'mnist'?"),
        ("MNIST", "'MNIST'; did you mean 'mnist'?"),
        ("fashion_mnist", "; did you mean 'fashion-mnist'?"),
        (
            "",
            "''; known: digits, mnist, fashion-mnist, cifar-10, svhn, svhn-extra, svhn-subset, norb, small-norb, "
            "ilsvrc, ...",
        ),
        ("cifar10", "'cifar10'; did you mean 'cifar-10'?"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, ending):
    text = refusal(datasets.load, name)
    assert text.startswith("unknown data set ")
    assert text.endswith(ending)


def test_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("CONTDROP_DATA", "/data")
    assert datasets.data_directory("here") == pathlib.Path("here")
    assert datasets.data_directory(tmp_path) == tmp_path
    assert datasets.data_directory("~/here") == pathlib.Path("/home/somebody/here")
    assert datasets.data_directory() == pathlib.Path("/data")
    monkeypatch.setenv("CONTDROP_DATA", "")
    assert datasets.data_directory() == pathlib.Path("/cache/contdrop")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert datasets.data_directory() == pathlib.Path("/home/somebody/.cache/contdrop")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.data_directory() == pathlib.Path("/home/somebody/.cache/contdrop")


def test_a_directory_that_is_a_file(monkeypatch, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    monkeypatch.setenv("CONTDROP_DATA", str(path))
    for option, name in ((None, "CONTDROP_DATA"), (path, "--data-dir")):
        with pytest.raises(UserError, match=f"^{name}: expected a directory; {path} is a file$"):
            datasets.data_directory(option)


# The format


NOT_IDX = [
    (b"", "expected images in IDX format; it is empty"),
    (b"\0\0", "which start with the bytes 00 00 08 03; it starts with 00 00"),
    (struct.pack(">II", 2049, 5) + bytes(5), "00 00 08 03; it holds labels: is it wrongly named?"),
    (b"\x1f\x8b\x08\x00 and more", "it is gzipped twice"),
    (b"\n<!DOCTYPE html><p>Sorry", "it looks like a web page, not like data"),
    (struct.pack(">I", 0x0D03) + bytes(12), "it starts with 00 00 0d 03"),
    (struct.pack("<I", 2051) + bytes(12), "it starts with 03 08 00 00"),
    (struct.pack(">IIH", 2051, 1, 0), "truncated, 10 bytes are less than its header of 16"),
    (struct.pack(">4I", 2051, 2, 3, 4) + bytes(23), r"truncated, it holds 39 bytes .* \(2x3x4\) asks for 40"),
    (struct.pack(">4I", 2051, 2, 3, 4) + bytes(25), "bytes follow its end, it holds 41 bytes where"),
    (struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 9) + bytes(24), "truncated"),
]


@pytest.mark.parametrize(("content", "message"), NOT_IDX, ids=[message[:50] for _, message in NOT_IDX])
def test_what_is_not_idx_is_refused(content, message):
    with pytest.raises(UserError, match=f"^file: .*{message}"):
        mnist.parse(content, 3, "file")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(lambda shape: len(shape) != 2), st.integers(0, 99))
def test_a_valid_file_is_read(shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape)
    np.testing.assert_array_equal(mnist.parse(idx(array), len(shape), "file"), array)


# Files


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("dotted", [False, True])
def test_files_gzipped_or_not_with_hyphen_or_dot(tmp_path, suffix, dotted):
    write(tmp_path / "mnist", ARRAYS, suffix)
    for path in (tmp_path / "mnist").iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx") if dotted else path.name))
    found = SOURCE.load(tmp_path)
    assert_whole(found)
    assert f"t10k-labels{'.' if dotted else '-'}idx1-ubyte{suffix}" in found.provenance
    assert str(tmp_path) not in found.provenance


def test_the_content_tells_whether_it_is_gzipped(folder):
    (folder / f"{TRAIN_IMAGES}.gz").write_bytes(idx(ARRAYS[0]))
    (folder / f"{TEST_LABELS}.gz").rename(folder / TEST_LABELS)
    assert_whole(SOURCE.load(folder.parent))


def test_gzip_of_two_members_and_symbolic_links(folder, tmp_path):
    content = idx(ARRAYS[0])
    path = folder / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(packed(content[:1000]) + packed(content[1000:]))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_whole(SOURCE.load(folder.parent))


def test_a_whole_copy_beside_a_damaged_one_will_do(folder):
    (folder / f"{TRAIN_LABELS}.gz").write_bytes(b"damaged")
    (folder / TRAIN_LABELS).write_bytes(idx(ARRAYS[1]))
    assert_whole(SOURCE.load(folder.parent))


def test_the_fingerprint_tells_arrays_apart(folder):
    one = SOURCE.load(folder.parent).fingerprint
    assert one == SOURCE.load(folder.parent).fingerprint
    others = make_arrays(seed=1)
    write(folder, others)
    assert make_source(others).load(folder.parent).fingerprint != one


AGAIN = "; to get it again, run: contdrop data get mnist --data-dir "


def altered(content, at=-1):
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


LABELS = idx(ARRAYS[1])
LABELS_OUT_OF_RANGE = LABELS[:10] + b"\x0b" + LABELS[11:]
GZIPPED = packed(idx(ARRAYS[0]))
DAMAGED = [
    (TRAIN_IMAGES, b"", "expected images in IDX format; it is empty"),
    (TRAIN_IMAGES, GZIPPED[:-100], "truncated, it ends in the middle of its gzip data"),
    (TRAIN_IMAGES, GZIPPED[:5], "truncated, it ends in the middle of its gzip data"),
    (TRAIN_IMAGES, altered(GZIPPED, 5000), "damaged gzip data ("),
    (TRAIN_IMAGES, altered(GZIPPED, -6), "damaged gzip data (CRC check failed"),
    (TRAIN_IMAGES, GZIPPED + b"more", "damaged gzip data (Not a gzipped file (b'mo'))"),
    (TRAIN_IMAGES, idx(ARRAYS[0]) + b"more", "bytes follow its end"),
    (TRAIN_IMAGES, idx(ARRAYS[0])[:-1], "truncated, it holds 31,375 bytes where its header (40x28x28) asks for"),
    (TRAIN_IMAGES, idx(ARRAYS[0][:-1]), "expected the training images, 40x28x28; its header says 39x28x28"),
    (TRAIN_LABELS, idx(ARRAYS[1][:-1]), "expected the training labels, 40; its header says 39"),
    (TRAIN_LABELS, LABELS_OUT_OF_RANGE, "expected labels from 0 to 9; number 2 is 11"),
    (TRAIN_LABELS, idx(np.roll(ARRAYS[1], 1)), "expected the published content, SHA-256 "),
    (TEST_IMAGES, packed(altered(idx(ARRAYS[2]))), "expected the published content, SHA-256 "),
    (
        TRAIN_LABELS,
        idx(ARRAYS[0]),
        f"expected the training labels; it holds the training images of Tiny, which should be called "
        f"mnist/{TRAIN_IMAGES}.gz",
    ),
    (TRAIN_LABELS, idx(ARRAYS[0] // 2), "expected labels in IDX format, which start with the bytes 00 00 08 01"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[message[:50] for *_, message in DAMAGED])
def test_damaged_files_are_refused(folder, name, content, message):
    (folder / f"{name}.gz").write_bytes(content)
    text = complaint(folder)
    assert text.startswith(f"mnist: {name}.gz: {message}")
    assert text.endswith(f"{AGAIN}{folder.parent}")


def test_files_of_another_data_set_are_recognised(folder, monkeypatch):
    other = make_source(make_arrays(seed=1), name="fashion-mnist")
    monkeypatch.setattr(mnist, "FASHION_MNIST", other)
    write(folder, make_arrays(seed=1))
    assert f"it holds the training images of Tiny, which should be called fashion-mnist/{NAMES[0]}.gz" in complaint(
        folder
    )


def test_more_content_than_can_be_is_not_unpacked(folder, monkeypatch):
    monkeypatch.setattr(download, "LIMIT", 50_000)
    (folder / f"{TRAIN_IMAGES}.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    with memory_below(5_000_000):
        assert "expected at most 50,000 bytes of content; it holds more" in complaint(folder)


def test_what_is_no_file_is_refused(folder):
    path = folder / f"{TEST_IMAGES}.gz"
    path.unlink()
    path.mkdir()
    assert f"{path.name}: expected a file; it is a directory" in complaint(folder)
    path.rmdir()
    path.symlink_to("nowhere")
    assert f"{path.name}: a symbolic link that leads nowhere, to nowhere" in complaint(folder)
    path.unlink()
    path.symlink_to(path.name)
    assert "a symbolic link that leads nowhere" in complaint(folder)
    path.unlink()
    os.mkfifo(path)  # must not wait for somebody to write to it
    assert f"{path.name}: expected a file; it is something else" in complaint(folder)


def test_an_unreadable_file(folder, monkeypatch):
    path = folder / f"{TEST_IMAGES}.gz"
    path.chmod(0)
    if os.access(path, os.R_OK):  # for the superuser nothing is unreadable

        def refuse(self, *_):
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(pathlib.Path, "open", refuse)
    assert "cannot be read: Permission denied" in complaint(folder)


@mutants
def test_mutated_files(folder, mutants):
    """Of a gzipped file and of a plain one; what is not refused is the published content."""

    def read(path):
        try:
            assert_whole(SOURCE.load(folder.parent))
        except UserError as problem:
            assert str(problem).startswith(f"mnist: {path}: ")  # noqa: PT017 - one of two right outcomes
            raise

    files = [(packed(LABELS), range(20)), (LABELS, range(12))]
    assert survives(by_file(folder / f"{TRAIN_LABELS}.gz", read), files, mutants) > 0.5 * mutants


# What is missing


def test_all_files_missing(tmp_path):
    text = complaint(tmp_path / "mnist", MissingError)
    assert text == (
        f"mnist: 4 of 4 files are missing; put {TRAIN_IMAGES}.gz, {TRAIN_LABELS}.gz, {TEST_IMAGES}.gz, "
        f"{TEST_LABELS}.gz, unpacked if you like, into {tmp_path}/mnist, or run: "
        f"contdrop data get mnist --data-dir {tmp_path}"
    )


def test_the_command_is_short_in_the_usual_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    assert complaint(tmp_path / "mnist", MissingError).endswith("or run: contdrop data get mnist")


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ("train_labels_idx1_ubyte.gz", "train-labels-idx1-ubyte.gz"),
        ("TRAIN-LABELS-IDX1-UBYTE.GZ", "train-labels-idx1-ubyte.gz"),
        ("Train-Labels.idx1-ubyte", "train-labels-idx1-ubyte"),
        ("train-labels-idx1-ubyte (1).gz", "train-labels-idx1-ubyte.gz"),
        ("train-labels-idx1-ubyte.gz.1", "train-labels-idx1-ubyte.gz"),
        ("train-label-idx1-ubyte", "train-labels-idx1-ubyte"),
        ("train-labels.gz", "train-labels-idx1-ubyte.gz"),
    ],
)
def test_a_nearly_right_name_is_noticed(folder, found, right):
    (folder / f"{TRAIN_LABELS}.gz").rename(folder / found)
    if (folder / f"{TRAIN_LABELS}.gz").exists():
        pytest.skip("this file system does not tell upper from lower case")
    text = complaint(folder, MissingError)
    assert text.startswith(f"mnist: 1 of 4 files are missing ({found} is there and should be called {right}); put ")


def test_other_names_are_not_mistaken(folder):
    (folder / f"{TRAIN_LABELS}.gz").unlink()
    for name in ("notes.txt", f"{TRAIN_IMAGES} (copy).gz", f"{TRAIN_LABELS}.gz.part", f".{TRAIN_LABELS}.gz-x.tmp",
        f".{TRAIN_LABELS}-x.tmp", f"{TRAIN_LABELS}.part"):  # fmt: skip
        (folder / name).write_bytes(b"")
    assert complaint(folder, MissingError).startswith("mnist: 1 of 4 files are missing; put ")


@pytest.mark.parametrize("place", [".", "MNIST", "MNIST/raw"])
def test_a_wrong_folder_is_noticed(tmp_path, place):
    write(tmp_path / place, ARRAYS)
    if (tmp_path / "mnist").exists():
        pytest.skip("this file system does not tell upper from lower case")
    text = complaint(tmp_path / "mnist", MissingError)
    assert f"(files of these names are in {tmp_path / place}: if they are Tiny, move them); put" in text


# Checks


def test_check(folder, monkeypatch):
    monkeypatch.setattr(datasets, "SOURCES", (SOURCE,))
    assert datasets.check("mnist", folder.parent).status == "ok"
    (folder / f"{TEST_LABELS}.gz").write_bytes(b"")
    finding = datasets.check("mnist", folder.parent)
    assert (finding.status, "is empty" in finding.detail) == ("damaged", True)
    (folder / f"{TEST_LABELS}.gz").unlink()
    assert datasets.check("mnist", folder.parent).status == "missing"


def test_sizes_are_known_before_loading():
    for source in datasets.SOURCES:
        assert source.name in datasets.names()
        assert len(source.classes) in (5, 6, 10, 1000)
    assert (SOURCE.train, SOURCE.test, SOURCE.shape) == (TRAIN, TEST, (1, 28, 28))
    assert (mnist.MNIST.train, mnist.MNIST.test) == (60_000, 10_000)
