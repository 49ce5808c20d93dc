"""The record beside a store: what the store has once held is missed when it is gone."""

import multiprocessing
import os
import pathlib
import shutil
import time

import pytest
from test_writer import DESCRIPTION, PROTOCOL, add, begin, epoch, job
from test_writer import path as path
from test_writer import store as store

from contdrop.errors import UserError
from contdrop.lab.store import archive, imports, integrity, record
from contdrop.lab.store.schema import FINISHED, PLANNED, SelectionRecord
from contdrop.lab.store.writer import Store


def finish(store, number, error=1.0):
    store.finish(number, [epoch(store.job(number).epochs_done + 1)], {"test_error": error}, {})


def recorded(path):
    return record.read(path.with_name(f"{path.name}-record"))


def statuses(path, **options):
    with Store(path, **options) as store:
        return list(store.statuses().values())


@pytest.fixture
def part(path):
    """A store with two jobs, of which one has finished."""
    with Store(path, create=True) as store:
        first, _ = add(store, job(), job(run=1))
        finish(store, first)
    return path


def test_record_has_every_change_of_what_is_finished(store, path, tmp_path):
    versions = []

    def check():
        assert recorded(path) == record.of_store(store._db)
        versions.append(recorded(path)["p"]["version"])

    first, second = add(store, job("a", stage="selection"), job("gaussian"))
    check()
    finish(store, first)
    check()
    store.select(SelectionRecord("p", "gaussian", None, "why", {}, 1.0))
    check()
    store.fail(second, "why")
    store.reset_failed(second)
    check()
    store._db.execute("UPDATE jobs SET variant = 'x' WHERE id = ?", (first,))
    assert store.reset_damaged("p", ()) == [f"job {first} does not match its checksum"]
    check()
    assert versions == sorted(set(versions))
    totals = recorded(path)["p"]
    assert (totals["planned"], totals["finished"], totals["decided"]) == (1, 0, 0)
    archive.export(path, tmp_path / "archive.gz")
    imports.import_file(tmp_path / "archive.gz", tmp_path / "other.db")
    assert {**recorded(tmp_path / "other.db")["p"], "version": 0} == {**totals, "version": 0}


def test_progress_is_not_recorded(store, path):
    (number,) = add(store, job())
    before = recorded(path)
    begin(store, number)
    store.progress(number, [epoch(1)], (1, [b"state"]))
    assert recorded(path) == before


def lose_log(path):
    """Finish a job, of which only the log knows, and lose that as a kill and a deletion do."""
    with Store(path) as store:
        finish(store, 2)
        assert path.with_name("runs.db-wal").stat().st_size
        content = path.read_bytes()
        kept = path.with_name("runs.db-record").read_bytes()
    path.write_bytes(content)
    path.with_name("runs.db-record").write_bytes(kept)


