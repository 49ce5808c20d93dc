"""MNIST and Fashion-MNIST: four IDX files each.

An IDX file has a magic number, the sizes, and then the values. All numbers of the header are big-endian: two zero
bytes, the type of the values (8 is an unsigned byte, the only one read here), the number of dimensions, and the size of
each in four bytes (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..._files import TEMPORARY, reading, replacing
from ...errors import UserError, nearest
from . import dataset, download
from .dataset import Dataset, DownloadProgress, MissingError, of_source

_KINDS = {1: "labels", 3: "images"}


def parse(content: bytes, dimensions: int, file: str) -> npt.NDArray[np.uint8]:
    """Return the values, with the shape that the header states.

    Args:
        content: The whole file, unpacked.
        dimensions: How many there must be: 1 for labels, 3 for images.
        file: What to call it in an error.

    Raises:
        UserError: It is not such a file, or not a whole one.
    """
    kind = _KINDS[dimensions]
    if not content:
        raise UserError(f"{file}: expected {kind} in IDX format; it is empty")
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise UserError(
            f"{file}: expected {kind} in IDX format, which start with the bytes {magic.hex(' ')}; {_describe(content)}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise UserError(f"{file}: truncated, {len(content)} bytes are less than its header of {start}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        much = "truncated, it holds" if len(content) < expected else "bytes follow its end, it holds"
        sizes = "x".join(map(str, shape))
        raise UserError(f"{file}: {much} {len(content):,} bytes where its header ({sizes}) asks for {expected:,}")
    # A copy: torch wants memory that may be written to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _describe(content: bytes) -> str:
    for dimensions, kind in _KINDS.items():
        if content[:4] == bytes([0, 0, 8, dimensions]):
            return f"it holds {kind}: is it wrongly named?"
    if content[:2] == b"\x1f\x8b":
        return "it is gzipped twice"
    if content.lstrip()[:1] == b"<":
        return "it looks like a web page, not like data"
    return f"it starts with {content[:4].hex(' ')}"


@dataclasses.dataclass(frozen=True)
class File:
    """One file as it was published: gzipped, and known by the MD5 of that; here also by the SHA-256 of its content."""

    name: str
    what: str
    shape: tuple[int, ...]
    gzipped_bytes: int
    gzipped_md5: str
    sha256: str

    @property
    def names(self) -> tuple[str, ...]:
        """Accepted file names. Some unpackers put a dot where the original has a hyphen."""
        dotted = self.name.replace("-idx", ".idx")
        return f"{self.name}.gz", self.name, f"{dotted}.gz", dotted

    def here(self, folder: pathlib.Path) -> list[pathlib.Path]:
        return [folder / name for name in self.names if os.path.lexists(folder / name)]


@dataclasses.dataclass(frozen=True)
class IdxSource:
    """A data set of four IDX files in a folder that has its name."""

    name: str
    title: str
    classes: tuple[str, ...]
    files: tuple[File, File, File, File]  # train images, train labels, test images, test labels
    mirrors: tuple[str, ...]
    other_source: str = ""  # for who cannot reach the mirrors
    packaged: str = ""  # where a package of the system puts the files

    @property
    def train(self) -> int:
        return self.files[0].shape[0]

    @property
    def test(self) -> int:
        return self.files[2].shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width = self.files[0].shape
        return 1, height, width

    def place(self, directory: pathlib.Path) -> str:
        return str(directory / self.name)

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return tuple(file.names[0] for file in self.files if not file.here(directory / self.name))

    def load(self, directory: pathlib.Path) -> Dataset:
        missing = self.missing(directory)
        if missing:
            raise MissingError(self._what_is_missing(missing, directory))
        try:
            found = [self._read(file, directory) for file in self.files]
        except UserError as problem:
            again = dataset.get_command(self.name, directory)
            raise UserError(f"{self.name}: {problem}; to get it again, run: {again}") from problem
        (train_images, train_labels, test_images, test_labels), used = zip(*found)
        return of_source(
            self,
            (train_images[:, np.newaxis], train_labels.astype(np.int64)),
            (test_images[:, np.newaxis], test_labels.astype(np.int64)),
            f"{self.title} as published (every file's SHA-256 verified): {', '.join(used)}",
        )

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        folder = directory / self.name
        wanted = self._wrong(self.files, directory)
        if not wanted:
            return
        with download.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        wanted = [file for file in wanted if not self._copy(file, folder, progress)]
        failures = download.from_mirrors(
            self.mirrors,
            [download.Remote(file.names[0], file.gzipped_bytes, file.gzipped_md5) for file in wanted],
            folder,
            progress,
        )
        left = self._wrong(wanted, directory)
        if left:
            files = ", ".join(f"{file.names[0]} (md5 {file.gzipped_md5})" for file in left)
            raise UserError(
                f"{self.name}: cannot be downloaded here ({'; '.join(failures)}); from where it can be, take {files} "
                f"and put them into {folder}{self.other_source}"
            )

    def _copy(self, file: File, folder: pathlib.Path, progress: DownloadProgress) -> bool:
        """Copy a file from where a package of the system has put it, if it is the published one."""
        for path in file.here(pathlib.Path(self.packaged)) if self.packaged else []:
            target = folder / path.name
            try:
                with reading(path):
                    content = path.read_bytes()
                with download.writing(target), replacing(target, durable=True) as temporary:
                    temporary.write_bytes(content)
                    self._verified(file, temporary)
            except UserError:
                progress.note(f"{path}: passed over, it cannot be copied or is not the published file")
                continue
            progress.note(f"{path.name}: complete, from {path.parent}")
            return True
        return False

    def _read(self, file: File, directory: pathlib.Path) -> tuple[npt.NDArray[np.uint8], str]:
        """Read a file and return its name, too."""
        missing = f"{self.name}: {file.name} is missing"
        return download.first_intact(file.here(directory / self.name), lambda path: self._verified(file, path), missing)

    def _verified(self, file: File, path: pathlib.Path) -> npt.NDArray[np.uint8]:
        """Return the values of a file; refuse other than the published content, so that results are comparable."""
        content = download.read_content(path)
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != file.sha256:
            known = {other.sha256: (source, other) for source in (MNIST, FASHION_MNIST, self) for other in source.files}
            if sha256 in known:
                source, other = known[sha256]
                raise UserError(
                    f"{path}: expected the {file.what}; it holds the {other.what} of {source.title}, which should be "
                    f"called {source.name}/{other.name}{'.gz' if path.suffix == '.gz' else ''}"
                )
        values = parse(content, len(file.shape), str(path))
        if values.shape != file.shape:
            expected, got = ("x".join(map(str, shape)) for shape in (file.shape, values.shape))
            raise UserError(f"{path}: expected the {file.what}, {expected}; its header says {got}")
        largest = len(self.classes) - 1
        if len(file.shape) == 1 and values.max() > largest:
            at = int(np.argmax(values > largest))
            raise UserError(f"{path}: expected labels from 0 to {largest}; number {at} is {values[at]}")
        if sha256 != file.sha256:
            raise UserError(f"{path}: expected the published content, SHA-256 {file.sha256[:12]}…; got {sha256[:12]}…")
        return values

    def _wrong(self, files: Sequence[File], directory: pathlib.Path) -> list[File]:
        """Return the files that are missing or damaged."""
        wrong = []
        for file in files:
            try:
                self._read(file, directory)
            except UserError:
                wrong.append(file)
        return wrong

    def _what_is_missing(self, missing: tuple[str, ...], directory: pathlib.Path) -> str:
        folder = directory / self.name
        hints = [
            f"{found} is there and should be called {name}" for found, name in self._misnamed(missing, folder).items()
        ]
        hints += [
            f"files of these names are in {place}: if they are {self.title}, move them"
            for place in self._misplaced(missing, directory)
        ]
        return (
            f"{self.name}: {len(missing)} of {len(self.files)} files are missing{''.join(f' ({h})' for h in hints)}; "
            f"put {', '.join(missing)} into {folder}, unpacked if you like, or run: "
            f"{dataset.get_command(self.name, directory)}"
        )

    def _misnamed(self, missing: tuple[str, ...], folder: pathlib.Path) -> dict[str, str]:
        """Return files with names close to those of missing ones, and the right names."""
        known = {name for file in self.files for name in file.names}
        plain = {file.name: file.names[0] in missing for file in self.files}
        found = {}
        for stray in sorted(_listing(folder) - known):
            if stray.endswith((TEMPORARY, ".part")):  # half of a file
                continue
            stem, gz, _ = stray.lower().partition(".gz")
            meant = nearest(re.sub(r"[^a-z0-9]+", "-", stem), plain, cutoff=0.6)
            if meant and plain[meant]:
                found[stray] = meant + gz
        return found

    def _misplaced(self, missing: tuple[str, ...], directory: pathlib.Path) -> list[pathlib.Path]:
        """Return folders that hold missing files: the data directory itself, and the folders of other programs."""
        likely = [directory]
        for name in sorted(_listing(directory) - {self.name}):
            if re.sub(r"[^a-z0-9]", "", name.lower()) == self.name.replace("-", ""):
                likely += [directory / name, directory / name / "raw"]
        return [place for place in likely if any(file.here(place) for file in self.files if file.names[0] in missing)]


def _listing(folder: pathlib.Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _files(sizes: Sequence[int], md5: Sequence[str], sha256: Sequence[str]) -> tuple[File, File, File, File]:
    train_images, train_labels, test_images, test_labels = zip(sizes, md5, sha256)
    return (
        File("train-images-idx3-ubyte", "training images", (60_000, 28, 28), *train_images),
        File("train-labels-idx1-ubyte", "training labels", (60_000,), *train_labels),
        File("t10k-images-idx3-ubyte", "test images", (10_000, 28, 28), *test_images),
        File("t10k-labels-idx1-ubyte", "test labels", (10_000,), *test_labels),
    )


MNIST = IdxSource(
    name="mnist",
    title="MNIST",
    classes=tuple("0123456789"),
    files=_files(
        (9_912_422, 28_881, 1_648_877, 4_542),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    files=_files(
        (26_421_880, 29_515, 4_422_102, 5_148),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    other_source="; or install Debian's package dataset-fashion-mnist and give this command again",
    packaged="/usr/share/datasets/fashion-mnist",
)
