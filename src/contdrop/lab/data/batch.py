"""Batches: nested tuples, lists and dictionaries of tensors, the call of a model with them, inputs and targets.

Defaults for a study without ``forward`` and ``loss``:

==========================================  ======================  =====================
batch                                       the model gets          the target is
==========================================  ======================  =====================
``(x, y)``                                  ``model(x)``            ``y``
``((x1, x2), y)``                           ``model(x1, x2)``       ``y``
``({"a": a, "b": b}, y)``                   ``model(a=a, b=b)``     ``y``
``(x1, x2, …, y)``                          ``model(x1, x2, …)``    ``y``
``{"a": a, "b": b, "labels": y}``           ``model(a=a, b=b)``     ``y``
``(x,)``, ``x`` or anything else            ``model(x)``            none
==========================================  ======================  =====================

In a dictionary the target is ``labels``, ``label``, ``targets``, ``target`` or ``y``. The model gets it too if its
``forward`` has a parameter of that name, as models of Hugging Face do, which then return their own loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UserError, mistake

TARGETS = ("labels", "label", "targets", "target", "y")  # in this order
IGNORED = -100  # a target that does not count, as in torch.nn.functional.cross_entropy
_HINT = "give loss= and metric= of your own"


def map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:
    """Return the same nesting with ``function`` applied to each leaf.

    >>> map_leaves(len, {"a": ("xy", ["z"])})
    {'a': (2, [1])}
    """
    if isinstance(nest, Tensor) or not isinstance(nest, (Mapping, tuple, list)):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: map_leaves(function, value) for key, value in nest.items()}
    mapped = [map_leaves(function, value) for value in nest]
    return type(nest)(*mapped) if hasattr(nest, "_fields") else type(nest)(mapped)  # a named tuple, or any other


def leaves(nest: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path.

    >>> [*leaves({"a": (1, 2)}, "train")]
    [("train['a'][0]", 1), ("train['a'][1]", 2)]
    """
    if isinstance(nest, (Mapping, tuple, list)):
        for key, value in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
            yield from leaves(value, f"{name}[{key!r}]")
    else:
        yield name, nest


def size_of(batch: Any) -> int:
    """Return the number of examples in a batch: the length of its first tensor, or of its first list of text.

    >>> size_of({"ids": torch.zeros(3, 7), "labels": torch.zeros(3)})
    3
    """
    if type(batch) is tuple and batch and isinstance(batch[0], Tensor) and batch[0].dim():
        return batch[0].shape[0]  # fast path for small networks
    size = _size(batch)
    if size is None:
        raise TypeError(f"expected a batch with a tensor or a list of text in it; got {type(batch).__name__}")
    return size


