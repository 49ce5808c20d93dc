"""Loops of the user's own, and finished numbers."""

import pytest
import torch
from torch import nn

from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.runner.custom_loop import around_ask
from contdrop.lab.store import integrity, locks
from contdrop.lab.store.schema import FAILED, FINISHED
from contdrop.lab.store.writer import Store

STUDY = lab.Study("own", metric=lab.Metric("loss"), run=lambda job: 1.0, runs=2, methods=["original", "none"])


DATA = lab.Data(train=(torch.ones(40, 3), torch.arange(40.0)[:, None]), test=0.25)


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))


def statuses(path):
    with Store(path) as store:
        return {(job.method, job.run): job.status for job in store.jobs()}


def test_value_is_that_of_its_examples(tmp_path):
    """A mean in float32 is not that of the same numbers in float64, and the store checks one by the other."""
    losses = torch.rand(77, generator=torch.Generator().manual_seed(0), requires_grad=True)
    jobs = lab.ask(STUDY, store=tmp_path / "runs.db")
    job = next(jobs)
    with pytest.raises(UserError, match=r"per_example gives loss 0\.\d+, but tell\(\) was given 3"):
        job.tell(3.0, per_example=losses)
    job.tell(losses.mean(), per_example=losses)
    with Store(tmp_path / "runs.db") as store:
        told = next(each for each in store.jobs() if each.status == FINISHED)
        assert told.results["test_error"] == store.artefact(told.id, "test_loss").mean()


def test_ask_hands_out_each_job_once_and_keeps_what_is_told(tmp_path):
    path = tmp_path / "runs.db"
    seen = []
    for job in lab.ask(STUDY, store=path):
        seen.append((job.method, job.run, job.seed))
        if job.method == "none" and job.run == 1:
            job.fail("no memory\nleft")
        elif (job.method, job.run) != ("original", 1):
            job.tell({"loss": job.run + 0.5, "other": 2.0}, per_example=torch.tensor([0.0, 1.0]) + job.run)
    assert [each[:2] for each in seen] == [("original", 0), ("none", 0), ("original", 1), ("none", 1)]
    assert seen[0][2] == seen[1][2] != seen[2][2]
    found = statuses(path)
    assert found[("original", 0)] == found[("none", 0)] == FINISHED
    assert found[("none", 1)] == FAILED
    again = [(job.method, job.run) for job in lab.ask(STUDY, store=path)]
    assert again == [("original", 1)]  # what was left without a word
    retried = [(job.method, job.run) for job in lab.ask(STUDY, store=path, retry_failed=True)]
    assert retried == [("original", 1), ("none", 1)]
    with Store(path) as store:
        first = store.jobs()[0]
        assert first.results == {"test_error": 0.5, "test:other": 2.0}
        assert store.artefact(first.id, "test_loss").tolist() == [0.0, 1.0]


def test_build_starts_all_methods_from_the_same_weights_and_puts_the_method_in(tmp_path):
    weights = {}
    for job in lab.ask(STUDY, store=tmp_path / "runs.db"):
        model = job.build(make)
        weights[job.method, job.run] = model[0].weight.clone()
        assert model[2].p == (0.5 if job.method == "original" else 0.0)
        job.tell(1.0)
    assert torch.equal(weights["original", 0], weights["none", 0])
    assert not torch.equal(weights["original", 0], weights["original", 1])


def test_what_should_be_the_same_is_proven(tmp_path):
    jobs = lab.ask(STUDY, store=tmp_path / "runs.db")
    first = next(jobs)
    first.same("rows", torch.arange(3))
    first.tell(1.0)
    second = next(jobs)
    with pytest.raises(UserError, match="none and original do not share the same rows, so they are not paired"):
        second.same("rows", torch.arange(3) + 1)
    assert statuses(tmp_path / "runs.db")["none", 0] == FAILED


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "expected a number for loss; got str"),
        ({"other": 1.0}, "expected a value of 'loss', the first metric; got other"),
    ],
)
def test_results_that_are_none_get_one_line(tmp_path, value, message):
    job = next(iter(lab.ask(STUDY, store=tmp_path / "runs.db")))
    with pytest.raises(UserError, match=message):
        job.tell(value)


def test_result_that_is_no_number_is_a_failed_run(tmp_path):
    for job in lab.ask(STUDY, store=tmp_path / "runs.db"):
        job.tell(float("nan"))
    assert set(statuses(tmp_path / "runs.db").values()) == {FAILED}


CANDIDATES = {
    "methods": ["original", "gaussian"],
    "selection": lab.Selection(candidates={"gaussian": ["gaussian:sigma=0.2", "gaussian:sigma=0.4"]}, runs=1),
    "runs": 1,
}


