"""Deaths of workers: which of them end the study, and in which words."""

import os

import pytest
from test_writer import begin, epoch, job

from contdrop.errors import UserError
from contdrop.lab.runner import local
from contdrop.lab.runner.queue import JobQueue, WorkerConfig
from contdrop.lab.store.schema import FAILED, RUNNING
from contdrop.lab.store.writer import Store


class Silence:
    """An observer that counts deaths."""

    deaths = 0

    def died(self, worker, job):
        self.deaths += 1


class Process:
    exitcode = -9

    def join(self):
        pass


class Pipe:
    def close(self):
        pass


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A pool whose processes are none."""
    with Store(tmp_path / "runs.db", create=True) as store:
        made = local._Pool(JobQueue(store, {}, Silence()), WorkerConfig({}, {}))
        monkeypatch.setattr(made, "_start", lambda index: local._Worker(index, Process(), Pipe()))
        made.workers = [made._start(index) for index in range(4)]
        yield made


def test_idle_workers_may_end_as_often_as_they_like(pool):
    for _ in range(10):
        pool._receive(pool.workers[0], "ready", [])
        pool._replace(pool.workers[0])
    assert pool.todo.observer.deaths == 10


def test_several_idle_workers_may_end_at_a_time(pool):
    for worker in pool.workers:
        pool._receive(worker, "ready", [])
    for worker in list(pool.workers):
        pool._replace(worker)
    assert pool.todo.observer.deaths == 4


def test_a_worker_that_starts_makes_up_for_those_that_did_not(pool):
    for _ in range(5):
        pool._replace(pool.workers[0])
        pool._replace(pool.workers[0])
        pool._receive(pool.workers[1], "ready", [])


def test_workers_that_end_at_once_end_the_study(pool):
    pool._replace(pool.workers[0])
    pool._replace(pool.workers[0])
    with pytest.raises(UserError) as caught:
        pool._replace(pool.workers[1])
    assert str(caught.value) == (
        "expected worker processes that start; got 3 that ended at once (exit code -9); free memory, or "
        "train in this process with lab.compare(study, workers=0) in Python"
    )


def end(*_):
    os._exit(7)


def test_real_processes_that_end_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_run_worker", end)
    with Store(tmp_path / "runs.db", create=True) as store:
        pool = local._Pool(JobQueue(store, {}, Silence()), WorkerConfig({}, {}))
        pool.todo.pending = {1: None}
        monkeypatch.setattr(pool.todo, "collect", lambda *_: None)
        with pytest.raises(UserError, match=r"got 3 that ended at once \(exit code 7\)"):
            pool.run(1)


def test_a_job_that_dies_at_the_same_place_again_and_again_fails(tmp_path):
    """Epochs that are done again each time are no progress; those behind a checkpoint are."""
    with Store(tmp_path / "runs.db", create=True) as store:
        (number,) = store.add_jobs({"experiment": "e", "preset": "p", "epochs": 9}, {}, "k", [job()])
        todo = JobQueue(store, {number: None}, Silence())
        begin(store, number)
        for reached in range(1, 4):
            store.progress(number, [epoch(reached)], (reached, [b"state"]))
            todo.died(0, number, "killed")
        assert store.status(number) == RUNNING
        todo.observer.epoch = lambda *_: None
        for _ in range(2):
            todo.reported(0, number, "epoch", epoch(4))
            todo.died(0, number, "killed")
        assert store.status(number) == FAILED
        assert "its worker ended 3 times in a row (killed)" in store.job(number).error
