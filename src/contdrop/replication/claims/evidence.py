"""The runs that decide claims: read from archives, and only those that the protocol planned."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import UserError
from ...lab.analysis.comparisons import planned_margin
from ...lab.store import merge
from ...lab.store.results import Results, collect_all
from ...lab.store.schema import FAILED, Epoch, JobRecord
from ...lab.store.writer import Store
from . import claims

ENDING = ".jsonl.gz"


@dataclass(frozen=True)
class Runs:
    """The finished runs of one study.

    Attributes:
        study: Its name.
        jobs: Those that finished, of the runs that the protocol planned.
        curves: The epochs of each job, by its id.
        margin: The smallest difference in error that matters, as the study fixed it.
        failed: How many jobs failed.
        lost: Method and run of those among them that the protocol planned, which nothing stands in for.
    """

    study: str
    jobs: tuple[JobRecord, ...]
    curves: Mapping[int, list[Epoch]]
    margin: float | None
    failed: int = 0
    lost: tuple[tuple[str, int], ...] = ()

    def values(self, method: str, metric: str) -> dict[int, float]:
        """By run; "test_error@5" is the test error after five epochs."""
        name, _, epoch = metric.partition("@")
        found: dict[int, float] = {}
        for job in self.jobs:
            value = self._after(job, int(epoch)) if epoch else job.results.get(name)
            if job.method == method and value is not None:
                found[job.run] = value
        return found

    def _after(self, job: JobRecord, epoch: int) -> float | None:
        return next((each.test_error for each in self.curves.get(job.id, []) if each.epoch == epoch), None)


def gather(directory: pathlib.Path) -> dict[str, Runs]:
    """The runs of every study that a directory has archives of; of other sizes than planned, none."""
    if not directory.is_dir():
        raise UserError(f"--results: expected a directory with archives (*{ENDING}); there is no {str(directory)!r}")
    archives = sorted(directory.glob(f"*{ENDING}"))
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary, "all.db")
        for archive in archives:
            merge.import_file(archive, path)
        if not archives:
            return {}
        with Store(path) as store:
            return of_results(store, collect_all(store))


def of_results(store: Store, everything: Iterable[Results]) -> dict[str, Runs]:
    """The runs of every planned study among the results of a store."""
    found: dict[str, Runs] = {}
    for results in everything:
        name, plan = results.protocol.experiment, claims.PLANNED.get(results.protocol.experiment)
        if plan is not None and results.protocol.epochs == plan.epochs:
            if name in found:
                raise UserError(f"{name} is there twice, with different settings; leave one out")
            found[name] = _runs(results, plan.runs, store.curves(results.protocol.key))
    return found


def _runs(results: Results, planned: int, curves: Mapping[int, list[Epoch]]) -> Runs:
    """Runs that were added to those of the protocol neither decide anything nor stand in for one that failed."""
    jobs = tuple(job for job in results.finished if job.run < planned)
    lost = tuple((job.method, job.run) for job in results.final if job.status == FAILED and job.run < planned)
    return Runs(results.protocol.experiment, jobs, curves, planned_margin(results), len(results.failed), lost)
