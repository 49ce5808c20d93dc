"""How gradients change weights. Each optimiser is made by a recipe; see :mod:`contdrop.lab.recipes` for the settings.

They go over the weights once, by the fused kernels that torch.optim uses too: beside the matrix products of a small
network on the CPU, passes over memory are what a step costs.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import compatibility


class Optimiser(abc.ABC):
    """Changes the weights of one network, step by step.

    Each epoch is ``begin_epoch``, then for every batch ``backward`` and ``step``, then ``end_epoch``. All state is in
    the weights and in ``state_dict``, so a run that is loaded resumes bit for bit as if it had never stopped.

    Attributes:
        learning_rate: The current one.
    """

    learning_rate: float

    def __init__(self, network: nn.Module, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._parameters: list[Tensor] = list(network.parameters())

    @torch.no_grad()
    def step(self) -> None:
        """Uses up the gradients: afterwards every ``grad`` is None, and there is nothing left to clear."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "step() comes after backward()"
            gradients.append(parameter.grad)
            parameter.grad = None
        self._update(gradients)

    @abc.abstractmethod
    def _update(self, gradients: list[Tensor]) -> None: ...

    @abc.abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Sets the rates for an epoch, counted from 0."""

    @abc.abstractmethod
    def end_epoch(self, validation_loss: float) -> None: ...

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors (not copied), numbers, and lists of them: what :func:`.state.dumps` writes."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(parameter) for parameter in self._parameters]


class HintonOptimiser(Optimiser):
    """Momentum with a ramp, a decaying rate and a bound on the weights of hidden units; see :class:`.recipes.Hinton`.

    Args:
        network: Whose last weight is that of the output layer, which has no bound.
        learning_rates: The rate of each epoch.
        momenta: The momentum of each epoch.
        squared_length: Upper bound of the squared length of a hidden unit's incoming weights, a row of the weight.
    """

    def __init__(
        self, network: nn.Module, learning_rates: Sequence[float], momenta: Sequence[float], squared_length: float
    ) -> None:
        super().__init__(network, learning_rates[0])
        self._learning_rates = learning_rates
        self._momenta = momenta
        self._momentum = momenta[0]
        self._length = math.sqrt(squared_length)
        self._bounded = [parameter for parameter in self._parameters if parameter.dim() > 1][:-1]
        self._steps = self._zeros()  # minus v

    def begin_epoch(self, epoch: int) -> None:
        self.learning_rate, self._momentum = self._learning_rates[epoch], self._momenta[epoch]

    def _update(self, gradients: list[Tensor]) -> None:
        _momentum_step(
            self._parameters,
            gradients,
            self._steps,
            momentum=self._momentum,
            gain=(1 - self._momentum) * self.learning_rate,
            learning_rate=1.0,
        )
        for weight in self._bounded:
            lengths = torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.dim())), keepdim=True)
            if lengths.max() > self._length:
                weight.mul_((self._length / lengths).clamp_(max=1))

    def end_epoch(self, validation_loss: float) -> None:
        pass  # the schedule is all

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "learning_rate": self.learning_rate, "momentum": self._momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _copy(state["steps"], self._steps)
        self.learning_rate, self._momentum = state["learning_rate"], state["momentum"]


class PlateauOptimiser(Optimiser):
    """Momentum, and a rate that falls when the validation loss does not; see :class:`.recipes.Plateau`.

    Args:
        network: What is trained.
        learning_rate: The rate at first.
        momentum: In torch's convention: v <- momentum v + gradient; w <- w - rate v.
        factors: What the rate is multiplied by at each plateau, in turn and then from the first again.
        patience: Number of epochs without a new lowest validation loss that make a plateau.
    """

    def __init__(
        self, network: nn.Module, learning_rate: float, momentum: float, factors: Sequence[float], patience: int
    ) -> None:
        super().__init__(network, learning_rate)
        self._momentum = momentum
        self._factors = factors
        self._patience = patience
        self._lowest = math.inf
        self._epochs_since = 0
        self._plateaus = 0
        self._velocities = self._zeros()

    def begin_epoch(self, epoch: int) -> None:
        pass  # the rate follows from the epochs before

    def _update(self, gradients: list[Tensor]) -> None:
        _momentum_step(
            self._parameters,
            gradients,
            self._velocities,
            momentum=self._momentum,
            gain=1.0,
            learning_rate=self.learning_rate,
        )

    def end_epoch(self, validation_loss: float) -> None:
        if validation_loss < self._lowest:
            self._lowest, self._epochs_since = validation_loss, 0
            return
        self._epochs_since += 1
        if self._epochs_since == self._patience:
            self.learning_rate *= self._factors[self._plateaus % len(self._factors)]
            self._plateaus += 1
            self._epochs_since = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "velocities": self._velocities,
            "learning_rate": self.learning_rate,
            "lowest": self._lowest,
            "epochs_since": self._epochs_since,
            "plateaus": self._plateaus,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _copy(state["velocities"], self._velocities)
        self.learning_rate, self._lowest = state["learning_rate"], state["lowest"]
        self._epochs_since, self._plateaus = state["epochs_since"], state["plateaus"]


class AdamOptimiser(Optimiser):
    """Adam (Kingma and Ba, 2015) with a constant rate; see :class:`.recipes.Adam`."""

    def __init__(self, network: nn.Module, learning_rate: float, betas: tuple[float, float], epsilon: float) -> None:
        super().__init__(network, learning_rate)
        self._betas = betas
        self._epsilon = epsilon
        self._means = self._zeros()
        self._squares = self._zeros()
        self._count = torch.zeros(())

    def begin_epoch(self, epoch: int) -> None:
        pass

    def _update(self, gradients: list[Tensor]) -> None:
        self._count += 1
        (compatibility.fused_adam or _adam)(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            [self._count] * len(gradients),
            lr=self.learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def end_epoch(self, validation_loss: float) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"means": self._means, "squares": self._squares, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _copy(state["means"], self._means)
        _copy(state["squares"], self._squares)
        _copy([state["count"]], [self._count])


def _momentum_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    momentum: float,
    gain: float,
    learning_rate: float,
) -> None:
    """v <- momentum v + gain gradient; w <- w - learning_rate v."""
    (compatibility.fused_sgd or _sgd)(
        parameters,
        gradients,
        velocities,
        weight_decay=0.0,
        momentum=momentum,
        lr=learning_rate,
        dampening=1 - gain,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _copy(saved: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    shapes, expected = [tuple(tensor.shape) for tensor in saved], [tuple(tensor.shape) for tensor in tensors]
    if shapes != expected:
        raise ValueError(f"the state of another network's optimiser: expected shapes {expected}, got {shapes}")
    for source, target in zip(saved, tensors):
        target.copy_(source)


# What torch's fused kernels do, for the arguments that are used above and a version of torch without them.


def _sgd(
    parameters: list[Tensor],
    gradients: list[Tensor],
    velocities: list[Tensor],
    *,
    momentum: float,
    lr: float,
    dampening: float,
    **_: Any,
) -> None:
    for parameter, gradient, velocity in zip(parameters, gradients, velocities):
        velocity.mul_(momentum).add_(gradient, alpha=1 - dampening)
        parameter.sub_(velocity, alpha=lr)


def _adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    _largest: list[Tensor],
    counts: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    **_: Any,
) -> None:
    for parameter, gradient, mean, square, count in zip(parameters, gradients, means, squares, counts):
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        steps = count.item()  # powers in float64: 1 - 0.999**n loses five digits in float32
        root = (square / (1 - beta2**steps)).sqrt_().add_(eps)
        parameter.sub_(mean / (1 - beta1**steps) / root, alpha=lr)
