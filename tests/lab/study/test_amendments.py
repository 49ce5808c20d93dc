"""Changes of a study that has results: added runs, another margin or reference, and another behaviour."""

import dataclasses

import pytest
import torch
from small_study import X, Y, compare
from test_verdict import noisy, results_of
from torch import nn

from contdrop import lab
from contdrop.lab.analysis.verdict import verdict
from contdrop.lab.report import protocol as describing
from contdrop.lab.store import archive, imports
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments
from refusals import refusal
from stores import make_store

SMALL = {"methods": ("gaussian", "bernoulli"), "epochs": 1, "images": 50}
FEW = {"epochs": 1}
BEGUN = "runs.db was begun with: "


def recorded(path):
    with Store(path) as store:
        (results,) = collect_all(store)
    return amendments.plans(results.protocol.description), results


def line(time, runs, results=0):
    return {"time": time, "runs": runs, "results": results}


def test_store_records_when_runs_were_added_and_how_many_results_were_there(tmp_path):
    path = make_store(tmp_path / "runs.db", runs=3, missing={("gaussian", 2), ("bernoulli", 2)}, **SMALL)
    plans, results = recorded(path)
    assert [(plan.runs, plan.results) for plan in plans] == [(3, 0)]
    assert "The number of runs, 3, was fixed before the first result." in verdict(results).caveats
    with Store(path) as store:
        (protocol,), jobs = store.protocols(), store.jobs()
        rows = [
            {"key": f"{run} {method}", "stage": "final", "method": method, "run": run, "epochs": 1, "configuration": {}}
            for run in range(3, 8)
            for method in SMALL["methods"]
        ]
        again = [{"key": job.key, "stage": "final", "run": job.run, "method": job.method} for job in jobs]
        for added in (again, rows):  # resuming is no look
            store.add_jobs(protocol.configuration, {"reference": "gaussian"}, protocol.key, added)
    plans, results = recorded(path)
    assert [(plan.runs, plan.results) for plan in plans] == [(3, 0), (8, 4)]
    (told,) = (caveat for caveat in verdict(results).caveats if "Runs were added" in caveat)
    assert told.startswith("Runs were added after results were there: 3 were planned at first, 8 on 20")
    words = ", when 4 results were there. p-values and intervals are not corrected for such looks; multiplied by 2"
    assert words in told
    size = dict(describing.protocol(results))["Size"]
    assert any(line.startswith("8 runs planned on 20") and line.endswith("4 results there then") for line in size)


def test_the_record_travels_and_is_joined(tmp_path):
    path = make_store(tmp_path / "runs.db", runs=2, **SMALL)
    with Store(path) as store:
        archive.write(archive.read_store(store), tmp_path / "a.jsonl.gz")
    with Store(tmp_path / "copy.db", create=True) as copy:
        for _ in range(2):
            imports.add_contents(copy, archive.read(tmp_path / "a.jsonl.gz"), "a")
    assert recorded(tmp_path / "copy.db")[0] == recorded(path)[0] != []
    first, second = ({amendments.KEY: [line(time, 2)], "title": str(time)} for time in (2.0, 1.0))
    both = amendments.joined(first, second)
    assert both["title"] == "2.0"
    assert [plan.time for plan in amendments.plans(both)] == [1.0, 2.0]


@pytest.mark.parametrize("plans", [None, [], [line(1.0, 6, 5)], [line(1.0, 3)]])
def test_what_is_not_recorded_is_not_claimed(plans):
    description = {} if plans is None else {amendments.KEY: plans}
    results = results_of({"gaussian": noisy(2, runs=6), "bernoulli": noisy(3, runs=6, seed=1)}, **description)
    assert any("does not say when all runs were planned" in caveat for caveat in verdict(results).caveats)


@pytest.mark.parametrize(
    "bad", [3, "text", [3], [{"time": "x"}], [line(1e300, 1)], [{"time": 1.0, "runs": float("inf")}]]
)
def test_a_record_that_makes_no_sense_is_none(bad):
    assert amendments.plans({amendments.KEY: bad}) == amendments.changes({amendments.CHANGES: bad}) == []


def test_runs_added_in_another_store_count_as_added():
    """Merged plans know of the results of their own store alone; the times of the results tell the rest."""
    errors = {"gaussian": noisy(2, runs=12), "bernoulli": noisy(3, runs=12, seed=1)}
    results = results_of(errors, **{amendments.KEY: [line(1.0, 6), line(5.0, 12)]})
    assert "The number of runs, 12, was fixed before the first result." in verdict(results).caveats
    jobs = tuple(dataclasses.replace(job, ended=2.0 if job.run < 6 else 6.0) for job in results.final)
    caveats = " ".join(verdict(dataclasses.replace(results, final=jobs)).caveats)
    assert "6 were planned at first, 12 on 1970-01-01 00:00 UTC, when 12 results were there." in caveats
    assert "multiplied by 2" in caveats
    again = [line(1, 6), line(2, 6), line(3, 12, 5), line(4, 12, 5)]
    assert "multiplied by 2" in " ".join(verdict(results_of(errors, **{amendments.KEY: again})).caveats)


