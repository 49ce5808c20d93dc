"""What is compared: data, a model, methods, training and a metric. The paper's experiments are studies like any other.

The simple case is five lines; everything beyond name, data and model has a default::

    def data():
        return lab.Data(train=(x, y), test=(x_test, y_test))

    def model():
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3))

    study = lab.Study("my-study", data, model, epochs=20, runs=10)
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

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

# What a study compares if it does not say: the model as it is, without dropout, and each shape of noise at the strength
# that each of its layers has. "original" against "bernoulli:match" is the check of the lab itself: they differ in
# nothing but the random numbers.
METHODS = ("original", "none", "bernoulli:match", "gaussian:match", "uniform:match")


@dataclass(frozen=True)
class Size:
    """How much is done: runs per method and epochs per run, in the comparison and in the selection before it.

    Few epochs may need other ``settings``: fields of the study, by name.
    """

    runs: int
    epochs: int
    selection_runs: int = 3
    selection_epochs: int | None = None  # as many as the final runs, if None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A comparison of methods on one model and one data set.

    Attributes:
        name: What it is called in stores and reports.
        data: Returns the :class:`Data`; called once per process, and has to return the same each time.
        model: Returns the model with its dropout layers, which each method replaces; or, if it takes an argument, the
            model with that method. Called with seeded generators.
        methods: Labels of the methods compared; see :mod:`contdrop.lab.study.methods`.
            ``own:NAME`` is one of your own, which
            the model function, if it takes the method, or ``run`` knows.
        task: Decides the default loss and metrics: "classification", "regression", or None.
        reference: The method that the others are compared with.
        forward: ``(model, batch) -> output``; see :func:`contdrop.lab.data.batch.default_forward`.
        loss: ``(output, batch) -> scalar``, a mean over the examples; by task, or ``output.loss``, if None.
        metric: A metric, its name, or several; the first is what methods are compared by.
        optimiser: ``(model) -> torch.optim.Optimizer``; torch's fused AdamW at a rate of 0.001 if None.
        scheduler: ``(optimiser, total) -> LRScheduler``; stepped by step, ``total`` being the number of steps, or by
            epoch. One that waits for a plateau (ReduceLROnPlateau) is given the validation loss of every epoch.
        schedule_by: "step" or "epoch".
        batch_size: Examples per step.
        evaluation_batch_size: Examples at a time where nothing is learnt; four times ``batch_size`` if None.
        epochs: Passes over the training data.
        steps: Optimiser steps, after which training ends; ``epochs`` has to be enough for them.
        epoch_steps: Optimiser steps that make an epoch, if it is not a pass over the training data: evaluations,
            checkpoints, curves and whatever else goes by epochs then go by so many steps.
        networks: Trained in a run beside one another, with initial weights, data order and masks of their own; the mean
            of their probabilities counts. The optimiser is given all of them as one model.
        runs: Per method. In a run all methods share data, split, initial weights, order and augmentation.
        seed: Of everything random.
        clip: Largest norm of the gradient.
        accumulate: Batches per optimiser step.
        precision: Of the forward pass: "float32", or by autocast "bfloat16" or "float16".
        compile: Whether the model goes through ``torch.compile``.
        threads: torch threads per job. It decides the last bits, so it is part of what is compared.
        keep: Which model counts, "last" or "best" by validation.
        patience: Stop after so many evaluations without a better one; None never stops early.
        evaluate: "epoch", "last", or every so many epochs.
        weights: "last" keeps the weights of every final model beside the store.
        candidates: For a label, the variants to choose from on validation data, by runs of their own. A variant is a
            label; ``label@0.5`` trains with half the learning rate.
        follows: Labels that take over the parameters selected for another label.
        selection_runs: Runs per candidate.
        selection_epochs: Epochs per candidate; as many as the final runs if None.
        margin: The smallest difference that matters, in the metric's unit; fixed here, before any result.
        margin_reason: Why.
        scale: "inverted" or "paper": how masks are scaled; see :class:`contdrop.Dropout`.
        measure: ``(model, parts, seed) -> {name: array}``: what else to keep of a final model.
        run: ``(job) -> number or {metric: number}``: the user's own loop, in place of data, model, loss and optimiser.
        title: In a line, for reports.
        paper: Which table or figure of the paper it is; empty if none.
        notes: What a reader of the result should know.
        sizes: Other sizes by name, for ``--preset``.
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
    optimiser: Callable[[nn.Module], Optimizer] | None = None
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    schedule_by: Period = "step"
    batch_size: int = 64
    evaluation_batch_size: int | None = None
    epochs: int = 20
    steps: int | None = None
    epoch_steps: int | None = None
    networks: int = 1
    runs: int = 10
    seed: int = 0
    clip: float | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    compile: bool = False
    threads: int = 1
    keep: Keep = "last"
    patience: int | None = None
    evaluate: Literal["epoch", "last"] | int = "epoch"
    weights: Weights = "none"
    candidates: Mapping[str, Sequence[str]] | None = None
    follows: Mapping[str, str] = field(default_factory=dict)
    selection_runs: int = 3
    selection_epochs: int | None = None
    margin: float | None = None
    margin_reason: str = ""
    scale: Scale = "inverted"
    measure: Callable[[nn.Module, Parts, int], Mapping[str, Any]] | None = None
    run: Callable[[Job], float | Mapping[str, float]] | None = None
    title: str = ""
    paper: str = ""
    notes: Sequence[str] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The first is primary."""
        return chosen(self.metric, self.task)

    @property
    def presets(self) -> Mapping[str, Size]:
        """Sizes by name; a study without any has its own."""
        own = Size(self.runs, self.epochs, self.selection_runs, self.selection_epochs)
        return self.sizes or {ONLY_SIZE: own}

    @property
    def default_preset(self) -> str:
        return "quick" if "quick" in self.presets else next(iter(self.presets))

    @property
    def takes_method(self) -> bool:
        """Whether the model function builds the model of a method itself."""
        return self.model is not None and _parameters(self.model) == 1

    def at(self, preset: str) -> Study:
        """The study with the settings of a size."""
        settings = self.presets[preset].settings
        return dataclasses.replace(self, **settings) if settings else self

    def selected_label(self, label: str) -> str | None:
        """The label whose selection decides the parameters of ``label``; None if they are fixed."""
        source = self.follows.get(label, label)
        return source if source in (self.candidates or {}) else None

    @property
    def configuration(self) -> dict[str, Any]:
        """All that decides results and can be written down; of functions, their names."""
        plain = ("task", "scale", "keep", "patience", "evaluate", "weights")
        trained = (
            *("forward", "loss", "optimiser", "scheduler", "schedule_by", "batch_size", "evaluation_batch_size"),
            *("steps", "clip", "accumulate", "precision", "compile"),
        )
        # Not where they change nothing, so that stores from before there were such settings go on.
        rarely = {"epoch_steps": self.epoch_steps} if self.epoch_steps else {}
        rarely |= {"networks": self.networks} if self.networks > 1 else {}
        return {
            "data": describe(self.data),
            "model": describe(self.model),
            "metric": [metric.name for metric in self.metrics],
            "training": {name: describe(getattr(self, name)) for name in trained} | rarely,
            **{name: getattr(self, name) for name in plain},
            "measure": describe(self.measure),
            "run": describe(self.run),
        }


