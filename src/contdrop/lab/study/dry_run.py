"""Dry run of a study: two steps of every method, whose results are discarded.

Errors are one line with the method and, where known, the line of the user's code.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._text import plural, some_of
from ...errors import UserError
from ..data.batch import to_device
from ..data.data import Part, PreparedData, prepare
from ..store.schema import FINAL, SELECTION
from ..training import checkpoint
from ..training.environment import peak_memory
from ..training.metrics import Metric, measured
from ..training.model import seed_everything
from ..training.trainer import Trainer
from . import common_mistakes, plan
from .apply_method import MethodReport
from .user_errors import explained, printable_error

_STEPS = 2
_SCHEDULED = 1000  # learning rates that are compared
_ROUNDING = 1e-5  # between losses that are computed twice on one processor


@dataclass(frozen=True)
class DryRunReport:
    """Findings of a dry run.

    Attributes:
        steps_per_epoch: Optimizer steps per epoch of a final run.
        parameters: Number of the model's parameters.
        sizes: Number of examples to train, validate and test on.
        peak_memory: Peak memory of this process in bytes.
        sites: Description of the dropout sites that each method changed or could not reach.
        memory: Bytes that a step of each method holds, where known.
        warnings: Possible mistakes.
        behaviour: Data, and for each method first losses and gradients, settings and metric values; compared by
            :func:`.amendments.behaviour_change`.
    """

    steps_per_epoch: int
    parameters: int
    sizes: tuple[int, int, int]
    peak_memory: float = 0.0
    sites: dict[str, str] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    behaviour: dict[str, Any] = field(default_factory=dict)


def dry_run(
    jobs: Sequence[plan.PlannedJob], prepared: PreparedData, *, device: str = "cpu", known_data: str | None = None
) -> DryRunReport:
    """Train two steps of each method of these jobs of one study.

    Args:
        jobs: Jobs of one study plan.
        prepared: The study's data.
        device: Device to train on.
        known_data: Fingerprint of the data in an earlier invocation; if equal, data() is not called a second time.

    Raises:
        UserError: The study would fail in training.
    """
    protocol = jobs[0].protocol
    study = protocol.study
    where = f"study {study.name!r}"
    if prepared.fingerprint != known_data:
        assert study.data is not None, "a loop of the user's own has no dry run"
        with explained(f"{where}: data()"):
            again = prepare(study.data(), task=study.task)
        if again.fingerprint != prepared.fingerprint:
            raise UserError(
                f"{where}: two calls of data() return different data; seed what it draws, or read it from a file"
            )
    chosen = {source: variants[0] for source, variants in study.selection.candidates.items()}
    planned = [
        plan.PlannedJob(protocol, FINAL, label, 0)
        for label in dict.fromkeys(j.method for j in jobs if j.stage == FINAL)
    ]
    initial, warnings = _look(planned[0], planned[0].variant(chosen), prepared, device, f"{where}, {planned[0].method}")
    found = {
        job.method: _first_steps(job, job.variant(chosen), prepared, device, f"{where}, {job.method}")
        for job in planned
    }
    for variant in dict.fromkeys(job.method for job in jobs if job.stage == SELECTION):
        candidate = plan.PlannedJob(protocol, SELECTION, variant, 0)
        _first_steps(candidate, plan.Variant.parse(variant), prepared, device, f"{where}, candidate {variant}")
    applied = [steps.applied for steps in found.values()]
    if all(each is not None and each.sites <= len(each.unreachable) for each in applied):
        left = [f"{place.name}: {place.what}" for each in applied if each for place in each.unreachable]
        beyond = f" (out of reach is {some_of(list(dict.fromkeys(left)))})" if left else ""
        raise UserError(
            f"{where}: the model has no dropout layer that a method could replace{beyond}; put nn.Dropout where it is "
            "to act, or let model take the method"
        )
    (first_label, first), *others = found.items()
    for label, steps in others:
        if steps.weights != first.weights:
            raise UserError(
                f"{where}: {first_label} and {label} start from different weights; make all of the model inside "
                "model(), and draw from torch, numpy or random only"
            )
    if initial != first.weights:
        raise UserError(
            f"{where}: two calls of model() with one seed give different weights; it draws from something that cannot "
            "be seeded (a generator of its own, the time, a file?)"
        )
    peak = peak_memory()
    warnings += _of_resumption(planned[0], planned[0].variant(chosen), prepared, device)
    return DryRunReport(
        *first.extent,
        peak,
        {
            label: "; ".join([f"{each.changed} of {plural(each.sites, 'dropout site')} changed", *each.notes])
            for label, each in zip(found, applied)
            if each
        },
        {label: steps.memory for label, steps in found.items() if steps.memory},
        tuple(dict.fromkeys([*warnings, *(warning for steps in found.values() for warning in steps.warnings)])),
        {
            "data": prepared.fingerprint,
            "methods": {label: steps.figures for label, steps in found.items()},
            "settings": {label: steps.settings for label, steps in found.items()},
        },
    )


def _look(
    job: plan.PlannedJob, variant: plan.Variant, prepared: PreparedData, device: str, where: str
) -> tuple[str, list[str]]:
    """Return the initial weights of a model of its own, and warnings about its outputs."""
    with explained(f"{where}: model()", job.protocol.study.model):
        training = Trainer(job, variant, prepared, device)
    training.check_steps()
    if training.settings.weights == "last":
        try:
            checkpoint.parts(checkpoint.of_network(training.network))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{where}: weights='last' cannot keep this model ({printable_error(error)}); leave weights= out"
            ) from error
    warnings = common_mistakes.check_optimizer(training, where)
    warnings += common_mistakes.check_first_batch(training, prepared, where)
    missing = common_mistakes.missing_values(prepared)
    return training.fingerprints["initial weights"], [*warnings, *([missing] if missing else [])]


@dataclass(frozen=True)
class _Steps:
    weights: str
    figures: list[float | None]  # losses and gradients in turn; None for one that is beyond the numbers of float16
    extent: tuple[int, int, tuple[int, int, int]]  # steps per epoch, parameters, examples to train, validate, test on
    applied: MethodReport | None
    memory: int
    warnings: list[str]
    settings: dict[str, list[float | None]]  # what losses and gradients of the first steps do not show


def _first_steps(
    job: plan.PlannedJob, variant: plan.Variant, prepared: PreparedData, device: str, where: str
) -> _Steps:
    with explained(f"{where}: model()", job.protocol.study.model):
        training = Trainer(job, variant, prepared, device)
    figures: list[float | None] = []
    warnings: list[str] = []
    weights = training.fingerprints["initial weights"]
    torch.manual_seed(0)
    training.network.train()
    kept = 0
    order = training.order(0)[:_STEPS]
    with explained(f"{where}: batches"):
        batches = list(training.parts.train.batches(order, seed=0))
    for batch in batches:
        batch = to_device(batch, training.device)
        with explained(f"{where}: training step"), _counting(training) as saved:
            loss, _ = training.batch_loss(batch)
        kept = max(kept, sum(saved.values()))
        _check_loss(loss, prepared, where)
        with explained(f"{where}: training step"):
            training.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        norm, without = _gradients(training.first)
        norm /= training.scaler.get_scale()
        if without == "all":
            raise UserError(f"{where}: no parameter gets a gradient; the loss does not depend on the model")
        if without and not warnings:
            warnings.append(f"no gradient reaches {without}")
        figures += [round(float(loss.detach()), 7), round(norm, 7) if math.isfinite(norm) else None]
        with explained(f"{where}: optimizer step"):
            training.update()
    _try_smallest(training, batches, where)
    settings = {"optimizer": _hyperparameters(training), "learning rates": _learning_rates(training)}
    warnings += _evaluate(training, prepared, where, settings)
    sizes = (len(training.parts.train), len(training.parts.validation), len(training.parts.test))
    extent = training.steps_per_epoch, sum(p.numel() for p in training.network.parameters()), sizes
    memory = _memory(training) + kept if kept else 0
    return _Steps(weights, figures, extent, training.built.applied, memory, warnings, settings)


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


def _try_smallest(training: Trainer, tried: Sequence[Any], where: str) -> None:
    """Try the smallest batch of a pass: batch normalization cannot take a single example."""
    smallest = min(training.order(0), key=len)
    if not tried or len(smallest) >= min(len(each) for each in training.order(0)[: len(tried)]):
        return
    (batch,) = training.parts.train.batches([smallest], seed=0)
    what = f"{where}: training step with the {plural(len(smallest), 'example')} of a pass's smallest batch"
    with explained(f"{what} (another batch_size has others)"), torch.no_grad():
        training.batch_loss(to_device(batch, training.device))


def _evaluate(
    training: Trainer, prepared: PreparedData, where: str, values: dict[str, list[float | None]]
) -> list[str]:
    """Evaluate one batch of each part as the end of a training does, and return warnings.

    All of a part is evaluated where a batch is too little, such as examples of a single class for an AUROC. The values
    of metrics and measures are added to ``values``.
    """
    parts, study, is_final = training.parts, training.study, training.job.stage == FINAL
    warnings: list[str] = []
    for part in (parts.validation, parts.test) if is_final else (parts.validation,):
        what = f"{where}: evaluation of {part.name} data{common_mistakes.other_shape(prepared, part.name)}"
        with explained(what), torch.no_grad():
            done = training.evaluate(part, batches=1)
        for metric in training.metrics:
            with explained(f"{where}: metric {metric.name} of {part.name} data"):
                try:
                    value = metric.value(done.contributions[metric.name])
                except Exception:
                    value = math.nan
                if math.isnan(value):
                    value = metric.value(training.evaluate(part, (metric,)).contributions[metric.name])
            values.setdefault(f"metric {metric.name}", []).append(value if math.isfinite(value) else None)
            if math.isnan(value) and metric == training.metrics[0] and part.name == training.deciding:
                warnings.append(_without_value(metric, part, where))
    if study.measure and is_final:
        few = {
            name: replace(getattr(parts, name), positions=getattr(parts, name).positions[: study.batch_size])
            for name in ("train", "validation", "test")
        }
        with explained(f"{where}: measure", study.measure):
            try:
                numbers, arrays = measured(study, training.metrics, training.network, replace(parts, **few), 0)
            except Exception:
                numbers, arrays = measured(study, training.metrics, training.network, parts, 0)
        means = {name: float(np.mean(array)) for name, array in arrays.items() if array.size}
        figures = [each for _, each in sorted({**numbers, **means}.items())]
        values["measure"] = [each if math.isfinite(each) else None for each in figures]
    return warnings


def _without_value(metric: Metric, part: Part, where: str) -> str:
    """Return a warning about a primary metric without a value; raise an error if the targets alone cause that."""
    what = f"the {metric.name} of all {len(part)} {part.name} examples is not a number"
    if metric.description["kind"] == "built-in" and metric.name in ("auroc", "r2"):
        why = "they are of one class" if metric.name == "auroc" else "their target never varies"
        raise UserError(f"{where}: {what}, because {why}; take more examples, or another metric")
    return f"{what} before training, and if it stays so no run will have a result"


def _of_resumption(job: plan.PlannedJob, variant: plan.Variant, prepared: PreparedData, device: str) -> list[str]:
    """Warn if a restored training continues differently. Large networks, whose saving is slow, are not checked."""
    one, other = (Trainer(job, variant, prepared, device) for _ in range(2))
    if one.seconds_to_save or one.settings.compile:
        return []
    batch = to_device(next(iter(one.parts.train.batches(one.order(0)[:1], seed=0))), one.device)
    try:
        _losses(one, batch)
        other.restore(b"".join(one.state()))
        whole, resumed = _losses(one, batch), _losses(other, batch)
    except Exception as error:
        return [f"a training cannot be saved and resumed: {printable_error(error)}"]
    for expected, found in zip(whole, resumed):
        both_diverge = math.isnan(expected) and math.isnan(found)
        if not both_diverge and not math.isclose(expected, found, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            return [
                f"an interrupted training would go on otherwise: restored from its checkpoint, the model has a loss of "
                f"{found:.6g}, not {expected:.6g}; keep what it counts or averages in buffers (register_buffer)"
            ]
    return []


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

    def note(tensor: torch.Tensor) -> torch.Tensor:
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
    moments = [value for values in state.values() for value in values.values() if isinstance(value, torch.Tensor)]
    return sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *gradients, *moments))


def _check_loss(loss: Any, prepared: PreparedData, where: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UserError(f"{where}: expected the loss to be one number, a mean over the batch; got {got}")
    if not loss.requires_grad:
        raise UserError(f"{where}: no parameter gets a gradient; the loss does not depend on the model")
    if not torch.isfinite(loss):
        reason = common_mistakes.missing_values(prepared) or "check data, model and loss"
        raise UserError(f"{where}: the loss of the first batch is {float(loss.detach())}; {reason}")


def _gradients(model: torch.nn.Module) -> tuple[float, str]:
    """Return the norm of the gradient, and the names of parameters without one ("all" if none has one)."""
    wanted = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, p in wanted if p.grad is None]
    if len(missing) == len(wanted):
        return 0.0, "all"
    norm = math.sqrt(sum(float(p.grad.double().pow(2).sum()) for _, p in wanted if p.grad is not None))
    return norm, some_of(missing, 3)
