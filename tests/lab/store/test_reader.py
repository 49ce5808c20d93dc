"""Opening and reading a store: one moment, one line for a file that is none, and arrays as they were."""

import contextlib
import io
import itertools
import multiprocessing
import os
import sqlite3
import sys
import threading
import time

import numpy as np
import pytest
from test_writer import DESCRIPTION, PROTOCOL, add, epoch, job
from test_writer import path as path
from test_writer import store as store

from contdrop.errors import UserError
from contdrop.lab.store import reader, schema
from contdrop.lab.store.reader import DamageError, pack, unpack
from contdrop.lab.store.schema import SelectionRecord
from contdrop.lab.store.writer import Store, write_artefacts
from stores import make_store

READS = {
    "jobs": lambda store, number: store.jobs(),
    "jobs of a protocol": lambda store, number: store.jobs(protocol="p"),
    "protocols": lambda store, number: store.protocols(),
    "selections": lambda store, number: store.selections("p"),
    "epochs": lambda store, number: store.epochs(number),
    "curves": lambda store, number: store.curves("p"),
    "artefact": lambda store, number: store.artefact(number, "test_labels"),
    "checkpoint": lambda store, number: store.checkpoint(number),
}


def _change_everything(path, number):
    """What another command may write between two reads of this one."""
    with Store(path) as store:
        add(store, job(run=1))
        store.add_jobs({**PROTOCOL, "epochs": 4}, DESCRIPTION, "q", [{**job(), "key": "another"}])
        store.select(SelectionRecord("p", "gaussian", "gaussian:sigma=0.2", "why", {}, 1.0))
        store.progress(number, [epoch(2)], (2, [b"later"]))
        with store.transaction() as db:
            schema.update_job(db, number, **write_artefacts(db, number, {"test_labels": pack(np.ones(3))}))


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a snapshot"])
@pytest.mark.parametrize("what", READS)
def test_what_is_held_against_each_other_is_read_at_one_moment(store, path, monkeypatch, what, within):
    (number,) = add(store, job())
    store.progress(number, [epoch(1)], (1, [b"state"]))
    with store.transaction() as db:
        schema.update_job(db, number, **write_artefacts(db, number, {"test_labels": pack(np.zeros(3))}))
    before = READS[what](store, number)
    read, left = store.read, [1]

    def read_and_let_another_write(*query):
        rows = read(*query)
        if "PRAGMA" not in query[0] and left:
            left.pop()
            _change_everything(path, number)
        return rows

    monkeypatch.setattr(store, "read", read_and_let_another_write)
    store._cache.clear()  # what it remembers, it would not read
    with store.snapshot() if within else contextlib.nullcontext():
        found = READS[what](store, number)
    np.testing.assert_equal(found, before)
    assert not left
    assert not store._db.in_transaction
    found = READS[what](store, number)
    assert not np.array_equal(found, before)


def _change_all_the_time(path, stop):
    with Store(path) as store:
        for run in itertools.count(1):
            if stop.is_set():
                return
            add(store, job(run=run))
            store.select(SelectionRecord("p", f"gaussian {run}", "gaussian:sigma=0.2", "why", {}, 1.0))
            store.progress(1, [epoch(run)])


def test_nothing_looks_damaged_while_another_writes(store, path):
    (number,) = add(store, job())
    stop, end = threading.Event(), time.monotonic() + 1.5
    writer = threading.Thread(target=_change_all_the_time, args=(path, stop))
    writer.start()
    try:
        while time.monotonic() < end:
            for read in READS.values():
                read(store, number)
    finally:
        stop.set()
        writer.join()


def _make_stores(paths, barrier):
    refused = 0
    for each in paths:
        barrier.wait(60)
        try:
            Store(each, create=True).close()
        except UserError:
            refused += 1
    sys.exit(refused)


