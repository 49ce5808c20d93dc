"""Holdout certificate: exact bounds on the error of a network with dropout, from examples kept aside.

They rest on a model that treats each example by itself, which is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .._torch.checks import check_choice, check_counts, check_module, check_number
from .._torch.private import BATCH_NORMS
from ..choices import MIXTURE_MASKS, MixtureMasks
from ..surgery.dropout_layers import Layers, dropout_layers, dropout_on, mask_axes, seeded
from ..theory import bounds

AT_ONCE = 2000  # examples evaluated at a time
_WITNESSES = 8  # examples that are compared


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
    share = delta / (len(wrong) * comparisons)
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


# Examples may be coupled by the model, through statistics of the batch or a mixed-up axis, or by masks that they share.


def check_separate(owner: str, model: torch.nn.Module, x: Tensor) -> None:
    """Raise ValueError if the output for an example, without dropout, depends on the others of its batch [N, ...]."""
    for name, layer in model.named_modules():
        if isinstance(layer, BATCH_NORMS) and layer.running_mean is None:
            raise ValueError(
                f"{owner}: expected a model that treats each example by itself; {name or 'it'} is a "
                f"{type(layer).__name__} that keeps no running statistics, so it couples examples; train one with "
                "track_running_stats=True"
            )
    x = x[:_WITNESSES]
    # Each example among copies of itself, at the same place of a batch of the same size, so that rounding is the same.
    alone = torch.stack([_evaluated(model, x[[number] * len(x)])[number] for number in range(len(x))])
    together = _evaluated(model, x)
    size = together.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    # Rounding, which layers may have amplified.
    tolerance = torch.finfo(alone.dtype).eps ** (2 / 3) * size if alone.is_floating_point() else 0.0
    if not torch.allclose(together.double(), alone.double(), rtol=0, atol=tolerance, equal_nan=True):
        raise ValueError(
            f"{owner}: expected a model that treats each example, along axis 0, by itself; its output for one changes "
            "with the others of the batch; look for statistics of the batch, for means over padding, and for layers "
            "that have the batch along another axis (batch_first)"
        )


def _evaluated(model: torch.nn.Module, x: Tensor) -> Tensor:
    """Return the output without dropout; seeded, because a model may draw in evaluation too."""
    with torch.no_grad(), dropout_on(model, {}), seeded(dropout_layers(model), 0):
        output: Tensor = model(x.clone()).cpu()
    return output


def check_masks(owner: str, model: torch.nn.Module, layers: Layers, x: Tensor, masks: MixtureMasks) -> None:
    """Raise ValueError if examples share a mask, or if ``masks="fixed"`` would not give all of them the same one.

    The axis of the examples in the input of a layer is the one that grows from a small batch to a large one.
    """
    few, many = 2, max(3, len(x))
    calls = []
    for size in (few, many):
        with torch.no_grad(), dropout_on(model, layers) as shapes, seeded(layers, 0):
            model(x[torch.zeros(size, dtype=torch.long)])
        calls.append(shapes)
    before, after = calls
    for name, layer in layers.items():
        for small, large in zip(before[name], after[name]):
            # Calls for each example, or for parts of the batch, cannot be matched: any axis may be that of examples.
            alike = len(before[name]) == len(after[name]) and len(small) == len(large)
            grown = {axis for axis in range(len(large)) if not alike or small[axis] != large[axis]}
            if not grown:
                raise ValueError(
                    f"{owner}: expected masks drawn for every example; {name} is called with {large} however many "
                    "there are, so errors of members would not be independent; mask what belongs to one example"
                )
            if grown & mask_axes(layer, len(large)):
                raise ValueError(
                    f"{owner}: expected masks drawn for every example; {name} shares one over the batch, so errors of "
                    "members would not be independent; change its shared_axes or masks"
                )
            first = not isinstance(layer, nn.Dropout) or (grown == {0} and small[0] == few)
            if masks == "fixed" and not (alike and first):
                raise ValueError(
                    f"{owner}: expected examples along the first axis for masks='fixed'; {name} is called with {large} "
                    f"for {many} of them; use masks='fresh'"
                )
