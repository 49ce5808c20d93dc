"""Generated pictures in the exact format of data sets that are not here: for trying a study, never for results.

They are written by other code than reads them, into a folder that is there for as long as it takes.
"""

from __future__ import annotations

import gzip
import pathlib
import struct
import tempfile

import numpy as np
import numpy.typing as npt

from . import ilsvrc, norb, svhn
from .dataset import Dataset
from .dataset_source import Progress

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_SEED = 0


def pictures(count: int, shape: tuple[int, int, int], classes: int, seed: int) -> tuple[Pixels, Labels]:
    """Noise with a bright spot, whose place tells the class: on a circle, as a clock tells the hour.

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

    def get(self, directory: pathlib.Path, progress: Progress) -> None:
        pass

    def write(self, directory: pathlib.Path) -> None:
        """Writes the files that are then loaded."""
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
