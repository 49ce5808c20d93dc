"""Downloads over HTTP, verified, and safe reading of compressed files and archives."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import pathlib
import tarfile
import urllib.parse
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from ..._files import remove_old_temporaries, replacing
from ..._text import printable
from ...errors import UserError

LIMIT = 100_000_000  # bytes; twice the largest of these files, so that no compressed bomb fills the memory


def read_content(path: pathlib.Path, limit: int | None = None) -> bytes:
    """Return the content of a file, unpacked if it is gzipped; refuse more than ``limit`` bytes.

    Its first bytes tell, not its name: browsers and unpackers are known to change the one and not the other.
    """
    limit = limit or LIMIT
    try:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: a symbolic link that leads nowhere, to {os.readlink(path)}")
        if not path.is_file():
            raise UserError(f"{path}: expected a file; it is {'a directory' if path.is_dir() else 'something else'}")
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            # As many bytes as are asked for are allocated at once, so no more than there are.
            size = min(limit, os.fstat(file.fileno()).st_size)
            content = gzip.GzipFile(fileobj=file).read(limit + 1) if gzipped else file.read(size + 1)
    except EOFError as error:
        raise UserError(f"{path}: truncated, it ends in the middle of its gzip data") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip data ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise UserError(f"{path}: expected at most {limit:,} bytes of content; it holds more")
    return content


def members(archive: pathlib.Path, wanted: Collection[str], title: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each wanted file, in the order of the archive, one in memory at a time.

    Errors call the archive by its title.

    Raises:
        UnavailableError: It cannot be read, or lacks a file, or one is larger than any data file is.
    """
    left = set(wanted)
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.name in left and entry.isreg() else None
                if file is None:
                    continue
                content = file.read(LIMIT + 1)
                if len(content) <= LIMIT:
                    left.remove(entry.name)
                    yield entry.name, content
    # tarfile raises anything, up to ValueError and IndexError, about headers that make no sense.
    except Exception as error:
        said = printable(str(error)[:200]) or type(error).__name__
        raise UnavailableError(f"{title} is no archive that can be read ({said})") from error
    if left:
        raise UnavailableError(f"{title} has no {min(left)} of at most {LIMIT:,} bytes")


class DownloadProgress(Protocol):
    """Told how far getting a data set has come."""

    def note(self, text: str) -> None:
        """Report an event."""

    def received(self, file: str, done: int, size: int) -> None:
        """Report the number of bytes of a file received so far."""


TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 14


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on a mirror."""

    name: str
    bytes: int = 0
    md5: str = ""


class UnavailableError(Exception):
    """This source does not have it, or cannot be reached. Its text is a reason to show."""


class _MirrorError(UnavailableError):
    """The mirror as a whole is of no use: no need to ask it for another file."""


def from_mirrors(
    mirrors: Sequence[str], wanted: Sequence[Remote], folder: pathlib.Path, progress: DownloadProgress
) -> list[str]:
    """Get each file from the first mirror that has it. A file is complete or not there.

    Returns:
        The reasons of failures, mirrors that went before a success among them.

    Raises:
        UserError: A file cannot be written.
    """
    left, failures = list(wanted), []
    for mirror in mirrors:
        host = urllib.parse.urlsplit(mirror).netloc
        for remote in tuple(left):
            try:
                _get(mirror + remote.name, remote, folder, progress)
            except UnavailableError as failure:
                failures.append(f"{host} {failure}")
                progress.note(failures[-1])
                if isinstance(failure, _MirrorError):
                    break
            else:
                left.remove(remote)
                progress.note(f"{remote.name}: complete, from {host}")
    return failures


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Convert errors in writing files into one-line errors."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; make room or choose another place with --data-dir"
        ) from error


def _get(url: str, remote: Remote, folder: pathlib.Path, progress: DownloadProgress) -> None:
    path = folder / remote.name
    remove_old_temporaries(path)
    with writing(path), replacing(path, durable=True) as temporary:
        with _answer(url, remote) as response, temporary.open("wb") as file:
            size = int(response.headers.get("Content-Length", remote.bytes))
            if size != remote.bytes:
                raise UnavailableError(f"has another {remote.name}: expected {remote.bytes:,} bytes, got {size:,}")
            for piece in response.iter_content(_CHUNK):
                file.write(piece)
                if file.tell() > remote.bytes:
                    raise UnavailableError(f"sends more than the {remote.bytes:,} bytes of {remote.name}")
                progress.received(remote.name, file.tell(), remote.bytes)
        md5 = md5_of(temporary)
        if md5 != remote.md5:
            raise UnavailableError(f"has another {remote.name}: expected md5 {remote.md5}, got {md5}")


def md5_of(path: pathlib.Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def _answer(url: str, remote: Remote) -> Iterator[Any]:
    """Yield the response; convert refusals and exceptions of requests into reasons to show."""
    import requests

    response = None
    try:
        # Encoded as it is, lest requests unpack what is to stay packed.
        with requests.get(url, stream=True, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}) as response:
            if not response.ok:
                kind = UnavailableError if response.status_code in (404, 410) else _MirrorError
                raise kind(f"answers {response.status_code} {response.reason} for {remote.name}")
            yield response
    except requests.RequestException as error:
        if response is None:
            raise _MirrorError(f"cannot be reached ({_reason(error)})") from error
        raise UnavailableError(f"broke off in the middle of {remote.name} ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    """Return the system's own message, which requests wraps in several layers."""
    reason, inner = type(error).__name__, error.__cause__ or error.__context__
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return f"no answer within {TIMEOUT:g} seconds"
    if inner is not None:
        return _reason(inner)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or reason
