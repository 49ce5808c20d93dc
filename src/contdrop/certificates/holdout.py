"""Holdout certificate: exact bounds on the error of a network with dropout, from examples kept aside."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .._torch.checks import check_choice, check_counts, check_module, check_number
from ..choices import MIXTURE_MASKS, MixtureMasks
from ..surgery.dropout_layers import Layers, dropout_layers, dropout_on, seeded
from ..theory import bounds
from .independence import check_masks, check_separate

AT_ONCE = 2000  # examples evaluated at a time
_PARTS = 3  # bounds of a certificate: member, mixture, mean network


@dataclasses.dataclass(frozen=True)
class Bound:
    """Errors counted on n examples, and an upper bound on the error probability.

    Attributes:
        errors: Number of errors.
        n: Number of examples.
        bound: Upper bound on the error probability.
    """

    errors: int
    n: int
    bound: float

    @property
    def error(self) -> float:
        """The share of errors."""
        return self.errors / self.n


@dataclasses.dataclass(frozen=True)
class HoldoutCertificate:
    """Three bounds that hold together with probability 1 - delta.

    Attributes:
        member: Bound for one network with a random mask.
        mixture: Bound for the averaged class probabilities of ``members`` masks, drawn anew for each example, as
            :func:`contdrop.mc_predict` draws them, or the same for all.
        mean: Bound for the network in evaluation mode.
        brier: Brier scores of mixture and members on these examples; ``mixture = members - diversity`` exactly.
        members: Masks per mixture.
        delta: Probability that one of the three fails.
    """

    member: Bound
    mixture: Bound
    mean: Bound
    brier: bounds.Brier
    members: int
    delta: float


def holdout_certificate(
    model: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    delta: float = 0.05,
    *,
    members: int = 50,
    masks: MixtureMasks = "fresh",
    comparisons: int = 1,
    batch_size: int = AT_ONCE,
    seed: int = 0,
) -> HoldoutCertificate:
    """Bound the error of a classifier with dropout exactly, from examples kept aside.

    Each example meets a mask of its own, drawn without regard to the data, so the errors of random members are
    independent trials, and the bound of Clopper and Pearson is exact; likewise for mixtures and for the mean network.
    The three hold together: each has delta / (3 comparisons).

    Conditions: the examples are independent, of the distribution that the bound is to hold for, and were used neither
    to train the model nor to choose it, its law or its rate. A model is refused if examples share a mask along any axis
    where it is drawn, or if its output for one example depends on others of the batch, as with batch normalisation
    without running statistics. Noise that does not come from a dropout layer is not seen.

    Args:
        model: Returns logits [N, classes], treats each example by itself, and has dropout layers that draw a mask for
            every example.
        x: Inputs [N, ...].
        y: Classes [N].
        delta: Probability that the certificate fails.
        members: Masks per mixture, at least 2.
        masks: "fresh" mixes masks drawn anew for each example, as :func:`contdrop.mc_predict` does; "fixed" mixes the
            same few networks for all examples, those of the seeds ``seed`` to ``seed + members - 1``. The latter needs
            contdrop's elementwise layers, called with [N, ...], or DropConnect.
        comparisons: Number of models (or laws) certified with the same examples, if one is to be picked, or all are to
            hold at once.
        batch_size: Examples in one pass; fewer take less memory.
        seed: Seed of the masks.
    """
    owner = "holdout_certificate"
    layers = check_examples(owner, model, x, y, delta)
    check_counts(owner, members=(members, 2), comparisons=(comparisons, 1), batch_size=(batch_size, 1), seed=(seed, 0))
    if not layers:
        raise ValueError(f"{owner}: expected a model with dropout layers, got {type(model).__name__} without any")
    check_choice(owner, "masks", masks, MIXTURE_MASKS)
    check_separate(owner, model, x[:batch_size])
    check_masks(owner, model, layers, x[:batch_size], masks)
    y = y.cpu()
    wrong = {"member": 0, "mixture": 0, "mean": 0}
    scores = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for inputs, labels in batches(x, y, batch_size):
            with dropout_on(model, {}):
                wrong["mean"] += count_errors(evaluate(model, inputs).cpu(), labels)
        with dropout_on(model, layers), seeded(layers, seed):
            for inputs, labels in batches(x, y, batch_size):
                first = _probabilities(model, inputs)
                wrong["member"] += count_errors(first, labels)
                drawn = (
                    _fixed_members(model, layers, inputs, members, seed)
                    if masks == "fixed"
                    else torch.stack([first, *(_probabilities(model, inputs) for _ in range(members - 1))])
                )
                wrong["mixture"] += count_errors(drawn.mean(0), labels)
                scores += len(labels) * torch.stack(bounds.brier_decomposition(drawn, labels))
    share = delta / (_PARTS * comparisons)
    found = {
        name: Bound(count, len(y), bounds.clopper_pearson(count, len(y), share).item()) for name, count in wrong.items()
    }
    return HoldoutCertificate(**found, brier=bounds.Brier(*(scores / len(y))), members=members, delta=delta)


def _probabilities(model: torch.nn.Module, x: Tensor) -> Tensor:
    """Return class probabilities [N, classes] in float64 on the CPU, where the labels are."""
    return evaluate(model, x).cpu().double().softmax(1)


def _fixed_members(model: torch.nn.Module, layers: Layers, x: Tensor, members: int, seed: int) -> Tensor:
    """Return class probabilities [members, N, classes] of networks with the same masks for all examples."""
    drawn = []
    with _shared_masks(layers):
        for number in range(members):
            with seeded(layers, seed + number):
                drawn.append(_probabilities(model, x))
    return torch.stack(drawn)


@contextlib.contextmanager
def _shared_masks(layers: Layers) -> Iterator[None]:
    """Let all examples of a batch share a mask."""
    before: list[tuple[torch.nn.Module, str, Any]] = []
    value: Any
    try:
        for name, layer in layers.items():
            if isinstance(layer, nn.Dropout):
                attribute, value = "shared_axes", (0, *layer.shared_axes)
            elif isinstance(layer, nn.DropConnectLinear):
                attribute, value = "masks", "batch"
            else:
                raise ValueError(
                    "holdout_certificate: expected contdrop's Dropout layers or DropConnectLinear for masks='fixed'; "
                    f"{name} is a {type(layer).__module__.partition('.')[0]}.{type(layer).__name__}; use masks='fresh'"
                )
            before.append((layer, attribute, getattr(layer, attribute)))
            setattr(layer, attribute, value)
        yield
    finally:
        for layer, attribute, value in before:
            setattr(layer, attribute, value)


def batches(x: Tensor, y: Tensor, size: int = AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels of at most ``size`` examples each."""
    yield from zip(x.split(size), y.split(size))  # type: ignore[no-untyped-call]


def evaluate(model: torch.nn.Module, x: Tensor) -> Tensor:
    """Call a model with a copy of the inputs, because the first layer may work in place."""
    output: Tensor = model(x.clone())
    return output


def count_errors(scores: Tensor, labels: Tensor) -> int:
    """Count the examples [N, classes] whose largest score is not that of the label."""
    return int((scores.argmax(1) != labels).sum())


def check_examples(owner: str, model: Any, x: Any, y: Any, delta: float, least: int = 1) -> Layers:
    """Check model, inputs, classes and delta; return the dropout layers of the model."""
    check_module(owner, model)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or y.dim() != 1 or len(x) != len(y) or len(y) < least:
        raise ValueError(f"{owner}: expected tensors x [N, ...] and y [N] with N of at least {least}")
    if y.is_floating_point():
        raise ValueError(f"{owner}: expected classes as whole numbers in y, got {y.dtype}")
    if not 0 < check_number(owner, "delta", delta) < 1:
        raise ValueError(f"{owner}: expected delta between 0 and 1, got {delta!r}")
    return dropout_layers(model)
