"""How a network is trained: initial weights, scaling of masks, and the optimiser with its schedule.

Schedules depend on the fraction of the run that is over, so a run of few epochs goes through all of it.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from ..choices import SCALES, Scale
from ..functional import check_choice
from .configuration import Configuration
from .initialisation import Glorot as Glorot
from .initialisation import Initialisation as Initialisation
from .initialisation import Normal as Normal
from .optimisers import BOUNDED, AdamOptimiser, Bounded, PlateauOptimiser, RampOptimiser
from .optimisers import Optimiser as Optimiser


@dataclass(frozen=True, kw_only=True)
class Recipe(Configuration, abc.ABC):
    """What all recipes have.

    Attributes:
        batch_size: Examples per step.
        initialisation: Weights at the start.
        scale: "paper" or "inverted": how masks are scaled; see :mod:`contdrop.lab.methods`.
        input_keep: Probability of keeping a pixel. The paper says nothing of it; Hinton et al. report results with and
            without, and the authors' MNIST code has 0.8.
        whole_inputs: Names of the methods that see all pixels whatever ``input_keep`` is.
        shuffle: Whether the images come in a new order in every epoch, or always in that of the data set.
    """

    batch_size: int = 100
    initialisation: Initialisation = field(default_factory=Normal)
    scale: Scale = "paper"
    input_keep: float = 1.0
    whole_inputs: tuple[str, ...] = ()
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.scale not in SCALES or not 0 < self.input_keep <= 1:
            raise ValueError(
                f"{type(self).__name__}: expected batch_size >= 1, scale to be one of {', '.join(SCALES)}, and "
                f"0 < input_keep <= 1; got {self.batch_size}, {self.scale!r} and {self.input_keep}"
            )

    def input_keep_of(self, method: str) -> float:
        """The probability of keeping a pixel, with a method of that name."""
        return 1.0 if method in self.whole_inputs else self.input_keep

    def initialise(self, network: nn.Module, generator: torch.Generator) -> None:
        """Sets all parameters, to the same numbers for networks that differ in method only."""
        self.initialisation.apply(network, generator)

    @abc.abstractmethod
    def optimiser(self, network: nn.Module, epochs: int) -> Optimiser:
        """An optimiser for a run of so many epochs."""


@dataclass(frozen=True, kw_only=True)
class Hinton(Recipe):
    """The recipe of Hinton et al. (2012) for MNIST, compressible to any number of epochs.

    With t an epoch of the original run: ``original_epochs`` times the fraction of this run that is over::

        v <- p_t v - (1 - p_t) eps_t gradient         eps_t = learning_rate * decay^t
        w <- w + v                                    p_t rises linearly from the first to the second of ``momentum``
                                                      until t = ramp_epochs, and stays there

    After each step the incoming weights of a hidden unit are scaled down to ``squared_length`` where they exceed it.
    The bound and the rate are meant for masks that are not rescaled, so ``scale`` is "paper".

    Attributes:
        learning_rate: eps_0. The original is 10, with which ReLU units do not learn.
        decay: Factor of the rate per original epoch.
        momentum: At first, and from ``ramp_epochs`` on.
        ramp_epochs: Original epochs in which the momentum rises.
        original_epochs: How far into the original schedule a run goes. With 3000, all of it, a run of 3000 epochs is
            the original exactly, and any run spends four fifths of its epochs below a third of the rate.
        squared_length: Bound of the squared length of a hidden unit's incoming weights.
    """

    kind: ClassVar[str] = "hinton"

    learning_rate: float
    decay: float = 0.998
    momentum: tuple[float, float] = (0.5, 0.99)
    ramp_epochs: int = 500
    original_epochs: int = 3000
    squared_length: float = 15.0

    def optimiser(self, network: nn.Module, epochs: int) -> Optimiser:
        original = [self.original_epochs * epoch / epochs for epoch in range(epochs)]
        return RampOptimiser(
            network,
            [self.learning_rate * self.decay**t for t in original],
            [_ramp(*self.momentum, t / self.ramp_epochs) for t in original],
            self.squared_length,
            bounded="incoming",
            rate_in_velocity=True,
        )


@dataclass(frozen=True, kw_only=True)
class Authors(Recipe):
    """What the authors' MNIST code does (Theano; read, not run), compressible to any number of epochs.

    With t an epoch of the original run, counted from 1: one more than ``original_epochs`` times the fraction of this
    run that is over before the epoch::

        v <- p_t v + (1 - p_t) gradient               eps_t = learning_rate * decay^t
        w <- w - eps_t v                              p_t rises linearly from the first to the second of ``momentum``
                                                      until t = ramp_epochs, and stays there

    Inputs are dropped with every method but none, mini-batches come in a fixed order, the output layer starts at zero.
    Give ``Glorot(gain=4.0, zero_output=True)`` for sigmoid units.

    That code keeps the lowest test error of any epoch; here the last epoch counts, and the report shows the lowest
    beside it.

    Attributes:
        learning_rate: eps_0; the first epoch has eps_1.
        decay: Factor of the rate per original epoch.
        momentum: At first, and from ``ramp_epochs`` on.
        ramp_epochs: Original epochs in which the momentum rises.
        original_epochs: How far into the original schedule a run goes.
        squared_length: Bound of the squared length of weights.
        bounded: Which weights: "outgoing" ones as in that code, the output layer's included, or the "incoming" ones of
            hidden units, which Hinton et al. bound.
    """

    kind: ClassVar[str] = "authors"

    initialisation: Initialisation = field(default_factory=lambda: Glorot(zero_output=True))
    input_keep: float = 0.8
    whole_inputs: tuple[str, ...] = ("none",)
    shuffle: bool = False
    learning_rate: float = 1.0
    decay: float = 0.998
    momentum: tuple[float, float] = (0.5, 0.99)
    ramp_epochs: int = 500
    original_epochs: int = 3000
    squared_length: float = 15.0
    bounded: Bounded = "outgoing"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Authors", "bounded", self.bounded, BOUNDED)

    def optimiser(self, network: nn.Module, epochs: int) -> Optimiser:
        original = [1 + self.original_epochs * epoch / epochs for epoch in range(epochs)]
        return RampOptimiser(
            network,
            [self.learning_rate * self.decay**t for t in original],
            [_ramp(*self.momentum, t / self.ramp_epochs) for t in original],
            self.squared_length,
            bounded=self.bounded,
            rate_in_velocity=False,
        )


def _ramp(first: float, last: float, risen: float) -> float:
    risen = min(risen, 1.0)
    return risen * last + (1 - risen) * first


@dataclass(frozen=True, kw_only=True)
class Plateau(Recipe):
    """Stochastic gradient descent with momentum, and a rate that falls when the validation loss reaches a plateau.

    The paper: "an initial learning rate of 0.01", decayed by hand "by a multiplier (0.5 or 0.1) when the loss function
    of the validation error reaches a plateau". Here a plateau is ``patience`` of the run without a new lowest
    validation loss, at least two epochs, for one is noise; the rate is then multiplied by 0.5, next time by 0.1, and
    so on in turn. Wan et al. (from memory, unchecked) name factors of the initial rate, 0.5, 0.1, 0.05, 0.01 and so on;
    if that is meant, ``factors=(0.5, 0.2)`` does it. The paper gives neither momentum nor batch size; both are those of
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

    def optimiser(self, network: nn.Module, epochs: int) -> Optimiser:
        patience = max(2, round(self.patience * epochs))
        return PlateauOptimiser(network, self.learning_rate, self.momentum, self.factors, patience)


@dataclass(frozen=True, kw_only=True)
class Adam(Recipe):
    """Adam at a constant rate, and masks scaled to mean one: for small networks that need to learn quickly."""

    kind: ClassVar[str] = "adam"

    initialisation: Initialisation = field(default_factory=Glorot)
    scale: Scale = "inverted"
    learning_rate: float = 0.005
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def optimiser(self, network: nn.Module, epochs: int) -> Optimiser:
        return AdamOptimiser(network, self.learning_rate, self.betas, self.epsilon)
