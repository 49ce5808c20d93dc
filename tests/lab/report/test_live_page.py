"""The live page: what it shows of a store that is being written, what it says of early looks, and what a look costs."""

import dataclasses
import itertools
import math
import re

import pytest

from contdrop.errors import UserError
from contdrop.lab.analysis.comparisons import compare, followed_method, interim_results
from contdrop.lab.report import live_page, style
from contdrop.lab.report.live_page import LivePage
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.schema import FINISHED, PLANNED, Epoch
from contdrop.lab.store.writer import Store
from stores import make_store

METHODS = ("none", "bernoulli", "gaussian")
RUNS = 8


@pytest.fixture
def store(tmp_path):
    """All but the last three runs of one method are there."""
    missing = {("gaussian", run) for run in range(5, RUNS)}
    return make_store(tmp_path / "runs.db", methods=METHODS, runs=RUNS, epochs=4, images=100, missing=missing)


def waiting(opened):
    return next(job for job in opened.jobs() if job.status == PLANNED)


def begin(opened, job):
    """As a worker does, but for the lock; what a run shares is as its other methods have it."""
    other = next(each for each in opened.jobs() if (each.run, each.status) == (job.run, FINISHED))
    shared = {"fingerprints": other.fingerprints, "machine": other.machine}
    assert opened.begin(job.id, variant="gaussian:sigma=0.3", seeds={}, versions={}, **shared) is None


def epochs(first, last):
    return [Epoch(number, 1 / number, None, None, 10 / number, None, 3.0, 0.1, 2.0) for number in range(first, last)]


def finish(opened, job, error):
    results = {f"{part}_{what}": error for part in ("train", "val", "test") for what in ("loss", "error")}
    opened.finish(job.id, epochs(1, 5), results, {})


@pytest.fixture
def held(monkeypatch):
    """Locks of this process count as those of a worker: a process does not see its own."""
    monkeypatch.setattr(Store, "is_interrupted", lambda self, job: False)


def described(path, **changes):
    """As a command does that changes only what a report says of a study."""
    with Store(path) as opened:
        (record,) = opened.protocols()
        opened.add_jobs(record.configuration, {**record.description, **changes}, record.key, [])


def _told(live):
    """The words of the page, a heading or paragraph to a line."""
    live.look()
    parts = re.split(r"(?=<h|<p|<tr|<li)", live.fragment)
    return "\n".join(" ".join(re.sub(r"<[^>]*>", " ", part).split()) for part in parts)


def test_every_state_of_a_study(store, tmp_path, held, monkeypatch, snapshot):
    states, live = {}, LivePage(store)
    with Store(store) as opened:
        monkeypatch.setattr(Store, "is_interrupted", lambda self, job: True)
        states["unfinished"] = _told(live)
        described(store, margin=7.25)
        before = live.version
        states["with another margin"] = _told(live)
        assert live.version != before
        described(store, reference="none")
        states["with another reference"] = _told(live)
        described(store, reference="gaussian")
        job = waiting(opened)
        begin(opened, job)
        monkeypatch.setattr(Store, "is_interrupted", lambda self, job: False)
        opened.progress(job.id, epochs(1, 3))
        states["running"] = _told(live)
        assert live.fragment.count('<polyline class="curve"') == 3  # its loss and its error, and the narrowing
        assert not live.is_done
        monkeypatch.setattr(Store, "is_interrupted", lambda self, job: True)  # nobody has its lock
        states["interrupted"] = _told(live)
        opened.fail(job.id, "diverged", [])
        for number in range(2):
            job = waiting(opened)
            begin(opened, job)
            finish(opened, job, 2.0 + number / 10)
    states["finished, a running one failed"] = _told(live)
    assert live.is_done
    assert 'href="/report/"' in live.fragment
    options = {"methods": METHODS, "epochs": 1, "images": 50}
    nothing = make_store(tmp_path / "a.db", runs=2, **options, missing={("bernoulli", run) for run in range(2)})
    states["without a pair of one method"] = _told(LivePage(nothing))
    states["finished"] = _told(LivePage(make_store(tmp_path / "b.db", runs=2, **options)))
    snapshot("live", "\n\n".join(f"## {name}\n{told}" for name, told in states.items()))


