"""Archives: everything arrives, no damage passes, and what is wrong is one line."""

import contextlib
import dataclasses
import gzip
import json
import pathlib
import random
import tracemalloc

import numpy as np
import pytest

import stores
from contdrop.errors import UserError
from contdrop.lab.report import page
from contdrop.lab.store import archive, imports, integrity, schema
from contdrop.lab.store.reader import pack
from contdrop.lab.store.schema import FINAL, FINISHED
from contdrop.lab.store.writer import Store, write_artefacts


@pytest.fixture
def full(tmp_path):
    path = tmp_path / "a" / "runs.db"
    path.parent.mkdir()
    missing = {"failed": [("none", 1)], "missing": [("uniform", 2)], "covariance": True}
    return stores.make_store(path, **stores.SMALL, **missing)


def contents(path):
    with Store(path) as store:
        return archive.read_store(store)


def test_archive_is_the_same_bytes_and_comes_back_whole(cli, full, tmp_path):
    code, out, _ = cli("export", "--store", full, "--archive", "one.gz")
    assert (code, out) == (0, "one.gz: 11 jobs. To read it: contdrop import one.gz --store FILE\n")
    cli("export", "--store", full, "--archive", "two.gz")
    assert pathlib.Path("one.gz").read_bytes() == pathlib.Path("two.gz").read_bytes()
    assert cli("import", "one.gz", "--store", "new.db") == (0, "new.db: 11 jobs added.\n", "")
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
    again = "new.db: 0 jobs added, 11 jobs there already.\n"
    assert cli("import", "one.gz", "--store", "new.db")[:2] == (0, again)


def test_report_of_an_imported_store_is_the_same_to_the_byte(full, tmp_path, monkeypatch):
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])  # slow, and made of the same numbers
    archive.export(full, tmp_path / "archive.gz")
    (tmp_path / "b").mkdir()
    imports.import_file(tmp_path / "archive.gz", tmp_path / "b" / "runs.db")
    pages = [page.write(tmp_path / place / "runs.db", tmp_path / place / "out") for place in "ab"]
    for one, other in zip(*([made.index, *made.tables, *made.figures] for made in pages), strict=True):
        assert (one.name, one.read_bytes()) == (other.name, other.read_bytes())
    with (
        Store(full) as store,
        store.amending(store.protocols()[0].key) as db,
    ):  # nor does it matter when the page is written
        schema.update(db, "jobs", {"created": 1e9, "started": 1e9, "ended": 1e9})
    assert "as of 2001-09-09 01:46 UTC<" in page.write(full, tmp_path / "old").index.read_text()


def test_import_of_a_run_does_only_what_is_missing(cli):
    """A real run of two, archived, imported, and carried on with: the result is that of an undisturbed run."""
    small = ["run", "digits-mlp", "--methods", "none,uniform", "--epochs", "2", "--runs"]
    assert cli(*small, "1", "--store", "first.db")[0] == 0
    cli("export", "--store", "first.db", "--archive", "first.gz")
    cli("import", "first.gz", "--store", "second.db")
    code, _, err = cli(*small, "2", "--store", "second.db")
    assert code == 0, err
    assert "2 of them are done already" in err
    cli(*small, "2", "--store", "whole.db")
    with Store("second.db") as second, Store("whole.db") as whole:
        assert [job.origin is None for job in second.jobs()] == [False, False, True, True]
        assert [job.results for job in second.jobs()] == [job.results for job in whole.jobs()]


def test_nothing_is_pickled(full, tmp_path):
    archive.export(full, tmp_path / "archive.gz")
    text = gzip.decompress((tmp_path / "archive.gz").read_bytes()).decode("ascii")
    records = [json.loads(line) for line in text.splitlines()]
    kinds = [record["record"] for record in records]
    assert (kinds[:2], kinds[-1], kinds.count("job")) == (["contdrop archive", "protocol"], "end", 11)
    labels = {record["artefacts"].get("test_labels") for record in records if record["record"] == "job"}
    assert len(labels - {None}) == 1  # an array that many jobs have is there once
    assert any("xor" in record for record in records)  # predictions, by what they differ from the labels


