"""A real browser for tests: Debian's Chromium, without a window, spoken to over a pipe in its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "needs a browser: apt-get install chromium"

_OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --no-default-browser-check "
    "--disable-background-networking --disable-component-update --disable-sync --disable-extensions "
    "--disable-dev-shm-usage --force-device-scale-factor=1 --hide-scrollbars --remote-debugging-pipe"
)
_PATIENCE = 60.0

# The browser reads from descriptor 3 and writes to 4. Out of the way first: the pipes may have just these numbers.
_LAUNCHER = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A browser with a new, empty profile; a context manager."""

    def __init__(self, profile: pathlib.Path) -> None:
        from_browser, browser_writes = os.pipe()
        browser_reads, to_browser = os.pipe()
        launcher = [sys.executable, "-ISc", _LAUNCHER, str(browser_reads), str(browser_writes)]
        self._process = subprocess.Popen(
            [*launcher, str(EXECUTABLE), *_OPTIONS.split(), f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(browser_reads, browser_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that its helpers can be ended with it
        )
        os.close(browser_reads)
        os.close(browser_writes)
        self._in, self._out = from_browser, to_browser
        self._buffer = b""
        self._number = 0
        self.events: list[dict] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._read(_PATIENCE)) is not None:
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)
        raise RuntimeError(f"{method}: the browser does not answer")

    def _read(self, seconds: float) -> dict | None:
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._in, 1 << 20)
            if not part:
                return None
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def wait_for(self, method: str, session: str) -> dict:
        """The next event of a kind, or one that has come already."""
        until = time.monotonic() + _PATIENCE
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event["params"]
            event = self._read(until - time.monotonic())
            if event is None:
                raise RuntimeError(f"{method} did not happen")
            self.events.append(event)

    def page(self, width: int = 1400, height: int = 900, *, dark: bool = False) -> Page:
        return Page(self, width, height, dark)


class Page:
    """A tab. ``problems`` are all errors and warnings of its console, ``requests`` all addresses it asked for."""

    def __init__(self, browser: Browser, width: int, height: int, dark: bool) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.resize(width, height)

    def call(self, method: str, **parameters: object) -> dict:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self._browser.wait_for("Page.loadEventFired", self._session)

    def run(self, script: str) -> object:
        """The value of an expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
            text = {}

    def click(self, selector: str) -> None:
        """A real click in the middle of an element, so that whatever covers it gets it instead."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect(); "
            "return [r.left + r.width / 2, r.top + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: pathlib.Path, *, full: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def _events(self, method: str) -> list[dict]:
        self.run("0")  # whatever happened before has been told by now
        mine = (event for event in self._browser.events if event.get("sessionId") == self._session)
        return [event["params"] for event in mine if event["method"] == method]

    @property
    def problems(self) -> list[str]:
        logged = [entry["entry"] for entry in self._events("Log.entryAdded")]
        found = [f"{entry['source']}: {entry['text']}" for entry in logged if entry["level"] in ("error", "warning")]
        said = self._events("Runtime.consoleAPICalled")
        found += [str(call["args"]) for call in said if call["type"] in ("error", "warning", "assert")]
        return found + [str(thrown["exceptionDetails"]) for thrown in self._events("Runtime.exceptionThrown")]

    @property
    def requests(self) -> list[str]:
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
