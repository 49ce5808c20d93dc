"""Checks for common mistakes in studies, with messages in the study's terms."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._text import some_of
from ...errors import UserError, mistake
from ..data import batch as batches
from ..data.batch import leaves, loss_of, target_of
from ..data.data import PreparedData
from ..data.inputs import Arrays, bad_rows
from ..training.trainer import Trainer
from .user_errors import explained, line_of

_OF_TYPES = re.compile(r"d?type|not implemented for", re.IGNORECASE)  # in torch's errors about types
_CLOSE = 1e-3  # to 1, for sums of probabilities in any precision


def check_first_batch(training: Trainer, batch: Any, prepared: PreparedData, where: str) -> list[str]:
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
        check_average(training, output, batch, where)
        if study.task != "classification" or study.loss is not None or loss_of(output) is not None:
            return []
        if target_of(batch).is_floating_point():
            return _one_hot_warning(target_of(batch))
        logits, target = batches.logits_and_classes(output, batch)
    _check_classes(prepared, target, logits.shape[1], f"{where}: {{}}{line_of(study.data)}")
    return _probability_warning(logits, training.network)


def check_optimizer(training: Trainer, where: str) -> list[str]:
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


def check_average(training: Trainer, output: Any, batch: Any, where: str) -> None:
    """Raise an error if the probabilities of several networks cannot be averaged by the form of their outputs."""
    if training.settings.networks == 1:
        return
    logits, target = batches.prediction_of(output), target_of(batch)
    by_class = batches.class_axes(logits, target)[0] and logits.shape[1] > 1
    if not by_class and logits[0].numel() != 1:
        expected = "logits [N, classes, ...] and classes [N, ...], or one logit per example,"
        got = f"output {list(logits.shape)} and target {list(target.shape)}"
        raise mistake(where, f"{expected} for networks={training.settings.networks}", got)


def missing_values(prepared: PreparedData) -> str:
    """Return a message about inputs that are not finite, as far as known without reading every item."""
    for part, source in prepared.sources.items():
        for name, leaf in leaves(source.nest, part) if isinstance(source, Arrays) else ():
            if bad := bad_rows(leaf):
                return f"{name} has nan or infinity in {len(bad)} of {len(leaf)} examples, first in {bad[0]}"
    return ""


def other_shape(prepared: PreparedData, part: str) -> str:
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
    inputs, named, _ = batches.inputs_and_target(batch)
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
        labels = labels[labels != batches.IGNORED]
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
