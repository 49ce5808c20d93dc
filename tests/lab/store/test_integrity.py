"""Damage: found by a checksum, reported in one line, done again, and never silently another result."""

import collections
import contextlib
import functools
import gzip
import math
import os
import pathlib
import random
import re
import shutil
import sqlite3
import sys

import pytest
import torch
import typer
from test_trainer import exact, job, start
from test_trainer import images as images
from test_writer import job as planned

import stores
from contdrop.cli import app
from contdrop.errors import UserError
from contdrop.lab.extensions import Extension
from contdrop.lab.report import page
from contdrop.lab.store import integrity, record, schema
from contdrop.lab.store.reader import DamageError
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.schema import FINISHED, PLANNED
from contdrop.lab.store.writer import Store, reset_job
from contdrop.lab.study.plan import Variant, add_plan
from contdrop.lab.training import checkpoint
from contdrop.lab.training import job as running

OLD = pathlib.Path(__file__).with_name("store_of_0_1_0.db.gz")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
pytestmark = pytest.mark.usefixtures("one_thread")

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": [torch.tensor(2.5), {0: None, "x": (1, 2.5)}]}

# ---- checkpoints


class Killed(BaseException):
    pass


def interrupted(store, images):
    """A job with one epoch saved of three."""

    def kill(epoch):
        if epoch.epoch == 2:
            raise Killed

    number = _add_job(store)
    with pytest.raises(Killed):
        running.run(store, number, job(), Variant.parse("gaussian"), images, checkpoint_seconds=0, after_epoch=kill)
    return number


def test_any_bit_of_a_checkpoint_is_noticed_and_the_result_is_the_same(images, tmp_path):
    """Sixty single-bit flips: each time the job starts over, and ends as if nothing had happened."""
    undisturbed = start(images)
    expected = [exact(undisturbed.run_epoch()) for _ in range(3)]
    path, chooser = tmp_path / "runs.db", random.Random(0)
    with Store(path, create=True) as store:
        number = interrupted(store, images)
        (whole,) = store.read("SELECT state FROM checkpoints")[0]
        for _ in range(60):
            flipped = bytearray(whole)
            flipped[chooser.randrange(len(flipped))] ^= 1 << chooser.randrange(8)
            store._db.execute("UPDATE checkpoints SET state = ?", (bytes(flipped),))
            assert store.checkpoint(number) is None
        assert any("its checkpoint does not match" in finding.text for finding in integrity.check(store))
        seen = []
        running.run(store, number, job(), Variant.parse("gaussian"), images, after_epoch=seen.append)
        assert [epoch.epoch for epoch in seen] == [1, 2, 3]
        assert [exact(epoch) for epoch in store.epochs(number)] == expected
        assert store.job(number).status == FINISHED
        assert integrity.check(store) == []


@pytest.mark.parametrize("flips", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_resumed_with_a_flipped_bit_every_job_ends_as_if_undisturbed(images, tmp_path, flips):
    """Each flip is carried to the end: the job finishes with the numbers and predictions that it would have had."""
    with Store(tmp_path / "whole.db", create=True) as store:
        number = _add_job(store)
        running.run(store, number, job(), Variant.parse("gaussian"), images)
        expected = outcome(store, number)
    with Store(tmp_path / "origin.db", create=True) as store:
        number = interrupted(store, images)
    content, chooser, path = (tmp_path / "origin.db").read_bytes(), random.Random(1), tmp_path / "runs.db"
    for _ in range(flips):
        for old in tmp_path.glob("runs.db*"):
            old.unlink()
        path.write_bytes(content)
        with Store(path) as store:
            (whole,) = store.read("SELECT state FROM checkpoints")[0]
            flipped = bytearray(whole)
            flipped[chooser.randrange(len(flipped))] ^= 1 << chooser.randrange(8)
            store._db.execute("UPDATE checkpoints SET state = ?", (bytes(flipped),))
            running.run(store, number, job(), Variant.parse("gaussian"), images)
            assert store.job(number).status == FINISHED
            assert outcome(store, number) == expected
            assert integrity.check(store) == []


def _add_job(store):
    (number,) = add_plan(store, [job()])
    return number


def outcome(store, number):
    artefacts = {name: store.artefact(number, name).tobytes() for name in store.artefact_digests(number)}
    return [exact(epoch) for epoch in store.epochs(number)], store.job(number).results, artefacts


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET epoch = 2",
        "DELETE FROM checkpoints",
        "UPDATE epochs SET val_loss = 0.5",
        "DELETE FROM epochs",
        "UPDATE checkpoints SET state = 'text'",
    ],
)
def test_other_damage_to_what_is_resumed_starts_over(images, tmp_path, damage):
    with Store(tmp_path / "runs.db", create=True) as store:
        number = interrupted(store, images)
        store._db.execute(damage)
        seen = []
        running.run(store, number, job(), Variant.parse("gaussian"), images, after_epoch=seen.append)
        assert [epoch.epoch for epoch in seen] == [1, 2, 3]
        assert store.job(number).status == FINISHED


