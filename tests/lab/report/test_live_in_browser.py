"""The live page in a real browser, while a study really runs in another process."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

import browser
from contdrop.errors import UserError
from contdrop.lab.report import live_server, page, style
from contdrop.lab.report.live_page import LivePage
from contdrop.lab.report.live_server import ReportServer
from stores import make_store

pytestmark = pytest.mark.skipif(browser.EXECUTABLE is None, reason=browser.MISSING)

# Each job takes two seconds, so that there is something to see; while there is a file "hold", it waits.
STUDY = """
import pathlib, sys, time
import torch
from torch import nn
from contdrop import lab

torch.set_num_threads(1)
hold = pathlib.Path(sys.argv[1]).with_name("hold")
x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
data = lab.Data(train=(x, (x[:, 0] * x[:, 1] > 0).long()), test=0.25, validation=0.2)

class Slow(nn.Linear):
    def forward(self, input):
        time.sleep(0.02)
        while hold.exists():
            time.sleep(0.1)
        return super().forward(input)

def model():
    return nn.Sequential(Slow(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

study = lab.Study("watched", lambda: data, model, epochs=20, runs=4, batch_size=100, methods=["bernoulli", "gaussian"],
    reference="gaussian")
lab.compare(study, store=sys.argv[1], workers=0, device="cpu", progress=False)
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def running(tmp_path_factory, chromium):
    """The page on a study, its process, and the file that makes it wait; the browser comes first, to miss nothing."""
    directory = tmp_path_factory.mktemp("live")
    store, stop = directory / "runs.db", threading.Event()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", STUDY, str(store)], env=environment, stderr=subprocess.PIPE)
    live = LivePage(store)
    while "polyline" not in live.fragment:  # until there is a pair, or a curve
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.1)
        with contextlib.suppress(UserError):  # there is no store yet
            live.look()
    with ReportServer(0, lambda: page.write(store, directory / "out")) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

        def rebuild():
            live.look()
            server.publish(live)

        rebuild()
        thread = threading.Thread(
            target=live_server.rebuild_on_change,
            args=(store, rebuild, print),
            kwargs={"seconds": 0.1, "stop": stop.is_set},
        )
        thread.start()
        try:
            yield server.address, process, directory / "hold"
        finally:
            stop.set()
            thread.join()
            server.shutdown()
            process.kill()
            process.communicate()


def until(tab, condition, seconds=60):
    end = time.monotonic() + seconds
    while not tab.run(condition):
        assert time.monotonic() < end, condition + "\n" + tab.run("document.body.innerText")
        time.sleep(0.2)


FINISHED = "Number(document.querySelector('.tally b').textContent)"


def test_watching_a_run(running, chromium):
    address, process, hold = running
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.figures, "figures", lambda *_: [])
        tab = chromium.page(1280, 700)
        tab.open(address)
        until(tab, "document.querySelector('.chart') !== null")
        assert "not final" in tab.run("document.body.innerText")
        assert "Interim results" in tab.run("document.body.innerText")
        until(tab, "document.querySelectorAll('.plot:not(.tall) polyline').length == 2")  # loss and error, of one job
        before = tab.run(FINISHED)
        tab.run("window.mark = 1; scrollTo({top: 300, behavior: 'instant'})")
        until(tab, f"{FINISHED} > {before}")
        until(tab, "document.querySelector('.tall .edge')?.points.length >= 2")  # there is an interval
        hold.touch()
        for width, dark in ((1280, True), (380, False), (380, True)):
            other = chromium.page(width, 900, dark=dark)
            other.open(address)
            assert other.run("document.scrollingElement.scrollWidth <= innerWidth")
            assert other.run("document.querySelector('.tall .chart').getBoundingClientRect().width") > 200
            paper, line = other.run(
                "[getComputedStyle(document.body).backgroundColor, "
                "getComputedStyle(document.querySelector('.tall polyline')).stroke]"
            )
            assert (paper, line) == (
                ("rgb(15, 17, 20)", "rgb(255, 138, 61)") if dark else ("rgb(250, 249, 246)", "rgb(213, 94, 0)")
            )
            assert other.problems == []
            other.call("Page.close")
        hold.unlink()
        assert process.wait(120) == 0
        until(tab, "document.body.innerText.includes('All planned runs are finished.')")
        assert "not final" not in tab.run("document.body.innerText")
        assert tab.run("[window.mark, scrollY > 0]") == [1, True]  # it was never loaded again
        assert tab.problems == []
        asked = {request.partition("?")[0] for request in tab.requests}
        assert asked <= {address, f"{address}live", f"{address}favicon.ico"}
        tab.click("#done a")
        chromium.wait_for("Page.loadEventFired", tab._session)
        until(tab, "document.querySelector('.headline') !== null && location.pathname == '/report/'")
        tab.open(address)
        assert tab.run("location.pathname") == "/report/"
        assert tab.problems == []


def test_a_tab_follows_another_study_under_its_address(tmp_path, chromium, monkeypatch):
    """And its state, which is read out aloud, is written only when it changes."""
    monkeypatch.setattr("contdrop.lab.report.live_page.REFRESH_SECONDS", 0.1)
    settings = {"runs": 2, "epochs": 1, "images": 50, "missing": {("gaussian", 1)}}
    lives = [
        LivePage(make_store(tmp_path / name, methods=(other, "gaussian"), **settings))
        for name, other in (("first.db", "none"), ("second.db", "uniform"))
    ]
    with ReportServer(0, lambda: pytest.fail("nobody has asked")) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            for live in lives:
                live.look()
            server.publish(lives[0])
            tab = chromium.page(dark=True)
            tab.open(server.address)
            tab.run(
                "window.mark = 1; window.said = 0; new MutationObserver(() => window.said++).observe("
                "document.getElementById('state'), {childList: true, characterData: true, subtree: true})"
            )
            time.sleep(1)
            assert tab.run("[window.mark, window.said]") == [1, 0]
            server.publish(lives[1])
            until(tab, "document.querySelector('.brand').textContent.includes('second.db')")
            assert tab.run("window.mark === undefined")
            shade = style.style("uniform").dark
            assert tab.run(f"[...document.querySelectorAll('.key line')].some(line => {_IS} === '{shade}')")
            assert tab.problems == []
        finally:
            server.shutdown()


# The colour of a line as text.
_IS = "'#' + getComputedStyle(line).stroke.match(/\\d+/g).map(n => Number(n).toString(16).padStart(2, '0')).join('')"


def test_without_scripts_and_without_a_server(running, chromium):
    """A page that cannot run scripts is loaded again by the browser; one whose server is gone says so."""
    tab = chromium.page()
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    live = LivePage(running[2].with_name("runs.db"))
    live.look()
    stale = running[2].with_name("stale.html")
    stale.write_text(live.page())
    tab.open(stale.as_uri())
    for _ in range(2):
        chromium.wait_for("Page.loadEventFired", tab._session)
    tab.call("Page.close")
    tab = chromium.page()
    tab.open(stale.as_uri())
    until(tab, "document.getElementById('state').textContent == 'no longer served'")
