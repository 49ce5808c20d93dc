"""Large checkpoints and weights: files beside the store that are whole, or are done without."""

import contextlib
import pathlib
import shutil
import sqlite3
import types

import numpy as np
import pytest
from test_integrity import interrupted, outcome
from test_trainer import images as images
from test_trainer import job

from contdrop.errors import UserError
from contdrop.lab.store import archive, blobs, imports, integrity
from contdrop.lab.store.reader import DamageError
from contdrop.lab.store.schema import FINISHED
from contdrop.lab.store.writer import Store, reset_job
from contdrop.lab.study.plan import Variant, add_plan
from contdrop.lab.training import checkpoint, trainer
from contdrop.lab.training import job as running

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(blobs, "LARGE", 0)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.db", create=True) as opened:
        yield opened


def names(store):
    return sorted(path.name for path in store.files.directory.iterdir())


def finish(store, number, images, **changes):
    seen = []
    running.run(store, number, job(**changes), Variant.parse("gaussian"), images, after_epoch=seen.append)
    assert store.job(number).status == FINISHED
    return [epoch.epoch for epoch in seen]


def test_a_job_resumes_from_a_file_and_leaves_none(images, store, tmp_path):
    number = interrupted(store, images)
    (name,) = names(store)
    assert name == store.job(number).key[:32] + "-1.checkpoint"
    assert blobs.is_reference(store.read("SELECT state FROM checkpoints")[0]["state"])
    assert integrity.check(store) == []
    assert finish(store, number, images) == [2, 3]
    assert names(store) == []
    with Store(tmp_path / "undisturbed.db", create=True) as other:
        (same,) = add_plan(other, [job()])
        finish(other, same, images)
        assert outcome(store, number) == outcome(other, same)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [flip, pathlib.Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(bytes(10**6))],
    ids=["flipped", "missing", "empty", "other"],
)  # fmt: skip
def test_a_damaged_file_is_reported_and_the_job_starts_over(images, store, damage):
    number = interrupted(store, images)
    damage(next(store.files.directory.iterdir()))
    assert store.checkpoint(number) is None
    (finding,) = integrity.check(store)
    assert "its checkpoint does not match its checksum" in finding.text
    assert finding.mendable
    assert finish(store, number, images) == [1, 2, 3]
    assert integrity.check(store) == []
    assert names(store) == []


def test_a_copy_of_the_store_without_its_files_starts_over(images, store, tmp_path):
    number = interrupted(store, images)
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(store.path, tmp_path / "copy.db")
    with Store(tmp_path / "copy.db") as copy:
        assert finish(copy, number, images) == [1, 2, 3]
    assert finish(store, number, images) == [2, 3]


def test_an_older_file_goes_when_the_next_is_committed(images, store):
    number = interrupted(store, images)
    half = store.files.directory / f".{store.job(number).key[:32]}-2.checkpoint-x.tmp"
    half.write_bytes(b"killed while writing")
    store.progress(number, [], (2, [b"some", memoryview(b" state")]))
    assert names(store) == [store.job(number).key[:32] + "-2.checkpoint"]


def test_a_write_that_fails_leaves_the_older_checkpoint(images, store, monkeypatch):
    number = interrupted(store, images)
    monkeypatch.setattr(
        "pathlib.Path.touch", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match=r"^cannot write .*: No space left on device; make room .* nothing is lost$"):
        store.progress(number, [], (2, [b"state"]))
    assert store.checkpoint(number)[0] == 1


def test_files_that_no_job_resumes_from_are_swept(images, store):
    number = interrupted(store, images)
    kept = names(store)
    for name in ("f" * 32 + "-3.checkpoint", f".{'f' * 32}-3.checkpoint-x.tmp"):
        (store.files.directory / name).write_bytes(b"of nobody")
    store.remove_stale_checkpoints()
    assert names(store) == kept
    with store.transaction() as db:
        reset_job(db, number)
    store.remove_stale_checkpoints()
    assert names(store) == []


def test_weights_stay_beside_the_store_and_are_checked(images, store, tmp_path):
    (number,) = add_plan(store, [job(weights="last")])
    finish(store, number, images, weights="last")
    assert names(store) == [store.job(number).key[:32] + ".weights"]
    assert "weights" not in store.artefact_digests(number)
    assert integrity.check(store) == []
    assert set(checkpoint.loads(store.weights(number))["network"]) == set(trainer.Trainer(
        job(), Variant.parse("gaussian"), images).network.state_dict())  # fmt: skip
    archive.export(store.path, tmp_path / "a.jsonl.gz")
    for added in (
        imports.import_file(tmp_path / "a.jsonl.gz", tmp_path / "b.db"),
        imports.merge(tmp_path / "c.db", [store.path]),
    ):
        assert added.added == 1
    assert imports.import_file(tmp_path / "a.jsonl.gz", store.path).kept == 1  # equal, weights aside
    with Store(tmp_path / "c.db") as merged:
        assert integrity.check(merged) == []
        assert merged.weights(merged.jobs()[0].id) is None
    flip(store.files.directory / names(store)[0])
    (finding,) = integrity.check(store)
    assert finding.text == f"the weights of job {number} in runs.db-files are gone or changed"
    with pytest.raises(DamageError, match="gone or changed"):
        store.weights(number)


def test_checkpoints_take_at_most_a_twentieth_of_the_time(images, store, monkeypatch):
    """By a clock of our own: an epoch takes a second, and saving a third of one."""
    clock, saves, saved = [0.0], [], Store.progress

    def save(*arguments):
        saved(*arguments)
        clock[0] += 1 / 3
        saves.append(clock[0])

    def pass_a_second(_):
        clock[0] += 1

    ours = types.SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0])
    monkeypatch.setattr(running, "time", ours)
    monkeypatch.setattr(trainer, "time", ours)
    monkeypatch.setattr(Store, "progress", save)
    (number,) = add_plan(store, [job(epochs=50)])
    running.run(
        store,
        number,
        job(epochs=50),
        Variant.parse("gaussian"),
        images,
        checkpoint_seconds=1,
        after_epoch=pass_a_second,
    )
    assert len(saves) in (7, 8)
    assert len(saves) / 3 <= 0.05 * clock[0]


def test_the_first_large_checkpoint_waits_for_its_share(images, monkeypatch):
    network = trainer.Trainer(job(), Variant.parse("gaussian"), images)
    assert network.seconds_to_save == 0
    monkeypatch.setattr(trainer, "LARGE", 0)
    assert network.seconds_to_save == 4 * 4 * sum(p.numel() for p in network.network.parameters()) / 1e8


@pytest.mark.slow
def test_more_than_sqlite_can_hold(images, store):
    number = interrupted(store, images)
    content = np.zeros(11 * 10**8, np.uint8).data
    store.progress(number, [], (1, [content]))
    assert len(store.checkpoint(number)[1]) == 11 * 10**8
