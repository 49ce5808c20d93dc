"""Python interface of the lab: :func:`compare`, :func:`analyze` and :class:`Result`."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError, suggest
from .analysis.verdict import Analysis, Verdict
from .analysis.verdict import analyze as analyze_results
from .runner.progress import TextProgress
from .runner.ray_cluster import RayResources
from .runner.runner import PlannedStudy, StudyRunner
from .store import imports
from .store.results import Results, collect
from .store.writer import Store
from .study import plan
from .study.source import StudySource, of_study
from .study.study import Study
from .training import checkpoint, metric_values, random_streams
from .training.model import build

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from .report.formats import Table


_Found = TypeVar("_Found")


class Result:
    """The results of one study in a store.

    Args:
        store: Path of the store.
        key: Key of the study's plan in it.
        study: The study, for :meth:`model`.
    """

    def __init__(self, store: pathlib.Path, key: str, study: Study | None = None) -> None:
        self.store, self._study = store, study
        with Store(store) as opened:
            record = next(protocol for protocol in opened.protocols() if protocol.key == key)
            self.results: Results = collect(opened, record)

    @property
    def verdict(self) -> Verdict:
        """The verdict in sentences; ``str`` of it is the headline."""
        return self._analysis.verdict

    @functools.cached_property
    def _analysis(self) -> Analysis:
        return analyze_results(self.results)

    def table(self) -> Table:
        """Return each method's mean and spread, and its paired difference from the reference."""
        from .report import tables

        return tables.comparison(self._analysis)

    def differences(self) -> Table:
        """Return each method's difference from the reference, with intervals and tests."""
        from .report import tables

        return self._or_refused(tables.differences(self._analysis), "compare")

    def plot(self) -> Figure:
        """Draw the paired runs of every method as a matplotlib figure."""
        from .report import figures

        return self._or_refused(figures.pairs(self._analysis), "plot").draw()

    @staticmethod
    def _or_refused(found: _Found | None, verb: str) -> _Found:
        if found is None:
            raise UserError(f"nothing to {verb}: no run has results for two methods yet")
        return found

    def report(self, directory: pathlib.Path | str) -> pathlib.Path:
        """Write the report page and return its path."""
        from .report import page

        return page.write(self.store, pathlib.Path(directory), analyses=[self._analysis]).index

    def model(self, method: str, run: int) -> nn.Module:
        """Return the trained model in evaluation mode; the study needs ``weights="last"``."""
        job = self.results.job(method, run)
        if job is None:
            raise UserError(f"{method} run {run} is not among the results; {suggest(method, self.results.methods)}")
        if self._study is None or self._study.run is not None:
            raise UserError("only a study that builds its models by model= can build them again")
        with Store(self.store) as opened:
            saved = opened.weights(job.id)
        if saved is None:
            raise UserError(f"the weights of {method} run {run} were not kept; give the study weights='last'")
        study = self._study.at(self.results.protocol.preset)
        seed = job.seeds[random_streams.WEIGHTS]
        built = build(study, plan.Variant.parse(str(job.variant)).method, seed).model
        checkpoint.into_network(built, checkpoint.loads(saved))
        return built.eval()

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with one row per finished job."""
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise UserError("to_dataframe needs pandas, which is not installed: pip install pandas") from None
        rows = [
            {"method": job.method, "variant": job.variant, "run": job.run, **job.results, "seconds": job.seconds}
            for job in self.results.finished
        ]
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        from .report import formats

        return f"{self.verdict.headline}\n\n{formats.markdown(self.table())}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .report import templating

        return templating.render("notebook.html", verdict=self.verdict, table=self.table())


def analyze(
    values: Mapping[str, Sequence[float] | Mapping[int, float]],
    *,
    reference: str | None = None,
    better: str | None = None,
    metric: str = "value",
    unit: str = "",
    margin: float | None = None,
    name: str = "analysis",
) -> Result:
    """Compare existing results; values with the same run number are paired.

    Args:
        values: For each method, its values in the order of runs, or by run.
        reference: Method that the others are compared with; the first if None.
        better: "lower" or "higher"; if None, that of the built-in metric of this name, else "lower".
        metric: Name of the metric.
        unit: Unit of the values.
        margin: Smallest difference that matters, fixed before the values were seen.
        name: Name of the analysis.

    Example:
        >>> values = {"original": [3.1, 2.9, 3.3, 3.0, 3.2, 3.1], "new": [2.8, 2.9, 3.0, 2.7, 3.0, 2.9]}
        >>> analyze(values, metric="rmse").verdict.headline
        'Original dropout is worse than new, by 0.217.'
    """
    contents = imports.from_values(
        _by_run(values),
        name=name,
        reference=reference,
        metric={"name": metric, "unit": unit, "better": better or metric_values.better_of(metric) or "lower"},
        margin=margin,
    )
    path = pathlib.Path(tempfile.mkdtemp(prefix="contdrop-")) / "analysis.db"
    with Store(path, create=True) as opened:
        imports.add_contents(opened, contents, "lab.analyze")
    result = Result(path, contents.protocols[0].key)
    weakref.finalize(result, shutil.rmtree, path.parent, ignore_errors=True)
    return result


def _by_run(values: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Return the values by method and run; lists must have equal length, or pairs would shift."""
    if not isinstance(values, Mapping):
        raise UserError(f"analyze: expected the values of each method by its name; got {type(values).__name__}")
    found: dict[tuple[str, int], float] = {}
    lengths: dict[str, int] = {}
    for method, given in values.items():
        try:
            if isinstance(given, str):
                raise TypeError("it is text")
            runs = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
            numbered = {(str(method), _number(run)): float(value) for run, value in runs.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"analyze: expected a list of numbers, or numbers by run, for {method!r}: {error}"
            ) from error
        if numbered.keys() & found.keys() or len(numbered) < len(runs):
            raise UserError(f"analyze: expected every method and every run once; some of {str(method)!r} are twice")
        found |= numbered
        if not isinstance(given, Mapping):
            lengths[str(method)] = len(runs)
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"analyze: expected lists of equal length, because runs are paired by position; got {lengths}; "
            "give {run: value} where runs are missing"
        )
    return found


