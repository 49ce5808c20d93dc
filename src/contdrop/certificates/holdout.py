"""Certificates: bounds on the error of a network with dropout that hold with a stated confidence.

:func:`holdout_certificate` needs examples that were kept aside; :func:`pac_bayes_certificate` turns the examples that a
network is trained on into a bound. What each certifies, and what it cannot say, is in docs/certificates.md.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .._torch.checks import check_choice, check_number, check_whole
from .._torch.private import has_forward_hooks, is_sequence
from ..choices import MIXTURE_MASKS, MixtureMasks
from ..inference import dropout_layers, dropout_on, seeded
from ..theory import bounds
from ..theory._numerics import is_forward_of
from .independence import check_masks, check_separate

_AT_ONCE = 2000  # examples evaluated at a time
_PARTS = 3  # of a holdout certificate: member, mixture, mean network
# Standard deviations of weights that a prior may have: the price of choosing among them is ln(their number).
SCALES = tuple(0.3 * 2.0**-step for step in range(10))


@dataclasses.dataclass(frozen=True)
class Bound:
    """Errors counted on n examples, and what the error probability is at most.

    Attributes:
        errors: How many.
        n: Of how many.
        bound: Upper bound on the error probability.
    """

    errors: int
    n: int
    bound: float

    @property
    def error(self) -> float:
        """The share that was wrong."""
        return self.errors / self.n


@dataclasses.dataclass(frozen=True)
class HoldoutCertificate:
    """Three bounds that hold together, all with probability 1 - delta.

    Attributes:
        member: Of one network with a mask drawn at random.
        mixture: Of the averaged class probabilities of ``members`` masks: drawn anew for each example, as
            :func:`contdrop.mc_predict` draws them, or the same for all.
        mean: Of the network in evaluation mode.
        brier: Of mixture and members on these examples; ``mixture = members - diversity`` exactly.
        members: Masks per mixture.
        delta: How often one of the three may fail.
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
    batch_size: int = _AT_ONCE,
    seed: int = 0,
) -> HoldoutCertificate:
    """Exact bounds on the error of a classifier with dropout, from examples kept aside.

    Each example meets a mask of its own, drawn without regard to the data, so the errors of random members are
    independent trials, and Clopper and Pearson's bound is exact; likewise for mixtures and for the mean network. The
    three hold together: each has delta / (3 comparisons).

    Conditions: the examples are independent, of the distribution that the bound is to hold for, and were used neither
    to train the model nor to choose it, its law or its rate. A model is refused if examples share a mask, along
    whichever axis they are where it is drawn, or if what it says of one depends on others of the batch, as with batch
    normalisation without running statistics; noise that does not come from a dropout layer is not seen.

    Args:
        model: Returns logits [N, classes] and treats each example by itself; with dropout layers that draw a mask for
            every example.
        x: Inputs [N, ...].
        y: Classes [N].
        delta: How often the certificate may fail.
        members: Masks per mixture, at least 2.
        masks: The mixture of "fresh" masks, drawn anew for each example, is what :func:`contdrop.mc_predict` predicts
            with; that of "fixed" ones is the same few networks for all examples, those of the seeds ``seed`` to
            ``seed + members - 1``. The latter needs this library's elementwise layers, called with [N, ...], or
            DropConnect.
        comparisons: Number of models (or laws) that certificates are made of with the same examples, if one is to be
            picked, or all are to hold at once.
        batch_size: Examples in one pass; fewer take less memory.
        seed: Of the masks.
    """
    owner = "holdout_certificate"
    layers = _checked(owner, model, x, y, members)
    for name, value, least in (("comparisons", comparisons, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        check_whole(owner, name, value, least)
    if not 0 < check_number(owner, "delta", delta) < 1:
        raise ValueError(f"{owner}: expected delta between 0 and 1, got {delta!r}")
    check_choice(owner, "masks", masks, MIXTURE_MASKS)
    check_separate(owner, model, x[:batch_size])
    check_masks(owner, model, layers, x[:batch_size], masks)
    y = y.cpu()
    wrong = {"member": 0, "mixture": 0, "mean": 0}
    scores = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for inputs, labels in _batches(x, y, batch_size):
            with dropout_on(model, {}):
                wrong["mean"] += _errors(_output(model, inputs).cpu(), labels)
        with dropout_on(model, layers), seeded(layers, seed):
            for inputs, labels in _batches(x, y, batch_size):
                first = _probabilities(model, inputs)
                wrong["member"] += _errors(first, labels)
                drawn = (
                    _fixed(model, layers, inputs, members, seed)
                    if masks == "fixed"
                    else torch.stack([first, *(_probabilities(model, inputs) for _ in range(members - 1))])
                )
                wrong["mixture"] += _errors(drawn.mean(0), labels)
                scores += len(labels) * torch.stack(bounds.brier_decomposition(drawn, labels))
    share = delta / (_PARTS * comparisons)
    found = {
        name: Bound(count, len(y), bounds.clopper_pearson(count, len(y), share).item()) for name, count in wrong.items()
    }
    return HoldoutCertificate(**found, brier=bounds.Brier(*(scores / len(y))), members=members, delta=delta)


def _probabilities(model: torch.nn.Module, x: Tensor) -> Tensor:
    """Of the classes [N, classes], where the labels are, and where float64 exists."""
    return _output(model, x).cpu().double().softmax(1)


def _fixed(model: torch.nn.Module, layers: dict[str, torch.nn.Module], x: Tensor, members: int, seed: int) -> Tensor:
    """Class probabilities [members, N, classes] of networks whose masks are the same for all examples and batches."""
    drawn = []
    with _one_mask(layers):
        for number in range(members):
            with seeded(layers, seed + number):
                drawn.append(_probabilities(model, x))
    return torch.stack(drawn)


@contextlib.contextmanager
def _one_mask(layers: dict[str, torch.nn.Module]) -> Iterator[None]:
    """Lets all examples of a batch share a mask."""
    before: list[tuple[torch.nn.Module, str, Any]] = []
    try:
        for name, layer in layers.items():
            attribute, value = _sharing(name, layer)
            before.append((layer, attribute, getattr(layer, attribute)))
            setattr(layer, attribute, value)
        yield
    finally:
        for layer, attribute, value in before:
            setattr(layer, attribute, value)


def _sharing(name: str, layer: torch.nn.Module) -> tuple[str, Any]:
    if isinstance(layer, nn.Dropout):
        return "shared_axes", (0, *layer.shared_axes)
    if isinstance(layer, nn.DropConnectLinear):
        return "masks", "batch"
    raise ValueError(
        f"holdout_certificate: expected contdrop's Dropout layers or DropConnectLinear for masks='fixed'; {name} is a "
        f"{type(layer).__module__.partition('.')[0]}.{type(layer).__name__}; use masks='fresh'"
    )


@dataclasses.dataclass(frozen=True)
class PacBayesCertificate:
    """A bound on the error of a randomised network: Gaussian weights, and masks on its units.

    Attributes:
        bound: On the error probability of a network drawn at random, with probability 1 - delta.
        empirical: Errors of drawn networks on the examples, a share.
        empirical_bound: What that share is at most if infinitely many were drawn.
        kl: Divergence of the weights from the prior's.
        n: Number of examples.
        scale: Standard deviation of the prior's weights, chosen among ``scales``.
        delta: How often the bound may fail.
        network: Draws: called with inputs, it returns the logits of networks drawn anew for each example.
    """

    bound: float
    empirical: float
    empirical_bound: float
    kl: float
    n: int
    scale: float
    delta: float
    network: GaussianNetwork


class GaussianNetwork(torch.nn.Module):
    """A sequence of layers whose linear ones have Gaussian weights, drawn anew for each example.

    Given its input, the outputs of a linear layer with independent Gaussian weights are independent and Gaussian, so
    they are drawn themselves (Kingma, Salimans and Welling, 2015): the same distribution, at the price of two products.
    That is so for one input of the layer per example. Several, such as the positions of a sequence, would have to share
    the weights that are drawn, so they are refused.
    """

    def __init__(self, model: torch.nn.Sequential, scale: float) -> None:
        super().__init__()
        self.layers = copy.deepcopy(model)
        self.scale = scale
        linear = [layer for layer in self.layers if isinstance(layer, torch.nn.Linear)]
        self.centres = [parameter.detach().clone() for layer in linear for parameter in layer.parameters()]
        self.means = [parameter for layer in linear for parameter in layer.parameters()]
        self.log_scales = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full_like(mean, math.log(scale))) for mean in self.means
        )

    def forward(self, x: Tensor) -> Tensor:
        place, examples = 0, len(x)
        for layer in self.layers:
            if not isinstance(layer, torch.nn.Linear):
                x = layer(x)
                continue
            if x.shape[:-1].numel() != examples:
                raise ValueError(
                    f"GaussianNetwork: expected linear layers to be called with [N, features], a row for each example; "
                    f"got {tuple(x.shape)} for {examples}, whose rows would share weights; put a torch.nn.Flatten first"
                )
            variance = (2 * self.log_scales[place]).exp()
            place += 1
            spread = torch.nn.functional.linear(x.square(), variance)
            if layer.bias is not None:
                spread = spread + (2 * self.log_scales[place]).exp()
                place += 1
            x = layer(x) + spread.clamp(min=1e-20).sqrt() * torch.randn_like(spread)
        return x

    def kl(self) -> Tensor:
        """The divergence of the weights from the prior N(centre, scale^2)."""
        total = torch.zeros((), dtype=torch.float64)
        for mean, centre, log_scale in zip(self.means, self.centres, self.log_scales):
            ratio = log_scale.double() - math.log(self.scale)
            moved = (mean.double() - centre.double()) / self.scale
            total = total + ((2 * ratio).exp() + moved.square() - 1 - 2 * ratio).sum() / 2
        return total.clamp(min=0)  # rounding


