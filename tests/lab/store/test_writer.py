"""The store: one file, many writers, nothing lost, and a clear line for a file that is none."""

import contextlib
import io
import itertools
import multiprocessing
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.lab.store import reader, schema
from contdrop.lab.store.reader import DamageError, pack, unpack
from contdrop.lab.store.results import collect
from contdrop.lab.store.schema import FAILED, FINISHED, PLANNED, RUNNING, Epoch, SelectionRecord
from contdrop.lab.store.writer import Store, write_artefacts
from stores import make_store

PROTOCOL = {"experiment": "some-experiment", "preset": "quick", "epochs": 3}
DESCRIPTION = {"title": "Some", "reference": "gaussian", "methods": ["none", "gaussian"]}
FINGERPRINTS = {"data": "d", "split": "s", "initial weights": "w", "data order": "o"}


def job(method="none", run=0, stage="final"):
    key = f"{stage} {method} {run}"
    return {"key": key, "stage": stage, "method": method, "run": run, "epochs": 3, "configuration": {"run": run}}


def epoch(number, seconds=0.5):
    return Epoch(number, 1.0, 50.0, 1.1, 51.0, 1.2, 52.0, 0.1, seconds)


def begin(store, number, fingerprints=FINGERPRINTS, variant="none"):
    return store.begin(
        number, variant=variant, seeds={"split": 2**62}, fingerprints=fingerprints, versions={"torch": "2"}, machine={}
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    with Store(path, create=True) as opened:
        yield opened


def add(store, *jobs):
    return store.add_jobs(PROTOCOL, DESCRIPTION, "p", jobs)


def test_job_goes_through_its_life(store):
    (number,) = add(store, job())
    assert store.job(number).status == PLANNED
    assert begin(store, number) is None
    assert store.job(number).status == RUNNING
    store.progress(number, [epoch(1), epoch(2)], (2, [b"state"]))
    assert store.checkpoint(number) == (2, b"state")
    assert store.job(number).epochs_done == 2
    predictions = np.arange(5, dtype=np.int16)
    store.finish(number, [epoch(3)], {"test_error": 1.5}, {"test_predictions": predictions})
    record = store.job(number)
    assert (record.status, record.results, record.seconds) == (FINISHED, {"test_error": 1.5}, 1.5)
    assert (record.seeds, record.versions, record.variant) == ({"split": 2**62}, {"torch": "2"}, "none")
    assert store.checkpoint(number) is None
    np.testing.assert_array_equal(store.artefact(number, "test_predictions"), predictions)
    assert store.epochs(number) == [epoch(1), epoch(2), epoch(3)] == store.curves("p")[number]


def test_jobs_are_planned_once_and_keep_their_number(store):
    first = add(store, job(run=0), job(run=1))
    assert add(store, job(run=1), job(run=2), job(run=0)) == [first[1], first[1] + 1, first[0]]


@pytest.mark.parametrize(("begun", "described"), [(None, "masks of an earlier version"), (2, "version 2 of the masks")])
def test_a_store_begun_with_other_masks_is_not_continued(store, begun, described):
    old = PROTOCOL if begun is None else {**PROTOCOL, "masks": begun}
    (number,) = store.add_jobs(old, DESCRIPTION, "old", [job()])
    message = (
        f"--store: {store.path} was begun with {described}, and this contdrop draws version 3, so it does not resume; "
        "give another file, or use the contdrop that began it"
    )
    for other in ({**PROTOCOL, "masks": 3}, {**PROTOCOL, "masks": 3, "experiment": "another"}):
        with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
            store.add_jobs(other, DESCRIPTION, "new", [job()])
    assert [record.key for record in store.protocols()] == ["old"]
    assert [record.id for record in store.jobs()] == [number]
    assert store.add_jobs(old, DESCRIPTION, "old", [job()]) == [number]


def test_failure_keeps_its_reason_and_can_be_planned_again(store):
    (number,) = add(store, job())
    begin(store, number)
    store.progress(number, [epoch(1)], (1, [b"state"]))
    store.fail(number, "diverged: the loss is nan", [epoch(2)])
    assert (store.job(number).status, store.job(number).error) == (FAILED, "diverged: the loss is nan")
    assert store.checkpoint(number) is None
    store.reset_failed(number)
    assert (store.job(number).status, store.job(number).error, store.epochs(number)) == (PLANNED, None, [])


def test_loss_that_is_no_number_is_stored_as_none(store):
    (number,) = add(store, job())
    nan, inf = float("nan"), float("inf")
    store.fail(number, "diverged", [Epoch(1, nan, 90.0, inf, 90.0, None, None, 0.1, 0.5)])
    (kept,) = store.epochs(number)
    assert (kept.train_loss, kept.val_loss, kept.test_loss) == (None, None, None)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), None])
