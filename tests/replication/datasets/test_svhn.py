"""SVHN: MATLAB files written by scipy and by hand, the real subset, and what is refused in which words."""

import dataclasses
import hashlib
import struct
import zlib

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.replication.datasets import svhn
from contdrop.replication.datasets.dataset import File, MissingError
from data_files import real
from fuzzing import by_file, memory_below, mutants, refusal, refuses, survives

io = pytest.importorskip("scipy.io")

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (32, 32, 3, 7)).astype(np.uint8)
LABELS = np.array([1, 10, 3, 9, 10, 2, 5], np.uint8)[:, None]
A, B, C = (File(f"{name}.mat", examples=7) for name in "abc")
SOURCE = svhn.SvhnSource(name="svhn", title="SVHN", training=(A, B), testing=(C,))


def element(kind, content, order="<"):
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


def variable(name, array, kind, order="<", number_class=9):
    parts = (
        element(6, struct.pack(f"{order}II", number_class, 0), order)
        + element(5, struct.pack(f"{order}{array.ndim}i", *array.shape), order)
        + element(1, name.encode(), order)
        + element(kind, array.astype(array.dtype.newbyteorder(order)).tobytes("F"), order)
    )
    return struct.pack(f"{order}II", 14, len(parts)) + parts


def compressed(content, order="<"):
    packed = zlib.compress(content)
    return struct.pack(f"{order}II", 15, len(packed)) + packed


def shortened(variable):
    """A variable whose head says a hundred bytes less than follow."""
    kind, length = struct.unpack("<II", variable[:8])
    return struct.pack("<II", kind, length - 100) + variable[8:]


def by_hand(*variables, order="<"):
    return (
        b"MATLAB 5.0 MAT-file".ljust(124)
        + struct.pack(f"{order}H", 0x100)
        + {"<": b"IM", ">": b"MI"}[order]
        + b"".join(variables)
    )


GOOD = by_hand(compressed(variable("X", PIXELS, 2)), compressed(variable("y", LABELS, 2)))


def read(path, count=7):
    images, labels = np.zeros((count, 3, 32, 32), np.uint8), np.zeros(count, np.int64)
    svhn.read(path, images, labels)
    return images, labels


@pytest.fixture
def file(tmp_path):
    def write(content):
        (tmp_path / "file.mat").write_bytes(content)
        return tmp_path / "file.mat"

    return write


def assert_right(images, labels):
    for number in range(7):
        for channel in range(3):
            np.testing.assert_array_equal(images[number, channel], PIXELS[:, :, channel, number])
    assert labels.tolist() == [1, 0, 3, 9, 0, 2, 5]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_files_that_scipy_writes(tmp_path, packed, kind, monkeypatch):
    monkeypatch.setattr(svhn, "_AT_ONCE", 3)
    content = {"note": "text", "X": PIXELS, "y": LABELS.astype(kind)}
    io.savemat(tmp_path / "file.mat", content, do_compression=packed)
    assert_right(*read(tmp_path / "file.mat"))


@pytest.mark.parametrize("order", ["<", ">"])
def test_files_by_the_description_of_the_format(file, order):
    parts = variable("X", PIXELS, 2, order), variable("y", LABELS.astype(np.int32), 5, order, 12)
    assert_right(*read(file(by_hand(*parts, order=order))))
    assert_right(*read(file(by_hand(*(compressed(part, order) for part in parts), order=order))))


def test_small_elements_are_in_the_head(file):
    one = PIXELS[..., :1]
    tail = (
        element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack("<2i", 1, 1)) + struct.pack("<HH4s", 1, 1, b"y")
    )
    tail += struct.pack("<HH4s", 2, 1, b"\x07")
    y = struct.pack("<II", 14, len(tail)) + tail
    assert read(file(by_hand(variable("X", one.reshape(32, 32, 3, 1), 2), y)), 1)[1].tolist() == [7]


REFUSED = [
    (b"", "expected a MATLAB file of level 5; it starts with b''"),
    (b"MATLAB 7.3 MAT-file".ljust(126) + b"IM", "it is of version 7.3: save it with -v7"),
    (GOOD[:-3], "truncated, a variable would end 3 bytes after the end of the file"),
    (GOOD[:200], "truncated, a variable would end "),
    (GOOD + b"12", "truncated, it ends in the middle of a variable's head"),
    (by_hand(), "expected variables X and y; it has none"),
    (by_hand(variable("X", PIXELS, 2)), "expected variables X and y; it has X"),
    (by_hand(variable("X", PIXELS[..., :6], 2)), "expected X of bytes, (32, 32, 3, 7); got uint8, (32, 32, 3, 6)"),
    (by_hand(variable("y", LABELS[:6], 2)), "expected y of 7 labels; got (6, 1)"),
    (by_hand(variable("y", LABELS + np.uint8(1), 2)), "which is the digit 0; that of image 1 is 11"),
    (by_hand(variable("y", LABELS / 2, 9)), "that of image 0 is 0.5"),
    (by_hand(variable("y", LABELS, 7)), "damaged, 'y' has 7 bytes of values where its dimensions (7, 1) ask for"),
    (by_hand(variable("y", LABELS, 99)), "damaged, the values of 'y' are of no known type"),
    (by_hand(element(3, b"12345678")), "damaged, expected a variable; got an element of type 3"),
    (by_hand(struct.pack("<II", 15, 4) + b"1234"), "damaged compressed data ("),
    (by_hand(compressed(variable("X", PIXELS, 2)[:999])), "truncated, a variable is smaller than what it holds"),
    (by_hand(shortened(variable("X", PIXELS, 2))), "truncated, a variable is smaller than what it holds"),
    (
        by_hand(shortened(compressed(variable("X", PIXELS, 2)))),
        "truncated, a variable is smaller than what it holds",
    ),
    (
        by_hand(compressed(variable("X", PIXELS, 2).replace(struct.pack("<i", 7), struct.pack("<i", 2**31 - 1), 1))),
        "'X' has 21,504 bytes",
    ),
    (by_hand(compressed(bytes(50_000_000))), "damaged, expected a variable; got an element of type 0"),
]


