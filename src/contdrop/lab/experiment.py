"""What is compared, and the plan of it: methods times runs, and what all of them share.

An :class:`Experiment` stands for a table or figure. At one size it is a :class:`Protocol`: everything that its jobs
have in common. A :class:`Job` trains one network: one method in one run. In run i all methods share the split, the
initial weights and the data order; only the masks differ.

Parameters that the paper selects (sigma; alpha and beta) are selected by a stage of its own, on validation data, with
its own seeds: candidates are trained like any method, and the one with the lowest validation error is what the final
runs use. The selection never evaluates test data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from ..kernels import MASKS_VERSION
from . import methods
from .data import Split
from .models import Model
from .recipes import Recipe
from .store import FINAL, SELECTION, Store


@dataclass(frozen=True)
class Size:
    """How much is done: runs per method and epochs per run, in the comparison and in the selection before it.

    Few epochs may need a recipe of their own.
    """

    runs: int
    epochs: int
    selection_runs: int = 1
    selection_epochs: int | None = None  # as many as the final runs, if None
    recipe: Recipe | None = None  # the experiment's, if None


@dataclass(frozen=True)
class Covariance:
    """Measure, after training, the covariance of units under dropout noise; see :func:`contdrop.coadaptation`.

    The histogram is of all pairs of different units, from -largest to largest.
    """

    inputs: int = 10
    repeats: int = 10_000
    bins: int = 101  # odd, so that one of them is around 0
    largest: float = 0.05


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    Attributes:
        name: As given to ``contdrop run``.
        title: What it compares, in a line.
        paper: Which table or figure of the paper it is; empty if none.
        dataset: Name of the data set.
        split: How many images are for training and for validation; drawn anew in every run.
        model: The network.
        recipe: How it is trained.
        methods: Labels of the methods compared.
        sizes: By preset; "quick" is the default where there is one, for the paper's size takes weeks.
        reference: The method that the others are compared with.
        candidates: For labels whose parameters are selected, the variants to choose from.
        follows: Labels that take over the parameters selected for another label.
        covariance: What to measure after training, if anything.
        notes: What a reader of the result should know: choices that the paper leaves open.
        margin: The smallest difference in error, in percentage points, that matters; fixed here, before any result.
        margin_reason: Why.
    """

    name: str
    title: str
    paper: str
    dataset: str
    split: Split
    model: Model
    recipe: Recipe
    methods: tuple[str, ...]
    sizes: Mapping[str, Size]
    reference: str = "gaussian"
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    follows: Mapping[str, str] = field(default_factory=dict)
    covariance: Covariance | None = None
    notes: tuple[str, ...] = ()
    margin: float | None = None
    margin_reason: str = ""

    @property
    def default_preset(self) -> str:
        return "quick" if "quick" in self.sizes else next(iter(self.sizes))

    def selected_label(self, label: str) -> str | None:
        """The label whose selection decides the parameters of ``label``; None if they are fixed."""
        source = self.follows.get(label, label)
        return source if source in self.candidates else None


