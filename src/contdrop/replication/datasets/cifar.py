"""CIFAR-10: six batches of images, in the version for C or in the one for Python; both hold the same.

In the version for C an image is 3073 bytes: its label and three planes of 32 rows, red, green and blue. The version for
Python pickles a dictionary per batch with the same planes as ``data`` and a list ``labels``
(https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pathlib
import pickle
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..._files import replacing
from ..._text import printable
from ...errors import UserError
from . import download
from .dataset import DownloadProgress, Images, Labels
from .file_source import File, FileSource

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
    """Return the plain values and arrays of a pickle, as :class:`PickledArray`; nothing else is imported or called."""
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


_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
CIFAR_10 = CifarSource(
    name="cifar-10",
    title="CIFAR-10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    training=tuple(
        File(f"data_batch_{number}.bin", examples=10_000, sha256=each) for number, each in enumerate(_SHA256[:5], 1)
    ),
    testing=(File("test_batch.bin", examples=10_000, sha256=_SHA256[5]),),
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    archive=download.Remote("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
)
