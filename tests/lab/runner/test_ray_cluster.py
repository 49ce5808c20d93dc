"""Jobs on Ray: the same numbers as on this machine, whatever dies, and nothing that listens to the network."""

import fractions
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
from test_local import command, content, finish, listen_to_interrupts

import processes
from contdrop import lab
from contdrop.errors import UserError
from contdrop.lab.data.data import prepare
from contdrop.lab.runner import ray_cluster, runner
from contdrop.lab.runner.queue import JobQueue, WorkerConfig
from contdrop.lab.store.writer import Store
from contdrop.lab.study.plan import add_plan, plan
from contdrop.lab.study.source import StudySource, StudySpec, by_value
from contdrop.lab.training import environment
from contdrop.replication import studies

with pytest.MonkeyPatch.context() as patch:  # Ray decides at its first import where it listens
    for name, value in ray_cluster._HERE.items():
        patch.setenv(name, value)
    package = pytest.importorskip("ray")

STUDY = """
import torch
from contdrop import lab
from neighbour import WIDTH

def data():
    x = torch.randn(240, 12, generator=torch.Generator().manual_seed(0))
    return lab.Data((x, (x[:, 0] > 0).long()), test=0.25)

def model():
    return torch.nn.Sequential(
        torch.nn.Linear(12, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.4), torch.nn.Linear(WIDTH, 2)
    )

study = lab.Study("own", data, model, methods=("original", "gaussian"), runs=2, epochs=300)
"""
NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
LONG = plan(studies.STUDIES["digits-mlp"], labels=["none", "gaussian:sigma=0.3"], runs=2, epochs=200)


class Watcher:
    """Counts what the driver says."""

    def __init__(self):
        self.begun, self.deaths, self.epochs = [], 0, threading.Event()

    def started(self, worker, job_id, job):
        self.begun.append(job_id)

    def epoch(self, worker, job_id, job, epoch):
        self.epochs.set()

    def ended(self, job_id, job):
        pass

    def died(self, worker, job):
        self.deaths += 1


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of one processor each, in processes of this machine; the driver's own has none."""
    others = [os.getpid(), *processes.descendants(os.getpid())]  # of tests before this one, and their ports
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster._HERE.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        ports_of_others = processes.listening(others)
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, **NODE},
        )
        cluster.added = [cluster.add_node(num_cpus=1, **NODE) for _ in range(2)]
        cluster.others, cluster.ports_of_others = others[1:], ports_of_others
        try:
            yield cluster
        finally:
            package.shutdown()
            cluster.shutdown()


def do(nodes, path, jobs, watcher, source=StudySource("catalogue", "digits-mlp")):
    """All jobs of a plan, by the two nodes."""
    protocol = jobs[0].protocol
    data = {} if protocol.study.run else {protocol.key: prepare(protocol.study.data(), task="classification")}
    work = WorkerConfig({protocol.key: StudySpec.of(protocol, source)}, data)
    wanted = ray_cluster.RayResources(address=nodes.address, cpus=1.0)
    with (
        ray_cluster.Cluster(wanted, threads=1, device="cpu") as cluster,
        Store(path, create=True) as store,
    ):
        return ray_cluster.run(JobQueue(store, add_plan(store, jobs), watcher), work, cluster)


