"""``contdrop report`` and ``contdrop serve``: what they print, refuse and serve."""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading

import pytest

from stores import METHODS, make_store

pytest.importorskip("typer")

from contdrop.errors import UserError
from contdrop.lab.extensions import Extension
from contdrop.lab.report import live_server, page
from contdrop.lab.report.live_page import LivePage
from contdrop.lab.report.live_server import ReportServer
from contdrop.lab.store.writer import Store


@pytest.fixture(autouse=True, scope="module")
def no_figures():
    """They have tests of their own, and take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.figures, "figures", lambda *_: [])
        patch.setattr(page, "extension", lambda: Extension())
        yield


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "runs.db", runs=6, epochs=1, images=200)


def test_report(cli, store, tmp_path):
    code, out, err = cli("report", "--store", store, "--out", tmp_path / "deep" / "out")
    assert (code, err) == (0, "")
    assert out.startswith("digits-mlp (quick): ")
    assert f"The page is {tmp_path / 'deep' / 'out' / 'index.html'}\n" in out
    assert (tmp_path / "deep" / "out" / "index.html").is_file()
    assert (tmp_path / "deep" / "out" / "tables" / "digits-mlp-quick-comparison.csv").is_file()
    assert (tmp_path / "deep" / "out" / "figures").is_dir()


def test_report_as_json(cli, store, tmp_path):
    code, out, err = cli("report", "--store", store, "--out", tmp_path / "out", "--margin", "0.5", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["index"] == str(tmp_path / "out" / "index.html")
    assert all(pathlib.Path(path).is_file() for path in found["tables"] + found["figures"])
    assert found["failed"] == 0
    (verdict,) = found["verdicts"]
    assert verdict["experiment"] == "digits-mlp"
    assert verdict["headline"].startswith("Gaussian is ")
    assert set(verdict["outcomes"]) == set(METHODS) - {"gaussian"}


def test_exit_code_tells_of_failed_jobs(cli, tmp_path):
    store = make_store(tmp_path / "runs.db", runs=2, epochs=1, images=50, failed={("none", 1)})
    code, out, err = cli("report", "--store", store, "--out", tmp_path / "out")
    assert (code, err) == (1, "")
    assert "1 job has failed; the page says why." in out


def test_empty_store_is_no_error(cli, tmp_path):
    Store(tmp_path / "runs.db", create=True).close()
    code, out, err = cli("report", "--store", tmp_path / "runs.db", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert out.startswith("The store is empty")


def test_a_page_below_a_file_is_refused(cli, store, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, err = cli("report", "--store", store, "--out", tmp_path / "file" / "below")
    assert code == 2
    assert err.startswith(f"contdrop: --out: cannot write {tmp_path / 'file' / 'below'}: ")


def test_a_port_that_is_taken(cli, store):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, out, err = cli("serve", "--store", store, "--port", port)
    assert (code, out) == (2, "")
    assert err == (
        f"contdrop: --port: {port} is taken by another program; choose another, or --port 0 for any that is free\n"
    )


# ---- watching


def test_changes_are_noticed(store):
    with contextlib.closing(live_server.StoreWatcher(store)) as seen:
        assert [seen.has_changed() for _ in range(3)] == [True, False, False]
        page.Store(store).close()  # reading is no change
        assert not seen.has_changed()
        make_store(store, runs=1, epochs=2, images=50)
        assert [seen.has_changed() for _ in range(2)] == [True, False]
        store.unlink()
        assert seen.has_changed()
        make_store(store, runs=1, epochs=1, images=50)
        assert seen.has_changed()
        assert not seen.has_changed()


def test_a_store_that_cannot_be_opened_has_changed_when_it_is_written_to(store, monkeypatch):
    def refuse(*arguments, **options):
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(live_server.sqlite3, "connect", refuse)
    with contextlib.closing(live_server.StoreWatcher(store)) as seen:
        assert [seen.has_changed() for _ in range(3)] == [True, False, False]
        os.utime(store, (1, 1))
        assert [seen.has_changed() for _ in range(2)] == [True, False]


def test_follow_says_an_error_once_and_continues(store):
    told, built, looks = [], [], iter([False] * 6 + [True])

    def rebuild():
        built.append(len(told))
        if 2 <= len(built) <= 4:
            raise UserError("runs are not paired")

    def stop():
        if len(built) == 1:
            make_store(store, runs=1, epochs=2, images=50)
        return next(looks)

    live_server.rebuild_on_change(store, rebuild, told.append, seconds=0, stop=stop)
    assert told == ["runs are not paired"]
    assert len(built) == 5  # the first, the change, and again until it is mended; then nothing more


def test_the_first_error_is_raised(tmp_path):
    def rebuild():
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        live_server.rebuild_on_change(tmp_path / "none.db", rebuild, print)


def test_watch(cli, store, tmp_path, monkeypatch):
    """Rewritten when the store changes, and once more at the end, when it no longer reloads itself."""
    pages = []

    def look(seconds):
        pages.append((tmp_path / "out" / "index.html").read_text())
        if len(pages) == 1:
            make_store(store, runs=1, epochs=2, images=50)
        if len(pages) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(live_server.time, "sleep", look)
    code, out, err = cli("report", "--store", store, "--out", tmp_path / "out", "--watch")
    assert (code, err) == (0, "")
    assert "Watching; Ctrl-C ends this." in out
    assert all('http-equiv="refresh"' in text for text in pages)
    assert "2 experiments" not in pages[0]
    assert "2 experiments" in pages[1]
    assert 'http-equiv="refresh"' not in (tmp_path / "out" / "index.html").read_text()


# ---- serving


@pytest.fixture(scope="module")
def server(tmp_path_factory, no_figures):
    directory = tmp_path_factory.mktemp("served")
    store = make_store(directory / "runs.db", runs=2, epochs=1, images=50, missing={("none", 1)})
    made, live = [], LivePage(store)

    def make():
        made.append(live.version)
        written = page.write(store, directory / "out")
        figure = written.index.parent / "figures" / "pairs.pdf"
        figure.write_bytes(b"%PDF-1.7")
        return dataclasses.replace(written, figures=(figure,))

    with ReportServer(0, make) as server:
        live.look()
        server.publish(live)
        server.live, server.made = live, made
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_serves_the_live_page_and_what_changes(server):
    status, headers, body = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"Interim results" in body
    assert b"connect-src &#39;self&#39;" in body
    assert b'<noscript><meta http-equiv="refresh"' in body
    assert ask(server, f"/live?{server.live.version}")[::2] == (204, b"")
    status, headers, fragment = ask(server, "/live?0")
    assert (status, headers["X-Version"]) == (200, str(server.live.version))
    assert fragment in body


def test_a_finished_study_leads_to_its_report(tmp_path):
    live = LivePage(make_store(tmp_path / "runs.db", runs=2, epochs=1, images=50))
    live.look()
    with ReportServer(0, lambda: pytest.fail("nobody has asked")) as finished:
        assert finished.answer("/", "").status == 404
        finished.publish(live)
        assert finished.answer("/", "")[::3] == (303, (("Location", "/report/"),))


def test_the_report_is_made_when_asked_for_and_the_store_has_changed(server):
    def refuse():
        raise UserError("runs are not paired")

    for _ in range(2):
        assert ask(server, "/report/")[0] == 200
    assert server.made == [server.live.version]
    with ReportServer(0, refuse) as broken:
        broken.publish(server.live)
        assert broken.answer("/report/", "")[::2] == (500, b"The report cannot be made: runs are not paired\n")


def test_any_mistake_while_the_report_is_made_is_told_in_a_line(server, capsys):
    def fail():
        raise ValueError("axes must\nhave room")

    with ReportServer(0, fail) as broken:
        broken.publish(server.live)
        answer = broken.answer("/report/", "")
    assert answer[::2] == (500, b"The report cannot be made: ValueError: axes must have room\n")
    assert capsys.readouterr().err == "contdrop: the report cannot be made: ValueError: axes must have room\n"


def test_serves_the_report_and_its_files(server):
    status, headers, body = ask(server, "/report/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith(b"<!DOCTYPE html>")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    for link in re.findall(r'href="(tables/[^"]+)"', body.decode()):
        status, headers, content = ask(server, f"/report/{link}")
        assert status == 200
        assert content
        assert "sandbox" in headers["Content-Security-Policy"]
    status, headers, content = ask(server, "/report/figures/pairs.pdf")
    assert (status, headers["Content-Type"], content[:4]) == (200, "application/pdf", b"%PDF")
    assert "sandbox" not in headers["Content-Security-Policy"]  # Safari shows nothing then
    status, headers, nothing = ask(server, "/report/?x=1", "HEAD")
    assert (status, int(headers["Content-Length"]), nothing) == (200, len(body), b"")


@pytest.mark.parametrize(
    "path",
    ["/index.html", "/runs.db", "/../runs.db", "/tables/", "/tables/../../runs.db", "/tables/%2e%2e/%2e%2e/runs.db",
     "//etc/passwd", "/report", "/report/../runs.db", "/report/runs.db", "/live/",
     "/tables/..%2f..%2fruns.db", "/figures/none.svg", "*"],
)  # fmt: skip
def test_serves_nothing_else(server, path):
    assert ask(server, path)[0] == 404


def test_serves_reading_only(server):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(server, "/", method)[0] == 501


@pytest.mark.parametrize("host", ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1.example.org:{port}", ""])
def test_refuses_other_names(server, host):
    status, _, body = ask(server, "/", host=host.format(port=server.server_address[1]) or "")
    assert status == 403
    assert b"html" not in body
    assert ask(server, "/", host=f"LOCALHOST:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_serve_command(store, tmp_path, end):
    """In a process of its own: prints the address, serves what changes, and ends cleanly, its directory removed."""
    code = (
        "from contdrop.lab.report import live_server, page; live_server.POLL_SECONDS = 0.1; "
        "page.figures.figures = lambda *_: []; "
        "from contdrop.cli import main; main()"
    )
    arguments = ["serve", "--store", str(store), "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs are deaf to it
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])

        def body():
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
                connection.request("GET", "/")
                return connection.getresponse().read().decode()

        assert body() == ""  # all runs are there
        make_store(store, runs=1, epochs=2, images=50, missing={("none", 0)})
        for _ in range(600):
            if "2 experiments" in body():
                break
            threading.Event().wait(0.1)
        else:
            pytest.fail("the page did not change")
        assert list(tmp_path.glob("contdrop-report-*"))
        process.send_signal(end)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out.strip(), err) == (0, "Stopped.", "")
    assert not list(tmp_path.glob("contdrop-report-*"))
