"""CIFAR-10: six batches of images, in the version for C or in the one for Python; both hold the same.

In the version for C an image is 3073 bytes: its label and three planes of 32 rows, red, green and blue. The version for
Python pickles a dictionary per batch with the same planes as ``data`` and a list ``labels``
(https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import pickletools
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..._files import replacing
from ..._text import printable
from ...errors import UserError
from . import download
from .dataset import File, FileSource, Images, Labels, published
from .download import DownloadProgress

Records = npt.NDArray[np.uint8]  # [N, 1 + 3072]: label and planes

_RECORD = 1 + 3 * 32 * 32
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")  # as the archives have them


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarSource(FileSource):
    """Batches of images, each known by the SHA-256 of its records."""

    archive: download.Remote
    also: ClassVar[str] = ", or those of the version for Python,"

    def names(self, file: File) -> tuple[str, ...]:
        """Return the accepted names; the binary format first, since it is read faster."""
        binary_and_python = file.name, file.name.removesuffix(".bin")
        return tuple(str(pathlib.Path(inner, name)) for name in binary_and_python for inner in _FOLDERS)

    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        content = download.read_content(path, 2 * _RECORD * file.examples)
        records = parse(content, file.examples, len(self.classes), str(path))
        sha256 = hashlib.sha256(records.data).hexdigest()
        if sha256 != file.sha256:
            other = next((other.name for other in self.files if other.sha256 == sha256), None)
            got = f"it holds {other}: is it wrongly named?" if other else f"got {sha256[:12]}…"
            raise UserError(f"{path}: expected the published images, SHA-256 {file.sha256[:12]}…; {got}")
        images[:] = records[:, 1:].reshape(images.shape)
        labels[:] = records[:, 0]

    def _wanted(self, files: Iterable[File], folder: pathlib.Path) -> str:
        return f"{self.archive.name} (md5 {self.archive.md5}) into {folder} and give this command again"

    def _fetch(self, files: list[File], folder: pathlib.Path, progress: DownloadProgress) -> list[str]:
        """Unpack the archive that is here, which stays; else download it, unpack it and remove it."""
        archive, failures = folder / self.archive.name, list[str]()
        if archive.is_file():
            failures = self._unpack(archive, files, folder, progress)
            if not failures:
                return []
        failures += download.from_mirrors(self.mirrors, [self.archive], folder, progress)
        if self.mirrors and archive.is_file() and download.md5_of(archive) == self.archive.md5:
            failures += self._unpack(archive, files, folder, progress)
            with download.writing(archive):
                archive.unlink()
        return failures

    def _unpack(
        self, archive: pathlib.Path, files: list[File], folder: pathlib.Path, progress: DownloadProgress
    ) -> list[str]:
        """Write files out of an archive, any that has them; return the reason if it does not."""
        paths = {f"{_FOLDERS[1]}/{file.name}": file for file in files}
        try:
            for path, content in download.members(archive, paths, archive.name):
                _keep(content, paths[path], archive, progress)
        except download.UnavailableError as failure:
            return [str(failure)]
        return []


def _keep(content: bytes, file: File, archive: pathlib.Path, progress: DownloadProgress) -> None:
    """Write a file out of an archive beside it after verifying its SHA-256."""
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise download.UnavailableError(f"{archive.name} has another {file.name}: expected SHA-256 {file.sha256[:12]}…")
    target = archive.with_name(file.name)
    with download.writing(target), replacing(target, durable=True) as temporary:
        temporary.write_bytes(content)
    progress.received(file.name, len(content), len(content))
    progress.note(f"{file.name}: complete, from {archive.name}")


def parse(content: bytes, images: int, classes: int, file: str) -> Records:
    """Return the records of a batch of either version; no label is as large as the first byte of a pickle."""
    expected = images * _RECORD
    if content[:1] == b"\x80":
        records = _unpickled(content, images, file)
    elif len(content) == expected:
        records = np.frombuffer(content, np.uint8).reshape(images, _RECORD)
    else:
        much = "truncated" if len(content) < expected else "too long"
        raise UserError(
            f"{file}: {much}, expected {expected:,} bytes for {images:,} images of {_RECORD}; got {len(content):,}"
        )
    wrong = records[:, 0] >= classes
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserError(f"{file}: expected labels from 0 to {classes - 1}; that of image {at} is {records[at, 0]}")
    return records


def _unpickled(content: bytes, images: int, file: str) -> Records:
    """Take pixels and labels out of a pickle's instructions, none of which is executed.

    Whether they are the published ones is for the checksum to say.
    """
    pixels, labels, name = b"", list[int](), ""
    try:
        for instruction, value, _ in pickletools.genops(content):
            if isinstance(value, (str, bytes)) and len(value) == images * (_RECORD - 1):
                # Python 2 wrote text; what Python 3 has written again holds bytes.
                pixels = value.encode("latin-1") if isinstance(value, str) else value
            elif isinstance(value, str):
                name = value
            elif isinstance(value, int) and name == "labels" and instruction.name == "BININT1":
                labels.append(value)
    # A damaged pickle raises ValueError, and more.
    except Exception as error:
        raise UserError(f"{file}: damaged, no pickle that can be read ({printable(str(error)[:200])[:100]})") from error
    if not pixels:
        raise UserError(f"{file}: expected data, an array of bytes of shape {(images, _RECORD - 1)}; it has none such")
    if len(labels) != images:
        raise UserError(f"{file}: expected labels, a list of {images:,} whole numbers from 0; it has {len(labels):,}")
    records = np.empty((images, _RECORD), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(images, -1)
    return records


CIFAR_10 = CifarSource(
    name="cifar-10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    **published("cifar-10"),
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    archive=download.Remote("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
)