def describe(thing: Any) -> Any:
    """What a configuration says about a setting: plain data, or the name of a function.

    A method of a :class:`Configuration` is described by that.
    """
    owner = getattr(thing, "__self__", thing)
    if isinstance(owner, Configuration):
        return owner.as_dict()
    if callable(thing):
        return name_of(thing, type(thing).__qualname__)
    return thing


_CHOICES: dict[str, tuple[Any, ...]] = {
    "task": (*get_args(Task), None),
    "precision": get_args(Precision),
    "keep": get_args(Keep),
    "weights": get_args(Weights),
    "schedule_by": get_args(Period),
    "scale": SCALES,
}
_AT_LEAST_ONE = ("batch_size", "epochs", "runs", "accumulate", "threads", "selection_runs", "networks")
_MAYBE_AT_LEAST_ONE = ("steps", "epoch_steps", "patience", "evaluation_batch_size", "selection_epochs")
_FUNCTIONS = ("data", "model", "forward", "loss", "optimiser", "scheduler", "measure", "run")


def _check(study: Study) -> None:
    where = f"study {study.name!r}"
    if not isinstance(study.name, str) or not re.fullmatch(r"[\w.][\w .+-]{0,99}", study.name):
        raise UserError(f"study: expected a name of letters, digits, dots and dashes; got {study.name!r}")
    for name, choices in _CHOICES.items():
        if getattr(study, name) not in choices:
            raise UserError(f"{where}: expected {name} to be one of {_listed(choices)}; got {getattr(study, name)!r}")
    for name in (*_AT_LEAST_ONE, *_MAYBE_AT_LEAST_ONE):
        value = getattr(study, name)
        if not (value is None and name in _MAYBE_AT_LEAST_ONE) and not is_integer_at_least(value, 1):
            raise UserError(f"{where}: expected {name} to be a whole number of at least 1; got {value!r}")
    if not is_integer_at_least(study.seed, 0) or study.seed > LARGEST_SEED:
        raise UserError(f"{where}: expected seed to be a whole number from 0 to 2^63 - 1; got {study.seed!r}")
    if study.evaluate not in ("epoch", "last") and not is_integer_at_least(study.evaluate, 1):
        raise UserError(f"{where}: expected evaluate to be 'epoch', 'last' or a whole number; got {study.evaluate!r}")
    for name in ("clip", "margin"):
        value = getattr(study, name)
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
            raise UserError(f"{where}: expected {name} to be a number above 0, or None; got {value!r}")
    if study.networks > 1 and study.task != "classification":
        raise UserError(f"{where}: expected task='classification' for networks > 1, whose probabilities are averaged")
    _check_functions(study, where)
    _check_methods(study, where)
    if study.evaluate == "last" and (study.keep == "best" or study.patience):
        raise UserError(f"{where}: keep='best' and patience need validation data in every epoch; use evaluate='epoch'")


