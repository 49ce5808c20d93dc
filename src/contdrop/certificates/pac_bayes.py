"""PAC-Bayes certificate of a randomised network, from the examples it is trained on."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import nn
from .._torch.checks import check_counts, is_forward_of
from .._torch.private import has_forward_hooks, is_sequence
from ..surgery.dropout_layers import dropout_layers, seeded
from ..theory import bounds
from .holdout import AT_ONCE, batches, check_examples, check_masks, check_separate, count_errors, evaluate

# Standard deviations of weights that a prior may have; choosing among them costs ln(their number).
SCALES = tuple(0.3 * 2.0**-step for step in range(10))
_LEAST_PROBABILITY = 1e-4  # smaller ones cost no more in training


@dataclasses.dataclass(frozen=True)
class PacBayesCertificate:
    """Bound on the error of a network with Gaussian weights and masks on its units.

    Attributes:
        bound: Upper bound on the error probability of a randomly drawn network, with probability 1 - delta.
        empirical: Share of errors of drawn networks on the examples.
        empirical_bound: Upper bound on that share if infinitely many networks were drawn.
        kl: Divergence of the weights from the prior.
        n: Number of examples.
        scale: Standard deviation of the prior's weights, chosen among ``scales``.
        delta: Probability that the bound fails.
        network: Called with inputs, returns the logits of networks drawn anew for each example.
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
    """Sequence of layers whose linear ones have Gaussian weights, drawn anew for each example.

    Given its input, the outputs of a linear layer with independent Gaussian weights are independent and Gaussian, so
    the outputs are drawn instead (Kingma, Salimans and Welling, 2015): the same distribution for two matrix products.
    This holds for one input of the layer per example. Several, such as the positions of a sequence, would have to share
    the drawn weights, so they are refused.
    """

    def __init__(self, model: torch.nn.Sequential, scale: float) -> None:
        super().__init__()
        self.layers = copy.deepcopy(model)
        self.scale = scale
        linear = [layer for layer in self.layers if isinstance(layer, torch.nn.Linear)]
        self.means = [parameter for layer in linear for parameter in layer.parameters()]
        self.centres = [mean.detach().clone() for mean in self.means]
        self.log_scales = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full_like(mean, math.log(scale))) for mean in self.means
        )

    def forward(self, x: Tensor) -> Tensor:
        examples, log_scales = len(x), iter(self.log_scales)
        for layer in self.layers:
            if not isinstance(layer, torch.nn.Linear):
                x = layer(x)
                continue
            if x.shape[:-1].numel() != examples:
                raise ValueError(
                    f"GaussianNetwork: expected linear layers to be called with [N, features], a row for each example; "
                    f"got {tuple(x.shape)} for {examples}, whose rows would share weights; put a torch.nn.Flatten first"
                )
            spread = torch.nn.functional.linear(x.square(), (2 * next(log_scales)).exp())
            if layer.bias is not None:
                spread = spread + (2 * next(log_scales)).exp()
            x = layer(x) + spread.clamp(min=1e-20).sqrt() * torch.randn_like(spread)
        return x

    def kl(self) -> Tensor:
        """Return the divergence of the weights from the prior N(centre, scale^2)."""
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
    """Bound the error of a randomised network, from the examples it is trained on.

    The prior has Gaussian weights around those of ``model``, which must come from other examples. The posterior, its
    weights and standard deviations, is trained here by gradients of the bound. Masks on units have the same law in
    prior and posterior and cost nothing. The bound is :func:`contdrop.theory.bounds.pac_bayes_kl` of the error of drawn
    networks, which is itself bounded from ``draws`` passes (Chernoff's bound: draws for different examples are
    independent), with a union bound over ``scales``. Half of delta pays for drawing, half for learning.

    Conditions: x and y are independent examples of one distribution, and **none of them was used to train or to choose
    the model**. It certifies a noisy network; it does not explain the gain of dropout. As in
    :func:`contdrop.certificates.holdout_certificate`, a model is refused if examples share a mask or are coupled.

    Args:
        model: A torch.nn.Sequential of linear layers, layers without parameters, and dropout on units. Its linear
            layers are torch's own, without hooks, and are called with [N, features]: of inputs [N, T, features] each
            position would need the weights of the others.
        x: Inputs [n, ...], n of at least 8.
        y: Classes [n].
        delta: Probability that the bound fails.
        epochs: Passes over the examples to train the posterior; 0 certifies the prior itself.
        learning_rate: Learning rate of Adam.
        batch_size: Batch size of the training.
        scales: Standard deviations of the prior's weights to choose from, fixed without these examples.
        draws: Passes over all examples to estimate the error of drawn networks.
        seed: Seed of weights, masks and order.
        after_each: Called with the number of each finished epoch.
    """
    owner = "pac_bayes_certificate"
    layers = check_examples(owner, model, x, y, delta, 8)
    _check_sequence(owner, model)
    chosen = [float(scale) for scale in scales]
    if not chosen or not all(0 < scale < math.inf for scale in chosen):
        raise ValueError(f"{owner}: expected scales to be positive numbers, got {list(scales)!r}")
    check_counts(owner, epochs=(epochs, 0), batch_size=(batch_size, 1), draws=(draws, 1), seed=(seed, 0))
    check_separate(owner, model, x)
    check_masks(owner, model, layers, x[:AT_ONCE], "fresh")
    y = y.to(x.device).long()
    with seeded(layers, seed):
        price = math.log(2 * math.sqrt(len(y)) * len(chosen) / (delta / 2))
        network = _prior(model, x, y, chosen, price)
        _train(network, x, y, price, epochs, learning_rate, batch_size, after_each)
        with torch.no_grad():
            wrong = sum(
                count_errors(evaluate(network, part), labels) for _ in range(draws) for part, labels in batches(x, y)
            )
            divergence = network.kl().item()
    n, drawn = len(y), draws * len(y)
    share = wrong / drawn
    at_most = bounds.kl_inverse(share, math.log(2 / delta) / drawn).item()
    bound = bounds.pac_bayes_kl(at_most, divergence, n, delta / (2 * len(chosen))).item()
    return PacBayesCertificate(bound, share, at_most, divergence, n, network.scale, delta, network)


