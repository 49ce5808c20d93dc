"""Training of one network, from its first epoch or from a checkpoint.

Training resumes bit for bit: the masks of an epoch, and the order and augmentation of a pass over the data, follow from
their own seeds, so that a checkpoint holds only the weights, the states of optimizer and schedule, and the position in
the pass. An epoch is a pass over the data, or a number of steps that may end in the middle of a pass.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from ..._text import plural
from ...errors import mistake
from ..data.batch import examples_of, to_device
from ..data.data import Part, PreparedData
from ..data.fingerprints import as_array, of_arrays
from ..store.blobs import LARGE, Buffer
from ..store.schema import FINAL, Epoch
from ..study.plan import PlannedJob, Variant
from ..study.user_errors import explained
from . import checkpoint, random_streams
from .losses import Loss, default_loss
from .metrics import EpochMetrics, Metric, measured, plain_classes, with_loss
from .model import BuiltModel, build, default_forward, seed_everything

_MOST_LABELS = 2**15  # predicted classes are stored in 16 bits
_SLOW_DISK = 1e8  # bytes per second, until the first checkpoint is measured
_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_POSITION = ("epoch", "step", "passes", "shown")  # of a training in its data
_ONE_CYCLE = ("initial_lr", "max_lr", "min_lr")  # from which OneCycleLR computes a group's rates


class DivergenceError(Exception):
    """Loss or value that is not a finite number."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss of a model on a part of the data, and contributions of each example to each metric.

    ``classes`` are predictions and labels as they are stored, of plain classification with few enough classes.
    """

    loss: float
    contributions: dict[str, np.ndarray]
    classes: dict[str, np.ndarray]


@dataclass
class Best:
    """Best evaluation so far, and the number of evaluations since then.

    ``weights`` are kept only where the best model is the result, and with them the ``buffers`` that its ``state_dict``
    leaves out.
    """

    epoch: int = 0
    value: float = math.nan
    since: int = 0
    weights: dict[str, Tensor] | None = None
    buffers: dict[str, Tensor] | None = None


class Trainer:
    """Trainer of one network, or of the several networks of a run."""

    def __init__(self, job: PlannedJob, variant: Variant, prepared: PreparedData, device: str = "cpu") -> None:
        study = job.protocol.study
        self.job, self.variant, self.study = job, variant, study
        self.settings, self.device = study.training, torch.device(device)
        shared = (random_streams.SPLIT, random_streams.WEIGHTS, random_streams.ORDER)
        self.seeds = {name: job.seed(name) for name in shared}
        self.seeds[random_streams.MASKS] = job.seed(random_streams.MASKS, variant)
        self.parts = prepared.parts(job.protocol.seed, job.stage, job.run)
        self.built: BuiltModel = build(study, variant.method, self.seeds[random_streams.WEIGHTS])
        self.network = self.built.model
        initial = of_arrays(*(as_array(p) for _, p in sorted(self.network.named_parameters())))
        self.network.to(self.device)
        self.forward = study.forward or default_forward
        self.loss = Loss(study.loss) if study.loss else default_loss(study.task)
        self.metrics = with_loss(study.metrics, study.loss, study.task)
        self._runnable: Any = torch.compile(self.network) if self.settings.compile else self.network
        self.members: list[Any] = [self._runnable] if self.settings.networks == 1 else list(self.network.children())
        # Of the networks of a run, as they enter seeds; the first has none.
        self._numbers: list[tuple[int, ...]] = [(), *((number,) for number in range(1, len(self.members)))]
        self.steps_per_pass = -(-len(self.order(0)) // self.settings.accumulate)
        self.steps_per_epoch = self.settings.epoch_steps or self.steps_per_pass
        self.total_steps = min(self.settings.steps or math.inf, self._steps_of(job.epochs))
        self._prepare_optimizer()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.precision == "float16")
        self.epoch, self.step = 0, 0  # finished ones
        self.passes, self.shown = 0, 0  # complete passes over the data, and batches of the current one
        self.best = Best()
        self.fingerprints = {
            "data": prepared.fingerprint,
            "split": self.parts.split,
            "initial weights": initial,
            "data order": self._order_fingerprint(),
        }

    def _prepare_optimizer(self) -> None:
        """Make the optimizer and its schedule, with the variant's factor of the learning rate."""
        with explained(f"study {self.study.name!r}: optimizer", self.study.optimizer):
            self.optimizer = (self.study.optimizer or _adamw)(self.network)
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        self.trained = [p for p in self.network.parameters() if id(p) in held]
        self.untrained = [p for p in self.network.parameters() if id(p) not in held]
        rate = self.variant.rate
        if rate != 1:
            for group in self.optimizer.param_groups:
                group["lr"] *= rate
        total = self.job.epochs if self.settings.schedule_by == "epoch" else int(self.total_steps)
        self.scheduler = self.settings.scheduler(self.optimizer, total) if self.settings.scheduler else None
        if rate != 1 and isinstance(self.scheduler, CyclicLR):
            expected = f"a scheduler that starts from the optimizer's learning rate for {self.variant}"
            fix = "take another scheduler, or leave out the factor"
            raise mistake(f"study {self.study.name!r}", expected, "CyclicLR, which sets its own", fix)
        if rate != 1 and isinstance(self.scheduler, OneCycleLR):  # sets the rates itself, too
            for group in self.optimizer.param_groups:
                group.update({name: group[name] * rate for name in ("lr", *_ONE_CYCLE)})

    def order(self, number: int, *member: int) -> list[Any]:
        """Return the examples of each batch of a pass; each network of a run but the first has its own order."""
        return self.parts.train.order(self.job.seed(random_streams.ORDER, number, *member), self.study.batch_size)

    def _orders(self, number: int) -> list[list[Any]]:
        return [self.order(number, *member) for member in self._numbers]

    def _steps_of(self, epochs: int) -> int:
        """Return the number of steps in ``epochs``; a user's own batches may be more or fewer in another pass."""
        if self.settings.epoch_steps or not self.parts.train.has_own_batches:
            return self.steps_per_epoch * epochs
        lengths = (min(map(len, self._orders(number))) for number in range(epochs))
        return sum(-(-length // self.settings.accumulate) for length in lengths)

    def _order_fingerprint(self) -> str:
        """Return the fingerprint of all passes' seeds, which decide the orders, and of the first and last order."""
        passes = -(-self.job.epochs * self.steps_per_epoch // self.steps_per_pass)
        seeds = np.array([self.job.seed(random_streams.ORDER, number) for number in range(passes)], np.uint64)
        orders = [np.concatenate([np.asarray(b) for b in self.order(number)]) for number in {0, passes - 1}]
        return of_arrays(seeds, *orders)

    def check_steps(self) -> None:
        """Refuse more steps than the planned epochs have, which is known only with the data."""
        steps, epochs = self.settings.steps or 0, self.job.protocol.epochs
        if steps > self._steps_of(epochs):
            needed = max(epochs + 1, -(-steps // self.steps_per_epoch))
            expected = f"at least {plural(needed, 'epoch')} of {plural(self.steps_per_epoch, 'step')} for steps={steps}"
            fix = f"give epochs={needed} or fewer steps"
            raise mistake(f"study {self.study.name!r}", expected, f"epochs={epochs}", fix)

    @property
    def first(self) -> torch.nn.Module:
        """The network, or the first of several."""
        return next(self.network.children()) if self.settings.networks > 1 else self.network

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def is_over(self) -> bool:
        patience = self.settings.patience
        stopped = patience is not None and self.best.since >= patience
        return self.epoch >= self.job.epochs or self.step >= self.total_steps or stopped

    @property
    def deciding(self) -> str:
        """Part of the data whose value is the result."""
        return "test" if self.job.stage == FINAL else "validation"

    # ---- what is saved

    def state(self) -> list[Buffer]:
        """Return all that is needed to resume after this epoch, as bytes in pieces."""
        return checkpoint.parts(
            {
                **checkpoint.of_network(self.network),
                "optimiser": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "scaler": self.scaler.state_dict(),
                **{name: getattr(self, name) for name in _POSITION},
                "best": vars(self.best),
            }
        )

    def restore(self, saved: Buffer) -> None:
        """Resume from a saved state."""
        content = checkpoint.loads(saved)
        checkpoint.into_network(self.network, content, self.device)
        self.optimizer.load_state_dict(content["optimiser"])
        if self.scheduler:
            self.scheduler.load_state_dict(content["scheduler"])
        self.scaler.load_state_dict(content["scaler"])
        for name in _POSITION:
            setattr(self, name, content[name])
        self.best = Best(**content["best"])

    @property
    def seconds_to_save(self) -> float:
        """Rough upper limit for the first checkpoint; 0 for a small network."""
        size = 4 * sum(p.numel() * p.element_size() for p in self.network.parameters())
        return size / _SLOW_DISK if size > LARGE else 0.0

    # ---- training

    def run_epoch(self) -> Epoch:
        """Train for one epoch and evaluate; raise :class:`DivergenceError` if the loss is not finite."""
        start = time.perf_counter()
        # From here on only masks and models draw from the default generators of torch, NumPy and Python.
        seed_everything(self.job.seed(random_streams.MASKS, self.variant, self.epoch))
        rate = self.learning_rate
        trained = self._train()
        self.epoch += 1
        self._check_loss("training", trained[0])
        evaluated = self._evaluate_epoch()
        self._end_epoch(*evaluated[:2])
        return Epoch(self.epoch, *trained, *evaluated, rate, time.perf_counter() - start)

    def _check_loss(self, kind: str, loss: float) -> None:
        if not np.isfinite(loss):
            raise DivergenceError(f"the {kind} loss is {loss} in epoch {self.epoch}")

    def _evaluate_epoch(self) -> tuple[float | None, float | None, float | None, float | None]:
        """Return loss and value on validation and on test data, if this epoch is to be evaluated."""
        every = self.settings.evaluate
        is_last = self.epoch >= self.job.epochs or self.step >= self.total_steps
        if not is_last and (every == "last" or (isinstance(every, int) and self.epoch % every)):
            return None, None, None, None
        validation = self._loss_and_value(self.parts.validation)
        self._check_loss("validation", validation[0])
        if self.job.stage != FINAL or every == "last":
            return *validation, None, None
        return *validation, *self._loss_and_value(self.parts.test)  # for the curve only

    def _end_epoch(self, loss: float | None, value: float | None) -> None:
        """Adjust the learning rate, and keep the model if it is the best so far."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if loss is not None:
                self.scheduler.step(loss)
        elif self.scheduler and self.settings.schedule_by == "epoch":
            self.scheduler.step()
        if value is None or (self.settings.keep == "last" and self.settings.patience is None):
            return
        if not (math.isnan(self.best.value) or self.metrics[0].is_better(value, self.best.value)):
            self.best.since += 1
            return
        self.best = Best(self.epoch, value)
        if self.settings.keep == "best":
            self.best.weights = _copied(self.network.state_dict())
            self.best.buffers = _copied(checkpoint.unsaved_buffers(self.network))

    def _train(self) -> tuple[float, float]:
        """Train for one epoch; return the mean loss and the value under dropout."""
        self.network.train()
        found = EpochMetrics(self.metrics[0])
        last, is_elsewhere = self.total_steps, self.device.type != "cpu"
        if self.settings.epoch_steps:
            last = min(last, self.step + self.steps_per_epoch)
        waiting, of = 0, 1
        for batches, left in self._batches():
            if not waiting:
                of = min(self.settings.accumulate, left)
            for member, batch in zip(self.members, batches):
                if is_elsewhere:
                    batch = to_device(batch, self.device)
                loss, output = self.batch_loss(batch, member)
                self.backward(loss, of)
                found.add(loss, output, batch)
            waiting += 1
            if waiting == of:
                self.update()
                waiting = 0
                if self.step >= last or (left == 1 and not self.settings.epoch_steps):
                    break
        return found.values()

    def _batches(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield a batch for each network, and the number of batches left in the pass."""
        while True:
            orders = self._orders(self.passes)
            seeds = [self.job.seed(random_streams.AUGMENT, self.passes, *member) for member in self._numbers]
            length = min(map(len, orders))
            shown = [
                self.parts.train.batches(order[:length], seed=seed, skip=self.shown)
                for order, seed in zip(orders, seeds)
            ]
            for batches in zip(*shown):
                left = length - self.shown
                self.passes, self.shown = (self.passes, self.shown + 1) if left > 1 else (self.passes + 1, 0)
                yield batches, left

    def batch_loss(self, batch: Any, member: Any = None) -> tuple[Tensor, Any]:
        """Return the mean loss and the output of a network of the run; of the first if None."""
        with self.autocast():
            output = self.forward(self.members[0] if member is None else member, batch)
            return self.loss.mean(output, batch), output

    def backward(self, loss: Tensor, of: int = 1) -> None:
        """Backpropagate one of ``of`` accumulated batches."""
        if of > 1:
            loss = loss / of
        if self.scaler.is_enabled():
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Take a step with the accumulated gradients."""
        if self.settings.clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trained, self.settings.clip)
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self._forget_gradients()
        self.step += 1
        if self.scheduler and self.settings.schedule_by == "step" and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def _forget_gradients(self) -> None:
        for parameter in self.untrained:  # whose gradients no optimizer clears
            parameter.grad = None
        if type(self.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
            self.optimizer.zero_grad(set_to_none=True)
            return
        # As torch does, without its profiling, which takes a twentieth of a small network's step.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the study's precision."""
        kind = _AUTOCAST.get(self.settings.precision)
        return torch.autocast(self.device.type, dtype=kind) if kind else contextlib.nullcontext()

    # ---- evaluation

    def _loss_and_value(self, part: Part) -> tuple[float, float]:
        found = self.evaluate(part, self.metrics[:1])
        return found.loss, self.metrics[0].value(found.contributions[self.metrics[0].name])

    @torch.no_grad()
    def evaluate(
        self, part: Part, wanted: tuple[Metric, ...] | None = None, *, classes: bool = False, batches: int | None = None
    ) -> Evaluation:
        """Evaluate metrics, all by default, on the first ``batches`` of a part, or on all; predict ``classes``, too."""
        wanted = self.metrics if wanted is None else wanted
        self.network.eval()
        size = self.settings.evaluation_batch_size or 4 * self.study.batch_size
        done, answers = [], []
        for batch in part.batches(part.order(None, size)[:batches]):
            batch = to_device(batch, self.device)
            with self.autocast():
                output = self.forward(self._runnable, batch)
            pair = plain_classes(output, batch) if classes else None
            if pair is not None:
                answers.append((pair[0].argmax(1).cpu().numpy(), pair[1].cpu().numpy()))
            size = examples_of(batch)
            found = [metric.contributions(output, batch, size) for metric in wanted]
            done.append((float(self.loss.total(output, batch)), size, found))
        totals, sizes, contributions = zip(*done)
        joined = {metric.name: np.concatenate(each) for metric, each in zip(wanted, zip(*contributions))}
        return Evaluation(functools.reduce(operator.add, totals) / sum(sizes), joined, _stored_classes(answers))

    def results(self) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Return the final model's losses and values, and the arrays that are kept of it."""
        if self.settings.keep == "best" and self.best.weights is not None:
            self.network.load_state_dict(self.best.weights)
            checkpoint.restore_buffers(self.network, self.best.buffers or {}, self.device)
        found: dict[str, float] = {}
        found |= self._values("train", self.evaluate(self.parts.train, self.metrics[:1]))
        found |= self._values("val", self.evaluate(self.parts.validation, self.metrics[:1]))
        if self.job.stage != FINAL:
            return self._finite(found) | self.built.noise, {}
        tested = self.evaluate(self.parts.test, classes=self.study.task == "classification")
        found |= self._values("test", tested)
        artefacts = {f"test_{name}": each for name, each in tested.contributions.items()} | tested.classes
        if self.parts.groups is not None:
            artefacts["test_groups"] = self.parts.groups
        if self.study.measure:
            seed = self.job.seed(random_streams.MEASURE)
            numbers, arrays = measured(self.study, self.metrics, self.network, self.parts, seed)
            found |= {f"test:{name}": number for name, number in numbers.items()}  # as metrics are named
            artefacts |= arrays
        return self._finite(found) | self.built.noise, artefacts

    def _values(self, name: str, done: Evaluation) -> dict[str, float]:
        """Return loss and values on a part of the data by their names in the store."""
        found = {f"{name}_loss": done.loss}
        for metric in self.metrics[: len(done.contributions)]:
            key = f"{name}_error" if metric == self.metrics[0] else f"{name}:{metric.name}"
            found[key] = metric.value(done.contributions[metric.name])
        return found

    def _finite(self, found: dict[str, float]) -> dict[str, float]:
        """Leave out what is not finite, such as an AUROC of one class; raise if it is the job's result."""
        decides = found["test_error" if self.job.stage == FINAL else "val_error"]
        if not math.isfinite(decides):
            raise DivergenceError(f"the {self.deciding} {self.metrics[0].name} is {decides}")
        for name, value in found.items():
            if not math.isfinite(value):
                warnings.warn(f"{self.job}: {name.replace(':', ' ')} is {value}, and is left out", stacklevel=2)
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _stored_classes(answers: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return predictions and labels as they are stored, if there are any and none is too large."""
    found = [np.concatenate(each) for each in zip(*answers)]
    if any(each.max(initial=0) >= _MOST_LABELS for each in found):
        return {}
    return {name: each.astype(np.int16) for name, each in zip(("test_predictions", "test_labels"), found)}


def _adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    # Fused: one pass over the weights. On the CPU, the plain one takes a third of a small network's step.
    return torch.optim.AdamW(parameters, lr=1e-3, fused=not any(p.is_complex() for p in parameters))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
