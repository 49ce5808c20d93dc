"""Dropout layers of a model, torch's and contdrop's: their kinds, modes, seeds and shared axes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .._torch.checks import is_forward_of
from .._torch.private import TORCH_DROPOUTS

# Torch's layers that multiply by a mask, and the trailing axes that share a value of it.
PLAIN: dict[Any, tuple[int, ...]] = {
    torch.nn.Dropout: (),
    torch.nn.Dropout1d: (-1,),
    torch.nn.Dropout2d: (2, 3),
    torch.nn.Dropout3d: (-3, -2, -1),
}
ALPHA = (torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout)
# Layers that draw more than a mask on units, and all layers that draw.
WHOLE = (nn.AdaptiveDropout, nn.DropConnectLinear, nn.FastDropoutLinear)
DROPOUT_LAYERS: tuple[type[torch.nn.Module], ...] = (*TORCH_DROPOUTS, nn.Dropout, *WHOLE)
# Torch's layers that draw one value for all elements behind the second axis.
_BY_FEATURE = (torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.FeatureAlphaDropout)

Layers = dict[str, torch.nn.Module]


def dropout_layers(model: torch.nn.Module) -> Layers:
    """Return the dropout layers of a model by path."""
    layers = {name or type(module).__name__: module for name, module in model.named_modules()}
    return {name: module for name, module in layers.items() if isinstance(module, DROPOUT_LAYERS)}


def is_plain(module: torch.nn.Module) -> bool:
    """Tell whether a module is a dropout layer that multiplies by a mask, with the forward of its class."""
    return any(isinstance(module, kind) and is_forward_of(module, kind) for kind in (nn.Dropout, *PLAIN))


def children(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """List names and children of a module; unlike ``named_children``, a child with two names is listed twice."""
    inside = module.named_modules(remove_duplicate=False)
    return [(name, child) for name, child in inside if name and "." not in name]


def shared_axes(module: torch.nn.Module) -> tuple[int, ...]:
    """Return the axes along which a plain dropout layer shares a mask value."""
    if isinstance(module, nn.Dropout):
        return module.shared_axes
    return next(axes for layer, axes in PLAIN.items() if type(module).forward is layer.forward)


def mask_axes(layer: torch.nn.Module, axes: int) -> set[int]:
    """Return the axes along which a mask of any dropout layer has one value, for an input of ``axes`` axes."""
    if isinstance(layer, nn.DropConnectLinear):
        return set(range(axes)) if layer.masks == "batch" else set()
    if isinstance(layer, nn.Dropout):
        return {axis % axes for axis in layer.shared_axes}
    # With this few axes torch takes the first for features, and there is no batch.
    single = (isinstance(layer, torch.nn.Dropout1d) and axes == 2) or (
        isinstance(layer, torch.nn.Dropout3d) and axes == 4
    )
    return set(range(1 if single else 2, axes)) if isinstance(layer, _BY_FEATURE) else set()


@contextlib.contextmanager
def switched(model: torch.nn.Module, *, training: bool | None = None) -> Iterator[None]:
    """Put all modules into one mode, or leave them as they are if None; restore the mode of each at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        # Set the flags themselves: an overridden train() may do more.
        for module, before in modes:
            module.training = before if training is None else training
        yield
    finally:
        for module, before in modes:
            module.training = before


@contextlib.contextmanager
def dropout_on(model: torch.nn.Module, layers: Layers) -> Iterator[dict[str, list[tuple[int, ...]]]]:
    """Put these layers into training mode and all others into evaluation mode; restore all modes at the end.

    Yields the shapes of the first tensor that each layer is called with, call by call; of a nested tensor, whose rows
    have several lengths, -1 stands for all axes but the first.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in layers}

    def note(name: str, *inputs: object) -> None:
        for x in [each for each in inputs if isinstance(each, Tensor)][:1]:
            shapes[name].append((x.size(0), *[-1] * (x.dim() - 1)) if x.is_nested else tuple(x.shape))

    # Hooks also keep torch's transformer layers from their fused evaluation path, which would leave out dropout.
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: note(name, *args, *kwargs.values()), with_kwargs=True
        )
        for name, layer in layers.items()
    ]
    try:
        with switched(model, training=False):
            for layer in layers.values():
                layer.training = True
            yield shapes
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def restored_generators(modules: Iterable[torch.nn.Module]) -> Iterator[list[torch.Generator]]:
    """Yield the modules' own generators, each once; restore them and torch's at the end."""
    found = {id(g): g for module in modules if isinstance(g := getattr(module, "generator", None), torch.Generator)}
    states = [(generator, generator.get_state()) for generator in found.values()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield list(found.values())
        finally:
            for generator, state in states:
                generator.set_state(state)


@contextlib.contextmanager
def seeded(layers: Layers, seed: int | None) -> Iterator[None]:
    """Seed torch's generators and those of the layers, and restore all states at the end."""
    if seed is None:
        yield
        return
    with restored_generators(layers.values()) as own:
        torch.manual_seed(seed)
        for number, generator in enumerate(own, start=1):
            # Not a sum of the two, which generators of neighbouring seeds would share.
            digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
            generator.manual_seed(int.from_bytes(digest, "big"))
        yield
