"""The commands ``report`` and ``serve``."""

from __future__ import annotations

import dataclasses
import errno
import math
import pathlib
import signal
import tempfile
import threading
from typing import Annotated, Any

from .._text import plural, printable
from ..errors import UserError
from . import options, terminal
from .options import option

OUT = pathlib.Path("report")
REFRESH_SECONDS = 5

Margin = Annotated[
    float | None,
    option(
        "NUMBER",
        "The smallest difference that matters to you, in the metric's unit (for errors, percentage points); a "
        "smaller one, if proven, counts as none. The page says that it was chosen after the fact.  [default: what the "
        "experiment has fixed, or a tenth of the distance of the reference to the best value, 0 for an error]",
    ),
]


def report(
    store: options.Store = options.STORE,
    out: Annotated[pathlib.Path, option("DIR", "Where to put the page.")] = OUT,
    watch: Annotated[
        bool, option(None, "Write it again whenever the store changes; Ctrl-C ends this.", "--watch")
    ] = False,
    margin: Margin = None,
    pdf: Annotated[
        bool | None, option(None, "Write figures as PDF too.  [default: of fewer than five experiments]")
    ] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> int:
    """Write a page that says which method is better, by how much, and whether that is more than chance.

    DIR/index.html is complete in itself: it can be sent, opened from disk and printed. Beside it the tables are
    written as Markdown, LaTeX and CSV, and the figures as SVG, PNG and, of fewer than five experiments, PDF. Runs may
    still be going on: the page says what is missing. The exit code is 1 if jobs in the store have failed.

    Examples:
      contdrop report
      contdrop report --store table1.db --out table1
      contdrop report --watch
      contdrop report --margin 0.1 --json
      contdrop report --store all.db --pdf
    """
    from ..lab.report import live_server, page  # matplotlib takes a moment, which other commands need not wait

    _check_margin(margin)
    if watch and as_json:
        raise UserError("--json: prints one report, and --watch makes many; leave one of them out")
    if watch:
        shown = False

        def rebuild() -> None:
            nonlocal shown
            made = page.write(store, out, data_dir=data_dir, margin=margin, refresh=REFRESH_SECONDS)
            if not shown:
                _show(made)
                print("Watching; Ctrl-C ends this.", flush=True)
            shown = True

        try:
            live_server.rebuild_on_change(store, rebuild, _complain)
        except KeyboardInterrupt:
            print("\nStopping.", flush=True)
    # After watching once more, so that it no longer reloads.
    written = page.write(store, out, data_dir=data_dir, margin=margin, pdf=pdf)
    if as_json:
        verdicts = [dataclasses.asdict(verdict) for verdict in written.verdicts]
        files = {"tables": [*map(str, written.tables)], "figures": [*map(str, written.figures)]}
        terminal.print_json({"index": str(written.index), **files, "failed": written.failed, "verdicts": verdicts})
    else:
        _show(written)
    return 1 if written.failed else 0


def _check_margin(margin: float | None) -> None:
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin: expected a number above 0, such as 0.1; got {margin:g}")


def _complain(message: str) -> None:
    terminal.say(f"contdrop: {message}; the page stays as it was")


def _show(written: Any) -> None:
    screen = terminal.screen()
    for verdict in written.verdicts:
        screen.print(f"{verdict.experiment} ({verdict.preset}): {verdict.headline}")
    if not written.verdicts:
        screen.print("The store is empty: there is nothing to compare yet.")
    if written.failed:
        have = "has" if written.failed == 1 else "have"
        screen.print(f"{plural(written.failed, 'job')} {have} failed; the page says why.", style="red")
    screen.print(f"The page is {written.index}", style="dim", soft_wrap=True)


PORT = 8000
_LOOK_AGAIN = 10.0  # seconds: a process that was killed writes nothing, but its lock is gone


def serve(
    store: options.Store = options.STORE,
    port: Annotated[int, option("PORT", "0 takes any that is free.")] = PORT,
    margin: Margin = None,
    data_dir: options.DataDir = None,
) -> int:
    """Show a study in a browser while it runs.

    Progress, training curves, and the verdict so far with its interval as it narrows; when all runs are done, the
    report. Only this machine can see it: it is served on 127.0.0.1. Nothing is written but temporary files; Ctrl-C
    ends it.

    Examples:
      contdrop serve
      contdrop serve --store table1.db --port 8080
    """
    from ..lab.report import page  # matplotlib takes a moment, which other commands need not wait
    from ..lab.report.live_page import LivePage
    from ..lab.report.live_server import ReportServer, rebuild_on_change

    _check_margin(margin)
    if not 0 <= port < 2**16:
        raise UserError(f"--port: expected a number from 0 to 65535; got {port}")
    with tempfile.TemporaryDirectory(prefix="contdrop-report-", ignore_cleanup_errors=True) as directory:
        out = pathlib.Path(directory)
        try:
            server = ReportServer(port, lambda: page.write(store, out, data_dir=data_dir, margin=margin))
        except OSError as error:
            taken = f"{port} is taken by another program; choose another, or --port 0 for any that is free"
            denied = f"this user may not use {port}; choose one above 1023"
            known = {errno.EADDRINUSE: taken, errno.EACCES: denied}
            raise UserError(f"--port: {known.get(error.errno or 0, f'cannot use {port}: {error.strerror}')}") from error
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
            rebuild_on_change(store, rebuild, _complain, at_least=_LOOK_AGAIN)
        except KeyboardInterrupt:
            print("\nStopped.", flush=True)
        finally:
            if thread.is_alive():
                server.shutdown()
            server.server_close()
    return 0
