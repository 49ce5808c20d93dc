"""Whatever goes wrong, nothing that was done is lost or wrong: the same command completes, to the same numbers.

Every fault strikes a command that trains. A node of Ray that dies is in test_ray.py, for Ray takes its time to start.
"""

import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import sqlite3
import time

import numpy as np
import pytest
from nursery import Nursery
from test_local import content

from contdrop.errors import UserError
from contdrop.lab.store import integrity
from contdrop.lab.store.writer import Store

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds processes by /proc")

STUDY = """
import pathlib
import numpy
import torch
from contdrop import lab

def data():
    found = numpy.load(pathlib.Path(__file__).with_name("data.npz"))
    return lab.Data((found["x"], found["y"]), test=0.25)

def model():
    return torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.4), torch.nn.Linear(16, 2)
    )

study = lab.Study("faulty", data, model, methods=("original", "gaussian", "none"), runs=2, epochs=40)
"""


@pytest.fixture(scope="module")
def nursery():
    opened = Nursery()
    yield opened
    opened.close()


class Bed:
    """A directory with a study and a store, and the command that is to survive."""

    def __init__(self, nursery: Nursery, directory: pathlib.Path) -> None:
        self.nursery, self.directory, self.store = nursery, directory, directory / "runs.db"
        self.log = directory / "log"
        (directory / "study.py").write_text(STUDY)
        self.write_data(0)
        self.runs = 2

    def write_data(self, seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=(240, 12)).astype(np.float32)
        np.savez(self.directory / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))

    def start(self, *, workers: int = 2, **mode: float) -> int:
        self.log.write_text("")
        self.log.chmod(0o666)
        arguments = ["compare", str(self.directory / "study.py"), "--runs", str(self.runs), "--workers", str(workers)]
        return self.nursery.start([*arguments, "--store", str(self.store)], str(self.log), **mode)

    def finish(self, **mode: float) -> None:
        assert self.nursery.wait(self.start(**mode)) == 0, self.log.read_text()

    def train(self) -> int:
        """Starts the command and waits until it trains; it gets more runs where all were done."""
        self.runs += 2 if self.done() else 0
        before = self.epochs()
        number = self.start()
        while self.epochs() <= before and not self.done() and is_alive(number):
            time.sleep(0.02)
        return number

    def epochs(self) -> int:
        return self._count("SELECT count(*) FROM epochs")

    def done(self) -> bool:
        return self._count("SELECT count(*) FROM jobs WHERE status IN ('finished', 'failed')") == 3 * self.runs

    def _count(self, query: str) -> int:
        """Zero while there is nothing to read. What is left open would see the files that a fault deletes."""
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=30)) as db:
                return int(db.execute(query).fetchone()[0])
        except sqlite3.Error:
            return 0

    def kill(self, number: int) -> None:
        with_signal(number, signal.SIGKILL)
        self.nursery.wait(number)

    def beside(self, ending: str) -> pathlib.Path:
        return self.store.with_name(self.store.name + ending)


def is_alive(number: int) -> bool:
    try:
        return " Z" not in pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def with_signal(number: int, kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, kind)