def test_one_run_is_no_plural(tmp_path, held, monkeypatch):
    monkeypatch.setattr("contdrop.lab.report.live_page._MOST_CURVES", 1)
    missing = {("gaussian", 0), ("none", 0)}
    path = make_store(tmp_path / "runs.db", methods=METHODS, runs=1, epochs=4, images=50, missing=missing)
    with Store(path) as opened:
        for _ in missing:
            begin(opened, waiting(opened))
        told = _told(LivePage(path))
    assert "The verdict is final when the only planned run is there." in told
    assert "1 more is running, and not drawn." in told


def test_a_loop_of_the_users_own_has_no_epochs_to_show_while_it_runs(store, held, monkeypatch):
    """They reach the store when it ends."""
    real, own = Store.protocols, {"run": {"name": "run"}}
    with Store(store) as opened:
        begin(opened, waiting(opened))
        assert "epoch 0 of 4" in _told(LivePage(store))
        changed = [dataclasses.replace(each, configuration=each.configuration | own) for each in real(opened)]
        monkeypatch.setattr(Store, "protocols", lambda self: changed)
        told = _told(LivePage(store))
    assert "Gaussian, run 5" in told
    assert "epoch 0" not in told


def test_a_note_that_only_the_report_has_makes_it_anew(store):
    live = LivePage(store)
    live.look()
    before = live.version, live.fragment
    described(store, notes=["Another."])
    live.look()
    assert live.fragment == before[1]
    assert live.version != before[0]


def test_a_page_is_known_by_its_start_and_its_colours(store):
    def page(live):
        live.look()
        return live.version.partition(".")[0]

    live = LivePage(store)
    before = page(live)
    assert page(LivePage(store)) != before
    with Store(store) as opened:
        begin(opened, waiting(opened))
    assert page(live) == before
    make_store(store, methods=("uniform", "gaussian"), runs=2, epochs=1, images=50, experiment="other")
    assert page(live) != before  # another method has another colour
    assert f"--c-{style.style('uniform').colour[1:]}" in live.page()
    assert f'data-version="{live.version}"' in live.page()


@pytest.mark.parametrize("studies", [1, 2])
def test_no_level_of_headings_is_left_out(store, studies):
    if studies == 2:
        make_store(store, methods=("uniform", "gaussian"), runs=2, epochs=1, images=50, experiment="other")
    live = LivePage(store)
    live.look()
    levels = [int(level) for level in re.findall(r"<h(\d)", live.fragment)]
    assert levels[0] == 1
    assert max(after - before for before, after in itertools.pairwise(levels)) == 1


def test_a_look_reads_what_has_changed_and_nothing_else(store, monkeypatch):
    read = []
    real = Store.jobs
    monkeypatch.setattr(Store, "jobs", lambda self, **given: read.append(given["ids"]) or real(self, **given))
    for heavy in ("artefact", "curves", "epochs"):
        monkeypatch.setattr(Store, heavy, lambda *_: pytest.fail("too much was read"))
    live = LivePage(store)
    live.look()
    assert [len(ids) for ids in read] == [24]
    before = live.version, live.fragment
    live.look()
    assert read[1] == []
    assert (live.version, live.fragment) == before
    monkeypatch.undo()
    with Store(store) as opened:
        job = waiting(opened)
        begin(opened, job)
    monkeypatch.setattr(Store, "is_interrupted", lambda self, job: False)
    read.clear()
    monkeypatch.setattr(Store, "jobs", lambda self, **given: read.append(given["ids"]) or real(self, **given))
    judged = dict(live._judged)
    live.look()
    assert read == [[job.id]]
    assert live._judged == judged  # nothing has ended, so no test was made again
    assert live.version != before[0]


def test_another_file_under_the_name_is_read_anew(store):
    live = LivePage(store)
    live.look()
    store.unlink()
    make_store(store, methods=("uniform", "gaussian"), runs=2, epochs=1, images=50)
    live.look()
    assert "Uniform" in live.fragment
    assert "Bernoulli" not in live.fragment


