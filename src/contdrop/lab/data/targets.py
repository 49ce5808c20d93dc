"""Targets of batches, predictions of outputs, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UserError
from . import batch as nests

IGNORED = -100  # a target that does not count, as in torch.nn.functional.cross_entropy
_HINT = "give loss= and metric= of your own"


def target_of(batch: Any) -> Tensor:
    """Return the target of a batch, see :mod:`contdrop.lab.data.batch`; raise an error if there is none."""
    found = nests.target_of(batch)
    if not isinstance(found, Tensor):
        got = (
            f"a dictionary of {', '.join(map(str, batch)) or 'nothing'}" if isinstance(batch, Mapping) else "no tensor"
        )
        raise UserError(
            f"expected a target: a tensor as the last element of a batch (x, y), or {', '.join(nests.TARGETS)} of a "
            f"dictionary; got {got} in a batch of type {type(batch).__name__}; {_HINT}"
        )
    return found


def prediction_of(output: Any) -> Tensor:
    """Return a tensor output, or the logits of an object."""
    found = output
    if not isinstance(output, Tensor):
        found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise UserError(
            f"expected a model that returns a tensor, or an object or dictionary with logits; got "
            f"{type(output).__name__}; give forward= (model, batch) -> tensor"
        )
    return found


def loss_of(output: Any) -> Tensor | None:
    """Return the loss that a model returned with its output, or None."""
    if isinstance(output, Tensor):
        return None
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, Tensor) else None


def examples_of(batch: Any) -> int:
    """Return the number of examples in a batch, from its target or else its first tensor."""
    target = nests.target_of(batch)
    if isinstance(target, Tensor) and target.dim():
        return len(target)
    try:
        return nests.size_of(batch)
    except TypeError as error:
        raise UserError(f"{error}; {_HINT}") from error


def logits_and_classes(output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits [N, C, ...] and classes [N, ...] of a classifier.

    Accepted are logits [N, C] with classes [N]; [N, C, ...] with [N, ...], as in segmentation; [N, ..., C] with
    [N, ...], as in language models; and for two classes one logit z each, of the shape of its target or with one more
    axis of length 1, which becomes the logits (0, z): their softmax is the sigmoid of z. For a model that returns its
    own loss for the next token, positions are shifted as in that loss.
    """
    logits, target = _class_axis_first(output, batch)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if logits.dim() > target.dim():
        return logits, whole_numbers(target)
    if not bool(((target == 0) | (target == 1)).all()):
        raise UserError(
            f"classification: expected targets 0 or 1 beside one logit each, {_shapes(logits, target)}; got others; "
            "let the model return a logit for each class"
        )
    return torch.stack([torch.zeros_like(logits), logits], 1), target.long()


def binary(output: Any, batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return logit and target of one shape, if there is one logit for two classes; else None."""
    logits, target = _class_axis_first(output, batch)
    return (logits, target) if logits.dim() == target.dim() else None


def _class_axis_first(output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits [N, C, ...] and classes [N, ...]; for two classes, logits may have the target's shape."""
    logits, target = prediction_of(output), target_of(batch)
    if logits.shape == target.shape:
        return logits, target
    first = logits.dim() > 1 and logits.shape[:1] + logits.shape[2:] == target.shape
    last = logits.dim() > 1 and logits.shape[:-1] == target.shape
    if first and last and logits.dim() == 3:  # as many positions as classes
        if isinstance(output, Tensor):
            raise UserError(
                f"classification: cannot tell classes from positions, {_shapes(logits, target)}; {_HINT}, or return "
                "an object with logits [N, positions, classes]"
            )
        first = False  # where models return objects, classes come last
    if not first and not last:
        raise UserError(
            "classification: expected one logit per class and one class per example, such as output [64, 10] and "
            f"target [64]; got {_shapes(logits, target)}; reshape them in data and forward=, or {_HINT}"
        )
    logits = logits if first else logits.movedim(-1, 1)
    loss = loss_of(output)
    if loss is not None and logits.dim() == 3 and _predicts_next(logits, target, loss):
        return logits[:, :, :-1], target[:, 1:]
    return (logits.squeeze(1) if logits.shape[1] == 1 else logits), target


def _predicts_next(logits: Tensor, target: Tensor, loss: Tensor) -> bool:
    """Return True if a model's own loss is that of the next token, as in causal language models.

    Their targets are their inputs, not shifted, so that shapes do not tell.
    """
    if logits.shape[2] < 2 or logits.shape[1] < 2:
        return False
    same = functional.cross_entropy(logits, target)
    following = functional.cross_entropy(logits[:, :, :-1], target[:, 1:])
    return bool((following - loss).abs() < (same - loss).abs())


def whole_numbers(target: Tensor) -> Tensor:
    if target.is_floating_point() or target.is_complex():
        kind = str(target.dtype).removeprefix("torch.")
        raise UserError(
            f"classification: expected whole numbers as classes, got a target of {kind}; use y.long(), or "
            'task="regression"'
        )
    return target.long()


def prediction_and_target(output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return prediction and target of a regression; raise an error if their shapes differ."""
    prediction, target = prediction_of(output), target_of(batch)
    if prediction.shape != target.shape:
        raise UserError(
            f"regression: expected output and target of one shape, got {_shapes(prediction, target)}, which may "
            "broadcast; squeeze one of them in data or forward="
        )
    return prediction, target


def per_example(values: Tensor, target: Tensor) -> Tensor:
    """Return means [N] of values [N, ...] over an example's positions without ignored targets."""
    counted = target != IGNORED
    number = counted.flatten(1).sum(1) if target.dim() > 1 else counted
    if not bool(number.all()):
        raise UserError(
            f"expected a target for each test example, got one with {IGNORED} alone; leave such examples out"
        )
    if values.dim() == 1:
        return values
    return torch.where(counted, values, 0.0).flatten(1).sum(1) / number


def _shapes(output: Tensor, target: Tensor) -> str:
    return f"output {list(output.shape)} and target {list(target.shape)}"
