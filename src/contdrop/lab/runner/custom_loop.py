"""Jobs for the user's own training loop, which reports the results.

There are two forms. The lab's workers call the function of ``Study(run=function)`` with a :class:`Job`, and :func:`ask`
hands out the jobs of a study one by one wherever the user's code runs::

    for job in lab.ask(study, store="runs.db"):
        model = job.build(make_model)          # seeded, with the method in its layers
        job.tell(train_somehow(model, seed=job.seed))

Jobs of a run share the seed, which pairs them. What the methods of a run really shared is proven only for what the loop
passes to :meth:`Job.same`.
"""

from __future__ import annotations

import math
import numbers
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import UserError, suggest
from ..data.fingerprints import as_array, of_arrays, of_content
from ..store import locks
from ..store.blobs import beside
from ..store.schema import FAILED, FINISHED, SELECTION, Epoch
from ..store.writer import Store
from ..study import plan
from ..study.study import Study
from ..training import random_streams
from ..training.environment import machine, versions
from ..training.job import JobSink
from ..training.model import build_with, put, seed_everything

_LOGGED = ("train_loss", "train", "val_loss", "val", "test_loss", "test", "learning_rate")
_ROUNDING = 1e-4  # of a mean in float32 against that of the same numbers in float64


class Job:
    """Job to train one network: a method in a run.

    Attributes:
        method: Label of the method, with all parameters.
        run: Number of the run.
        seed: Seed that all methods of a run share.
        mask_seed: Seed of this method, for masks only.
        directory: Directory for files of this job, created on first access.
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
        path = beside(self._store.path, "-files") / f"job-{self._id}"
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
        """Seed everything, call the function, apply the method to the model, and seed the masks.

        The initial weights are fingerprinted; a method that starts from other weights is refused.
        """
        if isinstance(function, nn.Module):
            raise UserError(f"{self._job}: expected a function that makes the model, to call it seeded; got a model")
        built = build_with(self.study, function, self._variant.method, self.seed)
        parameters = sorted(built.model.named_parameters())
        self.same("initial weights", of_arrays(*(as_array(p.cpu()) for _, p in parameters)))
        self._noise = built.noise
        torch.manual_seed(self.mask_seed % 2**63)
        return built.model

    def apply(self, model: nn.Module) -> nn.Module:
        """Apply the method to an existing model."""
        self._noise, _ = put(self.study, self._variant.method, model)
        return model

    def seed_everything(self) -> None:
        """Seed torch, NumPy and Python's random, alike for all methods of this run."""
        seed_everything(self.seed)

    def same(self, name: str, value: Any) -> None:
        """Record what all methods of this run must share; a method with another value is refused.

        Args:
            name: Name in messages.
            value: A tensor, an array, a number, a text, or lists and dictionaries of these.
        """
        self._check_open()
        self._fingerprints[str(name)] = value if isinstance(value, str) else of_content(value)
        self._begin()

    def log(self, epoch: int, **values: float) -> None:
        """Record values of an epoch, counted from 1, for curves: train_loss, train, val_loss, val, test_loss, test.

        They are written to the store when the job ends.
        """
        for name in values:
            if name not in _LOGGED:
                raise UserError(f"log: unknown value {name!r}; {suggest(name, _LOGGED)}")
        if epoch != len(self._epochs) + 1:
            raise UserError(f"log: expected epoch {len(self._epochs) + 1}, the next one; got {epoch}")
        now = time.perf_counter()
        a, b, c, d, e, f = (float(values[name]) if name in values else None for name in _LOGGED[:-1])
        self._epochs.append(Epoch(epoch, a, b, c, d, e, f, float(values.get("learning_rate", 0.0)), now - self._begun))
        self._begun = now
        self.after_epoch(self._epochs[-1])

    def tell(self, value: float | Mapping[str, float], per_example: Any = None) -> None:
        """Report the result: the primary metric's value, or the values of metrics by name.

        Args:
            value: As measured on test data; under "val" the primary metric on validation data, the only value that
                matters for a job that selects among candidates.
            per_example: Contribution of each test example to the primary metric, for an interval over examples: the
                same examples, in the same order, in all jobs of the study.
        """
        self._check_open()
        primary = self.study.metrics[0].name
        found: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {primary: value}
        selects = self._job.stage == SELECTION
        needed, what = ("val", "which selects among candidates") if selects else (primary, "the first metric")
        if needed not in found:
            raise UserError(f"{self._job}: expected a value of {needed!r}, {what}; got {', '.join(found)}")
        plain = {name: self._number(name, each) for name, each in found.items()}
        if not math.isfinite(plain[needed]):
            self.fail(f"diverged: {needed} is {plain[needed]}")
            return
        artefacts = {}
        if per_example is not None and not selects:
            artefacts[f"test_{primary}"] = self._contributions(per_example, plain)
        results = {"val_error": plain.get("val", math.nan)}
        if not selects:
            results |= {f"test:{name}": each for name, each in plain.items() if name not in (primary, "val")}
            results["test_error"] = plain[primary]
        kept = {name: each for name, each in results.items() if math.isfinite(each)}
        self._store.finish(self._id, self._epochs, kept | self._noise, artefacts)
        self.ended = True

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return float(value.item())
        if not isinstance(value, numbers.Real):
            raise UserError(f"{self._job}: expected a number for {name}; got {type(value).__name__}")
        return float(value)

    def _contributions(self, per_example: Any, plain: dict[str, float]) -> np.ndarray:
        """Return the contributions of examples; the primary metric becomes their value in float64."""
        metric = self.study.metrics[0]
        examples = np.asarray(torch.as_tensor(per_example).detach().cpu(), dtype=np.float64)
        found, given = metric.value(examples), plain[metric.name]
        if not math.isclose(found, given, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            raise UserError(
                f"{self._job}: per_example gives {metric.name} {found:.6g}, but tell() was given {given:.6g}; "
                "give both for the same examples"
            )
        plain[metric.name] = found
        return examples

    def _check_open(self) -> None:
        if self.ended:
            raise UserError(f"{self._job}: expected one result; got another one, after the first, which is kept")

    def fail(self, reason: str) -> None:
        """Report that there is no result, and why. The job is not tried again unless asked for."""
        self._check_open()
        self._store.fail(self._id, " ".join(str(reason).split()), self._epochs)
        self.ended = True


def do(
    store: JobSink,
    job_id: int,
    planned: plan.PlannedJob,
    variant: plan.Variant,
    after_epoch: Callable[[Epoch], None],
) -> None:
    """Call the study's own loop for one job, whose lock this process holds, and store what it returns."""
    store.drop_progress(job_id)  # such a loop starts over
    job = Job(store, job_id, planned, variant)
    job.after_epoch = after_epoch
    assert job.study.run is not None
    job.seed_everything()
    try:
        value = job.study.run(job)
    except Exception:  # a result that was reported before counts
        if not job.ended:
            raise
    if job.ended:
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
    """Yield the unfinished jobs of a study, each locked by this process until the loop asks for the next.

    Several processes may ask at the same time; each job goes to one of them. A job without ``tell`` or ``fail`` stays
    unfinished.

    Args:
        study: The study. Its ``run``, or its data and model, are not used.
        store: Database file, created if it does not exist.
        methods: Labels; the study's if None.
        runs: Runs per method; the study's if None.
        retry_failed: Whether failed jobs are handed out again.
    """
    locks.check_available()
    if study.run is None:  # its results are not those of data and model
        study = study.replace(run=around_ask)
    jobs = plan.plan(study, labels=methods, runs=runs)
    with Store(store, create=True) as opened:
        planned = plan.add_plan(opened, jobs)
        if retry_failed:
            opened.reset_failed(*(job_id for job_id in planned if opened.status(job_id) == FAILED))
        seen: set[int] = set()
        for job_id, job in [*planned.items()] * 2:  # as a lock may be refused while another process only looks
            if opened.status(job_id) in (FINISHED, FAILED) or job_id in seen:
                continue
            with opened.locks.holding(job_id) as mine:
                if mine and opened.status(job_id) not in (FINISHED, FAILED):
                    opened.drop_progress(job_id)
                    variant = _variant(opened, job_id, job)
                    if variant is not None:
                        seen.add(job_id)
                        yield Job(opened, job_id, job, variant)


def around_ask(job: Job) -> float:  # its name is a part of keys
    """Refuse to run: the function of a study whose jobs are handed out by :func:`ask`."""
    raise UserError(
        f"study {job.study.name!r}: expected the loop around lab.ask to run its jobs; got another caller; run that loop"
    )


def _variant(store: Store, job_id: int, job: plan.PlannedJob) -> plan.Variant | None:
    """Return a job's variant with the selected parameters; None while candidates are not done, or if all failed."""
    if job.waits_for is None:
        return job.variant({})
    decided = plan.decided(store, job.protocol, job.waits_for)
    if decided is not None and decided.variant is None:
        store.fail(job_id, f"no parameters could be selected: {decided.reason}")
    return job.variant({job.waits_for: decided.variant}) if decided is not None and decided.variant else None
