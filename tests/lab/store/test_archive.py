"""Archives, imports and merges: everything arrives, nothing is mixed up, and every damage is one line."""

import contextlib
import dataclasses
import gzip
import json
import pathlib
import random
import re
import tracemalloc

import numpy as np
import pytest

import stores
from contdrop.errors import UserError
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.verdict import analyze, verdict
from contdrop.lab.report import page, protocol, tables
from contdrop.lab.store import archive, imports, integrity, schema
from contdrop.lab.store.reader import pack
from contdrop.lab.store.results import collect_all, remedy
from contdrop.lab.store.schema import FINAL, FINISHED, PROCESSOR
from contdrop.lab.store.writer import Store, write_artefacts

OPTIONS = {"methods": ("none", "gaussian", "uniform"), "runs": 3, "epochs": 3, "images": 60, "selection": True}


@pytest.fixture
def full(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "runs.db"
    stores.make_store(path, **OPTIONS, failed=[("none", 1)], missing=[("uniform", 2)], covariance=True)
    return path


def test_archive_is_the_same_bytes_and_comes_back_whole(cli, full, tmp_path):
    code, out, _ = cli("export", "--store", full, "--archive", "one.gz")
    assert (code, out) == (0, "one.gz: 11 jobs. To read it: contdrop import one.gz --store FILE\n")
    cli("export", "--store", full, "--archive", "two.gz")
    assert pathlib.Path("one.gz").read_bytes() == pathlib.Path("two.gz").read_bytes()
    code, out, err = cli("import", "one.gz", "--store", "new.db")
    assert (code, out, err) == (0, "new.db: 11 jobs added.\n", "")
    with Store(full) as old, Store("new.db") as new:
        assert new.protocols() == old.protocols()
        for one, other in zip(old.jobs(), new.jobs(), strict=True):
            assert other.origin.startswith("one.gz (SHA-256 ")
            assert vars(other) == {**vars(one), "origin": other.origin}
            assert new.epochs(other.id) == old.epochs(one.id)
            assert new.artefact_digests(other.id) == old.artefact_digests(one.id)
        key = old.protocols()[0].key
        assert new.selections(key) == old.selections(key)
        assert integrity.check(new) == []
    code, out, _ = cli("import", "one.gz", "--store", "new.db")
    assert (code, out) == (0, "new.db: 0 jobs added, 11 jobs there already.\n")


def test_report_of_an_imported_store_is_the_same_to_the_byte(full, tmp_path, monkeypatch):
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])  # slow, and made of the same numbers
    archive.export(full, tmp_path / "archive.gz")
    (tmp_path / "b").mkdir()
    imports.import_file(tmp_path / "archive.gz", tmp_path / "b" / "runs.db")
    pages = [page.write(tmp_path / place / "runs.db", tmp_path / place / "out") for place in "ab"]
    for one, other in zip(*([made.index, *made.tables, *made.figures] for made in pages), strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()
    with Store(full) as store, store.transaction() as db:  # nor does it matter when the page is written
        db.execute("UPDATE jobs SET created = 1e9, started = 1e9, ended = 1e9")
        schema.update(db, "jobs", {}, "TRUE")
    assert "as of 2001-09-09 01:46 UTC<" in page.write(full, tmp_path / "old").index.read_text()


def test_import_of_a_run_does_only_what_is_missing(cli):
    """A real run of two, archived, imported, and carried on with: the result is that of an undisturbed run."""
    small = ["digits-mlp", "--methods", "none,uniform", "--epochs", "2"]
    assert cli("run", *small, "--runs", "1", "--store", "first.db")[0] == 0
    cli("export", "--store", "first.db", "--archive", "first.gz")
    cli("import", "first.gz", "--store", "second.db")
    code, _, err = cli("run", *small, "--runs", "2", "--store", "second.db")
    assert code == 0, err
    assert "2 of them are done already" in err
    cli("run", *small, "--runs", "2", "--store", "whole.db")
    with Store("second.db") as second, Store("whole.db") as whole:
        assert [r.origin is None for r in second.jobs()] == [False, False, True, True]
        assert [r.results for r in second.jobs()] == [r.results for r in whole.jobs()]


def test_nothing_is_pickled(full, tmp_path):
    archive.export(full, tmp_path / "archive.gz")
    lines = gzip.decompress((tmp_path / "archive.gz").read_bytes()).decode("ascii").splitlines()
    kinds = [json.loads(line)["record"] for line in lines]
    assert kinds[:2] == ["contdrop archive", "protocol"]
    assert kinds[-1] == "end"
    assert kinds.count("job") == 11
    labels = {json.loads(line)["artefacts"].get("test_labels") for line in lines if '"record":"job"' in line}
    assert len(labels - {None}) == 1  # an array that many jobs have is there once


def test_damaged_archives_are_one_line_each_and_add_nothing(full, tmp_path):
    archive.export(full, tmp_path / "archive.gz")
    whole = (tmp_path / "archive.gz").read_bytes()
    text, chooser = gzip.decompress(whole), random.Random(0)
    for case in range(200):
        content = bytearray(whole if case % 2 else text)
        if case % 5 == 0:
            content = content[: chooser.randrange(len(content))]
        elif case % 5 == 1:
            del content[(at := chooser.randrange(len(content))) : at + 50]
        else:
            content[chooser.randrange(10 if case % 2 else 0, len(content))] ^= 1 << chooser.randrange(8)
        path = tmp_path / "damaged.gz"
        path.write_bytes(content if case % 2 else gzip.compress(content, 1))
        with contextlib.suppress(UserError):  # nothing else
            assert len(archive.read(path).jobs) == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {**r, "run": "0"}, "JobRecord.run: expected int, got str"),
        (lambda r: {**r, "status": "odd"}, "a job's status is 'odd'"),
        (lambda r: {**r, "curve": [[1, 2]]}, "zip()"),
        (lambda r: {**r, "machine": []}, "JobRecord.machine: expected dict"),
        (lambda r: {**r, "artefacts": {"x": "none"}}, "none"),
        (lambda r: {**r, "odd": 1}, "odd"),
    ],
)
def test_archive_that_lies_with_right_checksums(full, tmp_path, change, message):
    _read_lie(full, tmp_path, lambda record: record["record"] == "job", change, message)


