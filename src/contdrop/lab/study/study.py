"""The settings of a study: data, model, methods, training and metric; all but name, data and model have a default."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...choices import SCALES, Scale
from ...errors import UserError, suggest
from ..data.data import Data, Parts
from ..store.schema import ONLY_SIZE
from ..training.metrics import Metric, chosen
from ..training.random_streams import LARGEST_SEED
from . import methods as dropout_methods
from .labels import OWN, base, without_factor

if TYPE_CHECKING:
    from ..runner.custom_loop import Job

Task = Literal["classification", "regression"]
Precision = Literal["float32", "bfloat16", "float16"]
Keep = Literal["last", "best"]
Weights = Literal["none", "last"]
Period = Literal["step", "epoch"]

# The default methods: the unchanged model, no dropout, and each shape of noise at the strength of the model's own
# layers. "original" and "bernoulli:match" differ in their random numbers alone, which checks the lab itself.
METHODS = ("original", "none", "bernoulli:match", "gaussian:match", "uniform:match")


class Configuration:
    """Base class of frozen dataclasses whose kind and fields are part of a study's key."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the kind and all fields as JSON types; functions by their names."""
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: describe(getattr(self, name)) for name in names}}


def python_number(value: Any) -> Any:
    """Return a NumPy number as Python's own, which JSON can hold; other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def is_integer_at_least(value: Any, least: int) -> bool:
    """Return True if ``value`` is an int (not a bool) of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class Size:
    """A size of a study, for ``--preset``: runs per method and epochs per run.

    Attributes:
        runs: Runs per method.
        epochs: Epochs per run.
        selection_runs: Runs per candidate.
        selection_epochs: Epochs per candidate; ``epochs`` if None.
        settings: Other settings at this size, by name, as :meth:`Study.replace` takes them.
    """

    runs: int
    epochs: int
    selection_runs: int = 3
    selection_epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the training loop.

    Attributes:
        scheduler: ``(optimizer, total) -> LRScheduler``; ``total`` is the number of steps or epochs it is stepped.
            ReduceLROnPlateau is given the validation loss of every epoch.
        schedule_by: "step" or "epoch": when the scheduler is stepped.
        steps: Optimizer steps after which training ends; ``epochs`` has to be enough for them.
        epoch_steps: Optimizer steps per epoch, if an epoch is not a pass over the training data. Evaluations,
            checkpoints and curves go by epochs.
        evaluation_batch_size: Batch size in evaluation; four times ``batch_size`` if None.
        clip: Largest norm of the gradient.
        accumulate: Batches per optimizer step.
        precision: "float32", or "bfloat16" or "float16" by autocast.
        compile: Run the model through ``torch.compile``.
        threads: torch threads per job. They decide the last bits of a result, so they are part of its identity.
        networks: Networks trained per run, with their own initial weights, data order and masks; their mean
            probabilities are evaluated. The optimizer is given all of them as one model.
        evaluate: "epoch", "last", or an interval in epochs.
        keep: Model that is tested: "last", or "best" by validation.
        patience: Evaluations without improvement after which training stops; None never stops early.
        weights: "last" keeps the weights of every final model beside the store.
    """

    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    schedule_by: Period = "step"
    steps: int | None = None
    epoch_steps: int | None = None
    evaluation_batch_size: int | None = None
    clip: float | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    compile: bool = False
    threads: int = 1
    networks: int = 1
    evaluate: Literal["epoch", "last"] | int = "epoch"
    keep: Keep = "last"
    patience: int | None = None
    weights: Weights = "none"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selection of a method's parameters on validation data, in runs of its own before the comparison.

    Attributes:
        candidates: For a label, the labels to choose from; ``label@0.5`` trains at half the learning rate.
        follows: For a label, another one whose selected parameters it takes over.
        runs: Runs per candidate.
        epochs: Epochs per candidate; those of a final run if None.
    """

    candidates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    follows: Mapping[str, str] = field(default_factory=dict)
    runs: int = 3
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    """Texts for reports, without effect on results.

    Attributes:
        title: Title in one line; the study's name if empty.
        paper: Table or figure of the paper that the study replicates.
        notes: Notes for readers of the results.
        margin_reason: Reason for the study's margin.
    """

    title: str = ""
    paper: str = ""
    notes: Sequence[str] = ()
    margin_reason: str = ""


