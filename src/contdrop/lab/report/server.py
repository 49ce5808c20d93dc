"""The report on loopback: the page and its files, as they were last made, and nothing else."""

from __future__ import annotations

import http.server
import os
import pathlib
import urllib.parse
from collections.abc import Iterable, Mapping

from ... import __version__
from .page import Written

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")


class ReportServer(http.server.ThreadingHTTPServer):
    """Serves the files of the report that was last published, by their addresses; no other path leads anywhere."""

    daemon_threads = True
    # On Windows this would let two programs share a port; elsewhere it only skips the wait after the last one ended.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int) -> None:
        self.content: Mapping[str, pathlib.Path] = {}
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a browser that goes away, or a request that makes no sense, is no news."""

    def publish(self, written: Written) -> None:
        """From now on serves these files."""
        self.content = {"/": written.index, **dict(_addresses(written))}


def _addresses(written: Written) -> Iterable[tuple[str, pathlib.Path]]:
    for path in (*written.tables, *written.figures):
        yield f"/{path.parent.name}/{path.name}", path


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ReportServer
    server_version = f"contdrop/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if not self._asked_by_name():
            # A page elsewhere may point its own name at this machine (DNS rebinding); it is not to read the report.
            self._send(403, "text/plain; charset=utf-8", b"Forbidden: ask for 127.0.0.1 or localhost.\n", with_body)
            return
        try:
            path = self.server.content.get(urllib.parse.urlsplit(self.path).path)
            body = path.read_bytes() if path else None
        except (OSError, ValueError):  # gone; or an address that is none
            path = body = None
        if path is None or body is None:
            self._send(404, "text/plain; charset=utf-8", b"Not found.\n", with_body)
            return
        self._send(200, _TYPES[path.suffix], body, with_body)

    def _asked_by_name(self) -> bool:
        port = self.server.server_address[1]
        names = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == 80 else set())
        asked = self.headers.get_all("Host", [])
        return len(asked) == 1 and asked[0].lower() in names

    def _send(self, status: int, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'" + (_SANDBOX if "html" not in kind else ""))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for what the user should know."""


# An SVG opened by itself is a document, too.
_SANDBOX = "; default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".tex": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
}