def _number(run: Any) -> int:
    """Return the number of a run; 1.0 and "1" are 1, as in tables and JSON."""
    if int(run) != float(run):
        raise ValueError(f"run {run} is not a whole number")
    return int(run)


def compare(
    study: Study,
    *,
    runs: int | None = None,
    epochs: int | None = None,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
    preset: str | None = None,
    store: pathlib.Path | str = "runs.db",
    workers: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    cluster: RayResources | None = None,
    retry_failed: bool = False,
    redo: bool = False,
    progress: bool = True,
) -> Result:
    """Train all methods of a study, run by run, and compare them.

    Finished jobs in the store are not repeated: a larger ``runs`` adds runs, and an interrupted call resumes.

    Args:
        study: The study; its functions may exist in this process only.
        runs: Runs per method, in place of the study's.
        epochs: Epochs per run, in place of the study's.
        methods: Labels of the methods, in place of the study's.
        seed: Seed of all random numbers, in place of the study's.
        preset: Name of a size, if the study has several.
        store: File that keeps all results.
        workers: Number of processes that train at a time; one per core if None, 0 to train in this process.
        device: "cpu", "cuda", "mps", or "auto" for the fastest available.
        threads: torch threads per process, in place of the study's.
        cluster: Ray cluster to train on, ``lab.RayResources()`` for one started on this machine; None trains here.
        retry_failed: Repeat failed jobs.
        redo: Repeat finished runs that are to be extended and that came from another kind of processor, or another
            number of threads.
        progress: Print progress.

    Raises:
        UserError: If the study is invalid; raised before training, with the location of the mistake.

    Example:
        >>> study = Study("doc", run=lambda job: job.run + 0.5, metric="error", methods=["original", "none"], runs=2)
        >>> len(compare(study, store=getfixture("tmp_path") / "runs.db", workers=0, progress=False).results.finished)
        4
    """
    jobs = plan.plan(study, preset=preset, labels=methods, runs=runs, epochs=epochs, seed=seed)
    source = StudySource("pickle", study.name) if workers == 0 else of_study(study)
    path = pathlib.Path(store)
    runner = StudyRunner(
        [PlannedStudy(jobs, source)],
        workers=workers,
        device=device,
        threads=threads,
        retry_failed=retry_failed,
        redo=redo,
        cluster=None if cluster is None else dataclasses.replace(cluster, workers=workers),
        say=lambda line: print(line) if progress else None,
    )
    with runner.session(path) as opened:
        runner.run(TextProgress(opened, runner.jobs, runner.estimate(), runner.processes, show=progress))
    return Result(path, jobs[0].protocol.key, study)
