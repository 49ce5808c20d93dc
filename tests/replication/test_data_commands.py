"""``contdrop data``: what it prints, writes and refuses, and its exit codes."""

import functools
import re
import shutil

import pytest

pytest.importorskip("typer")
pytest.importorskip("requests")

from contdrop.replication import data_commands, datasets
from contdrop.replication.datasets.builtin import DIGITS
from data_files import NAMES, files_at, idx, make_arrays, make_source, packed, serving, write

ARRAYS = make_arrays()
OTHERS = make_arrays(seed=1)
UNREACHABLE = ("http://127.0.0.1:9/",)


@pytest.fixture
def run(cli, monkeypatch, tmp_path):
    """Runs a command on small data sets that are called mnist and fashion-mnist."""
    sources = (
        DIGITS,
        make_source(ARRAYS, UNREACHABLE),
        make_source(OTHERS, UNREACHABLE, name="fashion-mnist"),
    )
    monkeypatch.setattr(datasets, "SOURCES", sources)
    monkeypatch.setenv("CONTDROP_DATA", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")

    return functools.partial(cli, "data")


def test_help_of_get_says_what_comes_first(run):
    out = " ".join(run("get", "--help")[1].split())
    assert out.index("Debian's") < out.index("If no mirror")  # it is copied first


def test_list(run, tmp_path):
    write(tmp_path / "mnist", ARRAYS)
    (tmp_path / "mnist" / f"{NAMES[0]}.gz").unlink()
    write(tmp_path / "fashion-mnist", OTHERS, "")
    code, out, err = run("list")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert rows["digits"].split()[1:6] == ["1,000", "797", "1x8x8", "10", "yes"]
    assert rows["mnist"].split()[1:8] == ["40", "12", "1x28x28", "10", "no,", "1", "missing"]
    assert rows["fashion-mnist"].split()[1:6] == ["40", "12", "1x28x28", "10", "yes"]
    assert out.endswith(f"Data directory: {tmp_path}\n")


@pytest.fixture
def mirror(run, monkeypatch):
    with serving(files_at({f"{name}.gz": packed(idx(array)) for name, array in zip(NAMES, ARRAYS)})) as (_, url):
        monkeypatch.setattr(datasets, "SOURCES", (make_source(ARRAYS, [*UNREACHABLE, url]),))
        yield url.split("/")[2]


def test_what_commands_print(run, tmp_path, monkeypatch, snapshot):
    """Exit code and output, while data are missing, here, damaged and downloaded."""
    told = []

    def tell(*arguments):
        code, out, err = run(*arguments)
        line = " ".join(arguments)
        told.append(re.sub(r"\b[0-9a-f]{32}\b", "(md5)", f"$ {line}\n[{code}]\n{out}{err}"))

    write(tmp_path / "other" / "mnist", ARRAYS)
    tell("list", "--json", "--data-dir", str(tmp_path / "other"))
    tell("get", "mnist")
    write(tmp_path / "mnist", ARRAYS)
    for arguments in (["get", "mnist"], ["get", "digits"], ["check"], ["check", "mnist", "mnist"]):
        tell(*arguments)
    for options in ([], ["--json"]):
        tell("check", "mnist", "fashion-mnist", *options)
    (tmp_path / "mnist" / f"{NAMES[3]}.gz").write_bytes(b"")
    tell("check")
    shutil.rmtree(tmp_path / "mnist")
    with serving(files_at({f"{name}.gz": packed(idx(array)) for name, array in zip(NAMES, ARRAYS)})) as (_, url):
        monkeypatch.setattr(datasets, "SOURCES", (make_source(ARRAYS, [*UNREACHABLE, url]),))
        tell("get", "mnist")
        tell("check", "mnist")
    snapshot("data", "\n".join(told).replace(str(tmp_path), "DIR").replace(url.split("/")[2], "MIRROR"))


def test_slow_downloads_say_how_far_they_are(run, mirror, monkeypatch):
    monkeypatch.setattr(data_commands.Downloads, "SECONDS", 0.0)
    _, _, err = run("get", "mnist")
    assert f"{NAMES[0]}.gz: 0.0 of 0.0 MB" in err


def test_get_on_a_terminal_has_bars(run, mirror, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run("get", "mnist")
    assert code == 0
    assert "complete" in out
    assert "━" in err
    assert "31.4/31.4 kB" in err


def test_after_an_interrupt_the_same_command_completes(run, tmp_path, mirror, monkeypatch):
    with monkeypatch.context() as patch:

        def interrupt(*_):
            raise KeyboardInterrupt

        patch.setattr(data_commands.Downloads, "received", interrupt)
        code, out, err = run("get", "mnist")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        "contdrop: interrupted; complete files are kept; to get the rest, run: contdrop data get mnist"
    )
    assert list((tmp_path / "mnist").iterdir()) == []
    assert run("get", "mnist")[0] == 0
