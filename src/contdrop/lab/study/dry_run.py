"""Dry run of a study: two steps of every method, whose results are discarded; errors name the method and the line."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._text import plural, some_of
from ...errors import UserError, mistake
from ..data.batch import (
    IGNORED,
    class_axes,
    inputs_and_target,
    leaves,
    logits_and_classes,
    loss_of,
    prediction_of,
    target_of,
    to_device,
)
from ..data.data import Part, PreparedData, prepare
from ..data.inputs import Arrays, bad_rows
from ..store.schema import FINAL, SELECTION
from ..training import checkpoint
from ..training.environment import peak_memory
from ..training.metrics import Metric, measured
from ..training.model import seed_everything
from ..training.trainer import Trainer
from . import plan
from .apply_method import MethodReport
from .study import Study
from .user_errors import explained, line_of, printable_error

_STEPS = 2
_INDEPENDENT = "no parameter gets a gradient; the loss does not depend on the model"
_SCHEDULED = 1000  # learning rates that are compared
_ROUNDING = 1e-5  # between losses that are computed twice on one processor
_OF_TYPES = re.compile(r"d?type|not implemented for", re.IGNORECASE)  # in torch's errors about types
_CLOSE = 1e-3  # to 1, for sums of probabilities in any precision


@dataclass(frozen=True)
class DryRunReport:
    """Findings of a dry run."""

    steps_per_epoch: int  # optimizer steps, in a final run
    parameters: int  # of the model
    sizes: tuple[int, ...]  # examples to train, validate and test on
    peak_memory: float = 0.0  # bytes of this process
    sites: dict[str, str] = field(default_factory=dict)  # by method: dropout sites that it changed or could not reach
    memory: dict[str, int] = field(default_factory=dict)  # by method: bytes that a step holds, where known
    warnings: tuple[str, ...] = ()
    behaviour: dict[str, Any] = field(default_factory=dict)  # see amendments.behaviour_change


def dry_run(
    jobs: Sequence[plan.PlannedJob], prepared: PreparedData, *, device: str = "cpu", known_data: str | None = None
) -> DryRunReport:
    """Train two steps of each method of these jobs of one study; raise an error if it would fail in training.

    If ``known_data`` is the fingerprint of the data, as in an earlier invocation, data() is not called a second time.
    """
    protocol = jobs[0].protocol
    study = protocol.study
    if prepared.fingerprint != known_data:
        _check_data(study, prepared)
    chosen = {source: variants[0] for source, variants in study.selection.candidates.items()}
    planned = dict.fromkeys((job.stage, job.method) for job in jobs)
    firsts = [plan.PlannedJob(protocol, stage, label, 0) for stage, label in planned]
    finals = [job for job in firsts if job.stage == FINAL]
    model = _Trial(finals[0], prepared, device, chosen).check()
    found = {job.method: _Trial(job, prepared, device, chosen).run() for job in finals}
    for job in firsts:
        if job.stage == SELECTION:
            _Trial(job, prepared, device, chosen).run()
    _check_sites(study, [trial.applied for trial in found.values()])
    _check_weights(study, {label: trial.weights for label, trial in found.items()}, model.weights)
    peak = peak_memory()
    resumption = _resumption_warnings(lambda: Trainer(finals[0], finals[0].variant(chosen), prepared, device))
    warnings = [*model.warnings, *resumption, *(each for trial in found.values() for each in trial.warnings)]
    behaviour = {
        "data": prepared.fingerprint,
        "methods": {label: trial.figures for label, trial in found.items()},
        "settings": {label: trial.settings for label, trial in found.items()},
    }
    return DryRunReport(
        *model.extent,
        peak,
        {label: str(trial.applied) for label, trial in found.items() if trial.applied},
        {label: trial.memory for label, trial in found.items() if trial.memory},
        tuple(dict.fromkeys(warnings)),
        behaviour,
    )


def _check_data(study: Study, prepared: PreparedData) -> None:
    where = f"study {study.name!r}"
    assert study.data is not None, "a loop of the user's own has no dry run"
    with explained(f"{where}: data()"):
        again = prepare(study.data(), task=study.task)
    if again.fingerprint != prepared.fingerprint:
        raise UserError(
            f"{where}: two calls of data() return different data; seed what it draws, or read it from a file"
        )


def _check_sites(study: Study, applied: Sequence[MethodReport | None]) -> None:
    if any(each is None or each.sites > len(each.unreachable) for each in applied):
        return
    left = dict.fromkeys(f"{place.name}: {place.what}" for each in applied if each for place in each.unreachable)
    beyond = f" (out of reach is {some_of(left)})" if left else ""
    raise UserError(
        f"study {study.name!r}: the model has no dropout layer that a method could replace{beyond}; put nn.Dropout "
        "where it is to act, or let model take the method"
    )


def _check_weights(study: Study, weights: Mapping[str, str], initial: str) -> None:
    (first_label, first), *others = weights.items()
    for label, found in others:
        if found != first:
            raise UserError(
                f"study {study.name!r}: {first_label} and {label} start from different weights; make all of the model "
                "inside model(), and draw from torch, numpy or random only"
            )
    if initial != first:
        raise UserError(
            f"study {study.name!r}: two calls of model() with one seed give different weights; it draws from something "
            "that cannot be seeded (a generator of its own, the time, a file?)"
        )


class _Trial:
    """A training that is used for a few steps and dropped; what it has shown stays."""

    def __init__(self, job: plan.PlannedJob, prepared: PreparedData, device: str, chosen: Mapping[str, str]) -> None:
        self.study, self.prepared = job.protocol.study, prepared
        what = job.method if job.stage == FINAL else f"candidate {job.method}"
        self.where = f"study {self.study.name!r}, {what}"
        with explained(f"{self.where}: model()", self.study.model):
            self.training = training = Trainer(job, job.variant(chosen), prepared, device)
        self.weights, self.applied = training.fingerprints["initial weights"], training.built.applied
        parameters = sum(p.numel() for p in training.network.parameters())
        self.extent = training.steps_per_epoch, parameters, tuple(training.parts.sizes.values())
        self.memory = 0
        self.warnings: list[str] = []
        self.figures: list[float | None] = []  # losses and gradients in turn; None beyond the numbers of float16
        self.settings: dict[str, list[float | None]] = {}  # not shown by losses and gradients of the first steps

    def check(self) -> _Trial:
        """Look for common mistakes in the model's outputs, the optimizer, and the data."""
        training = self.training
        training.check_steps()
        if training.settings.weights == "last":
            try:
                checkpoint.parts(checkpoint.of_network(training.network))
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"{self.where}: weights='last' cannot keep this model ({printable_error(error)}); leave weights= "
                    "out"
                ) from error
        self.warnings += _check_optimizer(training, self.where)
        (batch,) = self._batches(training.order(0)[:1])
        self.warnings += _check_first_batch(training, batch, self.prepared, self.where)
        self.warnings += filter(None, [_missing_values(self.prepared)])
        del self.training
        return self

    def run(self) -> _Trial:
        """Take the first steps, and evaluate."""
        training, parts = self.training, self.training.parts
        is_final = training.job.stage == FINAL
        torch.manual_seed(0)
        training.network.train()
        batches = self._batches(training.order(0)[:_STEPS])
        kept = max([self._step(batch) for batch in batches])
        self.memory = _memory(training) + kept if kept else 0
        self._try_smallest(len(batches))
        self.settings = {"optimizer": _hyperparameters(training), "learning rates": _learning_rates(training)}
        for part in (parts.validation, parts.test) if is_final else (parts.validation,):
            self._evaluate(part)
        if self.study.measure and is_final:
            self._measure()
        del self.training
        return self

    def _batches(self, order: Sequence[Any]) -> list[Any]:
        with explained(f"{self.where}: batches"):
            return _shown(self.training, order)

    def _step(self, batch: Any) -> int:
        """Take a step, keep its loss and the norm of its gradient, and return the bytes that backward keeps."""
        training = self.training
        with explained(f"{self.where}: training step"):
            with _counting(training) as saved:
                loss, _ = training.batch_loss(batch)
            self._check_loss(loss)
            training.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad for name, p in training.first.named_parameters() if p.requires_grad}
        missing = [name for name, gradient in gradients.items() if gradient is None]
        if len(missing) == len(gradients):
            raise UserError(f"{self.where}: {_INDEPENDENT}")
        if missing and not self.warnings:
            self.warnings.append(f"no gradient reaches {some_of(missing, 3)}")
        squares = sum(float(each.double().pow(2).sum()) for each in gradients.values() if each is not None)
        norm = math.sqrt(squares) / training.scaler.get_scale()
        with explained(f"{self.where}: optimizer step"):
            training.update()
        self.figures += [round(float(loss.detach()), 7), round(norm, 7) if math.isfinite(norm) else None]
        return sum(saved.values())

    def _check_loss(self, loss: Any) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise UserError(f"{self.where}: expected the loss to be one number, a mean over the batch; got {got}")
        if not loss.requires_grad:
            raise UserError(f"{self.where}: {_INDEPENDENT}")
        if not torch.isfinite(loss):
            reason = _missing_values(self.prepared) or "check data, model and loss"
            raise UserError(f"{self.where}: the loss of the first batch is {float(loss.detach())}; {reason}")

    def _try_smallest(self, tried: int) -> None:
        """Try the smallest batch of a pass: batch normalization cannot take a single example."""
        training = self.training
        order = training.order(0)
        smallest = min(order, key=len)
        if len(smallest) >= min(map(len, order[:tried])):
            return
        (batch,) = _shown(training, [smallest])
        what = f"training step with the {plural(len(smallest), 'example')} of a pass's smallest batch"
        with explained(f"{self.where}: {what} (another batch_size has others)"), torch.no_grad():
            training.batch_loss(batch)

    def _evaluate(self, part: Part) -> None:
        """Evaluate one batch of a part, or all of it where that is too little, such as one class for an AUROC."""
        training = self.training
        shape = _other_shape(self.prepared, part.name)
        with explained(f"{self.where}: evaluation of {part.name} data{shape}"), torch.no_grad():
            done = training.evaluate(part, batches=1)
        for metric in training.metrics:
            with explained(f"{self.where}: metric {metric.name} of {part.name} data"):
                try:
                    value = metric.value(done.contributions[metric.name])
                except Exception:
                    value = math.nan
                if math.isnan(value):
                    value = metric.value(training.evaluate(part, (metric,)).contributions[metric.name])
            self.settings.setdefault(f"metric {metric.name}", []).append(_finite(value))
            if math.isnan(value) and metric == training.metrics[0] and part.name == training.deciding:
                self._warn_without_value(metric, part)

    def _warn_without_value(self, metric: Metric, part: Part) -> None:
        """Warn that the primary metric has no value; raise an error if the targets alone cause that."""
        what = f"the {metric.name} of all {len(part)} {part.name} examples is not a number"
        if metric.description["kind"] == "built-in" and metric.name in ("auroc", "r2"):
            why = "they are of one class" if metric.name == "auroc" else "their target never varies"
            raise UserError(f"{self.where}: {what}, because {why}; take more examples, or another metric")
        self.warnings.append(f"{what} before training, and if it stays so no run will have a result")

    def _measure(self) -> None:
        """Call the study's measure with a few examples, or with all of them where these are too few."""
        training, parts = self.training, self.training.parts
        each = (parts.train, parts.validation, parts.test)
        few: Any = {part.name: replace(part, positions=part.positions[: self.study.batch_size]) for part in each}
        with explained(f"{self.where}: measure", self.study.measure):
            try:
                numbers, arrays = measured(self.study, training.metrics, training.network, replace(parts, **few), 0)
            except Exception:
                numbers, arrays = measured(self.study, training.metrics, training.network, parts, 0)
        means = {name: float(np.mean(array)) for name, array in arrays.items() if array.size}
        self.settings["measure"] = [_finite(each) for _, each in sorted({**numbers, **means}.items())]


