"""What a store was begun with goes on with the same data, and what was given up can be tried once more."""

import dataclasses
import pathlib
from unittest import mock

import numpy as np
import pytest
import torch

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.data.data import prepare
from contdrop.lab.runner import runner
from contdrop.lab.store import imports, schema
from contdrop.lab.store.schema import FAILED, FINISHED, PLANNED
from contdrop.lab.store.writer import Store
from contdrop.lab.study import plan, source

CANDIDATES = ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]


def study(run):
    kind = {"metric": lab.Metric("loss"), "runs": 2, "methods": ["original", "gaussian"]}
    return lab.Study("retried", run=run, **kind, selection=lab.Selection(candidates={"gaussian": CANDIDATES}, runs=1))


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
        store.reset_failed(*(job.id for job in failed.selection))
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
    part = runner.StudyRunner(
        [runner.PlannedStudy(jobs, source.StudySource("pickle", "retried"))], retry_failed=True, shard=(1, 2)
    )
    with Store(path) as part._store:
        part._plan(part.plans[0], {})
        again = {(job.method, job.run) for job in part.store.jobs() if job.status == PLANNED and job.stage == "final"}
    assert again == {(job.method, job.run) for job in jobs if plan.is_in(job, (1, 2)) and job.stage == "final"}
    assert len(again) == 2


# ---- data that may not be here, in whose place others stand


@dataclasses.dataclass(frozen=True)
class Either:
    """Data that are in a directory, or generated if they are not, as the catalogue has them."""

    place: pathlib.Path

    def __call__(self):
        is_here = (self.place / "real").exists()
        x = np.random.default_rng(1 if is_here else 2).normal(size=(40, 4)).astype(np.float32)
        name, mark = ("real", "") if is_here else ("generated", "generated numbers")
        return lab.Data((x, (x[:, 0] > 0).astype(np.int64)), 0.25, name=name, mark=mark)


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(), torch.nn.Linear(3, 2))


def conduct(place, path, *, runs=1, only_plan=False, **options):
    """As ``contdrop run`` does a study of the catalogue, which is not rehearsed."""
    study = lab.Study("either", Either(place), network, methods=("none", "bernoulli"), reference="none", epochs=1)
    planned = runner.PlannedStudy(plan.plan(study, runs=runs), source.StudySource("catalogue", "either"))
    conductor = runner.StudyRunner([planned], workers=0, **options)
    with conductor.session(path):
        if not only_plan:
            conductor.run(mock.Mock())
        (found,) = conductor.results()
    return found


def test_data_that_stood_in_are_not_mixed_with_what_they_stood_for(tmp_path):
    path = tmp_path / "runs.db"
    generated = conduct(tmp_path, path)
    assert generated.protocol.description["title"] == "either (generated numbers)"
    (tmp_path / "real").touch()
    for runs in (1, 2):  # nothing left to do, and more to do
        with pytest.raises(
            UserError,
            match=r"^study 'either': expected the data of its 2 jobs in \S+runs.db, generated; got others, real; "
            r"give another --store, or the data that it was begun with$",
        ):
            conduct(tmp_path, path, runs=runs)
    with Store(path) as store:
        assert store.protocols()[0].description["title"] == "either (generated numbers)"
        assert {job.status for job in store.jobs()} == {FINISHED}
    (tmp_path / "real").unlink()
    assert len(conduct(tmp_path, path, runs=2).finished) == 4
    (tmp_path / "real").touch()
    assert conduct(tmp_path, tmp_path / "other.db").protocol.description["title"] == "either"


def test_a_plan_of_which_nothing_was_begun_may_have_other_data(tmp_path):
    conduct(tmp_path, tmp_path / "runs.db", only_plan=True)
    (tmp_path / "real").touch()
    found = conduct(tmp_path, tmp_path / "runs.db")
    assert (found.protocol.description["title"], len(found.finished)) == ("either", 2)
    assert "mark" not in found.protocol.description


def test_an_interrupted_job_does_not_resume_on_other_data(tmp_path):
    conduct(tmp_path, tmp_path / "runs.db")
    with Store(tmp_path / "runs.db") as store, store.amending(store.protocols()[0].key) as db:
        schema.update(db, "jobs", {"status": "running"})
    (tmp_path / "real").touch()
    with pytest.raises(UserError, match=r"expected the data of its 2 jobs"):
        conduct(tmp_path, tmp_path / "runs.db")


def test_another_kind_of_processor_may_compute_other_last_bits_of_the_same_data(tmp_path, monkeypatch):
    path, here = tmp_path / "runs.db", runner.machine("cpu")
    conduct(tmp_path, path)
    monkeypatch.setattr(runner, "machine", lambda *_: {**here, "instructions": "AVX9"})
    monkeypatch.setattr("contdrop.lab.training.job.machine", lambda *_: {**here, "instructions": "AVX9", "threads": 1})
    monkeypatch.setattr(
        runner, "prepare", lambda data, task: dataclasses.replace(prepare(data, task=task), fingerprint="x")
    )
    assert len(conduct(tmp_path, path, runs=2).finished) == 4
    (tmp_path / "real").touch()
    with pytest.raises(UserError, match="generated; got others, real"):
        conduct(tmp_path, path, runs=3)


def test_data_that_an_earlier_invocation_loaded_are_loaded_once(tmp_path):
    calls = []

    def data():
        calls.append(len(calls))
        x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
        return lab.Data((x, (x[:, 0] > 0).astype(np.int64)), 0.25)

    study = lab.Study("once", data, network, methods=("none", "bernoulli"), reference="none", epochs=1)
    for runs, expected in ((1, 2), (2, 3)):  # at first a second time, to see that it returns the same
        lab.compare(study, runs=runs, store=tmp_path / "runs.db", workers=0, progress=False)
        assert len(calls) == expected


def test_parts_of_other_data_are_not_merged(tmp_path):
    conduct(tmp_path, tmp_path / "1.db", runs=2, shard=(1, 2))
    (tmp_path / "real").touch()
    conduct(tmp_path, tmp_path / "2.db", runs=2, shard=(2, 2))
    with pytest.raises(UserError, match=r"^2.db: either was trained on other data there than here; nothing was added"):
        imports.merge(tmp_path / "all.db", [tmp_path / "1.db", tmp_path / "2.db"])
    assert not (tmp_path / "all.db").exists()
    (tmp_path / "real").unlink()
    conduct(tmp_path, tmp_path / "3.db", runs=2, shard=(2, 2))
    assert imports.merge(tmp_path / "all.db", [tmp_path / "1.db", tmp_path / "3.db"]).added == 6