@dataclass(frozen=True)
class Study:
    """A comparison of methods on one model and one data set.

    Attributes:
        name: Name in stores and reports.
        data: Returns the :class:`Data`; called once per process, and has to return the same each time.
        model: Returns the model with its dropout layers, which each method replaces; or, if it takes an argument, the
            model with that method. Called with seeded generators.
        methods: Labels of the methods, see :mod:`contdrop.lab.study.methods`. ``own:NAME`` is a method of your own,
            which the model function or ``run`` knows.
        task: "classification", "regression" or None; decides the default loss and metrics.
        reference: Method that the others are compared with.
        forward: ``(model, batch) -> output``; see :func:`contdrop.lab.training.model.default_forward`.
        loss: ``(output, batch) -> scalar``, a mean over the examples; by task, or ``output.loss``, if None.
        metric: A metric, its name, or several; the first is the one that methods are compared by.
        optimizer: ``(model) -> torch.optim.Optimizer``; torch's fused AdamW with a learning rate of 0.001 if None.
        batch_size: Examples per step.
        epochs: Passes over the training data.
        runs: Runs per method. In a run all methods share data, split, initial weights, order and augmentation.
        seed: Seed of all random numbers.
        margin: Smallest difference that matters, in the metric's unit; fixed before any result is seen. If
            None, a tenth of what the reference leaves to gain; see :func:`contdrop.lab.analysis.margin.margin_of`.
        scale: "inverted" or "paper": how masks are scaled; see :class:`contdrop.Dropout`.
        measure: ``(model, parts, seed) -> {name: array}``: arrays to keep of a final model.
        run: ``(job) -> number or {metric: number}``: a training loop of your own, in place of data, model, loss and
            optimizer.
        training: Settings of the training loop.
        selection: Selection of parameters before the comparison.
        description: Texts for reports.
        sizes: Other sizes by name, for ``--preset``.

    Example:
        >>> study = Study("example", run=lambda job: 0.5, metric=Metric("error"), epochs=5)
        >>> study.replace(runs=3, title="An example").description.title
        'An example'
    """

    name: str
    data: Callable[[], Data] | None = None
    model: Callable[..., nn.Module] | None = None
    _: KW_ONLY
    methods: Sequence[str] = METHODS
    task: Task | None = "classification"
    reference: str = "original"
    forward: Callable[[nn.Module, Any], Any] | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    metric: Metric | str | Sequence[Metric | str] | None = None
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    batch_size: int = 64
    epochs: int = 20
    runs: int = 10
    seed: int = 0
    margin: float | None = None
    scale: Scale = "inverted"
    measure: Callable[[nn.Module, Parts, int], Mapping[str, Any]] | None = None
    run: Callable[[Job], float | Mapping[str, float]] | None = None
    training: Training = Training()
    selection: Selection = Selection()
    description: Description = Description()
    sizes: Mapping[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in (self, self.training, self.selection):
            for name, value in vars(part).items() if isinstance(part, Study | Training | Selection) else ():
                object.__setattr__(part, name, python_number(value))
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w.][\w .+-]{0,99}", self.name):
            raise UserError(f"study: expected a name of letters, digits, dots and dashes; got {self.name!r}")
        for mistake in _mistakes(self):
            raise UserError(f"study {self.name!r}: {mistake}")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics; the first is primary."""
        return chosen(self.metric, self.task)

    @property
    def presets(self) -> Mapping[str, Size]:
        """Sizes by name; a study without any has its own."""
        return self.sizes or {ONLY_SIZE: Size(self.runs, self.epochs, self.selection.runs, self.selection.epochs)}

    @property
    def takes_method(self) -> bool:
        """True if the model function builds the model of a method itself."""
        return self.model is not None and _parameters(self.model) == 1

    def replace(self, **settings: Any) -> Study:
        """Return a copy with other settings; those of a group (``training`` …) are given by their own names."""
        return dataclasses.replace(self, **group_settings(settings, self))

    def at(self, preset: str) -> Study:
        """Return the study with the settings of a size."""
        return self.replace(**self.presets[preset].settings)

    def selected_label(self, label: str) -> str | None:
        """Return the label whose selection decides the parameters of ``label``; None if they are fixed."""
        source = self.selection.follows.get(label, label)
        return source if source in self.selection.candidates else None

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that decides results and can be written down, under the names that keys hash."""
        training = {
            "forward": self.forward,
            "loss": self.loss,
            "optimiser": self.optimizer,
            "batch_size": self.batch_size,
            **{name: getattr(self.training, name) for name in _HASHED},
        }
        # Only where they have an effect: they are younger than the oldest keys.
        rarely = {"epoch_steps": self.training.epoch_steps} if self.training.epoch_steps else {}
        rarely |= {"networks": self.training.networks} if self.training.networks > 1 else {}
        return {
            "data": describe(self.data),
            "model": describe(self.model),
            "metric": [metric.name for metric in self.metrics],
            "training": {name: describe(value) for name, value in training.items()} | rarely,
            "task": self.task,
            "scale": self.scale,
            **{name: getattr(self.training, name) for name in ("keep", "patience", "evaluate", "weights")},
            "measure": describe(self.measure),
            "run": describe(self.run),
        }