def test_whole_checkpoint_of_another_version_starts_over(images, tmp_path):
    with Store(tmp_path / "runs.db", create=True) as store:
        number = interrupted(store, images)
        old = store.epochs(number)
        store.drop_progress(number)
        store.progress(number, old, (1, checkpoint.parts({"network": {}, "epoch": 1})))
        running.run(store, number, job(), Variant.parse("gaussian"), images)
        assert (store.job(number).status, len(store.epochs(number))) == (FINISHED, 3)


# ---- a log that is gone


def status(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["contdrop", "status", "--store", str(path)])
    return app.run(), *capsys.readouterr()


def test_deleted_log_is_not_called_a_full_disk(tmp_path, monkeypatch, capsys):
    """For real: one connection writes to a log that is gone, and the next finds an empty one."""
    path = stores.make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=2, missing=[("none", 1)])
    with Store(path) as store:
        (number,) = (record.id for record in store.jobs() if record.status == PLANNED)
        store.begin(number, variant="none", seeds={}, fingerprints={}, versions={}, machine={})
        (tmp_path / "runs.db-wal").unlink()
        store.fail(number, "why")
        code, _, err = status(path, monkeypatch, capsys)
        assert (code, err.count("\n")) == (2, 1)
        assert "runs.db-wal, which belongs to it, was deleted while a process used it: let that process end" in err
        assert "full" not in err
    code, out, _ = status(path, monkeypatch, capsys)  # what the process had written it has saved at its end
    assert code == 0
    assert "why" in out


def test_other_trouble_with_the_disk_is_called_that(tmp_path):
    log, broken = tmp_path / "runs.db-wal", sqlite3.OperationalError("disk I/O error")
    with Store(tmp_path / "runs.db", create=True) as store:
        for content, message in ((b"log", "check the disk"), (b"", "was deleted"), (None, "was deleted")):
            log.unlink() if content is None else log.write_bytes(content)
            with pytest.raises(UserError, match=f"disk I/O error; .*{message}"), store.explained():
                raise broken
        store.path = tmp_path / "device"
        with pytest.raises(UserError, match="disk I/O error; check the disk"), store.explained():
            raise broken


# ---- rows


@pytest.fixture
def path(tmp_path):
    return stores.make_store(
        tmp_path / "runs.db", methods=("none", "gaussian"), runs=3, epochs=3, images=40, selection=True,
        failed=[("none", 2)],
    )  # fmt: skip


def test_whole_store_has_no_findings(path):
    with Store(path) as store:
        assert integrity.check(store) == []