def test_loops_of_ones_own_select_by_what_they_tell_of_validation_data(tmp_path):
    study = STUDY.replace(run=lambda job: {"loss": 1.0, "val": float("0.4" not in job.method)}, **CANDIDATES)
    lab.compare(study, store=tmp_path / "a.db", workers=0, device="cpu", progress=False)
    for job in lab.ask(study, store=tmp_path / "b.db"):
        job.tell(study.run(job))
    for name in ("a.db", "b.db"):
        with Store(tmp_path / name) as store:
            jobs = store.jobs()
        assert [job.variant for job in jobs if job.stage == "final"] == ["original", "gaussian:sigma=0.4"]
        assert all(set(job.results) == {"val_error"} for job in jobs if job.stage == "selection")
    job = next(lab.ask(study, store=tmp_path / "c.db"))
    with pytest.raises(UserError, match="expected a value of 'val', which selects among candidates; got loss"):
        job.tell(1.0)
    for job in lab.ask(study, store=tmp_path / "c.db"):
        job.fail("") if job.method != "original" else job.tell(1.0)
    assert statuses(tmp_path / "c.db")["gaussian", 0] == FAILED


def test_log_wants_epochs_in_order_and_known_names(tmp_path):
    job = next(iter(lab.ask(STUDY, store=tmp_path / "runs.db")))
    job.log(1, train_loss=2.0, val=3.0)
    with pytest.raises(UserError, match="expected epoch 2, the next one; got 1"):
        job.log(1, train_loss=2.0)
    with pytest.raises(UserError, match="unknown value 'vall'; did you mean 'val'"):
        job.log(2, vall=2.0)


def test_study_with_a_loop_of_its_own_is_compared_like_any(tmp_path):
    def run(job):
        model = job.build(make)
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(job.seed))
        job.same("x", x)
        return float(model(x).square().mean())

    study = lab.Study(
        "own-loop", metric=lab.Metric("size", better="higher"), run=run, runs=3, methods=["original", "none"]
    )
    result = lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    assert set(result.results.errors()["none"]) == {0, 1, 2}
    with pytest.raises(UserError, match="only a study that builds its models by model= can"):
        result.model("none", 0)
    expected = "paired by seed, which is not proven, but for initial weights, x."
    assert any(caveat.endswith(expected) for caveat in result.verdict.caveats)


def test_sentences_tell_close_values_apart():
    first = [0.99987, 0.99989, 0.99988, 0.99986, 0.99988, 0.99987]
    values = {"a": first, "b": [value + 0.00004 for value in first[::-1]]}
    found = lab.analyze(values, metric="accuracy", better="higher").verdict
    sentences = " ".join([found.headline, *(each.text for each in found.findings)])
    assert "0.999875" in sentences
    assert "0.999915" in sentences


def test_finished_numbers_are_analysed(tmp_path):
    values = {"a": [1.0, 1.1, 0.9, 1.05, 1.0, 0.95, 1.02], "b": [2.0, 2.1, 1.9, 2.0, 2.1, 2.05, 1.98]}
    result = lab.analyze(values, metric="score", margin=0.1)
    assert result.results.errors()["a"][1] == 1.1
    assert result.report(tmp_path / "page").exists()
    with pytest.raises(UserError, match="there is no method 'c'"):
        lab.analyze(values, reference="c")
    with pytest.raises(UserError, match="expected finite numbers; a run 1 is nan: leave out runs that failed"):
        lab.analyze({"a": [1.0, float("nan")]})
    with pytest.raises(UserError, match="better: expected lower or higher; got 'more'"):
        lab.analyze(values, better="more")
    with pytest.raises(UserError, match=r"expected lists of equal length, .* got {'a': 3, 'b': 2}"):
        lab.analyze({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0]})
    with pytest.raises(UserError, match="expected a list of numbers, or numbers by run, for 'b'"):
        lab.analyze({"a": [1.0, 2.0], "b": 3.0})
    with pytest.raises(UserError, match="expected the values of each method by its name; got list"):
        lab.analyze([1.0, 2.0])
    with pytest.raises(UserError, match="margin: expected a number above 0; got -1"):
        lab.analyze(values, margin=-1)