def test_damaged_archives_are_one_line_each_and_add_nothing(full, tmp_path):
    archive.export(full, tmp_path / "archive.gz")
    whole, path = (tmp_path / "archive.gz").read_bytes(), tmp_path / "damaged.gz"
    text, chooser = gzip.decompress(whole), random.Random(0)
    for case in range(200):
        content = bytearray(whole if case % 2 else text)
        if case % 5 == 0:
            content = content[: chooser.randrange(len(content))]
        elif case % 5 == 1:
            del content[(at := chooser.randrange(len(content))) : at + 50]
        else:
            content[chooser.randrange(10 if case % 2 else 0, len(content))] ^= 1 << chooser.randrange(8)
        path.write_bytes(content if case % 2 else gzip.compress(content, 1))
        with contextlib.suppress(UserError):  # nothing else
            assert len(archive.read(path).jobs) == 11


LIES = [
    ("job", lambda record: {"run": "0"}, "JobRecord.run: expected int, got str"),
    ("job", lambda record: {"run": True}, "JobRecord.run: expected int, got bool"),
    ("job", lambda record: {"status": "odd"}, "a job's status is 'odd'"),
    ("job", lambda record: {"curve": [[1, 2]]}, "zip()"),
    ("job", lambda record: {"machine": []}, "JobRecord.machine: expected dict"),
    ("job", lambda record: {"artefacts": {"x": "none"}}, "none"),
    ("job", lambda record: {"odd": 1}, "odd"),
    ("array", lambda record: {"xor": record["id"]}, "an array differs from one that differs itself"),
    ("array", lambda record: {"shape": [record["shape"][0], 1]}, "an array differs in shape or type from what it is"),
    ("array", lambda record: {"xor": "x" * 5000}, "'xxx"),
    ("array", lambda record: {"dtype": "\x1b[2J" + "x" * 5000}, "data type '"),
    ("array", lambda record: {"dtype": "<U4"}, "an array of <U4 is none of numbers"),
]


@pytest.mark.parametrize(("kind", "change", "message"), LIES, ids=[lie[2][:40] for lie in LIES])
def test_archive_that_lies_with_right_checksums(full, tmp_path, kind, change, message):
    records = list(archive._records(contents(full)))
    at = next(i for i, each in enumerate(records) if each["record"] == kind and (kind == "job" or "xor" in each))
    records[at] |= change(records[at])
    lines = b"".join(map(archive._line, records))
    end = {"record": "end", "lines": len(records), "all": archive.hashlib.sha256(lines).hexdigest()}
    (tmp_path / "lie.gz").write_bytes(gzip.compress(lines + archive._line(end)))
    with pytest.raises(UserError) as caught:
        archive.read(tmp_path / "lie.gz")
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


def test_archives_of_the_replication_are_read():
    paths = sorted((pathlib.Path(__file__).parents[3] / "results").glob("*.jsonl.gz"))
    assert len(paths) > 5
    assert all(archive.read(path).jobs for path in paths[:3])


# ---- small archives


def test_small_archive_shows_the_same_page_and_joins_its_store(cli, full, tmp_path):
    with Store(full) as store:  # as jobs of several metrics leave it
        job = next(job for job in store.jobs() if (job.status, job.stage) == (FINISHED, FINAL))
        kept = {name: store.artefact(job.id, name) for name in store.artefact_digests(job.id)}
        wrong = np.where(kept["test_predictions"] != kept["test_labels"], np.float32(100), np.float32(0))
        added = {"test_nll": np.full(60, 0.25, np.float32), "test_error": wrong}
        packed = {name: pack(array) for name, array in sorted((kept | added).items())}
        configuration = {**store.protocols()[0].configuration, "metric": ["error", "nll"]}
        with store.transaction() as db:
            schema.update(db, "protocols", {"configuration": configuration})
            schema.update_job(db, job.id, **write_artefacts(db, job.id, packed))
            schema.recount(db, job.protocol)
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


def test_small_is_about_archives(cli, full):
    message = "contdrop: --small: expected --archive FILE with it; it is about archives\n"
    assert cli("export", "--store", full, "--small")[::2] == (2, message)


@pytest.mark.parametrize(("errors", "kept"), [(100.0, False), (50.0, True)])
def test_a_small_archive_keeps_errors_that_do_not_follow_from_predictions(full, errors, kept):
    found = contents(full)
    (protocol, *_) = found.protocols
    protocol = dataclasses.replace(protocol, configuration={**protocol.configuration, "metric": ["error"]})
    labels = np.array([0, 1, 1, 0], dtype=np.int16)
    arrays = {"test_labels": labels, "test_predictions": 1 - labels, "test_error": np.full(4, errors)}
    job = archive.JobContents(dataclasses.replace(found.jobs[0].job, protocol=protocol.key), (), arrays)
    small = archive.reduced(archive.StoreContents((protocol,), (), (job,)))
    assert ("test_error" in small.jobs[0].artefacts) is kept