EDITS = {
    "UPDATE jobs SET results = replace(results, '1', '2') WHERE id = 4": "job 4 does not match its checksum",
    "UPDATE jobs SET status = 'planned' WHERE id = 4": "job 4 does not match its checksum",
    "UPDATE jobs SET results = NULL, checksum = NULL WHERE id = 4": "job 4 does not match its checksum",
    "DELETE FROM epochs WHERE job = 4 AND epoch = 2": "the epochs of job 4 do not match their checksum",
    "UPDATE epochs SET test_error = 0 WHERE job = 4 AND epoch = 2": "the epochs of job 4 do not match their checksum",
    "UPDATE artefacts SET content = zeroblob(10) WHERE job = 4": "of job 4 does not match its checksum",
    "DELETE FROM artefacts WHERE job = 4": "of job 4 does not match its checksum",
    "INSERT INTO artefacts VALUES (4, 'x', x'00')": "that it did not write",
    "UPDATE protocols SET description = replace(description, 'Methods', 'Others')": "an experiment does not match",
    "UPDATE selections SET variant = 'gaussian:sigma=9'": "a selection does not match its record",
    "DELETE FROM selections": "1 selections were decided, and 0 are there",
    "DELETE FROM protocols": "the experiment of 8 jobs is missing",
    "INSERT INTO epochs VALUES (99, 1, 1, 1, 1, 1, 1, 1, 1, 1)": "belongs to nothing in jobs",
    "PRAGMA user_version = 1": "expected version 2, 3, 4 or 5 of a store",
    "PRAGMA user_version = 3": "cannot be read, it may be damaged (no such column: planned)",
    "PRAGMA user_version = 2": "cannot be read, it may be damaged (no such column: planned)",
    "PRAGMA user_version = 0": "cannot be read, it may be damaged (table protocols already exists)",
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_rows_are_found(path, edit, monkeypatch, capsys):
    db = sqlite3.connect(path)
    db.execute(edit)
    db.commit()
    db.close()
    monkeypatch.setattr(sys, "argv", ["contdrop", "check", str(path)])
    assert app.run() == 2
    printed = capsys.readouterr()
    assert EDITS[edit] in printed.out + printed.err
    assert "What to do" in printed.out or printed.err


def test_missing_jobs_are_missed(path):
    with Store(path) as store:
        reset_job(store._db, 4)
        store._db.execute("DELETE FROM jobs WHERE id = 4")
        assert any("8 jobs were planned, and 7 are there" in finding.text for finding in integrity.check(store))
        with pytest.raises(DamageError, match="8 jobs were planned"):
            collect_all(store)


def test_error_that_is_not_that_of_the_predictions(path):
    """A hand that also writes the checksum anew is found by arithmetic."""
    with Store(path) as store:
        store._db.execute("UPDATE jobs SET results = json_set(results, '$.test_error', 0.5) WHERE id = 4")
        schema.update_job(store._db, 4)
        (finding,) = integrity.check(store)
        assert "its test error is 0.5 %, and that of its examples" in finding.text
        with pytest.raises(DamageError, match=r"its test error is 0\.5 %, and that of its examples"):
            collect_all(store)


def test_run_does_damaged_jobs_again(path):
    with Store(path) as store:
        protocol = store.protocols()[0]
        before = {record.key: record for record in store.jobs()}
        store._db.execute("UPDATE epochs SET val_loss = 0 WHERE job = 4")
        store._db.execute("UPDATE jobs SET variant = 'other' WHERE id = 5")
        store._db.execute("UPDATE selections SET reason = 'other'")
        found = store.reset_damaged(protocol.key, set(before))
        assert len(found) == 3
        assert (store.job(4).status, store.job(4).results, store.epochs(4)) == (PLANNED, {}, [])
        assert [record.id for record in store.jobs()] == [1, 2, 3, 4, 6, 7, 8]
        assert store.selections(protocol.key) == {}
        assert store.reset_damaged(protocol.key, set(before)) == []
        assert integrity.check(store) == []


def test_a_new_checksum_is_never_given_to_damage(path):
    with Store(path) as store:
        protocol = store.protocols()[0]
        store._db.execute("UPDATE jobs SET method = 'other' WHERE id = 4")
        for write in (
            lambda: store.progress(4, []),
            lambda: store.finish(4, [], {}, {}),
            lambda: store.fail(4, "why"),
            lambda: store.reset_failed(4),
        ):
            with pytest.raises(DamageError, match="job 4 does not match its checksum"):
                write()
        store._db.execute("DELETE FROM selections")
        store.add_jobs({**protocol.configuration, "experiment": "new"}, {}, "new", [])
        with pytest.raises(DamageError, match="1 selections were decided, and 0 are there"):
            store.selections(protocol.key)


def test_damaged_experiment_is_written_anew(path):
    with Store(path) as store:
        protocol = store.protocols()[0]
        store._db.execute("UPDATE protocols SET configuration = '{}', preset = 'paper'")
        assert store.reset_damaged(protocol.key, ()) == ["an experiment does not match its record"]
        store.add_jobs(protocol.configuration, protocol.description, protocol.key, [])
        (mended,) = store.protocols()
        assert (mended.preset, mended.configuration) == (protocol.preset, protocol.configuration)
        assert integrity.check(store) == []


def test_row_checksum_covers_names_types_and_values():
    base = {"a": 1, "b": "x", "c": None}
    assert schema.row_checksum(base) == schema.row_checksum({**base, "d": None, "checksum": "y"})
    others = ({"a": 1.0}, {"a": "1"}, {"a": None}, {"b": b"x"}, {"b": "x1"}, {"c": ""})
    made = [schema.row_checksum({**base, **other}) for other in others]
    assert len({schema.row_checksum(base), *made}) == len(others) + 1


@pytest.fixture
def old(tmp_path):
    """A store that 0.1.0 wrote: four finished jobs, one that failed, one under way, one selection."""
    (tmp_path / "old.db").write_bytes(gzip.decompress(OLD.read_bytes()))
    return tmp_path / "old.db"


def test_store_of_0_1_0_is_migrated(old):
    with contextlib.closing(sqlite3.connect(old)) as db:
        before = db.execute("SELECT key, status, results, curve, artefacts, checksum FROM jobs ORDER BY id").fetchall()
    with Store(old) as store:
        assert integrity.check(store) == []
        after = store.read("SELECT key, status, results, curve, artefacts, checksum FROM jobs ORDER BY id")
        assert [tuple(row) for row in after] == before
        assert [row["status"] for row in after] == ["finished"] * 4 + ["failed", "running"]
        (results,) = collect_all(store)
        assert results.selections["gaussian"].variant == "gaussian:sigma=0.2"
        assert results.errors() == {"none": {0: 5.0}, "gaussian": {0: 5.0}}
        assert [epoch.epoch for epoch in store.epochs(6)] == [1]
        done, state = store.checkpoint(6)
    content = checkpoint.loads(state)
    assert (done, content["b"][0].dtype, content["b"][1:]) == (
        1,
        torch.float64,
        [{0: None, "x": [1, 2.5], "n": math.inf}],
    )
    assert torch.equal(content["a"], torch.arange(6.0).reshape(2, 3).T)
    assert content["a"].stride() == (1, 3)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("UPDATE jobs SET results = replace(results, '1', '2') WHERE id = 4", "job 4 does not match its checksum"),
        ("DELETE FROM selections", "selections were decided, and 0 are there"),
        ("DELETE FROM totals", "2 selections were decided, and 1 are there"),
        ("DELETE FROM jobs WHERE id = 6", "6 jobs were planned, and 5 are there"),
        ("UPDATE protocols SET preset = 'paper'", "an experiment does not match its record"),
    ],
)
def test_migration_does_not_hide_damage(old, edit, expected):
    with contextlib.closing(sqlite3.connect(old)) as db, db:
        db.execute(edit)
    with Store(old) as store:
        assert any(expected in found.text for found in integrity.check(store))