def test_rate_that_is_no_number_is_stored_as_if_none_were_told(store, rate):
    """Not as None, which no archive has: an earlier version would refuse to read it."""
    (number,) = add(store, job())
    told = Epoch(1, 1.0, 50.0, 1.1, 51.0, None, None, rate, float("nan"))
    store.finish(number, [told, epoch(2)], {"test_error": 1.0}, {})
    first, second = store.epochs(number)
    assert (first.learning_rate, first.seconds, second) == (0.0, 0.0, epoch(2))
    assert store.job(number).seconds == 0.5
    assert store.find_damage(store.job_row(number)) is None


@pytest.mark.parametrize("what", FINGERPRINTS)
def test_methods_of_a_run_must_share_everything_but_masks(store, what):
    one, two, other_run = add(store, job("none"), job("gaussian"), job("gaussian", run=1))
    assert begin(store, one) is None
    other = {**FINGERPRINTS, what: "another"}
    assert begin(store, two, other) == f"gaussian and none do not share the same {what}, so they are not paired"
    assert store.job(two).status == PLANNED
    assert begin(store, other_run, other) is None


def test_results_of_mismatched_runs_are_refused(store):
    one, two = add(store, job("none"), job("gaussian"))
    for number in (one, two):
        begin(store, number)
        store.finish(number, [], {"test_error": 1.0}, {})
    (protocol,) = store.protocols()
    assert collect(store, protocol).errors() == {"none": {0: 1.0}, "gaussian": {0: 1.0}}
    with store.transaction() as db:
        db.execute("""UPDATE jobs SET fingerprints = '{"data": "d"}' WHERE id = ?""", (two,))
        schema.update_checksum(db, "jobs", "id = ?", two)
    with pytest.raises(UserError, match="in run 0 none and gaussian do not share the same data order"):
        collect(store, protocol)


def test_results_of_two_variants_under_one_name_are_refused(store):
    numbers = add(store, job("gaussian"), job("gaussian", run=1))
    for number, variant in zip(numbers, ("gaussian:sigma=0.2", "gaussian:sigma=0.3")):
        begin(store, number, variant=variant)
        store.finish(number, [], {"test_error": 1.0}, {})
    with pytest.raises(UserError, match=r"trained as gaussian:sigma=0\.2 and gaussian:sigma=0\.3"):
        collect(store, store.protocols()[0])


def test_first_selection_stands(store):
    add(store, job())
    store.select(
        SelectionRecord("p", "gaussian", "gaussian:sigma=0.2", "why", {"gaussian:sigma=0.2": {"val_error": 1}}, 1.0)
    )
    store.select(SelectionRecord("p", "gaussian", "gaussian:sigma=0.4", "why", {}, 2.0))
    assert store.selections("p")["gaussian"].variant == "gaussian:sigma=0.2"


def test_failure_planned_again_takes_back_that_nothing_could_be_selected(store):
    first, second, final = add(store, job("a", stage="selection"), job("b", stage="selection"), job("gaussian"))
    other = store.add_jobs({**PROTOCOL, "epochs": 4}, DESCRIPTION, "q", [{**job(), "key": "another"}])[0]
    for number in (first, second, final, other):
        store.fail(number, "the disk was full")
    for protocol, method, variant in (("p", "gaussian", None), ("p", "uniform", "uniform"), ("q", "gaussian", None)):
        store.select(SelectionRecord(protocol, method, variant, "why", {}, 1.0))
    store.reset_failed(first, second)
    assert [each.status for each in store.jobs()] == [PLANNED, PLANNED, FAILED, FAILED]
    assert (list(store.selections("p")), list(store.selections("q"))) == (["uniform"], ["gaussian"])
    store.select(SelectionRecord("p", "gaussian", "gaussian:sigma=0.2", "why", {}, 2.0))
    assert store.selections("p")["gaussian"].variant == "gaussian:sigma=0.2"


def test_planning_nothing_again_leaves_the_selection(store):
    (number,) = add(store, job("a", stage="selection"))
    store.select(SelectionRecord("p", "gaussian", None, "every candidate failed", {}, 1.0))
    store.reset_failed(number)
    store.reset_failed()
    assert list(store.selections("p")) == ["gaussian"]


def test_transaction_that_fails_leaves_nothing(store):
    (number,) = add(store, job())
    with pytest.raises(sqlite3.IntegrityError):
        store.progress(number, [epoch(1), epoch(1)], (1, [b"state"]))
    assert store.epochs(number) == []
    assert store.checkpoint(number) is None


def _write_epochs(path, number, count):
    with Store(path) as store:
        for i in range(1, count + 1):
            store.progress(number, [epoch(i)], (i, [bytes(100_000)]))