def _check_functions(study: Study, where: str) -> None:
    for name in _FUNCTIONS:
        value = getattr(study, name)
        if value is not None and not callable(value):
            raise UserError(f"{where}: expected {name} to be a function; got {type(value).__name__}")
    if isinstance(study.optimiser, type) and issubclass(study.optimiser, Optimizer):
        name = study.optimiser.__name__
        raise UserError(
            f"{where}: expected optimiser to take the model; got torch.optim.{name}, which takes parameters; write "
            f"optimiser=lambda model: torch.optim.{name}(model.parameters(), lr=...)"
        )
    if isinstance(study.model, nn.Module):
        raise UserError(
            f"{where}: expected model to be a function that makes the model, as each run trains new ones; got "
            f"{type(study.model).__name__}; write def model(): return {type(study.model).__name__}(...)"
        )
    if isinstance(study.loss, nn.Module) and type(study.loss).__module__.startswith("torch.nn"):
        name = type(study.loss).__name__
        raise UserError(
            f"{where}: expected loss to take (output, batch); got torch.nn.{name}, which takes (output, target); write "
            f"loss=lambda output, batch: nn.{name}()(output, batch[1])"
        )
    if study.run is not None:
        _check_loop(study, where)
        return
    for name in ("data", "model"):
        if getattr(study, name) is None:
            raise UserError(f"{where}: expected a function {name}, or run= for a loop of your own; there is none")
    if study.task is None and (study.metric is None or study.loss is None):
        raise UserError(f"{where}: without a task, give loss= and metric=")
    if study.model is not None and _parameters(study.model) not in (0, 1):
        raise UserError(
            f"{where}: expected model to take no argument, or the method; it takes {_parameters(study.model)}"
        )