def _size(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        if batch and isinstance(batch[0], str):
            return len(batch)
        return next((size for size in map(_size, batch) if size is not None), None)
    return len(batch) if hasattr(batch, "__len__") and not isinstance(batch, str) else None


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Return the same nesting on a device; leaves that cannot be moved, such as text, are kept."""
    return map_leaves(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def inputs_and_target(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return a model's positional and named inputs, and the target; see the table above."""
    if isinstance(batch, Mapping):
        name = target_name(batch)
        named = {key: value for key, value in batch.items() if key != name}
        return (), named, None if name is None else batch[name]
    if not isinstance(batch, (tuple, list)) or not batch:
        return (batch,), {}, None
    if len(batch) == 1:
        return tuple(batch), {}, None
    *inputs, target = batch
    first = inputs[0]
    if len(inputs) == 1 and isinstance(first, Mapping):
        return (), dict(first), target
    return tuple(first if len(inputs) == 1 and isinstance(first, (tuple, list)) else inputs), {}, target


def find_target(batch: Any) -> Any:
    """Return the target of a batch; None if its form does not tell."""
    return inputs_and_target(batch)[2]


def target_name(batch: Mapping[Any, Any]) -> str | None:
    """Return the name of a batch's target; None if it has none of the usual ones."""
    return next((name for name in TARGETS if name in batch), None)


def target_of(batch: Any) -> Tensor:
    """Return the target of a batch, see the table above; raise an error if there is none."""
    found = find_target(batch)
    if not isinstance(found, Tensor):
        given = f"a dictionary of {', '.join(map(str, batch)) or 'nothing'}" if isinstance(batch, Mapping) else ""
        raise UserError(
            f"expected a target: a tensor as the last element of a batch (x, y), or {', '.join(TARGETS)} of a "
            f"dictionary; got {given or 'no tensor'} in a batch of type {type(batch).__name__}; {_HINT}"
        )
    return found


def prediction_of(output: Any) -> Tensor:
    """Return a tensor output, or the logits of an object."""
    found = output if isinstance(output, Tensor) else _returned(output, "logits")
    if found is None:
        raise UserError(
            f"expected a model that returns a tensor, or an object or dictionary with logits; got "
            f"{type(output).__name__}; give forward= (model, batch) -> tensor"
        )
    return found


def loss_of(output: Any) -> Tensor | None:
    """Return the loss that a model returned with its output, or None."""
    return None if isinstance(output, Tensor) else _returned(output, "loss")


def _returned(output: Any, name: str) -> Tensor | None:
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def examples_of(batch: Any) -> int:
    """Return the number of examples in a batch, from its target or else its first tensor."""
    target = find_target(batch)
    if isinstance(target, Tensor) and target.dim():
        return len(target)
    try:
        return size_of(batch)
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
        expected = f"targets 0 or 1 beside one logit each, {_shapes(logits, target)}"
        raise mistake("classification", expected, "others", "let the model return a logit for each class")
    return torch.stack([torch.zeros_like(logits), logits], 1), target.long()


def binary(output: Any, batch: Any) -> tuple[Tensor, Tensor] | None:
    """Return logit and target of one shape, if there is one logit for two classes; else None."""
    logits, target = _class_axis_first(output, batch)
    return (logits, target) if logits.dim() == target.dim() else None


def class_axes(logits: Tensor, target: Tensor) -> tuple[bool, bool]:
    """Return True for the second axis if it can be that of the classes, and True for the last one if it can."""
    if logits.dim() < 2:
        return False, False
    return logits.shape[:1] + logits.shape[2:] == target.shape, logits.shape[:-1] == target.shape


def _class_axis_first(output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits [N, C, ...] and classes [N, ...]; for two classes, logits may have the target's shape."""
    logits, target = prediction_of(output), target_of(batch)
    if logits.shape == target.shape:
        return logits, target
    first, last = class_axes(logits, target)
    if first and last and logits.dim() == 3:  # as many positions as classes
        if isinstance(output, Tensor):
            raise UserError(
                f"classification: cannot tell classes from positions, {_shapes(logits, target)}; {_HINT}, or return "
                "an object with logits [N, positions, classes]"
            )
        first = False  # where models return objects, classes come last
    if not first and not last:
        expected = "one logit per class and one class per example, such as output [64, 10] and target [64]"
        fix = f"reshape them in data and forward=, or {_HINT}"
        raise mistake("classification", expected, _shapes(logits, target), fix)
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
        fix = 'use y.long(), or task="regression"'
        raise mistake("classification", "whole numbers as classes", f"a target of {kind}", fix)
    return target.long()


def prediction_and_target(output: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return prediction and target of a regression; raise an error if their shapes differ."""
    prediction, target = prediction_of(output), target_of(batch)
    if prediction.shape != target.shape:
        got = f"{_shapes(prediction, target)}, which may broadcast"
        fix = "squeeze one of them in data or forward="
        raise mistake("regression", "output and target of one shape", got, fix)
    return prediction, target


def per_example(values: Tensor, target: Tensor) -> Tensor:
    """Return means [N] of values [N, ...] over an example's positions without ignored targets."""
    counted = target != IGNORED
    number = counted.flatten(1).sum(1) if target.dim() > 1 else counted
    if not bool(number.all()):
        raise UserError(
            f"expected a target for each test example; got one with {IGNORED} alone; leave such examples out"
        )
    if values.dim() == 1:
        return values
    return torch.where(counted, values, 0.0).flatten(1).sum(1) / number


def _shapes(output: Tensor, target: Tensor) -> str:
    return f"output {list(output.shape)} and target {list(target.shape)}"