def test_array_that_differs_from_itself(full, tmp_path):
    message = "an array differs from one that differs itself"
    _read_lie(full, tmp_path, lambda record: "xor" in record, lambda r: {**r, "xor": r["id"]}, message)


def _read_lie(store, directory, chosen, change, message):
    with Store(store) as opened:
        records = list(archive._records(archive.read_store(opened)))
    at = next(i for i, record in enumerate(records) if chosen(record))
    records[at] = change(records[at])
    lines = b"".join(map(archive._line, records))
    end = {"record": "end", "lines": len(records), "all": archive.hashlib.sha256(lines).hexdigest()}
    (directory / "lie.gz").write_bytes(gzip.compress(lines + archive._line(end)))
    with pytest.raises(UserError) as caught:
        archive.read(directory / "lie.gz")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


HEADER = archive._line({"record": "contdrop archive", "version": archive.VERSION})


def refusal(path):
    """What is said of an archive, and that saying it took little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            archive.read(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def bomb(path, start, part, parts, end):
    with gzip.open(path, "wb", 1) as file:
        file.write(start)
        for _ in range(parts):
            file.write(part * 100_000)
        file.write(end)
    assert path.stat().st_size < 2_000_000
    return path


@pytest.mark.parametrize(
    ("start", "part", "message"),
    [
        (b'{"record":"contdrop archive","curve":[', b"[],", "its first line is not that of version 2"),
        (HEADER + b'{"record":"job","curve":[', b"[],", "it holds more text than a file of its size should"),
        (HEADER + b'{"data":"","shape":[', b"[],", "it holds more text than a file of its size should"),
        (HEADER, b'{"data":"\n', "expected a complete archive of contdrop; "),
        (HEADER, b"\n", "expected a complete archive of contdrop; "),
    ],
)
def test_small_file_fills_no_memory(tmp_path, start, part, message):
    assert message in refusal(bomb(tmp_path / "bomb.gz", start, part, 300, b"[]]}\n"))


def test_text_of_an_archive_is_bounded_and_so_is_a_line_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_LONGEST", 10_000_000)
    path = bomb(tmp_path / "bomb.gz", HEADER + b'{"data":"', b"A", 110, b'"}\n')
    assert "a line of it has more than 10,000,000 bytes" in refusal(path)
    monkeypatch.setattr(archive, "LIMIT", 9_000_000)
    path = bomb(tmp_path / "bomb.gz", HEADER + b'{"data":"', b"A", 95, b'"}\n')
    assert "it holds more than 9,000,000 bytes" in refusal(path)


def test_no_archive_is_written_that_could_not_be_read(full, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LIMIT", 5_000)
    with pytest.raises(UserError, match=r"^--archive: .*: it holds more than 5,000 bytes; .*--small"):
        archive.export(full, tmp_path / "archive.gz")
    assert not (tmp_path / "archive.gz").exists()


def test_too_little_memory_is_one_line(full, tmp_path, monkeypatch):
    archive.export(full, tmp_path / "archive.gz")

    def exhaust(*_):
        raise MemoryError

    monkeypatch.setattr(archive, "_decoded", exhaust)
    assert refusal(tmp_path / "archive.gz") == (
        f"{tmp_path}/archive.gz: expected an archive that fits into memory; it does not; read it on a larger machine, "
        "or ask for one by: contdrop export --small"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {**r, "shape": [len_of(r), 1]}, "an array differs in shape or type from what it is written by"),
        (lambda r: {**r, "xor": "x" * 5000}, "'xxx"),
        (lambda r: {**r, "dtype": "\x1b[2J" + "x" * 5000}, "data type '"),
    ],
)
def test_arrays_that_lie_with_right_checksums(full, tmp_path, change, message):
    _read_lie(full, tmp_path, lambda record: "xor" in record, change, message)


def len_of(record):
    return record["shape"][0]


def test_archives_of_the_replication_are_read():
    paths = sorted((pathlib.Path(__file__).parents[3] / "results").glob("*.jsonl.gz"))
    assert len(paths) > 5
    assert all(archive.read(path).jobs for path in paths[:3])


# ---- merging


def test_merge_joins_keeps_origins_and_finishes_what_one_has(cli, tmp_path):
    stores.make_store("one.db", **OPTIONS, missing=[("uniform", 0)])
    stores.make_store("two.db", **OPTIONS, missing=[("none", 1), ("none", 2)])
    code, out, err = cli("merge", "all.db", "one.db", "two.db")
    assert (code, err) == (0, "")
    assert out == "all.db: 12 jobs added, 10 jobs there already.\n"
    with Store("all.db") as store:
        assert {record.status for record in store.jobs()} == {FINISHED}
        assert {record.origin for record in store.jobs()} == {"one.db", "two.db"}
        assert next(r.origin for r in store.jobs() if (r.method, r.run) == ("uniform", 0)) == "two.db"
        assert integrity.check(store) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "all.db"))) == [
        "all.db",
        "all.db-locks",
    ]


def test_conflict_is_found_by_content_and_nothing_is_written(cli):
    stores.make_store("one.db", **OPTIONS)
    stores.make_store("two.db", **OPTIONS, levels={"none": 50.0})
    code, _, err = cli("merge", "all.db", "one.db", "two.db")
    assert code == 2
    assert re.search(r"two.db: digits-mlp none run 0 is finished with error [\d.]+ % here and", err)
    assert "(and 2 other conflicts); nothing was added; leave one of the files out" in err
    assert not pathlib.Path("all.db").exists()
    stores.make_store("three.db", **OPTIONS, failed=[("none", 0)])
    code, _, err = cli("import", "three.db", "--store", "one.db")
    assert "none run 0 is finished with error " in err
    assert "here and failed (diverged" in err


def test_usage_of_merge(cli):
    stores.make_store("one.db", runs=1)
    for arguments, message in (
        (["merge", "one.db", "one.db"], "one.db is there already; give a new name"),
        (["merge", "no/all.db", "one.db"], "make it first"),
        (["merge", "all.db", "none.db"], "none.db: cannot be read: No such file or directory"),
        (
            ["export", "--store", "one.db", "--archive", "one.db"],
            "one.db is another file; choose another name",
        ),
        (["import", "none.gz"], "none.gz: cannot be read"),
    ):
        code, out, err = cli(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


# ---- numbers from elsewhere


TABLE = "method,run,value\n" + "".join(
    f"{m},{r},{v + r / 10}\n" for m, v in (("ours", 1), ("base", 2)) for r in range(6)
)


def test_numbers_are_compared_and_marked(cli, tmp_path, monkeypatch):
    pathlib.Path("table 2.csv").write_text(TABLE)
    code, out, err = cli("import", "table 2.csv", "--store", "new.db", "--reference", "ours")
    assert (code, out, err) == (0, "new.db: 12 jobs added.\n", "")
    _, out, _ = cli("export", "--store", "new.db")
    assert out.splitlines()[1].startswith("table 2,imported,")
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    written = page.write(pathlib.Path("new.db"), tmp_path / "out")
    text = written.index.read_text()
    assert "6 runs, imported" in text
    assert "imported from table 2.csv" in text
    assert "taken on trust" in text
    assert "contdrop import &#39;table 2.csv&#39; --name &#39;table 2&#39; --reference ours --store new.db" in text
    assert cli("check", "new.db")[0] == 0
    assert cli("status", "--store", "new.db")[0] == 0
    stores.make_store("new.db", runs=1)  # beside runs of the lab


def test_numbers_other_than_errors_say_what_they_are(cli):
    """Of an accuracy the higher is the better, and an RMSE may be anything."""
    pathlib.Path("a.csv").write_text(TABLE)
    assert (
        cli("import", "a.csv", "--store", "a.db", "--metric", "accuracy", "--unit", "%", "--better", "higher")[0] == 0
    )
    with Store("a.db") as store:
        (results,) = collect_all(store)
    assert verdict(results).outcome == "worse"
    assert "--metric accuracy --unit % --better higher --store a.db" in protocol.commands(results, "a.db")
    pathlib.Path("b.csv").write_text("method,run,value\na,0,-3\nb,0,1200\n")
    assert "from 0 to 100 per cent (--metric for anything else)" in cli("import", "b.csv", "--store", "b.db")[2]
    assert cli("import", "b.csv", "--store", "b.db", "--metric", "gain", "--margin", "0.5")[0] == 0
    with Store("b.db") as store:
        (results,) = collect_all(store)
    assert (results.measure.name, results.measure.unit, compare(results)["b"].margin) == ("gain", "", 0.5)
    pathlib.Path("b.csv").write_text("method,run,value\nours,0,0.9\nbase,0,0.8\n")
    assert cli("import", "b.csv", "--metric", "auroc", "--store", "area.db")[0] == 0
    with Store("area.db") as store:
        assert store.protocols()[0].description["metric"]["better"] == "higher"
    assert (
        "better: expected lower or higher; got 'more'" in cli("import", "b.csv", "--metric", "x", "--better", "more")[2]
    )


def test_another_margin_or_reference_is_said_and_the_stores_own_stays(cli, tmp_path):
    pathlib.Path("a.csv").write_text(TABLE)
    assert cli("import", "a.csv", "--store", "a.db", "--margin", "0.5")[::2] == (0, "")
    code, _, err = cli("import", "a.csv", "--store", "a.db", "--reference", "base")
    assert (code, err.splitlines()) == (
        0,
        [
            "contdrop: a: its margin is 0.5 in the store and none in what is added; 0.5 stays",
            "contdrop: a: its reference is ours in the store and base in what is added; ours stays",
        ],
    )
    with Store("a.db") as store:
        (results,) = collect_all(store)
    assert "--reference ours --margin 0.5 --store a.db" in protocol.commands(results, "a.db")
    assert "6 runs, imported" in tables.overview(analyze(results)).notes[0]


def test_help_says_what_merge_takes(cli):
    _, out, _ = cli("merge", "--help")
    assert out.index("NEW_STORE") < out.index("STORE_OR_ARCHIVE") < out.index("Join stores")


def test_merge_tells_what_any_of_its_files_brings(cli):
    pathlib.Path("a.csv").write_text(TABLE)
    cli("import", "a.csv", "--store", "one.db")
    cli("import", "a.csv", "--store", "two.db", "--margin", "0.5")
    stores.make_store("three.db", runs=1)
    code, _, err = cli("merge", "all.db", "one.db", "two.db", "three.db")
    assert (code, err) == (0, "contdrop: a: its margin is none in the store and 0.5 in what is added; none stays\n")


def test_numbers_from_elsewhere_claim_no_time_and_no_training(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    found = imports.read_table(tmp_path / "table.csv")
    for job in (content.job for content in found.jobs):
        assert (job.created, job.started, job.ended, job.seconds) == (0.0, None, None, 0.0)
        assert (job.epochs, job.epochs_done, job.configuration["epochs"]) == (0, 0, 0)
    (protocol,) = found.protocols
    assert (protocol.epochs, protocol.created) == (0, 0.0)


def test_first_method_of_a_table_is_the_reference_unless_one_is_named(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    for reference, expected in ((None, "ours"), ("base", "base"), ("ours", "ours")):
        (protocol,) = imports.read_table(tmp_path / "table.csv", reference=reference).protocols
        assert protocol.description["reference"] == expected
        assert protocol.description["methods"] == ["ours", "base"]
    with pytest.raises(UserError, match=r"--reference: .*table\.csv has no method 'bass'; did you mean 'base'"):
        imports.read_table(tmp_path / "table.csv", reference="bass")


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


def test_small_archive_shows_the_same_page_and_joins_its_store(cli, full, tmp_path):
    with Store(full) as store:  # as jobs of several metrics leave it
        job = next(job for job in store.jobs() if (job.status, job.stage) == (FINISHED, FINAL))
        kept = {name: store.artefact(job.id, name) for name in store.artefact_digests(job.id)}
        wrong = np.where(kept["test_predictions"] != kept["test_labels"], np.float32(100), np.float32(0))
        added = {"test_nll": np.full(60, 0.25, np.float32), "test_error": wrong}
        with store.transaction() as db:
            db.execute(
                "UPDATE protocols SET configuration = json_set(configuration, '$.metric', json('[\"error\",\"nll\"]'))"
            )
            schema.update(db, "protocols", {}, "true")
            schema.update_job(
                db,
                job.id,
                **write_artefacts(db, job.id, {name: pack(array) for name, array in sorted((kept | added).items())}),
            )
    assert cli("export", "--store", full, "--archive", "small.gz", "--small")[0] == 0
    assert cli("import", "small.gz", "--store", "a/small.db")[0] == 0
    with Store("a/small.db") as small:
        same = next(each for each in small.jobs() if each.key == job.key)
        assert small.artefact_digests(same.id).keys() == kept.keys()
        assert integrity.check(small) == []
    pages = [page.write(tmp_path / "a" / f"{name}.db", tmp_path / name) for name in ("runs", "small")]
    for one, other in zip(*([*made.tables, *made.figures] for made in pages), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert cli("import", "small.gz", "--store", full)[1].endswith("0 jobs added, 11 jobs there already.\n")
    cli("export", "--store", full, "--archive", "all.gz")
    assert cli("import", "all.gz", "--store", "a/small.db")[1].endswith("0 jobs added, 11 jobs there already.\n")


def test_predictions_are_written_as_what_they_differ_from_the_labels_by(full):
    with Store(full) as store:
        assert any("xor" in record for record in archive._records(archive.read_store(store)))


def test_small_is_about_archives(cli, full):
    code, _, err = cli("export", "--store", full, "--small")
    assert (code, err) == (2, "contdrop: --small: expected --archive FILE with it; it is about archives\n")


def test_what_an_archive_says_itself_is_not_taken_from_the_command(cli, full):
    assert cli("export", "--store", str(full), "--archive", "all.jsonl.gz")[0] == 0
    for options in (("--margin", "0.1"), ("--reference", "none"), ("--better", "higher")):
        code, _, err = cli("import", "all.jsonl.gz", "--store", "new.db", *options)
        assert (code, err.count("\n")) == (2, 1)
        assert f"{options[0]}: expected a CSV file with it; all.jsonl.gz says by itself what is in it" in err
    assert not pathlib.Path("new.db").exists()


def test_stores_that_differ_in_which_values_are_better_are_not_joined(full, tmp_path):
    with Store(full) as store:
        found = archive.read_store(store)
    (first, *_) = found.protocols
    metric = {"name": "error", "unit": "%", "better": "higher"}
    other = dataclasses.replace(first, description={**first.description, "metric": metric})
    with Store(tmp_path / "new.db", create=True) as store:
        imports.add_contents(store, archive.StoreContents((other,), (), ()), "other")
        metric = {**metric, "better": "lower"}
        first = dataclasses.replace(first, description={**first.description, "metric": metric})
        with pytest.raises(UserError, match=r"metric error: higher was better when .* now lower is to be"):
            imports.add_contents(store, archive.StoreContents((first,), (), ()), "first")


def test_a_small_archive_keeps_errors_that_do_not_follow_from_predictions(full):
    with Store(full) as store:
        found = archive.read_store(store)
    (protocol, *_) = found.protocols
    labels = np.array([0, 1, 1, 0], dtype=np.int16)
    arrays = {"test_labels": labels, "test_predictions": 1 - labels}
    configuration = {**protocol.configuration, "metric": ["error"]}
    protocol = dataclasses.replace(protocol, configuration=configuration)
    for errors, kept in ((100.0, False), (50.0, True)):
        content = archive.JobContents(found.jobs[0].job, (), {**arrays, "test_error": np.full(4, errors)})
        content = dataclasses.replace(content, job=dataclasses.replace(content.job, protocol=protocol.key))
        small = archive.reduced(archive.StoreContents((protocol,), (), (content,)))
        assert ("test_error" in small.jobs[0].artefacts) is kept


def test_merging_says_what_helps_against_runs_that_do_not_fit(tmp_path):
    assert remedy("original and none do not share the same data") == "delete the odd runs or use another --store"
    assert remedy(f"original and none do not share {PROCESSOR}").startswith("contdrop run --redo")
