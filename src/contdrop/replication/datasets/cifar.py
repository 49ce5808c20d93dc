"""CIFAR-10: six batches of images, in the version for C or in the one for Python; both hold the same.

In the version for C an image is 3073 bytes: its label and three planes of 32 rows, red, green and blue. The version for
Python pickles a dictionary per batch with the same planes as ``data`` and a list ``labels``
(https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pathlib
import pickle
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..._files import replacing
from ..._text import printable
from ...errors import UserError
from . import dataset, download
from .dataset import Dataset, DownloadProgress, MissingError, of_source
from .download import first_intact, members

Records = npt.NDArray[np.uint8]  # [N, 1 + 3072]: label and planes

_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")  # as the archives have them


@dataclasses.dataclass(frozen=True)
class Batch:
    """A file: what it is called without the ending of its version, and the SHA-256 of its records."""

    name: str
    sha256: str
    images: int = 10_000

    def here(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """Return the files that hold this batch; the binary format first, since it is read faster."""
        places = [folder / inner / f"{self.name}{ending}" for ending in (".bin", "") for inner in _FOLDERS]
        return [path for path in places if os.path.lexists(path)]


@dataclasses.dataclass(frozen=True)
class CifarSource:
    """Batches of images in a folder that has the data set's name; the last one is to test on."""

    name: str
    title: str
    classes: tuple[str, ...]
    batches: tuple[Batch, ...]
    mirrors: tuple[str, ...]
    archive: download.Remote
    shape: tuple[int, int, int] = _SHAPE

    @property
    def train(self) -> int:
        return sum(batch.images for batch in self.batches[:-1])

    @property
    def test(self) -> int:
        return self.batches[-1].images

    def place(self, directory: pathlib.Path) -> str:
        return str(directory / self.name)

    def missing(self, directory: pathlib.Path) -> tuple[str, ...]:
        return tuple(f"{batch.name}.bin" for batch in self.batches if not batch.here(directory / self.name))

    def load(self, directory: pathlib.Path) -> Dataset:
        missing = self.missing(directory)
        again = dataset.get_command(self.name, directory)
        if missing:
            raise MissingError(
                f"{self.name}: {len(missing)} of {len(self.batches)} files are missing; put {', '.join(missing)}, or "
                f"those of the version for Python, into {directory / self.name}, or run: {again}"
            )
        images = np.empty((self.train + self.test, *self.shape), np.uint8)
        labels = np.empty(len(images), np.int64)
        used, start = [], 0
        for batch in self.batches:
            try:
                records, found = self._read(batch, directory)
            except UserError as problem:
                raise UserError(f"{self.name}: {problem}; to get it again, run: {again}") from problem
            end = start + batch.images
            images[start:end] = records[:, 1:].reshape(-1, *self.shape)
            labels[start:end] = records[:, 0]
            used.append(found)
            start = end
        return of_source(
            self,
            (images[: self.train], labels[: self.train]),
            (images[self.train :], labels[self.train :]),
            f"{self.title} as published (every file's SHA-256 verified): {', '.join(used)}",
        )

    def get(self, directory: pathlib.Path, progress: DownloadProgress) -> None:
        folder = directory / self.name
        left = self._wrong(directory)
        if not left:
            return
        with download.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        failures: list[str] = []
        for way in (self._from_archive, self._from_mirrors):
            try:
                failures += way(left, folder, progress)
            except download.UnavailableError as failure:
                failures.append(str(failure))
            left = self._wrong(directory)
            if not left:
                return
        raise UserError(
            f"{self.name}: cannot be downloaded here ({'; '.join(failures)}); from where it can be, take "
            f"{self.archive.name} (md5 {self.archive.md5}), put it into {folder} and give this command again"
        )

    def _from_archive(self, wanted: list[Batch], folder: pathlib.Path, progress: DownloadProgress) -> list[str]:
        """Unpack the archive if it is here; every batch has its own checksum, so another archive will do too."""
        archive = folder / self.archive.name
        if archive.is_file():
            self._unpack(archive, wanted, folder, progress)
        return []

    def _from_mirrors(self, wanted: list[Batch], folder: pathlib.Path, progress: DownloadProgress) -> list[str]:
        """Download and unpack the archive, then remove it; one that somebody else has put there stays."""
        failures = download.from_mirrors(self.mirrors, [self.archive], folder, progress)
        archive = folder / self.archive.name
        if self.mirrors and archive.is_file() and download.md5_of(archive) == self.archive.md5:
            self._unpack(archive, wanted, folder, progress)
            with download.writing(archive):
                archive.unlink()
        return failures

    def _wrong(self, directory: pathlib.Path) -> list[Batch]:
        """Return the batches that are missing or damaged."""
        wrong = []
        for batch in self.batches:
            try:
                self._read(batch, directory)
            except UserError:
                wrong.append(batch)
        return wrong

    def _unpack(
        self, archive: pathlib.Path, wanted: list[Batch], folder: pathlib.Path, progress: DownloadProgress
    ) -> None:
        paths = {f"{_FOLDERS[1]}/{batch.name}.bin": batch for batch in wanted}
        for path, content in members(archive, paths, archive.name):
            self._keep(content, paths[path], archive.name, folder, progress)

    def _keep(self, content: bytes, batch: Batch, title: str, folder: pathlib.Path, progress: DownloadProgress) -> None:
        """Write a batch in binary format after verifying its SHA-256."""
        name = f"{batch.name}.bin"
        if hashlib.sha256(content).hexdigest() != batch.sha256:
            raise download.UnavailableError(f"{title} has another {name}: expected SHA-256 {batch.sha256[:12]}…")
        with download.writing(folder / name), replacing(folder / name, durable=True) as temporary:
            temporary.write_bytes(content)
        progress.received(name, len(content), len(content))
        progress.note(f"{name}: complete, from {title}")

    def _read(self, batch: Batch, directory: pathlib.Path) -> tuple[Records, str]:
        """Read a batch and return the name of its file, too."""
        missing = f"{self.name}: {batch.name} is missing"
        return first_intact(batch.here(directory / self.name), lambda path: self._verified(batch, path), missing)

    def _verified(self, batch: Batch, path: pathlib.Path) -> Records:
        records = parse(
            download.read_content(path, 2 * _RECORD * batch.images), batch.images, len(self.classes), str(path)
        )
        sha256 = hashlib.sha256(records.data).hexdigest()
        if sha256 != batch.sha256:
            other = next((other.name for other in self.batches if other.sha256 == sha256), None)
            got = f"it holds {other}: is it wrongly named?" if other else f"got {sha256[:12]}…"
            raise UserError(f"{path}: expected the published images, SHA-256 {batch.sha256[:12]}…; {got}")
        return records


