"""Imports, merges and parts of a plan on several machines: nothing is mixed up, and what is wrong is one line."""

import dataclasses
import pathlib
import re
import sqlite3

import pytest
from test_local import content, finish

import stores
from contdrop.cli.session import parse_shard
from contdrop.errors import UserError
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.verdict import analyze, verdict
from contdrop.lab.report import page, protocol, tables
from contdrop.lab.store import archive, imports, integrity
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import is_in, plan
from contdrop.replication import studies

ARGUMENTS = ["run", "digits-mlp", "--methods", "none,gaussian,bernoulli-matched", "--runs", "3", "--epochs", "3"]
SMALL = stores.SMALL


def results_of(path):
    with Store(path) as store:
        (found,) = collect_all(store)
    return found


# ---- parts of a plan


def test_parts_have_whole_runs_and_every_final_job_once():
    jobs = plan(studies.STUDIES["digits-mlp"], runs=7, epochs=1)
    chosen, *parts = ([job for job in jobs if is_in(job, (part, 3))] for part in range(4))
    assert chosen == [job for job in jobs if job.stage == "selection"] != []
    assert [part[: len(chosen)] for part in parts] == [chosen] * 3
    final = [part[len(chosen) :] for part in parts]
    assert sorted(str(job) for part in final for job in part) == sorted(
        str(job) for job in jobs if job.stage == "final"
    )
    runs = [{job.run for job in part} for part in final]
    assert len(set.union(*runs)) == sum(map(len, runs)) == 7


@pytest.mark.parametrize("text", ["", "2", "3/2", "-1/2", "1/0", "a/b", "1/2/3"])
def test_wrong_part_gets_one_line(text):
    with pytest.raises(UserError, match="--shard: expected a part and the number of parts, such as 2/5"):
        parse_shard(text)


def without_origin(path):
    found = content(path)
    for row in found["jobs"]:
        row.pop("origin")
    return found


def test_parts_that_are_merged_are_the_whole_bit_for_bit(tmp_path):
    finish(*ARGUMENTS, store=tmp_path / "whole.db")
    finish(*ARGUMENTS, "--shard", "0/2", store=tmp_path / "1.db")
    with sqlite3.connect(tmp_path / "1.db") as source, sqlite3.connect(tmp_path / "2.db") as copy:
        source.backup(copy)
    for part in ("1", "2"):
        finish(*ARGUMENTS, "--shard", f"{part}/2", store=tmp_path / f"{part}.db")
    out = tmp_path / "merged.db"
    imports.merge(out, [tmp_path / "1.db", tmp_path / "2.db"])
    assert without_origin(out) == without_origin(tmp_path / "whole.db")


# ---- merging


def test_merge_joins_keeps_origins_and_finishes_what_one_has(cli, tmp_path):
    stores.make_store("one.db", **SMALL, missing=[("uniform", 0)])
    stores.make_store("two.db", **SMALL, missing=[("none", 1), ("none", 2)])
    merged = cli("merge", "all.db", "one.db", "two.db")
    assert merged == (0, "all.db: 12 jobs added, 10 jobs there already.\n", "")
    with Store("all.db") as store:
        assert {job.status for job in store.jobs()} == {FINISHED}
        assert {job.origin for job in store.jobs()} == {"one.db", "two.db"}
        assert next(job.origin for job in store.jobs() if (job.method, job.run) == ("uniform", 0)) == "two.db"
        assert integrity.check(store) == []
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "all.db")))
    assert left == ["all.db", "all.db-locks", "all.db-record"]


