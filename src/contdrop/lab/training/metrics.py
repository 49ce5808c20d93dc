"""Metrics: contributions of test examples, which are stored, and the value computed from them; and an epoch's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module, functional

from ...errors import UserError, mistake, suggest
from ..data.batch import (
    IGNORED,
    examples_of,
    logits_and_classes,
    loss_of,
    per_example,
    prediction_and_target,
    prediction_of,
    size_of,
    target_of,
)
from ..store.reader import WEIGHTS
from . import metric_values

if TYPE_CHECKING:
    from ..study.study import Study

Better = Literal["lower", "higher"]
# Batches of an epoch are counted together: a dozen small operations per step would cost small networks a fifth of their
# speed.
_MOST_BATCHES = 256
_MOST_NUMBERS = 2**18
_RESERVED = ("predictions", "labels", "groups")
Of = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Metric:
    """Metric of a model on test data. Metrics are equal if their names are.

    Example:
        >>> Metric("error", unit="%").value([100.0, 0.0, 0.0])
        33.333333333333336

    Attributes:
        name: Name in the store and in reports.
        of: (output, batch) -> contribution of each example, [examples] or [examples, k]. Not needed where a study's own
            loop returns the value.
        combine: Mean contribution over examples, a number or k numbers in float64 -> value. None: the mean itself.
        unit: Shown after values.
        better: "lower" or "higher"; None for that of the built-in metric of this name, else lower.
        function: All contributions -> value; set by :meth:`whole`.
    """

    name: str
    of: Of | None = None
    combine: Callable[[Any], Any] | None = None
    unit: str = ""
    better: Better = None  # type: ignore[assignment]  # set when it is made
    function: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    by_batch: bool = field(default=False, kw_only=True)  # examples contribute the mean of their batch

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise UserError(f"Metric: expected a name of printable characters, got {self.name!r}")
        if self.name in _RESERVED:
            raise UserError(f"Metric: expected a name other than {', '.join(_RESERVED)}, which a store uses itself")
        given: Any = self.better
        known = metric_values.better_of(self.name)
        if given is None:
            object.__setattr__(self, "better", known or "lower")
        if self.better not in ("lower", "higher"):
            raise UserError(f'metric {self.name}: expected better to be "lower" or "higher", got {self.better!r}')
        if known not in (None, self.better):
            raise UserError(f"metric {self.name}: {known} values of it are better; got better={self.better!r}")
        for what in (self.of, self.combine, self.function):
            if what is not None and not callable(what):
                raise UserError(f"metric {self.name}: expected functions as of and combine, got {what!r}")
        if self.combine is not None and self.function is not None:
            raise UserError(f"metric {self.name}: expected combine, or a function of the whole; got both")

    @classmethod
    def whole(
        cls, name: str, of: Of | None, function: Callable[[Any], Any], unit: str = "", better: Better | None = None
    ) -> Metric:
        """Create a metric that is not a function of a mean, such as the area under a ROC curve.

        Args:
            name: Name of the metric.
            of: (output, batch) -> contribution of each example, [examples] or [examples, k].
            function: All contributions, in float64, in the order of the examples -> value.
            unit: Shown after values.
            better: "lower" or "higher"; None for that of the built-in metric of this name, else higher.
        """
        return cls(name, of, None, unit, better or metric_values.better_of(name) or "higher", function=function)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, Metric) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_mean(self) -> bool:
        """True if the value is the plain mean of one number per example, so that intervals over examples are exact."""
        return self.combine is None and self.function is None and not self.by_batch

    @property
    def description(self) -> dict[str, str]:
        """Entry in a store; see :class:`contdrop.lab.analysis.metric_format.Measure`."""
        is_built_in = BUILT_IN.get(self.name) is self
        kind = "built-in" if is_built_in and not self.by_batch else "mean" if self.is_mean else "own"
        return {"name": self.name, "unit": self.unit, "better": self.better, "kind": kind}

    def is_better(self, value: float, other: float) -> bool:
        """Return True if ``value`` is strictly better than ``other``."""
        return value > other if self.better == "higher" else value < other

    def contributions(self, output: Any, batch: Any, examples: int | None = None) -> npt.NDArray[Any]:
        """Return the contribution of each example of a batch, [examples] or [examples, k].

        They are float32 if that holds all of them exactly, else float64. A number of ``examples`` is checked.
        """
        if self.of is None:
            raise mistake(f"metric {self.name}", "of=, (output, batch) -> contribution of each example", "none")
        found = torch.as_tensor(self.of(output, batch)).detach().cpu()
        if found.dim() not in (1, 2) or examples not in (None, len(found)):
            expected = "one row per example" if examples is None else f"{examples} examples"
            raise UserError(
                f"metric {self.name}: expected of= to give [examples] or [examples, k] for {expected}, got shape "
                f"{list(found.shape)}; mean over other axes"
            )
        values = found.double().numpy()
        with np.errstate(over="ignore"):
            short = values.astype(np.float32)
        return short if np.array_equal(short, values, equal_nan=True) else values

    def value(self, contributions: npt.ArrayLike) -> float:
        """Return the value of all contributions [examples] or [examples, k]; NaN if there are none."""
        try:
            found = np.asarray(metric_values.value(contributions, self.combine, self.function), np.float64)
        except ValueError as error:
            raise UserError(f"metric {self.name}: {error}") from error
        if found.size != 1:
            what = "combine=" if self.function is None else "the function"
            raise UserError(
                f"metric {self.name}: expected one number, got shape {list(found.shape)}; let {what} give one"
            )
        return float(found.reshape(()))


def _wrong(logits: Tensor, target: Tensor) -> Tensor:
    """Return 100 where the largest logit is not that of the class, 0 where it is."""
    return _percent(logits, logits.argmax(1) != target, target)


def _percent(logits: Tensor, wrong: Tensor, target: Tensor) -> Tensor:
    # Among NaNs, argmax may return the right class by chance.
    values = torch.where(logits.isnan().any(1), torch.nan, 100 * wrong.double())
    return per_example(values, target)


def _not_among(k: int, logits: Tensor, target: Tensor) -> Tensor:
    """Return 100 where k other logits come before that of the class; equal logits are in the order of classes."""
    number = logits.shape[1]
    if k >= number:
        raise UserError(f"metric top{k}: expected more than {k} classes, got {number}; choose a smaller k")
    classes = target.clamp(min=0).unsqueeze(1)
    own = logits.gather(1, classes)
    place = torch.arange(number, device=logits.device).reshape(1, -1, *[1] * (logits.dim() - 2))
    before = ((logits > own) | ((logits == own) & (place < classes))).sum(1)
    return _percent(logits, before >= k, target)


def _nll(logits: Tensor, target: Tensor) -> Tensor:
    return per_example(functional.cross_entropy(logits, target, reduction="none"), target)


def _nll_and_positions(logits: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits, target, reduction="none").double()
    return torch.stack([losses.reshape(len(losses), -1).sum(1), (target != IGNORED).reshape(len(losses), -1).sum(1)], 1)


def _brier(logits: Tensor, target: Tensor) -> Tensor:
    """Return sum_c (p_c - 1[c is the class])^2, from 0 to 2; for two classes half of it, (p_1 - y)^2."""
    probabilities = logits.softmax(1)
    truth = torch.zeros_like(probabilities).scatter_(1, target.clamp(min=0).unsqueeze(1), 1.0)
    squares = (probabilities - truth).square().sum(1)
    return per_example(squares / 2 if logits.shape[1] == 2 else squares, target)


def _one_class_each(name: str, output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits [N, C] and classes [N], none of them ignored."""
    logits, target = logits_and_classes(output, batch)
    if target.dim() != 1:
        raise UserError(
            f"metric {name}: expected one class per example, got targets {list(target.shape)}; give a lab.Metric"
        )
    per_example(target, target)  # raises if a class is ignored
    return logits, target


