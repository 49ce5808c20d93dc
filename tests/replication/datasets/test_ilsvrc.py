"""ILSVRC: folders of JPEG files, labels by folder and by the development kit, and what is refused in which words."""

import dataclasses
import io
import pickle
import shutil
import struct
import zlib

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.lab.data.data import Data, prepare
from contdrop.replication import datasets
from contdrop.replication.datasets import ilsvrc
from data_files import REAL, real
from fuzzing import by_file, mutants, refusal, survives

pillow = pytest.importorskip("PIL.Image")
matlab = pytest.importorskip("scipy.io")


def jpeg(height=40, width=60, mode="RGB", form="JPEG"):
    pixels = np.add.outer(np.arange(height) * 3, np.arange(width) * 2).astype(np.uint8)
    buffer = io.BytesIO()
    pillow.fromarray(np.stack([pixels, pixels // 2, 255 - pixels], 2)).convert(mode).save(buffer, form)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name, count in (("n02000000", 2), ("n01000000", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{name}_{number}.JPEG").write_bytes(jpeg(40 + number))
    (tmp_path / "readme.txt").write_text("not a class")
    return tmp_path


def test_classes_are_in_the_order_of_their_synsets(folder):
    found = ilsvrc.class_folders(folder)
    assert found.classes == ("n01000000", "n02000000")
    assert found.targets.tolist() == [0, 0, 0, 1, 1]
    image, label = found[4]
    assert (image.shape, image.dtype, label) == ((3, 41, 60), np.uint8, 1)
    assert abs(int(image[0, 10, 10]) - 50) < 10
    assert abs(int(image[2, 10, 10]) - 205) < 10


def test_images_are_data_of_a_study(folder):
    images = ilsvrc.class_folders(folder)
    small = dataclasses.replace(images, prepare=_square)
    parts = prepare(Data(train=small, test=small, validation=1), task="classification").parts(0, "final", 0)
    ((batch, labels),) = parts.test.batches(parts.test.order(None, 5))
    assert batch.shape == (5, 3, 8, 8)
    assert labels.tolist() == [0, 0, 0, 1, 1]
    pickle.dumps(dataclasses.replace(images, prepare=ilsvrc.SmallerSide(32)))  # to another process


def test_all_of_it_is_counted_and_never_loaded(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    whole = dataclasses.replace(ilsvrc.WHOLE, train=5, test=5, classes=("a", "b"))
    assert whole.missing(place) == ("train", "val")
    with pytest.raises(UserError, match=r"expected folders train.*; its owner offers it at https://image-net.org"):
        whole.get(place, None)
    (place / "ilsvrc").mkdir()
    for part in ("train", "val"):
        shutil.copytree(folder, place / "ilsvrc" / part)
    assert whole.missing(place) == ()
    assert whole.check(place) == "5 and 5 JPEG files, counted, not read"
    with pytest.raises(UserError, match="do not fit into memory"):
        whole.load(place)
    for odd in (dataclasses.replace(whole, train=6), dataclasses.replace(whole, classes=("a",))):
        with pytest.raises(UserError) as caught:
            odd.check(place)
        assert type(caught.value) is UserError
    with pytest.raises(UserError, match=r"expected 2 classes, 6 training and 5 validation images; got 2, 5 and 5 in"):
        dataclasses.replace(whole, train=6).check(place)


def test_some_of_its_classes_are_not_damage(folder, tmp_path_factory):
    """As are there where the advice for ten of them was followed, whose folder is the same."""
    place = tmp_path_factory.mktemp("data")
    for part in ("train", "val"):
        shutil.copytree(folder, place / "ilsvrc" / part)
    assert ilsvrc.WHOLE.missing(place) == ("998 classes of train",)
    finding = datasets.check("ilsvrc", place)
    assert finding.status == "missing"
    assert finding.detail.startswith(f"ilsvrc: expected folders of 1,000 classes in {place}/ilsvrc; got 2, by which ")


def _square(image):
    return image[:, :8, :8]


def test_the_smaller_side(folder):
    image = ilsvrc.decode(next((folder / "n01000000").iterdir()))
    for shape in (image, image.transpose(0, 2, 1)):
        scaled = ilsvrc.SmallerSide(20)(shape)
        assert min(scaled.shape[1:]) == 20
        ratio = shape.shape[2] / shape.shape[1]
        assert scaled.shape[2] / scaled.shape[1] == pytest.approx(ratio, rel=0.03)
        assert abs(scaled.mean() - shape.mean()) < 2


def test_a_strip_is_not_made_larger_than_any_image(tmp_path):
    """A file of some kilobytes, 1x65000 pixels: with a smaller side of 256 it would have four billion."""
    lay_out(tmp_path, train=("n01000000",))
    (path,) = (tmp_path / "train" / "n01000000").iterdir()
    pillow.new("RGB", (1, 65_000)).save(path, "JPEG")
    images = dataclasses.replace(ilsvrc.class_folders(tmp_path / "train"), prepare=ilsvrc.SmallerSide(256))
    assert refusal(images.__getitem__, 0) == (
        f"{path}: expected an image of at most 64,000,000 pixels once its smaller side has 256; one of 1x65,000 would "
        "have 4,259,840,000"
    )
    source = dataclasses.replace(ilsvrc.TEN, synsets=("n01000000",), shape=(3, 256, 256))
    with pytest.raises(UserError, match=r"n01000000_0\.JPEG: expected an image of at most 64,000,000 pixels once"):
        source.part(tmp_path / "train", 1)


def devkit(folder, lines, names=("n02000000", "n01000000"), children=(0, 0, 3)):
    folder.mkdir(exist_ok=True)
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(number, name, "words", n) for number, (name, n) in enumerate(zip((*names, "n00000001"), children), 1)]
    matlab.savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=kinds)[:, None]})
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def flat(tmp_path):
    images = tmp_path / "val"
    images.mkdir()
    for number in range(3):
        (images / f"ILSVRC2012_val_0000000{number}.JPEG").write_bytes(jpeg())
    return images