def test_several_processes_make_a_store_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    work = [tmp_path / f"{number}.db" for number in range(20)], context.Barrier(4)
    makers = [context.Process(target=_make_stores, args=work) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 4


def test_new_store_waits_for_whoever_writes_the_file(path):
    """SQLite itself does not: it refuses to begin a log at once, however long it was told to wait."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ["ROLLBACK"])
    timer.start()
    with Store(path, create=True) as store:
        assert store.jobs() == []
        assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    timer.join()
    other.close()


def test_new_store_does_not_wait_for_ever(path, monkeypatch):
    monkeypatch.setattr(reader, "_PATIENCE", 0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"in use by another process \(database is locked\); try again when that has"):
        Store(path, create=True)
    assert 0.2 <= time.monotonic() - begun < 5
    other.close()


def test_store_that_another_has_just_made_is_not_of_another_program(path, monkeypatch):
    """Whose file it is, and whether anything is in it, are two questions about one moment."""
    connect = sqlite3.connect

    class Meddled(sqlite3.Connection):
        def execute(self, query, *values):
            found = super().execute(query, *values)
            if query == "PRAGMA application_id":
                answer = found.fetchall()
                Store(path, create=True).close()
                found = super().execute(f"SELECT {answer[0][0]}")
            return found

    def connect_first(*arguments, **options):
        monkeypatch.undo()
        return connect(*arguments, **options, factory=Meddled)

    other = connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.close()
    monkeypatch.setattr(sqlite3, "connect", connect_first)
    with Store(path, create=True) as store:
        assert store.jobs() == []


def test_newer_store_is_refused_and_left_alone(path):
    Store(path, create=True).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        UserError, match=r"expected version 2, 3, 4 or 5 of a store; .* has version 99; install a newer"
    ):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 500])
def test_file_that_is_no_database_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"expected a store of contdrop; .* is none, or damaged"):
        Store(path)
    assert path.read_bytes() == content


def test_database_of_another_program_is_refused_and_left_alone(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="is a database of another program"):
        Store(path, create=True)
    assert path.read_bytes() == before


def test_a_symbolic_link_to_itself_is_refused(tmp_path):
    (tmp_path / "runs.db").symlink_to(tmp_path / "runs.db")
    with pytest.raises(UserError, match="is a symbolic link to itself"):
        Store(tmp_path / "runs.db")


def test_missing_store_and_directory(tmp_path):
    with pytest.raises(UserError, match="there is no store"):
        Store(tmp_path / "no.db")
    with pytest.raises(UserError, match="there is no directory"):
        Store(tmp_path / "no" / "no.db", create=True)
    with pytest.raises(UserError, match="is a directory"):
        Store(tmp_path)
    assert os.listdir(tmp_path) == []


def test_empty_file_becomes_a_store(path):
    path.touch()
    with Store(path) as store:
        assert store.jobs() == []


def test_what_was_verified_is_looked_at_again_once_somebody_has_changed_the_file(tmp_path):
    path = make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=1, epochs=2)
    with Store(path) as store, sqlite3.connect(path) as other:
        (protocol,) = store.protocols()
        number, curves = store.jobs()[0].id, store.curves(protocol.key)
        assert store.artefact(number, "test_labels") is not None
        assert store.curves(protocol.key) is curves
        other.execute("UPDATE jobs SET artefacts = '{}' WHERE id = ?", (number,))
        other.execute("UPDATE epochs SET seconds = seconds + 1")
        other.commit()
        with pytest.raises(DamageError, match=f"job {number} does not match its checksum"):
            store.artefact(number, "test_labels")
        with pytest.raises(DamageError):
            store.curves(protocol.key)
    other.close()


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.uint8), np.array(3.5), np.zeros((0, 4)), np.asfortranarray(np.arange(6.0).reshape(2, 3))],
    ids=lambda array: str(array.shape),
)
def test_arrays_come_back_as_they_were(array):
    found = unpack(pack(array))
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_no_array_of_objects_is_read():
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        unpack(buffer.getvalue())


def test_a_link_to_a_store_is_the_same_store(store, path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "linked.db"
    link.symlink_to(path)
    assert store.locks.acquire(7)
    with Store(link) as other:
        assert other.locks.is_held(7)
        assert other.path == path.resolve()
    assert [each.name for each in link.parent.iterdir()] == ["linked.db"]


def test_a_store_that_may_only_be_read_is_read_with_its_log(store, path, monkeypatch):
    add(store, job())
    assert path.with_name("runs.db-wal").stat().st_size
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    with Store(path) as other:
        assert len(other.jobs()) == 1
