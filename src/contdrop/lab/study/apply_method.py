"""Application of a method to any model with dropout layers.

Parameters keep their names, shapes, order and values, so that all methods of a run start from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ... import surgery
from ..._text import plural, some_of
from ..._torch.private import share_hooks
from ...choices import Scale
from ...errors import UserError
from ...laws import LAWS, Gaussian, Law, Uniform
from ...surgery import Unreachable, linear_chains
from ...surgery.dropout_layers import ALPHA, is_plain
from .labels import MATCH, ORIGINAL, OWN, REACH
from .methods import Method, check_scale, masked_linear, noise_of, parse

_NOWHERE = "no dropout layer was found to put it into"
_IN_CHAINS = ("adaptive", "adaptive-authors", "dropconnect", "dropconnect-authors", "fast")


@dataclass(frozen=True)
class MethodReport:
    """Result of applying a method to a model."""

    changed: int  # number of dropout sites
    sites: int  # number of all: dropout layers that draw, and unreachable sites
    unreachable: tuple[Unreachable, ...] = ()  # dropout that no method can change
    noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by layer: mean and relative variance
    notes: tuple[str, ...] = ()  # for readers of results, one sentence each

    def __str__(self) -> str:
        return "; ".join([f"{self.changed} of {plural(self.sites, 'dropout site')} changed", *self.notes])


def apply(method: Method | str, model: nn.Module, *, scale: Scale = "inverted", fallback: bool = False) -> MethodReport:
    """Apply a method to a model in place; names, shapes, order and values of parameters are kept.

    Methods with a law, and ``none``, replace every dropout layer; see :func:`contdrop.swap_dropout`. ``adaptive``,
    ``dropconnect`` and ``fast`` need a linear layer, ReLU or sigmoid, and dropout in sequence (and a linear layer that
    reads the units, for ``fast``); other dropout layers are kept, with a note. ``match`` reaches a noise strength
    r = p / (1 - p) of 1/3 with the uniform law (p = 0.25), and of 0.66 with the clipped Gaussian (p = 0.396).
    Out of reach it is an error or, with ``fallback``, N(1, r) unclipped or U(0, 1), with a note.
    """
    method = parse(method) if isinstance(method, str) else method
    check_scale(method, scale)
    layers = [module for module in model.modules() if is_plain(module)]
    notes: list[str] = []
    try:
        if method.name in (ORIGINAL, OWN):
            noise = _own_noise(model)
        elif method.name in _IN_CHAINS:
            noise = _apply_to_chains(method, model, scale, notes)
        else:
            noise = _swap(method, model, scale, fallback, notes)
    except ValueError as error:
        raise UserError(f"{method}: {error}") from error
    left = tuple(each for each in surgery.unreachable(model) if not each.what.startswith("masks of"))
    if left:
        notes.append(f"{plural(len(left), 'place')} with dropout out of reach: {some_of([each.name for each in left])}")
    still_there = set(model.modules())
    changed = sum(layer not in still_there for layer in layers)
    kept = sum(layer in still_there and surgery.noise(layer).variance > 0 for layer in layers)
    return MethodReport(changed, changed + kept + len(left), left, noise, tuple(notes))


def _swap(
    method: Method, model: nn.Module, scale: Scale, fallback: bool, notes: list[str]
) -> dict[str, dict[str, float]]:
    law = None if method == Method("none") else method.law
    if not any(is_plain(module) or isinstance(module, ALPHA) for module in model.modules()):
        notes.append(_NOWHERE)
        return {}
    beyond: dict[float, list[str]] = {}
    chosen = _matching(method, fallback, beyond) if method.word == MATCH else law
    swap = surgery.swap_dropout(model, chosen, scale=scale)
    for r, names in beyond.items():
        instead = f"a clipped Gaussian: N(1, {r:.3g}) is there, unclipped"
        if method.name == "uniform":
            instead = "a uniform law: U(0, 1) is there, of strength 0.333; its control is bernoulli-matched:uniform"
        notes.append(f"at {some_of(names)} the noise strength {r:.3g} is beyond {instead}")
    if not swap.replaced:
        notes.append(_NOWHERE)
    off = [name for name, each in swap.replaced.items() if law is not None and surgery.noise(each.old).variance == 0]
    if off:
        notes.append(f"put into dropout layers whose own rate is 0: {some_of(off)}")
    return {name: noise_of(surgery.noise(each.new), scale) for name, each in swap.replaced.items()}


def _own_noise(model: nn.Module) -> dict[str, dict[str, float]]:
    """Return the noise of the model's own dropout layers that draw and have a relative variance."""
    layers = [(name, layer, surgery.noise(layer)) for name, layer in model.named_modules() if is_plain(layer)]
    # Layers of rate 0 stay off with every matching method, so they do not count.
    drawing = [each for each in layers if each[2].variance > 0] or layers
    return {name: noise_of(law, getattr(layer, "scale", "inverted")) for name, layer, law in drawing if law.mean}