def test_the_development_kit_numbers_classes_in_its_own_way(flat, tmp_path):
    found = ilsvrc.with_devkit(flat, devkit(tmp_path / "devkit", ["1", "2", "1"]))
    assert found.classes == ("n01000000", "n02000000")
    assert found.targets.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1", "2"], "expected a line for each of the 3 images of "),
        (["1", "2", "3"], "expected numbers from 1 to 2; got '3'"),
        (["1", "x", "3"], "expected numbers from 1 to 2; got 'x'"),
    ],
)
def test_labels_that_do_not_match(flat, tmp_path, lines, message):
    assert message in refusal(ilsvrc.with_devkit, flat, devkit(tmp_path / "devkit", lines))


@pytest.mark.parametrize("content", [b"", b"x" * 200, b"MATLAB 5.0"])
def test_a_table_that_is_none(flat, tmp_path, content):
    kit = devkit(tmp_path / "devkit", ["1", "2", "1"])
    (kit / "meta.mat").write_bytes(content)
    with pytest.raises(UserError, match="expected the development kit's table of synsets; it cannot be read"):
        ilsvrc.with_devkit(flat, kit)


def lay_out(folder, **parts):
    """Class folders of one image each."""
    for part, names in parts.items():
        for name in names:
            (folder / part / name).mkdir(parents=True)
            (folder / part / name / f"{name}_0.JPEG").write_bytes(jpeg())


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        (("n01000000", "n02000000", "n03000000"), ("n02000000", "n03000000"), "got n01000000 in train alone"),
        (("n02000000", "n03000000"), ("n01000000", "n02000000"), "got n01000000 in val alone"),
        (("n01000000",), ("n01000000", "n02000000"), "got n02000000 in val alone"),
    ],
)
def test_labels_of_both_parts_mean_the_same_classes(tmp_path, train, val, message):
    lay_out(tmp_path / "ilsvrc", train=train, val=val)
    source = dataclasses.replace(ilsvrc.WHOLE, train=len(train), test=len(val), classes=train)
    for check in (source.check, lambda place: ilsvrc.whole(place / "ilsvrc")):
        assert refusal(check, tmp_path) == (
            f"{tmp_path}/ilsvrc: expected the same classes in train and val; {message}; put its images into both, or "
            "into neither"
        )


