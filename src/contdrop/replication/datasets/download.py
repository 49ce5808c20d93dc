"""Downloads over HTTP, verified, and safe reading of compressed files and archives."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import pathlib
import tarfile
import urllib.parse
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from ..._files import remove_old_temporaries, replacing
from ..._text import printable
from ...errors import UserError
from .dataset import DownloadProgress, MissingError

T = TypeVar("T")

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


def first_intact(paths: Sequence[pathlib.Path], read: Callable[[pathlib.Path], T], missing: str) -> tuple[T, str]:
    """Read the first intact of several copies of a file and return its name, too; else raise the first one's error."""
    problems: list[UserError] = []
    for path in paths:
        try:
            return read(path), path.name
        except UserError as problem:
            problems.append(problem)
    raise problems[0] if problems else MissingError(missing)


def members(archive: pathlib.Path, wanted: Collection[str], title: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each wanted file, in the order of the archive, one in memory at a time.

    Args:
        archive: The file.
        wanted: Paths in the archive.
        title: What to call it in an error.

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


TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 14


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on a mirror."""

    name: str
    bytes: int
    md5: str


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
    import pooch

    path = folder / remote.name
    remove_old_temporaries(path)
    with contextlib.ExitStack() as connections, writing(path), replacing(path, durable=True) as temporary:
        bar = _Bar(remote, temporary, progress)

        def close_at_the_end(response: Any, **_: object) -> None:
            connections.callback(response.close)  # pooch leaves it open if the download fails

        download = pooch.HTTPDownloader(
            progressbar=bar,
            chunk_size=_CHUNK,
            timeout=TIMEOUT,
            hooks={"response": close_at_the_end},
            headers={"Accept-Encoding": "identity"},  # lest requests unpack what is to stay packed
        )
        with _explained(remote, bar):
            download(url, str(temporary), None)
        md5 = md5_of(temporary)
        if md5 != remote.md5:
            raise UnavailableError(f"has another {remote.name}: expected md5 {remote.md5}, got {md5}")


def md5_of(path: pathlib.Path) -> str:
    import pooch

    return str(pooch.file_hash(str(path), alg="md5"))


class _Bar:
    """Progress bar for pooch; it also ends a download that cannot be the file."""

    total = 0  # set by pooch, to what the server says; 0 if it does not

    def __init__(self, remote: Remote, file: pathlib.Path, progress: DownloadProgress) -> None:
        self._remote, self._file, self._progress = remote, file, progress
        self.done = 0

    def update(self, _: int) -> None:
        """Report progress after every piece; the argument is the size of a full piece, not of this one."""
        remote = self._remote
        if self.total not in (0, remote.bytes):
            raise UnavailableError(f"has another {remote.name}: expected {remote.bytes:,} bytes, got {self.total:,}")
        self.done = self._file.stat().st_size
        if self.done > remote.bytes:
            raise UnavailableError(f"sends more than the {remote.bytes:,} bytes of {remote.name}")
        self._progress.received(remote.name, self.done, remote.bytes)

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _explained(remote: Remote, bar: _Bar) -> Iterator[None]:
    """Convert exceptions of requests into reasons to show."""
    import requests

    try:
        yield
    except requests.HTTPError as error:
        answer = error.response
        assert answer is not None  # a server's, by the meaning of this exception
        kind = UnavailableError if answer.status_code in (404, 410) else _MirrorError
        raise kind(f"answers {answer.status_code} {answer.reason} for {remote.name}") from error
    except requests.RequestException as error:
        if bar.total or bar.done:
            raise UnavailableError(f"broke off in the middle of {remote.name} ({_reason(error)})") from error
        raise _MirrorError(f"cannot be reached ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    """Return the system's own message, which requests wraps in several layers."""
    reason, inner = type(error).__name__, error.__cause__ or error.__context__
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return f"no answer within {TIMEOUT:g} seconds"
    if inner is not None:
        return _reason(inner)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or reason