def parse(content: bytes, images: int, classes: int, file: str) -> Records:
    """Return the records of a batch of either version; no label is as large as the first byte of a pickle.

    Raises:
        UserError: It is neither, or not of so many images, or a label is none.
    """
    records = _unpickled(content, images, file) if content[:1] == b"\x80" else _plain(content, images, file)
    wrong = records[:, 0] >= classes
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserError(f"{file}: expected labels from 0 to {classes - 1}; that of image {at} is {records[at, 0]}")
    return records


def _plain(content: bytes, images: int, file: str) -> Records:
    expected = images * _RECORD
    if len(content) != expected:
        much = "truncated" if len(content) < expected else "too long"
        raise UserError(
            f"{file}: {much}, expected {expected:,} bytes for {images:,} images of {_RECORD}; got {len(content):,}"
        )
    return np.frombuffer(content, np.uint8).reshape(images, _RECORD)


def _unpickled(content: bytes, images: int, file: str) -> Records:
    found = unpickle(content, file)
    data, labels = (found.get(name) if isinstance(found, dict) else None for name in ("data", "labels"))
    shape = (images, _RECORD - 1)
    if not isinstance(data, PickledArray) or data.kind not in ("u1", "|u1") or data.shape != shape:
        got = type(data).__name__
        if isinstance(data, PickledArray):
            got = f"{printable(data.kind[:20])} of shape {data.shape}"[:60]
        raise UserError(f"{file}: expected data, an array of bytes of shape {shape}; got {got}")
    if (
        not isinstance(labels, list)
        or len(labels) != images
        or not all(type(label) is int and 0 <= label < 256 for label in labels)
    ):
        raise UserError(f"{file}: expected labels, a list of {images:,} whole numbers from 0; it has none such")
    if len(data.content) != images * (_RECORD - 1):
        raise UserError(f"{file}: truncated, its array does not have the {images * (_RECORD - 1):,} bytes of its shape")
    records = np.empty((images, _RECORD), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = np.frombuffer(data.content, np.uint8).reshape(shape)
    return records


class PickledArray:
    """Stand-in for an array, or a type, in a pickle: it keeps its parts, and allocates nothing.

    Attributes:
        shape: As the pickle has it; whether the content is as long is not checked.
        kind: The type, such as "u1".
        content: The values by rows.
    """

    shape: tuple[int, ...] | None = None
    kind = ""
    content = b""

    def __init__(self, *arguments: Any) -> None:
        if arguments and isinstance(arguments[0], str):
            self.kind = arguments[0]

    def __setstate__(self, state: Any) -> None:
        if self.kind:
            return  # a type's own state says nothing more of types of one byte
        _, shape, kind, by_columns, content = state
        # A few bytes describe pairs of pairs of pairs, which take forever to compare or to print.
        if not (isinstance(shape, tuple) and len(shape) <= _MOST_DIMENSIONS and all(type(n) is int for n in shape)):
            raise ValueError("an array's shape is not that of one")
        kind = kind.kind if isinstance(kind, PickledArray) else kind
        if not isinstance(kind, str):
            raise ValueError("an array's type is no text")
        if by_columns or not isinstance(content, (str, bytes)):
            raise ValueError("an array is stored by columns, or not as bytes")
        # Python 2 wrote text; what Python 3 has written again holds bytes.
        content = content if isinstance(content, bytes) else content.encode("latin-1")
        self.shape, self.kind, self.content = shape, kind, content


_MOST_DIMENSIONS = 8
# The names by which versions of NumPy have pickled arrays.
_INERT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy dtype", "numpy ndarray"}
# The opcodes of plain data. Not those that hash values or allocate by a number in the file.
_OPCODES = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.BUILD),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.SHORT_BINSTRING, pickle.BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINBYTES, pickle.BINBYTES),
    *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.APPEND, pickle.APPENDS),
    *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)


