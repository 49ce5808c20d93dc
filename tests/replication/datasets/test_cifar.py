"""CIFAR-10: both versions of its files, getting them, and what is refused in which words."""

import dataclasses
import hashlib
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.replication.datasets import cifar, download
from contdrop.replication.datasets.dataset import File, MissingError
from data_files import Recorder, files_at, real, serving
from fuzzing import memory_below, mutants, refusal, refuses, survives

NAMES = ("data_batch_1", "data_batch_2", "test_batch")
IMAGES = 3
RANDOM = np.random.default_rng(0)
RECORDS = [
    np.concatenate([RANDOM.integers(0, 10, (IMAGES, 1)), RANDOM.integers(0, 256, (IMAGES, 3072))], 1).astype(np.uint8)
    for _ in NAMES
]
BATCHES = tuple(
    File(f"{name}.bin", examples=IMAGES, sha256=hashlib.sha256(records.tobytes()).hexdigest())
    for name, records in zip(NAMES, RECORDS)
)
SOURCE = dataclasses.replace(cifar.CIFAR_10, training=BATCHES[:2], testing=BATCHES[2:], mirrors=())


def text(value):
    return b"U" + struct.pack("<B", len(value)) + value


def pickled(records, kind=b"u1", shape=None):
    """A batch as the published ones are: protocol 2 of Python 2, an array by NumPy's ``_reconstruct``."""
    rows, columns = shape or (len(records), 3072)
    pixels = records[:, 1:].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85" + text(b"b") + b"\x87R("
        b"K\x01J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"\x86"
        b"cnumpy\ndtype\n"
        + text(kind)
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([row[0]]) for row in records) + b"e"
    names = b"](" + b"".join(text(b"leptodactylus_s_%06d.png" % n) + b"q\x10" for n in range(len(records))) + b"e"
    return (
        b"\x80\x02}q\x01(" + text(b"data") + array + text(b"labels") + labels
        + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"filenames") + names + b"u."
    )  # fmt: skip


def write(directory, python=False):
    folder = directory / "cifar-10"
    folder.mkdir()
    for name, records in zip(NAMES, RECORDS):
        (folder / (name if python else f"{name}.bin")).write_bytes(pickled(records) if python else records.tobytes())
    return folder


def complaint(directory, kind=UserError):
    return refusal(SOURCE.load, directory, kind=kind).replace(f"{directory}/cifar-10/", "")


def test_the_published_images():
    found = real("cifar-10")
    assert found.train_images.shape == (50_000, 3, 32, 32)
    assert np.bincount(found.train_labels).tolist() == [5000] * 10
    assert np.bincount(found.test_labels).tolist() == [1000] * 10
    means = found.train_images.mean((0, 2, 3)) / 255
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)  # as they are given everywhere
    assert found.classes[found.train_labels[0]] == "frog"


@pytest.mark.parametrize("python", [False, True])
def test_both_versions_hold_the_same(tmp_path, python):
    write(tmp_path, python)
    found = SOURCE.load(tmp_path)
    joined = np.concatenate(RECORDS)
    images = np.concatenate([found.train_images, found.test_images])
    np.testing.assert_array_equal(images.reshape(len(joined), -1), joined[:, 1:])
    np.testing.assert_array_equal(np.r_[found.train_labels, found.test_labels], joined[:, 0])
    assert (found.train_images.dtype, found.train_labels.dtype) == (np.uint8, np.int64)
    assert found.train_images.flags.c_contiguous
    assert ("data_batch_1.bin" in found.provenance) != python


