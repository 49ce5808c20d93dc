"""Recipes for training: the optimizer, its schedule and the batch size, as settings of a study.

Schedules depend on the fraction of the run that is over, so a run of few epochs goes through all of it. The optimizers
and schedulers that torch lacks come first; the schedulers are stepped once per epoch.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, SupportsFloat, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.sgd import sgd

from .._torch.checks import check_choice
from ..lab.study.study import Configuration

# Whose weights have a bound on their length: of the unit they lead to, or of the unit they come from.
Bounded = Literal["incoming", "outgoing"]
BOUNDED = get_args(Bounded)


class RampOptimizer(Optimizer):
    """Momentum that averages, and a bound on weights; see :class:`Hinton` and :class:`Authors`.

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
        self._shorten()
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

    def _shorten(self) -> None:
        """Scale down the rows, or columns, that are longer than the max-norm bound."""
        weights = [(weight, group) for group in self.param_groups for weight in group["params"] if weight.dim() > 1]
        for number, (weight, group) in enumerate(weights, 1):
            if number == len(weights) and group["bounded"] == "incoming":
                break
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


@dataclass(frozen=True, kw_only=True)
class Recipe(Configuration, abc.ABC):
    """Base class of recipes."""

    batch_size: int = 100

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"{type(self).__name__}: expected batch_size >= 1; got {self.batch_size}")

    @abc.abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Build an optimizer at the initial rate."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of a :class:`.study.Study` that the recipe decides, by name."""
        return {"optimizer": self.optimizer, "scheduler": None, "schedule_by": "epoch", "batch_size": self.batch_size}


@dataclass(frozen=True, kw_only=True)
class ScheduledRecipe(Recipe):
    """A recipe whose rate changes from epoch to epoch, or from step to step."""

    schedule_by: ClassVar[Literal["epoch", "step"]] = "epoch"

    @abc.abstractmethod
    def scheduler(self, optimizer: Optimizer, total: int, /) -> LRScheduler:
        """Build a scheduler for a run of ``total`` epochs, or steps."""

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "scheduler": self.scheduler, "schedule_by": self.schedule_by}


@dataclass(frozen=True, kw_only=True)
class _Ramp(ScheduledRecipe):
    """Base class of both MNIST recipes.

    Attributes:
        learning_rate: eps_0.
        decay: Factor of the rate per original epoch.
        momentum: At first, and from ``ramp_epochs`` on.
        ramp_epochs: Original epochs in which the momentum rises.
        original_epochs: How far into the original schedule a run goes.
        squared_length: Bound of the squared length of weights.
    """

    learning_rate: float
    decay: float = 0.998
    momentum: tuple[float, float] = (0.5, 0.99)
    ramp_epochs: int = 500
    original_epochs: int = 3000
    squared_length: float = 15.0
    rate_in_velocity: ClassVar[bool]
    first_epoch: ClassVar[int]  # from which epochs of the original run are counted

    def optimizer(self, model: nn.Module) -> Optimizer:
        return RampOptimizer(
            model.parameters(),
            self.learning_rate,
            self.momentum[0],
            squared_length=self.squared_length,
            bounded=self._bounded,
            rate_in_velocity=self.rate_in_velocity,
        )

    @property
    def _bounded(self) -> Bounded:
        return "incoming"

    def scheduler(self, optimizer: Optimizer, epochs: int) -> LRScheduler:
        original = [self.first_epoch + self.original_epochs * epoch / epochs for epoch in range(epochs)]
        risen = [min(t / self.ramp_epochs, 1.0) for t in original]
        first, last = self.momentum
        momenta = [share * last + (1 - share) * first for share in risen]
        return EpochTable(optimizer, [self.decay**t for t in original], momenta)


@dataclass(frozen=True, kw_only=True)
class Hinton(_Ramp):
    """The recipe of Hinton et al. (2012) for MNIST, compressible to any number of epochs.

    With t an epoch of the original run: ``original_epochs`` times the fraction of this run that is over::

        v <- p_t v - (1 - p_t) eps_t gradient         eps_t = learning_rate * decay^t
        w <- w + v                                    p_t rises linearly from the first to the second of ``momentum``
                                                      until t = ramp_epochs, and stays there

    After each step the incoming weights of a hidden unit are scaled down to ``squared_length`` where they exceed it.
    The bound and the rate are meant for masks that are not rescaled: ``scale="paper"``.

    Attributes:
        learning_rate: eps_0. The original is 10, with which ReLU units do not learn.
        original_epochs: With 3000, all of it, a run of 3000 epochs is the original exactly, and any run spends four
            fifths of its epochs below a third of the rate.
        squared_length: Of a hidden unit's incoming weights.
    """

    kind: ClassVar[str] = "hinton"
    rate_in_velocity = True
    first_epoch = 0


@dataclass(frozen=True, kw_only=True)
class Authors(_Ramp):
    """The recipe of the authors' MNIST code (Theano; read, not run), compressible to any number of epochs.

    With t an epoch of the original run, counted from 1: one more than ``original_epochs`` times the fraction of this
    run that is over before the epoch::

        v <- p_t v + (1 - p_t) gradient               eps_t = learning_rate * decay^t
        w <- w - eps_t v                              p_t rises linearly from the first to the second of ``momentum``
                                                      until t = ramp_epochs, and stays there

    In that code inputs are dropped with every method but none, mini-batches come in a fixed order, and the output layer
    starts at zero: see the studies in :mod:`.studies.mnist_studies`. It keeps the lowest test error of any epoch; here
    the last epoch counts, and the report shows the lowest beside it.

    Attributes:
        learning_rate: eps_0; the first epoch has eps_1.
        bounded: Which weights: "outgoing" ones as in that code, the output layer's included, or the "incoming" ones of
            hidden units, which Hinton et al. bound.
    """

    kind: ClassVar[str] = "authors"
    rate_in_velocity = False
    first_epoch = 1

    learning_rate: float = 1.0
    bounded: Bounded = "outgoing"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Authors", "bounded", self.bounded, BOUNDED)

    @property
    def _bounded(self) -> Bounded:
        return self.bounded


