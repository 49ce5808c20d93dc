"""Optimizers and schedulers of the recipes that torch.optim lacks.

All are torch's ``Optimizer`` or ``LRScheduler``; :mod:`contdrop.replication.recipes` has the settings. The schedulers
are stepped once per epoch, and leave the initial rate to the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, SupportsFloat, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.sgd import sgd

# Whose weights have a bound on their length: of the unit they lead to, or of the unit they come from.
Bounded = Literal["incoming", "outgoing"]
BOUNDED = get_args(Bounded)


class RampOptimizer(Optimizer):
    """Momentum that averages, and a bound on weights; see :class:`.recipes.Hinton` and :class:`.recipes.Authors`.

    With p the momentum and eps the rate, both of which a scheduler may change::

        v <- p v + (1 - p) eps gradient;  w <- w - v        if ``rate_in_velocity``
        v <- p v + (1 - p) gradient;      w <- w - eps v    otherwise

    Args:
        parameters: In the order of a network whose last weight is that of the output layer.
        lr: The rate.
        momentum: Above 0 and below 1.
        squared_length: Upper bound of the squared length of the weights that ``bounded`` names.
        bounded: "incoming": of each hidden unit, a row of its weight, so not those of the output layer; "outgoing": of
            each unit that a layer reads, a column, those that the output layer reads included.
        rate_in_velocity: Whether the velocity adds up gradients times the rate of their time, or gradients.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float,
        *,
        squared_length: float,
        bounded: Bounded,
        rate_in_velocity: bool,
    ) -> None:
        if not 0 < momentum < 1:
            raise ValueError(f"RampOptimizer: expected a momentum above 0 and below 1; got {momentum}")
        options = {"squared_length": squared_length, "bounded": bounded, "rate_in_velocity": rate_in_velocity}
        super().__init__(parameters, {"lr": lr, "momentum": momentum, **options})

    # Not by torch's own decorator for steps, which imports the compiler.
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._momentum_step(group)
        for weight, group in self._bounded():
            _shorten(weight, group)
        return loss

    def _momentum_step(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        rate, momentum = group["lr"], group["momentum"]
        within, outside = (rate, 1.0) if group["rate_in_velocity"] else (1.0, rate)
        # Fused: it goes over the weights once, and beside the matrix products of a small network on the CPU, passes
        # over memory are what a step costs.
        sgd(
            parameters,
            [parameter.grad for parameter in parameters],
            [self.state[parameter]["momentum_buffer"] for parameter in parameters],
            fused=True,
            weight_decay=0.0,
            momentum=momentum,
            lr=outside,
            dampening=1 - (1 - momentum) * within,
            nesterov=False,
            maximize=False,
        )

    def _bounded(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        weights = [(weight, group) for group in self.param_groups for weight in group["params"] if weight.dim() > 1]
        for number, (weight, group) in enumerate(weights, 1):
            if number < len(weights) or group["bounded"] == "outgoing":
                yield weight, group


def _shorten(weight: Tensor, group: dict[str, Any]) -> None:
    """Scale down the rows, or columns, that are longer than the max-norm bound."""
    axis, largest = BOUNDED.index(group["bounded"]), math.sqrt(group["squared_length"])
    others = tuple(other for other in range(weight.dim()) if other != axis)
    lengths = torch.linalg.vector_norm(weight, dim=others, keepdim=True)
    if lengths.max() > largest:
        weight.mul_((largest / lengths).clamp_(max=1))


class EpochTable(LRScheduler):
    """A rate and a momentum for each epoch; those of the last one hold on after it.

    Args:
        optimizer: Whose groups have a "momentum".
        factors: What the initial rate is multiplied by in each epoch.
        momenta: The momentum of each epoch.
    """

    def __init__(self, optimizer: Optimizer, factors: Sequence[float], momenta: Sequence[float]) -> None:
        self._table = list(zip(factors, momenta, strict=True))
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rates of this epoch, and set its momentum."""
        factor, momentum = self._table[min(self.last_epoch, len(self._table) - 1)]
        for group in self.optimizer.param_groups:
            group["momentum"] = momentum
        return [rate * factor for rate in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the table, which is as long as the run and known from the start."""
        state = super().state_dict()
        del state["_table"]
        return state


class AlternatingPlateau(ReduceLROnPlateau):
    """Lowers the rate when the validation loss does not fall, by several factors in turn.

    Args:
        optimizer: What is stepped.
        factors: Each below 1. What the rate is multiplied by at each plateau, in turn and then from the first again.
        patience: Number of epochs without a new lowest validation loss that make a plateau, at least 1.
    """

    def __init__(self, optimizer: Optimizer, factors: Sequence[float], patience: int) -> None:
        self.factors = tuple(factors)
        self.plateaus = 0
        # torch counts the epochs that are borne; any lower loss counts, and any lower rate is taken.
        super().__init__(
            optimizer, factor=self.factors[0], patience=patience - 1, threshold=0.0, threshold_mode="abs", eps=0.0
        )

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        before = [group["lr"] for group in self.optimizer.param_groups]
        super().step(metrics, epoch)
        if before != [group["lr"] for group in self.optimizer.param_groups]:
            self.plateaus += 1
            self.factor = self.factors[self.plateaus % len(self.factors)]