def measured(path):
    """All numbers of a store; not the plan's description, which the command adds to."""
    return {table: rows for table, rows in content(path).items() if table != "protocols"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "runs.db"
    arguments = ["--methods", "none,gaussian:sigma=0.3", "--runs", "2", "--epochs", "200", "--workers", "1"]
    finish("run", "digits-mlp", *arguments, store=path)
    return measured(path)


def listening(number, others=(), ports_of_others=frozenset()):
    """Where a process and all that it started listen to the network: not what other tests do beside, or did before."""
    started = [each for each in processes.descendants(number) if each not in others]
    found = processes.listening([number, *started]) - ports_of_others
    return found, processes.beyond_loopback(found)


LISTEN = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(flush=True)
input()
"""


@pytest.mark.parametrize(("host", "is_beyond"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_ports_are_seen_whichever_thread_started_the_process(host, is_beyond):
    started = []
    arguments = [sys.executable, "-c", LISTEN, host]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen(arguments, **pipes)))
    thread.start()
    thread.join()
    with started[0] as process:
        process.stdout.readline()
        found = processes.listening(processes.descendants(os.getpid()))
        mine = processes.listening([process.pid])
        process.stdin.close()
    assert len(mine) == 1
    assert mine <= found
    assert processes.beyond_loopback(mine) == (mine if is_beyond else set())


def test_tensors_travel_without_a_copy_and_unchanged():
    prepared = prepare(studies.STUDIES["digits-mlp"].data(), task="classification")
    content = ray_cluster.packed(prepared)
    assert len(content[0]) < 0.1 * sum(len(array) for array in content[1:])
    again = pickle.loads(content[0], buffers=content[1:])
    assert again.fingerprint == prepared.fingerprint
    for name, source in prepared.sources.items():
        for mine, theirs in zip(source.tensors, again.sources[name].tensors):
            assert mine.dtype == theirs.dtype
            assert mine.equal(theirs)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"executor": "spark"}, "expected local or ray"),
        ({"executor": "local", "address": "auto"}, "expected --executor ray"),
        ({"executor": "ray", "gpus": -1.0}, "--gpus: expected a number from 0"),
        ({"executor": "ray", "gpus": 0.00009}, "--gpus: expected a number from 0, at least 0.0001 if any"),
        ({"executor": "ray", "cpus": 0.0}, "--cpus: expected more than 0, or --gpus with it; got 0"),
    ],
)
def test_wrong_options_get_one_line(given, text):
    with pytest.raises(UserError, match=text):
        runner.find_cluster(**given)


def test_messages_keep_the_epochs_that_training_clears():
    sink, epochs = ray_cluster.RemoteStore(None, "runs.db", "node"), [1, 2]
    sink.progress(7, epochs)
    epochs.clear()
    assert sink.messages.get() == ["progress", [1, 2], None]


def slots(have, **given):
    asked = ray_cluster.RayResources("x", **given)
    cluster = ray_cluster.Cluster(asked, threads=1, device="cpu")
    cluster.nodes = lambda: [{"NodeID": "n", "Alive": True, "Resources": have}]
    return cluster.slots()["n"]


@pytest.mark.parametrize("part", [0.1, 0.2, 0.25, 0.3, 0.6, 0.7, 1.0, 1 / 3, 1 / 7, 0.0001])
@pytest.mark.parametrize("whole", [1, 3, 9])
def test_as_many_parts_as_there_are_fit(part, whole):
    fit = int(fractions.Fraction(whole * 10_000) // round(part * 10_000))
    assert slots({"CPU": float(whole)}, cpus=part) == fit
    assert slots({"CPU": 1e6, "GPU": float(whole)}, cpus=1, gpus=part) == fit
    assert slots({"CPU": fit * round(part, 4)}, cpus=part) == fit


def test_jobs_may_have_a_part_of_a_gpu_and_no_processor():
    assert slots({"CPU": 1.0, "GPU": 2.0}, cpus=0.0, gpus=0.25) == 8
    asked = ray_cluster.RayResources(cpus=0.0, gpus=0.25, workers=4)
    assert ray_cluster.Cluster(asked, threads=3, device="cuda").options["num_cpus"] == 0.0
    assert ray_cluster.Cluster(ray_cluster.RayResources(), threads=3, device="cpu").options["num_cpus"] == 3


def test_two_nodes_give_the_same_bits_as_one_worker(nodes, undisturbed, tmp_path):
    watcher = Watcher()
    outcome = do(nodes, tmp_path / "runs.db", LONG, watcher)
    assert measured(tmp_path / "runs.db") == undisturbed
    assert not outcome.failed
    assert len(watcher.begun) == len(set(watcher.begun)) == len(LONG)
    here, elsewhere = listening(os.getpid(), nodes.others, nodes.ports_of_others)
    assert here, "nothing listens, so this test sees nothing"
    assert not elsewhere, "Ray listens to the network"


def test_node_killed_in_mid_training_loses_nothing(nodes, undisturbed, tmp_path):
    watcher = Watcher()

    def kill():
        watcher.epochs.wait(120)
        nodes.remove_node(nodes.added.pop(), allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        outcome = do(nodes, tmp_path / "runs.db", LONG, watcher)
    finally:
        killer.join()
        nodes.added.append(nodes.add_node(num_cpus=1, **NODE))
        nodes.wait_for_nodes()  # until Ray has noticed which are gone
    assert watcher.deaths >= 1
    assert len(outcome.finished) == len(LONG)
    assert measured(tmp_path / "runs.db") == undisturbed


def test_worker_that_keeps_dying_is_a_failed_job_with_its_reason(nodes, tmp_path):
    def run(job):
        if job.method != "none":
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    study = lab.Study("deadly", methods=("none", "gaussian"), reference="none", run=run, runs=1, metric=lab.Metric("x"))
    watcher = Watcher()
    outcome = do(nodes, tmp_path / "runs.db", plan(study), watcher, by_value(study, StudySource("pickle", "deadly")))
    assert (len(outcome.finished), len(outcome.failed), watcher.deaths) == (1, 1, 3)
    with Store(tmp_path / "runs.db") as store:
        (failed,) = [job for job in store.jobs() if job.status == "failed"]
    assert "its worker ended 3 times in a row" in failed.error


def test_nodes_of_another_kind_do_nothing(nodes, tmp_path):
    class Other(ray_cluster.Cluster):
        def _answer(self, node, ref):
            found = super()._answer(node, ref)
            asked = sorted(node for node, slots in self.slots().items() if slots)  # not the driver's, which has none
            return {**found, "instructions": "none"} if node == asked[0] else found

    wanted = ray_cluster.RayResources(address=nodes.address)
    with Other(wanted, threads=1, device="cpu") as cluster:
        assert len(cluster.refused) == 1
        assert cluster.processes == 1
        assert cluster.choose([]) not in cluster.refused
        (other,) = cluster.refused
        cluster.refused = set()
        with Store(tmp_path / "runs.db", create=True) as store:
            hands = ray_cluster._Driver(JobQueue(store, {}, Watcher()), WorkerConfig({}, {}), cluster)
            machine = {**environment.machine(), "instructions": "none"}
            assert not hands._begin(1, other, {"machine": machine})  # one that came later and began a job
            assert cluster.refused == {other}


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="finds ports by /proc")
def test_own_study_by_the_command_interrupted_and_resumed_on_loopback_only(tmp_path):
    (tmp_path / "own.py").write_text(STUDY)
    (tmp_path / "neighbour.py").write_text("WIDTH = 16\n")
    arguments = ["compare", str(tmp_path / "own.py"), "--out", str(tmp_path / "page"), "--runs", "2"]
    finish(*arguments, store=tmp_path / "local.db")
    store = tmp_path / "ray.db"
    process = subprocess.Popen(
        command(*arguments, "--executor", "ray", "--workers", "2", store=store),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=listen_to_interrupts,
    )  # fmt: skip
    try:
        while "own" not in (line := process.stderr.readline()) or "run" not in line:
            assert line, process.stderr.read()
        here, elsewhere = listening(process.pid)
        assert here, "nothing listens, so this test sees nothing"
        assert not elsewhere, "Ray listens to the network"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "give the same command again to resume" in errors
    assert "Traceback" not in errors
    finish(*arguments, "--executor", "ray", "--workers", "2", store=store)
    assert content(store) == content(tmp_path / "local.db")
