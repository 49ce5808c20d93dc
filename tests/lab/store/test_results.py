"""Results of a protocol: paired, of one variant, and with what failed or is missing."""

import numpy as np
import pytest
from test_writer import add, begin, job
from test_writer import path as path
from test_writer import store as store

from contdrop.errors import UserError
from contdrop.lab.store import schema
from contdrop.lab.store.results import collect, remedy
from contdrop.lab.store.schema import PROCESSOR
from contdrop.lab.store.writer import Store
from stores import make_store


def test_results_of_mismatched_runs_are_refused(store):
    one, two = add(store, job("none"), job("gaussian"))
    for number in (one, two):
        begin(store, number)
        store.finish(number, [], {"test_error": 1.0}, {})
    (protocol,) = store.protocols()
    assert collect(store, protocol).errors() == {"none": {0: 1.0}, "gaussian": {0: 1.0}}
    with store.transaction() as db:
        schema.update_job(db, two, fingerprints={"data": "d"})
    with pytest.raises(UserError, match="in run 0 none and gaussian do not share the same data order"):
        collect(store, protocol)


def test_what_helps_against_runs_that_do_not_fit():
    assert remedy("original and none do not share the same data") == "delete the odd runs or use another --store"
    assert remedy(f"original and none do not share {PROCESSOR}").startswith("contdrop run --redo")


def test_results_of_two_variants_under_one_name_are_refused(store):
    numbers = add(store, job("gaussian"), job("gaussian", run=1))
    for number, variant in zip(numbers, ("gaussian:sigma=0.2", "gaussian:sigma=0.3")):
        begin(store, number, variant=variant)
        store.finish(number, [], {"test_error": 1.0}, {})
    with pytest.raises(UserError, match=r"trained as gaussian:sigma=0\.2 and gaussian:sigma=0\.3"):
        collect(store, store.protocols()[0])


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