def _prior(model: torch.nn.Sequential, x: Tensor, y: Tensor, scales: Sequence[float], price: float) -> GaussianNetwork:
    """Return the prior of the largest scale whose error is hardly above that of the smallest."""
    some = slice(0, 5 * AT_ONCE)
    tried = []
    with torch.no_grad():
        for scale in sorted(scales):
            network = _noisy(GaussianNetwork(model, scale))
            wrong = sum(count_errors(evaluate(network, part), labels) for part, labels in batches(x[some], y[some]))
            tried.append((scale, wrong / len(y[some])))
    allowed = min(error for _, error in tried) + max(0.005, math.sqrt(price / len(y)) / 4)
    return _noisy(GaussianNetwork(model, max(scale for scale, error in tried if error <= allowed)))


def _noisy(network: GaussianNetwork) -> GaussianNetwork:
    """Turn dropout on, and put everything else into evaluation mode."""
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
    """Minimize (sqrt(loss + c / 2) + sqrt(c / 2))^2 with c = (KL + price) / n, which bounds the loss (Pinsker)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    steps = epochs * math.ceil(len(y) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for epoch in range(epochs):
        for chosen in torch.randperm(len(y)).split(batch_size):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            half = (network.kl() + price) / (2 * len(y))
            # Cross-entropy in units of log(1 / least probability), so that it lies between 0 and 1.
            chance = network(x[chosen]).log_softmax(1).gather(1, y[chosen][:, None]).exp()
            cost = -torch.log(chance.clamp(min=_LEAST_PROBABILITY)).mean() / math.log(1 / _LEAST_PROBABILITY)
            objective: Tensor = ((cost.double() + half).sqrt() + half.sqrt()).square()
            objective.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        if after_each:
            after_each(epoch + 1)


def _check_sequence(owner: str, model: torch.nn.Module) -> None:
    """Refuse a model whose weights would not be those that are drawn."""
    if not is_sequence(model):
        own = " with a forward of its own" if isinstance(model, torch.nn.Sequential) else ""
        raise TypeError(f"{owner}: expected a torch.nn.Sequential, got {type(model).__name__}{own}")
    if has_forward_hooks(model):
        raise ValueError(f"{owner}: expected a model without forward hooks, whose effect is not known; remove them")
    for name, layer in model.named_children():
        if isinstance(layer, (nn.DropConnectLinear, nn.FastDropoutLinear)):
            raise ValueError(f"{owner}: expected masks on units; {name} is a {type(layer).__name__}")
        parameters = [own for own, _ in layer.named_parameters()]
        if not isinstance(layer, torch.nn.Linear):
            if parameters:
                raise ValueError(
                    f"{owner}: expected linear layers and layers without parameters; {name} is a {type(layer).__name__}"
                )
        elif parameters != ["weight", "bias"][: 1 if layer.bias is None else 2]:
            raise ValueError(
                f"{owner}: expected linear layers whose parameters are weight and bias; {name} computes its weight of "
                "others; torch.nn.utils.parametrize.remove_parametrizations makes it a plain one"
            )
        elif not is_forward_of(layer, torch.nn.Linear) or has_forward_hooks(layer):
            raise ValueError(
                f"{owner}: expected linear layers that compute what torch.nn.Linear does; {name} is a "
                f"{type(layer).__name__} with a forward or hooks of its own; put what they do into a layer without "
                "parameters"
            )
