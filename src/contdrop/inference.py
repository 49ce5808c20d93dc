"""Predictions of a model whose dropout is left on, by sampling or by propagated moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ._torch.checks import check_choice, check_model, check_seed, check_whole
from .choices import METHODS, TRANSFORMS, Covariance, Method, Transform
from .surgery.dropout_layers import Layers, dropout_layers, dropout_on, seeded
from .surgery.static_scan import out_of_reach
from .theory import propagation
from .theory.propagation import Moments

# Inputs of a model: one tensor or a tuple; or tensors by the names of its arguments.
Inputs = Tensor | tuple[Tensor, ...]
NamedInputs = Mapping[str, Tensor]

_LOGITS_AT_ONCE = 1 << 20  # numbers drawn at a time


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Prediction for a batch with dropout on. Classes are along axis 1; entropies are in nats.

    Attributes:
        mean: E[y], the average output, after the transform.
        variance: Var(y), elementwise.
        entropy: H(E[p]) of the average probabilities p, the total uncertainty. None if the outputs are not
            probabilities. Its shape is that of the mean without axis 1; with "sigmoid", where every output has an
            entropy of its own, that of the mean, and without axis 1 only if there is one output along it.
        mutual_information: H(E[p]) - E[H(p)], between the class and the mask: the disagreement of the passes. None if
            the outputs are not probabilities. Of the shape of the entropy.
    """

    mean: Tensor
    variance: Tensor
    entropy: Tensor | None
    mutual_information: Tensor | None


def mc_predict(
    model: torch.nn.Module,
    x: Inputs | NamedInputs,
    samples: int = 50,
    *,
    transform: Transform = None,
    seed: int | None = None,
) -> Prediction:
    """Predict by Monte-Carlo dropout: mean and variance over ``samples`` passes (Gal and Ghahramani, 2016).

    Only dropout layers, torch's and contdrop's, are put into training mode. All other layers, such as batch
    normalisation, are in evaluation mode; modes are restored afterwards. Dropout that is not a layer of its own (a
    function, or inside torch.nn.MultiheadAttention) stays off. No gradients are recorded, and memory does not grow with
    ``samples``.

    Args:
        model: Model with at least one dropout layer that returns a tensor, or an object or dictionary with ``logits``.
        x: Batch [N, ...] of any type, such as token ids; for a model of several inputs a tuple, or a dictionary by
            the names of its arguments: ``model(**x)``.
        samples: Number of passes, at least 2.
        transform: None keeps the outputs; "softmax" is for a classifier that returns logits or log-probabilities;
            "probabilities" for one that returns probabilities; both along axis 1, of at least 2 classes. "sigmoid" is
            for one logit per binary outcome: two classes [N, 1], or K labels [N, K]. All but None give entropies.
        seed: Makes the result reproducible and restores torch's generators. With None the masks follow from
            torch.manual_seed, or from a layer's own generator.

    Example:
        >>> import contdrop as cd
        >>> prediction = mc_predict(cd.GaussianDropout(0.3), torch.ones(2, 3), seed=0)
        >>> prediction.mean.shape, prediction.variance.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    owner = "mc_predict"
    inputs, named = _arguments(owner, x)
    layers = _check(owner, model, samples, transform, seed)
    total = _Running(transform)
    with torch.no_grad(), dropout_on(model, layers) as shapes, seeded(layers, seed):
        for _ in range(samples):
            # Copies, because the first layer may work in place.
            copies = {name: each.clone() for name, each in named.items()}
            output = _tensor_of(owner, model(*(each.clone() for each in inputs), **copies), transform)
            total.add(_transformed(owner, output, transform).unsqueeze(0))
    prediction = total.prediction(output.dtype)
    if not any(shapes.values()) and not prediction.variance.any():
        raise ValueError(
            f"{owner}: expected the model to call its dropout layers in forward, but it calls none of them "
            f"({', '.join(layers)}), so all passes are equal"
        )
    return prediction


def predict(
    model: torch.nn.Module,
    x: Inputs | NamedInputs,
    *,
    method: Method = "monte-carlo",
    samples: int | None = None,
    transform: Transform = None,
    seed: int | None = None,
    covariance: Covariance = "output",
) -> Prediction:
    """Predict with dropout on, by sampling or by moments.

    "monte-carlo" is :func:`mc_predict`. "moments" propagates mean and covariance through the model once
    (:func:`contdrop.theory.propagation.moments`, which lists the supported models and approximations). With
    "softmax" or "sigmoid" as transform the logits are then taken as Gaussian, and the moments and entropies of their
    probabilities are averages over ``samples`` draws of the logits alone: cheap, because the network is not evaluated
    again.

    Args:
        model: With at least one dropout layer.
        x: As in :func:`mc_predict`; one tensor of real numbers, for a model that returns a tensor, with "moments".
        method: "monte-carlo" or "moments".
        samples: Number of passes (50 if None), or of draws of the logits (1000 if None).
        transform: As in :func:`mc_predict`; "probabilities" with "monte-carlo" only.
        seed: As in :func:`mc_predict`.
        covariance: Covariance of the propagation: "diagonal", "output" or "full". Not used by "monte-carlo".

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
            f"{owner}: expected transform to be None, 'softmax' or 'sigmoid' with method='moments', got "
            "'probabilities'; give the model without its last softmax"
        )
    moments = propagation.moments(model, x, covariance=covariance)
    if transform is None:
        return Prediction(moments.mean, moments.variance, None, None)
    if transform == "softmax":
        _check_classes(owner, moments.mean, transform)
    total = _Running(transform)
    with torch.no_grad(), seeded({}, seed):
        for logits in _drawn(moments, samples):
            total.add(logits.softmax(2) if transform == "softmax" else logits.sigmoid())
    return total.prediction(torch.float64)