def pac_bayes_certificate(
    model: torch.nn.Sequential,
    x: Tensor,
    y: Tensor,
    delta: float = 0.05,
    *,
    epochs: int = 10,
    learning_rate: float = 0.001,
    batch_size: int = 250,
    scales: Sequence[float] = SCALES,
    draws: int = 20,
    seed: int = 0,
    after_each: Callable[[int], None] | None = None,
) -> PacBayesCertificate:
    """A bound on the error of a randomised network, from the examples that it is trained on.

    The prior has Gaussian weights around those of ``model``, which have to come from other examples; the posterior is
    trained here, by gradients of the bound itself, on weights and standard deviations. Masks on units have the same law
    in prior and posterior and cost nothing. The bound is ``pac_bayes_kl`` of the error of drawn networks, which is
    itself bounded from ``draws`` passes (Chernoff's bound: draws for different examples are independent), with a union
    bound over ``scales``. Half of delta pays for drawing, half for learning.

    Conditions: x and y are independent examples of one distribution, and **none of them was used to train or to choose
    the model**. It certifies a noisy network; it does not explain what dropout gains. As in
    :func:`holdout_certificate`, a model is refused if examples share a mask or are coupled.

    Args:
        model: A torch.nn.Sequential of linear layers, layers without parameters, and dropout on units. Its linear
            layers are torch's own, without hooks, and are called with [N, features]: of inputs [N, T, features] each
            position would need the weights of the others.
        x: Inputs [n, ...], n of at least 8.
        y: Classes [n].
        delta: How often the bound may fail.
        epochs: Passes over the examples to train the posterior; 0 certifies the prior itself.
        learning_rate: Of Adam.
        batch_size: Of the training.
        scales: Standard deviations of the prior's weights to choose from, fixed without these examples.
        draws: Passes over all examples to estimate the error of drawn networks.
        seed: Of weights, masks and order.
        after_each: Called with the number of each epoch when it is done.
    """
    owner = "pac_bayes_certificate"
    layers = _checked(owner, model, x, y, 2, needs_dropout=False)
    _check_sequence(owner, model)
    chosen = _scales(owner, scales)
    for name, value, least in (
        ("epochs", epochs, 0),
        ("batch_size", batch_size, 1),
        ("draws", draws, 1),
        ("seed", seed, 0),
    ):
        check_whole(owner, name, value, least)
    if not 0 < check_number(owner, "delta", delta) < 1 or len(y) < 8:
        raise ValueError(f"{owner}: expected delta between 0 and 1 and at least 8 examples, got {delta!r} and {len(y)}")
    check_separate(owner, model, x)
    check_masks(owner, model, layers, x[:_AT_ONCE], "fresh")
    y = y.to(x.device).long()
    with seeded(layers, seed):
        price = math.log(2 * math.sqrt(len(y)) * len(chosen) / (delta / 2))
        network = _first(model, x, y, chosen, price)
        _train(network, x, y, price, epochs, learning_rate, batch_size, after_each)
        with torch.no_grad():
            wrong = sum(
                _errors(_output(network, part), labels) for _ in range(draws) for part, labels in _batches(x, y)
            )
            divergence = network.kl().item()
    n, drawn = len(y), draws * len(y)
    share = wrong / drawn
    at_most = bounds.kl_inverse(share, math.log(2 / delta) / drawn).item()
    bound = bounds.pac_bayes_kl(at_most, divergence, n, delta / (2 * len(chosen))).item()
    return PacBayesCertificate(bound, share, at_most, divergence, n, network.scale, delta, network)


