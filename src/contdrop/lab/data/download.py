"""Getting files over HTTP: checked, resumable, from the first mirror that has them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.client
import os
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import IO

from ...errors import UserError
from .source import Progress

if sys.platform != "win32":
    import fcntl

PART = ".part"
TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 10  # per file and mirror, each of which must bring it on
_CHUNK = 1 << 16


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
    mirrors: Sequence[str], wanted: Sequence[Remote], folder: pathlib.Path, progress: Progress
) -> list[str]:
    """Gets each file from the first mirror that has it.

    A file that is not yet complete has ``PART`` at the end of its name, and is gone on with the next time.

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


def make_directory(folder: pathlib.Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns what may go wrong when files are written into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; make room or choose another place with --data-dir"
        ) from error


def _get(url: str, remote: Remote, folder: pathlib.Path, progress: Progress) -> None:
    part = folder / f"{remote.name}{PART}"
    with _opened(part) as file:
        resumed = _size(file) > 0
        md5 = _receive(url, remote, file, progress)
        if md5 != remote.md5 and resumed:
            # What was here from an earlier time may be to blame.
            _cut(file, 0)
            md5 = _receive(url, remote, file, progress)
        if md5 != remote.md5:
            _cut(file, 0)
            raise UnavailableError(f"has another {remote.name}: expected md5 {remote.md5}, got {md5}")
        with writing(part):
            os.fsync(file.fileno())
    with writing(folder / remote.name):
        part.replace(folder / remote.name)


@contextlib.contextmanager
def _opened(part: pathlib.Path) -> Iterator[IO[bytes]]:
    """The unfinished file, for this process alone. If nothing has come, nothing is left behind."""
    with writing(part):
        # Unbuffered, so that a full disk shows where it is written to, and what has come is there after an interrupt.
        file = part.open("a+b", buffering=0)
    with file:
        _lock(file)
        try:
            yield file
        finally:
            if _size(file) == 0:
                file.close()
                part.unlink(missing_ok=True)


def _lock(file: IO[bytes]) -> None:
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{file.name} is being written by another process; wait until it has ended") from error
        except OSError:
            pass  # not every network file system knows locks; the checksum still guards the result


def _size(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _receive(url: str, remote: Remote, file: IO[bytes], progress: Progress) -> str:
    """Goes on until the file has its size, over as many connections as that takes, and returns its MD5."""
    if _size(file) > remote.bytes:
        _cut(file, 0)
    ending = ""
    for _ in range(_ATTEMPTS):
        before = _size(file)
        if before == remote.bytes:
            break
        ending = _transfer(url, remote, file, progress)
        if _size(file) <= before:
            raise UnavailableError(ending)
    if _size(file) != remote.bytes:
        raise UnavailableError(f"{ending}, the last of {_ATTEMPTS} times")
    file.seek(0)
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _transfer(url: str, remote: Remote, file: IO[bytes], progress: Progress) -> str:
    """Adds to the file what one connection brings, and says how that ended."""
    here = _size(file)
    request = urllib.request.Request(url, headers={"Range": f"bytes={here}-"} if here else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        absent = error.code in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.GONE)
        kind = UnavailableError if absent else _MirrorError
        raise kind(f"answers {error.code} {error.reason} for {remote.name}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _MirrorError(f"cannot be reached ({_reason(error)})") from error
    with response:
        done = _start_of(response, here, remote)
        _cut(file, done)
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                return f"broke off after {done:,} of {remote.bytes:,} bytes of {remote.name} ({_reason(error)})"
            if not chunk:
                return f"broke off after {done:,} of {remote.bytes:,} bytes of {remote.name}"
            done += len(chunk)
            if done > remote.bytes:
                _cut(file, 0)
                raise UnavailableError(f"sends more than the {remote.bytes:,} bytes of {remote.name}")
            with writing(pathlib.Path(file.name)):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) :]
            progress.received(remote.name, done, remote.bytes)


def _start_of(response: http.client.HTTPResponse, here: int, remote: Remote) -> int:
    """From which byte on the answer is. One that cannot be the file is refused before it spoils what is here."""
    start = here if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
    if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise UnavailableError(f"answers with another part of {remote.name} than was asked for")
    if response.headers.get_content_type() == "text/html":
        raise _MirrorError(f"answers with a web page for {remote.name}")
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and start + int(length) != remote.bytes:
        raise UnavailableError(
            f"has another {remote.name}: expected {remote.bytes:,} bytes, got {start + int(length):,}"
        )
    return start


def _cut(file: IO[bytes], size: int) -> None:
    if _size(file) != size:
        with writing(pathlib.Path(file.name)):
            file.truncate(size)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} seconds"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
