"""HTTP server on the loopback interface for the live page and the report.

``/`` is the live page while jobs are planned, and leads to ``/report/`` when all are done; ``/live?V`` is what has come
since version V of it; ``/report/`` is made when it is requested and the store has changed since.
"""

from __future__ import annotations

import contextlib
import http.server
import math
import os
import pathlib
import sqlite3
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

from ... import __version__
from ..._text import printable
from ...errors import UserError
from .live_page import LivePage
from .page import ReportFiles

HOST = "127.0.0.1"
POLL_SECONDS = 2.0
_NAMES = ("127.0.0.1", "localhost")
_REPORT = "/report/"
_TEXT, _HTML, _PDF = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/pdf"
_TYPES = {
    ".html": _HTML,
    ".md": _TEXT,
    ".tex": _TEXT,
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": _PDF,
}
# An SVG opened by itself is a document, too. A PDF runs nothing, and in a sandbox Safari shows an empty page.
_SANDBOX = "; default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Answer(NamedTuple):
    status: int
    kind: str = _TEXT
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


_NOT_FOUND = _Answer(404, body=b"Not found.\n")


class _Shown(NamedTuple):
    """Content of the live page at one moment."""

    page: bytes
    fragment: bytes
    version: str
    is_done: bool


class ReportServer(http.server.ThreadingHTTPServer):
    """Server of the last published page and report; no other path exists.

    Args:
        port: 0 for any that is free.
        make_report: Writes the report on the store as it is; called by one thread at a time.
    """

    daemon_threads = True
    # On Windows this would let two programs share a port; elsewhere it only skips the wait after the last one ended.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, make_report: Callable[[], ReportFiles]) -> None:
        self._make_report, self._making = make_report, threading.Lock()
        self._files: dict[str, pathlib.Path] = {}
        self._of: str | None = None  # the version that they are of
        self._shown: _Shown | None = None
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore browsers that disconnect and malformed requests."""

    def publish(self, live: LivePage) -> None:
        """Show this from now on."""
        self._shown = _Shown(live.page().encode(), live.fragment.encode(), live.version, live.is_done)

    def answer(self, path: str, query: str) -> _Answer:
        """Return the answer to a request."""
        shown = self._shown
        if shown is None:
            return _NOT_FOUND
        if path == "/":
            done = _Answer(303, headers=(("Location", _REPORT),))
            return done if shown.is_done else _Answer(200, _HTML, shown.page)
        if path == "/live":
            fresh = _Answer(200, _HTML, shown.fragment, (("X-Version", shown.version),))
            return _Answer(204) if query == shown.version else fresh
        if path == _REPORT and (problem := self._update_report(shown.version)):
            return _Answer(500, body=f"The report cannot be made: {problem}\n".encode())
        try:
            file = self._files[path]
            return _Answer(200, _TYPES[file.suffix], file.read_bytes())
        except (KeyError, OSError):
            return _NOT_FOUND

    def _update_report(self, version: str) -> str:
        """Write the report unless it is of this version; return the reason if that fails."""
        with self._making:
            try:
                if self._of != version:
                    written = self._make_report()
                    paths = (*written.tables, *written.figures)
                    files = {f"{_REPORT}{path.parent.name}/{path.name}": path for path in paths}
                    self._files, self._of = {_REPORT: written.index, **files}, version
            except UserError as error:
                return str(error)
            except Exception as error:  # a mistake of ours, which nobody would hear of otherwise
                problem = printable(f"{type(error).__name__}: {error}")
                print(f"contdrop: the report cannot be made: {problem}", file=sys.stderr, flush=True)
                return problem
        return ""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ReportServer
    server_version = f"contdrop/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        answer = self._answer()
        self._send_head(answer)
        self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        self._send_head(self._answer())

    def _answer(self) -> _Answer:
        port, asked = self.server.server_address[1], self.headers.get_all("Host", [])
        names = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == 80 else set())
        if len(asked) != 1 or asked[0].lower() not in names:
            # A page elsewhere may point its own name at this machine (DNS rebinding); it is not to read the report.
            return _Answer(403, body=b"Forbidden: ask for 127.0.0.1 or localhost.\n")
        try:
            address = urllib.parse.urlsplit(self.path)
        except ValueError:  # an address that is none
            return _NOT_FOUND
        return self.server.answer(address.path, address.query)

    def _send_head(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        if answer.status != 204:
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
        sandbox = "" if answer.kind in (_HTML, _PDF) else _SANDBOX
        policy = ("Content-Security-Policy", f"frame-ancestors 'none'{sandbox}")
        for name, value in (*_HEADERS.items(), policy, *answer.headers):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; the terminal is for messages to the user."""


class StoreWatcher:
    """Detector of changes that other processes make to a store."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._seen: tuple[int, int] | None = None

    def has_changed(self) -> bool:
        """Return True at the first call, and if something was committed or the file replaced since the last one."""
        state = self._state()
        changed, self._seen = state is None or state != self._seen, state
        return changed

    def _state(self) -> tuple[int, int] | None:
        try:
            file = self._path.stat().st_ino
        except OSError:
            return None
        try:
            if self._seen is None or file != self._seen[0]:
                self.close()
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            # SQLite's own count of what other connections have committed.
            return file, int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:  # it cannot be opened here, as in a directory that may not be written to
            return file, self._latest()

    def _latest(self) -> int:
        """Return when the file or its log was last written to."""
        found = 0
        for path in (self._path, self._path.with_name(f"{self._path.name}-wal")):
            with contextlib.suppress(OSError):
                found = max(found, path.stat().st_mtime_ns)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def rebuild_on_change(
    path: pathlib.Path,
    rebuild: Callable[[], None],
    complain: Callable[[str], None],
    *,
    seconds: float | None = None,
    at_least: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Call ``rebuild`` at once and whenever a store has changed, until interrupted.

    An error in the store is raised the first time; later it is reported once, since it may be fixed meanwhile.

    Args:
        path: The store.
        rebuild: Makes the report.
        complain: Called with the reason if that failed; the last report stays.
        seconds: Polling interval; POLL_SECONDS if None.
        at_least: Seconds after which ``rebuild`` is called even without a change.
        stop: Called before every poll; True ends the loop.
    """
    complaint, last = "", time.monotonic()
    with contextlib.closing(StoreWatcher(path)) as changes:
        changes.has_changed()  # before the first report, lest what is written meanwhile be missed
        rebuild()
        while not stop():
            time.sleep(POLL_SECONDS if seconds is None else seconds)
            if changes.has_changed() or complaint or time.monotonic() - last >= at_least:
                last = time.monotonic()
                try:
                    rebuild()
                    complaint = ""
                except UserError as error:
                    if str(error) != complaint:
                        complain(str(error))
                    complaint = str(error)