def test_names_are_text(tmp_path):
    evil = "<script>alert(1)</script>"
    live = LivePage(
        make_store(tmp_path / "runs.db", methods=(evil, "gaussian"), runs=2, epochs=1, images=50, title=evil)
    )
    live.look()
    assert evil not in live.fragment
    assert evil not in live.page()
    assert "&lt;script&gt;" in live.fragment


def test_errors_are_those_of_the_store(tmp_path):
    with pytest.raises(UserError, match="there is no store"):
        LivePage(tmp_path / "none.db").look()
    Store(tmp_path / "runs.db", create=True).close()
    live = LivePage(tmp_path / "runs.db")
    live.look()
    assert "The store is empty" in live.fragment
    assert not live.is_done


# ---- charts


def test_a_curve_has_what_was_measured_however_long_it_is():
    def of(number):
        every = [
            Epoch(n, 1 / n, None, None, 10.0 if n % 2 == 0 else None, None, None, 0.1, 1.0)
            for n in range(1, number + 1)
        ]
        return [place for place, _ in live_page._values(every, "val_error")]

    assert of(100) == list(range(2, 101, 2))
    assert of(400) == list(range(2, 401, 2))
    assert of(1000) == [*range(2, 1001, 6), 1000]
    assert live_page._values([Epoch(1, math.inf, None, None, None, None, None, 0.1, 1.0)], "train_loss") == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1234560, 1234568), ["1234560", "1234562", "1234564", "1234566", "1234568"]),
        ((-10233.45, -10233.40), ["-10233.445", "-10233.430", "-10233.415", "-10233.400"]),
        ((100000.1, 100000.9), ["100000.2", "100000.4", "100000.6", "100000.8"]),
        ((1e-13, 5e-13), ["1e-13", "2e-13", "3e-13", "4e-13", "5e-13"]),
        ((-1e8, 1e8), ["-1e+08", "-5e+07", "0", "5e+07", "1e+08"]),
        ((0, 0), ["-0.8", "-0.4", "0.0", "0.4", "0.8"]),
        ((3, 40), ["10", "20", "30", "40"]),
    ],
)
def test_ticks_have_the_decimals_that_tell_them_apart(values, expected):
    assert [text.replace("\N{MINUS SIGN}", "-") for _, text in live_page._Axis.around(values).ticks()] == expected


# ---- the interval as it narrows


def test_the_last_look_is_what_the_report_says(store):
    with Store(store) as opened:
        (results,) = collect_all(opened)
    looks = interim_results(results, "bernoulli")
    assert [look.pairs for look in looks] == [1, 2, 3, 4, 5]
    assert math.isnan(looks[0].low)
    found = compare(results)["bernoulli"]
    assert (looks[-1].difference, looks[-1].low, looks[-1].high) == (found.difference, *found.interval)
    widths = [look.high - look.low for look in looks[1:]]
    assert widths[-1] < widths[0]


def test_pairs_come_in_the_order_in_which_they_were_complete(tmp_path):
    path = make_store(tmp_path / "runs.db", methods=METHODS, runs=3, epochs=1, images=50, missing={("gaussian", 0)})
    with Store(path) as opened:
        job = waiting(opened)
        begin(opened, job)
        finish(opened, job, 50.0)
        (results,) = collect_all(opened)
    first, *_, last = interim_results(results, "bernoulli")
    errors = results.errors()
    assert first.difference == pytest.approx(errors["gaussian"][1] - errors["bernoulli"][1])
    assert last.difference > 10  # run 0, which came last


def test_the_plan_decides_what_is_watched(tmp_path):
    def of(*methods):
        with Store(make_store(tmp_path / f"{len(methods)}.db", methods=methods, runs=1, epochs=1, images=20)) as opened:
            return followed_method(collect_all(opened)[0])

    assert of("none", "bernoulli", "gaussian", "bernoulli-matched") == "bernoulli"
    assert of("none", "gaussian", "bernoulli-matched") == "bernoulli-matched"
    assert of("none", "gaussian") == "none"
    assert of("gaussian") is None
