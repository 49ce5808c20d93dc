"""Runs that are added after a look at the results: recorded by the store, and said on the page."""

import dataclasses

import pytest
from test_verdict import noisy, results_of

from contdrop.lab.analysis.verdict import verdict
from contdrop.lab.report import protocol as describing
from contdrop.lab.store import archive, merge
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.lab.study import amendments
from stores import make_store

SMALL = {"methods": ("gaussian", "bernoulli"), "epochs": 1, "images": 50}


def recorded(path):
    with Store(path) as store:
        (results,) = collect_all(store)
    return amendments.plans(results.protocol.description), results


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
        store.add_jobs(protocol.configuration, {"reference": "gaussian"}, protocol.key, again)  # resumed: no look
        store.add_jobs(protocol.configuration, {"reference": "gaussian"}, protocol.key, rows)
    plans, results = recorded(path)
    assert [(plan.runs, plan.results) for plan in plans] == [(3, 0), (8, 4)]
    (told,) = (caveat for caveat in verdict(results).caveats if "Runs were added" in caveat)
    assert told.startswith("Runs were added after results were there: 3 were planned at first, 8 on 20")
    assert (
        ", when 4 results were there. p-values and intervals are not corrected for such looks; multiplied by 2" in told
    )
    size = dict(describing.protocol(results))["Size"]
    assert any(line.startswith("8 runs planned on 20") and line.endswith("4 results there then") for line in size)


def test_the_record_travels_and_is_joined(tmp_path):
    path = make_store(tmp_path / "runs.db", runs=2, **SMALL)
    with Store(path) as store:
        archive.write(archive.read_store(store), tmp_path / "a.jsonl.gz")
    with Store(tmp_path / "copy.db", create=True) as copy:
        for _ in range(2):
            merge.add_contents(copy, archive.read(tmp_path / "a.jsonl.gz"), "a")
    assert recorded(tmp_path / "copy.db")[0] == recorded(path)[0] != []
    first, second = (
        {amendments.KEY: [{"time": time, "runs": 2, "results": 0}], "title": str(time)} for time in (2.0, 1.0)
    )
    both = amendments.joined(first, second)
    assert both["title"] == "2.0"
    assert [plan.time for plan in amendments.plans(both)] == [1.0, 2.0]


@pytest.mark.parametrize(
    "plans", [None, [], [{"time": 1.0, "runs": 6, "results": 5}], [{"time": 1.0, "runs": 3, "results": 0}]]
)
def test_what_is_not_recorded_is_not_claimed(plans):
    description = {} if plans is None else {amendments.KEY: plans}
    results = results_of({"gaussian": noisy(2, runs=6), "bernoulli": noisy(3, runs=6, seed=1)}, **description)
    assert any("does not say when all runs were planned" in caveat for caveat in verdict(results).caveats)


@pytest.mark.parametrize(
    "bad",
    [
        3,
        "text",
        [3],
        [{"time": "x"}],
        [{"time": 1e300, "runs": 1, "results": 0}],
        [{"time": 1.0, "runs": float("inf")}],
    ],
)
def test_a_record_that_makes_no_sense_is_none(bad):
    assert amendments.plans({amendments.KEY: bad}) == amendments.changes({amendments.CHANGES: bad}) == []


def test_runs_added_in_another_store_count_as_added():
    """Merged plans know of the results of their own store alone; the times of the results tell the rest."""
    errors = {"gaussian": noisy(2, runs=12), "bernoulli": noisy(3, runs=12, seed=1)}
    plans = [{"time": 1.0, "runs": 6, "results": 0}, {"time": 5.0, "runs": 12, "results": 0}]
    results = results_of(errors, **{amendments.KEY: plans})
    assert "The number of runs, 12, was fixed before the first result." in verdict(results).caveats
    jobs = tuple(dataclasses.replace(job, ended=2.0 if job.run < 6 else 6.0) for job in results.final)
    caveats = " ".join(verdict(dataclasses.replace(results, final=jobs)).caveats)
    assert "6 were planned at first, 12 on 1970-01-01 00:00 UTC, when 12 results were there." in caveats
    assert "multiplied by 2" in caveats
    again = [
        {"time": time, "runs": runs, "results": 5 * (runs > 6)} for time, runs in ((1, 6), (2, 6), (3, 12), (4, 12))
    ]
    assert "multiplied by 2" in " ".join(verdict(results_of(errors, **{amendments.KEY: again})).caveats)


def test_descriptions_from_elsewhere_may_say_anything_of_metrics():
    amendments.refuse_other_direction({"metric": "x", "others": ["y"]}, {"metric": {"name": "error"}, "others": None})