GROUPS: Mapping[str, type] = {"training": Training, "selection": Selection, "description": Description}
_TOP_LEVEL = {each.name for each in fields(Study)}
GROUP_OF = {each.name: group for group, kind in GROUPS.items() for each in fields(kind) if each.name not in _TOP_LEVEL}
_HASHED = ("scheduler", "schedule_by", "evaluation_batch_size", "steps", "clip", "accumulate", "precision", "compile")


def group_settings(settings: Mapping[str, Any], base: Study | type[Study] = Study) -> dict[str, Any]:
    """Return settings given by their own names as arguments of :class:`Study`, those of groups as changed groups."""
    found = {name: value for name, value in settings.items() if name not in GROUP_OF}
    for group in GROUPS:
        inside = {name: value for name, value in settings.items() if GROUP_OF.get(name) == group}
        if inside:
            found[group] = dataclasses.replace(found.get(group, getattr(base, group)), **inside)
    return found


def describe(thing: Any) -> Any:
    """Return a setting as plain data: a function by its name, a method of a :class:`Configuration` by that."""
    owner = getattr(thing, "__self__", thing)
    if isinstance(owner, Configuration):
        return owner.as_dict()
    if callable(thing):
        return getattr(thing, "__qualname__", type(thing).__qualname__)
    return [describe(each) for each in thing] if isinstance(thing, tuple) else thing


def _one_of(*choices: Any) -> _Rule:
    return f"one of {', '.join(map(repr, choices))}", lambda value: value in choices


_Rule = tuple[str, Callable[[Any], bool]]  # what is expected of a setting, and a test of it
_COUNT: _Rule = ("a whole number of at least 1", lambda v: is_integer_at_least(v, 1))
_POSITIVE: _Rule = ("a number above 0, or None", lambda v: isinstance(v, (int, float)) and 0 < v < float("inf"))
_FUNCTIONS = ("data", "model", "forward", "loss", "optimizer", "scheduler", "measure", "run")
_OPTIONAL_COUNTS = ("steps", "epoch_steps", "patience", "evaluation_batch_size", "selection.epochs")
_UNLESS_NONE = {*_FUNCTIONS, *_OPTIONAL_COUNTS, "clip", "margin"}
_RULES: dict[str, _Rule] = {
    "task": _one_of(*get_args(Task), None),
    "precision": _one_of(*get_args(Precision)),
    "keep": _one_of(*get_args(Keep)),
    "weights": _one_of(*get_args(Weights)),
    "schedule_by": _one_of(*get_args(Period)),
    "scale": _one_of(*SCALES),
    "seed": ("a whole number from 0 to 2^63 - 1", lambda v: is_integer_at_least(v, 0) and v <= LARGEST_SEED),
    "evaluate": ("'epoch', 'last' or a whole number", lambda v: v in ("epoch", "last") or is_integer_at_least(v, 1)),
    **dict.fromkeys(("batch_size", "epochs", "runs", "accumulate", "threads", "selection.runs", "networks"), _COUNT),
    **dict.fromkeys(_OPTIONAL_COUNTS, _COUNT),
    **dict.fromkeys(("clip", "margin"), _POSITIVE),
    **dict.fromkeys(_FUNCTIONS, ("a function", callable)),
}


def wrong_value(name: str, value: Any) -> str:
    """Return a description of the expected value, or "" if the value is valid."""
    expected, holds = _RULES[name]
    return "" if holds(value) or (value is None and name in _UNLESS_NONE) else expected


def _mistakes(study: Study) -> Iterator[str]:
    for group, kind in GROUPS.items():
        if not isinstance(getattr(study, group), kind):
            got = type(getattr(study, group)).__name__
            yield f"expected {group} to be lab.{kind.__name__}(...); got {got}"
    training, selection = study.training, study.selection
    values = vars(study) | vars(training) | {f"selection.{name}": each for name, each in vars(selection).items()}
    for name in _RULES:
        if expected := wrong_value(name, values[name]):
            got = type(values[name]).__name__ if name in _FUNCTIONS else repr(values[name])
            yield f"expected {name} to be {expected}; got {got}"
    if training.networks > 1 and study.task != "classification":
        yield "expected task='classification' for networks > 1, whose probabilities are averaged"
    if training.evaluate == "last" and (training.keep == "best" or training.patience):
        yield "keep='best' and patience need validation data in every epoch; use evaluate='epoch'"
    yield from _wrong_functions(study)
    yield from _wrong_loop(study)
    yield from _wrong_methods(study)
    yield from _wrong_selection(study)


