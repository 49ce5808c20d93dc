"""Locks of jobs: released with their process, and by nothing else; and where they cannot be relied on."""

import subprocess
import sys

import pytest
from test_writer import path as path
from test_writer import store as store

from contdrop.errors import UserError
from contdrop.lab.store import locks
from contdrop.lab.store.writer import Store


def elsewhere(path, code):
    """What another process prints that has the locks of a store as ``locks``."""
    start = "import pathlib, sys; from contdrop.lab.store.locks import Locks; locks = Locks(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{start}\n{code}", f"{path}-locks"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def test_lock_is_free_again_after_a_kill(store, path):
    process = elsewhere(path, "print(locks.acquire(7), flush=True); input()")
    assert process.stdout.readline() == "True\n"
    assert not store.locks.acquire(7)
    assert [store.locks.is_held(number) for number in (7, 8)] == [True, False]
    process.kill()
    process.communicate()
    assert store.locks.acquire(7)
    assert store.locks.is_held(7)
    assert not store.locks.acquire(7)


def test_releasing_a_lock_leaves_its_neighbours_held(store, path):
    for number in (6, 7, 8):
        assert store.locks.acquire(number)
    store.locks.release(7)
    out, _ = elsewhere(path, "print([locks.is_held(number) for number in (6, 7, 8)])").communicate()
    assert out == "[True, False, True]\n"


def test_looking_at_a_lock_does_not_take_it(store, path):
    for _ in range(2):
        assert not store.locks.is_held(3)
    take = "import fcntl; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3); print('taken')"
    assert elsewhere(path, take).communicate()[0] == "taken\n"
    assert store.locks.acquire(3)


def test_closing_a_second_store_of_a_process_drops_no_lock(store, path):
    assert store.locks.acquire(7)
    with Store(path) as other:
        assert other.locks.is_held(7)
        assert not other.locks.acquire(7)
    assert elsewhere(path, "print(locks.acquire(7))").communicate()[0] == "False\n"
    store.locks.release(7)
    assert elsewhere(path, "print(locks.acquire(7))").communicate()[0] == "True\n"


def test_closing_the_last_store_of_a_process_drops_its_locks(store, path):
    with Store(path) as other:
        assert store.locks.acquire(7)
        store.close()
        assert other.locks.is_held(7)
    assert elsewhere(path, "print(locks.acquire(7))").communicate()[0] == "True\n"


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("nfs4", True), ("cifs", True), ("lustre", True), ("fuse.sshfs", True), ("ext4", False), ("overlay", False)],
)
def test_store_on_a_network_file_system_is_refused(kind, refused, tmp_path, monkeypatch):
    mounts, shared = tmp_path / "mounts", tmp_path / "shared place"
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