def test_other_files_get_one_line(file):
    path = file(b"")
    refuses(lambda: read(path), path, REFUSED, 1_000_000)


def test_images_are_decoded_some_at_a_time(tmp_path):
    """Beside the images themselves, about as much as a thousand of them take."""
    pixels = np.zeros((32, 32, 3, 8000), np.uint8)
    io.savemat(tmp_path / "file.mat", {"X": pixels, "y": np.ones((8000, 1), np.uint8)}, do_compression=True)
    images, labels = np.zeros((8000, 3, 32, 32), np.uint8), np.zeros(8000, np.int64)
    with memory_below(10_000_000):
        svhn.read(tmp_path / "file.mat", images, labels)
    assert images.nbytes > 20_000_000


def write(directory, names=("a.mat", "b.mat", "c.mat")):
    (directory / "svhn").mkdir()
    for name in names:
        (directory / "svhn" / name).write_bytes(GOOD)


def test_training_files_follow_each_other(tmp_path):
    write(tmp_path)
    found = SOURCE.load(tmp_path)
    assert (len(found.train_images), len(found.test_images)) == (SOURCE.train, SOURCE.test) == (14, 7)
    assert_right(found.train_images[7:], found.train_labels[7:])
    assert_right(found.test_images, found.test_labels)
    assert "verified" not in found.provenance


def test_published_files_are_known_by_their_md5(tmp_path):
    write(tmp_path)
    right = tuple(dataclasses.replace(file, md5=hashlib.md5(GOOD).hexdigest()) for file in SOURCE.files)
    published = dataclasses.replace(SOURCE, training=right[:2], testing=right[2:])
    assert "(every file's MD5 verified)" in published.load(tmp_path).provenance
    wrong = dataclasses.replace(SOURCE, testing=(dataclasses.replace(C, md5="0" * 32),))
    problem = r"c\.mat: expected the published file, MD5 0{32}; got "
    with pytest.raises(UserError, match=rf"^svhn: .*{problem}.*; to get it again, run: contdrop data get svhn"):
        wrong.load(tmp_path)
    with pytest.raises(UserError, match=rf"^svhn: cannot be downloaded here \(.*{problem}"):
        wrong.get(tmp_path, None)


def test_what_is_missing_and_where_it_is_offered(tmp_path):
    write(tmp_path, ("a.mat", "c.mat"))
    assert SOURCE.missing(tmp_path) == ("b.mat",)
    with pytest.raises(MissingError, match=r"^svhn: 1 of 3 files are missing; put b\.mat into "):
        SOURCE.load(tmp_path)
    with pytest.raises(UserError, match=r"^svhn: cannot be downloaded here; put b\.mat into .*; at home$"):
        dataclasses.replace(SOURCE, offered="at home").get(tmp_path, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"garbage", "expected a MATLAB file of level 5; it starts with b'garbage'"),
        (GOOD[:-3], "truncated, a variable would end 3 bytes after the end of the file"),
        (by_hand(variable("y", LABELS, 2)), "expected variables X and y; it has y"),
    ],
)
def test_get_reads_files_that_have_no_md5(tmp_path, content, message):
    write(tmp_path)
    offered = dataclasses.replace(SOURCE, offered="at home")
    offered.get(tmp_path, None)
    path = tmp_path / "svhn" / "b.mat"
    path.write_bytes(content)
    assert refusal(offered.get, tmp_path, None) == (
        f"svhn: cannot be downloaded here ({path}: {message}); put b.mat into {path.parent}; at home"
    )


def test_names_of_many_variables_are_not_all_printed(file):
    many = by_hand(*(variable(f"{number:064}", np.ones((1, 1), np.uint8), 2) for number in range(900)))
    with pytest.raises(UserError, match=r"expected variables X and y; it has 0+, .* and 895 more$"):
        read(file(many))


def test_the_regenerated_subset():
    found = real("svhn-subset")
    assert found.train_images.shape == (20_000, 3, 32, 32)
    assert sorted(set(found.train_labels.tolist())) == list(range(10))
    assert found.train_labels[:5].tolist() == [1, 9, 2, 3, 2]
    assert np.argmax(np.bincount(found.train_labels)) == 1  # house numbers begin with 1 more often than not
    assert found.provenance.startswith("SVHN cropped digits regenerated from the full-number images, subset")


SMALL = by_hand(compressed(variable("X", PIXELS[..., :1].reshape(32, 32, 3, 1), 2)), variable("y", LABELS[:1], 2))
PLAIN = by_hand(variable("y", LABELS[:1], 2), variable("X", PIXELS[..., :1].reshape(32, 32, 3, 1), 2))
FILES = [(SMALL, range(100, 200)), (PLAIN, range(100, 280))]


@mutants
def test_mutated_files(tmp_path, mutants):
    assert survives(by_file(tmp_path / "file", lambda path: read(path, 1)), FILES, mutants) > 0.3 * mutants


def test_variables_without_end_are_refused(file):
    many = by_hand(*[variable("a", np.ones((1, 1), np.uint8), 2)] * 1001)
    with pytest.raises(UserError, match="it has more than 1000 variables"):
        read(file(many))