def _wrong_functions(study: Study) -> Iterator[str]:
    """Yield what is wrong with objects of torch in place of functions that make or call them."""
    if isinstance(study.optimizer, type) and issubclass(study.optimizer, Optimizer):
        name = f"torch.optim.{study.optimizer.__name__}"
        fix = f"optimizer=lambda model: {name}(model.parameters(), lr=...)"
        yield f"expected optimizer to take the model; got {name}, which takes parameters; write {fix}"
    if isinstance(study.model, nn.Module):
        name = type(study.model).__name__
        expected = "a function that makes the model, as each run trains new ones"
        yield f"expected model to be {expected}; got {name}; write def model(): return {name}(...)"
    if isinstance(study.loss, nn.Module) and type(study.loss).__module__.startswith("torch.nn"):
        name = f"nn.{type(study.loss).__name__}"
        fix = f"loss=lambda output, batch: {name}()(output, batch[1])"
        yield f"expected loss to take (output, batch); got torch.{name}, which takes (output, target); write {fix}"


def _wrong_loop(study: Study) -> Iterator[str]:
    """Yield the functions that the lab's loop lacks, or the settings that the study's own one cannot know of."""
    if study.run is not None:
        for name in ("measure", "weights", "keep", "patience", "networks", "clip"):
            owner, default = (study, Study) if name == "measure" else (study.training, Training)
            if getattr(owner, name) != getattr(default, name):
                yield f"a loop of your own (run=) does not use {name}; do it there, and leave it out"
        return
    for name in ("data", "model"):
        if getattr(study, name) is None:
            yield f"expected a function {name}, or run= for a loop of your own; got neither"
    if study.task is None and (study.metric is None or study.loss is None):
        yield "without a task, give loss= and metric="
    if study.model is not None and _parameters(study.model) not in (0, 1):
        yield f"expected model to take no argument, or the method; it takes {_parameters(study.model)}"


def _wrong_methods(study: Study) -> Iterator[str]:
    if isinstance(study.methods, str) or not study.methods:
        yield f"expected methods to be a list of labels; got {study.methods!r}"
    for label in study.methods:
        if dropout_methods.parse(label).name == OWN and study.run is None and not study.takes_method:
            expected = f"a function that knows {label}, def model(method) or run="
            yield f"expected {expected}; got neither; the methods that need none are in docs/studies.md"
    if len(set(study.methods)) < len(study.methods):
        yield f"expected each method once; got {', '.join(map(repr, study.methods))}"
    if study.reference not in {base(label) for label in study.methods} | set(study.methods):
        yield f"the reference is not among the methods; {suggest(study.reference, study.methods)}"


def _wrong_selection(study: Study) -> Iterator[str]:
    candidates, follows = study.selection.candidates, study.selection.follows
    for name in ("candidates", "follows"):
        kind = type(getattr(study.selection, name))
        if not issubclass(kind, Mapping):
            yield f"expected {name} to be a dictionary by label; got {kind.__name__}"
    for label, variants in candidates.items():
        are_labels = isinstance(variants, list | tuple) and all(isinstance(each, str) for each in (label, *variants))
        if not are_labels or not variants:
            yield f"expected candidates[{label!r}] to be a list of labels; got {variants!r}"
        if len(set(variants)) < len(variants):
            yield f"expected each of candidates[{label!r}] once; got {', '.join(map(repr, variants))}"
        law = dropout_methods.parse(label).name
        for each in variants:
            if dropout_methods.parse(without_factor(each)[0]).name != law:
                yield f"expected candidates[{label!r}] to be variants of {law}; got {each!r}"
    # The paper's figures have the candidates of its tables, and fewer methods.
    used = [*study.methods, *follows.values(), *(candidates if study.description.paper else ())]
    for name, labels, known, what in (
        ("candidates", candidates, used, "is not among the methods"),
        ("follows", follows, study.methods, "is not among the methods"),
        ("follows", follows.values(), candidates, "has no candidates"),
    ):
        for label in labels:
            if label not in known:
                yield f"{name}: {label!r} {what}; {suggest(str(label), known)}"


def _parameters(function: Callable[..., Any]) -> int:
    """Return the number of positional arguments that a function requires."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is each.empty and each.kind in kinds for each in found)
