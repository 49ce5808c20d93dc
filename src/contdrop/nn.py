"""Dropout layers. The formulas are in :mod:`contdrop.functional`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Proxy

from . import functional as F
from ._torch.checks import check_axes, check_choice, check_finite, check_generator, check_number, check_whole
from ._torch.private import DropoutBase
from .choices import (
    ACTIVATIONS,
    DROPOUT_ACTIVATIONS,
    INFERENCES,
    MASKS,
    Activation,
    DropoutActivation,
    Inference,
    Masks,
    Scale,
)
from .laws import Bernoulli, BuiltIn, Gaussian, Law, Uniform, training_factor


def _call_node(layer: torch.nn.Module, *inputs: Any) -> Tensor | None:
    """Return the torch.fx node that calls a layer, or None outside a trace or for the root module.

    torch.fx takes only the modules of torch.nn as leaves. It runs the forward of all others with proxies in place of
    tensors, which would fix whether a layer is training. With a node ``graph_module.eval()`` works.
    """
    # Not next(..., None), which the compiler of torch 2.6 does not follow.
    proxies = [value for value in inputs if isinstance(value, Proxy)]
    proxy = proxies[0] if proxies else None
    if proxy is None or proxy.tracer.root is layer:  # type: ignore[attr-defined]
        return None
    path = proxy.tracer.path_of_module(layer)  # type: ignore[attr-defined]
    return proxy.tracer.create_proxy("call_module", path, inputs, {})  # type: ignore[return-value]


def _refuse_script(layer: torch.nn.Module) -> None:
    """Raise an error in place of torch.jit.script, which calls this as ``__prepare_scriptable__``."""
    raise RuntimeError(f"{type(layer).__name__}: torch.jit.script is not supported; use torch.compile or torch.export")


class _LayerWithLaw(torch.nn.Module):
    """A layer with a law, which may be assigned at any time."""

    scale: Scale

    @property
    def law(self) -> Law:
        return self._law

    @law.setter
    def law(self, law: Law) -> None:
        training_factor(type(self).__name__, law, self.scale)
        if isinstance(law, BuiltIn):
            law.prepare_for_graphs()
        self._law = law

    __prepare_scriptable__ = _refuse_script


class Dropout(_LayerWithLaw, DropoutBase):
    """Dropout with any law; see :func:`contdrop.functional.dropout`.

    It is a ``_DropoutNd``, so code that searches for torch's dropout layers finds it. ``law`` may be assigned at any
    time, for example by a schedule.

    Args:
        law: Distribution of the mask values.
        inplace: Whether to write the result into the input, as torch.nn.Dropout does.
        shared_axes: Axes along which one mask value is shared.
        scale: "inverted" (torch's convention) or "paper". Use :func:`contdrop.swap_dropout` to put paper-scaled
            layers into torch.nn.TransformerEncoderLayer: its fused evaluation skips layers inserted by hand, and their
            factor E[m].
        activation: "relu" to apply a ReLU before the dropout, in the same pass.
        generator: CPU generator used only by this layer; torch's default generator if None.
    """

    _family: ClassVar[type[Law] | None] = None  # the law of a subclass, whose parameters are those of the layer

    def __init__(
        self,
        law: Law,
        *,
        inplace: bool = False,
        shared_axes: Sequence[int] = (),
        scale: Scale = "inverted",
        activation: DropoutActivation = None,
        generator: torch.Generator | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)  # its base class wants p, which is derived from the law here
        check_generator(type(self).__name__, generator)
        self.inplace = inplace
        check_choice(type(self).__name__, "activation", activation, DROPOUT_ACTIVATIONS)
        self.shared_axes = check_axes(type(self).__name__, shared_axes)
        self.scale: Scale = scale
        self.activation: DropoutActivation = activation
        self.generator = generator
        self.law = law

    @property
    def p(self) -> float:
        """Return r / (1 + r), the drop rate of a Bernoulli law with the same relative variance r.

        A model that passes ``dropout.p`` to an attention function gets noise of the same strength there.
        """
        if isinstance(self._law, Bernoulli):
            return _complement(self._law.keep)
        return equal_rate(self._law.relative_variance)

    @p.setter
    def p(self, p: float) -> None:
        raise AttributeError(f"{type(self).__name__}: p follows from the law, so it cannot be assigned; assign law")

    def forward(self, input: Tensor) -> Tensor:
        if type(input) is not Tensor and (node := _call_node(self, input)) is not None:
            return node
        return F.dropout(
            input,
            self._law,
            training=self.training,
            shared_axes=self.shared_axes,
            scale=self.scale,
            activation=self.activation,
            inplace=self.inplace,
            generator=self.generator,
        )

    def _law_repr(self) -> str:
        text = repr(self._law)
        return text.partition("(")[2][:-1] if type(self._law) is self._family else text

    def extra_repr(self) -> str:
        return _repr(self, self._law_repr(), "inplace", "shared_axes", "activation", "scale")


def _parameter_of_the_law(name: str) -> Any:
    """Return a property for a parameter of a layer's law; assigning it replaces the law."""

    def read(layer: Dropout) -> float:
        value: float = getattr(layer.law, name)
        return value

    def assign(layer: Dropout, value: float) -> None:
        law: Any = layer.law
        layer.law = dataclasses.replace(law, **{name: value})

    return property(read, assign, doc=f"The parameter {name} of the law; may be assigned.")


class BernoulliDropout(Dropout, torch.nn.Dropout):
    """Ordinary dropout; ``p`` is the drop rate, as in torch.nn.Dropout, and may be assigned.

    It is a subclass of torch.nn.Dropout, because libraries such as baal look for that class. All other arguments are
    those of :class:`Dropout`.

    Args:
        p: Probability of dropping a unit.
    """

    def __init__(
        self,
        p: float = 0.5,
        inplace: bool = False,
        *,
        shared_axes: Sequence[int] = (),
        scale: Scale = "inverted",
        activation: DropoutActivation = None,
        generator: torch.Generator | None = None,
    ) -> None:
        law = _bernoulli(p)
        super().__init__(
            law, inplace=inplace, shared_axes=shared_axes, scale=scale, activation=activation, generator=generator
        )

    @property
    def p(self) -> float:
        """Return the drop rate, 1 - keep."""
        return Dropout.p.fget(self)  # type: ignore[attr-defined, no-any-return]

    @p.setter
    def p(self, p: float) -> None:
        value = self._law.value if isinstance(self._law, Bernoulli) else 1.0
        self.law = dataclasses.replace(_bernoulli(p), value=value)

    def _law_repr(self) -> str:
        plain = isinstance(self._law, Bernoulli) and self._law.value == 1
        return f"p={self.p}" if plain else super()._law_repr()


class UniformDropout(Dropout):
    """Uniform dropout: mask values from U(low, high). ``low`` and ``high`` may be assigned.

    The other arguments are those of :class:`Dropout`.

    Args:
        low: Smallest mask value.
        high: Largest mask value.
    """

    _family = Uniform
    low: float = _parameter_of_the_law("low")
    high: float = _parameter_of_the_law("high")

    def __init__(
        self,
        low: float = 0.0,
        high: float = 1.0,
        *,
        inplace: bool = False,
        shared_axes: Sequence[int] = (),
        scale: Scale = "inverted",
        activation: DropoutActivation = None,
        generator: torch.Generator | None = None,
    ) -> None:
        law = Uniform(low, high)
        super().__init__(
            law, inplace=inplace, shared_axes=shared_axes, scale=scale, activation=activation, generator=generator
        )


class GaussianDropout(Dropout):
    """Gaussian dropout: mask values from N(mu, sigma^2) clipped to [low, high]. All four may be assigned.

    The other arguments are those of :class:`Dropout`.

    Args:
        sigma: Standard deviation before clipping.
        mu: Mean before clipping.
        low: Smallest mask value.
        high: Largest mask value.
    """

    _family = Gaussian
    sigma: float = _parameter_of_the_law("sigma")
    mu: float = _parameter_of_the_law("mu")
    low: float = _parameter_of_the_law("low")
    high: float = _parameter_of_the_law("high")

    def __init__(
        self,
        sigma: float = 0.3,
        *,
        mu: float = 0.5,
        low: float = 0.0,
        high: float = 1.0,
        inplace: bool = False,
        shared_axes: Sequence[int] = (),
        scale: Scale = "inverted",
        activation: DropoutActivation = None,
        generator: torch.Generator | None = None,
    ) -> None:
        law = Gaussian(mu=mu, sigma=sigma, low=low, high=high)
        super().__init__(
            law, inplace=inplace, shared_axes=shared_axes, scale=scale, activation=activation, generator=generator
        )


class AdaptiveDropout(torch.nn.Module):
    """Standout; see :func:`contdrop.functional.adaptive_dropout`. Called with activations and pre-activations."""

    def __init__(self, alpha: float = 1.0, beta: float = 0.0, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_generator(type(self).__name__, generator)
        self.alpha = check_number(type(self).__name__, "alpha", alpha)
        self.beta = check_number(type(self).__name__, "beta", beta)
        self.generator = generator

    def forward(self, input: Tensor, preactivation: Tensor) -> Tensor:
        if (node := _call_node(self, input, preactivation)) is not None:
            return node
        return F.adaptive_dropout(
            input, preactivation, self.alpha, self.beta, training=self.training, generator=self.generator
        )

    __prepare_scriptable__ = _refuse_script

    def extra_repr(self) -> str:
        return _repr(self, f"alpha={self.alpha}, beta={self.beta}")


class DropConnectLinear(_LayerWithLaw, torch.nn.Linear):
    """A linear layer with masked weights, and its activation; see :func:`contdrop.functional.dropconnect_linear`.

    Parameters are named and initialized as in torch.nn.Linear, so their state dicts are interchangeable.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        law: Law = Bernoulli(keep=0.5),
        masks: Masks = "example",
        scale: Scale = "inverted",
        inference: Inference = "sampled",
        samples: int = 1000,
        activation: Activation = None,
        mask_bias: bool = True,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        owner = type(self).__name__
        check_choice(owner, "masks", masks, MASKS)
        check_choice(owner, "inference", inference, INFERENCES)
        check_choice(owner, "activation", activation, ACTIVATIONS)
        check_generator(owner, generator)
        self.scale: Scale = scale
        self.law = law
        self.masks: Masks = masks
        self.inference: Inference = inference
        self.samples = check_whole(owner, "samples", samples, 1)
        self.activation: Activation = activation
        self.mask_bias = mask_bias
        self.generator = generator

    def forward(self, input: Tensor) -> Tensor:
        if (node := _call_node(self, input)) is not None:
            return node
        return F.dropconnect_linear(
            input,
            self.weight,
            self.bias,
            self._law,
            training=self.training,
            masks=self.masks,
            scale=self.scale,
            inference=self.inference,
            samples=self.samples,
            activation=self.activation,
            mask_bias=self.mask_bias,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, law={self.law!r}"
        evaluated = f"masks={self.masks!r}, inference={self.inference!r}, samples={self.samples}"
        return _repr(self, f"{sizes}, {evaluated}, activation={self.activation!r}", "mask_bias", "scale")


class FastDropoutLinear(_LayerWithLaw, torch.nn.Linear):
    """A linear layer that samples the effect of input dropout on its output; see
    :func:`contdrop.functional.fast_dropout_linear`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        law: Law,
        scale: Scale = "inverted",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        check_generator(type(self).__name__, generator)
        self.scale: Scale = scale
        self.law = law
        self.generator = generator

    def forward(self, input: Tensor) -> Tensor:
        if (node := _call_node(self, input)) is not None:
            return node
        return F.fast_dropout_linear(
            input,
            self.weight,
            self.bias,
            self._law,
            training=self.training,
            scale=self.scale,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, law={self.law!r}"
        return _repr(self, sizes, "scale")


_DEFAULTS = {"inplace": False, "shared_axes": (), "activation": None, "mask_bias": True, "scale": "inverted"}


def _repr(layer: Any, first: str, *options: str) -> str:
    """Join the first part of a layer's repr with the options that differ from their defaults."""
    values = {name: getattr(layer, name) for name in options}
    parts = [f"{name}={value!r}" for name, value in values.items() if value != _DEFAULTS[name]]
    if layer.generator is not None:
        parts.append(f"generator=torch.Generator().manual_seed({layer.generator.initial_seed()})")
    return ", ".join(filter(None, [first, *parts]))


def equal_rate(strength: float) -> float:
    """Return the drop rate of Bernoulli masks with noise strength r: r / (1 + r)."""
    return strength / (1 + strength) if math.isfinite(strength) else 1.0


def _bernoulli(p: float) -> Bernoulli:
    return Bernoulli(keep=1 - check_finite("BernoulliDropout", "p, the probability of dropping a unit", p, 0, 1))


def _complement(keep: float) -> float:
    """Return 1 - keep with the fewest digits that give keep back: 0.1 for 0.9, not 0.09999999999999998."""
    exact = 1 - keep
    for digits in range(1, 17):
        short = float(f"{exact:.{digits}g}")
        if 1 - short == keep:
            return short
    return exact