def test_what_a_program_asked_for_is_not_taken_for_the_labs_training(tmp_path):
    study = lab.Study("both", lambda: DATA, make, task="regression", epochs=1, runs=1, methods=["original", "none"])
    path = tmp_path / "runs.db"
    asked = next(jobs := lab.ask(study, store=path))
    asked.tell(0.25)
    jobs.close()
    lab.compare(study, store=path, workers=0, device="cpu", progress=False)
    (rest,) = lab.ask(study, store=path)
    assert rest.method == "none"
    with Store(path) as store:
        found = [protocol.configuration.get("run") for protocol in store.protocols()]
        assert integrity.check(store) == []
        told, *others = store.jobs()
        assert told.results["test_error"] == 0.25
        assert len({job.key for job in others}) == 2  # that of either loop, which have the same keys
    assert len(found) == 2
    assert sum(run is not None and "around_ask" in str(run) for run in found) == 1
    with pytest.raises(UserError, match=r"expected the loop around lab\.ask to run its jobs"):
        lab.compare(study.replace(run=around_ask), store=tmp_path / "other.db", workers=0, progress=False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": {0: 1.0, 0.5: 2.0, 1: 3.0}}, r"run 0\.5 is not a whole number"),
        ({1: [1.0, 2.0], "1": [3.0, 4.0]}, "every method and every run once; some of '1' are twice"),
        ({"a": {1: 1.0, "1": 2.0}}, "every method and every run once; some of 'a' are twice"),
        ({"a": "123"}, "expected a list of numbers, or numbers by run, for 'a': it is text"),
    ],
)
def test_numbers_that_would_be_lost(values, message):
    with pytest.raises(UserError, match=message):
        lab.analyze(values)


def test_runs_as_tables_and_json_number_them():
    found = lab.analyze({"a": {"0": 1.0, "1": 2.0}, "b": {0.0: 1.0, 1.0: 2.0}}).results.errors()
    assert found == {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}}


def test_a_loop_that_had_other_data_fails_alone_and_the_study_goes_on(tmp_path):
    def run(job):
        job.same("data", job.method if job.run else "all alike")
        return 1.0

    study = STUDY.replace(run=run)
    lab.compare(study, store=tmp_path / "runs.db", workers=0, device="cpu", progress=False)
    found = statuses(tmp_path / "runs.db")
    assert list(found.values()).count(FINISHED) == 3
    assert list(found.values()).count(FAILED) == 1


def test_finished_accuracies_are_better_the_higher_they_are():
    values = {"a": [0.91, 0.90, 0.91, 0.92, 0.91, 0.90], "b": [0.95, 0.96, 0.95, 0.97, 0.98, 0.96]}
    assert lab.analyze(values, metric="accuracy").verdict.headline.startswith("A is worse than b")
    assert lab.analyze(values, metric="rmse").verdict.headline.startswith("A is better than b")
    with pytest.raises(UserError, match="metric accuracy: higher values of it are better; got better=lower"):
        lab.analyze(values, metric="accuracy", better="lower")


def test_a_result_is_told_once_and_a_model_is_made_by_a_function(tmp_path):
    jobs = lab.ask(STUDY, store=tmp_path / "runs.db")
    job = next(jobs)
    assert repr(job) == "<Job own original run 0>"
    with pytest.raises(UserError, match="expected a function that makes the model"):
        job.build(make())
    job.tell(1.0)
    with pytest.raises(UserError, match="expected one result; got another one"):
        job.tell(2.0)
    for late in (lambda: job.fail("too late"), lambda: job.same("data", 1), lambda: job.build(make)):
        with pytest.raises(UserError, match="got another one, after the first, which is kept"):
            late()
    assert repr(job) == "<Job own original run 0, ended>"
    assert statuses(tmp_path / "runs.db")["original", 0] == FINISHED
    with Store(tmp_path / "runs.db") as store:
        assert store.jobs()[0].results["test_error"] == 1.0


def test_a_lock_that_was_refused_while_somebody_looked_is_tried_again(tmp_path, monkeypatch):
    refused = []

    def acquire(self, job, plain=locks.Locks.acquire):
        if not refused:
            refused.append(job)
            return False
        return plain(self, job)

    monkeypatch.setattr(locks.Locks, "acquire", acquire)
    asked = [(job.method, job.run) for job in lab.ask(STUDY, store=tmp_path / "runs.db")]
    assert asked == [("none", 0), ("original", 1), ("none", 1), ("original", 0)]


def test_asking_says_so_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(UserError, match="needs POSIX file locks"):
        next(lab.ask(STUDY, store=tmp_path / "runs.db"))


def test_all_that_failed_is_planned_again_at_once(tmp_path):
    path = tmp_path / "runs.db"
    for job in lab.ask(STUDY, store=path):
        job.fail("no memory")
    next(lab.ask(STUDY, store=path, retry_failed=True))
    assert FAILED not in statuses(path).values()


@pytest.mark.parametrize("values", [{"a": {float("inf"): 1.0}}, {"a": [10**400]}], ids=["run", "value"])
def test_numbers_beyond_all_bounds_get_one_line(values):
    with pytest.raises(UserError, match="analyze: expected a list of numbers, or numbers by run, for 'a'"):
        lab.analyze(values)


def test_what_a_loop_told_counts_even_if_it_breaks_afterwards(tmp_path):
    def loop(job):
        job.tell(1.0)
        raise RuntimeError("no room for the model")

    study = STUDY.replace(run=loop)
    found = lab.compare(study, store=tmp_path / "runs.db", workers=0, progress=False).results
    assert {job.status for job in found.final} == {FINISHED}
