"""Who competes: contdrop's layers, what one would write in plain torch instead, and other libraries' dropout."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import contdrop as cd

from .results import BOTH, FORWARD
from .timing import Call

TensorFunction = Callable[[Tensor], Tensor]

NN_DROPOUT = "nn.Dropout(0.5)"
PRODUCT = "x * w"
TORCH_GAUSSIAN = "torch Gaussian(0.3)"
TORCH_UNIFORM = "torch uniform"
COMPILED = "torch.compile Gaussian(0.3)"
KERAS = "Keras GaussianDropout"
JAX_GAUSSIAN = "JAX Gaussian(0.3), jit"
JAX_BERNOULLI = "JAX Bernoulli(0.5), jit"

LAWS: dict[str, cd.Law] = {
    "contdrop Bernoulli(0.5)": cd.Bernoulli(keep=0.5),
    "contdrop Bernoulli(0.3)": cd.Bernoulli(keep=0.3),
    "contdrop Uniform": cd.Uniform(),
    "contdrop Gaussian(0.3)": cd.Gaussian(sigma=0.3),
    "contdrop Gaussian(0.2)": cd.Gaussian(sigma=0.2),
}
BERNOULLI, BIASED, UNIFORM, GAUSSIAN, NARROW = LAWS

# What makes the same kind of mask in plain torch.
COUNTERPARTS = {
    BERNOULLI: NN_DROPOUT,
    BIASED: NN_DROPOUT,
    UNIFORM: TORCH_UNIFORM,
    GAUSSIAN: TORCH_GAUSSIAN,
    NARROW: TORCH_GAUSSIAN,
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tensors of one setting, which all contestants share."""

    x: Tensor
    gradient: Tensor
    factor: Tensor

    @staticmethod
    def of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Inputs:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        return Inputs(x, torch.ones(shape, dtype=dtype), torch.randn(shape, generator=generator).to(dtype))


class Contestant(abc.ABC):
    """Something that multiplies a tensor by a random mask."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def passes(self, inputs: Inputs) -> dict[str, Call]:
        """What to time: the forward pass alone, and forward and backward together."""


class InTorch(Contestant):
    """A function of torch tensors, made anew for every setting."""

    def __init__(self, name: str, make: Callable[[Inputs], TensorFunction]) -> None:
        super().__init__(name)
        self.make = make

    def passes(self, inputs: Inputs) -> dict[str, Call]:
        function, x, gradient = self.make(inputs), inputs.x, inputs.gradient
        return {
            FORWARD: lambda: function(x),
            BOTH: lambda: torch.autograd.grad(function(x), x, gradient),
        }


class InJax(Contestant):
    """A jitted JAX function of a key and an array. Forward and backward are compiled as one, as in a training step."""

    def __init__(self, name: str, jax: Any, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name)
        self.jax = jax
        self.function = function

    def passes(self, inputs: Inputs) -> dict[str, Call]:
        jax = self.jax
        x, gradient = (jax.numpy.asarray(tensor.detach().numpy()) for tensor in (inputs.x, inputs.gradient))
        key = jax.random.key(0)

        def forward(key: Any, x: Any) -> Any:
            key, mine = jax.random.split(key)
            return key, self.function(mine, x)

        def both(key: Any, x: Any, gradient: Any) -> Any:
            key, mine = jax.random.split(key)
            y, pull_back = jax.vjp(lambda x: self.function(mine, x), x)
            return key, y, pull_back(gradient)

        def repeated(compiled: Any, *arrays: Any) -> Call:
            state = key

            def call() -> None:
                nonlocal state
                state, *results = compiled(state, *arrays)
                jax.block_until_ready(results)

            return call

        return {FORWARD: repeated(jax.jit(forward), x), BOTH: repeated(jax.jit(both), x, gradient)}


def layer(name: str) -> InTorch:
    """The layer of contdrop with a law of ``LAWS``."""
    return InTorch(name, lambda _: cd.Dropout(LAWS[name]))


def nn_dropout() -> InTorch:
    return InTorch(NN_DROPOUT, lambda _: torch.nn.Dropout(0.5))


def torch_gaussian(x: Tensor) -> Tensor:
    return x * torch.randn_like(x).mul_(0.3).add_(0.5).clamp_(0, 1).mul_(2)


def torch_uniform(x: Tensor) -> Tensor:
    return x * torch.rand_like(x).mul_(2)


def product(inputs: Inputs) -> TensorFunction:
    return lambda x: x * inputs.factor


def _compile(_: Inputs) -> TensorFunction:
    torch.compiler.reset()  # else torch gives up compiling after a number of shapes
    compiled: TensorFunction = torch.compile(torch_gaussian, dynamic=False)
    return compiled


def elementwise(compiled: bool) -> tuple[list[Contestant], dict[str, str]]:
    """All that can compete here, and why the others cannot."""
    contestants: list[Contestant] = [
        *map(layer, LAWS),
        nn_dropout(),
        InTorch(TORCH_GAUSSIAN, lambda _: torch_gaussian),
        InTorch(TORCH_UNIFORM, lambda _: torch_uniform),
        InTorch(PRODUCT, product),
    ]
    left_out = {}
    for name, find in (("torch.compile", _compiler if compiled else _no_compiler), ("Keras", _keras), ("JAX", _jax)):
        try:
            contestants += find()
        except _LeftOutError as reason:
            left_out[name] = str(reason)
    return contestants, left_out


class _LeftOutError(Exception):
    """Says why a contestant is left out."""


def _compiler() -> list[Contestant]:
    # Lest a pool of compiling processes run beside the measurements. Read when the compiler is loaded, at first use.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    contestant = InTorch(COMPILED, _compile)
    try:
        for call in contestant.passes(Inputs.of((10,))).values():
            call()
    except Exception as error:  # a compiler can fail in any way, and the rest can do without it
        raise _LeftOutError(f"does not work here ({type(error).__name__})") from error
    return [contestant]


def _no_compiler() -> list[Contestant]:
    raise _LeftOutError("not asked for (--compiled)")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _LeftOutError("not installed") from error


def _keras() -> list[Contestant]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = _import("keras")
    if (name := keras.backend.backend()) != "torch":
        raise _LeftOutError(f"runs on {name} here; KERAS_BACKEND=torch compares it")
    strength = LAWS[GAUSSIAN].relative_variance
    dropout = keras.layers.GaussianDropout(strength / (1 + strength))  # noise as strong as contdrop's
    return [InTorch(KERAS, lambda _: lambda x: dropout(x, training=True))]


def _jax() -> list[Contestant]:
    jax = _import("jax")
    jnp = jax.numpy

    def gaussian(key: Any, x: Any) -> Any:
        return x * jnp.clip(0.5 + 0.3 * jax.random.normal(key, x.shape, x.dtype), 0, 1) * 2

    def bernoulli(key: Any, x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0)

    return [InJax(JAX_GAUSSIAN, jax, gaussian), InJax(JAX_BERNOULLI, jax, bernoulli)]
