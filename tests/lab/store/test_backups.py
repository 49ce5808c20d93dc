"""A file that SQLite cannot read is replaced by the last copy of it, and never is a good copy by a bad one."""

import os

import pytest
from test_writer import job

from contdrop.errors import UserError
from contdrop.lab.store import integrity
from contdrop.lab.store.writer import Store


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "runs.db"
    with Store(found, create=True) as store:
        store.add_jobs({"experiment": "e", "preset": "p", "epochs": 2}, {}, "k", [job(run=run) for run in range(300)])
    integrity.make_backup(found)
    return found


def jobs(path):
    with Store(path) as store:
        return [each.key for each in store.jobs()]


def end_inside_a_page(path):
    os.truncate(path, path.stat().st_size // 2 + 100)


def change_pages(path):
    with open(path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("damage", [end_inside_a_page, change_pages])
def test_a_damaged_file_is_replaced_by_its_copy(path, damage):
    before = jobs(path)
    damage(path)
    with pytest.raises(UserError, match=r"damaged|malformed"), Store(path) as store:
        store.jobs()  # whoever only reads changes nothing
    with Store(path, create=True) as store:
        assert store.restored
        assert "runs.db was damaged and has been replaced by its backup of 20" in store.restored
    assert jobs(path) == before
    assert path.with_name("runs.db-damaged").exists()
    with Store(path, create=True) as store:
        assert store.restored is None
    damage(path)  # before there was time for another copy
    with Store(path, create=True) as store:
        assert store.restored
    assert jobs(path) == before


def test_without_a_copy_a_damaged_file_is_refused_and_left_as_it_is(path):
    path.with_name("runs.db-backup").unlink()
    end_inside_a_page(path)
    before = path.read_bytes()
    with pytest.raises(UserError), Store(path, create=True) as store:
        store.jobs()
    assert path.read_bytes() == before


def test_a_bad_copy_replaces_nothing(path):
    good = path.with_name("runs.db-backup").read_bytes()
    change_pages(path)
    copies = integrity.Backups(path)
    copies.make_if_due(at_once=True)  # and it is no error
    assert path.with_name("runs.db-backup").read_bytes() == good
    assert sorted(file.name for file in path.parent.iterdir() if file.name.endswith(".tmp")) == []
    change_pages(path.with_name("runs.db-backup"))
    with pytest.raises(UserError), Store(path, create=True) as store:
        store.jobs()


def test_copies_are_made_from_time_to_time(path, monkeypatch):
    made = []
    monkeypatch.setattr(integrity, "make_backup", made.append)
    monkeypatch.setattr(integrity.time, "monotonic", lambda: clock)
    copies, clock = integrity.Backups(path), 1000.0
    copies.make_if_due(at_once=False)
    clock += 599
    copies.make_if_due(at_once=False)
    assert len(made) == 1
    copies.make_if_due(at_once=True)
    clock += 601
    copies.make_if_due(at_once=False)
    assert len(made) == 3


def test_a_file_of_which_nothing_is_left_is_damaged(path):
    """SQLite takes it for a new one, whose copy would take the place of the good one."""
    before = jobs(path)
    os.truncate(path, 0)
    Store(path, create=True).close()  # just made, for all that anybody knows
    assert jobs(path) == []
    os.truncate(path, 0)
    os.utime(path, (1, 1))
    with Store(path, create=True) as store:
        assert "was damaged and has been replaced by its backup of" in store.restored
    assert jobs(path) == before


def test_copies_that_a_kill_left_half_are_removed(path):
    left = [path.with_name(f".runs.db-backup-{name}.tmp") for name in ("old", "new")]
    for each in left:
        each.write_bytes(b"half")
    os.utime(left[0], (1, 1))
    integrity.make_backup(path)
    assert [each.exists() for each in left] == [False, True]
