"""Runner of studies: from a plan to finished jobs in a store, for the command line, Python and the catalogue."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..._text import plural, printable
from ...errors import UserError
from ..data.data import PreparedData, prepare
from ..store import locks
from ..store.results import Results, collect_all, has_one_name, of_other_data, trained_on
from ..store.schema import FAILED, FINAL, FINISHED, PROCESSOR, RUNNING, JobRecord, processor
from ..store.writer import Store
from ..study import amendments, dry_run, plan
from ..study.plan import PlannedJob
from ..study.source import StudySource, StudySpec, by_value
from ..study.study import Study, is_integer_at_least
from ..study.user_errors import explained
from ..training.environment import find_device, machine
from ..training.job import seconds_per_epoch
from . import local, ray_cluster
from .progress import Estimate
from .queue import JobQueue, Observer, PlanOutcome, WorkerConfig
from .ray_cluster import Cluster, RayResources


@dataclass(frozen=True)
class PlannedStudy:
    """The jobs of one study and the source of the study."""

    jobs: Sequence[PlannedJob]
    source: StudySource

    def __str__(self) -> str:
        return f"study {self.study.name!r}"

    @property
    def protocol(self) -> plan.StudyPlan:
        return self.jobs[0].protocol

    @property
    def key(self) -> str:
        return self.protocol.key

    @property
    def study(self) -> Study:
        """The study at the size of the plan."""
        return self.protocol.study


@dataclass
class StudyRunner:
    """Runner of one or several studies: loads and tries them, plans their jobs in a store, and does the jobs.

    Most of its settings are those of :func:`contdrop.lab.compare`.

    Attributes:
        shard: Part of the plan to do, such as ``(2, 5)``; None for all of it.
        cluster: RayResources to ask of Ray; None to use processes on this machine.
        say: Receives one line at a time about anything unusual.
        jobs: The planned jobs by their ids in the store.
        reports: Findings of the dry runs, by the keys of the plans.
    """

    plans: Sequence[PlannedStudy]
    workers: int | None = None
    device: str = "cpu"
    threads: int | None = None
    retry_failed: bool = False
    redo: bool = False
    shard: tuple[int, int] | None = None
    cluster: RayResources | None = None
    say: Callable[[str], None] = lambda line: None
    jobs: dict[int, PlannedJob] = field(default_factory=dict)
    reports: dict[str, dry_run.DryRunReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        locks.check_available()
        for option, value, least in (("--workers", self.workers, 0), ("--threads", self.threads, 1)):
            if value is not None and not is_integer_at_least(value, least):
                raise UserError(f"{option}: expected a whole number of at least {least}; got {value!r}")
        if self.cluster is None:
            self.device = find_device(self.device)
        elif self.device == "auto":  # other devices are checked by the nodes
            self.device = "cuda" if self.cluster.gpus else "cpu"
        wanted = sorted({planned.study.training.threads for planned in self.plans})
        if self.threads is None and len(wanted) > 1:
            raise UserError(
                f"--threads: expected studies with one number of threads; got {wanted}; give --threads, or run one "
                "study at a time"
            )
        self.threads = self.threads or wanted[0]
        self._data: dict[str, PreparedData | None] = {}
        self._store: Store | None = None
        self._ray: Cluster | None = None

    @contextlib.contextmanager
    def session(self, path: pathlib.Path, *, scratch: bool = False) -> Iterator[Store]:
        """Load and try the studies, plan their jobs in the store at ``path``, and leave the cluster at the end.

        With ``scratch`` the jobs are planned in a copy of the store, which is deleted afterwards.
        """
        is_new = not path.exists()
        with contextlib.ExitStack() as stack:
            stack.callback(self._disconnect)
            if is_new:  # a study that is refused leaves no store behind
                self._load()
            self._store = stack.enter_context(_scratch(path) if scratch else Store(path, create=True))
            if not is_new:
                self._load()
            self._prepare()
            yield self._store

    def _disconnect(self) -> None:
        if self._ray is not None:
            self._ray.__exit__()
            self._ray = None

    @property
    def store(self) -> Store:
        assert self._store is not None, "session() comes first"
        return self._store

    @property
    def processes(self) -> int:
        if self._ray is not None:
            return self._ray.processes
        return max(1, cores() // (self.threads or 1)) if self.workers is None else self.workers

    def _load(self) -> None:
        """Load the data, and try every study that is not of the catalogue; nothing is written."""
        for planned in self.plans:
            study = planned.study
            self._data[planned.key] = data = self._data_of(study)
            if data is None:
                continue
            if data.mark:
                self.say(f"contdrop: {study.name}: {data.mark}")
            if planned.source.kind != "catalogue":
                before = self._description(planned).get("behaviour") if self._store else None
                known = (before or {}).get("data")
                found = dry_run.dry_run(planned.jobs, data, device=self._device_here, known_data=known)
                self.reports[planned.key] = found
                for warning in found.warnings:
                    self.say(f"contdrop: {study.name}: {warning}")
        if self.cluster is not None:
            self._connect(self.cluster)

    def _data_of(self, study: Study) -> PreparedData | None:
        """Return the data of a study, which another one may have loaded; None for one with its own loop."""
        if study.run is not None or study.data is None:
            return None
        alike = (each.key for each in self.plans if (each.study.data, each.study.task) == (study.data, study.task))
        for found in map(self._data.get, alike):
            if found is not None:
                return found
        with explained(f"study {study.name!r}: data()", study.data):
            return prepare(study.data(), task=study.task)

    def _connect(self, wanted: RayResources) -> None:
        if wanted.address is None and wanted.workers is None:
            wanted = replace(wanted, workers=self.processes)
        cluster = ray_cluster.Cluster(wanted, threads=self.threads or 1, device=self.device)
        self._ray = cluster.__enter__()
        if self._ray.refused:
            self.say(
                f"contdrop: {plural(len(self._ray.refused), 'node')} of Ray of another kind of processor than "
                f"{self._ray.kind} will not be used, as all methods of a run need one kind"
            )

    def _prepare(self) -> None:
        """Add all jobs to the plan of the store; refuse a study that another one with its name began."""
        store = self.store
        store.remove_stale_checkpoints()
        here = self._ray.machine if self._ray else {**machine(self.device), "threads": self.threads}
        described = [self._described(planned) for planned in self.plans]
        for planned in self.plans:  # all that may refuse, before anything is planned
            self._check_jobs(planned, here)
        for planned, about in zip(self.plans, described):
            self._plan(planned, about)
        for line in store.reset_other_processors(list(self.jobs), here):
            self.say(f"contdrop: {line}")

    def _described(self, planned: PlannedStudy) -> dict[str, Any]:
        """Return a study's description for the store; refuse a study that is not the one it was begun with."""
        described = self._behaviour(planned) if planned.source.kind != "catalogue" else {}
        data = self._data[planned.key]
        if data is not None:
            described["sizes"] = data.parts(planned.protocol.seed, FINAL, 0).sizes
            described |= {"dataset": data.name} if data.name else {}
            if data.mark:
                described["title"] = f"{planned.protocol.description['title']} ({data.mark})"
                described["mark"] = data.mark
        if planned.source.kind == "file":
            described["file"] = pathlib.Path(planned.source.name).name
        return described

    def _check_jobs(self, planned: PlannedStudy, here: Mapping[str, Any]) -> None:
        """Remove damaged jobs; refuse a plan that would repeat finished jobs, unless ``redo`` asks for that."""
        keys = {job.key: job for job in planned.jobs}
        for what in self.store.reset_damaged(planned.key, keys):
            self.say(f"contdrop: {what}; it is done again")
        there = {job.key: job for job in self.store.jobs_of_damaged_plan(planned.key)}
        self._check_data(planned, list(there.values()), processor(here))
        runs: dict[tuple[str, int], list[JobRecord | None]] = {}
        for key, job in keys.items():
            if plan.is_in(job, self.shard):
                found = there.get(key)
                again = found and found.status == FAILED and self.retry_failed
                runs.setdefault((job.stage, job.run), []).append(None if again else found)
        lost = [job for job in self.store.of_other_processors(runs.values(), here) if job.status == FINISHED]
        if lost and not self.redo:
            raise UserError(
                f"{planned}: expected the kind of processor of {plural(len(lost), 'finished job')} of runs to go on, "
                f"{lost[0].shared[PROCESSOR]}; got {processor(here)}, and all methods of a run need one kind; go on "
                "there, or repeat these jobs with --redo"
            )

    def _check_data(self, planned: PlannedStudy, there: Sequence[JobRecord], here: str) -> None:
        """Refuse data other than those of earlier jobs, which may have been stand-ins, as these may be."""
        data = self._data[planned.key]
        counted = (FINISHED, RUNNING) if self.retry_failed else (FINISHED, RUNNING, FAILED)
        begun = [job for job in there if job.status in counted]
        if data is None or not of_other_data(begun, data.fingerprint, here, of_one_name=False):
            return
        before, now = self._description(planned), {"dataset": data.name, "mark": data.mark}
        others = of_other_data(begun, data.fingerprint, here, of_one_name=has_one_name(before, now))
        if others:
            names = [before.get("dataset"), data.name]
            if not all(names) or names[0] == names[1]:
                names = [f"fingerprint {str(each)[:12]}" for each in (trained_on(others[0]), data.fingerprint)]
            raise UserError(
                f"{planned}: expected the data of its {plural(len(others), 'job')} in {self.store.path}, "
                f"{printable(str(names[0]))}; got others, {names[1]}; give another --store, or the data that it was "
                "begun with"
            )

    def _behaviour(self, planned: PlannedStudy) -> dict[str, Any]:
        """Return the behaviour of a study for the store; refuse one that behaves otherwise than before."""
        described = self._description(planned)
        before = described.get("behaviour") or {}
        found = self.reports.get(planned.key)
        file = pathlib.Path(planned.source.name) if planned.source.kind == "file" else None
        now = found.behaviour if found else {"loop": amendments.loop_digest(planned.study.run, file)}
        if changed := amendments.behaviour_change(before, now):
            raise UserError(
                f"{planned} is not what {self.store.path} was begun with: {changed}; give another --store "
                "or another name, or put the study back as it was"
            )
        behaviour = {"behaviour": amendments.joined_behaviour(before, now)}
        if found is None:
            return behaviour
        earlier = (described.get("cost") or {}).get("memory") or {}
        cost = {"steps": found.steps_per_epoch, "memory": {**earlier, **found.memory}}
        return {**behaviour, "sites": found.sites, "cost": cost}

    def _description(self, planned: PlannedStudy) -> dict[str, Any]:
        return next((each.description for each in self.store.protocols() if each.key == planned.key), {})

    def _plan(self, planned: PlannedStudy, described: dict[str, Any]) -> None:
        added = plan.add_plan(self.store, planned.jobs, **described)
        mine = {job_id: job for job_id, job in added.items() if plan.is_in(job, self.shard)}
        if self.retry_failed:
            statuses = self.store.statuses()
            self.store.reset_failed(*(job_id for job_id in mine if statuses[job_id] == FAILED))
        self.jobs |= mine

    @property
    def _device_here(self) -> str:
        """Device on which this process tries a study; the nodes may have other devices."""
        return find_device("auto") if self.cluster is not None and self.device != "cpu" else self.device

    @property
    def largest_part(self) -> int:
        """Number of examples in the largest training set."""
        return max((len(data.sources["train"]) for data in self._data.values() if data is not None), default=0)

    def estimate(self) -> Estimate:
        """Return the estimate of the remaining time, to be updated by epochs."""
        return Estimate(self.store.jobs(ids=list(self.jobs)))

    def seconds_left(self, *, try_out: bool) -> float | None:
        """Return an estimate of the remaining time, or None; ``try_out`` trains a few batches if nothing is known."""
        estimate = self.estimate()
        known = estimate.seconds_left(max(1, self.processes))
        if known is not None or not try_out:
            return known
        jobs = [self.jobs[number] for number in estimate.left]
        total = sum(self._measured_seconds(planned, jobs) for planned in self.plans)
        return total / max(1, min(self.processes, len(jobs))) if total else None

    def _measured_seconds(self, planned: PlannedStudy, jobs: Sequence[PlannedJob]) -> float:
        """Measure the time of a study's share of ``jobs`` by a few batches; 0 for one with its own loop."""
        data, left = self._data[planned.key], [job for job in jobs if job.protocol.key == planned.key]
        if data is None or not left:
            return 0.0
        first = {label: found[0] for label, found in planned.study.selection.candidates.items()}
        variant, where = left[-1].variant(first), self._device_here
        seconds = seconds_per_epoch(left[-1], variant, data, threads=self.threads or 1, device=where)
        return seconds * sum(job.epochs for job in left)

    def memory_and_disk(self, key: str) -> tuple[float, float]:
        """Estimate the memory of a worker and the disk space of all jobs of a study, in bytes."""
        found, study = self.reports[key], next(planned.study for planned in self.plans if planned.key == key)
        jobs = [job for job in self.jobs.values() if job.protocol.key == key]
        per_job = found.sizes[2] * 4 * len(study.metrics) + 120 * sum(job.epochs for job in jobs) / max(1, len(jobs))
        weights = 4.0 * found.parameters
        kept = weights * len(jobs) if study.training.weights == "last" else 0.0
        checkpoints = 6 * weights * max(1, self.processes)  # an old and a new one, each with two moments
        return found.peak_memory, per_job * len(jobs) + kept + checkpoints

    def run(self, observer: Observer) -> PlanOutcome:
        """Run all unfinished jobs of the plan."""
        sources = {each.key: by_value(each.study, each.source) if self._ray else each.source for each in self.plans}
        specs = {each.key: StudySpec.of(each.protocol, sources[each.key]) for each in self.plans}
        shared = {key: data for key, data in self._data.items() if data is not None and _can_be_sent(data)}
        work = WorkerConfig(specs, shared, self.threads or 1, self.device)
        todo = JobQueue(self.store, self.jobs, observer)
        if self._ray is not None:
            return ray_cluster.run(todo, work, self._ray)
        if self.processes == 0:
            return local.run_here(todo, work, {planned.key: planned.protocol for planned in self.plans})
        return local.run(todo, work, workers=self.processes)

    @property
    def done(self) -> int:
        """Number of jobs that finished or failed."""
        statuses = self.store.statuses()
        return sum(statuses[job_id] in (FINISHED, FAILED) for job_id in self.jobs)

    def results(self) -> list[Results]:
        """Return the results of all studies."""
        return collect_all(self.store, {planned.key for planned in self.plans})