def _drawn(moments: Moments, samples: int) -> Iterator[Tensor]:
    """Yield draws of Gaussian logits of these moments, [draws, N, ...], in parts."""
    mean = moments.mean
    at_once = max(1, _LOGITS_AT_ONCE // mean.numel())
    if moments.covariance is not None:
        # A square root of the covariance; not Cholesky's, since perfectly correlated outputs make it singular.
        values, vectors = torch.linalg.eigh(moments.covariance)
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    for start in range(0, samples, at_once):
        noise = torch.randn(min(at_once, samples - start), *mean.shape, dtype=torch.float64).to(mean.device)
        if moments.covariance is None:
            yield mean + noise * moments.variance.sqrt()
        else:
            yield mean + torch.einsum("nij,snj->sni", root, noise.flatten(2)).reshape(noise.shape)


class _Running:
    """Mean, variance and expected entropy of a stream of outputs, in float64 (Chan, Golub and LeVeque, 1983)."""

    def __init__(self, transform: Transform) -> None:
        self._count = 0
        self._probabilities = transform is not None
        self._entropy_of = _binary_entropy if transform == "sigmoid" else _entropy

    def add(self, values: Tensor) -> None:
        """Add values [draws, N, ...]."""
        values = values.double()
        if not self._count:
            self._mean = self._squares = self._entropy = values.new_zeros(())
        new, mean = len(values), values.mean(0)
        count, gap = self._count + new, mean - self._mean
        inside = (values - mean).square().sum(0)
        self._squares = self._squares + inside + gap.square() * (self._count * new / count)
        self._mean = self._mean + gap * (new / count)
        self._count = count
        if self._probabilities:
            self._entropy = self._entropy + self._entropy_of(values, 2).sum(0)

    def prediction(self, dtype: torch.dtype) -> Prediction:
        # Sums of half-precision outputs are more precise than half precision.
        dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        variance = self._squares / (self._count - 1)
        entropy = information = None
        if self._probabilities:
            entropy = self._entropy_of(self._mean, 1)
            information = (entropy - self._entropy / self._count).clamp(min=0).to(dtype)
            entropy = entropy.to(dtype)
        return Prediction(self._mean.to(dtype), variance.to(dtype), entropy, information)


def _entropy(probabilities: Tensor, axis: int) -> Tensor:
    return torch.as_tensor(torch.special.entr(probabilities)).sum(axis)


def _binary_entropy(probabilities: Tensor, axis: int) -> Tensor:
    """Return the entropy of each yes or no; without the class axis, if there is one."""
    entropy = torch.as_tensor(torch.special.entr(probabilities) + torch.special.entr(1 - probabilities))
    return entropy.squeeze(axis) if entropy.dim() > axis else entropy


def _transformed(owner: str, output: Tensor, transform: Transform) -> Tensor:
    if transform is None:
        return output
    if transform == "sigmoid":
        return output.double().sigmoid()
    _check_classes(owner, output, transform)
    if transform == "softmax":
        return output.double().softmax(1)
    # Half precision is good to 1e-3, and the errors of classes add up.
    if output.min() < 0 or ((output.double().sum(1) - 1).abs() > 1e-2).any():
        raise ValueError(
            f"{owner}: expected outputs that are at least 0 and add up to 1 along axis 1, got others; use "
            "transform='softmax' for logits"
        )
    return output


def _check_classes(owner: str, output: Tensor, transform: Transform) -> None:
    if output.dim() < 2:
        raise ValueError(f"{owner}: expected outputs [N, classes, ...] for transform, got {tuple(output.shape)}")
    if output.shape[1] < 2:  # whose one probability is 1, whatever the output
        raise ValueError(
            f"{owner}: expected at least 2 classes along axis 1 with transform={transform!r}, got outputs "
            f"{tuple(output.shape)}; use transform='sigmoid' for one logit of two classes"
        )


def _tensor_of(owner: str, output: Any, transform: Transform) -> Tensor:
    """Return the output if it is a tensor, else its ``logits``."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"{owner}: expected a model that returns a tensor, or an object or dictionary with logits, got "
            f"{type(output).__name__}; wrap it in a module that returns the tensor"
        )
    # Models of text that return objects have their classes last, those of images along axis 1.
    if transform in ("softmax", "probabilities") and found.dim() > 2:
        raise ValueError(
            f"{owner}: expected logits [N, classes] in {type(output).__name__} with transform={transform!r}, got "
            f"{tuple(found.shape)}, whose classes may be along any axis; wrap the model in a module that returns a "
            "tensor [N, classes, ...]"
        )
    return found


def as_inputs(owner: str, x: Inputs) -> tuple[Tensor, ...]:
    """Return the inputs of a model as a tuple."""
    inputs: tuple[Any, ...] = x if isinstance(x, tuple) and x else (x,)
    for each in inputs:
        if not isinstance(each, Tensor):
            raise TypeError(
                f"{owner}: expected a tensor, or a tuple of tensors for a model of several inputs, got "
                f"{type(each).__name__}"
            )
    return inputs


def _arguments(owner: str, x: Inputs | NamedInputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the inputs of a model: positional and by keyword."""
    if not isinstance(x, Mapping):
        return as_inputs(owner, x), {}
    named: dict[Any, Any] = dict(x)
    if not named:
        raise TypeError(f"{owner}: expected a dictionary of tensors by the names of the model's arguments, got none")
    for name, each in named.items():
        if not isinstance(name, str) or not isinstance(each, Tensor):
            raise TypeError(
                f"{owner}: expected a dictionary of tensors by the names of the model's arguments, got "
                f"{type(each).__name__} as {name!r}; leave out what is not a tensor"
            )
    return (), named


def _check(owner: str, model: torch.nn.Module, samples: int, transform: Transform, seed: int | None) -> Layers:
    """Check the arguments; return the model's dropout layers by path."""
    check_model(owner, model, "predict")
    check_whole(owner, "samples", samples, 2)
    check_choice(owner, "transform", transform, TRANSFORMS)
    check_seed(owner, seed)
    layers = dropout_layers(model)
    if not layers:
        left, not_random = out_of_reach(model), ", whose output is not random; call it in evaluation mode instead"
        raise ValueError(
            f"{owner}: expected a model with dropout layers, got {type(model).__name__} without any"
            + (f"; out of reach: {left}; put a dropout layer in its place" if left else not_random)
        )
    return layers