def test_conflict_is_found_by_content_and_nothing_is_written(cli):
    stores.make_store("one.db", **SMALL)
    stores.make_store("two.db", **SMALL, levels={"none": 50.0})
    code, _, err = cli("merge", "all.db", "one.db", "two.db")
    assert code == 2
    assert re.search(r"two.db: digits-mlp none run 0 is finished with error [\d.]+ % here and", err)
    assert "(and 2 other conflicts); nothing was added; leave one of the files out" in err
    assert not pathlib.Path("all.db").exists()
    stores.make_store("three.db", **SMALL, failed=[("none", 0)])
    code, _, err = cli("import", "three.db", "--store", "one.db")
    assert "none run 0 is finished with error " in err
    assert "here and failed (diverged" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("merge one.db one.db", "one.db is there already; give a new name"),
        ("merge no/all.db one.db", "make it first"),
        ("merge all.db none.db", "none.db: cannot be read: No such file or directory"),
        ("export --store one.db --archive one.db", "one.db is another file; choose another name"),
        ("import none.gz", "none.gz: cannot be read"),
        *(
            (f"import all.jsonl.gz --store new.db {option} {value}",
             f"{option}: expected a CSV file with it; all.jsonl.gz says by itself what is in it")
            for option, value in (("--margin", "0.1"), ("--reference", "none"), ("--better", "higher"))
        ),
    ],
)  # fmt: skip
def test_wrong_files_and_options_are_one_line(cli, arguments, message):
    stores.make_store("one.db", runs=1, images=20)
    assert cli("export", "--store", "one.db", "--archive", "all.jsonl.gz")[0] == 0
    code, out, err = cli(*arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not pathlib.Path("new.db").exists()


def test_help_says_what_merge_takes(cli):
    _, out, _ = cli("merge", "--help")
    assert out.index("NEW_STORE") < out.index("STORE_OR_ARCHIVE") < out.index("Join stores")


def test_stores_that_differ_in_which_values_are_better_are_not_joined(tmp_path):
    with Store(stores.make_store(tmp_path / "runs.db", **SMALL)) as store:
        (first,) = archive.read_store(store).protocols
    higher, lower = (
        dataclasses.replace(first, description={**first.description, "metric": {"name": "error", "better": better}})
        for better in ("higher", "lower")
    )
    with Store(tmp_path / "new.db", create=True) as store:
        imports.add_contents(store, archive.StoreContents((higher,), (), ()), "other")
        with pytest.raises(UserError, match=r"metric error: higher was better when .* now lower is to be"):
            imports.add_contents(store, archive.StoreContents((lower,), (), ()), "first")


# ---- numbers from elsewhere


TABLE = "method,run,value\n" + "".join(
    f"{m},{r},{v + r / 10}\n" for m, v in (("ours", 1), ("base", 2)) for r in range(6)
)


@pytest.fixture
def table(cli):
    """A table in the directory of the command line."""
    path = pathlib.Path("a.csv").absolute()
    path.write_text(TABLE)
    return path


def test_numbers_are_compared_and_marked(cli, tmp_path, monkeypatch):
    pathlib.Path("table 2.csv").write_text(TABLE)
    imported = cli("import", "table 2.csv", "--store", "new.db", "--reference", "ours")
    assert imported == (0, "new.db: 12 jobs added.\n", "")
    _, out, _ = cli("export", "--store", "new.db")
    assert out.splitlines()[1].startswith("table 2,imported,")
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    text = page.write(pathlib.Path("new.db"), tmp_path / "out").index.read_text()
    command = "contdrop import &#39;table 2.csv&#39; --name &#39;table 2&#39; --reference ours --store new.db"
    for part in ("6 runs, imported", "imported from table 2.csv", "taken on trust", command):
        assert part in text
    assert cli("check", "new.db")[0] == 0
    assert cli("status", "--store", "new.db")[0] == 0
    stores.make_store("new.db", runs=1)  # beside runs of the lab


def test_numbers_other_than_errors_say_what_they_are(cli, table):
    """Of an accuracy the higher is the better, and an RMSE may be anything."""
    options = ["--metric", "accuracy", "--unit", "%", "--better", "higher"]
    assert cli("import", "a.csv", "--store", "a.db", *options)[0] == 0
    results = results_of("a.db")
    assert verdict(results).outcome == "worse"
    assert "--metric accuracy --unit % --better higher --store a.db" in protocol.commands(results, "a.db")
    pathlib.Path("b.csv").write_text("method,run,value\na,0,-3\nb,0,1200\n")
    assert "from 0 to 100 per cent (--metric for anything else)" in cli("import", "b.csv", "--store", "b.db")[2]
    assert cli("import", "b.csv", "--store", "b.db", "--metric", "gain", "--margin", "0.5")[0] == 0
    results = results_of("b.db")
    assert (results.measure.name, results.measure.unit, compare(results)["b"].margin) == ("gain", "", 0.5)
    pathlib.Path("b.csv").write_text("method,run,value\nours,0,0.9\nbase,0,0.8\n")
    assert cli("import", "b.csv", "--metric", "auroc", "--store", "area.db")[0] == 0
    assert results_of("area.db").measure.better == "higher"
    err = cli("import", "b.csv", "--metric", "x", "--better", "more")[2]
    assert "better: expected lower or higher; got 'more'" in err


def test_another_margin_or_reference_is_said_and_the_stores_own_stays(cli, table):
    assert cli("import", "a.csv", "--store", "a.db", "--margin", "0.5")[::2] == (0, "")
    assert cli("import", "a.csv", "--store", "a.db", "--reference", "base")[::2] == (
        0,
        "contdrop: a: its margin is 0.5 in the store and none in what is added; 0.5 stays\n"
        "contdrop: a: its reference is ours in the store and base in what is added; ours stays\n",
    )
    results = results_of("a.db")
    assert "--reference ours --margin 0.5 --store a.db" in protocol.commands(results, "a.db")
    assert "6 runs, imported" in tables.overview(analyze(results)).notes[0]


def test_merge_tells_what_any_of_its_files_brings(cli, table):
    cli("import", "a.csv", "--store", "one.db")
    cli("import", "a.csv", "--store", "two.db", "--margin", "0.5")
    stores.make_store("three.db", runs=1)
    code, _, err = cli("merge", "all.db", "one.db", "two.db", "three.db")
    assert (code, err) == (0, "contdrop: a: its margin is none in the store and 0.5 in what is added; none stays\n")


def test_numbers_from_elsewhere_claim_no_time_and_no_training(table):
    found = imports.read_table(table)
    for job in (each.job for each in found.jobs):
        assert (job.created, job.started, job.ended, job.seconds) == (0.0, None, None, 0.0)
        assert (job.epochs, job.epochs_done, job.configuration["epochs"]) == (0, 0, 0)
    (protocol,) = found.protocols
    assert (protocol.epochs, protocol.created) == (0, 0.0)


@pytest.mark.parametrize(("reference", "expected"), [(None, "ours"), ("base", "base"), ("ours", "ours")])
def test_first_method_of_a_table_is_the_reference_unless_one_is_named(table, reference, expected):
    (protocol,) = imports.read_table(table, reference=reference).protocols
    assert (protocol.description["reference"], protocol.description["methods"]) == (expected, ["ours", "base"])
    with pytest.raises(UserError, match=r"--reference: .*a\.csv has no method 'bass'; did you mean 'base'"):
        imports.read_table(table, reference="bass")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("method,run\na,1\n", "expected the columns method, run and value; there is no value"),
        ("method,run,value\n", "there is none"),
        ("method,run,value\na,x,1\n", "line 2: expected a whole number and a number; got 'x', '1'"),
        ("method,run,value\na,1,nan\n", "line 2: expected a method, a run from 0 and an error"),
        ("method,run,value\na,1,2\na,1,3\n", "line 3: a run 1 is there twice"),
        ("method,run,value\na,1,1,9\n", "line 2: expected 3 cells, got 4; decimals have a point"),
        ("method,run,value,value\na,1,1,9\n", "there are several called value"),
        ("method,run,value\na,1,1_5\n", "expected a whole number and a number; got '1', '1_5'"),
        ("method,run,value\na,1\n", "line 2: expected a whole number and a number; got '1', ''"),
        ('method,run,value\n"a,1,2\n', "expected a CSV file of method, run and value"),
        ("\0", "it is neither"),
        ("\ud800", "expected a CSV file of method, run and value"),
    ],
)
def test_bad_tables_are_one_line(cli, table, message):
    pathlib.Path("table.csv").write_bytes(table.encode("utf-8", "surrogatepass"))
    code, out, err = cli("import", "table.csv", "--store", "new.db")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not pathlib.Path("new.db").exists()
