"""The local executor: every job once, whatever is killed when, and however many commands work on one store.

The commands run as processes of their own, as a user starts them, on the embedded digits.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

import processes
from contdrop.lab.data.data import prepare
from contdrop.lab.runner import local
from contdrop.lab.runner.queue import Task, WorkerConfig, WorkerContext
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments
from contdrop.lab.study.plan import add_plan, plan
from contdrop.lab.study.source import StudySource, StudySpec
from contdrop.replication import studies

CONTDROP = [sys.executable, "-m", "contdrop.cli"]
SMALL = ["run", "digits-mlp", "--methods", "none,gaussian,bernoulli-matched", "--runs", "2", "--epochs", "30"]

# What may differ between two stores of the same work.
TIMES = {
    "protocols": {"created", "record"},
    "jobs": {"created", "started", "ended", "seconds", "curve", "checksum"},
    "epochs": {"seconds"},
    "artefacts": set(),
    "checkpoints": set(),
    "selections": {"decided"},
}


def command(*arguments, store):
    return [*CONTDROP, *arguments, "--store", str(store)]


def start(*arguments, store):
    return subprocess.Popen(
        command(*arguments, store=store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    )


def listen_to_interrupts():
    """A shell starts what it runs in the background deaf to Ctrl-C, and the tests may be among it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(*arguments, store):
    done = subprocess.run(command(*arguments, store=store), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def content(path):
    """Everything in a store but times."""
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        found = {}
        for table, times in TIMES.items():
            rows = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
            for row in rows:
                if "description" in row:  # it says when runs were planned
                    row["description"] = {**json.loads(row["description"]), amendments.KEY: None}
            found[table] = sorted(
                [{name: value for name, value in row.items() if name not in times} for row in rows], key=repr
            )
    db.close()
    return found


def workers_of(process):
    """Processes that a command has started to work, and not for bookkeeping."""
    found = []
    for number in processes.children(process.pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in pathlib.Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(number)
    return found


def wait_for_workers(process):
    while not (found := workers_of(process)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


def wait_for(words, process):
    """Until a command says so."""
    while words not in (line := process.stderr.readline()):
        assert line, process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "runs.db"
    begin = time.monotonic()
    finish(*SMALL, store=path)
    return content(path), time.monotonic() - begin


def test_two_invocations_of_the_same_run_are_equal_bit_for_bit(undisturbed, tmp_path):
    finish(*SMALL, "--workers", "1", store=tmp_path / "again.db")
    assert content(tmp_path / "again.db") == undisturbed[0]


def disturb(store, chooser, duration):
    """Starts the command, and kills its main process or one of its workers after a random time."""
    process = start(*SMALL, store=store)
    time.sleep(chooser.uniform(0, duration))
    workers = workers_of(process)
    if workers and chooser.random() < 0.5:
        os.kill(chooser.choice(workers), signal.SIGKILL)
        # The worker is replaced; then the main process is killed as well, so that each disturbance ends.
        time.sleep(chooser.uniform(0, 3))
    process.kill()
    process.communicate()


def check_kills(undisturbed, tmp_path, times, seed):
    expected, duration = undisturbed
    chooser = random.Random(seed)
    store = tmp_path / "runs.db"
    for _ in range(times):
        disturb(store, chooser, duration)
    finish(*SMALL, store=store)
    assert content(store) == expected


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds workers by /proc")
def test_killed_at_random_the_store_ends_the_same(undisturbed, tmp_path):
    check_kills(undisturbed, tmp_path, 3, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds workers by /proc")
def test_killed_twenty_times_at_random_the_store_ends_the_same(undisturbed, tmp_path):
    check_kills(undisturbed, tmp_path, 20, seed=1)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds workers by /proc")
def test_killed_worker_is_replaced(undisturbed, tmp_path):
    process = start(*SMALL, store=tmp_path / "runs.db")
    wait_for("selection", process)
    workers = wait_for_workers(process)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 0
    assert "a worker process ended" in errors
    assert content(tmp_path / "runs.db") == undisturbed[0]


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds workers by /proc")
def test_workers_end_with_their_main_process(tmp_path):
    process = start(*SMALL, store=tmp_path / "runs.db")
    workers = wait_for_workers(process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{worker}") for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def test_two_commands_on_one_store_do_every_job_once(undisturbed, tmp_path):
    both = [start(*SMALL, "--workers", "1", store=tmp_path / "runs.db") for _ in range(2)]
    lines = [process.communicate()[1].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0], lines
    assert content(tmp_path / "runs.db") == undisturbed[0]


def test_more_runs_train_only_the_new_ones(tmp_path):
    store = tmp_path / "runs.db"
    arguments = ["run", "digits-mlp", "--methods", "none,uniform", "--epochs", "2"]
    finish(*arguments, "--runs", "1", store=store)
    before = content(store)
    done = finish(*arguments, "--runs", "3", store=store)
    after = content(store)
    assert "2 of them are done already" in done.stderr
    assert [row for row in after["epochs"] if row["job"] <= 2] == before["epochs"]
    assert len(after["jobs"]) == 6
    with sqlite3.connect(store) as db:
        times = dict(db.execute("SELECT id, started FROM jobs").fetchall())
    db.close()
    assert max(times[1], times[2]) < min(times[n] for n in range(3, 7))


def test_interrupt_stops_cleanly_and_says_how_to_go_on(undisturbed, tmp_path):
    process = start(*SMALL, store=tmp_path / "runs.db")
    wait_for("selection): ", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "give the same command again to resume" in errors
    assert "Traceback" not in errors
    status = json.loads(finish("status", "--json", store=tmp_path / "runs.db").stdout)
    (row,) = status["experiments"]
    assert row["running"] == 0
    assert row["planned"] == row["waiting"] + row["finished"] + row["failed"]
    finish(*SMALL, store=tmp_path / "runs.db")
    assert content(tmp_path / "runs.db") == undisturbed[0]


def test_main_process_that_is_gone_is_no_failure_of_the_job(tmp_path, monkeypatch):
    (job,) = plan(studies.STUDIES["digits-mlp"], labels=["none"], runs=1, epochs=2)

    class Gone(BaseException):
        pass

    class Pipe:
        def send(self, message):
            if message[0] == "epoch":
                raise BrokenPipeError

    def leave(code):
        raise Gone

    monkeypatch.setattr(local.os, "_exit", leave)
    with Store(tmp_path / "runs.db", create=True) as store:
        (number,) = add_plan(store, [job])
        key = job.protocol.key
        data = {key: prepare(job.protocol.study.data(), task="classification")}
        specs = {key: StudySpec.of(job.protocol, StudySource("catalogue", "digits-mlp"))}
        task = Task(number, key, job.stage, job.method, job.run, str(job.variant({})))
        with pytest.raises(Gone):
            WorkerContext(WorkerConfig(specs, data)).claim_and_do(
                store, task, lambda *message: local._send(Pipe(), *message)
            )
        assert store.job(number).status == "running"
        assert store.is_interrupted(store.job(number))


def test_interrupt_while_workers_start_is_clean(tmp_path):
    process = start(*SMALL, store=tmp_path / "runs.db")
    assert "jobs of 30 epochs" in process.stderr.readline()
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to workers, too
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.rstrip().endswith("give the same command again to resume")
