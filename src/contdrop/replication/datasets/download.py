"""Getting files over HTTP: whole and checked, from the first mirror that has them. pooch does the work."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

from ..._files import remove_old_temporaries, replacing
from ...errors import UserError
from .dataset_source import Progress

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
    mirrors: Sequence[str], wanted: Sequence[Remote], folder: pathlib.Path, progress: Progress
) -> list[str]:
    """Gets each file from the first mirror that has it. A file is complete or not there.

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
    """Turns what may go wrong when files are written into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; make room or choose another place with --data-dir"
        ) from error


def _get(url: str, remote: Remote, folder: pathlib.Path, progress: Progress) -> None:
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
    """What pooch calls a progress bar. It also ends a download that cannot be the file."""

    total = 0  # set by pooch, to what the server says; 0 if it does not

    def __init__(self, remote: Remote, file: pathlib.Path, progress: Progress) -> None:
        self._remote, self._file, self._progress = remote, file, progress
        self.done = 0

    def update(self, _: int) -> None:
        """Called after every piece is written, with the size of a full one: a server may send smaller ones."""
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
    """Turns what requests raises into a reason to show."""
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
    """What the system said, which requests wraps in several layers of its own."""
    reason, inner = type(error).__name__, error.__cause__ or error.__context__
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return f"no answer within {TIMEOUT:g} seconds"
    if inner is not None:
        return _reason(inner)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or reason