@dataclass(frozen=True, kw_only=True)
class Plateau(ScheduledRecipe):
    """Stochastic gradient descent with momentum, and a rate that falls when the validation loss reaches a plateau.

    The paper: "an initial learning rate of 0.01", decayed by hand "by a multiplier (0.5 or 0.1) when the loss function
    of the validation error reaches a plateau". Here a plateau is ``patience`` of the run without a new lowest
    validation loss, at least two epochs, for one is noise; the rate is then multiplied by 0.5, next time by 0.1, and
    so on in turn. If factors of the initial rate are meant, 0.5, 0.1, 0.05, 0.01 and so on, ``factors=(0.5, 0.2)`` does
    it. The paper gives neither momentum nor batch size; both are those of
    Caffe's own MNIST example, which has the same rate.

    Attributes:
        learning_rate: The rate at first.
        momentum: In torch's convention: v <- momentum v + gradient; w <- w - rate v.
        factors: What the rate is multiplied by at each plateau, in turn.
        patience: Fraction of the run.
    """

    kind: ClassVar[str] = "plateau"

    batch_size: int = 64
    learning_rate: float = 0.01
    momentum: float = 0.9
    factors: tuple[float, ...] = (0.5, 0.1)
    patience: float = 0.1

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), self.learning_rate, momentum=self.momentum, fused=True)

    def scheduler(self, optimizer: Optimizer, epochs: int) -> LRScheduler:
        return AlternatingPlateau(optimizer, self.factors, max(2, round(self.patience * epochs)))


@dataclass(frozen=True, kw_only=True)
class LayeredPlateau(Plateau):
    """A :class:`Plateau` with weight decay by layer; biases have twice the rate and no weight decay.

    The defaults are those of SVHN and NORB: cuda-convnet's for the layers of its network, and none for the paper's own.

    Attributes:
        decay: Of a layer's weights, by the layer's name; others have none.
    """

    kind: ClassVar[str] = "layered-plateau"

    batch_size: int = 128
    decay: tuple[tuple[str, float], ...] = (("local3", 4e-3), ("local4", 4e-3), ("output", 1e-2))

    def optimizer(self, model: nn.Module) -> Optimizer:
        return _caffe_sgd(self, model, lambda layers: sum(each for name, each in self.decay if name in layers))


def _caffe_sgd(
    recipe: LayeredPlateau | Steps, model: nn.Module, decay: Callable[[list[str]], float]
) -> torch.optim.SGD:
    """Build an optimizer with weight decay by the names of layers, and twice the rate for biases.

    As Caffe's networks and cuda-convnet's have it. Parameters that are frozen are left out.
    """
    weights: dict[float, list[nn.Parameter]] = {}
    biases = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dim() > 1:
            weights.setdefault(decay(name.split(".")), []).append(parameter)
        elif parameter.requires_grad:
            biases.append(parameter)
    groups: list[dict[str, Any]] = [{"params": each, "weight_decay": amount} for amount, each in weights.items()]
    groups.append({"params": biases, "lr": 2 * recipe.learning_rate})
    return torch.optim.SGD(groups, recipe.learning_rate, momentum=recipe.momentum, fused=True)


@dataclass(frozen=True, kw_only=True)
class Adam(Recipe):
    """Adam (Kingma and Ba, 2015) at a constant rate: for small networks that need to learn quickly."""

    kind: ClassVar[str] = "adam"

    learning_rate: float = 0.005
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), self.learning_rate, self.betas, self.epsilon, fused=True)


@dataclass(frozen=True, kw_only=True)
class AdamCosine(Adam, ScheduledRecipe):
    """Adam whose rate falls to zero along half a cosine (Loshchilov and Hutter, 2017), step by step."""

    kind: ClassVar[str] = "adam-cosine"
    schedule_by = "step"

    learning_rate: float = 0.001

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


@dataclass(frozen=True, kw_only=True)
class Steps(ScheduledRecipe):
    """Stochastic gradient descent as a Caffe solver has it: a rate that falls by a factor at equal distances.

    The defaults are the paper's fine-tuning on CIFAR-10: 10 000 iterations at 0.01, a tenth of that after every 3000.
    Biases have twice the rate and no weight decay.

    Attributes:
        learning_rate: Of weights, at first.
        momentum: Of the mean over past gradients.
        weight_decay: Of weights; that of the original network.
        factor: What the rate is multiplied by.
        every: After which part of the run, again and again.
    """

    kind: ClassVar[str] = "steps"
    schedule_by = "step"

    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    factor: float = 0.1
    every: float = 0.3
    batch_size: int = 128

    def optimizer(self, model: nn.Module) -> Optimizer:
        return _caffe_sgd(self, model, lambda layers: self.weight_decay)

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        length = max(1, round(self.every * steps))
        return torch.optim.lr_scheduler.StepLR(optimizer, length, self.factor)