@pytest.mark.parametrize("version", [3, 4])
def test_store_of_a_later_version_is_migrated(path, version):
    path.with_name("runs.db-record").unlink()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.row_factory = sqlite3.Row
        columns = ["checksum TEXT", *(f"{name} INTEGER" for name in schema.COUNTS[: version - 1])]
        (key,) = db.execute("SELECT key FROM protocols").fetchone()
        counts = schema.totals(db, key)
        for table, added in (("protocols", columns), ("selections", columns[:1])):
            for column in added:
                db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        db.execute("ALTER TABLE protocols DROP COLUMN record")
        schema.update(db, "protocols", {name: counts[name] for name in schema.COUNTS[: version - 1]})
        for table in ("protocols", "selections"):
            (row,) = db.execute(f"SELECT * FROM {table}").fetchall()
            db.execute(f"UPDATE {table} SET checksum = ?", (schema.row_checksum(row),))
        db.execute(f"PRAGMA user_version = {version}")
    with Store(path) as store:
        assert integrity.check(store) == []
        (found,) = record.read(store.record).values()
        assert [found[name] for name in ("version", "planned", "finished", "decided")] == [1, 8, 7, 1]
        store._db.execute("DELETE FROM selections")
        assert "1 selections were decided, and 0 are there" in [finding.text for finding in integrity.check(store)]


# ---- one kind of processor


