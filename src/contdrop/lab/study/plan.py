"""The plan of a study: its jobs, methods times runs, and what they share.

In a run all methods share the split, the initial weights and the data order; only the masks differ. Parameters that are
to be selected are selected first, on validation data, in jobs with seeds of their own that never see test data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError, mistake
from ...kernels import MASKS_VERSION
from ..analysis.metric_format import Measure
from ..store.schema import FINAL, SELECTION, SelectionRecord, digest_json
from ..store.writer import Store
from ..training import random_streams
from . import methods, selection
from .labels import OWN, without_factor
from .study import Study, python_number, wrong_value


@dataclass(frozen=True)
class Variant:
    """A method with all its parameters, and the factor of its learning rate."""

    method: methods.Method
    rate: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Parse a label, or a label and a factor.

        >>> str(Variant.parse("gaussian:sigma=0.2@0.5"))
        'gaussian:sigma=0.2@0.5'
        """
        label, factor = without_factor(text)
        try:
            rate = float(factor) if factor else 1.0
        except ValueError:
            rate = -1.0
        if not 0 < rate < float("inf"):
            raise UserError(f"candidate {text!r}: expected a factor of the learning rate behind @, such as @0.5")
        return cls(methods.parse(label), rate)

    def __str__(self) -> str:
        return str(self.method) if self.rate == 1 else f"{self.method}@{repr(self.rate).removesuffix('.0')}"


@dataclass(frozen=True)
class StudyPlan:
    """A study at one size, shared by all its jobs. Results of two study plans are not comparable.

    The study has the settings of that size, whose name is the preset.
    """

    study: Study
    preset: str
    epochs: int
    selection_runs: int
    selection_epochs: int
    seed: int

    @functools.cached_property
    def configuration(self) -> dict[str, Any]:
        """Everything that decides the results, as plain data."""
        candidates = self.study.selection.candidates
        return {
            "experiment": self.study.name,
            "masks": MASKS_VERSION,
            "preset": self.preset,
            "epochs": self.epochs,
            "seed": self.seed,
            **self.study.configuration,
            "selection": {
                "runs": self.selection_runs,
                "epochs": self.selection_epochs,
                "candidates": {label: list(variants) for label, variants in sorted(candidates.items())},
                "follows": dict(sorted(self.study.selection.follows.items())),
            },
        }

    @property
    def description(self) -> dict[str, Any]:
        """Texts and settings for reports that do not change results."""
        study, texts = self.study, self.study.description
        size = study.sizes.get("paper") if texts.paper else None
        return {
            "title": texts.title or study.name,
            "paper": texts.paper,
            "reference": study.reference,
            "methods": list(study.methods),
            "notes": list(texts.notes),
            "task": study.task,
            "metric": study.metrics[0].description,
            "others": [metric.description for metric in study.metrics[1:]],
            "margin": study.margin,
            "margin_reason": texts.margin_reason,
            "paper_runs": size.runs if size else None,
            "paper_epochs": size.epochs if size else None,
        }

    @functools.cached_property
    def key(self) -> str:
        return digest_json(self.configuration)


@dataclass(frozen=True)
class PlannedJob:
    """One network to train. ``method`` is the label; its variant may depend on the selection."""

    protocol: StudyPlan
    stage: str
    method: str
    run: int

    @property
    def epochs(self) -> int:
        return self.protocol.selection_epochs if self.stage == SELECTION else self.protocol.epochs

    def seed(self, stream: str, *detail: object) -> int:
        """Return a seed; all methods of a run share it unless the detail names them."""
        return random_streams.seed(self.protocol.seed, self.stage, self.run, stream, *detail)

    @property
    def waits_for(self) -> str | None:
        """Label whose selection has to be decided first, or None."""
        return None if self.stage == SELECTION else self.protocol.study.selected_label(self.method)

    def variant(self, selected: Mapping[str, str]) -> Variant:
        """Return the method with all its parameters, given the selected variant of each label."""
        source = self.waits_for
        if source is None:
            return Variant.parse(self.method)
        chosen = Variant.parse(selected[source])
        name = methods.parse(self.method).name
        method = methods.parse(":".join([name, *str(chosen.method).split(":")[1:]]))
        return dataclasses.replace(chosen, method=method)

    @property
    def configuration(self) -> dict[str, Any]:
        return {**self.protocol.configuration, "stage": self.stage, "method": self.method, "run": self.run}

    @property
    def key(self) -> str:
        return digest_json(self.configuration)

    def __str__(self) -> str:
        stage = " (selection)" if self.stage == SELECTION else ""
        return f"{self.protocol.study.name} {self.method} run {self.run}{stage}"


