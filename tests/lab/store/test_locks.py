"""Locks of jobs: released with their process, and by nothing else."""

import subprocess
import sys

from test_writer import path as path
from test_writer import store as store

from contdrop.lab.store.writer import Store


def test_lock_is_free_again_after_a_kill(store, path):
    code = "import sys, time; from contdrop.lab.store.locks import Locks; import pathlib\n"
    code += "l = Locks(pathlib.Path(sys.argv[1])); print(l.acquire(7), flush=True); time.sleep(60)"
    locks = path.with_name(path.name + "-locks")
    process = subprocess.Popen([sys.executable, "-c", code, str(locks)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    assert not store.locks.acquire(7)
    assert store.locks.is_held(7)
    assert not store.locks.is_held(8)
    process.kill()
    process.communicate()
    assert store.locks.acquire(7)
    assert store.locks.is_held(7)
    assert not store.locks.acquire(7)


def test_releasing_a_lock_leaves_its_neighbours_held(store, path):
    for number in (6, 7, 8):
        assert store.locks.acquire(number)
    store.locks.release(7)
    code = (
        "import sys, pathlib; from contdrop.lab.store.locks import Locks; locks = Locks(pathlib.Path(sys.argv[1])); "
        "print([locks.is_held(number) for number in (6, 7, 8)])"
    )
    done = subprocess.run([sys.executable, "-c", code, f"{path}-locks"], capture_output=True, text=True, check=False)
    assert done.stdout == "[True, False, True]\n", done.stderr


def test_looking_at_a_lock_does_not_take_it(store, path):
    for _ in range(2):
        assert not store.locks.is_held(3)
    taken = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3); print('taken')"
    )
    command = [sys.executable, "-c", taken, f"{path}-locks"]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.stdout == "taken\n", other.stderr
    assert store.locks.acquire(3)


def test_closing_a_second_store_of_a_process_drops_no_lock(store, path):
    assert store.locks.acquire(7)
    with Store(path) as other:
        assert other.locks.is_held(7)
        assert not other.locks.acquire(7)
    code = "import sys, pathlib; from contdrop.lab.store.locks import Locks; "
    code += "print(Locks(pathlib.Path(sys.argv[1])).acquire(7))"
    command = [sys.executable, "-c", code, f"{path}-locks"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    store.locks.release(7)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
