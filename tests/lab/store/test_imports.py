"""Parts of a plan on several machines: merged they are the whole, and no store is shared over a network."""

import sqlite3

import pytest
from test_local import content, finish

from contdrop.cli.session import parse_shard
from contdrop.errors import UserError
from contdrop.lab.store import imports, locks
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import is_in, plan
from contdrop.replication import studies

ARGUMENTS = ["run", "digits-mlp", "--methods", "none,gaussian,bernoulli-matched", "--runs", "3", "--epochs", "3"]


def test_parts_have_whole_runs_and_every_final_job_once():
    jobs = plan(studies.STUDIES["digits-mlp"], runs=7, epochs=1)
    parts = [[job for job in jobs if is_in(job, (part, 3))] for part in range(4)]
    chosen = [job for job in jobs if job.stage == "selection"]
    assert chosen
    assert parts[0] == chosen
    final = [[job for job in part if job.stage == "final"] for part in parts[1:]]
    assert sorted(str(job) for part in final for job in part) == sorted(
        str(job) for job in jobs if job.stage == "final"
    )
    for part in parts[1:]:
        assert part[: len(chosen)] == chosen
    runs = [{job.run for job in part} for part in final]
    assert not runs[0] & runs[1]
    assert not runs[0] & runs[2]
    assert not runs[1] & runs[2]


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


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("nfs4", True), ("cifs", True), ("lustre", True), ("fuse.sshfs", True), ("ext4", False), ("overlay", False)],
)
def test_store_on_a_network_file_system_is_refused(kind, refused, tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    shared = tmp_path / "shared place"
    shared.mkdir()
    place = str(shared.resolve()).replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/home {place} {kind} rw 0 0\n")
    monkeypatch.setattr(locks, "_MOUNTS", mounts)
    if refused:
        with pytest.raises(UserError, match=f"on a network file system \\({kind}\\)"):
            Store(shared / "runs.db", create=True)
        assert not (shared / "runs.db").exists()
    else:
        Store(shared / "runs.db", create=True).close()
    Store(tmp_path / "beside.db", create=True).close()
