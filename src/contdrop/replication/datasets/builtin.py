"""Data sets that need no download: scikit-learn's digits, and generated images."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import pathlib
import struct
import tempfile

import numpy as np
import numpy.typing as npt

from ...errors import UserError
from . import ilsvrc, norb, svhn
from .dataset import Dataset, DownloadProgress, MissingError, of_source

_DIGITS_SEED = 0  # decides which images are the test set; a published number may rest on it


@dataclasses.dataclass(frozen=True)
class Digits:
    """There is no official test set: a fixed permutation sets images apart for it."""

    name: str = "digits"
    title: str = "Digits"
    train: int = 1000
    test: int = 797
    shape: tuple[int, int, int] = (1, 8, 8)
    classes: tuple[str, ...] = tuple("0123456789")

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
        images = np.asarray(found.images)
        labels = np.asarray(found.target).astype(np.int64)
        if images.shape != (total, *self.shape[1:]) or labels.shape != (total,):
            raise UserError(f"{self.name}: expected {total} images of 8x8 in scikit-learn; got shape {images.shape}")
        images = images.astype(np.uint8).reshape(total, *self.shape)
        order = np.random.Generator(np.random.Philox(_DIGITS_SEED)).permutation(total)
        train, test = np.sort(order[: self.train]), np.sort(order[self.train :])
        return of_source(
            self,
            (images[train], labels[train]),
            (images[test], labels[test]),
            "scikit-learn's load_digits (UCI optical recognition of handwritten digits, 1797 images); no official "
            "test set: 797 images set apart by a fixed permutation",
            divisor=16.0,
        )

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        self.load(directory)


DIGITS = Digits()


Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_SEED = 0


def pictures(count: int, shape: tuple[int, int, int], classes: int, seed: int) -> tuple[Pixels, Labels]:
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


class _Generated:
    """A data set in the format of another that is always here, because it is made when it is loaded."""

    def place(self, directory: pathlib.Path) -> str:
        return "made when it is used"

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return ()

    def load(self, directory: pathlib.Path) -> Dataset:
        with tempfile.TemporaryDirectory() as temporary:
            self.write(pathlib.Path(temporary))
            found: Dataset = super().load(pathlib.Path(temporary))  # type: ignore[misc]  # of the other
            return found

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        pass

    def write(self, directory: pathlib.Path) -> None:
        """Write the files that are then loaded."""
        raise NotImplementedError


class _Svhn(_Generated, svhn.SvhnSource):
    def write(self, directory: pathlib.Path) -> None:
        from scipy.io import savemat  # type: ignore[import-untyped]

        (directory / self.folder).mkdir()
        for number, file in enumerate((*self.training, self.testing)):
            images, labels = pictures(file.images, self.shape, 10, _SEED + number)
            digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
            content = {"X": images.transpose(2, 3, 1, 0), "y": digits}
            savemat(directory / self.folder / file.name, content, do_compression=True)


class _Norb(_Generated, norb.NorbSource):
    def write(self, directory: pathlib.Path) -> None:
        (directory / self.name).mkdir()
        for number, fold in enumerate((*self.training, *self.testing)):
            images, labels = pictures(self.pairs, (2, self.original, self.original), 6, _SEED + number)
            for what, magic, array in (("dat", 0x1E3D4C55, images), ("cat", 0x1E3D4C54, labels.astype("<i4"))):
                sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
                head = struct.pack(f"<II{len(sizes)}i", magic, array.ndim, *sizes)
                path = directory / self.name / f"{fold}{what}.mat.gz"
                path.write_bytes(gzip.compress(head + array.tobytes(), 1))


class _Folders(_Generated, ilsvrc.FolderSource):
    def write(self, directory: pathlib.Path) -> None:
        from PIL import Image

        for number, (part, count) in enumerate((("train", self.train), ("val", self.test))):
            images, labels = pictures(count, (3, 144, 192), len(self.classes), _SEED + number)
            for place, (image, label) in enumerate(zip(images, labels)):
                folder = directory / self.folder / part / self.synsets[label]
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{place}.JPEG", quality=90)


SVHN = _Svhn(
    "svhn-generated",
    "generated pictures in the format of SVHN",
    "svhn-generated",
    (svhn.File("train_32x32.mat", 400), svhn.File("extra_32x32.mat", 200)),
    svhn.File("test_32x32.mat", 300),
)
_OTHER_NORB = {"name": "norb-generated", "title": "generated pictures in the format of NORB", "pairs": 240}
NORB = _Norb(**{**vars(norb.NORB), **_OTHER_NORB})
ILSVRC = _Folders(
    "ilsvrc-generated",
    "generated pictures in the format of ILSVRC-2012",
    "ilsvrc-generated",
    ilsvrc.TEN.synsets,
    ilsvrc.TEN.classes,
    training=10,
    testing=6,
)