def test_a_batch_that_python_3_has_written_again(tmp_path):
    folder = write(tmp_path)
    for name, records in zip(NAMES, RECORDS):
        (folder / f"{name}.bin").unlink()
        batch = {"data": np.ascontiguousarray(records[:, 1:]), "labels": records[:, 0].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
    np.testing.assert_array_equal(SOURCE.load(tmp_path).test_labels, RECORDS[-1][:, 0])


def test_a_folder_as_the_archive_has_it_and_a_better_copy(tmp_path):
    folder = write(tmp_path, python=True)
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    (folder / NAMES[0]).rename(inner / NAMES[0])
    (folder / f"{NAMES[0]}.bin").write_bytes(b"damaged")
    assert SOURCE.load(tmp_path).provenance.endswith("verified): data_batch_1, data_batch_2, test_batch")


def test_what_is_missing(tmp_path):
    (write(tmp_path) / "test_batch.bin").unlink()
    assert SOURCE.missing(tmp_path) == ("test_batch.bin",)
    assert complaint(tmp_path, MissingError).startswith("cifar-10: 1 of 3 files are missing; put test_batch.bin, or ")


class Malicious:
    def __reduce__(self):
        return os.system, ("touch /tmp/contdrop-was-here",)


GOOD = RECORDS[0].tobytes()


REFUSED = [
        (GOOD[:-1], "truncated, expected 9,219 bytes for 3 images of 3073; got 9,218"),
        (GOOD + b"1", "too long, expected 9,219 bytes for 3 images of 3073; got 9,220"),
        (b"", "truncated, expected 9,219 bytes"),
        (b"\x0a" + GOOD[1:], "expected labels from 0 to 9; that of image 0 is 10"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "expected the published images, SHA-256 "),
        (RECORDS[2].tobytes(), "it holds test_batch.bin: is it wrongly named?"),
        (pickle.dumps(Malicious(), 2), "expected data, an array of bytes of shape (3, 3072); it has none such"),
        (pickle.dumps(Malicious()), "expected data, an array of bytes of shape (3, 3072); it has none such"),
        (b"\x80\x02].", "expected data, an array of bytes of shape (3, 3072); it has none such"),
        (pickled(RECORDS[0][:2], shape=(3, 3072)), "expected data, an array of bytes of shape (3, 3072)"),
        (pickled(RECORDS[0]).replace(b"labels", b"lables"), "labels, a list of 3 whole numbers from 0; it has 0"),
        (pickled(RECORDS[0][[0, 1, 1]]), "expected the published images, SHA-256 "),
        (pickled(RECORDS[2]), "it holds test_batch.bin: is it wrongly named?"),
        (pickled(RECORDS[0])[:-4000], "damaged, no pickle that can be read ("),
        (pickled(RECORDS[0]).replace(RECORDS[0][2, 1:].tobytes(), b""), "damaged, no pickle that can be read"),
        (b"\x80\x02" + b"\x85" * 9, "damaged, no pickle that can be read"),
        # A table of 2^31 entries for one value; text of 2^40 bytes; an entry whose name takes 2^60 steps to hash.
        (b"\x80\x02]r\xff\xff\xff\x7f.", "expected data, an array"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.", "damaged, no pickle that can be read"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.", "damaged, no pickle that can be read"),
        (b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"Ns.", "expected data, an array"),
        (b"<html>", "truncated"),
    ]  # fmt: skip


def test_other_files_get_one_line(tmp_path):
    end = f"; to get it again, run: contdrop data get cifar-10 --data-dir {tmp_path}"
    path = write(tmp_path) / "data_batch_1.bin"
    refuses(lambda: SOURCE.load(tmp_path), path, REFUSED, 3_000_000, "cifar-10: ", end)
    assert not os.path.exists("/tmp/contdrop-was-here")


@pytest.mark.parametrize("start", [b"\x80\x02c", b"\x80\x02S"])
def test_long_texts_are_cut_before_they_are_made_printable(start):
    with memory_below(20_000_000):
        text = refusal(read, start + b"x" * 3_000_000 + b"\ny\n.")
    assert text.count("x") < 120


def read(content):
    cifar.parse(content, IMAGES, 10, "file")


FILES = [(GOOD, range(1)), (pickled(RECORDS[0]), [*range(150), *range(len(pickled(RECORDS[0])) - 150, 9400)])]


@mutants
@pytest.mark.parametrize("file", FILES, ids=["binary", "python"])
def test_mutated_files(file, mutants):
    assert survives(read, [file], mutants) > 0.3 * mutants


# Getting it


def archive(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


ENTRIES = [(f"cifar-10-batches-bin/{name}.bin", records.tobytes()) for name, records in zip(NAMES, RECORDS)]


ARCHIVE = archive(ENTRIES)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cifar-10").mkdir()
    return tmp_path / "cifar-10"


@pytest.fixture
def get(folder, monkeypatch):
    """Gets the data set where one mirror has the published archive."""
    pytest.importorskip("requests")
    monkeypatch.setenv("no_proxy", "*")
    remote = download.Remote("cifar.tar.gz", len(ARCHIVE), hashlib.md5(ARCHIVE).hexdigest())
    with serving(files_at({remote.name: ARCHIVE})) as (_, url):
        source = dataclasses.replace(SOURCE, mirrors=(url,), archive=remote)
        yield lambda: source.get(folder.parent, Recorder())


def test_an_archive_that_is_there_is_unpacked_and_only_what_is_known_of_it(folder, tmp_path):
    (folder / SOURCE.archive.name).write_bytes(archive([("../escaped", b"x"), ("/escaped", b"x"), *ENTRIES]))
    SOURCE.get(tmp_path, Recorder())
    SOURCE.load(tmp_path)
    assert os.listdir(tmp_path) == ["cifar-10"]
    # It stays: it may be the only copy of somebody.
    assert sorted(os.listdir(folder)) == sorted([SOURCE.archive.name, *(f"{name}.bin" for name in NAMES)])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive", "cifar-10-binary.tar.gz is no archive that can be read ("),
        (archive(ENTRIES[:2]), "cifar-10-binary.tar.gz has no cifar-10-batches-bin/test_batch.bin of at most"),
        (archive([*ENTRIES[:2], (ENTRIES[2][0], GOOD)]), "has another test_batch.bin: expected SHA-256 "),
    ],
)
def test_another_archive_gets_one_line(folder, tmp_path, content, reason):
    (folder / SOURCE.archive.name).write_bytes(content)
    text = refusal(SOURCE.get, tmp_path, Recorder())
    assert reason in text
    assert text.endswith(
        f"; put {SOURCE.archive.name} (md5 {SOURCE.archive.md5}) into {folder} and give this command again"
    )


@pytest.mark.parametrize("broken", [None, b"\x1f\x8b\x08\0" + bytes(50), ARCHIVE[:-100], archive(ENTRIES[:2])])
def test_the_archive_is_downloaded_if_there_is_none_that_will_do(folder, tmp_path, get, broken):
    if broken:
        (folder / "cifar.tar.gz").write_bytes(broken)
    get()
    SOURCE.load(tmp_path)
    assert sorted(os.listdir(folder)) == [f"{name}.bin" for name in NAMES]