def _confidence(logits: Tensor, target: Tensor) -> Tensor:
    confidence, predicted = logits.softmax(1).max(1)
    return torch.stack([confidence, (predicted == target).to(confidence.dtype)], 1)


def _two_classes(logits: Tensor, target: Tensor) -> Tensor:
    """Return the predicted and the true class."""
    predicted = torch.where(logits.isnan().any(1), torch.nan, logits.argmax(1).double())
    return torch.stack([predicted, target.double()], 1)


def _over_outputs(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(1) if values.dim() > 1 else values


def _both(output: Tensor, target: Tensor) -> Tensor:
    """Return the columns of outputs, then those of targets."""
    return torch.cat([part.double().reshape(len(part), -1) for part in (output, target)], 1)


def _loss(output: Any, batch: Any) -> Tensor:
    if (own := loss_of(output)) is not None:
        return _spread(own, batch)
    got = type(output).__name__
    raise UserError(f"metric loss: expected loss= or metric=, or a model that returns a loss; got {got}")


def _spread(loss: Tensor, batch: Any) -> Tensor:
    """Return the mean of a batch as the contribution of each of its examples."""
    return loss if loss.dim() else loss.expand(examples_of(batch))


def _built_in(name: str, read: Callable[[Any, Any], tuple[Tensor, Tensor]], compute: Of, unit: str = "") -> Metric:
    """Return a metric whose contributions follow from logits or prediction and target, as ``read`` returns them."""

    def of(output: Any, batch: Any) -> Tensor:
        return compute(*read(output, batch))

    return Metric(name, of, metric_values.COMBINE.get(name), unit, function=metric_values.WHOLE.get(name))


def _top(k: int) -> Metric:
    return _built_in(f"top{k}", logits_and_classes, partial(_not_among, k), "%")


_METRICS = (
    _built_in("error", logits_and_classes, _wrong, "%"),
    _built_in("accuracy", logits_and_classes, lambda logits, target: 100 - _wrong(logits, target), "%"),
    _top(5),
    _built_in("nll", logits_and_classes, _nll),
    _built_in("perplexity", logits_and_classes, _nll_and_positions),
    _built_in("brier", logits_and_classes, _brier),
    _built_in("ece", partial(_one_class_each, "ece"), _confidence),
    _built_in("auroc", partial(_one_class_each, "auroc"), _both),
    _built_in("f1", partial(_one_class_each, "f1"), _two_classes),
    _built_in("rmse", prediction_and_target, lambda f, y: _over_outputs((f - y).square())),
    _built_in("mse", prediction_and_target, lambda f, y: _over_outputs((f - y).square())),
    _built_in("mae", prediction_and_target, lambda f, y: _over_outputs((f - y).abs())),
    _built_in("r2", prediction_and_target, _both),
    Metric("loss", _loss, by_batch=True),
)
BUILT_IN = {metric.name: metric for metric in _METRICS}
_DEFAULTS = {"classification": ("error", "nll"), "regression": ("rmse", "mae", "r2"), None: ("loss",)}


def with_loss(metrics: Sequence[Metric], loss: Of | None, task: str | None) -> tuple[Metric, ...]:
    """Return the metrics of a study, where the metric "loss" is the study's own loss or else that of its task.

    The task's loss is known for each example, unless the model returns its own; a user's loss is a mean over a batch.
    """
    each = {"classification": BUILT_IN["nll"].of, "regression": BUILT_IN["mse"].of}.get(task or "")

    def of(output: Any, batch: Any) -> Tensor:
        if loss is not None:
            return _spread(loss(output, batch), batch)
        return each(output, batch) if each and loss_of(output) is None else _loss(output, batch)

    return tuple(replace(metric, of=of) if metric is BUILT_IN["loss"] else metric for metric in metrics)


def find(name: str) -> Metric:
    """Return a built-in metric by its name, one of ``BUILT_IN`` or top1, top2, ..."""
    if number := re.fullmatch(r"top([1-9]\d*)", name):
        return _top(int(number[1]))
    if name in BUILT_IN:
        return BUILT_IN[name]
    raise UserError(f"metric: no built-in metric is called {name!r}; {suggest(name, BUILT_IN)}")


def chosen(given: Metric | str | Sequence[Metric | str] | None, task: str | None) -> tuple[Metric, ...]:
    """Return the metrics that ``metric=`` gives by themselves or by name, the primary one first; None: by task."""
    given = _DEFAULTS[task] if given is None else given
    several = [given] if isinstance(given, (Metric, str)) else list(given)
    wrong = next((each for each in several if not isinstance(each, (Metric, str))), None)
    if wrong is not None or not several:
        raise mistake("metric", "a lab.Metric, a name such as error, or several of them", f"{wrong or given!r}")
    found = tuple(find(each) if isinstance(each, str) else each for each in several)
    twice = next((metric.name for place, metric in enumerate(found) if metric in found[:place]), None)
    if twice:
        raise mistake("metric", "each name once", f"{twice!r} twice")
    return found


def measured(
    study: Study, metrics: Sequence[Metric], network: Module, parts: Any, seed: int
) -> tuple[dict[str, float], dict[str, npt.NDArray[Any]]]:
    """Return the numbers and arrays of a study's own ``measure`` function by name.

    Raises:
        UserError: A store cannot keep one of them, or would take it for something that the lab keeps itself.
    """
    assert study.measure is not None, "the caller has looked"
    found, where = study.measure(network, parts, seed), f"study {study.name!r}: measure"
    if not hasattr(found, "items"):
        raise mistake(where, "a dictionary of arrays and numbers by name", type(found).__name__, "return one")
    names = [metric.name for metric in metrics]
    kept = {WEIGHTS, *(f"test_{name}" for name in (*_RESERVED, *names))}
    numbers: dict[str, float] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, value in found.items():
        content = _storable(where, name, value)
        is_number = isinstance(content, float)
        if name in (names[1:] if is_number else kept):
            raise mistake(where, "a name that the lab does not use itself", repr(name), "choose another")
        kind: dict[str, Any] = numbers if is_number else arrays
        kind[str(name)] = content
    return numbers, arrays


def _storable(where: str, name: object, value: Any) -> float | npt.NDArray[Any]:
    array = np.asarray(value)
    with contextlib.suppress(TypeError, ValueError):
        if not array.ndim:
            return float(array)
        if array.dtype.kind in "biuf":
            return array
    got = f"an array of {array.dtype}" if array.ndim else type(value).__name__
    fix = "leave it out, or turn it into numbers"
    raise mistake(where, f"a number or an array of numbers as {name!r}", got, fix)


def plain_classes(output: Any, batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return logits [N, C] and classes [N]; None for outputs and targets of other forms."""
    try:
        logits = prediction_of(output)
    except Exception:  # no logits, and so no classes
        return None
    target = target_of(batch)
    is_plain = logits.dim() == 2 and target.dim() == 1 and logits.shape[1] > 1 and not target.is_floating_point()
    return (logits, target) if is_plain else None


class EpochMetrics:
    """Mean loss, summed in float64 in the order of the batches, and the metric of an epoch's examples.

    Wrong answers of plain classifiers are summed on the device of the model, so that nothing waits for it.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._loss, self._examples = 0.0, 0
        self._losses: list[tuple[Tensor, int]] = []
        self._wrong, self._classified = torch.zeros((), dtype=torch.int64), 0
        self._answers: list[tuple[Tensor, Tensor]] = []
        self._contributions: list[npt.NDArray[Any]] = []

    def add(self, loss: Tensor, output: Any, batch: Any) -> None:
        """Add the mean loss and the output of a batch."""
        self._losses.append((loss.detach(), size_of(batch)))
        if len(self._losses) >= _MOST_BATCHES:
            self._settle_losses()
        if self._metric is BUILT_IN["error"] and (pair := plain_classes(output, batch)) is not None:
            self._add_answers(*pair)
        elif self._metric.of is not None:
            with torch.no_grad():
                self._contributions.append(self._metric.contributions(output, batch, examples_of(batch)))

    def _add_answers(self, logits: Tensor, classes: Tensor) -> None:
        if self._answers and self._answers[0][0].shape[1] != logits.shape[1]:
            self._settle_answers()
        self._answers.append((logits.detach(), classes))
        if len(self._answers) * logits.numel() >= _MOST_NUMBERS or len(self._answers) >= _MOST_BATCHES:
            self._settle_answers()

    def _settle_losses(self) -> None:
        means = torch.stack([mean for mean, _ in self._losses])
        if means.dtype in (torch.float16, torch.bfloat16):  # whose sums overflow or are rounded
            means = means.float()
        counts = torch.tensor([count for _, count in self._losses], dtype=means.dtype, device=means.device)
        for each in (means * counts).tolist():
            self._loss += each
        self._examples += sum(count for _, count in self._losses)
        self._losses = []

    def _settle_answers(self) -> None:
        logits, classes = (torch.cat(each) for each in zip(*self._answers))
        self._wrong = self._wrong.to(logits.device) + (logits.argmax(1) != classes).sum()
        self._classified += len(classes)
        self._answers = []

    def values(self) -> tuple[float, float]:
        """Return the mean loss and the metric over all examples."""
        if self._losses:
            self._settle_losses()
        if self._answers:
            self._settle_answers()
        loss = self._loss / self._examples
        if self._classified:
            return loss, 100 * float(self._wrong) / self._classified
        every = self._contributions
        return loss, self._metric.value(np.concatenate(every)) if every else float("nan")
