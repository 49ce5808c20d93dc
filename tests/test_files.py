"""Files are whole or not there, whatever happens while they are written; and words that everybody writes alike."""

import os
import stat

import pytest

from contdrop import _files
from contdrop._files import TEMPORARY, replacing
from contdrop._text import parse_label, plural
from contdrop.errors import suggest


def test_what_was_there_stays_until_the_new_is_whole(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path  # another file system could not be renamed from
        assert temporary.name.endswith(TEMPORARY)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("problem", [OSError("full"), KeyboardInterrupt()], ids=["full disk", "interrupt"])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, problem):
    path = tmp_path / "page.html"
    path.write_text("old")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise problem

    with pytest.raises(type(problem)):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_two_writers_do_not_share_a_temporary_name(tmp_path):
    path = tmp_path / "page.html"
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # whose block ended last
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("durable", [False, True])
def test_only_what_must_survive_a_power_cut_waits_for_the_disk(tmp_path, monkeypatch, durable):
    synced = []
    monkeypatch.setattr(_files.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    with replacing(tmp_path / "data", durable=durable) as temporary:
        temporary.write_bytes(bytes(5))
    assert synced == ([5] if durable else [])


def test_suggestions_are_short():
    names = [f"layer.{number}" for number in range(30)]
    assert suggest("layr.3", names) == "did you mean 'layer.3'?"
    assert suggest("zz", names) == f"known: {', '.join(names[:10])}, ..."
    assert suggest("zz", []) == "known: none"


def test_plurals():
    assert [plural(number, "job") for number in (0, 1, 2, 12_000)] == ["0 jobs", "1 job", "2 jobs", "12,000 jobs"]


def test_a_label_of_anyones_is_read_without_a_list():
    assert parse_label("mine:a=1, b=-2e3") == ("mine", {"a": 1.0, "b": -2000.0})
    with pytest.raises(ValueError, match=r"^expected a=<number>, got 'a' in 'mine:a'$"):
        parse_label("mine:a")


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_are_those_of_the_file_before_or_of_a_new_one(tmp_path, mask, mode):
    path = tmp_path / "page.html"
    before = os.umask(mask)
    try:
        with replacing(path) as temporary:
            temporary.write_text("one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    path.chmod(0o640)
    with replacing(path) as temporary:
        temporary.write_text("two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