def test_what_another_kind_of_processor_did_of_an_open_run_is_done_again(tmp_path):
    path = stores.make_store(
        tmp_path / "runs.db", methods=("none", "gaussian", "uniform"), runs=3, epochs=2, missing=[("uniform", 1)]
    )
    machine = {"architecture": "x86_64", "instructions": "AVX512", "threads": 1}
    with Store(path) as store:
        ids = [record.id for record in store.jobs()]
        same = {"architecture": "x86_64", "threads": 1}
        assert store.reset_other_processors(ids, same) == []
        (line,) = store.reset_other_processors(ids, machine)
        assert line == (
            "2 jobs of unfinished runs came from another kind of processor (x86_64 ?, 1 thread) than this one "
            "(x86_64 AVX512, 1 thread), and are done again: a run's methods all come from one kind"
        )
        assert {(r.method, r.run) for r in store.jobs() if r.status == PLANNED} == {
            ("none", 1), ("gaussian", 1), ("uniform", 1),
        }  # fmt: skip
        assert store.reset_other_processors(ids, machine) == []


@pytest.mark.parametrize("what", ["threads", "devices"])  # of several devices are stores of 0.1.0
def test_mixed_kinds_in_a_run_are_refused(what, tmp_path):
    path = stores.make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=2, epochs=2)
    with Store(path) as store:
        store._db.execute("UPDATE jobs SET machine = json_set(machine, ?, 2) WHERE id = 1", [f"$.{what}"])
        schema.update_job(store._db, 1)
        with pytest.raises(UserError, match=r"in run 0 .* not share the same kind of processor.*does that run again"):
            collect_all(store)
        (finding,) = integrity.check(store)
        assert finding.mendable


# ---- a file that SQLite cannot read


