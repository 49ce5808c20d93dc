"""ILSVRC-2012: folders of JPEG files, never in memory as a whole.

To train on, a folder for each class, named by its synset; to test on, the same, or the validation images as they were
published with the development kit beside them. Classes are numbered in the order of their synsets' names, as published
networks have them, not as the development kit numbers them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._files import reading
from ..._text import printable
from ...errors import UserError
from .dataset import Dataset, DatasetSource, Examples, MissingError
from .download import DownloadProgress

Image = npt.NDArray[np.uint8]  # [3, height, width], red, green and blue

_LARGEST = 64_000_000  # pixels; the largest image of ILSVRC has 33 million
_LARGEST_FILE = 64_000_000  # bytes
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_PARTS = ("train", "val")
_SYNSET = re.compile(r"n\d{8}")
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_OWNER = "its owner offers it at https://image-net.org"


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """A map-style dataset of images and labels, for :class:`contdrop.lab.Data`.

    Attributes:
        paths: Of the files.
        targets: Of each, the class.
        classes: Their synsets.
        prepare: What is made of an image, such as one of a fixed size; images are as they come if None.
    """

    paths: Sequence[str]
    targets: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    prepare: Callable[[Image], Image] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Image, int]:
        return _prepared(self.paths[index], self.prepare), int(self.targets[index])


def whole(folder: pathlib.Path, prepare: Callable[[Image], Image] | None = None) -> tuple[Images, Images]:
    """Return ILSVRC-2012's training images and, to test on, its validation images: "train" and "val" of a folder.

    Raises:
        MissingError: It is not there.
        UserError: A part of it is not as it should be.
    """
    if not all((folder / part).is_dir() for part in _PARTS):
        raise MissingError(
            f"ilsvrc: expected folders train, with one for each class, and val, likewise or with {_DEVKIT} beside it, "
            f"in {folder}; {_OWNER}"
        )
    devkit, test = folder / _DEVKIT, folder / "val"
    is_flat = devkit.is_dir() and not _class_names(test)
    tested = with_devkit(test, devkit) if is_flat else class_folders(test)
    trained = class_folders(folder / "train")
    odd = min({*trained.classes} ^ {*tested.classes}, default=None)
    if odd is not None:  # classes are numbered in each part separately
        part = "train" if odd in trained.classes else "val"
        raise UserError(
            f"{folder}: expected the same classes in train and val; got {odd} in {part} alone; put its images into "
            "both, or into neither"
        )
    return dataclasses.replace(trained, prepare=prepare), dataclasses.replace(tested, prepare=prepare)


def check_number(classes: Sequence[str], expected: int, folder: pathlib.Path) -> None:
    """Check the number of classes: folders are numbered as in published networks only if all are there.

    Raises:
        MissingError: There are fewer, such as the ten of ``ilsvrc-10``.
        UserError: There are more.
    """
    if len(classes) != expected:
        kind = MissingError if len(classes) < expected else UserError
        raise kind(
            f"ilsvrc: expected folders of {expected:,} classes in {folder}; got {len(classes):,}, by which classes "
            f"would have other numbers than in published networks; all of it is needed; {_OWNER}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeSource(DatasetSource):
    """All of ILSVRC-2012, which is read image by image: by :func:`whole`, never by ``load``."""

    name: str = "ilsvrc"
    title: str = "ILSVRC-2012"
    train: int = 1_281_167
    test: int = 50_000
    shape: tuple[int, int, int] = (3, 224, 224)
    classes: tuple[str, ...] = tuple(str(number) for number in range(1000))

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        folder = self.path(directory)
        absent = tuple(part for part in _PARTS if not (folder / part).is_dir())
        if absent:
            return absent
        few = len(self.classes)
        with contextlib.suppress(UserError):  # a folder that cannot be read, about which loading complains
            few -= len(_class_names(folder / "train"))
        return (f"{few:,} classes of train",) if few > 0 else ()

    def load(self, directory: pathlib.Path) -> Dataset:
        self.check(directory)
        raise UserError(
            "ilsvrc: 1.3 million images do not fit into memory; contdrop.replication.datasets.ilsvrc.whole reads them"
        )

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        self.check(directory)

    def check(self, directory: pathlib.Path) -> str:
        """Count classes and files; the files' contents are checked when they are read."""
        train, test = whole(self.path(directory))
        check_number(train.classes, len(self.classes), self.path(directory))
        if (len(train), len(test)) != (self.train, self.test):
            classes = f"{len(self.classes):,}"
            raise UserError(
                f"ilsvrc: expected {classes} classes, {self.train:,} training and {self.test:,} validation images; got "
                f"{classes}, {len(train):,} and {len(test):,} in {self.place(directory)}"
            )
        return f"{self.train:,} and {self.test:,} JPEG files, counted, not read"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderSource(DatasetSource):
    """Some classes in memory: the first images in their folders in "train" and "val", the square in the middle.

    Attributes:
        synsets: Names of the classes' folders.
        offered: Where the folders are to be had.
    """

    synsets: tuple[str, ...]
    shape: tuple[int, int, int] = (3, 96, 96)
    train: int = 200
    test: int = 100
    offered: str = _OWNER

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        names = (f"{part}/{synset}" for part in _PARTS for synset in self.synsets)
        return tuple(name for name in names if not (self.path(directory) / name).is_dir())

    def load(self, directory: pathlib.Path) -> Dataset:
        missing, folder = self.missing(directory), self.path(directory)
        if missing:
            raise MissingError(
                f"{self.name}: {len(missing)} of {2 * len(self.synsets)} folders are missing; put {missing[0]} and "
                f"others into {folder}; {self.offered}"
            )
        numbers = zip(_PARTS, (self.train, self.test))
        train, test = (self.part(folder / part, number // len(self.classes)) for part, number in numbers)
        said = f"{self.title}, the first images of each class, {self.shape[-1]} pixels wide"
        return self.dataset(train, test, said)

    def part(self, folder: pathlib.Path, count: int) -> Examples:
        """Return the first ``count`` images of each class in a folder."""
        images, side = [], self.shape[-1]
        for synset in self.synsets:
            paths = _jpegs(folder / synset)
            if len(paths) < count:
                raise UserError(f"{folder / synset}: expected at least {count} JPEG files; there are {len(paths)}")
            for path in paths[:count]:
                image = _prepared(path, SmallerSide(side))
                top, left = ((size - side) // 2 for size in image.shape[1:])
                images.append(image[:, top : top + side, left : left + side])
        return np.stack(images), np.repeat(np.arange(len(self.synsets)), count)


def class_folders(folder: pathlib.Path) -> Images:
    """Return the images in folders that are named by their synsets."""
    classes = _class_names(folder)
    if not classes:
        raise UserError(f"{folder}: expected a folder for each class, such as n01440764; there is none")
    paths, targets = [], []
    for number, name in enumerate(classes):
        found = _jpegs(folder / name)
        if not found:
            raise UserError(f"{folder / name}: expected JPEG files; there are none")
        paths += found
        targets += [number] * len(found)
    return Images(paths, np.array(targets, np.int64), classes)


def _class_names(folder: pathlib.Path) -> tuple[str, ...]:
    return tuple(name for name in _listing(folder) if _SYNSET.fullmatch(name) and (folder / name).is_dir())


def with_devkit(folder: pathlib.Path, devkit: pathlib.Path) -> Images:
    """Return the validation images, all in one folder, with the labels of the development kit (its folder "data")."""
    paths = _jpegs(folder)
    synsets = _synsets(devkit / _META)
    truth = devkit / _TRUTH
    with reading(truth), truth.open("rb") as file:
        lines = file.read(10_000_000).decode("ascii", errors="replace").split()
    if len(lines) != len(paths):
        raise UserError(
            f"{truth}: expected a line for each of the {len(paths):,} images of {folder}; got {len(lines):,}"
        )
    classes = tuple(sorted(synsets.values()))
    numbers = {name: number for number, name in enumerate(classes)}
    wrong = next((line for line in lines if line not in synsets), None)
    if wrong is not None:
        raise UserError(f"{truth}: expected numbers from 1 to {len(synsets)}; got {printable(wrong[:20])!r}")
    return Images(paths, np.array([numbers[synsets[line]] for line in lines], np.int64), classes)


def _prepared(path: str, prepare: Callable[[Image], Image] | None) -> Image:
    """Decode and prepare an image; errors name its file."""
    image = decode(pathlib.Path(path))
    try:
        return prepare(image) if prepare else image
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from problem


def decode(path: pathlib.Path) -> Image:
    """Decode an image to red, green and blue, whatever the JPEG file has."""
    from PIL import Image as Pillow

    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path}: expected at most {_LARGEST_FILE:,} bytes; it has {path.stat().st_size:,}")
        # ILSVRC has a PNG file, and some in CMYK, that are called JPEG.
        with Pillow.open(path, formats=["JPEG", "PNG"]) as opened:
            width, height = opened.size
            if width * height > _LARGEST:
                raise UserError(f"{path}: expected at most {_LARGEST:,} pixels; its head says {width:,}x{height:,}")
            pixels: Image = np.asarray(opened.convert("RGB"))
    except UserError:
        raise
    # Pillow raises OSError, SyntaxError, ValueError, struct.error and more about damaged files.
    except Exception as error:
        reason = printable(str(error).replace(str(path), "it")[:200])[:80]
        raise UserError(f"{path}: no JPEG file that can be read ({reason})") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _synsets(meta: pathlib.Path) -> dict[str, str]:
    """Return the synset of each of the 1000 classes by its number in the development kit."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        rows = loadmat(meta, squeeze_me=True, variable_names=["synsets"])["synsets"]
        found = {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in rows if int(row["num_children"]) == 0}
    # scipy raises many kinds about damaged files.
    except Exception as error:
        reason = f"{type(error).__name__}: {printable(str(error)[:200])[:80]}"
        raise UserError(
            f"{meta}: expected the development kit's table of synsets; it cannot be read ({reason})"
        ) from error
    if not found or not all(_SYNSET.fullmatch(name) for name in found.values()):
        raise UserError(f"{meta}: expected the development kit's table of synsets; it has none")
    return found


def _jpegs(folder: pathlib.Path) -> list[str]:
    return [str(folder / name) for name in _listing(folder) if name.lower().endswith((".jpeg", ".jpg"))]


def _listing(folder: pathlib.Path) -> list[str]:
    with reading(folder):
        return sorted(os.listdir(folder))


@dataclasses.dataclass(frozen=True)
class SmallerSide:
    """Rescales an image, its proportions kept, so that its smaller side has so many pixels."""

    side: int

    def __call__(self, image: Any) -> Image:
        from PIL import Image as Pillow

        _, height, width = image.shape
        factor = self.side / min(height, width)
        size = max(self.side, round(width * factor)), max(self.side, round(height * factor))
        if math.prod(size) > _LARGEST:
            raise UserError(
                f"expected an image of at most {_LARGEST:,} pixels once its smaller side has {self.side:,}; one of "
                f"{width:,}x{height:,} would have {math.prod(size):,}"
            )
        picture = Pillow.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        scaled = np.asarray(picture.resize(size, Pillow.Resampling.BILINEAR))
        return np.ascontiguousarray(scaled.transpose(2, 0, 1))


WHOLE = WholeSource()
# The ten classes of Imagenette.
TEN = FolderSource(
    name="ilsvrc-10",
    title="ILSVRC-2012, ten classes",
    folder="ilsvrc",
    synsets=(
        *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
        *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
    ),
    classes=(
        *("tench", "English springer", "cassette player", "chain saw", "church"),
        *("French horn", "garbage truck", "gas pump", "golf ball", "parachute"),
    ),
)
IMAGENETTE = dataclasses.replace(
    TEN,
    name="imagenette-subset",
    title="ten classes of ILSVRC-2012 from a copy of 224x224 pixels, subset",
    folder="",
    offered="a subset of Imagenette, 40 and 15 images of each class, which https://github.com/fastai/imagenette offers",
)
