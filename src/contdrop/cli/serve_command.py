"""``contdrop serve``: a study as it runs, as a page on this machine."""

from __future__ import annotations

import errno
import pathlib
import signal
import tempfile
import threading
from typing import Annotated

import typer

from .._text import printable
from ..errors import UserError
from . import options
from .report_command import Margin, check_margin, complain

PORT = 8000
_LOOK_AGAIN = 10.0  # seconds: a process that was killed writes nothing, but its lock is gone

HELP = """Show a study in a browser while it runs.

Progress, training curves, and the verdict so far with its interval as it narrows; when all runs are done, the report.
Only this machine can see it: it is served on 127.0.0.1. Nothing is written but temporary files; Ctrl-C ends it.

\b
Examples:
  contdrop serve
  contdrop serve --store table1.db --port 8080
"""


def serve(
    store: options.Store = options.STORE,
    port: Annotated[int, typer.Option(metavar="PORT", help="0 takes any that is free.")] = PORT,
    margin: Margin = None,
    data_dir: options.DataDir = None,
) -> int:
    """The command; ``HELP`` says what it does."""
    from ..lab.report import page  # matplotlib takes a moment, which other commands need not wait
    from ..lab.report.live.live_page import LivePage
    from ..lab.report.live.server import ReportServer, rebuild_on_change

    check_margin(margin)
    if not 0 <= port < 2**16:
        raise UserError(f"--port: expected a number from 0 to 65535; got {port}")
    with tempfile.TemporaryDirectory(prefix="contdrop-report-", ignore_cleanup_errors=True) as directory:
        out = pathlib.Path(directory)
        try:
            server = ReportServer(port, lambda: page.write(store, out, data_dir=data_dir, margin=margin))
        except OSError as error:
            raise UserError(_explain(error, port)) from error
        live, thread = LivePage(store, margin), threading.Thread(target=server.serve_forever, daemon=True)

        def rebuild() -> None:
            live.look()
            server.publish(live)
            if not thread.is_alive():
                thread.start()
                print(printable(f"The page on {store} is at {server.address} (Ctrl-C ends this)"), flush=True)

        try:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the directory is removed then, too
            rebuild_on_change(store, rebuild, complain, at_least=_LOOK_AGAIN)
        except KeyboardInterrupt:
            print("\nStopped.", flush=True)
        finally:
            if thread.is_alive():
                server.shutdown()
            server.server_close()
    return 0


def _explain(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port: {port} is taken by another program; choose another, or --port 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"--port: this user may not use {port}; choose one above 1023"
    return f"--port: cannot use {port}: {error.strerror}"