def _check_loop(study: Study, where: str) -> None:
    """A setting that a loop of one's own would have to heed, and cannot know of, is refused rather than forgotten."""
    defaults = {each.name: each.default for each in dataclasses.fields(Study)}
    for name in ("measure", "weights", "keep", "patience", "networks", "clip"):
        if getattr(study, name) != defaults[name]:
            raise UserError(
                f"{where}: with run= the loop is yours, and {name} is not heeded; do it there, and leave it out"
            )


def _check_methods(study: Study, where: str) -> None:
    if isinstance(study.methods, str) or not study.methods:
        raise UserError(f"{where}: expected methods to be a list of labels; got {study.methods!r}")
    for label in study.methods:
        method = dropout_methods.parse(label)
        if method.name == OWN and study.run is None and not study.takes_method:
            raise UserError(
                f"{where}: expected a function that knows {label}, def model(method) or run=; got neither; the methods "
                "that need none are in docs/studies.md"
            )
    if len(set(study.methods)) < len(study.methods):
        raise UserError(f"{where}: expected each method once; got {_listed(study.methods)}")
    if study.reference not in {base(label) for label in study.methods} | set(study.methods):
        raise UserError(f"{where}: the reference is not among the methods; {suggest(study.reference, study.methods)}")
    _check_candidates(study, where)


def _check_candidates(study: Study, where: str) -> None:
    candidates, follows = study.candidates or {}, study.follows
    for name, given in (("candidates", candidates), ("follows", follows)):
        if not isinstance(given, Mapping):
            raise UserError(f"{where}: expected {name} to be a dictionary by label; got {type(given).__name__}")
    for label, variants in candidates.items():
        are_labels = isinstance(variants, list | tuple) and all(isinstance(each, str) for each in (label, *variants))
        if not are_labels or not variants:
            raise UserError(f"{where}: expected candidates[{label!r}] to be a list of labels; got {variants!r}")
        if len(set(variants)) < len(variants):
            raise UserError(f"{where}: expected each of candidates[{label!r}] once; got {_listed(variants)}")
        law = dropout_methods.parse(label).name
        wrong = [each for each in variants if dropout_methods.parse(without_factor(each)[0]).name != law]
        if wrong:
            raise UserError(f"{where}: expected candidates[{label!r}] to be variants of {law}; got {wrong[0]!r}")
    # The paper's figures have the candidates of its tables, and fewer methods.
    used = [*study.methods, *follows.values(), *(candidates if study.paper else ())]
    for name, labels, known, what in (
        ("candidates", candidates, used, "is not among the methods"),
        ("follows", follows, study.methods, "is not among the methods"),
        ("follows", follows.values(), candidates, "has no candidates"),
    ):
        for label in labels:
            if label not in known:
                raise UserError(f"{where}: {name}: {label!r} {what}; {suggest(str(label), known)}")


def _parameters(function: Callable[..., Any]) -> int:
    """How many arguments a function needs."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is inspect.Parameter.empty and each.kind in kinds for each in found)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values))


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Configuration:
    """Base of the frozen dataclasses that describe networks and their training."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """The kind and all fields, as JSON would give them back; functions by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}


def described_as(name: str) -> Callable[[_Function], _Function]:
    """Fix the name that a configuration has of one of our own functions: keys hash it, so a new name keeps it."""

    def fix(function: _Function) -> _Function:
        function.described_as = name  # type: ignore[attr-defined]
        return function

    return fix


def name_of(thing: Callable[..., Any], otherwise: Any) -> Any:
    """Return what a configuration says of a function."""
    return getattr(thing, "described_as", getattr(thing, "__qualname__", otherwise))


def is_integer_at_least(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _plain(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.as_dict()
    if callable(value):
        return name_of(value, value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
