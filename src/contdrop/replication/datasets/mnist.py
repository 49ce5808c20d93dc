"""MNIST and Fashion-MNIST: four IDX files each.

An IDX file has a magic number, the sizes, and then the values. All numbers of the header are big-endian: two zero
bytes, the type of the values (8 is an unsigned byte, the only one read here), the number of dimensions, and the size of
each in four bytes (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import os
import pathlib
import re
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..._files import TEMPORARY, reading, replacing
from ...errors import UserError
from . import download
from .dataset import File, FileSource, Images, Labels, published
from .download import DownloadProgress

_KINDS = {1: "labels", 3: "images"}


def parse(content: bytes, dimensions: int, file: str) -> npt.NDArray[np.uint8]:
    """Return the values, with the shape that the header states.

    Args:
        content: The whole file, unpacked.
        dimensions: How many there must be: 1 for labels, 3 for images.
        file: What to call it in an error.
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
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _describe(content: bytes) -> str:
    for dimensions, kind in _KINDS.items():
        if content[:4] == bytes([0, 0, 8, dimensions]):
            return f"it holds {kind}: is it wrongly named?"
    if content[:2] == b"\x1f\x8b":
        return "it is gzipped twice"
    if content.lstrip()[:1] == b"<":
        return "it looks like a web page, not like data"
    return f"it starts with {content[:4].hex(' ')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdxSource(FileSource):
    """A data set of IDX files, two to train and two to test on, gzipped or not.

    Attributes:
        packaged: Folder in which a package of the system has the files.
    """

    packaged: str = ""
    shape: tuple[int, int, int] = (1, 28, 28)
    also: ClassVar[str] = ", unpacked if you like,"

    def names(self, file: File) -> tuple[str, ...]:
        """Return the accepted names. Some unpackers put a dot where the original has a hyphen."""
        dotted = file.name.replace("-idx", ".idx")
        return file.name, file.name.removesuffix(".gz"), dotted, dotted.removesuffix(".gz")

    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        """Refuse other than the published content, so that results are comparable."""
        content = download.read_content(path)
        sha256 = hashlib.sha256(content).hexdigest()
        self._refuse_other(file, path, sha256)
        out = images[:, 0] if file.holds == "images" else labels
        values = parse(content, out.ndim, str(path))
        if values.shape != out.shape:
            expected, got = ("x".join(map(str, shape)) for shape in (out.shape, values.shape))
            raise UserError(f"{path}: expected the {self._called(file)}, {expected}; its header says {got}")
        largest = len(self.classes) - 1
        if out is labels and values.max() > largest:
            at = int(np.argmax(values > largest))
            raise UserError(f"{path}: expected labels from 0 to {largest}; number {at} is {values[at]}")
        if sha256 != file.sha256:
            raise UserError(f"{path}: expected the published content, SHA-256 {file.sha256[:12]}…; got {sha256[:12]}…")
        out[:] = values

    def _refuse_other(self, file: File, path: pathlib.Path, sha256: str) -> None:
        """Raise UserError for another file of this data set or of its like."""
        if sha256 == file.sha256:
            return
        for source in (self, MNIST, FASHION_MNIST):
            for other in source.files:
                if sha256 == other.sha256:
                    name = other.name if path.suffix == ".gz" else other.name.removesuffix(".gz")
                    raise UserError(
                        f"{path}: expected the {self._called(file)}; it holds the {source._called(other)} of "
                        f"{source.title}, which should be called {source.name}/{name}"
                    )

    def _called(self, file: File) -> str:
        return f"{'training' if file in self.training else 'test'} {file.holds}"

    def _fetch(self, files: list[File], folder: pathlib.Path, progress: DownloadProgress) -> list[str]:
        return super()._fetch([file for file in files if not self._copy(file, folder, progress)], folder, progress)

    def _copy(self, file: File, folder: pathlib.Path, progress: DownloadProgress) -> bool:
        """Copy a file from where a package of the system has put it, if it is the published one."""
        for path in self.here(file, pathlib.Path(self.packaged)) if self.packaged else []:
            target = folder / path.name
            try:
                with reading(path):
                    content = path.read_bytes()
                with download.writing(target), replacing(target, durable=True) as temporary:
                    temporary.write_bytes(content)
                    self._check(file, temporary)
            except UserError:
                progress.note(f"{path}: passed over, it cannot be copied or is not the published file")
                continue
            progress.note(f"{path.name}: complete, from {path.parent}")
            return True
        return False

    def _hints(self, missing: tuple[str, ...], directory: pathlib.Path) -> list[str]:
        misnamed = self._misnamed(missing, self.path(directory)).items()
        return [f"{found} is there and should be called {name}" for found, name in misnamed] + [
            f"files of these names are in {place}: if they are {self.title}, move them"
            for place in self._misplaced(missing, directory)
        ]

    def _misnamed(self, missing: tuple[str, ...], folder: pathlib.Path) -> dict[str, str]:
        """Return files with names close to those of missing ones, and the right names."""
        known = {name for file in self.files for name in self.names(file)}
        plain = {file.name.removesuffix(".gz"): file.name in missing for file in self.files}
        found = {}
        for stray in sorted(_listing(folder) - known):
            if stray.endswith((TEMPORARY, ".part")):  # half of a file
                continue
            stem, gz, _ = stray.lower().partition(".gz")
            for meant in difflib.get_close_matches(re.sub(r"[^a-z0-9]+", "-", stem), plain, n=1):
                if plain[meant]:
                    found[stray] = meant + gz
        return found

    def _misplaced(self, missing: tuple[str, ...], directory: pathlib.Path) -> list[pathlib.Path]:
        """Return folders that hold missing files: the data directory itself, and the folders of other programs."""
        likely = [directory]
        for name in sorted(_listing(directory) - {self.name}):
            if re.sub(r"[^a-z0-9]", "", name.lower()) == self.name.replace("-", ""):
                likely += [directory / name, directory / name / "raw"]
        absent = [file for file in self.files if file.name in missing]
        return [place for place in likely if any(self.here(file, place) for file in absent)]


def _listing(folder: pathlib.Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


MNIST = IdxSource(
    name="mnist",
    title="MNIST",
    classes=tuple("0123456789"),
    **published("mnist"),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)

FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    **published("fashion-mnist"),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    offered="or install Debian's package dataset-fashion-mnist and give this command again",
    packaged="/usr/share/datasets/fashion-mnist",
)
