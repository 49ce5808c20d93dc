"""`contdrop list`, `run`, `status` and `export`: what they print, and what a usage error looks like."""

import csv
import io
import json
import os
import pathlib
import sqlite3
import subprocess
import sys

import pytest

import stores
from contdrop.replication import studies


def test_list_shows_every_experiment_with_both_sizes(cli):
    code, out, _ = cli("list", "--json")
    rows = {row["experiment"]: row for row in json.loads(out)}
    assert code == 0
    assert set(rows) == set(studies.STUDIES)
    assert rows["mnist-mlp-relu"]["sizes"]["paper"] == {"runs": 30, "epochs": 3000, "selection_runs": 3}
    code, out, _ = cli("list")
    assert code == 0
    assert all(name in out for name in studies.STUDIES)
    assert "mnist-mlp stands for mnist-mlp-sigmoid, mnist-mlp-relu" in out


def test_run_compares_and_is_counted_and_exported(cli):
    code, out, err = cli("run", "digits-mlp", "--methods", "none,gaussian:sigma=0.3", "--runs", "2", "--epochs", "2")
    assert code == 0, err
    assert "2 paired runs of 2 epochs" in " ".join(out.split())  # a title is as wide as its table
    assert "Gaussian \N{GREEK SMALL LETTER SIGMA}=0.3 minus it" in out
    assert "Too few runs to say" in out
    code, out, _ = cli("status", "--json")
    (row,) = json.loads(out)["experiments"]
    counts = {name: row[name] for name in ("planned", "waiting", "running", "finished", "failed")}
    assert counts == {"planned": 4, "waiting": 0, "running": 0, "finished": 4, "failed": 0}
    _, out, _ = cli("export")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["method"], row["run"], row["epochs"]) for row in rows] == [
        ("none", "0", "2"),
        ("gaussian:sigma=0.3", "0", "2"),
        ("none", "1", "2"),
        ("gaussian:sigma=0.3", "1", "2"),
    ]
    assert {"experiment", "val_error", "test_error", "seconds"} <= set(rows[0])
    assert all(0 < float(row["test_error"]) < 100 for row in rows)
    _, out, _ = cli("export", "--format", "json", "--per-epoch")
    epochs = json.loads(out)
    assert [row["epoch"] for row in epochs] == [1, 2] * 4
    assert epochs[1]["test_error"] == pytest.approx(float(rows[0]["test_error"]))


def test_failed_jobs_are_exit_code_1_and_keep_their_reason(cli, monkeypatch):
    stores.make_store("runs.db", methods=("none", "gaussian"), runs=2, failed=[("none", 1)])
    code, out, _ = cli("status")
    assert code == 0
    assert "failed: digits-mlp none run 1:" in out
    _, out, _ = cli("status", "--json")
    status = json.loads(out)
    assert status["experiments"][0]["failed"] == 1
    assert status["failures"][0]["run"] == 1


def test_commands_that_train_nothing_do_not_wait_for_torch(cli):
    stores.make_store("runs.db", runs=1, epochs=1)
    code = """
import sys
from contdrop.cli import app
for command in ("--version", "--help", "status", "check runs.db", "export", "list --help"):
    assert not {"torch", "matplotlib"} & set(sys.modules), command
    sys.argv = ["contdrop", *command.split()]
    assert app.run() == 0, command
assert "torch" in sys.modules  # by list, whose studies have networks
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_empty_store_says_so(cli):
    pathlib.Path("runs.db").touch()
    code, out, _ = cli("status")
    assert code == 0
    assert "runs.db is empty" in out
    code, out, _ = cli("export")
    assert code == 0
    assert out.count("\n") == 1


@pytest.mark.parametrize("command", [["status"], ["export"], ["run", "digits-mlp", "--epochs", "1"]])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pathlib.Path("runs.db").write_text("no database" * 100), "is none, or damaged"),
        (lambda: _with_version(99), "install a newer contdrop"),
        (lambda: os.mkdir("runs.db"), "is a directory"),
    ],
)
def test_file_that_is_no_store_is_one_line_and_left_alone(cli, command, make, message):
    make()
    path = pathlib.Path("runs.db")
    before = path.read_bytes() if path.is_file() else None
    code, _, err = cli(*command)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert before is None or path.read_bytes() == before


def _with_version(version):
    stores.make_store("runs.db", runs=1)
    with sqlite3.connect("runs.db") as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_commas_inside_and_between_methods(cli):
    code, out, err = cli(
        "run", "digits-mlp", "--methods", "adaptive:alpha=1,beta=0.5,none", "--runs", "1", "--epochs", "1", "--json"
    )
    assert code == 0, err
    (found,) = json.loads(out)
    assert [row["variant"] for row in found["methods"]] == ["none", "adaptive:alpha=1,beta=0.5"]


def test_output_that_cannot_be_written(cli):
    stores.make_store("runs.db", runs=2)
    command = [sys.executable, "-m", "contdrop.cli", "export", "--per-epoch"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "contdrop: cannot write the output: No space left on device; make room or write it elsewhere\n"
    )


def test_reader_that_has_seen_enough_is_no_error(cli):
    stores.make_store("runs.db", runs=10, epochs=100)
    command = [sys.executable, "-m", "contdrop.cli", "export", "--per-epoch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("experiment,")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_store_without_permission_to_write_can_be_read(cli, monkeypatch):
    stores.make_store("runs.db", runs=2)
    before = sorted(os.listdir())
    for leftover in set(before) - {"runs.db"}:
        os.remove(leftover)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    code, out, err = cli("status", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["experiments"][0]["finished"] > 0
    assert os.listdir() == ["runs.db"]


@pytest.mark.parametrize("command", ["list", "run digits-mlp", "claims", "data list", "weights list"])
def test_without_the_extra_one_line_says_what_to_install(command):
    """In a process where the packages of the extra cannot be imported; commands of the lab still work."""
    code = """
import importlib.machinery, sys
real_find = importlib.machinery.PathFinder.find_spec
def find(name, path=None, target=None):
    return None if name.partition(".")[0] in {"requests", "PIL"} else real_find(name, path, target)
importlib.machinery.PathFinder.find_spec = find
from contdrop.cli import app
assert app.app(["--help"], standalone_mode=False) in (None, 0)
sys.exit(app.run())
"""
    run = [sys.executable, "-c", code, *command.split()]
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    advice = 'needs requests, pillow, not installed; run: pip install "contdrop[replication]"'
    assert result.stderr == f"contdrop: {command.split()[0]}: {advice}\n"