def test_descriptions_from_elsewhere_may_say_anything_of_metrics():
    amendments.refuse_other_direction({"metric": "x", "others": ["y"]}, {"metric": {"name": "error"}, "others": None})


@pytest.mark.usefixtures("one_thread")
def test_what_is_chosen_when_results_are_there_is_said(tmp_path):
    compare(tmp_path, **FEW, margin=1.0)
    later = FEW | {"methods": ["original", "none", "uniform"], "reference": "none", "margin": 40.0}
    compare(tmp_path, **later)
    caveats = " ".join(compare(tmp_path, **later).verdict.caveats)
    assert "count as negligible, which the experiment chose when results were there." in caveats
    for words in ("The margin was changed from 1.0 to 40.0 on", "The reference was changed from original to none on"):
        assert words in caveats
    assert "when 2 results were there: uniform. Every method added is one more chance" in caveats
    assert caveats.count("was changed") == 2
    metric = lab.Metric("mine", lambda output, batch: output.sum(1))
    compare(tmp_path, **FEW, name="other", metric=metric)
    turned = dataclasses.replace(metric, better="higher")
    message = refusal(compare, tmp_path, **FEW, name="other", metric=turned)
    assert message.startswith("metric mine: lower was better when the results ")
    assert " now higher is to be" in message


# ---- behaviour


def named(name, function):
    """The function under a name, by which keys know it."""
    function.__qualname__ = name
    return function


def wider():
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 2))


def distance(factor):
    return {"metric": lab.Metric("distance", lambda output, batch: factor * output.argmax(1).float())}


def schedule(factor):
    return {"scheduler": lambda optimizer, total: torch.optim.lr_scheduler.StepLR(optimizer, 3, factor)}


def smooth(amount):
    return {"loss": lambda output, batch: nn.functional.cross_entropy(output, batch[1]) + 0 * amount}


def measured(sign):
    return {"measure": lambda model, parts, seed: {"first": sign * next(model.parameters()).detach().numpy()}}


def descent(momentum):
    return {"optimizer": lambda network: torch.optim.SGD(network.parameters(), 0.1, momentum=momentum)}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("change", "other", "message"),
    [
        ({}, {"model": named("model", wider)}, "with original, the loss of step 1 is"),
        ({}, {"data": named("data", lambda: lab.Data((X + 1, Y), 0.25, 0.2))}, "its data are others"),
        (distance(1), distance(2), "with original, metric distance has other values"),
        (schedule(0.5), schedule(0.1), "with original, learning rates has other values"),
        (measured(1), measured(-1), "with original, measure has other values"),
        (descent(0.0), descent(0.9), "with original, optimizer has other values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changed_code_is_refused_where_there_are_results(tmp_path, change, other, message):
    compare(tmp_path, **FEW, **change, **smooth(1))
    compare(tmp_path, **FEW, **change, **smooth(2), runs=2)  # the first steps are the same
    said = refusal(compare, tmp_path, **FEW, **change | other, **smooth(2), runs=3)
    assert "is not what " in said
    assert BEGUN + message in said
    with Store(tmp_path / "runs.db") as store:
        assert len(store.jobs()) == 4


def test_a_changed_loop_is_refused_and_merging_says_so(tmp_path):
    def one(job):
        """Return a number."""
        return 1.0

    def loop(run, name, runs=1):
        study = lab.Study("own", metric=lab.Metric("loss"), run=run, runs=runs, methods=["original"])
        return lab.compare(study, store=tmp_path / f"{name}.db", workers=0, device="cpu", progress=False)

    other = named(one.__qualname__, lambda job: 2.0)
    for name, run in (("one", one), ("two", other), ("three", one)):
        loop(run, name)
    assert len(loop(one, "one", runs=2).results.finished) == 2
    assert "one.db was begun with: the code of its loop is another; give" in refusal(loop, other, "one")
    assert imports.merge(tmp_path / "same.db", [tmp_path / "one.db", tmp_path / "three.db"]).notes == ()
    with Store(tmp_path / "one.db") as first, Store(tmp_path / "two.db") as second:
        here, there = (store.protocols()[0].description for store in (first, second))
    words = "the study that is added is not the one in the store: the code of its loop is another"
    assert list(imports._differences(here, there)) == [words]


def test_comments_docstrings_and_more_runs_leave_a_loop_what_it_is(tmp_path):
    text = 'def run(job):\n    """Old."""\n    return 1.0\n\nstudy = lab.Study("a", run=run, runs=2, epochs=3)\n'
    changes = [("", ""), ("1.0", "1.0  # one"), ("Old.", "New."), ("runs=2", "runs=9"), ("1.0", "2.0"), ("=3", "=4")]
    digests = []
    for number, (old, new) in enumerate(changes):
        path = tmp_path / f"{number}.py"
        path.write_text(text.replace(old, new) if old else text)
        digests.append(amendments.loop_digest(None, path))
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(set(digests)) == 3
