"""What reaches the terminal, the size of what is begun, and systems without locks."""

import os
import pty
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

import stores
from contdrop import lab
from contdrop._text import duration, visible
from contdrop.cli import session, terminal
from contdrop.lab.data.data import prepare
from contdrop.lab.report import page
from contdrop.lab.report.live_server import ReportServer
from contdrop.lab.runner import runner
from contdrop.lab.store import locks
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import Variant, plan
from contdrop.lab.study.source import StudySource
from contdrop.lab.training import job as running
from contdrop.replication import studies

EVIL = "evil\x1b]0;title\x07\x1b[2J\x9b2J\r\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def evil(tmp_path):
    """A store whose every text would retitle and clear a terminal."""
    path = tmp_path / "runs.db"
    stores.make_store(
        path, methods=(f"a{EVIL}", "=1+1"), runs=2, experiment=EVIL, title=EVIL, preset=EVIL, notes=[EVIL]
    )
    with Store(path) as store:
        store.fail(store.jobs()[0].id, EVIL)
    return path


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["export"], ["export", "--format", "json"]])
def test_nothing_of_a_store_reaches_the_terminal_raw(cli, evil, arguments):
    code, out, err = cli(*arguments)
    assert code == 0
    assert "evil" in out
    assert not CONTROL.search(out + err)


def test_nothing_of_a_store_reaches_the_page_raw(evil, tmp_path, monkeypatch):
    """Nor its tables: what is shown in a browser may be printed in a terminal, too."""
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    written = page.write(evil, tmp_path / "out")
    texts = [path.read_text() for path in (written.index, *written.tables)]
    assert all("evil" in text for text in texts)
    assert not any(CONTROL.search(text) for text in texts)


def test_an_error_does_not_reach_the_terminal_raw(cli):
    code, _, err = cli("status", "--store", EVIL)
    assert (code, err.count("\n")) == (2, 1)
    assert not CONTROL.search(err)


def test_on_a_real_terminal_too(evil):
    """A pseudo-terminal: what rich itself sends there are colours only."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "contdrop.cli", "status", "--store", str(evil)]
    done = subprocess.run(command, stdout=child, stderr=child, stdin=child, check=False)
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65536):
            shown += chunk
    except OSError:
        pass
    os.close(parent)
    assert done.returncode == 0
    rest = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert "evil" in rest
    assert not CONTROL.search(rest)


def test_export_guards_formulas(cli, evil):
    _, out, _ = cli("export")
    assert ",'=1+1,'=1+1," in out
    assert ",=1+1" not in out


def test_every_screen_and_table_strips(capsys):
    screen = terminal.screen()
    screen.print("a\x1b[2J", "b")
    table = terminal.table("t\x07", ("h\x07",))
    table.add_row("c\x07")
    screen.print(table)
    assert not CONTROL.search(capsys.readouterr().out)
    assert visible("a\tb\nc") == "a b\nc"


def test_status_is_readable_at_80_columns(cli, monkeypatch, tmp_path):
    stores.make_store(
        tmp_path / "runs.db", experiment="mnist-mlp-sigmoid-authors", runs=3, epochs=3, missing=[("none", 2)]
    )
    monkeypatch.setattr(terminal, "_WIDTH", 80)
    _, out, _ = cli("status")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    (heading,) = (line for line in lines if "planned" in line)
    assert heading.split() == ["experiment", "planned", "waiting", "running", "finished", "failed", "time", "left"]
    (row,) = (line for line in lines if "mnist" in line)
    assert row.split()[:6] == ["mnist-mlp-sigmoid-authors", "18", "1", "0", "17", "0"]
    assert "quick, 3 epochs" in out


def test_quick_is_the_default():
    for experiment in studies.STUDIES.values():
        assert plan(experiment, runs=1)[0].protocol.preset == "quick"


def test_more_than_a_day_is_said_first(capsys, monkeypatch, tmp_path):
    study = studies.STUDIES["digits-mlp"]
    jobs = plan(study, epochs=300_000, runs=30)
    monkeypatch.setattr(runner, "seconds_per_epoch", lambda *_, **__: 1.0)
    conductor = runner.StudyRunner([runner.PlannedStudy(jobs, StudySource("catalogue", study.name))], workers=2)
    with conductor.session(tmp_path / "runs.db"):
        session.warn(conductor)
        err = capsys.readouterr().err
        total = sum(job.epochs for job in jobs) / 2
        expected = f"contdrop: this will take about {duration(total)} with 2 workers; Ctrl-C stops it"
        assert err.startswith(expected)
        monkeypatch.setattr(conductor, "seconds_left", lambda *, try_out: 3600.0)
        session.warn(conductor)
    assert capsys.readouterr().err == ""


def test_trial_measures_an_epoch():
    job = plan(studies.STUDIES["digits-mlp"], labels=["none"], epochs=2)[-1]
    images = prepare(job.protocol.study.data(), task="classification")
    before = running.torch.get_num_threads()
    assert 0 < running.seconds_per_epoch(job, Variant.parse("none"), images, threads=1) < 60
    assert running.torch.get_num_threads() == before


def test_trial_counts_loading_and_evaluation():
    def collate(items):
        time.sleep(0.01)
        return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])

    study = lab.Study(
        "slow",
        lambda: lab.Data([(torch.zeros(2), i % 2) for i in range(60)], 20, 20, collate=collate),
        lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()),
        batch_size=10,
        training=lab.Training(evaluation_batch_size=2),
    )
    job = plan(study, labels=["none"], runs=1)[-1]
    seconds = running.seconds_per_epoch(
        job, Variant.parse("none"), prepare(study.data(), task="classification"), threads=1
    )
    assert seconds > 0.01 * (20 / 10 + (20 + 20) / 2)


# ---- without fcntl


def test_system_without_locks_reads_and_says_what_does_not_work(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(locks, "fcntl", None)
    stores.make_store(tmp_path / "runs.db", runs=1)
    for command in (["status"], ["export"]):
        assert cli(*command)[0] == 0
    code, _, err = cli("run", "digits-mlp")
    assert (code, err.count("\n")) == (2, 1)
    assert "training in the lab needs POSIX file locks, which this system does not have; use Linux, macOS or WSL" in err


# ---- serve


@pytest.mark.parametrize(
    "sent", [b"\0\xff\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"G"]
)
def test_malformed_requests_and_resets_are_silent(sent, capfd):
    with ReportServer(0, lambda: pytest.fail("nobody has asked")) as server:
        port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        for linger in (False, True):
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            if linger:  # a reset instead of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(sent.replace(b"%d", str(port).encode()))
            if not linger and len(sent) > 1:
                connection.recv(100)
            connection.close()
        time.sleep(0.2)
        server.shutdown()
    assert capfd.readouterr() == ("", "")