def _matching(method: Method, fallback: bool, beyond: dict[float, list[str]]) -> Callable[[str, nn.Module], Law | None]:
    """Return the law of each layer's own strength, or the nearest one, which is recorded in ``beyond``."""
    family: Any = LAWS[method.name]
    reach = REACH.get(method.name, float("inf"))

    def law_for(name: str, layer: nn.Module) -> Law | None:
        own = surgery.noise(layer)
        r = own.relative_variance
        if own.variance == 0 and own.mean:
            return None
        if r <= reach * (1 + 1e-9):
            law: Law = family.matching(own)
            return law
        if not fallback:
            raise UserError(
                f"{method}: expected dropout layers with p of at most {reach / (1 + reach):.3g} (noise strength "
                f"{reach:.3g}), got {name} with p = {r / (1 + r):.3g} (noise strength {r:.3g}); give the law's "
                "parameters instead, or use bernoulli:match"
            )
        beyond.setdefault(r, []).append(name)
        return Uniform() if method.name == "uniform" else Gaussian.matching(own, clip=False)

    return law_for


def _apply_to_chains(method: Method, model: nn.Module, scale: Scale, notes: list[str]) -> dict[str, dict[str, float]]:
    found = linear_chains.find(model)
    unfit = {name: reason for name, around in found.chains.items() if (reason := _misfit(method, around, found))}
    misfits = {**found.misfits, **unfit}
    fitting = {name: around for name, around in found.chains.items() if name not in misfits}
    if not fitting:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(misfits.items())[:3])
        raise UserError(
            f"{method}: expected a linear layer, ReLU or sigmoid, and dropout that follow each other, got a model "
            f"without ({reasons or 'it has no dropout layer'}); leave the method out"
        )
    if misfits:
        notes.append(f"left as they were, as {method.name} does not fit: {some_of(misfits)}")
    for chain in (chain for around in fitting.values() for chain in around):
        old = chain.reader if method.name == "fast" else chain.linear
        assert isinstance(old, nn.Linear)
        sizes = {"in_features": old.in_features, "out_features": old.out_features, "bias": old.bias is not None}
        new = masked_linear(method, chain.activation, scale, **sizes, device="meta")  # its parameters are not used
        new.weight, new.bias = old.weight, old.bias
        _replace(model, old, new)
        if method.name != "fast" and chain.layer is not None:
            # The activation is inside of the new layer. ReLU again changes nothing, but must not write into its input.
            _replace(model, chain.layer, nn.ReLU() if chain.activation == "relu" else nn.Identity())
    for name in fitting:
        _replace(model, model.get_submodule(name), nn.Dropout(0.0))
    return {name: method.noise(scale) for name in fitting} if method.law is not None else {}


def _misfit(method: Method, around: list[linear_chains.Chain], found: linear_chains.Found) -> str:
    """Return the reason why a method does not fit around a dropout layer; empty if it does."""
    for chain in around:
        if method.name == "fast" and (chain.reader is None or found.calls[id(chain.reader)] > 1):
            return "no torch.nn.Linear of its own reads it"
        if method.name != "fast" and chain.activation == "sigmoid":
            together = sum(each.layer is chain.layer for each in around)
            if chain.layer is None or found.calls[id(chain.layer)] != together:
                return "its sigmoid is a function, or used elsewhere too; use a torch.nn.Sigmoid"
    return ""


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever it occurs in a model."""
    share_hooks(old, new)
    new.training = old.training
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)