def test_several_processes_write_at_once(store, path):
    numbers = add(store, *(job(run=run) for run in range(4)))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_epochs, args=(path, number, 30)) for number in numbers]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert [record.epochs_done for record in store.jobs()] == [30] * 4


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
            write_artefacts(db, number, {"test_labels": pack(np.ones(3))})
            schema.update_checksum(db, "jobs", "id = ?", number)


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a snapshot"])
@pytest.mark.parametrize("what", READS)
def test_what_is_held_against_each_other_is_read_at_one_moment(store, path, monkeypatch, what, within):
    (number,) = add(store, job())
    store.progress(number, [epoch(1)], (1, [b"state"]))
    with store.transaction() as db:
        write_artefacts(db, number, {"test_labels": pack(np.zeros(3))})
        schema.update_checksum(db, "jobs", "id = ?", number)
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
    for path in paths:
        barrier.wait(60)
        try:
            Store(path, create=True).close()
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


def test_lock_is_free_again_after_a_kill(store, path):
    code = "import sys, time; from contdrop.lab.store.locks import Locks; import pathlib\n"
    code += "l = Locks(pathlib.Path(sys.argv[1])); print(l.acquire(7), flush=True); time.sleep(60)"
    locks = path.with_name(path.name + "-locks")
    process = subprocess.Popen([sys.executable, "-c", code, str(locks)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    assert not store.locks.acquire(7)
    assert store.locks.is_held(7)
    assert not store.locks.is_held(8)
    process.kill()
    process.communicate()
    assert store.locks.acquire(7)
    assert store.locks.is_held(7)
    assert not store.locks.acquire(7)


def test_releasing_a_lock_leaves_its_neighbours_held(store, path):
    for number in (6, 7, 8):
        assert store.locks.acquire(number)
    store.locks.release(7)
    code = (
        "import sys, pathlib; from contdrop.lab.store.locks import Locks; locks = Locks(pathlib.Path(sys.argv[1])); "
        "print([locks.is_held(number) for number in (6, 7, 8)])"
    )
    done = subprocess.run([sys.executable, "-c", code, f"{path}-locks"], capture_output=True, text=True, check=False)
    assert done.stdout == "[True, False, True]\n", done.stderr


def test_looking_at_a_lock_does_not_take_it(store, path):
    for _ in range(2):
        assert not store.locks.is_held(3)
    taken = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3); print('taken')"
    )
    command = [sys.executable, "-c", taken, f"{path}-locks"]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.stdout == "taken\n", other.stderr
    assert store.locks.acquire(3)


def test_running_job_without_a_process_is_interrupted(store):
    (number,) = add(store, job())
    begin(store, number)
    assert store.is_interrupted(store.job(number))
    store.locks.acquire(number)
    assert not store.is_interrupted(store.job(number))


# ---- files that are no store


def test_newer_store_is_refused_and_left_alone(path):
    Store(path, create=True).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"expected version 2 or 3 of a store; .* has version 99; install a newer"):
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


def test_full_disk_is_one_line_and_loses_nothing(store):
    (number,) = add(store, job())
    store.progress(number, [epoch(1)], (1, [b"state"]))
    store._db.execute("PRAGMA max_page_count = 1")  # clamped to the pages in use: no room for more
    with pytest.raises(UserError, match=r"cannot write .*full; make room, then give the same command again"):
        store.progress(number, [epoch(2)], (2, [bytes(10_000_000)]))
    assert store.checkpoint(number) == (1, b"state")
    assert store.job(number).epochs_done == 1


def results_of(path):
    with Store(path) as store:
        (protocol,) = store.protocols()
        return collect(store, protocol)


def test_results_know_what_failed_and_what_is_missing(path):
    make_store(path, methods=("none", "gaussian"), runs=3, failed=[("none", 1)], missing=[("gaussian", 2)])
    found = results_of(path)
    assert [(job.method, job.run) for job in found.failed] == [("none", 1)]
    assert [(job.method, job.run) for job in found.missing] == [("gaussian", 2)]


def test_only_jobs_of_the_same_test_examples_are_compared_example_by_example(path, monkeypatch):
    make_store(path, methods=("none", "gaussian"), runs=2, images=50)
    places = {("none", 0), ("none", 1), ("gaussian", 0), ("gaussian", 1)}
    assert set(results_of(path).contributions) == places
    read = Store.artefact

    def other_labels(self, job, name):
        labels = read(self, job, name)
        return labels[::-1] if (name, job) == ("test_labels", odd) else labels

    with Store(path) as store:
        odd = next(each.id for each in store.jobs() if (each.method, each.run) == ("gaussian", 1))
    monkeypatch.setattr(Store, "artefact", other_labels)
    monkeypatch.setattr("contdrop.lab.store.results._ROUNDING", np.inf)  # of which the errors are others
    assert set(results_of(path).contributions) == places - {("gaussian", 1)}


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


def test_closing_a_second_store_of_a_process_drops_no_lock(store, path):
    assert store.locks.acquire(7)
    with Store(path) as other:
        assert other.locks.is_held(7)
        assert not other.locks.acquire(7)
    code = "import sys, pathlib; from contdrop.lab.store.locks import Locks; "
    code += "print(Locks(pathlib.Path(sys.argv[1])).acquire(7))"
    command = [sys.executable, "-c", code, f"{path}-locks"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    store.locks.release(7)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


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
