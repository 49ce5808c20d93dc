"""Predictions of a model whose dropout is left on: by sampling (Monte-Carlo dropout) or by propagated moments."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import nn
from .arguments import check_choice, check_seed, check_whole
from .choices import METHODS, TRANSFORMS, Covariance, Method, Transform
from .compatibility import TORCH_DROPOUTS
from .theory import propagation

_STOCHASTIC: tuple[type[torch.nn.Module], ...] = (
    *TORCH_DROPOUTS,
    nn.Dropout,
    nn.AdaptiveDropout,
    nn.DropConnectLinear,
    nn.FastDropoutLinear,
)

# What a model is called with: one tensor, or a tuple of several.
Inputs = Tensor | tuple[Tensor, ...]

# Logits are drawn from their Gaussian this many numbers at a time.
_LOGITS_AT_ONCE = 1 << 20

# Examples that show whether others change what a model says of one.


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a model says of a batch when its dropout is on. Classes are along axis 1; entropies are in nats.

    Attributes:
        mean: E[y], the average output, after the transform.
        variance: Var(y), elementwise.
        entropy: H(E[p]) of the average probabilities p: the whole uncertainty. None if the outputs are not
            probabilities.
        mutual_information: H(E[p]) - E[H(p)], between the class and the mask: how far the passes disagree. None if the
            outputs are not probabilities.
    """

    mean: Tensor
    variance: Tensor
    entropy: Tensor | None
    mutual_information: Tensor | None


def mc_predict(
    model: torch.nn.Module, x: Inputs, samples: int = 50, *, transform: Transform = None, seed: int | None = None
) -> Prediction:
    """Monte-Carlo dropout: mean and variance over ``samples`` passes (Gal and Ghahramani, 2016).

    Only dropout layers are put into training mode: torch's, ours, DropConnectLinear, FastDropoutLinear and
    AdaptiveDropout. All else, batch normalisation among it, is in evaluation mode; afterwards every layer is in the
    mode it was in. Dropout that is not a layer of its own (a function, or inside torch.nn.MultiheadAttention) stays
    off. No gradients are recorded, and memory does not grow with ``samples``.

    Args:
        model: With at least one dropout layer.
        x: Batch [N, ...] of any type, token ids among them; a tuple for a model of several inputs.
        samples: Number of passes, at least 2.
        transform: None for the outputs as they are; "softmax" for a classifier that gives logits or log-probabilities;
            "probabilities" for one that gives probabilities. Both along axis 1, and both give entropies.
        seed: Makes the result reproducible and leaves torch's generators as they were. With None the masks follow from
            torch.manual_seed, or from a layer's own generator.
    """
    owner = "mc_predict"
    inputs = as_inputs(owner, x)
    layers = _check(owner, model, samples, transform, seed)
    total = _Running()
    with torch.no_grad(), dropout_on(model, layers) as called, seeded(layers, seed):
        for _ in range(samples):
            # Copies, because the first layer may work in place.
            output = model(*(each.clone() for each in inputs))
            if not isinstance(output, Tensor):
                raise TypeError(f"{owner}: expected a model that returns a tensor, got {type(output).__name__}")
            total.add(_transformed(owner, output, transform).unsqueeze(0), transform is not None)
    prediction = total.prediction(output.dtype)
    if not called and not prediction.variance.any():
        raise ValueError(
            f"{owner}: expected the model to call its dropout layers in forward, but it calls none of them "
            f"({', '.join(layers)}), so all passes are equal"
        )
    return prediction