@pytest.fixture
def bed(nursery, tmp_path):
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    return Bed(nursery, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(nursery, tmp_path_factory):
    """What the store is to hold, by the number of runs."""
    made = {}

    def of(runs):
        if runs not in made:
            bed = Bed(nursery, tmp_path_factory.mktemp("undisturbed"))
            bed.runs = runs
            bed.finish()
            made[runs] = content(bed.store)
        return made[runs]

    return of


# ---- the faults; each leaves no process behind


def kill_driver(bed, chance):
    bed.kill(bed.train())


def kill_worker(bed, chance):
    number = bed.train()
    for worker in bed.nursery.workers()[:1]:
        with_signal(worker, signal.SIGKILL)
    time.sleep(chance.uniform(0, 0.3))
    bed.kill(number)


def terminate(bed, chance):
    number = bed.train()
    with_signal(number, signal.SIGTERM)
    bed.nursery.wait(number)


def interrupt(bed, chance):
    number = bed.train()
    with_signal(number, signal.SIGINT)
    assert bed.nursery.wait(number) in (0, 130), bed.log.read_text()
    assert "Traceback" not in bed.log.read_text()


def stop_for_a_while(bed, chance, seconds=0.3):
    number = bed.train()
    stopped = [number, *bed.nursery.workers()]
    for each in stopped:
        with_signal(each, signal.SIGSTOP)
    time.sleep(seconds)
    for each in stopped:
        with_signal(each, signal.SIGCONT)
    time.sleep(chance.uniform(0, 0.2))
    interrupt_now(bed, number)


def interrupt_now(bed, number):
    with_signal(number, signal.SIGINT)
    bed.nursery.wait(number)


def full_disk(bed, chance):
    """No file of the command may grow beyond what there is, give or take: as SQLite sees it, the disk is full."""
    sizes = [path.stat().st_size for path in (bed.store, bed.beside("-wal")) if path.exists()]
    code = bed.nursery.wait(bed.start(workers=1, room=max([*sizes, 20_000]) + chance.randrange(30_000)))
    assert "Traceback" not in bed.log.read_text()
    assert code in (0, 2), bed.log.read_text()


def read_only_directory(bed, chance):
    """For another user, where this one is the administrator, who may write anywhere."""
    kill_driver(bed, chance)
    if os.getuid() == 0:
        code = bed.nursery.wait(bed.start(user=65534))
    else:
        bed.directory.chmod(0o555)
        code = bed.nursery.wait(bed.start())
        bed.directory.chmod(0o755)
    assert code == 2, bed.log.read_text()
    assert "Traceback" not in bed.log.read_text()


def clock_jumps(bed, chance):
    number = bed.start(clock=chance.choice([-3e8, -3600.0, 3600.0, 3e8]))
    time.sleep(chance.uniform(0.2, 0.8))
    bed.kill(number)


def corrupt_checkpoint(bed, chance):
    kill_driver(bed, chance)
    with contextlib.closing(sqlite3.connect(bed.store, timeout=30)) as db, db:
        for job, state in db.execute("SELECT job, state FROM checkpoints").fetchall():
            bad = bytearray(state)
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            db.execute("UPDATE checkpoints SET state = ? WHERE job = ?", (bytes(bad[: chance.choice([None, 99])]), job))


def delete_log(bed, chance):
    lose_log(bed, chance)
    do_as_told(bed)


def lose_log(bed, chance):
    kill_driver(bed, chance)
    wait_for_workers(bed)
    delete_logs(bed)


def delete_logs(bed):
    for ending in ("-wal", "-shm"):
        bed.beside(ending).unlink(missing_ok=True)


def tear(bed, chance):
    """What a disk that is full in the middle of a checkpoint leaves, if the log is deleted after it."""
    lose_log(bed, chance)
    os.truncate(bed.store, bed.store.stat().st_size * chance.randrange(20, 100) // 100)
    do_as_told(bed)


def empty(bed, chance):
    lose_log(bed, chance)
    os.truncate(bed.store, 0)
    code = bed.nursery.wait(bed.start())
    assert (code, "is older than its record" in bed.log.read_text()) == (2, True), bed.log.read_text()
    do_as_told(bed)


def do_as_told(bed):
    """Follow the command's instructions until it no longer refuses the store: start over, or accept the loss."""
    while code := bed.nursery.wait(bed.start()):
        told = bed.log.read_text()
        assert (code, bed.store.exists()) == (2, True), told
        wait_for_workers(bed)
        if "move the file away and give the same command again" in told:
            bed.store.rename(bed.beside("-damaged"))
            delete_logs(bed)
        else:
            assert "delete runs.db-record" in told
            bed.beside("-record").unlink()


def delete_locks(bed, chance):
    """While a command works; another, which sees no lock, joins it."""
    first = bed.train()
    bed.beside("-locks").unlink(missing_ok=True)
    second = bed.start()
    time.sleep(chance.uniform(0.2, 0.6))
    bed.kill(first)
    bed.kill(second)


def out_of_memory(bed, chance):
    number = bed.train()
    for worker in bed.nursery.workers()[:1]:
        try:
            used = int(pathlib.Path(f"/proc/{worker}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.prlimit(worker, resource.RLIMIT_AS, (used, used))
        except (OSError, ValueError, IndexError):
            pass  # it has ended
    time.sleep(chance.uniform(0.1, 0.4))
    bed.kill(number)


def data_change(bed, chance):
    kill_driver(bed, chance)
    bed.write_data(1)
    code = bed.nursery.wait(bed.start())
    assert code == 2, bed.log.read_text()
    assert "is not what" in bed.log.read_text()
    bed.write_data(0)


def two_drivers(bed, chance):
    first = bed.train()
    second = bed.start()
    time.sleep(chance.uniform(0, 0.5))
    bed.kill(first)
    time.sleep(chance.uniform(0, 0.3))
    bed.kill(second)


def copy_in_mid_run(bed, chance):
    """The copy is whole, or is said to be damaged; the store itself does not notice."""
    number = bed.train()
    target = bed.directory / "copy.db"
    for ending in ("", "-wal"):
        if bed.beside(ending).exists():
            shutil.copyfile(bed.beside(ending), target.with_name(target.name + ending))
    time.sleep(chance.uniform(0, 0.3))
    bed.kill(number)
    try:
        with Store(target) as copied:
            integrity.check(copied)
    except UserError:
        pass
    for path in bed.directory.glob("copy.db*"):
        path.unlink()


def wait_for_workers(bed):
    deadline = time.monotonic() + 600  # on a busy machine; a log that is deleted under a process is another fault
    while bed.nursery.workers() and time.monotonic() < deadline:
        time.sleep(0.02)


FAULTS = [
    *(kill_driver, kill_worker, terminate, interrupt, stop_for_a_while, full_disk, read_only_directory, clock_jumps),
    *(
        corrupt_checkpoint,
        delete_log,
        tear,
        empty,
        delete_locks,
        out_of_memory,
        data_change,
        two_drivers,
        copy_in_mid_run,
    ),
]


def check_all(bed, undisturbed):
    wait_for_workers(bed)
    bed.finish()
    with Store(bed.store) as store:
        assert not integrity.check(store)
    assert content(bed.store) == undisturbed(bed.runs)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_after_a_fault_the_same_command_completes_to_the_same_store(fault, bed, undisturbed):
    fault(bed, random.Random(0))
    check_all(bed, undisturbed)


def in_sequence(bed, undisturbed, times, seed):
    chance = random.Random(seed)
    for number in range(times):
        fault = chance.choice(FAULTS)
        print(number, fault.__name__, bed.runs, flush=True)
        fault(bed, chance)
    check_all(bed, undisturbed)


def test_ten_faults_in_sequence_leave_the_store_as_if_nothing_had_been(bed, undisturbed):
    in_sequence(bed, undisturbed, 10, seed=1)


@pytest.mark.slow
def test_two_hundred_faults_in_sequence_leave_the_store_as_if_nothing_had_been(bed, undisturbed):
    in_sequence(bed, undisturbed, int(os.environ.get("CONTDROP_FAULTS", "200")), seed=2)


@pytest.mark.slow
def test_stopped_for_a_minute(bed, undisturbed):
    stop_for_a_while(bed, random.Random(0), seconds=60)
    check_all(bed, undisturbed)
