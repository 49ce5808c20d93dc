"""``contdrop data``: what it prints, writes and refuses, and its exit codes."""

import functools
import json

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


def test_list_as_json(run, tmp_path):
    write(tmp_path / "other" / "mnist", ARRAYS)
    code, out, err = run("list", "--json", "--data-dir", str(tmp_path / "other"))
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["directory"] == str(tmp_path / "other")
    rows = {row["name"]: row for row in found["data_sets"]}
    assert list(rows) == ["digits", "mnist", "fashion-mnist"]
    assert rows["mnist"] == {
        "name": "mnist",
        "title": "Tiny",
        "train": 40,
        "test": 12,
        "shape": [1, 28, 28],
        "classes": list("0123456789"),
        "present": True,
        "missing": [],
        "place": str(tmp_path / "other" / "mnist"),
    }
    assert rows["fashion-mnist"]["missing"] == [f"{name}.gz" for name in NAMES]


def test_check_without_names_minds_damage_only(run, tmp_path):
    write(tmp_path / "mnist", ARRAYS)
    code, out, err = run("check")
    assert (code, err) == (0, "")
    assert [line.split(": ")[:2] for line in out.splitlines()] == [
        ["digits", "ok"],
        ["mnist", "ok"],
        ["fashion-mnist", "missing"],
    ]
    assert "put train-images-idx3-ubyte.gz, " in out
    (tmp_path / "mnist" / f"{NAMES[3]}.gz").write_bytes(b"")
    code, out, err = run("check")
    assert (code, err) == (2, "")
    path = tmp_path / "mnist" / f"{NAMES[3]}.gz"
    assert f"\nmnist: damaged: {path}: expected labels in IDX format; it is empty; to get it again, run: contd" in out


def test_check_of_names_minds_what_is_missing(run, tmp_path):
    write(tmp_path / "mnist", ARRAYS)
    assert run("check", "mnist", "mnist")[:2] == (0, run("check", "mnist")[1])
    code, out, _ = run("check", "mnist", "fashion-mnist")
    assert code == 2
    assert out.count("\n") == 2
    code, out, _ = run("check", "fashion-mnist", "--json")
    assert code == 2
    (row,) = json.loads(out)["data_sets"]
    assert (row["name"], row["status"]) == ("fashion-mnist", "missing")
    assert "contdrop data get fashion-mnist" in row["detail"]


def test_a_mirror_that_cannot_be_reached_is_one_line_after_the_notes(run):
    code, out, err = run("get", "mnist")
    assert (code, out) == (2, "")
    *notes, line = err.splitlines()
    assert line.startswith(
        "contdrop: mnist: cannot be downloaded here (127.0.0.1:9 cannot be reached (Connection refused)); put "
    )
    assert not any(note.startswith("contdrop: ") for note in notes)


def test_get_what_is_here(run, tmp_path):
    write(tmp_path / "mnist", ARRAYS)
    assert run("get", "mnist") == (0, f"mnist: complete, {tmp_path}/mnist\n", "")
    assert run("get", "digits") == (0, "digits: complete, in scikit-learn\n", "")


@pytest.fixture
def mirror(run, monkeypatch):
    with serving(files_at({f"{name}.gz": packed(idx(array)) for name, array in zip(NAMES, ARRAYS)})) as (_, url):
        monkeypatch.setattr(datasets, "SOURCES", (make_source(ARRAYS, [*UNREACHABLE, url]),))
        yield url.split("/")[2]


def test_get_tells_what_it_does_in_plain_lines(run, tmp_path, mirror):
    code, out, err = run("get", "mnist")
    assert (code, out) == (0, f"mnist: complete, {tmp_path}/mnist\n")
    assert err.splitlines() == [
        "127.0.0.1:9 cannot be reached (Connection refused)",
        *(f"{name}.gz: complete, from {mirror}" for name in NAMES),
    ]
    assert run("check", "mnist")[0] == 0


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