def predict(
    model: torch.nn.Module,
    x: Inputs,
    *,
    method: Method = "monte-carlo",
    samples: int | None = None,
    transform: Transform = None,
    seed: int | None = None,
    covariance: Covariance = "output",
) -> Prediction:
    """Prediction with dropout on, by one of two methods.

    "monte-carlo" is :func:`mc_predict`. "moments" propagates mean and covariance through the model once
    (:func:`contdrop.theory.propagation.moments`, which says what models it can follow, and what is approximate). With
    ``transform="softmax"`` the logits are then taken as Gaussian, and the moments and entropies of their softmax are
    averages over ``samples`` draws of the logits alone: cheap, because the network is not evaluated again.

    Args:
        model: With at least one dropout layer.
        x: As in :func:`mc_predict`; one tensor of real numbers with "moments".
        method: "monte-carlo" or "moments".
        samples: Number of passes (50 if None), or of draws of the logits (1000 if None).
        transform: As in :func:`mc_predict`; "probabilities" with "monte-carlo" only.
        seed: As in :func:`mc_predict`.
        covariance: Of the propagation: "diagonal", "output" or "full". Not used by "monte-carlo".

    Returns:
        The prediction; in float64 if by moments.
    """
    owner = "predict"
    check_choice(owner, "method", method, METHODS)
    if method == "monte-carlo":
        return mc_predict(model, x, 50 if samples is None else samples, transform=transform, seed=seed)
    samples = 1000 if samples is None else samples
    _check(owner, model, samples, transform, seed)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{owner}: expected one tensor with method='moments', got {type(x).__name__}; use method='monte-carlo' for "
            "several inputs"
        )
    if transform == "probabilities":
        raise ValueError(
            f"{owner}: expected transform to be None or 'softmax' with method='moments', got 'probabilities'; give the "
            "model without its last softmax"
        )
    moments = propagation.moments(model, x, covariance=covariance)
    if transform is None:
        return Prediction(moments.mean, moments.variance, None, None)
    total = _Running()
    with torch.no_grad(), seeded({}, seed):
        at_once = max(1, _LOGITS_AT_ONCE // moments.mean.numel())
        root = None if moments.covariance is None else _root(moments.covariance)
        for start in range(0, samples, at_once):
            noise = torch.randn(min(at_once, samples - start), *moments.mean.shape, dtype=torch.float64).to(x.device)
            if root is None:
                noise = noise * moments.variance.sqrt()
            else:
                noise = torch.einsum("nij,snj->sni", root, noise.flatten(2)).reshape(noise.shape)
            total.add((moments.mean + noise).softmax(2), True)
    return total.prediction(torch.float64)


def dropout_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """By path, torch's own and ours."""
    layers = {name or type(module).__name__: module for name, module in model.named_modules()}
    return {name: module for name, module in layers.items() if isinstance(module, _STOCHASTIC)}


class _Running:
    """Mean, variance and expected entropy of a stream of outputs, in float64 (Chan, Golub and LeVeque, 1983)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = self._entropy = torch.zeros((), dtype=torch.float64)
        self._probabilities = False

    def add(self, values: Tensor, probabilities: bool) -> None:
        """Takes values [draws, N, ...]."""
        values = values.double()
        new = len(values)
        mean = values.mean(0)
        gap = mean - self._mean.to(values.device)
        count = self._count + new
        inside = (values - mean).square().sum(0)
        self._squares = self._squares.to(values.device) + inside + gap.square() * (self._count * new / count)
        self._mean = self._mean.to(values.device) + gap * (new / count)
        self._count = count
        self._probabilities = probabilities
        if probabilities:
            self._entropy = self._entropy.to(values.device) + _entropy(values, 2).sum(0)

    def prediction(self, dtype: torch.dtype) -> Prediction:
        # Sums of half-precision outputs are worth more than half precision.
        dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        variance = self._squares / (self._count - 1)
        entropy = information = None
        if self._probabilities:
            entropy = _entropy(self._mean, 1)
            information = (entropy - self._entropy / self._count).clamp(min=0).to(dtype)
            entropy = entropy.to(dtype)
        return Prediction(self._mean.to(dtype), variance.to(dtype), entropy, information)


def _entropy(probabilities: Tensor, axis: int) -> Tensor:
    return torch.as_tensor(torch.special.entr(probabilities)).sum(axis)


def _transformed(owner: str, output: Tensor, transform: Transform) -> Tensor:
    if transform is None:
        return output
    if output.dim() < 2:
        raise ValueError(f"{owner}: expected outputs [N, classes, ...] for transform, got {tuple(output.shape)}")
    if transform == "softmax":
        return output.double().softmax(1)
    # Half precision is good to 1e-3, and classes add up.
    if output.min() < 0 or ((output.double().sum(1) - 1).abs() > 1e-2).any():
        raise ValueError(
            f"{owner}: expected outputs that are at least 0 and add up to 1 along axis 1, got others; use "
            "transform='softmax' for logits"
        )
    return output


def _root(covariance: Tensor) -> Tensor:
    """A square root of a covariance [N, D, D]."""
    # Not Cholesky: outputs may be perfectly correlated, which makes the covariance singular.
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    return root


@contextlib.contextmanager
def dropout_on(model: torch.nn.Module, layers: dict[str, torch.nn.Module]) -> Iterator[set[tuple[str, int]]]:
    """Puts these layers into training mode and all others into evaluation mode, and back afterwards.

    Yields the layers that have been called, each with the number of axes of its input.
    """
    modes = [(module, module.training) for module in model.modules()]
    called: set[tuple[str, int]] = set()
    # Hooks also keep torch's transformer layers from their fused evaluation path, which would leave out dropout.
    hooks = [layer.register_forward_pre_hook(_noting(name, called), with_kwargs=True) for name, layer in layers.items()]
    try:
        # The flags themselves: a train() of the user's own may do more than set them.
        for module, _ in modes:
            module.training = False
        for module in layers.values():
            module.training = True
        yield called
    finally:
        for module, mode in modes:
            module.training = mode
        for hook in hooks:
            hook.remove()


def _noting(name: str, called: set[tuple[str, int]]) -> Callable[..., None]:
    def note(_module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        called.update((name, each.dim()) for each in (*args, *kwargs.values()) if isinstance(each, Tensor))

    return note


def shares_mask(layer: torch.nn.Module, axes: int) -> bool:
    """Whether the examples of a batch share a mask of this layer, if its input has so many axes."""
    if isinstance(layer, nn.DropConnectLinear):
        return layer.masks == "batch"
    return isinstance(layer, nn.Dropout) and any(axis % axes == 0 for axis in layer.shared_axes)


@contextlib.contextmanager
def seeded(layers: dict[str, torch.nn.Module], seed: int | None) -> Iterator[None]:
    """Seeds torch's generators and the layers' own, and puts all back afterwards."""
    if seed is None:
        yield
        return
    own = {id(g): g for layer in layers.values() if isinstance(g := getattr(layer, "generator", None), torch.Generator)}
    states = [(generator, generator.get_state()) for generator in own.values()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            torch.manual_seed(seed)
            for number, (generator, _) in enumerate(states, start=1):
                generator.manual_seed(_derived(seed, number))
            yield
        finally:
            for generator, state in states:
                generator.set_state(state)


def _derived(seed: int, number: int) -> int:
    """A seed for the generator of this number; not a sum, which generators of neighbouring seeds would share."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest(), "big")


def as_inputs(owner: str, x: Inputs) -> tuple[Tensor, ...]:
    """What a model is called with, as a tuple."""
    inputs: tuple[Any, ...] = x if isinstance(x, tuple) and x else (x,)
    for each in inputs:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"{owner}: expected a tensor, or a tuple of tensors for a model of several inputs, got "
                f"{type(each).__name__}"
            )
    return inputs


def _check(
    owner: str, model: torch.nn.Module, samples: int, transform: Transform, seed: int | None
) -> dict[str, torch.nn.Module]:
    """Checks the arguments; returns the model's dropout layers by path."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{owner}: expected a torch.nn.Module, got {type(model).__name__}")
    check_whole(owner, "samples", samples, 2)
    check_choice(owner, "transform", transform, TRANSFORMS)
    check_seed(owner, seed)
    layers = dropout_layers(model)
    if not layers:
        raise ValueError(
            f"{owner}: expected a model with dropout layers, got {type(model).__name__} without any, whose output is "
            "not random; call it in evaluation mode instead"
        )
    return layers
