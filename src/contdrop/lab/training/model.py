"""Models of a study with a method applied, with equal initial weights in a run, and the default way to call them."""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import mistake
from ..data.batch import inputs_and_target, prediction_of, target_name
from ..study.apply_method import MethodReport, apply
from ..study.methods import Method
from ..study.study import METHODS, Study
from . import random_streams


@dataclass(frozen=True)
class BuiltModel:
    """Model with a method, and a report of what the method did to it."""

    model: nn.Module
    noise: dict[str, float] = field(default_factory=dict)  # mean, and relative variance averaged over layers
    applied: MethodReport | None = None  # None where the study builds a method's model itself


class Averaged(nn.ModuleList):
    """Ensemble of classifiers with logits [N, classes, ...], which returns the logarithm of their mean probabilities.

    For models with one logit, for two classes, it returns the logit of their mean probability.
    """

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        logits = torch.stack([prediction_of(member(*inputs, **named)) for member in self])
        if logits[0, 0].numel() == 1:
            yes, no = (functional.logsigmoid(sign * logits).logsumexp(0) for sign in (1, -1))
            return yes - no
        return logits.log_softmax(2).logsumexp(0) - math.log(len(self))


def build(study: Study, method: Method, seed: int) -> BuiltModel:
    """Return the model with the method, or an ensemble, with initial weights drawn by ``seed``."""
    first = _build(study, method, seed)
    if study.training.networks == 1:
        return first
    numbers = range(1, study.training.networks)
    seeds = [random_streams.seed(seed, "network", number, random_streams.WEIGHTS) for number in numbers]
    others = [_build(study, method, each).model for each in seeds]
    return replace(first, model=Averaged([first.model, *others]))


def _build(study: Study, method: Method, seed: int) -> BuiltModel:
    assert study.model is not None, "a study with a loop of its own builds its models itself"
    if study.takes_method:
        seed_everything(seed)
        return BuiltModel(_checked(study, study.model(method)), method.noise(study.scale))
    return build_with(study, study.model, method, seed)


def build_with(study: Study, function: Callable[[], nn.Module], method: Method, seed: int) -> BuiltModel:
    """Return the model that a function makes, with the method in its dropout layers."""
    seed_everything(seed)
    model = _checked(study, function())
    return BuiltModel(model, *put(study, method, model))


def put(study: Study, method: Method, model: nn.Module) -> tuple[dict[str, float], MethodReport]:
    """Apply the method to a model; return the mean and strength of its noise, and a report."""
    # The default methods fall back where a shape does not reach a layer's strength; one asked for by name is refused.
    applied = apply(method, model, scale=study.scale, fallback=tuple(study.methods) == METHODS)
    layers = list(applied.noise.values())
    means = {layer["mean"] for layer in layers}
    if len(means) != 1:
        return {}, applied
    variance = fmean(layer["relative_variance"] for layer in layers)
    return {"mean": means.pop(), "relative_variance": variance}, applied


def _checked(study: Study, model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise mistake(f"study {study.name!r}", "model() to return a torch.nn.Module", type(model).__name__)
    return model


def seed_everything(seed: int) -> None:
    """Seed torch, NumPy and Python's random, from which a model function may draw."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def default_forward(model: torch.nn.Module, batch: Any) -> Any:
    """Call a model with a batch; see :mod:`contdrop.lab.data.batch`."""
    if type(batch) is tuple and len(batch) == 2 and isinstance(batch[0], Tensor):
        return model(batch[0])  # fast path for small networks
    inputs, named, target = inputs_and_target(batch)
    if isinstance(batch, Mapping):
        name = target_name(batch)
        original: Any = getattr(model, "_orig_mod", model)  # of a compiled one
        if name is not None and name in _parameter_names(type(original).forward):
            named[name] = target
    return model(*inputs, **named)


@functools.lru_cache(maxsize=64)
def _parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
