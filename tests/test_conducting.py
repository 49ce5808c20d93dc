"""What was given up can be tried once more, and what a selection could not decide is then decided."""

import pytest

from contdrop import lab
from contdrop.lab import conducting, plan, sources
from contdrop.lab.store import FAILED, FINISHED, PLANNED, Store

CANDIDATES = ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]


def study(run):
    kind = {"metric": lab.Metric("loss"), "runs": 2, "methods": ["original", "gaussian"], "selection_runs": 1}
    return lab.Study("retried", run=run, candidates={"gaussian": CANDIDATES}, **kind)


def compare(path, run, **options):
    return lab.compare(study(run), store=path, workers=0, progress=False, **options).results


class Loop:
    """A loop of the user's own, for which there is no room on the disk at first."""

    full = True

    def __call__(self, job):
        if self.full:
            raise RuntimeError("the disk is full")
        return {"loss": job.run + 1.0, "val": 1.0}


@pytest.fixture
def loop():
    return Loop()


def test_retry_selects_where_every_candidate_had_failed(tmp_path, loop):
    path = tmp_path / "runs.db"
    failed = compare(path, loop)
    assert {job.status for job in (*failed.selection, *failed.final)} == {FAILED}
    assert failed.selections["gaussian"].variant is None
    loop.full = False
    retried = compare(path, loop, retry_failed=True)
    assert {job.status for job in (*retried.selection, *retried.final)} == {FINISHED}
    assert retried.selections["gaussian"].variant == CANDIDATES[0]
    with Store(path) as store:
        assert list(store.selections(retried.protocol.key)) == ["gaussian"]


def test_retry_that_fails_again_can_be_retried(tmp_path, loop):
    path = tmp_path / "runs.db"
    for options in ({}, {"retry_failed": True}):
        failed = compare(path, loop, **options)
        assert {job.status for job in (*failed.selection, *failed.final)} == {FAILED}
        assert failed.selections["gaussian"].reason == "every candidate failed"


def test_retry_mends_a_store_whose_candidates_were_retried_in_vain(tmp_path, loop):
    """Its candidates are finished, and it says that nothing could be selected: an earlier version left it so."""
    path = tmp_path / "runs.db"
    failed = compare(path, loop)
    loop.full = False
    with Store(path) as store:
        store.plan_again(*(job.id for job in failed.selection))
        store.select(failed.selections["gaussian"])
    compare(path, loop)
    retried = compare(path, loop, retry_failed=True)
    assert {job.status for job in (*retried.selection, *retried.final)} == {FINISHED}


def test_ask_selects_where_every_candidate_had_failed(tmp_path, loop):
    path = tmp_path / "runs.db"
    for job in lab.ask(study(loop), store=path):
        job.fail("the disk is full")
    methods = []
    for job in lab.ask(study(loop), store=path, retry_failed=True):
        methods.append(job.method)
        job.tell({"loss": 1.0, "val": 1.0})
    assert methods == [*CANDIDATES, *["original", CANDIDATES[0]] * 2]


def test_a_part_of_the_plan_tries_only_its_own_failures_again(tmp_path, loop):
    path, jobs = tmp_path / "runs.db", plan.plan(study(loop))
    compare(path, loop)
    part = conducting.Conductor(
        [conducting.Planned(jobs, sources.Source("pickle", "retried"))], retry_failed=True, shard=(1, 2)
    )
    with Store(path) as part._store:
        part._plan(part.plans[0], {})
        again = {(job.method, job.run) for job in part.store.jobs() if job.status == PLANNED and job.stage == "final"}
    assert again == {(job.method, job.run) for job in jobs if plan.is_in(job, (1, 2)) and job.stage == "final"}
    assert len(again) == 2
