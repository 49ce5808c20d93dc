"""Data sets that need no download: scikit-learn's digits, and generated images."""

from __future__ import annotations

import abc
import dataclasses
import gzip
import importlib.util
import pathlib
import struct
import tempfile

import numpy as np

from ...errors import UserError
from . import ilsvrc, norb, svhn
from .dataset import Dataset, DatasetSource, Examples, File, MissingError
from .download import DownloadProgress

_DIGITS_SEED = 0  # decides which images are the test set; a published number may rest on it
_SEED = 0  # of generated images


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits(DatasetSource):
    """Digits of scikit-learn, of which a fixed permutation sets images apart to test on."""

    name: str = "digits"
    title: str = "Digits"
    classes: tuple[str, ...] = tuple("0123456789")
    shape: tuple[int, int, int] = (1, 8, 8)
    train: int = 1000
    test: int = 797

    def place(self, directory: pathlib.Path) -> str:
        return "in scikit-learn"

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return () if importlib.util.find_spec("sklearn") else ("scikit-learn",)

    def load(self, directory: pathlib.Path) -> Dataset:
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingError(
                f'{self.name}: needs scikit-learn, which cannot be imported ({error}); run: pip install "contdrop[lab]"'
            ) from error
        found = load_digits()
        total = self.train + self.test
        images, labels = np.asarray(found.images), np.asarray(found.target).astype(np.int64)
        if images.shape != (total, *self.shape[1:]) or labels.shape != (total,):
            raise UserError(f"{self.name}: expected {total} images of 8x8 in scikit-learn; got shape {images.shape}")
        images = images.astype(np.uint8).reshape(total, *self.shape)
        order = np.random.Generator(np.random.Philox(_DIGITS_SEED)).permutation(total)
        train, test = np.sort(order[: self.train]), np.sort(order[self.train :])
        return self.dataset(
            (images[train], labels[train]),
            (images[test], labels[test]),
            "scikit-learn's load_digits (UCI optical recognition of handwritten digits, 1797 images); no official "
            "test set: 797 images set apart by a fixed permutation",
            divisor=16.0,
        )


DIGITS = Digits()


def pictures(count: int, shape: tuple[int, int, int], classes: int, seed: int) -> Examples:
    """Generate noise with a bright spot on a circle, whose angle depends on the class.

    Classes take turns, so that any part of the pictures has all of them.
    """
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(count) % classes
    channels, height, width = shape
    hours = 2 * np.pi * (labels + random.uniform(-0.2, 0.2, count)) / classes
    rows, columns = (
        (0.5 + 0.3 * each[:, None]) * size - np.arange(size)
        for each, size in ((np.sin(hours), height), (np.cos(hours), width))
    )
    wide = 2 * (0.08 * width) ** 2
    spots = np.exp(-(rows[:, None, :, None] ** 2 + columns[:, None, None, :] ** 2) / wide)
    pixels = random.integers(0, 128, (count, channels, height, width), np.uint8)
    pixels += (127 * spots).astype(np.uint8)
    return pixels, labels


class _Generated(DatasetSource):
    """A data set in the format of another that is always here, because it is made when it is loaded."""

    def place(self, directory: pathlib.Path) -> str:
        return "made when it is used"

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return ()

    def load(self, directory: pathlib.Path) -> Dataset:
        with tempfile.TemporaryDirectory() as temporary:
            made = pathlib.Path(temporary)
            self.path(made).mkdir()
            self.write(self.path(made))
            return super().load(made)  # type: ignore[safe-super]  # of the other

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        pass

    @abc.abstractmethod
    def write(self, folder: pathlib.Path) -> None:
        """Write the files that are then loaded."""


class _Svhn(_Generated, svhn.SvhnSource):
    def write(self, folder: pathlib.Path) -> None:
        from scipy.io import savemat  # type: ignore[import-untyped]

        for number, file in enumerate(self.files):
            images, labels = pictures(file.examples, self.shape, 10, _SEED + number)
            digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
            savemat(folder / file.name, {"X": images.transpose(2, 3, 1, 0), "y": digits}, do_compression=True)


class _Norb(_Generated, norb.NorbSource):
    def write(self, folder: pathlib.Path) -> None:
        for number, files in enumerate(zip(self.files[::2], self.files[1::2])):
            size = 2, self.original, self.original
            images, labels = pictures(files[0].examples, size, len(self.classes), _SEED + number)
            for file, magic, array in zip(files, (0x1E3D4C55, 0x1E3D4C54), (images, labels.astype("<i4"))):
                sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
                head = struct.pack(f"<II{len(sizes)}i", magic, array.ndim, *sizes)
                (folder / file.name).write_bytes(gzip.compress(head + array.tobytes(), 1))


class _Folders(_Generated, ilsvrc.FolderSource):
    def write(self, folder: pathlib.Path) -> None:
        from PIL import Image

        for number, (part, count) in enumerate((("train", self.train), ("val", self.test))):
            images, labels = pictures(count, (3, 144, 192), len(self.classes), _SEED + number)
            for place, (image, label) in enumerate(zip(images, labels)):
                path = folder / part / self.synsets[label] / f"{place}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.transpose(1, 2, 0)).save(path, quality=90)


SVHN = _Svhn(
    name="svhn-generated",
    title="generated pictures in the format of SVHN",
    training=(File("train_32x32.mat", examples=400), File("extra_32x32.mat", examples=200)),
    testing=(File("test_32x32.mat", examples=300),),
)
NORB = _Norb(
    name="norb-generated",
    title="generated pictures in the format of NORB",
    classes=norb.NORB.classes,
    shape=norb.NORB.shape,
    training=norb.folds(("training-01-", "training-02-"), 240),
    testing=norb.folds(("testing-01-", "testing-02-"), 240),
    original=norb.NORB.original,
)
ILSVRC = _Folders(
    name="ilsvrc-generated",
    title="generated pictures in the format of ILSVRC-2012",
    classes=ilsvrc.TEN.classes,
    synsets=ilsvrc.TEN.synsets,
    train=100,
    test=60,
)
