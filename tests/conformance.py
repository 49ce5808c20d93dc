"""The checks that every law and every layer passes, and the cases they are run on.

A case knows how to build a layer, what to feed it, and what theory says of its output for a fixed input: so a new layer
is tested by adding a case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import contdrop as cd

INFINITY = float("inf")

LAWS = [
    cd.Bernoulli(keep=0.5),
    cd.Bernoulli(keep=0.75),
    cd.Bernoulli(keep=0.3),
    cd.Bernoulli(keep=0.77, value=0.65),
    cd.Uniform(),
    cd.Uniform(0.2, 0.7),
    cd.Gaussian(sigma=0.2),
    cd.Gaussian(sigma=0.5),
    cd.Gaussian(mu=0.9, sigma=0.3),
    cd.Gaussian(sigma=0.3, low=-INFINITY, high=INFINITY),
]


class Triangular(cd.Law):
    """A law of the user's own, as a plain class: the mean of two uniform numbers."""

    mean = 0.5
    variance = 1 / 24

    def quantile(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, (u / 2).sqrt(), 1 - ((1 - u) / 2).sqrt())


OPEN = Triangular()

INPUTS, OUTPUTS = 12, 5


def fixed(*shape: int, seed: int = 0) -> Tensor:
    """Numbers for weights and inputs that are the same in every test."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer under test, with one row of input as the unit of independence.

    Attributes:
        name: Shown by pytest.
        build: Makes the layer, given a generator or None.
        features: Size of the last axis of its input.
        moments: Mean and covariance matrix of its output in training for one row of input, as theory has it.
        evaluation: Its output in evaluation mode.
        second_input: Whether it takes the pre-activation too; the tests feed 2 x - 0.3.
    """

    name: str
    build: Callable[[torch.Generator | None], torch.nn.Module]
    features: int
    moments: Callable[[torch.nn.Module, Tensor], tuple[Tensor, Tensor]]
    evaluation: Callable[[torch.nn.Module, Tensor], Tensor]
    second_input: bool = False

    def layer(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
        layer = self.build(generator)
        with torch.no_grad():
            for number, parameter in enumerate(layer.parameters()):
                parameter.copy_(fixed(*parameter.shape, seed=10 + number) * 0.5)
        return layer.to(dtype)

    def call(self, layer: torch.nn.Module, x: Tensor) -> Tensor:
        return layer(x, 2 * x - 0.3) if self.second_input else layer(x)

    def rows(self, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return fixed(count, self.features, seed=1).to(dtype)


def _dropout_case(law: cd.Law, scale: str) -> Case:
    factor = 1 / law.mean if scale == "inverted" else 1.0

    def moments(layer: torch.nn.Module, row: Tensor) -> tuple[Tensor, Tensor]:
        return law.mean * factor * row, torch.diag(law.variance * factor**2 * row.square())

    return Case(
        f"Dropout-{law}-{scale}",
        lambda generator: cd.Dropout(law, scale=scale, generator=generator),
        INPUTS,
        moments,
        lambda layer, x: x * (law.mean * factor),
    )


def _linear_case(kind: type[torch.nn.Linear], law: cd.Law, scale: str, **options) -> Case:
    factor = 1 / law.mean if scale == "inverted" else 1.0

    def expected(layer: torch.nn.Module, x: Tensor) -> Tensor:
        if kind is cd.DropConnectLinear:  # the bias is masked, too
            return law.mean * factor * (x @ layer.weight.T + layer.bias)
        return law.mean * factor * (x @ layer.weight.T) + layer.bias

    def moments(layer: torch.nn.Module, row: Tensor) -> tuple[Tensor, Tensor]:
        squares = layer.weight.square() @ row.square()
        if kind is cd.DropConnectLinear:
            squares = squares + layer.bias.square()
        return expected(layer, row), torch.diag(law.variance * factor**2 * squares)

    return Case(
        "-".join((kind.__name__, str(law), scale, *map(str, options.values()))),
        lambda generator: kind(INPUTS, OUTPUTS, law=law, scale=scale, generator=generator, **options),
        INPUTS,
        moments,
        expected,
    )


def _adaptive_case(alpha: float, beta: float) -> Case:
    def keep(x: Tensor) -> Tensor:
        return torch.sigmoid(alpha * (2 * x - 0.3) + beta)

    return Case(
        f"AdaptiveDropout-{alpha}-{beta}",
        lambda generator: cd.AdaptiveDropout(alpha, beta, generator=generator),
        INPUTS,
        lambda layer, row: (row * keep(row), torch.diag(keep(row) * (1 - keep(row)) * row.square())),
        lambda layer, x: x * keep(x),
        second_input=True,
    )


DROPOUT_CASES = [_dropout_case(law, scale) for law in LAWS for scale in ("inverted", "paper")]
DROPCONNECTS = [
    (cd.Bernoulli(keep=0.5), "inverted", {"inference": "mean"}),
    (cd.Bernoulli(keep=0.3), "paper", {}),
    (cd.Gaussian(sigma=0.4), "inverted", {"inference": "analytic"}),
    (cd.Bernoulli(keep=0.5), "paper", {"inference": "sampled", "samples": 64}),
    (cd.Uniform(), "inverted", {"masks": "batch"}),
    (cd.Bernoulli(keep=0.75, value=0.5), "paper", {}),
    (cd.Bernoulli(keep=0.75, value=0.5), "inverted", {"masks": "batch"}),
    (OPEN, "inverted", {"inference": "mean"}),
    (OPEN, "paper", {"inference": "sampled", "samples": 64}),
    (OPEN, "inverted", {"masks": "batch", "inference": "analytic"}),
]
FASTS = [
    (cd.Bernoulli(keep=0.5), "paper"),
    (cd.Bernoulli(keep=0.75, value=0.5), "paper"),
    (cd.Gaussian(sigma=0.3), "inverted"),
    (OPEN, "inverted"),
]
CASES = [
    *DROPOUT_CASES,
    _adaptive_case(1.0, 0.0),
    _adaptive_case(-1.0, 0.5),
    *(_linear_case(cd.DropConnectLinear, *given, **options) for *given, options in DROPCONNECTS),
    *(_linear_case(cd.FastDropoutLinear, *given) for given in FASTS),
    _dropout_case(OPEN, "inverted"),
    _dropout_case(OPEN, "paper"),
]
# One case per mechanism, for checks whose outcome does not depend on the law.
MECHANISMS = [
    next(case for case in CASES if case.name.startswith(start))
    for start in (
        "Dropout-bernoulli:keep=0.5-inverted",
        "Dropout-gaussian:sigma=0.3,mu=0.9",
        "AdaptiveDropout",
        "DropConnectLinear-bernoulli",
        "DropConnectLinear-uniform",
        "FastDropoutLinear",
        "Dropout-Triangular",
        "DropConnectLinear-Triangular",
    )
]


class Gated(torch.nn.Module):
    """AdaptiveDropout with one input, so that every layer can be used alike."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = cd.AdaptiveDropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x.relu(), x)


# A layer of every kind, and of every option that changes how it is computed, for inputs of 6 features.
LAYERS = {
    "bernoulli": lambda: cd.BernoulliDropout(0.5),
    "gaussian": lambda: cd.GaussianDropout(0.3),
    "paper": lambda: cd.UniformDropout(scale="paper"),
    "shared": lambda: cd.GaussianDropout(0.3, shared_axes=(-1,)),
    "relu": lambda: cd.GaussianDropout(0.3, activation="relu"),
    "inplace": lambda: cd.GaussianDropout(0.3, inplace=True),
    "adaptive": Gated,
    "fast": lambda: cd.FastDropoutLinear(6, 4, law=cd.Gaussian(sigma=0.3)),
    "dropconnect": lambda: cd.DropConnectLinear(6, 4, activation="relu", samples=50),
    "dropconnect-analytic": lambda: cd.DropConnectLinear(6, 4, inference="analytic", activation="sigmoid"),
    "dropconnect-mean": lambda: cd.DropConnectLinear(6, 4, inference="mean", masks="batch", mask_bias=False),
    "dropconnect-linear": lambda: cd.DropConnectLinear(6, 4, law=cd.Gaussian(sigma=0.3), bias=False, samples=50),
}


def standard_errors(samples: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, covariance matrix, and the standard errors of both, from the samples themselves (rows)."""
    count = samples.shape[0]
    mean = samples.mean(0)
    centred = samples - mean
    covariance = centred.T @ centred / count
    mean_error = (covariance.diagonal() / count).sqrt()
    # The variance of the product of two centred outputs is E[(ab)^2] - E[ab]^2.
    square = centred.square()
    product_variance = (square.T @ square / count - covariance.square()).clamp(min=0)
    return mean, covariance, mean_error, (product_variance / count).sqrt()


def assert_moments(samples: Tensor, mean: Tensor, covariance: Tensor, *, sigmas: float = 5.0) -> None:
    """The moments of the samples agree with theory within some standard errors."""
    got_mean, got_covariance, mean_error, covariance_error = standard_errors(samples.double())
    floor = 1e-12 * (1 + mean.abs().max().item())  # outputs without any noise have a standard error of 0
    worst_mean = ((got_mean - mean).abs() / (sigmas * mean_error + floor)).max().item()
    worst_covariance = ((got_covariance - covariance).abs() / (sigmas * covariance_error + floor)).max().item()
    assert worst_mean <= 1, f"mean is off by {worst_mean * sigmas:.1f} standard errors"
    assert worst_covariance <= 1, f"covariance is off by {worst_covariance * sigmas:.1f} standard errors"


def output_and_gradients(case: Case, layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of a fixed weighted sum of it by the input and the parameters."""
    x = x.detach().clone().requires_grad_()
    y = case.call(layer, x)
    weights = fixed(*y.shape, seed=3).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]


def seeded(function: Callable[..., Any], *arguments: Any, seed: int = 1) -> Any:
    """What a function gives after torch.manual_seed."""
    torch.manual_seed(seed)
    return function(*arguments)


def bit_equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))


def assert_pretended_numbers_are_read(backend: str, device: torch.device) -> None:
    """Tensors whose numbers are not what lies in memory, because torch negates them later, or made no memory for them.

    The fast paths go past the dispatcher, which would have seen to this.
    """
    ones = torch.ones(3, 3, device=device)
    strided, dense = torch.complex(ones, ones).conj().imag, torch._neg_view(ones)
    zeros = torch._efficientzerotensor((3, 3), device=device)
    assert strided.is_neg()
    assert dense.is_neg()
    with cd.use_backend(backend):
        for x, plain in ((strided, -ones), (dense, -ones), (zeros, 0 * ones)):
            assert torch.equal(cd.functional.dropout(x, cd.Bernoulli(keep=1.0)), plain)
            assert torch.equal(cd.functional.adaptive_dropout(x, 1e9 * ones), plain)
            assert bit_equal(_dropconnect_with(x), _dropconnect_with(plain))


def _dropconnect_with(tensor: Tensor) -> list[Tensor]:
    """Output and gradients of DropConnect, for which the tensor is the gradient, and the input or the weight."""
    other = fixed(*tensor.shape, seed=1).to(tensor)
    results = []
    for x, weight in ((tensor, other), (other, tensor)):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        torch.manual_seed(0)
        y = cd.functional.dropconnect_linear(x, weight, None, cd.Uniform())
        results += [y.detach(), *torch.autograd.grad(y, [x, weight], tensor)]
    return results
