"""The ledger's rules: which runs give which verdict, and that nothing else does."""

import csv
import json
import types

import numpy as np
import pytest
from scipy.stats import t as student

from contdrop.errors import UserError
from contdrop.lab.report import page
from contdrop.lab.store.archive import export
from contdrop.lab.store.schema import Epoch
from contdrop.replication import paper_figures
from contdrop.replication.claims import verdicts
from contdrop.replication.claims.claims import CLAIMS, PLANNED, Claim, Contrast
from contdrop.replication.claims.verdicts import FAILS, HOLDS, OPEN, OUT, EquationResult, Runs, counts, judge
from stores import make_store

METHODS = ("none", "bernoulli", "gaussian", "uniform", "bernoulli-matched", "bernoulli-matched:uniform")


def runs(levels, number=20, *, study="full-relu", metric="test_error", noise=0.1, margin=0.1, seed=0):
    """Runs of a study with these mean values, as a store would give them."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 1, number)
    jobs = [
        types.SimpleNamespace(
            id=place * 1000 + run,
            method=method,
            run=run,
            results={metric: level + shared[run] + float(rng.normal(0, noise))},
        )
        for place, (method, level) in enumerate(levels.items())
        for run in range(number)
    ]
    return {study: Runs(study, tuple(jobs), {}, margin)}


def claim(*tests, rule="each", **settings):
    return Claim("X1", "text", "somewhere", "empirical", "this", "that", tests, rule, **settings)


LESS = Contrast("full-relu", "gaussian", "bernoulli")
OTHER = Contrast("full-relu", "uniform", "bernoulli")


NOT_WORSE = Contrast("full-relu", "gaussian", "bernoulli", relation="not worse")
AUTHORS = Contrast("replication-authors-relu", "gaussian", "bernoulli")
GONE = (("gaussian", 3), ("bernoulli", 5), ("gaussian", 7))


def pair(gap, number=20, **options):
    """Runs of two methods that differ by this on average."""
    return runs({"gaussian": 2 + gap, "bernoulli": 2.0}, number, **options)


def three(gaussian, uniform):
    return runs({"gaussian": gaussian, "uniform": uniform, "bernoulli": 2.0}, noise=0.03)


def alike(number):
    """Runs that all differ alike."""
    found = pair(-1.0, number)
    for job in found["full-relu"].jobs:
        job.results["test_error"] = {"gaussian": 1.0, "bernoulli": 2.0}[job.method]
    return found


def lost(*failed, gone=GONE):
    """Runs of which some are gone, because they failed or were not done yet."""
    jobs = tuple(job for job in pair(-1.0)["full-relu"].jobs if (job.method, job.run) not in gone)
    return {"full-relu": Runs("full-relu", jobs, {}, 0.1, len(failed), failed)}


CASES = {
    **{f"less: {gap:+}": (claim(LESS), pair(gap)) for gap in (-1.0, 1.0, 0.0)},
    "less: runs that cannot tell": (claim(LESS), pair(0.0, noise=1.0)),
    "less: by less than the margin": (claim(LESS), pair(-0.05, noise=0.01)),
    **{
        f"not worse: {gap:+}, noise {noise}": (claim(NOT_WORSE), pair(gap, noise=noise))
        for gap, noise in ((0.0, 0.02), (-1, 0.1), (1, 0.1), (0.1, 0.3))
    },
    **{f"{number} of the planned runs": (claim(LESS), pair(-1.0, number)) for number in (0, 1, 2, 19)},
    "no runs": (claim(LESS), {}),
    "three runs to go": (claim(LESS), lost()),
    "two runs to go, one failed": (claim(LESS), lost(("gaussian", 3))),
    "three runs that failed": (claim(LESS), lost(*GONE)),
    "a failed run of another comparison": (claim(LESS), lost(("uniform", 3))),
    "one run more than planned, two that one method lacks": (
        claim(LESS),
        {
            "full-relu": Runs(
                "full-relu",
                tuple(j for j in pair(-1.0, 21)["full-relu"].jobs if (j.method, j.run) not in GONE[:2]),
                {},
                0.1,
            )
        },
    ),
    "one run, without an interval": (claim(LESS), alike(1)),
    "runs that all differ alike": (claim(LESS), alike(20)),
    "the authors' recipe": (claim(AUTHORS), pair(-1.0, 30, study=AUTHORS.study)),
    **{
        f"{rule}: {gaussian} and {uniform} against 2.0": (claim(LESS, OTHER, rule=rule), three(gaussian, uniform))
        for gaussian, uniform in ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (2.0, 3.0), (2.0, 2.0))
        for rule in ("each", "general")
    },
}


def test_verdicts(snapshot):
    """Verdict, reason and evidence, for runs of every kind."""
    parts = []
    for name, (of, found) in CASES.items():
        (entry,) = judge([of], found, {}, ())
        parts += [f"## {name}", f"{entry.verdict}: {entry.reason}"]
        parts += [*(f"- {each.verdict} ({each.runs} of {each.planned}): {each.text}" for each in entry.evidence), ""]
    snapshot("verdicts", "\n".join(parts))


def test_differences_without_spread_take_no_place_in_holm_s_order():
    """They are no evidence: the other p-value of two is doubled all the same."""
    found = runs({"gaussian": -0.055, "bernoulli": 0.0, "uniform": 0.0}, margin=0.001)
    for job in found["full-relu"].jobs:
        if job.method == "uniform":
            job.results["test_error"] = found["full-relu"].values("bernoulli", "test_error")[job.run] - 1.0
    (entry,) = judge([claim(LESS, OTHER)], found, {}, ())
    less, other = entry.evidence
    assert (other.verdict, other.note) == (OPEN, "all runs differ alike, which is no evidence")
    assert less.comparison.t_p_two_sided_holm == pytest.approx(2 * less.comparison.t_p_two_sided)


def test_one_run_is_drawn_without_an_interval():
    def lines(number):
        entries = judge([claim(LESS)], runs({"gaussian": 2.0, "bernoulli": 2.0}, number), {}, ())
        return len(paper_figures.claims_picture(entries).draw().axes[0].lines)

    assert lines(1) == lines(0) + 1  # a dot
    assert lines(2) == lines(0) + 2  # and a line


def test_a_study_s_comparisons_are_corrected_together():
    found = runs({"gaussian": 1.94, "bernoulli": 2.0, "none": 2.0, "uniform": 2.0}, noise=0.08, margin=None, seed=4)
    alone = judge([claim(LESS)], found, {}, ())[0].evidence[0]
    more = [
        claim(OTHER),
        claim(Contrast("full-relu", "uniform", "none")),
        claim(Contrast("full-relu", "bernoulli", "none")),
    ]
    together = judge([claim(LESS), *more], found, {}, ())[0].evidence[0]
    assert (alone.family, together.family) == (1, 4)
    assert together.comparison.t_p_two_sided_holm == pytest.approx(4 * alone.comparison.t_p_two_sided)
    # The same comparison in two claims is one test.
    twice = judge([claim(LESS), claim(LESS)], found, {}, ())[1].evidence[0]
    assert twice.comparison.t_p_two_sided_holm == alone.comparison.t_p_two_sided


def test_comparisons_without_runs_count_in_the_correction():
    found = runs({"gaussian": 1.94, "bernoulli": 2.0}, noise=0.08, seed=4)
    alone, among = (
        judge([claim(LESS, *more)], found, {}, ())[0].evidence[0]
        for more in ((), (OTHER, Contrast("full-relu", "uniform", "none")))
    )
    assert among.family == 3
    for name in ("t_p_two_sided", "equivalence_p"):
        corrected = min(1.0, 3 * getattr(alone.comparison, name))
        assert getattr(among.comparison, f"{name}_holm") == pytest.approx(corrected)
    (low, high), (lower, higher) = alone.comparison.simultaneous, among.comparison.simultaneous
    quantiles = student.ppf((1 - 0.05 / 2, 1 - 0.05 / 6), 19)
    assert (higher - lower) / (high - low) == pytest.approx(quantiles[1] / quantiles[0])


def test_margin_as_a_share_and_two_metrics_of_one_method():
    test = Contrast("coadaptation", "none", "none", "a", "b", margin_share=0.1)
    rng = np.random.default_rng(0)
    jobs = tuple(
        types.SimpleNamespace(id=run, method="none", run=run, results={"a": 5.0 + rng.normal(), "b": 20 + rng.normal()})
        for run in range(10)
    )
    (entry,) = judge([claim(test)], {"coadaptation": Runs("coadaptation", jobs, {}, 0.1)}, {}, ())
    assert entry.verdict == HOLDS
    assert entry.evidence[0].comparison.margin == pytest.approx(2.0, rel=0.05)


def test_errors_after_some_epochs():
    jobs = (types.SimpleNamespace(id=7, method="gaussian", run=2, results={"test_error": 1.0}),)
    curve = [Epoch(epoch, *[None] * 5, 10.0 - epoch if epoch == 5 else None, 0.1, 1.0) for epoch in (4, 5)]
    found = Runs("full-relu", jobs, {7: curve}, None)
    assert found.values("gaussian", "test_error@5") == {2: 5.0}
    assert found.values("gaussian", "test_error@4") == {}
    assert found.values("gaussian", "test_error") == {2: 1.0}
    assert found.values("bernoulli", "test_error") == {}


def test_equations_and_what_is_out_of_reach():
    exact, near = (claim(equations=("4",), allowed=allowed) for allowed in (("exact",), ("exact", "approximation")))
    equations = {"4": EquationResult("4", "approximation", "approximation good to 1 %")}
    entries = judge([exact, near, claim(untestable="no data"), claim(unplanned="no time")], {}, equations, ())
    assert [entry.verdict for entry in entries] == [FAILS, HOLDS, OUT, OPEN]
    assert entries[1].reason == "(4) approximation good to 1 %"
    assert counts(entries) == {HOLDS: 1, FAILS: 1, OPEN: 1, OUT: 1}
    for ratios, expected in (([0.3, 0.3, 0.3 + 1e-12], FAILS), ([0.3, 0.31], HOLDS)):
        assert judge([claim(trade_off=True)], {}, {}, ratios)[0].verdict == expected


# From archives to the command.


def archive(directory, name, **settings):
    store = directory.parent / f"{name}-{settings.get('epochs', '')}.db"
    plan = PLANNED[name]
    options = {"runs": plan.runs, "epochs": plan.epochs, "images": 2000, "noise": 0.05, "margin": 0.1} | settings
    make_store(store, experiment=name, methods=METHODS, reference="bernoulli", **options)
    export(store, directory / f"{store.stem}{verdicts.ENDING}")


@pytest.fixture
def results(tmp_path):
    directory = tmp_path / "results"
    directory.mkdir()
    return directory


def test_ledger_of_archives(results, cli, tmp_path):
    archive(results, "full-relu", levels={"bernoulli": 3.0, "gaussian": 2.0, "uniform": 3.0, "none": 4.0})
    archive(results, "full-sigmoid", runs=9)
    picture = tmp_path / "claims.svg"
    code, out, _ = cli("claims", "--results", results, "--draws", 1000, "--json", "--plot", picture)
    assert code == 0
    found = json.loads(out)
    entries = {entry["id"]: entry for entry in found["claims"]}
    assert list(entries) == [claim.id for claim in CLAIMS]
    assert entries["E9"]["verdict"] == HOLDS
    assert entries["E7"]["verdict"] == HOLDS
    assert entries["E10"]["verdict"] == OPEN
    assert "full-sigmoid has 1 run to go" in entries["E10"]["reason"]
    assert entries["E28"]["verdict"] == OUT
    assert entries["T1"]["verdict"] == HOLDS
    assert entries["T11"]["verdict"] == FAILS
    (gain,) = entries["E9"]["evidence"]
    assert gain["difference"] == pytest.approx(-1.0, abs=0.1)
    assert gain["simultaneous"][0] < gain["difference"] < gain["simultaneous"][1] < 0
    assert gain["runs"] == gain["planned"] == 20
    assert sum(found["counts"].values()) == len(CLAIMS)
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_the_command_shows_every_claim_and_counts_them(results, cli):
    code, out, _ = cli("claims", "--results", results, "--draws", 1000, "--details")
    assert code == 0
    assert all(f" {claim.id} " in out for claim in CLAIMS)
    assert "4 are not testable here" in out


def test_runs_of_another_size_are_not_those_of_the_protocol(results):
    archive(results, "full-relu", epochs=3)
    assert verdicts.gather(results) == {}


def test_a_run_that_failed_is_not_replaced_by_one_that_was_not_planned(results):
    archive(results, "full-relu", runs=22, failed=[("gaussian", 3), ("gaussian", 21)])
    found = verdicts.gather(results)
    (gain,) = judge([claim(LESS)], found, {}, ())[0].evidence
    assert (gain.runs, gain.planned, gain.verdict) == (19, 20, OPEN)
    assert found["full-relu"].failed == 2
    assert found["full-relu"].lost == (("gaussian", 3),)
    assert sorted(found["full-relu"].values("bernoulli", "test_error")) == list(range(20))


def test_usage_errors(results):
    with pytest.raises(UserError, match=r"--results: expected a directory with archives \(\*.jsonl.gz\)"):
        verdicts.gather(results / "nowhere")


def test_report_shows_what_its_runs_decide(tmp_path, monkeypatch):
    store = tmp_path / "full.db"
    levels = {"bernoulli": 3.0, "gaussian": 2.0, "uniform": 3.0, "none": 4.0}
    settings = {"runs": 20, "epochs": 20, "images": 2000, "noise": 0.05, "margin": 0.1, "levels": levels}
    make_store(store, experiment="full-relu", methods=METHODS, reference="bernoulli", **settings)
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])  # slow, and not what this is about
    written = page.write(store, tmp_path / "out", refresh=1)
    text = (tmp_path / "out/tables/all-claims.csv").read_text(encoding="utf-8")
    rows = {row[0].split()[0]: row for row in csv.reader(text.splitlines()[1:])}
    assert rows["E9"][2] == HOLDS
    assert rows["E12"][2] == OPEN
    assert "full-sigmoid has 10 runs to go" in rows["E12"][3]
    assert "E10" not in rows  # another study's
    assert not any(name.startswith("T") for name in rows)  # no run decides an equation
    assert (tmp_path / "out/figures/all-ledger.svg") in written.figures
    assert "All experiments together" in written.index.read_text(encoding="utf-8")


def test_report_of_other_experiments_has_no_claims(tmp_path, monkeypatch):
    make_store(tmp_path / "other.db", methods=("none", "gaussian"), runs=2)
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    page.write(tmp_path / "other.db", tmp_path / "out", refresh=1)
    assert not list((tmp_path / "out").glob("*/*claims*"))