def plan(
    study: Study,
    *,
    preset: str | None = None,
    labels: Iterable[str] | None = None,
    runs: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
) -> list[PlannedJob]:
    """Return all jobs of a study in the order of execution.

    The selection comes first, then all methods run by run, so that finished jobs are paired early.
    """
    if not isinstance(study, Study):
        raise UserError(f"expected a lab.Study; got {type(study).__name__}; a file is for contdrop compare FILE")
    preset = preset or ("quick" if "quick" in study.presets else next(iter(study.presets)))
    size = study.presets.get(preset)
    if size is None:
        raise mistake("--preset", f"{' or '.join(study.presets)} for {study.name}", repr(preset))
    runs, epochs, seed = (python_number(value) for value in (runs, epochs, seed))
    for name, value in (("runs", runs), ("epochs", epochs), ("seed", seed)):
        if value is not None and (expected := wrong_value(name, value)):
            raise mistake(f"--{name}", expected, repr(value))
    seed = study.seed if seed is None else seed
    total = epochs or size.epochs
    study = study.at(preset)
    protocol = StudyPlan(study, preset, total, size.selection_runs, min(size.selection_epochs or total, total), seed)
    chosen = _labels(study, labels)
    for label in chosen:
        methods.check_scale(methods.parse(label), study.scale)
    sources = [source for label in chosen if (source := study.selected_label(label))]
    variants = [variant for source in sources for variant in study.selection.candidates[source]]
    jobs = [
        PlannedJob(protocol, SELECTION, variant, run)
        for run in range(size.selection_runs)
        for variant in dict.fromkeys(variants)  # one that two methods choose from is trained once
    ]
    return jobs + [PlannedJob(protocol, FINAL, label, run) for run in range(runs or size.runs) for label in chosen]


def is_in(job: PlannedJob, shard: tuple[int, int] | None) -> bool:
    """Return True if a shard has a job: whole runs, and in every shard the selection, which is all of shard 0."""
    return shard is None or job.stage == SELECTION or job.run % shard[1] == shard[0] - 1


def add_plan(store: Store, jobs: Sequence[PlannedJob], **described: Any) -> dict[int, PlannedJob]:
    """Add the jobs of one study plan to a store, with its texts and ``described``; return all by their ids in it."""
    protocol = jobs[0].protocol
    names = ("key", "stage", "method", "run", "epochs", "configuration")
    rows = [{name: getattr(job, name) for name in names} for job in jobs]
    ids = store.add_jobs(protocol.configuration, {**protocol.description, **described}, protocol.key, rows)
    return dict(zip(ids, jobs))


def decided(store: Store, protocol: StudyPlan, label: str) -> SelectionRecord | None:
    """Decide the selection for a label once its candidates are done; None before."""
    if label not in store.selections(protocol.key):
        candidates, jobs = protocol.study.selection.candidates[label], store.jobs(protocol=protocol.key)
        measure = Measure.of(protocol.description)
        found = selection.decide(protocol.key, label, candidates, protocol.selection_runs, jobs, measure)
        if found is None:
            return None
        store.select(found)
    return store.selections(protocol.key)[label]


def _labels(study: Study, labels: Iterable[str] | None) -> list[str]:
    if labels is None:
        return list(study.methods)
    if isinstance(labels, str):
        raise mistake("methods", "a list of labels", repr(labels), f"write {labels.split(',')}")
    chosen = [label.strip() for label in labels]
    if not chosen or not all(chosen):
        raise UserError(f"--methods: expected names separated by commas, such as none,{study.reference}")
    variants: dict[str, str] = {}
    for place, label in enumerate(chosen):
        if label not in study.methods:  # it is written in one way, so that no network is trained twice
            method = methods.parse(label)
            if method.name == OWN:
                raise UserError(
                    f"--methods: {label} is not a method of the study; name it in methods=, where model or run know it"
                )
            chosen[place] = label = str(method) if ":" in label else method.name
        if label in chosen[:place]:
            raise mistake("--methods", "each method once", f"{label!r} twice")
        if study.selected_label(label) is None:
            same = variants.setdefault(str(methods.parse(label)), label)
            if same != label:
                raise UserError(f"--methods: {same} and {label} are the same method; leave one out")
    return chosen