def _check_first_batch(training: Trainer, batch: Any, prepared: PreparedData, where: str) -> list[str]:
    """Call a model that is not used afterwards with one batch; return warnings of possible mistakes, a line each."""
    study = training.study
    training.network.train()
    with explained(f"{where}: training step"), torch.no_grad(), training.autocast():
        try:
            output = training.forward(training.first, batch)
        except Exception as error:
            if line := _type_mismatch(training.network, batch, str(error)):
                raise UserError(f"{where}: {line}{line_of(study.data)}") from error
            raise
        _check_average(training, output, batch, where)
        if study.task != "classification" or study.loss is not None or loss_of(output) is not None:
            return []
        if target_of(batch).is_floating_point():
            return _one_hot_warning(target_of(batch))
        logits, target = logits_and_classes(output, batch)
    _check_classes(prepared, target, logits.shape[1], f"{where}: {{}}{line_of(study.data)}")
    return _probability_warning(logits, training.network)


def _check_optimizer(training: Trainer, where: str) -> list[str]:
    """Warn of parameters without optimizer; raise an error for an optimizer or schedule that cannot work."""
    others = {id(p) for p in training.untrained}
    left = [name for name, p in training.network.named_parameters() if p.requires_grad and id(p) in others]
    if not training.trained:
        raise UserError(
            f"{where}: expected an optimizer of the model that it is given; it has none of its parameters; make it "
            "inside: optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    if isinstance(training.optimizer, torch.optim.LBFGS):
        raise mistake(where, "an optimizer that steps by gradients", "LBFGS", "it needs a loop of your own, run=")
    if isinstance(training.scheduler, ReduceLROnPlateau) and training.settings.evaluate == "last":
        raise UserError(
            f"{where}: ReduceLROnPlateau needs validation data in every epoch; use evaluate='epoch', or another one"
        )
    return [f"not trained, because the optimizer leaves it out: {some_of(left)}"] if left else []


def _check_average(training: Trainer, output: Any, batch: Any, where: str) -> None:
    """Raise an error if the probabilities of several networks cannot be averaged by the form of their outputs."""
    if training.settings.networks == 1:
        return
    logits, target = prediction_of(output), target_of(batch)
    by_class = class_axes(logits, target)[0] and logits.shape[1] > 1
    if not by_class and logits[0].numel() != 1:
        expected = "logits [N, classes, ...] and classes [N, ...], or one logit per example,"
        got = f"output {list(logits.shape)} and target {list(target.shape)}"
        raise mistake(where, f"{expected} for networks={training.settings.networks}", got)


def _missing_values(prepared: PreparedData) -> str:
    """Return a message about inputs that are not finite, as far as known without reading every item."""
    for part, source in prepared.sources.items():
        for name, leaf in leaves(source.nest, part) if isinstance(source, Arrays) else ():
            if bad := bad_rows(leaf):
                return f"{name} has nan or infinity in {len(bad)} of {len(leaf)} examples, first in {bad[0]}"
    return ""


def _other_shape(prepared: PreparedData, part: str) -> str:
    """Return a message about rows whose shape differs from that of training rows; empty if none does."""
    both = [prepared.sources[name] for name in ("train", part) if name in prepared.sources]
    nests_of = [leaves(source.nest) for source in both if isinstance(source, Arrays)]
    for (where, one), (_, other) in zip(*nests_of) if len(nests_of) == 2 else ():
        if one.shape[1:] != other.shape[1:]:
            shapes = (f"{list(each.shape[1:])} in {name}{where}" for name, each in ((part, other), ("train", one)))
            return f", whose rows have shape {' and '.join(shapes)}"
    return ""


def _type_mismatch(model: nn.Module, batch: Any, complaint: str) -> str:
    computed = {p.dtype for p in model.parameters() if p.is_floating_point()}
    inputs, named, _ = inputs_and_target(batch)
    given = [leaf.dtype for _, leaf in leaves((inputs, named)) if isinstance(leaf, Tensor)]
    others = [each for each in given if each not in computed]
    if not computed or not others or not _OF_TYPES.search(complaint):
        return ""
    one, other = (str(each).removeprefix("torch.") for each in (computed.pop(), others[0]))
    return f"data() gives {other} to a model of {one}; convert it there: x.astype({one!r}), or x.to(torch.{one})"


def _check_classes(prepared: PreparedData, target: Tensor, outputs: int, line: str) -> None:
    """Raise an error if a class has no output, in all arrays that are shown unchanged, else in this target."""
    maker = prepared.loaders.maker
    is_shown = prepared.is_arrays and maker.collate is None and maker.transform is None
    shown = {part: source.labels for part, source in prepared.sources.items()} if is_shown else {"train": target}
    for part, labels in shown.items():
        labels = labels[labels != IGNORED]
        low, high = (int(labels.min()), int(labels.max())) if labels.numel() else (0, 0)
        if low >= 0 and high < outputs:
            continue
        fix = "number them from 0, for example by numpy.unique(y, return_inverse=True)[1]"
        if (low, high) == (1, outputs):
            fix = "number them from 0: y - 1"
        elif low >= 0:
            fix += f", or let the model return {high + 1}"
        expected = f"expected classes from 0 to {outputs - 1}, one for each of the model's {outputs} outputs"
        raise UserError(line.format(f"{expected}; {part} has {low} to {high}; {fix}"))


def _one_hot_warning(target: Tensor) -> list[str]:
    is_matrix = target.dim() == 2 and target.shape[1] > 1
    if not is_matrix or not bool(((target == 0) | (target == 1)).all() & (target.sum(1) == 1).all()):
        return []
    return ["labels look one-hot, and each output is taken for a question of its own; for classes give y.argmax(1)"]


def _probability_warning(logits: Tensor, model: nn.Module) -> list[str]:
    """Warn of a model that returns probabilities where the loss expects logits."""
    if len(logits) < 2:
        return []
    positive = bool((logits >= 0).all())
    sums, exponentials = ((each.sum(1) - 1).abs().max() < _CLOSE for each in (logits, logits.exp()))
    closed = any(isinstance(each, nn.Sigmoid) for each in model.modules()) and bool((logits < 1).all())
    if closed and positive and bool((logits[:, 0] == 0).all()):
        return ["outputs look like those of a Sigmoid, but the loss expects logits; leave it out of the model"]
    if positive and sums:
        return ["outputs look like those of a Softmax, but the loss, cross-entropy, expects logits; leave it out"]
    if exponentials:
        return ["outputs look like those of a LogSoftmax, which the loss, cross-entropy, applies itself; leave it out"]
    return []


def _shown(training: Trainer, order: Sequence[Any]) -> list[Any]:
    """Return batches of the first pass on the training's device."""
    return [to_device(batch, training.device) for batch in training.parts.train.batches(order, seed=0)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _hyperparameters(training: Trainer) -> list[float | None]:
    """Return all numbers in the optimizer's parameter groups, in order of their names."""
    found = [each for group in training.optimizer.param_groups for name, each in sorted(group.items())]
    plain = [each for value in found for each in (value if isinstance(value, tuple) else (value,))]
    return [float(each) for each in plain if isinstance(each, bool | int | float)]


def _learning_rates(training: Trainer) -> list[float | None]:
    """Return the next learning rates of the schedule; empty if it has none or waits for a plateau."""
    scheduler, rates = training.scheduler, []
    left = int(training.total_steps) - _STEPS if training.settings.schedule_by == "step" else training.job.epochs - 1
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return []
    for _ in range(min(left, _SCHEDULED)):
        scheduler.step()
        rates.append(training.learning_rate)
    return list(rates)


def _resumption_warnings(begin: Callable[[], Trainer]) -> list[str]:
    """Warn if a restored training continues differently. Large networks, whose saving is slow, are not checked."""
    one, other = begin(), begin()
    if one.seconds_to_save or one.settings.compile:
        return []
    (batch,) = _shown(one, one.order(0)[:1])
    try:
        _losses(one, batch)
        other.restore(b"".join(one.state()))
        whole, resumed = _losses(one, batch), _losses(other, batch)
    except Exception as error:
        return [f"a training cannot be saved and resumed: {printable_error(error)}"]
    differ = ~np.isclose(resumed, whole, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
    return [
        f"an interrupted training would go on otherwise: restored from its checkpoint, the model has a loss of "
        f"{found:.6g}, not {expected:.6g}; keep what it counts or averages in buffers (register_buffer)"
        for found, expected, is_other in zip(resumed, whole, differ)
        if is_other
    ][:1]


def _losses(training: Trainer, batch: Any) -> tuple[float, float]:
    """Return the losses before and after a step, from the same random numbers each time."""
    seed_everything(0)
    training.network.train()
    loss, _ = training.batch_loss(batch)
    training.backward(loss)
    training.update()
    with torch.no_grad():
        return float(loss.detach()), float(training.batch_loss(batch)[0])


@contextlib.contextmanager
def _counting(training: Trainer) -> Iterator[dict[int, int]]:
    """Record the bytes that backward keeps, by address and without parameters; nothing if compiled."""
    own = {p.untyped_storage().data_ptr() for p in training.network.parameters()}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with contextlib.nullcontext() if training.settings.compile else hooks:
        yield found


def _memory(training: Trainer) -> int:
    """Return the bytes of weights, buffers, gradients and optimizer state."""
    model, state = training.network, training.optimizer.state
    gradients = [p for p in model.parameters() if p.requires_grad]
    moments = [value for values in state.values() for value in values.values() if isinstance(value, Tensor)]
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *gradients, *moments))