@dataclass(frozen=True)
class Protocol:
    """An experiment at one size: what all its jobs share. Results of two protocols are not comparable."""

    experiment: Experiment
    preset: str
    epochs: int
    selection_runs: int
    selection_epochs: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        return self.experiment.sizes[self.preset].recipe or self.experiment.recipe

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that decides the results, as plain data."""
        experiment = self.experiment
        return {
            "experiment": experiment.name,
            "masks": MASKS_VERSION,
            "preset": self.preset,
            "epochs": self.epochs,
            "seed": self.seed,
            "dataset": experiment.dataset,
            "split": dataclasses.asdict(experiment.split),
            "model": experiment.model.as_dict(),
            "recipe": self.recipe.as_dict(),
            "selection": {
                "runs": self.selection_runs,
                "epochs": self.selection_epochs,
                "candidates": {label: list(variants) for label, variants in sorted(experiment.candidates.items())},
                "follows": dict(sorted(experiment.follows.items())),
            },
            "covariance": dataclasses.asdict(experiment.covariance) if experiment.covariance else None,
        }

    @property
    def description(self) -> dict[str, Any]:
        """What a report says about it beyond the configuration; changes nothing in the results."""
        experiment = self.experiment
        size = experiment.sizes.get("paper")
        return {
            "title": experiment.title,
            "paper": experiment.paper,
            "reference": experiment.reference,
            "methods": list(experiment.methods),
            "notes": list(experiment.notes),
            "margin": experiment.margin,
            "margin_reason": experiment.margin_reason,
            "paper_runs": size.runs if size and experiment.paper else None,
            "paper_epochs": size.epochs if size and experiment.paper else None,
        }

    @property
    def key(self) -> str:
        return fingerprint(self.configuration)


@dataclass(frozen=True)
class Job:
    """One network to train. ``method`` is the label; its variant may be known only after the selection."""

    protocol: Protocol
    stage: str
    method: str
    run: int

    @property
    def epochs(self) -> int:
        return self.protocol.selection_epochs if self.stage == SELECTION else self.protocol.epochs

    @property
    def waits_for(self) -> str | None:
        """The label whose selection has to be decided first."""
        return None if self.stage == SELECTION else self.protocol.experiment.selected_label(self.method)

    def variant(self, selected: Mapping[str, str]) -> methods.Method:
        """The method with all its parameters, given what was selected for each label."""
        source = self.waits_for
        if source is None:
            return methods.parse(self.method)
        chosen = methods.parse(selected[source])
        name = methods.parse(self.method).name
        return methods.parse(":".join([name, *str(chosen).split(":")[1:]]))

    @property
    def configuration(self) -> dict[str, Any]:
        return {**self.protocol.configuration, "stage": self.stage, "method": self.method, "run": self.run}

    @property
    def key(self) -> str:
        return fingerprint(self.configuration)

    def __str__(self) -> str:
        stage = " (selection)" if self.stage == SELECTION else ""
        return f"{self.protocol.experiment.name} {self.method} run {self.run}{stage}"


def fingerprint(content: Any) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def plan(
    experiment: Experiment,
    *,
    preset: str | None = None,
    labels: Iterable[str] | None = None,
    runs: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> list[Job]:
    """All jobs of an experiment, in the order in which they are best done.

    The selection comes first, then run by run all methods, so that what is finished early is paired.
    """
    preset = preset or experiment.default_preset
    if preset not in experiment.sizes:
        known = " or ".join(experiment.sizes)
        raise UserError(f"--preset: expected {known} for {experiment.name}; got {preset!r}")
    size = experiment.sizes[preset]
    for option, value in (("--runs", runs), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise UserError(f"{option}: expected a whole number of at least 1; got {value}")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed: expected a whole number from 0 to 2^63 - 1; got {seed}")
    total = epochs or size.epochs
    protocol = Protocol(
        experiment, preset, total, size.selection_runs, min(size.selection_epochs or total, total), seed
    )
    chosen = _labels(experiment, labels)
    for label in chosen:
        methods.check_scale(methods.parse(label), protocol.recipe.scale)
    sources = [source for label in chosen if (source := experiment.selected_label(label))]
    jobs = [
        Job(protocol, SELECTION, variant, run)
        for run in range(size.selection_runs)
        for source in dict.fromkeys(sources)
        for variant in experiment.candidates[source]
    ]
    return jobs + [Job(protocol, FINAL, label, run) for run in range(runs or size.runs) for label in chosen]


def add_plan(store: Store, jobs: Sequence[Job]) -> dict[int, Job]:
    """Puts jobs of one protocol into a store, except those that are there; returns all by their ids in it."""
    protocol = jobs[0].protocol
    rows = [
        {
            "key": job.key,
            "stage": job.stage,
            "method": job.method,
            "run": job.run,
            "epochs": job.epochs,
            "configuration": job.configuration,
        }
        for job in jobs
    ]
    return dict(zip(store.add_jobs(protocol.configuration, protocol.description, protocol.key, rows), jobs))


def _labels(experiment: Experiment, labels: Iterable[str] | None) -> list[str]:
    if labels is None:
        return list(experiment.methods)
    chosen = [label.strip() for label in labels]
    if not chosen or not all(chosen):
        raise UserError(f"--methods: expected names separated by commas, such as none,{experiment.reference}")
    # A method that is not in the table may be added to it. One way of writing it, lest one network be trained twice.
    chosen = [label if label in experiment.methods else _canonical(label) for label in chosen]
    if len(set(chosen)) < len(chosen):
        twice = next(label for label in chosen if chosen.count(label) > 1)
        raise UserError(f"--methods: expected each method once; got {twice!r} twice")
    variants: dict[str, str] = {}
    for label in chosen:
        if experiment.selected_label(label) is None:
            same = variants.setdefault(str(methods.parse(label)), label)
            if same != label:
                raise UserError(f"--methods: {same} and {label} are the same method; leave one out")
    return chosen


def _canonical(label: str) -> str:
    method = methods.parse(label)
    return str(method) if ":" in label else method.name
