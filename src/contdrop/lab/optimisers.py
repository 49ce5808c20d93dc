"""How gradients change weights. Each optimiser is made by a recipe; see :mod:`contdrop.lab.recipes` for the settings.

The steps are those of torch.optim, fused: they go over the weights once, and beside the matrix products of a small
network on the CPU, passes over memory are what a step costs. They are called as functions, since the state of an
:class:`Optimiser` is its own, and the first step of a ``torch.optim.Optimizer`` imports the compiler.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

# Whose weights have a bound on their length: of the unit they lead to, or of the unit they come from.
Bounded = Literal["incoming", "outgoing"]
BOUNDED = get_args(Bounded)


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


class RampOptimiser(Optimiser):
    """Momentum and a rate of its own for each epoch, and a bound on weights; see :class:`.recipes.Hinton` and
    :class:`.recipes.Authors`.

    Args:
        network: Whose last weight is that of the output layer.
        learning_rates: The rate of each epoch.
        momenta: The momentum of each epoch.
        squared_length: Upper bound of the squared length of the weights that ``bounded`` names.
        bounded: "incoming": of each hidden unit, a row of its weight, so not those of the output layer; "outgoing": of
            each unit that a layer reads, a column, those that the output layer reads included.
        rate_in_velocity: Whether the velocity adds up gradients times the rate of their time, or gradients.
    """

    def __init__(
        self,
        network: nn.Module,
        learning_rates: Sequence[float],
        momenta: Sequence[float],
        squared_length: float,
        *,
        bounded: Bounded,
        rate_in_velocity: bool,
    ) -> None:
        super().__init__(network, learning_rates[0])
        self._learning_rates = learning_rates
        self._momenta = momenta
        self._momentum = momenta[0]
        self._rate_in_velocity = rate_in_velocity
        self._length = math.sqrt(squared_length)
        weights = [parameter for parameter in self._parameters if parameter.dim() > 1]
        self._bounded = weights[:-1] if bounded == "incoming" else weights
        self._axis = 0 if bounded == "incoming" else 1
        self._steps = self._zeros()  # minus v

    def begin_epoch(self, epoch: int) -> None:
        self.learning_rate, self._momentum = self._learning_rates[epoch], self._momenta[epoch]

    def _update(self, gradients: list[Tensor]) -> None:
        within, outside = (self.learning_rate, 1.0) if self._rate_in_velocity else (1.0, self.learning_rate)
        _momentum_step(
            self._parameters,
            gradients,
            self._steps,
            momentum=self._momentum,
            gain=(1 - self._momentum) * within,
            learning_rate=outside,
        )
        for weight in self._bounded:
            others = tuple(axis for axis in range(weight.dim()) if axis != self._axis)
            lengths = torch.linalg.vector_norm(weight, dim=others, keepdim=True)
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
        self._counts = [torch.zeros(()) for _ in self._parameters]

    def begin_epoch(self, epoch: int) -> None:
        pass

    def _update(self, gradients: list[Tensor]) -> None:
        adam(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._counts,
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=self._epsilon,
            maximize=False,
        )

    def end_epoch(self, validation_loss: float) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"means": self._means, "squares": self._squares, "count": self._counts[0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _copy(state["means"], self._means)
        _copy(state["squares"], self._squares)
        _copy([state["count"]] * len(self._counts), self._counts)


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
    sgd(
        parameters,
        gradients,
        list(velocities),
        fused=True,
        weight_decay=0.0,
        momentum=momentum,
        lr=learning_rate,
        dampening=1 - gain,
        nesterov=False,
        maximize=False,
    )


def _copy(saved: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    shapes, expected = [tuple(tensor.shape) for tensor in saved], [tuple(tensor.shape) for tensor in tensors]
    if shapes != expected:
        raise ValueError(f"the state of another network's optimiser: expected shapes {expected}, got {shapes}")
    for source, target in zip(saved, tensors):
        target.copy_(source)