def find_cluster(executor: str, **asked: Any) -> RayResources | None:
    """Return the resources to ask of Ray; None for the local executor, which takes the number of workers only."""
    if executor == "ray":
        return ray_cluster.RayResources(**asked)
    if executor != "local":
        raise UserError(f"--executor: expected local or ray; got {executor!r}")
    if asked.get("gpus") or any(asked.get(option) is not None for option in ("address", "cpus")):
        raise UserError("--address, --cpus, --gpus: expected --executor ray with these; got --executor local")
    return None


@contextlib.contextmanager
def _scratch(path: pathlib.Path) -> Iterator[Store]:
    """Open a temporary copy of a store, or a new store if there is none."""
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory) / path.name
        if path.exists():
            with Store(path) as original:
                original.copy(copy)
        with Store(copy, create=True) as store:
            store.path = path  # named in messages
            yield store


def _can_be_sent(data: PreparedData) -> bool:
    """Return True for arrays without functions of the user's own; each process opens other data itself."""
    given = (data.loaders.own_order, data.loaders.maker.collate, data.loaders.maker.transform)
    functions = (each for each in given if each)
    own = (type(getattr(each, "__self__", each)).__module__ for each in functions)
    return data.is_arrays and all(module.startswith("contdrop.") for module in own)


def cores() -> int:
    """Return the number of processors that this process may use, which a container may limit."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