def end_inside_a_page(path):
    os.truncate(path, path.stat().st_size // 2 + 100)


def change_pages(path):
    with open(path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("damage", [end_inside_a_page, change_pages])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path, damage):
    path = tmp_path / "runs.db"
    with Store(path, create=True) as store:
        jobs = [planned(run=run) for run in range(300)]
        store.add_jobs({"experiment": "e", "preset": "p", "epochs": 2}, {}, "k", jobs)
    damage(path)
    left = path.read_bytes()
    for create in (False, True):
        with (
            pytest.raises(
                UserError,
                match=r"(damaged|malformed).*; run `contdrop check .*runs.db`, .* move the file away and give",
            ),
            Store(path, create=create) as store,
        ):
            store.jobs()
    assert path.read_bytes() == left


# ---- many damaged stores

PAGE = 4096  # bytes of SQLite


def damaged(content, chooser):
    """A damaged copy of a file's bytes, or SQL that edits a row."""
    kind = chooser.randrange(6)
    changed = bytearray(content)
    if kind == 0:
        for _ in range(chooser.choice((1, 1, 1, 8))):
            changed[chooser.randrange(len(changed))] ^= 1 << chooser.randrange(8)
    elif kind == 1:
        return bytes(changed[: chooser.randrange(len(changed))])
    elif kind == 2:
        page = chooser.randrange(len(changed) // PAGE)
        fill = chooser.choice((bytes(PAGE), chooser.randbytes(PAGE), bytes(changed[:PAGE])))
        changed[page * PAGE : (page + 1) * PAGE] = fill
    elif kind == 3:
        at = chooser.randrange(len(changed) - 64)
        changed[at : at + 64] = chooser.randbytes(64)
    elif kind == 4:  # a page that was written in the place of another
        one, other = (PAGE * page for page in chooser.sample(range(len(changed) // PAGE), 2))
        changed[one : one + PAGE] = content[other : other + PAGE]
    else:
        return _edit(chooser)
    return bytes(changed)


def _edit(chooser):
    table = chooser.choice(schema.TABLES)
    columns = [name for name, _ in schema.expected_columns()[table]]
    value = chooser.choice(("NULL", "0", "-1", "1e300", "''", "'x'", "x'ff'", "char(27) || '[2J'", "77", "'{}'"))
    place = chooser.randrange(8)
    which = "epoch = 1"
    if table != "epochs":  # which has no row ids
        which = f"rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET {place} % max(1, (SELECT count(*) FROM {table})))"
    if chooser.random() < 0.25:
        return f"DELETE FROM {table} WHERE {which}"
    return f"UPDATE {table} SET {chooser.choice(columns)} = {value} WHERE {which}"


COMMANDS = {
    "status": ["status", "--store"],
    "export": ["export", "--selection", "--store"],
    "epochs": ["export", "--per-epoch", "--store"],
    "check": ["check"],
    "report": ["report", "--out", "report", "--store"],
}


@pytest.fixture
def outputs(capsys, monkeypatch, tmp_path):
    """What the commands print of a store and write to its page, by command."""
    monkeypatch.chdir(tmp_path)
    # What takes time and does not depend on the store, or is made of the numbers of the tables.
    monkeypatch.setattr(page.figures, "figures", lambda *_: [])
    monkeypatch.setattr(page, "extension", lambda: Extension())
    monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))

    def call(path):
        found = {}
        for name, arguments in COMMANDS.items():
            monkeypatch.setattr(sys, "argv", ["contdrop", *arguments, str(path)])
            code = app.run()
            printed = capsys.readouterr()
            assert code in (0, 2) or (name, code) == ("report", 1)  # 1: a job has failed
            assert "Traceback" not in printed.out + printed.err
            assert printed.err.count("\n") <= 1
            assert not CONTROL.search(printed.out + printed.err)
            found[name] = (code, printed.out, printed.err)
        files = sorted(each for each in pathlib.Path("report").rglob("*") if each.is_file())
        found["page"] = [(str(each), each.read_bytes()) for each in files]
        shutil.rmtree("report", ignore_errors=True)
        return found

    return call


def fuzz(number, tmp_path, outputs, seed):
    """Counts: damage that check reports, none that shows, tracebacks, and other output without a word."""
    content, chooser = _whole(tmp_path), random.Random(seed)
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    expected = outputs(path)
    assert (expected["check"][0], expected["report"][0]) == (0, 1)
    assert expected["page"]
    counts = collections.Counter()
    for case in range(number):
        for old in tmp_path.glob("runs.db*"):
            old.unlink()
        damage = damaged(content, chooser)
        _put(path, content, damage)
        try:
            got = outputs(path)
        except Exception as error:
            kind = f"traceback in case {case} of seed {seed}: {error!r}"
        else:
            silent = f"another output in case {case} of seed {seed}: {damage if isinstance(damage, str) else 'bytes'}"
            kind = "reported" if got["check"][0] == 2 else "unchanged" if got == expected else silent
        counts[kind] += 1
    return counts


def _whole(tmp_path):
    """The bytes of a store with all that one can hold."""
    origin = tmp_path / "whole" / "runs.db"
    origin.parent.mkdir()
    stores.make_store(
        origin, methods=("none", "gaussian"), runs=3, epochs=3, images=30, selection=True, failed=[("none", 1)],
        missing=[("gaussian", 2)],
    )  # fmt: skip
    with Store(origin) as store:
        waiting = next(record.id for record in store.jobs() if record.status == PLANNED)
        store.begin(waiting, variant="x", seeds={}, fingerprints={}, versions={}, machine={})
        done = next(record.id for record in store.jobs() if record.status == FINISHED)
        store.progress(waiting, store.epochs(done)[:1], (1, checkpoint.parts(STATE)))
    with contextlib.closing(sqlite3.connect(origin)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return origin.read_bytes()


def _put(path, content, damage):
    path.write_bytes(content if isinstance(damage, str) else damage)
    if isinstance(damage, str):
        with contextlib.closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.IntegrityError):
            db.execute(damage)
            db.commit()


def test_damaged_stores_give_no_traceback_and_no_other_numbers_unnoticed(tmp_path, outputs):
    counts = fuzz(40, tmp_path, outputs, seed=0)
    assert set(counts) == {"reported", "unchanged"}
    assert counts["reported"] > 20


@pytest.mark.slow
def test_two_thousand_damaged_stores(tmp_path, outputs, capsys):
    counts = collections.Counter()
    for seed in range(1, 11):
        place = tmp_path / str(seed)
        place.mkdir()
        counts += fuzz(200, place, outputs, seed)
        with capsys.disabled():
            print(dict(counts), flush=True)
    assert counts.total() == 2000
    assert set(counts) == {"reported", "unchanged"}
    assert counts["reported"] > 1000