_LOADERS: dict[int, Any] = dict(pickle._Unpickler.dispatch)


def _check_names(names: list[Any]) -> None:
    if not all(isinstance(name, str) for name in names):  # nested tuples can take forever to hash
        raise ValueError("an entry's name is no text")


class _RestrictedUnpickler(pickle._Unpickler):
    """Unpickler of plain data and arrays, in Python: the one in C allocates by numbers in the file."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module} {name}" not in _INERT:
            raise UserError(f"expected a pickle of plain data; it would import {printable(f'{module} {name}'[:60])!r}")
        return PickledArray

    def _set_items(self) -> None:
        _check_names(self.stack[::2])
        _LOADERS[pickle.SETITEMS[0]](self)

    def _set_item(self) -> None:
        _check_names(self.stack[-2:-1])
        _LOADERS[pickle.SETITEM[0]](self)

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = {code[0]: _LOADERS[code[0]] for code in _OPCODES}
    dispatch |= {pickle.SETITEMS[0]: _set_items, pickle.SETITEM[0]: _set_item}


def unpickle(content: bytes, file: str) -> Any:
    """Return the plain values and arrays of a pickle, as :class:`PickledArray`; nothing else is imported or called.

    Raises:
        UserError: It asks for anything else, or is no intact pickle.
    """
    try:
        return _RestrictedUnpickler(io.BytesIO(content), encoding="latin-1").load()
    except UserError as problem:
        raise UserError(f"{file}: {problem}") from problem
    except KeyError as error:
        raise UserError(
            f"{file}: expected a pickle of plain data; it has the instruction {error.args[0]!r:.9}"
        ) from error
    # A damaged pickle takes values from an empty stack, indexes what is no list, and more.
    except Exception as error:
        raise UserError(f"{file}: damaged, no pickle that can be read ({printable(str(error)[:200])[:100]})") from error


CIFAR_10 = CifarSource(
    name="cifar-10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    # By MD5, as others list these files: 5dd7e06a…, 5ea93a67…, 942cd6a4…, ae636b3b…, 53f37980…, 803d5f7f….
    batches=(
        Batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        Batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        Batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        Batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        Batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        Batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    archive=download.Remote("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
)