def _first(model: torch.nn.Sequential, x: Tensor, y: Tensor, scales: Sequence[float], price: float) -> GaussianNetwork:
    """The prior to start from: the largest scale at which it errs hardly more than at the smallest."""
    some = slice(0, 5 * _AT_ONCE)
    with torch.no_grad():
        tried = []
        for scale in sorted(scales):
            network = _drawing(GaussianNetwork(model, scale))
            wrong = sum(_errors(_output(network, part), labels) for part, labels in _batches(x[some], y[some]))
            tried.append((scale, wrong / len(y[some])))
    least = min(error for _, error in tried)
    allowed = least + max(0.005, math.sqrt(price / len(y)) / 4)
    return _drawing(GaussianNetwork(model, max(scale for scale, error in tried if error <= allowed)))


def _drawing(network: GaussianNetwork) -> GaussianNetwork:
    """With dropout on, and everything else as in evaluation mode."""
    network.eval()
    for layer in dropout_layers(network).values():
        layer.training = True
    return network


def _train(
    network: GaussianNetwork,
    x: Tensor,
    y: Tensor,
    price: float,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    after_each: Callable[[int], None] | None,
) -> None:
    """Minimises (sqrt(loss + c / 2) + sqrt(c / 2))^2 with c = (KL + price) / n, which bounds the loss (Pinsker)."""
    optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)
    steps = epochs * math.ceil(len(y) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for epoch in range(epochs):
        for chosen in _split(torch.randperm(len(y)), batch_size):
            optimiser.zero_grad()
            half = (network.kl() + price) / (2 * len(y))
            loss = _bounded_loss(network(x[chosen]), y[chosen]).double()
            objective: Tensor = ((loss + half).sqrt() + half.sqrt()).square()
            objective.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
        if after_each:
            after_each(epoch + 1)


_LEAST = 1e-4  # probabilities below it cost no more


def _bounded_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in bits of log(1 / least), so that it lies between 0 and 1."""
    chance = logits.log_softmax(1).gather(1, labels[:, None]).exp()
    return -torch.log(chance.clamp(min=_LEAST)).mean() / math.log(1 / _LEAST)


# ---- what they share


def _batches(x: Tensor, y: Tensor, size: int = _AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(_split(x, size), _split(y, size))


def _split(values: Tensor, size: int) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = values.split(size)  # type: ignore[no-untyped-call]
    return parts


def _output(model: torch.nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x.clone())  # a copy, because the first layer may work in place
    return output


def _errors(scores: Tensor, labels: Tensor) -> int:
    return int((scores.argmax(1) != labels).sum())


def _checked(
    owner: str, model: Any, x: Any, y: Any, members: int, *, needs_dropout: bool = True
) -> dict[str, torch.nn.Module]:
    """The model's dropout layers, if everything is as it has to be."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{owner}: expected a torch.nn.Module, got {type(model).__name__}")
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or y.dim() != 1 or len(x) != len(y) or not len(y):
        raise ValueError(f"{owner}: expected tensors x [N, ...] and y [N] with N of at least 1")
    if y.is_floating_point():
        raise ValueError(f"{owner}: expected classes as whole numbers in y, got {y.dtype}")
    check_whole(owner, "members", members, 2)
    layers = dropout_layers(model)
    if needs_dropout and not layers:
        raise ValueError(f"{owner}: expected a model with dropout layers, got {type(model).__name__} without any")
    return layers


def _check_sequence(owner: str, model: torch.nn.Module) -> None:
    if not is_sequence(model):
        own = " with a forward of its own" if isinstance(model, torch.nn.Sequential) else ""
        raise TypeError(f"{owner}: expected a torch.nn.Sequential, got {type(model).__name__}{own}")
    if has_forward_hooks(model):
        raise ValueError(f"{owner}: expected a model without forward hooks, whose effect is not known; remove them")
    for name, layer in model.named_children():
        if isinstance(layer, (nn.DropConnectLinear, nn.FastDropoutLinear)):
            raise ValueError(f"{owner}: expected masks on units; {name} is a {type(layer).__name__}")
        if isinstance(layer, torch.nn.Linear):
            _check_linear(owner, name, layer)
        elif any(True for _ in layer.parameters()):
            raise ValueError(
                f"{owner}: expected linear layers and layers without parameters; {name} is a {type(layer).__name__}"
            )


def _check_linear(owner: str, name: str, layer: torch.nn.Linear) -> None:
    """An error if its output is not that of torch.nn.Linear with its own weight and bias: they are what is drawn."""
    names = [own for own, _ in layer.named_parameters()]
    if names != ["weight", "bias"][: 1 if layer.bias is None else 2]:
        raise ValueError(
            f"{owner}: expected linear layers whose parameters are weight and bias; {name} computes its weight of "
            "others; torch.nn.utils.parametrize.remove_parametrizations makes it a plain one"
        )
    if not is_forward_of(layer, torch.nn.Linear) or has_forward_hooks(layer):
        raise ValueError(
            f"{owner}: expected linear layers that compute what torch.nn.Linear does; {name} is a "
            f"{type(layer).__name__} with a forward or hooks of its own; put what they do into a layer without "
            "parameters"
        )


def _scales(owner: str, scales: Sequence[float]) -> list[float]:
    found = [float(scale) for scale in scales]
    if not found or not all(0 < scale < math.inf for scale in found):
        raise ValueError(f"{owner}: expected scales to be positive numbers, got {list(scales)!r}")
    return found
