"""A loop of the user's own: the lab says which network is to be trained, the user trains it and tells the result.

Two forms, one object: ``Study(run=function)`` is called with a :class:`Job` by the lab's workers, and :func:`ask` hands
out the jobs of a study one by one, wherever the user's code runs::

    for job in lab.ask(study, store="runs.db"):
        model = job.build(make_model)          # seeded; the method is in it
        job.tell(train_somehow(model, seed=job.seed))

Jobs of a run share the seed. That is pairing by seed; what the methods of a run really shared is proven only for what
the loop gives to :meth:`Job.same`.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import pathlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import UserError, suggest
from ..data.fingerprints import as_array, of_arrays, of_content
from ..store import locks
from ..store.schema import FAILED, FINISHED, SELECTION, Epoch
from ..store.writer import Store
from ..study import plan
from ..study.study import Study, described_as
from ..training import random_streams
from ..training.environment import machine, versions
from ..training.job import JobSink
from ..training.model import build_with, put, seed_everything

_LOGGED = ("train_loss", "train", "val_loss", "val", "test_loss", "test", "learning_rate")
_ROUNDING = 1e-4  # how far a mean in float32 may be from that of the same numbers in float64


class Job:
    """One network to train: a method in a run.

    Attributes:
        method: Its label, with all parameters.
        run: Number of the run.
        seed: The same for all methods of a run.
        mask_seed: Another for each method, for what only masks draw from.
        directory: For files of this job; made when it is first asked for.
    """

    def __init__(self, store: JobSink, job_id: int, job: plan.PlannedJob, variant: plan.Variant) -> None:
        self._store, self._id, self._job, self._variant = store, job_id, job, variant
        self._fingerprints: dict[str, str] = {}
        self._epochs: list[Epoch] = []
        self._begun = time.perf_counter()
        self._noise: dict[str, float] = {}
        self.ended = False
        self.after_epoch: Callable[[Epoch], None] = lambda epoch: None
        self._begin()

    def __repr__(self) -> str:
        return f"<Job {self._job}{', ended' if self.ended else ''}>"

    @property
    def study(self) -> Study:
        return self._job.protocol.study

    @property
    def method(self) -> str:
        return str(self._variant)

    @property
    def run(self) -> int:
        return self._job.run

    @property
    def epochs(self) -> int:
        return self._job.epochs

    @property
    def seed(self) -> int:
        return self._job.seed(random_streams.WEIGHTS)

    @property
    def mask_seed(self) -> int:
        return self._job.seed(random_streams.MASKS, self._variant)

    @property
    def directory(self) -> pathlib.Path:
        path = self._store.path.with_name(self._store.path.name + "-files") / f"job-{self._id}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _begin(self) -> None:
        mismatch = self._store.begin(
            self._id,
            variant=self.method,
            seeds={"seed": self.seed, "masks": self.mask_seed},
            fingerprints=self._fingerprints,
            versions=versions(),
            machine=machine(),
        )
        if mismatch:
            self.fail(mismatch)
            raise UserError(f"{self._job}: {mismatch}")

    def build(self, function: Callable[[], nn.Module]) -> nn.Module:
        """Seeds everything, calls the function, puts the method into the model, and seeds the masks.

        The initial weights are fingerprinted: a method that starts from others is refused.
        """
        if isinstance(function, nn.Module):
            raise UserError(
                f"{self._job}: expected the function that makes the model, which is called seeded; got one made"
            )
        built = build_with(self.study, function, self._variant.method, self.seed)
        parameters = sorted(built.model.named_parameters())
        self.same("initial weights", of_arrays(*(as_array(p.cpu()) for _, p in parameters)))
        self._noise = built.noise
        torch.manual_seed(self.mask_seed % 2**63)
        return built.model

    def apply(self, model: nn.Module) -> nn.Module:
        """Puts the method into a model that is there already."""
        self._noise, _ = put(self.study, self._variant.method, model)
        return model

    def seed_everything(self) -> None:
        """torch, NumPy and Python's random, alike for all methods of this run."""
        seed_everything(self.seed)

    def same(self, name: str, value: Any) -> None:
        """Says that this is the same for all methods of this run; one that had another is refused.

        Args:
            name: Of it.
            value: A tensor, an array, a number, a text, or lists and dictionaries of these.
        """
        self._check_open()
        self._fingerprints[str(name)] = value if isinstance(value, str) else of_content(value)
        self._begin()

    def log(self, epoch: int, **values: float) -> None:
        """Keeps figures of an epoch, counted from 1, for curves: train_loss, train, val_loss, val, test_loss, test.

        They reach the store when the job ends.
        """
        for name in values:
            if name not in _LOGGED:
                raise UserError(f"log: unknown figure {name!r}; {suggest(name, _LOGGED)}")
        if epoch != len(self._epochs) + 1:
            raise UserError(f"log: expected epoch {len(self._epochs) + 1}, the next one; got {epoch}")
        now = time.perf_counter()
        given = {name: float(value) for name, value in values.items()}
        a, b, c, d, e, f = (given.get(name) for name in _LOGGED[:-1])
        self._epochs.append(Epoch(epoch, a, b, c, d, e, f, given.get("learning_rate", 0.0), now - self._begun))
        self._begun = now
        self.after_epoch(self._epochs[-1])

    def tell(self, value: float | Mapping[str, float], per_example: Any = None) -> None:
        """The result: the primary metric's value, or the value of every metric by name.

        Args:
            value: As measured on test data; under "val" the primary metric's on validation data, which is all that
                counts of a job that selects among candidates.
            per_example: What each test example contributes to the primary metric, for an interval over examples: of the
                same examples, in the same order, in all jobs of the study.
        """
        self._check_open()
        primary = self.study.metrics[0].name
        found: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {primary: value}
        selects = self._job.stage == SELECTION
        needed, what = ("val", "which selects among candidates") if selects else (primary, "the first metric")
        if needed not in found:
            raise UserError(f"{self._job}: expected a value of {needed!r}, {what}; got {', '.join(found)}")
        for name, each in found.items():
            if not isinstance(each, numbers.Real) and not (isinstance(each, torch.Tensor) and each.numel() == 1):
                raise UserError(f"{self._job}: expected a number for {name}; got {type(each).__name__}")
        plain = {name: each.item() if isinstance(each, torch.Tensor) else float(each) for name, each in found.items()}
        if not math.isfinite(plain[needed]):
            self.fail(f"diverged: {needed} is {plain[needed]}")
            return
        artefacts = {}
        if per_example is not None and not selects:
            each = np.asarray(torch.as_tensor(per_example).detach().cpu(), dtype=np.float64)
            artefacts[f"test_{primary}"] = each
            plain[primary] = self._of_examples(each, plain[primary])
        results = {"val_error": plain.get("val", math.nan)}
        if not selects:
            results |= {f"test:{name}": each for name, each in plain.items() if name not in (primary, "val")}
            results["test_error"] = plain[primary]
        kept = {name: each for name, each in results.items() if math.isfinite(each)}
        self._store.finish(self._id, self._epochs, kept | self._noise, artefacts)
        self.ended = True

    def _check_open(self) -> None:
        if self.ended:
            raise UserError(f"{self._job}: expected one result; it has ended already, and keeps what it was told first")

    def _of_examples(self, contributions: np.ndarray, told: float) -> float:
        """The value that the examples give, in float64; refuses one that was told of other examples."""
        metric = self.study.metrics[0]
        value = metric.value(contributions)
        if not math.isclose(value, told, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            raise UserError(
                f"{self._job}: expected the {metric.name} of per_example; they give {value:.6g}, told was {told:.6g}"
            )
        return value

    def fail(self, reason: str) -> None:
        """Says that there is no result, and why. It is not tried again unless asked for."""
        self._check_open()
        self._store.fail(self._id, " ".join(str(reason).split()), self._epochs)
        self.ended = True


def do(
    store: JobSink,
    job_id: int,
    planned: plan.PlannedJob,
    variant: plan.Variant,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> None:
    """Calls the study's own loop for one job, whose lock this process holds, and keeps what it returns."""
    store.drop_progress(job_id)  # a loop of the user's own starts over
    job = Job(store, job_id, planned, variant)
    job.after_epoch = after_epoch
    assert job.study.run is not None
    job.seed_everything()
    try:
        value = job.study.run(job)
    except Exception:  # what it told first counts
        if not job.ended:
            raise
    if job.ended:  # it said so itself, or what it shared is not what the others of its run had
        return
    if value is None:
        raise UserError(
            f"study {job.study.name!r}: expected run(job) to return a number or to call job.tell; it did not"
        )
    job.tell(value)


def ask(
    study: Study,
    *,
    store: pathlib.Path | str = "runs.db",
    methods: list[str] | None = None,
    runs: int | None = None,
    retry_failed: bool = False,
) -> Iterator[Job]:
    """The unfinished jobs of a study, one after another, each held by this process until the loop asks for the next.

    Several processes may ask at the same time; each job goes to one of them. A job that is left without ``tell`` or
    ``fail`` stays unfinished.

    Args:
        study: Its ``run``, or its data and model, are not used.
        store: File that keeps everything.
        methods: Labels; the study's if None.
        runs: Per method; the study's if None.
        retry_failed: Whether failed jobs are handed out again.
    """
    locks.check_available()
    if study.run is None:  # what comes of it is not what the lab would have made of data and model
        study = dataclasses.replace(study, run=around_ask)
    jobs = plan.plan(study, labels=methods, runs=runs)
    with Store(store, create=True) as opened:
        planned = plan.add_plan(opened, jobs)
        if retry_failed:
            opened.plan_again(*(job_id for job_id in planned if opened.status(job_id) == FAILED))
        # A lock may be refused while another process only looks, so what was left out is tried once more.
        left_out = []
        for job_id, job in planned.items():
            if not (yield from _handed_out(opened, job_id, job)):
                left_out.append(job_id)
        for job_id in left_out:
            yield from _handed_out(opened, job_id, planned[job_id])


def _handed_out(store: Store, job_id: int, job: plan.PlannedJob) -> Generator[Job, None, bool]:
    """The job, if it is to be had; False if it is worth another try."""
    if store.status(job_id) in (FINISHED, FAILED):
        return True
    with store.locks.holding(job_id) as mine:
        if not mine:
            return False
        if store.status(job_id) not in (FINISHED, FAILED):
            store.drop_progress(job_id)
            variant = _variant(store, job_id, job)
            if variant is None:
                return False
            yield Job(store, job_id, job, variant)
    return True


@described_as("around_ask")
def around_ask(job: Job) -> float:
    """In place of a study's own loop, where that is the program that asks."""
    raise UserError(
        f"study {job.study.name!r}: expected the loop around lab.ask to do its jobs; they cannot be done without it"
    )


def _variant(store: Store, job_id: int, job: plan.PlannedJob) -> plan.Variant | None:
    """With the parameters that were selected; None while candidates are not done, or if all of them failed."""
    if job.waits_for is None:
        return job.variant({})
    decided = plan.decided(store, job.protocol, job.waits_for)
    if decided is not None and decided.variant is None:
        store.fail(job_id, f"no parameters could be selected: {decided.reason}")
    return job.variant({job.waits_for: decided.variant}) if decided is not None and decided.variant else None
