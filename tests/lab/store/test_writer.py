"""Writing to a store: one file, many writers, nothing lost."""

import multiprocessing
import re
import sqlite3

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.lab.store.schema import FAILED, FINISHED, PLANNED, RUNNING, Epoch, SelectionRecord
from contdrop.lab.store.writer import Store

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


def test_running_job_without_a_process_is_interrupted(store):
    (number,) = add(store, job())
    begin(store, number)
    assert store.is_interrupted(store.job(number))
    store.locks.acquire(number)
    assert not store.is_interrupted(store.job(number))


# ---- files that are no store


def test_full_disk_is_one_line_and_loses_nothing(store):
    (number,) = add(store, job())
    store.progress(number, [epoch(1)], (1, [b"state"]))
    store._db.execute("PRAGMA max_page_count = 1")  # clamped to the pages in use: no room for more
    with pytest.raises(UserError, match=r"cannot write .*full; make room, then give the same command again"):
        store.progress(number, [epoch(2)], (2, [bytes(10_000_000)]))
    assert store.checkpoint(number) == (1, b"state")
    assert store.job(number).epochs_done == 1
