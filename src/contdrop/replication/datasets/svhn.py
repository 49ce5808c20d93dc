"""SVHN, cropped digits: MATLAB files with images ``X`` [32, 32, 3, N] and labels ``y``, of which 10 is the digit 0."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from ..._files import reading
from ..._text import some_of
from ...errors import UserError
from . import download, matlab
from .dataset import Images, Labels
from .file_source import File, FileSource

_AT_ONCE = 1000  # images


@dataclasses.dataclass(frozen=True, kw_only=True)
class SvhnSource(FileSource):
    """A file to test on and one or several to train on."""

    classes: tuple[str, ...] = tuple("0123456789")
    shape: tuple[int, int, int] = (3, 32, 32)

    @property
    def _verified(self) -> str:
        return " (every file's MD5 verified)" if all(file.md5 for file in self.files) else ""

    def _fill(self, file: File, path: pathlib.Path, images: Images, labels: Labels) -> None:
        read(path, images, labels)
        _check_md5(file, path)

    def _check(self, file: File, path: pathlib.Path) -> None:
        """Verify the checksum, or read a file that has none."""
        if file.md5:
            _check_md5(file, path)
        else:
            super()._check(file, path)


def _check_md5(file: File, path: pathlib.Path) -> None:
    with reading(path):
        found = download.md5_of(path) if file.md5 else ""
    if found != file.md5:
        raise UserError(f"{path}: expected the published file, MD5 {file.md5}; got {found}")


def read(path: pathlib.Path, images: Images, labels: Labels) -> None:
    """Fill images [N, 3, 32, 32] and labels [N], some images at a time."""
    wanted, found = (32, 32, 3, len(images)), set[str]()
    try:
        for array in matlab.arrays(path):
            if array.name == "X":
                _read_images(array, wanted, images)
            elif array.name == "y":
                _read_labels(array, labels)
            found.add(array.name)
    except matlab.BrokenError as problem:
        raise UserError(f"{path}: {problem}") from problem
    if not {"X", "y"} <= found:
        raise UserError(f"{path}: expected variables X and y; it has {some_of(sorted(found)) or 'none'}")


def _read_images(array: matlab.Array, wanted: tuple[int, ...], images: Images) -> None:
    if array.shape != wanted or array.kind.itemsize > 1:
        raise matlab.BrokenError(f"expected X of bytes, {wanted}; got {array.kind.name}, {array.shape}")
    for start in range(0, len(images), _AT_ONCE):
        part = images[start : start + _AT_ONCE]
        # By columns: an image after another, of each its channels, of each its columns.
        columns = np.frombuffer(array.read(part.size), np.uint8).reshape(part.shape)
        part[:] = columns.transpose(0, 1, 3, 2)


def _read_labels(array: matlab.Array, labels: Labels) -> None:
    if array.shape not in ((len(labels), 1), (1, len(labels))):
        raise matlab.BrokenError(f"expected y of {len(labels):,} labels; got {array.shape}")
    values = np.frombuffer(array.read(len(labels) * array.kind.itemsize), array.kind)
    wrong = ~((values >= 1) & (values <= 10) & (np.floor(values) == values))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise matlab.BrokenError(
            f"expected labels from 1 to 10, which is the digit 0; that of image {at} is {values[at]}"
        )
    labels[:] = values % 10


_TRAIN = File("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373", examples=73_257)
_TEST = File("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3", examples=26_032)
_EXTRA = File("extra_32x32.mat", 1_329_278_602, "a93ce644f1a588dc4d68dda5feec44a7", examples=531_131)
_OWNER = "http://ufldl.stanford.edu/housenumbers/"

SVHN = SvhnSource(
    name="svhn",
    title="SVHN, cropped digits",
    training=(_TRAIN,),
    testing=(_TEST,),
    mirrors=(_OWNER,),
    offered=f"its owner offers it at {_OWNER}",
)
SVHN_EXTRA = dataclasses.replace(
    SVHN,
    name="svhn-extra",
    title="SVHN, cropped digits, with the extra images",
    folder="svhn",
    training=(_TRAIN, _EXTRA),
)
# Not the published files, though in their format.
SVHN_SUBSET = SvhnSource(
    name="svhn-subset",
    title="SVHN cropped digits regenerated from the full-number images, subset",
    training=(File(_TRAIN.name, examples=20_000),),
    testing=(File(_TEST.name, examples=8_000),),
    offered="the first 20,000 and 8,000 images, made from the full-number images; whole SVHN is the data set svhn",
)