def truncate_log(path):
    """Lose the second half of a log that has all jobs but the first."""
    copy = path.with_name("copy")
    copy.mkdir()
    with Store(path) as store:
        finish(store, 2)
        for file in path.parent.glob("runs.db*"):
            shutil.copyfile(file, copy / file.name)
    for file in copy.glob("runs.db*"):
        shutil.copyfile(file, path.parent / file.name)
    os.truncate(path.with_name("runs.db-wal"), path.with_name("runs.db-wal").stat().st_size // 2)
    path.with_name("runs.db-shm").unlink()


def put_back_an_old_copy(path):
    before = path.read_bytes()
    with Store(path) as store:
        finish(store, 2)
    path.write_bytes(before)


def empty(path):
    os.truncate(path, 0)


def put_another_in_its_place(path):
    path.unlink()
    with Store(path.with_name("other.db"), create=True) as other:
        other.add_jobs({**PROTOCOL, "epochs": 9}, DESCRIPTION, "q", [job()])
    path.with_name("other.db").replace(path)


@pytest.mark.parametrize(
    ("lose", "before", "after"),
    [
        (lose_log, "2 jobs", 1),
        (truncate_log, "2 jobs", 1),
        (put_back_an_old_copy, "2 jobs", 1),
        (empty, "1 job", 0),
        (put_another_in_its_place, "1 job", 0),
    ],
)
def test_store_that_has_lost_something_is_refused_until_the_record_is_deleted(part, lose, before, after):
    lose(part)
    content = part.read_bytes()
    for create in (False, True):
        with pytest.raises(UserError) as error:
            Store(part, create=create)
        assert str(error.value) == (
            f"--store: {part} is older than its record: {before} of an experiment had finished, {after} are there; put "
            "back the latest copy, or import an archive into another store; to go on without what is lost, delete "
            "runs.db-record"
        )
    assert part.read_bytes() == content
    part.with_name("runs.db-record").unlink()
    assert statuses(part, create=True).count(FINISHED) == after
    with Store(part) as store:
        assert integrity.check(store) == []
        assert recorded(part) == record.of_store(store._db)


def test_store_without_a_record_gets_one(part):
    found = recorded(part)
    part.with_name("runs.db-record").unlink()
    assert statuses(part) == [FINISHED, PLANNED]
    assert recorded(part) == found != {}


def test_record_that_a_power_failure_has_emptied_is_written_again(part):
    found = recorded(part)
    os.truncate(part.with_name("runs.db-record"), 0)
    assert statuses(part) == [FINISHED, PLANNED]
    assert recorded(part) == found


@pytest.mark.parametrize(
    "content", ["{}\n", '{"protocol": "p"}\n', "no JSON", '{"protocol": "p", "version": []}', "[]"]
)
def test_record_that_is_none_is_refused(part, content):
    part.with_name("runs.db-record").write_text(content)
    with pytest.raises(UserError, match=r"runs\.db-record: expected the record of a store; .* delete it$"):
        Store(part)


def test_new_store_does_not_mind_the_record_of_one_that_was_deleted(part):
    part.unlink()
    with Store(part, create=True) as store:
        store.add_jobs({**PROTOCOL, "epochs": 9}, DESCRIPTION, "q", [job()])
        assert recorded(part) == record.of_store(store._db)
    assert statuses(part) == [PLANNED]


def test_merged_store_does_not_mind_it_either(part, tmp_path):
    part.rename(tmp_path / "one.db")
    with Store(part, create=True) as store:
        for epochs in (8, 9):
            store.add_jobs(PROTOCOL, DESCRIPTION, "p", [{**job(run=epochs), "epochs": epochs}])
    part.unlink()
    imports.merge(part, [tmp_path / "one.db"])
    assert statuses(part) == [FINISHED, PLANNED]


def test_process_that_is_killed_before_the_record_leaves_a_store_ahead_of_it(part, monkeypatch):
    before = recorded(part)
    with monkeypatch.context() as patch, Store(part) as store:
        patch.setattr(Store, "write_record", lambda _: None)
        finish(store, 2)
    assert recorded(part) == before
    assert statuses(part) == [FINISHED, FINISHED]
    assert recorded(part)["p"]["finished"] == 2


def test_record_that_cannot_be_written_stops_nothing(part, monkeypatch):
    before = recorded(part)
    with monkeypatch.context() as patch, Store(part) as store:
        patch.setattr(pathlib.Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        finish(store, 2)
        assert store.job(2).status == FINISHED
    assert recorded(part) == before
    assert statuses(part) == [FINISHED, FINISHED]


def _finish_all(path, numbers):
    with Store(path) as store:
        for number in numbers:
            finish(store, number)


def test_several_processes_that_are_killed_leave_no_store_behind_its_record(store, path):
    numbers = add(store, *(job(run=run) for run in range(4000)))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_finish_all, args=(path, numbers[place::2])) for place in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        before, end = recorded(path)["p"]["finished"], time.monotonic() + 60
        while recorded(path)["p"]["finished"] < before + 20 and time.monotonic() < end:
            time.sleep(0.001)
        writer.kill()
        writer.join()
        there = recorded(path)["p"]
        done = sum(status == FINISHED for status in store.statuses().values())
        assert 20 <= there["finished"] <= done < 4000
        store.check_totals()
        Store(path).close()
    assert recorded(path) == record.of_store(store._db)


def test_other_results_of_the_same_version_are_found(part, tmp_path):
    with Store(tmp_path / "other.db", create=True) as store:
        first, _ = add(store, job(), job(run=1))
        finish(store, first, error=2.0)
    part.write_bytes((tmp_path / "other.db").read_bytes())
    with Store(part) as store:
        (finding,) = integrity.check(store)
    assert finding == ("the results are not those of its record, runs.db-record", False)


def test_row_put_back_as_it_was_is_found(store):
    """An older row has the right checksum, and is not the one that was written last."""
    (number,) = add(store, job())
    (before,) = store.read("SELECT * FROM jobs")
    finish(store, number)
    store._db.execute("DELETE FROM epochs")
    store._db.execute("DELETE FROM jobs")
    store._db.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(before))})", tuple(before))
    assert [finding.text for finding in integrity.check(store)] == ["1 jobs had finished, and 0 are there"]
    assert store.reset_damaged("p", ()) == ["1 jobs had finished, and 0 are there"]
    assert integrity.check(store) == []


def test_experiment_that_was_damaged_keeps_its_place_in_the_record(part):
    with Store(part) as store:
        store._db.execute("UPDATE protocols SET preset = 'other', record = '{}'")
    with Store(part, create=True) as store:  # damage is for check to tell, and for run to repair
        assert store.reset_damaged("p", ()) == ["an experiment does not match its record"]
        add(store, job(), job(run=1))
    assert statuses(part) == [FINISHED, PLANNED]
    assert recorded(part)["p"]["finished"] == 1
