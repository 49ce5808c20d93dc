"""Generated pictures in the exact format of data sets that are not here: for trying a study, never for results.

They are written by other code than reads them, into a folder that is there for as long as it takes.
"""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import struct
import tempfile
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from . import ilsvrc, norb, svhn
from .dataset import Dataset
from .source import Progress, Source

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


@dataclasses.dataclass(frozen=True)
class GeneratedSource:
    """A data set that is always here, because it is made when it is loaded.

    Attributes:
        reader: Of small files in some format; has the name and the title, which say what this is.
        write: Writes such files for a reader into a folder.
    """

    reader: Source
    write: Callable[[Source, pathlib.Path], None]

    @property
    def name(self) -> str:
        return self.reader.name

    @property
    def title(self) -> str:
        return self.reader.title

    @property
    def train(self) -> int:
        return self.reader.train

    @property
    def test(self) -> int:
        return self.reader.test

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.reader.shape

    @property
    def classes(self) -> tuple[str, ...]:
        return self.reader.classes

    def place(self, directory: pathlib.Path) -> str:
        return "made when it is used"

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return ()

    def load(self, directory: pathlib.Path) -> Dataset:
        with tempfile.TemporaryDirectory() as temporary:
            self.write(self.reader, pathlib.Path(temporary))
            return self.reader.load(pathlib.Path(temporary))

    def get(self, directory: pathlib.Path, progress: Progress) -> None:
        pass


def _write_svhn(reader: Source, directory: pathlib.Path) -> None:
    from scipy.io import savemat  # type: ignore[import-untyped]

    assert isinstance(reader, svhn.SvhnSource)
    (directory / reader.folder).mkdir()
    for number, file in enumerate((*reader.training, reader.testing)):
        images, labels = pictures(file.images, reader.shape, 10, _SEED + number)
        digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        content = {"X": images.transpose(2, 3, 1, 0), "y": digits}
        savemat(directory / reader.folder / file.name, content, do_compression=True)


def _write_norb(reader: Source, directory: pathlib.Path) -> None:
    assert isinstance(reader, norb.NorbSource)
    (directory / reader.name).mkdir()
    for number, fold in enumerate((*reader.training, *reader.testing)):
        images, labels = pictures(reader.pairs, (2, reader.original, reader.original), 6, _SEED + number)
        for what, magic, array in (("dat", 0x1E3D4C55, images), ("cat", 0x1E3D4C54, labels.astype("<i4"))):
            sizes = (*array.shape, 1, 1)[: max(3, array.ndim)]
            head = struct.pack(f"<II{len(sizes)}i", magic, array.ndim, *sizes)
            path = directory / reader.name / f"{fold}{what}.mat.gz"
            path.write_bytes(gzip.compress(head + array.tobytes(), 1))


def _write_ilsvrc(reader: Source, directory: pathlib.Path) -> None:
    from PIL import Image

    assert isinstance(reader, ilsvrc.FolderSource)
    for number, (part, count) in enumerate((("train", reader.train), ("val", reader.test))):
        images, labels = pictures(count, (3, 144, 192), len(reader.classes), _SEED + number)
        for place, (image, label) in enumerate(zip(images, labels)):
            folder = directory / reader.folder / part / reader.synsets[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{place}.JPEG", quality=90)


SVHN = GeneratedSource(
    svhn.SvhnSource(
        "svhn-generated",
        "generated pictures in the format of SVHN",
        "svhn-generated",
        (svhn.File("train_32x32.mat", 400), svhn.File("extra_32x32.mat", 200)),
        svhn.File("test_32x32.mat", 300),
    ),
    _write_svhn,
)
NORB = GeneratedSource(
    dataclasses.replace(norb.NORB, name="norb-generated", title="generated pictures in the format of NORB", pairs=240),
    _write_norb,
)
ILSVRC = GeneratedSource(
    dataclasses.replace(
        ilsvrc.TEN,
        name="ilsvrc-generated",
        title="generated pictures in the format of ILSVRC-2012",
        folder="ilsvrc-generated",
        training=10,
        testing=6,
    ),
    _write_ilsvrc,
)