def test_class_folders_go_before_the_development_kit(tmp_path):
    lay_out(tmp_path, train=("n01000000", "n02000000"), val=("n01000000", "n02000000"))
    (tmp_path / "ILSVRC2012_devkit_t12").mkdir()
    devkit(tmp_path / "ILSVRC2012_devkit_t12" / "data", ["1", "2"])
    train, test = ilsvrc.whole(tmp_path)
    assert train.classes == test.classes == ("n01000000", "n02000000")
    assert test.targets.tolist() == [0, 1]


def test_folders_that_are_nearly_classes_are_none(tmp_path):
    names = ("n01000000", "n01000000-old", "n02000000")
    lay_out(tmp_path, train=names, val=names)
    assert ilsvrc.whole(tmp_path)[0].classes == ("n01000000", "n02000000")


def test_classes_of_the_development_kit_are_those_of_the_folders(tmp_path, flat):
    lay_out(tmp_path, train=("n02000000",))
    (tmp_path / "ILSVRC2012_devkit_t12").mkdir()
    devkit(tmp_path / "ILSVRC2012_devkit_t12" / "data", ["1", "2", "1"])
    with pytest.raises(UserError, match="expected the same classes in train and val; got n01000000 in val alone; "):
        ilsvrc.whole(tmp_path)
    lay_out(tmp_path, train=("n01000000",))
    assert ilsvrc.whole(tmp_path)[1].targets.tolist() == [1, 0, 1]


def test_folders_that_are_none(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        ilsvrc.class_folders(tmp_path / "nothing")
    with pytest.raises(UserError, match="expected a folder for each class, such as n01440764; there is none"):
        ilsvrc.class_folders(tmp_path)
    (tmp_path / "n01000000").mkdir()
    with pytest.raises(UserError, match="n01000000: expected JPEG files; there are none"):
        ilsvrc.class_folders(tmp_path)
    lay_out(tmp_path, train=("n01000000",))
    with pytest.raises(UserError, match="n01000000: expected at least 2 JPEG files; there are 1"):
        dataclasses.replace(ilsvrc.TEN, synsets=("n01000000",)).part(tmp_path / "train", 2)


@pytest.mark.parametrize("content", [jpeg(mode="L"), jpeg(mode="CMYK"), jpeg(form="PNG")])
def test_grey_images_cmyk_and_a_png_that_is_called_jpeg(tmp_path, content):
    (tmp_path / "x.JPEG").write_bytes(content)
    assert ilsvrc.decode(tmp_path / "x.JPEG").shape == (3, 40, 60)


def bomb(width, height):
    """A PNG file of a few bytes whose head says otherwise."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b""))
    packed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JPEG file that can be read ("),
        (jpeg()[:300], "no JPEG file that can be read ("),
        (b"GIF89a" + bytes(100), "no JPEG file that can be read ("),
        (bomb(9000, 8000), "expected at most 64,000,000 pixels; its head says 9,000x8,000"),
        (bomb(2**15, 2**15), "no JPEG file that can be read (Image size (1073741824 pixels) exceeds limit"),
    ],
)
def test_other_files_get_one_line(tmp_path, content, message):
    (tmp_path / "x.JPEG").write_bytes(content)
    text = refusal(ilsvrc.decode, tmp_path / "x.JPEG")
    assert text.startswith(f"{tmp_path}/x.JPEG: ")
    assert message in text


def test_images_of_original_size():
    paths = sorted(real("ilsvrc-samples").glob("*.JPEG"))[:8]
    assert paths
    for path in paths:
        scaled = ilsvrc.SmallerSide(256)(ilsvrc.decode(path))
        assert min(scaled.shape[1:]) == 256


def test_the_subset_of_ten_classes():
    source = datasets.find("imagenette-subset")
    real(source.name)
    for part, each in (("train", 40), ("val", 15)):
        found = ilsvrc.class_folders(source.path(REAL) / part)
        assert np.bincount(found.targets).tolist() == [each] * 10
        assert found[0][0].shape == (3, 224, 224)


FILES = [(jpeg(16, 16), range(200)), (jpeg(16, 16, form="PNG"), range(60))]


@mutants
@pytest.mark.filterwarnings("ignore")  # Pillow warns of images that claim to be large
def test_mutated_files(tmp_path, mutants):
    assert survives(by_file(tmp_path / "file.JPEG", ilsvrc.decode), FILES, mutants) > 0.1 * mutants
